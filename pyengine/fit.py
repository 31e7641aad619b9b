"""What a model needs of memory, whether this computer has it, and what would fit if not. Allocates nothing, reads no weights.

Two kinds of memory. Mapped weights are the file: the system drops and reads them again, so too many of them are slow. What is a
program's own (KV cache, arena, threads' scratch, or weights read with mmap=False) has to be there: the system answers what it
cannot give with its memory killer, and hands out pages on first touch, long after a model was opened. So the whole of it is
counted before a load, and refused if it is not free. Llama loads what decide() returns, so `fit` cannot say otherwise.

Imported by llama, draft and cli. Imports plan, cache, machine, native, gguf.
"""
import bisect
import dataclasses
import weakref

from . import machine, plan
from .cache import PAGE, pages_for
from .errors import MemoryBudgetError, RequestError
from .gguf import GGUF, TENSOR_TYPES
from .native import ffi

# Left alone: the interpreter grows by its tokenizer, templates and answers (15 MB with 262,144 tokens of vocabulary), and
# MemAvailable is an estimate.
RESERVE_SHARE, RESERVE_LEAST = 10, 32 << 20

# Types of weights that are offered instead, largest first; rows that a block of 256 does not divide stay with 32.
TYPES = ("Q8_0", "Q6_K", "Q5_K", "Q4_K", "IQ4_XS", "Q3_K", "Q2_K")
ROWS_OF_32 = {"Q8_0": "Q8_0", "Q6_K": "Q8_0", "Q5_K": "Q5_1", "Q4_K": "Q5_0", "IQ4_XS": "IQ4_NL", "Q3_K": "IQ4_NL", "Q2_K": "IQ4_NL"}

MAX_CTX = (1 << 31) - 1
SHORT_CTX = 512              # a context nobody asked for leaves room for the weights, unless it were shorter than this

# What of the usable memory a program may take for its own: all of it, where somebody asked for this context; what the weights leave;
# a quarter, where the weights are so large that they do not stay in memory whatever we do.
ALL, BESIDE_WEIGHTS, QUARTER = "all", "beside the weights", "a quarter"


@dataclasses.dataclass(frozen=True)
class Fit:
    """A program, the pages it gets, and every byte of it."""

    program: plan.Program
    pages: list              # per cache group
    n_threads: int           # that are made
    weights: int             # bytes of the files
    private: bool            # read into memory of our own, not mapped
    sequence: int            # KV cache of one sequence of n_ctx
    cache: int               # of all pages
    arena: int
    scratch: int             # of one thread
    other: int               # header, logits, constants, tables
    free: "int | None"       # what the system had to give; None: it does not say

    @property
    def own(self) -> int:
        return self.cache + self.fixed

    @property
    def fixed(self) -> int:
        """All but the cache."""
        return self.arena + self.n_threads * self.scratch + self.other + (self.weights if self.private else 0)

    @property
    def least(self) -> int:
        """With a cache for one sequence."""
        return self.sequence + self.fixed

    @property
    def fits(self) -> bool:
        return self.free is None or self.own <= usable(self.free)

    @property
    def resident(self) -> bool:
        """May mapped weights stay in memory beside one sequence?"""
        return self.private or self.free is None or self.least + self.weights <= usable(self.free)


def usable(free: int) -> int:
    return max(0, free - max(free // RESERVE_SHARE, RESERVE_LEAST))


def count(program, pages, *, n_threads, private=False, free=None) -> Fit:
    """The bytes of a program with these pages."""
    gguf = program.gguf
    each = one_sequence(program)
    tables = 4 * max(1, len(each)) * program.max_seqs * -(-program.n_ctx // PAGE) + 32 * program.max_tokens
    return Fit(program=program, pages=list(pages), n_threads=n_threads, weights=sum(f.size for f in gguf.files), private=private,
               sequence=sum(n * g.page_bytes for n, g in zip(each, program.groups)),
               cache=sum(n * g.page_bytes for n, g in zip(pages, program.groups)), arena=program.arena_bytes,
               scratch=program.thread_bytes(), free=free,
               other=gguf.header_bytes + program.state_bytes + program.logits_bytes + program.const_bytes + tables + 2 * ffi.sizeof("pe_insn") * len(program.instrs))


def decide(gguf, *, n_ctx=None, n_threads=1, private=False, free=None, cache_tokens=None, **settings) -> Fit:
    """The program for n_ctx positions, or (None) for as many as the model was trained for and memory holds, with pages for
    cache_tokens positions of all sequences together, or (None) for as many sequences of settings["max_seqs"] as there is room
    for; at least one. MemoryBudgetError says what would fit."""
    most, memory = n_ctx or trained(gguf), dict(n_threads=n_threads, private=private, free=free, cache_tokens=cache_tokens)
    if n_ctx:
        fit = _with_room(plan.compile(gguf, n_ctx=n_ctx, **settings), n_threads, private, free, ALL, cache_tokens)
    else:
        fit = longest(gguf, most, BESIDE_WEIGHTS, **memory, **settings)
        short = min(most // 2, SHORT_CTX)
        if fit is None or fit.program.n_ctx < short:
            others = longest(gguf, most, QUARTER, **memory, **settings), longest(gguf, max(1, short), ALL, **memory, **settings)
            fit = max((f for f in (fit, *others) if f is not None), key=lambda f: f.program.n_ctx, default=None)
    if fit is None:
        raise MemoryBudgetError(refusal(gguf, most, **memory, **settings))
    return fit


def trained(gguf) -> int:
    return min(gguf.get_int(f"{gguf.arch}.context_length", default=1, lo=1), MAX_CTX)


def longest(gguf, n_ctx, share, *, n_threads=1, private=False, free=None, cache_tokens=None, **settings) -> "Fit | None":
    """The longest context up to n_ctx, in whole pages and to within a sixty-fourth, of which one sequence fits into `share` of
    what is free. The arena grows with the context, so guesses are tried out."""
    low, high, n, best = 0, n_ctx, n_ctx, None
    while True:
        program = plan.compile(gguf, n_ctx=n, **settings)
        fit = _with_room(program, n_threads, private, free, share, cache_tokens)
        if fit is not None:
            low, best = n, fit
        else:
            high = n
        if high - low <= max(PAGE, low // 64) or n == n_ctx == low:
            return best
        guess = _positions(program, n_threads, private, free, share)
        n = guess if low < guess < high else (low + high) // 2 // PAGE * PAGE
        if n <= low:
            return best


def one_sequence(program) -> list:
    """Pages per group that a sequence of the full context needs."""
    return [pages_for(g.window or 0, program.n_ctx, program.max_tokens) for g in program.groups]


def _budget(fit: Fit, share: str) -> int:
    """For the program's own memory; private weights are part of that."""
    room = usable(fit.free)
    return room if fit.private or share is ALL else room - fit.weights if share is BESIDE_WEIGHTS else room // 4


def pool(program, cache_tokens: int) -> list:
    """Pages per group for so many positions, at least one whole sequence. Where a window is, for max_seqs sequences at most:
    what is behind their windows they do not hold."""
    pages, each = -(-cache_tokens // PAGE), one_sequence(program)
    return [max(n, min(pages, n * program.max_seqs) if g.window else pages) for n, g in zip(each, program.groups)]


def _with_room(program, n_threads, private, free, share, cache_tokens=None) -> "Fit | None":
    """Pages within what is free; None if one sequence, or what was asked for, does not fit. The pools are shared, so they need not
    hold max_seqs sequences of the full context at one time; they hold one, and as many as the memory beside the weights allows."""
    if program.both:                 # a sequence is there for one step: pages for the rows of a step, in parts of pages
        cache_tokens = program.max_tokens + PAGE * program.max_seqs
    if cache_tokens is not None:
        fit = count(program, pool(program, cache_tokens), n_threads=n_threads, private=private, free=free)
        return fit if free is None or fit.own <= _budget(fit, share) else None
    each = one_sequence(program)
    fit = count(program, each, n_threads=n_threads, private=private, free=free)
    times = program.max_seqs
    if free is not None:
        if fit.least > _budget(fit, share):
            return None
        room = usable(free) - fit.fixed - (0 if private else fit.weights)
        times = max(1, min(times, room / fit.sequence if fit.sequence else times))
    return count(program, [int(n * times) for n in each], n_threads=n_threads, private=private, free=free)


def _positions(program, n_threads, private, free, share) -> int:
    """Positions of one sequence for which this program's budget has room."""
    windows = sum(n * g.page_bytes for n, g in zip(one_sequence(program), program.groups) if g.window)
    fit = count(program, [0] * len(program.groups), n_threads=n_threads, private=private, free=free)
    each = sum(g.page_bytes for g in program.groups if not g.window)
    left = _budget(fit, share) - fit.fixed - windows
    return PAGE * (left // each) if each and left > 0 else 0


# ---- what to change ---------------------------------------------------------------------------


def refusal(gguf, n_ctx, *, n_threads, private, free, cache_tokens=None, **settings) -> str:
    program = plan.compile(gguf, n_ctx=n_ctx, **settings)
    if cache_tokens is not None and _with_room(program, n_threads, private, free, ALL) is not None:
        most = bisect.bisect_right(range(-(-cache_tokens // PAGE)), usable(free), key=lambda n: count(
            program, pool(program, PAGE * n), n_threads=n_threads, private=private, free=free).own) - 1
        fit = count(program, pool(program, cache_tokens), n_threads=n_threads, private=private, free=free)
        return (f"cache_tokens {cache_tokens} needs {size(fit.own)} of its own ({size(fit.cache)} of {program.kv_type} KV cache), and of "
                f"{size(free)} available {size(usable(free))} may be used; cache_tokens {PAGE * most} would fit")
    fit = count(program, [0] * len(program.groups), n_threads=n_threads, private=private, free=free)
    text = (f"n_ctx {n_ctx} needs {size(fit.least)} of its own ({size(fit.sequence)} of {program.kv_type} KV cache, {size(fit.arena)} arena, "
            f"{size(fit.n_threads * fit.scratch + fit.other)} for threads and tables" + (f", {size(fit.weights)} of weights read with mmap=False" if private else "")
            + f"), and of {size(free)} available {size(usable(free))} may be used")
    ways = [f"n_ctx {way['n_ctx']} would fit" + way["with"] for way in contexts(gguf, n_ctx, n_threads=n_threads, private=private, free=free, **settings)]
    if private and fit.weights + fit.fixed > usable(free):
        ways.append("mmap=True needs no memory for the weights")
    return text + "; " + (", ".join(ways) or "no context fits")


def contexts(gguf, n_ctx, share=ALL, *, free, kv_type="f16", max_tokens=512, **settings) -> list:
    """The longest contexts up to n_ctx that fit into `share` with these settings, with q8_0 KV, with smaller steps, and last with q4_0, which answers show."""
    out, best = [], 0
    for words, kv, step in (("", kv_type, max_tokens), (" with kv_type='q8_0'", "q8_0", max_tokens), (" with n_batch=64", kv_type, 64),
                            (" with kv_type='q8_0' and n_batch=64", "q8_0", 64), (" with kv_type='q4_0'", "q4_0", max_tokens),
                            (" with kv_type='q4_0' and n_batch=64", "q4_0", 64)):
        if (kv, step) == (kv_type, max_tokens) and words or step > max_tokens:
            continue
        try:
            found = longest(gguf, n_ctx, share, free=free, kv_type=kv, max_tokens=step, **settings)
        except RequestError:                 # head sizes that blocks do not fit
            continue
        if found is not None and found.program.n_ctx > best * 1.25:      # more trouble than it is worth otherwise
            best = found.program.n_ctx
            out.append({"with": words, "n_ctx": best, "own": found.least, "kv_type": kv, "n_batch": step})
            if best >= n_ctx:
                break
    return out


def quantizations(gguf) -> list:
    """[(type, bytes of the file if its matrices were of that type)], those smaller than the file, largest first."""
    by_name = {name: (block, size) for name, block, size in TENSOR_TYPES.values()}
    whole = sum(f.size for f in gguf.files)
    rest = whole - sum(t.nbytes for t in gguf.tensors.values())
    out = []
    for name in TYPES:
        total = rest
        for t in gguf.tensors.values():
            block, nbytes = by_name[name]
            if t.shape[0] % block:
                block, nbytes = by_name[ROWS_OF_32[name]]
            total += t.nbytes if len(t.shape) < 2 or t.shape[0] % block else t.n_rows * (t.shape[0] // block) * nbytes
        if total < whole:
            out.append((name, total))
    return sorted(out, key=lambda x: -x[1])


def room_for_weights(path, free) -> None:
    """mmap=False reads the file into private memory: refused before the first byte is."""
    with GGUF(path) as gguf:
        need = sum(f.size for f in gguf.files)
    if free is not None and need > usable(free):
        raise MemoryBudgetError(f"mmap=False needs {size(need)} for the weights, and of {size(free)} available {size(usable(free))} "
                                f"may be used; mmap=True uses the file where it lies")


# ---- what this process has promised itself ------------------------------------------------------

_open = weakref.WeakKeyDictionary()      # program -> bytes of its own


def promise(fit: Fit) -> None:
    """Notes a program that was opened: what it has not touched yet is not free for the next one."""
    _open[fit.program] = fit.own


def free() -> "int | None":
    """Bytes for a model: what the system has left, less what open models of this process have not touched so far."""
    left = machine.memory_available()
    if left is None:
        return None
    promised = sum(n for program, n in list(_open.items()) if program.is_open)
    return max(0, left - max(0, promised - machine.memory_touched())) if promised else left


def size(n: int) -> str:
    return f"{n / 1e9:.2f} GB" if n >= 1e9 else f"{n / 1e6:.1f} MB"

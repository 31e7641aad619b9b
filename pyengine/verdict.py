"""Whether and how well a GGUF file will run here, said before it is loaded: judge() and predict().

Everything is asked of what would load it (arch, plan, tokenizer, chat, fit), so the verdict cannot say otherwise; what is
wrong is a Finding each, not only the first. The speed is measured for about half a second: the compiled program runs some
of its layers, as many as it takes to come from memory and not from a cache. Where the file is in memory already, it is
measured where it lies; else over made-up weights of its shapes and types, so that no disk is waited for and a file whose
weights are not there is judged too.

No printing (cli/inspect.py). Imported by cli. Imports arch, plan, tune, fit, machine, tokenizer, chat, native, gguf.
"""
import contextlib
import dataclasses
import mmap
import statistics
import time
import warnings

from . import fit, machine, plan, tune
from .arch import module_for
from .errors import MemoryBudgetError, PyengineError, RequestError, quoted
from .native import TIERS, address_of, isa_mask, rows
from .plan.graph import NO_MATRIX, Weight
from .plan.program import PRIVATE

RUNS, SLOW, NO, NOTE = "ok", "slow", "no", "note"

MEASURE_BYTES = 1 << 27      # read by a step that is timed, at least, and more than twice the caches
MOST_BYTES = 3 << 29         # for weights of which one layer or the head is larger, nothing is measured
MEASURE_SECONDS = 0.25       # each for generation and for a prompt
SAMPLES = 15                 # at most
N_PROMPT = 256               # rows of a prompt's step: what unpacks weights costs the more the fewer there are (IQ4_XS: 30 % at 128)

# Bytes of made-up weights. Any two are a half float of about 1, any four a float from 0.008 to 0.13, with signs; as quants
# and sub-scales they are as good as others. So nothing is subnormal, and sums neither vanish nor overflow.
BYTES = b"\x3c\x3d\xbc\xbd"
PERIOD = 8191                # prime: rows differ


@dataclasses.dataclass(frozen=True)
class Finding:
    what: str                # "file", "architecture", "weights", "model", "tokenizer", "chat", "memory", "speed"
    state: str               # "ok"; "note": worth knowing; "slow": runs, but not well; "no": does not run
    text: str


@dataclasses.dataclass(frozen=True)
class Verdict:
    findings: list
    n_ctx: "int | None"              # the context that a load without one would give
    bytes_per_token: "int | None"    # of weights that a generated token reads
    generation: "float | None"       # tokens/s behind a short prompt; None: not predicted
    prompt: "float | None"           # tokens/s of a prompt

    @property
    def runs(self) -> bool:
        return not any(f.state == NO for f in self.findings)

    @property
    def well(self) -> bool:
        return self.runs and not any(f.state == SLOW for f in self.findings)

    def as_dict(self) -> dict:
        return {"runs": self.runs, "well": self.well, **dataclasses.asdict(self)}


def judge(gguf, *, measure=True, free=None, isa=None) -> Verdict:
    """What loading `gguf` would come to. gguf: an open GGUF, also one of which only the header is there (cut=True).
    free: bytes of memory instead of what there is. measure: predict the speed, about a second."""
    free = fit.free() if free is None else free
    found, program, n_ctx, speed = [], None, None, (None, None)
    found += _file(gguf)
    supported = _architecture(gguf, found)
    weights = list(_weights(gguf, isa))
    header = _Header(gguf) if gguf.missing else gguf
    if supported and gguf.tensors:
        program, said = _program(header, free, isa)
        if program is not None:              # what no product needs may be of any type
            weights = [f for f in weights if f.state != NO]
        elif any(f.state == NO for f in weights):
            said = [f for f in said if f.what != "model"]     # it speaks of the first of these
    else:
        said = []
    found += [*weights, *said]
    tokenizer = _tokenizer(gguf, found)
    _chat(gguf, tokenizer, program, found)
    size = None
    if program is not None:
        n_ctx, size = program.n_ctx, sum(tune.token_bytes(program, i) for i in program.instrs)
        resident = not any(f.what == "memory" and f.state == SLOW for f in found)
        if measure and resident and not any(f.state == NO and f.what != "file" for f in found):
            try:
                speed, how = predict(header, free=free, isa=isa)
            except (OSError, MemoryError, RequestError) as e:      # no memory, no thread, fewer learned positions: it may load all the same
                how = Finding("speed", NOTE, f"not predicted: {e}")
            found.append(how)
    return Verdict(found, n_ctx, size, *speed)


# ---- what the file holds ------------------------------------------------------------------------


def _file(gguf):
    if gguf.missing:
        whole = gguf.files[0].size + gguf.missing
        yield Finding("file", NO, f"{gguf.missing:,} of its {whole:,} bytes are missing: fetch the rest; what follows is of the whole file")
    if not gguf.tensors:
        yield Finding("file", NO, "holds no tensors, only keys: a vocabulary or the first part of a split model without its weights")


def _architecture(gguf, found) -> bool:
    try:
        name = gguf.arch
        module_for(name)
    except PyengineError as e:
        found.append(Finding("architecture", NO, str(e)))
        return False
    found.append(Finding("architecture", RUNS, name))
    return True


def tier_of(isa: int) -> str:
    """The smallest tier that has these instruction-set bits."""
    return min((name for name, bits in TIERS.items() if bits & isa == isa), key=lambda name: TIERS[name].bit_count())


def _weights(gguf, isa):
    """Kernels for every type of matrix in the file, and the tier they are of on this CPU."""
    mask, by_type = isa_mask(isa), {}
    for t in gguf.tensors.values():
        if len(t.shape) > 1:
            entry = by_type.setdefault((t.type, t.type_name), [0, 0])
            entry[0] += 1
            entry[1] += t.nbytes
    here = [r for r in rows() if r.isa & mask == r.isa]
    able = []
    for (kind, name), (n, nbytes) in sorted(by_type.items(), key=lambda item: -item[1][1]):
        what = f"{n} tensors of type {name} ({fit.size(nbytes)})"
        best = [max((r.isa for r in here if r.wtype == kind and r.n_min <= count <= r.n_max), default=None) for count in (1, 512)]
        if None in best:
            yield Finding("weights", NO, f"{what}: {NO_MATRIX.get(name, 'this build has no kernels for them; the model in another type will run')}")
            continue
        able.append(f"{name} ({n}, {tier_of(max(best))})")
        if not min(best) and any(r.isa for r in here):
            for_what = "" if not max(best) else " for generation" if not best[0] else " for prompts"
            yield Finding("weights", SLOW, f"{what} have the plain scalar kernel only{for_what}, several times slower than others")
    if able:
        yield Finding("weights", RUNS, ", ".join(able))


def _program(gguf, free, isa):
    """(the program as Llama would load it, or None; findings)"""
    try:
        got = fit.decide(gguf, n_threads=max(machine.room_to_grow(machine.threads())), free=free, max_seqs=4, max_tokens=512, max_wanted=32, isa=isa)
    except MemoryBudgetError as e:
        return None, [Finding("memory", NO, str(e))]
    except PyengineError as e:
        return None, [Finding("model", NO, str(e))]
    program, trained = got.program, got.program.hp.n_ctx_train
    text = f"{fit.size(got.weights)} of weights and {fit.size(got.own)} of its own" + (f", of {fit.size(free)} available" if free is not None else "")
    context = f"n_ctx {program.n_ctx}" + (f" (trained for {trained})" if program.n_ctx < trained else "")
    if got.resident:
        return program, [Finding("memory", RUNS, f"{text}: fits with {context}")]
    return program, [Finding("memory", SLOW, f"{text}: the weights do not stay in memory, and parts of the file are read again for every token, at the "
                                             f"speed of the disk; {context}. pyengine-cli fit says what would fit")]


def _tokenizer(gguf, found):
    from . import tokenizer

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            t = tokenizer.load(gguf)
            t.encode("", add_bos=False, add_eos=False)       # builds what encodes; which texts it takes is another matter
        except PyengineError as e:
            found.append(Finding("tokenizer", NO, str(e)))
            return None
    found += [Finding("tokenizer", NOTE, str(w.message)) for w in said]
    pre = getattr(t, "pre", None)
    found.append(Finding("tokenizer", RUNS, f"{t.model}" + (f", pre-tokenizer {pre}" if pre else "") + f", {t.n_vocab} tokens"))
    return t


def _chat(gguf, tokenizer, program, found) -> None:
    """A model without a template, or with one that fails, still completes texts."""
    if tokenizer is None:
        return
    if program is not None and (program.both or program.graph.labels):
        found.append(Finding("chat", NOTE, "none, it writes no text: " + ("a reranker, which scores documents" if program.graph.labels else "an encoder, for embeddings")))
        return
    from . import chat

    try:
        templates = chat.from_gguf(gguf, tokenizer)
    except PyengineError as e:
        found.append(Finding("chat", NOTE, f"its template cannot be read, so chat will not run (completing texts will): {e}"))
        return
    if not templates:
        found.append(Finding("chat", NOTE, "no template: a base model, which completes texts"))
    for name, template in templates.items():
        called = "the template" if len(templates) == 1 else f"template {quoted(name, 60)}"
        try:
            template.render([{"role": "user", "content": "Hello"}])
        except PyengineError as e:
            found.append(Finding("chat", NOTE, f"{called} fails, so chat by it will not run (completing texts will): {e}"))
        else:
            found.append(Finding("chat", RUNS, f"{called} renders"))


class _Whole:
    """A file that is not all there as its header describes it; small tables that are read from it are ones."""

    def __init__(self, file, missing: int):
        self.path, self.size, self.buffer = file.path, file.size + missing, self

    def in_memory(self) -> bool:
        return False

    def __getitem__(self, part: slice) -> bytes:
        n = part.stop - part.start
        return (b"\x00\x00\x80\x3f" * (n // 4 + 1))[:n]


class _Header:
    """A GGUF of which only the header is there, as plan and fit see it."""

    def __init__(self, gguf):
        self._gguf = gguf
        self.files = [_Whole(gguf.files[0], gguf.missing), *gguf.files[1:]]

    def __getattr__(self, name):
        return getattr(self._gguf, name)

    def __contains__(self, key) -> bool:
        return key in self._gguf


# ---- how fast --------------------------------------------------------------------------------------


class _MadeUp:
    """Memory in the place of a program's files: its matrices one behind the other, full of BYTES."""

    def __init__(self, program):
        places, at, most = {}, 0, 0
        for i in program.instrs:
            held = tune.matrices(i)
            for w in i.args.values():
                if not isinstance(w, Weight) or w.name in places:
                    continue
                if i.op == "EMBED" and w not in held:        # a step reads a row or two of it: it may lie under the others
                    most = max(most, w.tensor.nbytes)
                    continue
                places[w.name] = at
                at += -(-w.tensor.nbytes // 4096) * 4096 + 64    # no two at one distance from the start of a page
        self.filled, self.size, self._places, self._memory = at, max(at, most, 1), places, None
        self.files = [self]

    def fill(self) -> None:
        import random

        draw = random.Random(1)
        block = bytes(draw.choice(BYTES) for _ in range(PERIOD)) * 128
        self._memory = mmap.mmap(-1, self.size, **PRIVATE)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):                 # a file's pages are small: a 1B model generates up to 30 % slower than from huge ones
            with contextlib.suppress(OSError):
                self._memory.madvise(mmap.MADV_NOHUGEPAGE)
        for at in range(0, self.filled, len(block)):
            self._memory[at : min(at + len(block), self.filled)] = block[: self.filled - at]
        self.address = address_of(self._memory)

    def place(self, program) -> None:
        """The program reads here from now on."""
        n = len(program.gguf.files)
        seen = {}
        for i in program.instrs:
            for w in i.args.values():
                if isinstance(w, Weight):
                    seen[id(w)] = w
        for w in seen.values():
            w.tensor = w.tensor._replace(file=0, offset=self._places.get(w.name, 0))
        self.files, program.gguf = [self] * n, self

    def check_unchanged(self) -> None:
        pass

    def close(self) -> None:
        if self._memory is not None:
            self._memory.close()


def predict(gguf, *, free=None, isa=None):
    """((tokens/s of generation, of a prompt), the Finding): some layers of the program timed, the rest of the model counted by
    bytes of each type and shape. (None, None) with the reason where there is no memory for made-up weights.

    Both agree but for what the system does with a file's pages: on a virtual machine whose memory was fragmented, a file
    of 740 MB gave 29 tokens/s, and a private copy of it 36, as made-up weights do."""
    tuned = tune.load(isa)
    threads = tuned.threads(gguf) or machine.threads()
    layers, _ = tune.measured_layers(gguf, isa, MEASURE_BYTES)
    whole = plan.compile(gguf, n_ctx=N_PROMPT, max_seqs=1, max_tokens=N_PROMPT, isa=isa)
    all_bytes = _bytes_by_shape(whole)
    size = sum(all_bytes.values())
    with contextlib.ExitStack() as stack:
        place = None
        if not all(f.in_memory() for f in gguf.files):
            memory = _MadeUp(plan.compile(gguf, n_ctx=N_PROMPT, max_seqs=1, max_tokens=N_PROMPT, isa=isa, layers=layers))
            if memory.size > MOST_BYTES or free is not None and memory.size > fit.usable(free) // 2:
                return (None, None), Finding("speed", NOTE, f"not predicted: measuring takes {fit.size(memory.size)} of memory; "
                                                            f"a token reads {fit.size(size)} of weights")
            stack.callback(memory.close)
            memory.fill()
            place = memory.place
        out = []
        for n, t in ((1, threads[0]), (N_PROMPT, threads[1])):
            with tune.Bench(gguf, layers, isa, t, tuned.shapes or None, place, N_PROMPT) as bench:
                out.append(_seconds(bench, n, all_bytes))
    if whole.both:
        return (None, N_PROMPT / out[1]), Finding("speed", RUNS, f"about {_round(N_PROMPT / out[1])} tokens/s of texts to embed; {threads[1]} threads")
    generation, prompt = 1 / out[0], N_PROMPT / out[1]       # scheduling and sampling take what time stamps and waking took here
    return (generation, prompt), Finding("speed", RUNS, f"about {_round(generation)} tokens/s of generation, each reading {fit.size(size)} of weights at "
                                                        f"{size / out[0] / 1e9:.1f} GB/s, and {_round(prompt)} tokens/s of prompts; "
                                                        f"{threads[0]} threads ({threads[1]} for prompts)")


def _seconds(bench, n: int, all_bytes) -> float:
    """Of a step of n tokens of the whole model: the step that was timed, times what all its products take to what those did."""
    until = time.monotonic() + MEASURE_SECONDS
    samples = [bench.step(n)]
    if time.monotonic() < until:                             # the first touches the arena and wakes the threads: of no weight in a long step
        samples.clear()
    while not samples or len(samples) < SAMPLES and time.monotonic() < until:
        samples.append(bench.step(n))
    wall = statistics.median(wall for wall, _ in samples)
    products = {shape: statistics.median(found.get(shape, 0.0) for _, found in samples) for shape in samples[0][1]}
    mine = _bytes_by_shape(bench.program)
    timed = sum(products.values())
    whole = sum(products[shape] * all_bytes[shape] / mine[shape] for shape in products)
    return wall * whole / timed if timed else wall


def _bytes_by_shape(program) -> dict:
    out = {}
    for i in program.instrs:
        if (shape := tune.shape_of(i)) is not None:
            out[shape] = out.get(shape, 0) + tune.token_bytes(program, i)
    return out


def _round(rate: float) -> str:
    """Two digits are all that a prediction is good for."""
    return f"{float(f'{rate:.2g}'):g}"

"""How good a model is on a text: perplexity(), and compare(): how far other files of a model are from a reference.

The text is cut into windows of n_ctx tokens, each computed by itself; the second half of a window is scored, so every
token that counts was foretold from at least n_ctx/2 others (llama.cpp's definition; where the vocabulary asks for a
beginning-of-sequence token, it takes the place of a window's first). Rows of logits are read where they lie, and of two
models a block of rows at a time, so memory does not grow with the text. What a row says is csrc/divergence.c's, sums over
a text are exact and rounded once: results do not depend on threads, batches, blocks or the order of windows.

No sampling, no printing, no plot (cli). Imported by cli and by users. Imports llama, stream, draft, fit, native, sampling.
"""
import contextlib
import dataclasses
import math
import os
import time
from array import array
from collections import deque

from . import fit
from .draft import difference
from .embed import check_writes
from .errors import NonFiniteError, RequestError
from .gguf import GGUF
from .llama import Llama, find
from .native import check, ffi, lib
from .request import ids, whole
from .sampling import best_vops
from .stream import Job, wait

N_CTX = 512                  # of a window, as in llama.cpp's tool: figures are compared between tools at equal windows
BLOCK_BYTES = 64 << 20       # of a block of rows; there are one of the reference's, and one within each open model
N_PROMPT, N_GENERATED = 512, 32      # tokens whose speed compare() measures
_OWN = frozenset(("max_seqs", "n_wanted", "prefix_cache", "speculate"))
SPEED_ROUNDS, SPEED_SECONDS = 4, 30.0    # most rounds, of which the first warms up, and seconds for a model


@dataclasses.dataclass(frozen=True)
class Perplexity:
    """exp of the mean negative log probability of a text's tokens, each given those before it in its window."""

    perplexity: float
    error: float             # one standard error, from the spread of the tokens
    nll: float               # the mean whose exp it is, in nats
    scored: int              # tokens it is the mean of
    windows: int
    n_ctx: int               # tokens of a window
    stride: "int | None"     # None: windows side by side, second halves scored; else windows that far apart, so many scored at their ends
    tokens: int              # of the text
    unused: int              # at the text's end, in no window; with `chunks`, also what was not asked for
    seconds: float           # of computing

    def as_dict(self) -> dict:
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Compared:
    """One file beside the reference: KL divergences are KL(reference || it) of the next token's distribution, in nats."""

    path: str
    name: str
    size: int                # bytes of its files
    bits_per_weight: float
    perplexity: float
    error: float
    ratio: float             # of its perplexity to the reference's
    kl: float                # mean over the scored positions
    kl_error: float
    kl_median: float
    kl_90: float
    kl_99: float
    kl_max: float
    same_best: float         # share of positions where both find the same token likeliest
    generation: "float | None"       # tokens/s behind a short prompt; None: not measured
    prompt: "float | None"           # tokens/s of a prompt


@dataclasses.dataclass(frozen=True)
class Comparison:
    models: list             # Compared: the reference first, then the others in their order
    scored: int
    windows: int
    n_ctx: int
    tokens: int
    unused: int
    seconds: float

    @property
    def reference(self) -> Compared:
        return self.models[0]

    def as_dict(self) -> dict:
        return dataclasses.asdict(self)


def perplexity(model, text, *, n_ctx=None, stride=None, chunks=None, progress=None, **settings) -> Perplexity:
    """The perplexity of `model` (a path, a name of the catalog, or an open Llama) over a text (str, bytes or token ids).

    n_ctx     tokens of a window (512; of an open Llama, at most its n_ctx)
    stride    None: windows lie side by side and their second halves are scored. A number: windows begin so many tokens apart
              and the last so many of each are scored, so each token has a longer past, at n_ctx/stride times the work
    chunks    windows to take at most
    progress  progress(windows done, windows in all, perplexity so far, its error)
    settings  of Llama, such as n_threads or kv_type
    """
    n_ctx = whole("n_ctx", n_ctx, 4, fit.MAX_CTX, none=True)
    _check_settings(settings)
    with contextlib.ExitStack() as stack:
        if isinstance(model, Llama):
            if settings:
                raise RequestError(f"{next(iter(settings))}: the model is open already", param=next(iter(settings)))
            llm = model
            n_ctx = n_ctx or min(N_CTX, llm.n_ctx)
            if n_ctx > llm.n_ctx:
                raise RequestError(f"n_ctx: found {n_ctx}, and the open model has {llm.n_ctx}", param="n_ctx")
            at_once = 1
        else:
            n_ctx = n_ctx or N_CTX
            n_batch = settings.setdefault("n_batch", N_CTX)
            at_once = max(1, n_batch // n_ctx) if isinstance(n_batch, int) else 1
            llm = stack.enter_context(_opened(model, n_ctx, at_once, **settings))
        plan = _Windows(llm, text, n_ctx, stride, chunks)
        begin = time.monotonic()
        nll = array("d", bytes(8 * plan.scored))
        reader = _Reader(_n_tokens(llm))

        def job(window):
            def row(logits, i, position):
                nll[window * plan.each + position - plan.first] = reader.nll(logits.address(i), tokens[position + 1])

            tokens = plan.tokens(window)
            return Job(tokens[:-1], on_row=row, wanted_from=plan.first)

        total = squares = 0.0                # of the windows so far, for `progress` only
        for done in _run(llm, map(job, range(plan.n)), at_once):
            if progress is not None:
                new = nll[(done - 1) * plan.each : done * plan.each]
                total, squares, n = total + math.fsum(new), squares + math.fsum(x * x for x in new), done * plan.each
                value = _exp(total / n)
                progress(done, plan.n, value, value * math.sqrt(max(0.0, squares / n - (total / n) ** 2) / max(1, n - 1)))
        value, error = _perplexity(nll)
        return Perplexity(value, error, _mean(nll), plan.scored, plan.n, n_ctx, stride, plan.n_text, plan.unused, time.monotonic() - begin)


def compare(reference, others, text, *, n_ctx=N_CTX, chunks=None, speed=True, progress=None, **settings) -> Comparison:
    """What other files of a model lose against a reference (the F32, F16 or BF16 file they were made of, say) on a text.

    reference, others   paths or names of the catalog; of the same vocabulary, or a RequestError says what differs
    n_ctx, chunks       as for perplexity()
    speed               measure tokens per second as well
    progress            progress(done, all, what): steps of the work, and what is done now
    settings            of every model, such as n_threads

    All models are open at a time, so each computes the text once, unless their weights together are more than memory
    holds: then they go in groups, and the reference computes it once for each.
    """
    n_ctx = whole("n_ctx", n_ctx, 4, fit.MAX_CTX)
    _check_settings(settings)
    others = [others] if isinstance(others, (str, os.PathLike)) else list(others)
    if not others:
        raise RequestError("others: none, expected at least one file to compare", param="others")
    begin, found, plan = time.monotonic(), None, None
    paths = [reference, *others]
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(_opened(reference, n_ctx, 1, prefix_cache=True, **settings))
        n = _n_tokens(first)
        plan = _Windows(first, text, n_ctx, None, chunks)
        groups = _groups(first, others)
        total = sum(1 + len(group) for group in groups) * plan.n + (len(paths) if speed else 0)
        tell = _counting(progress, total)
        found = {0: _Figures(first)}
        for group in groups:
            with contextlib.ExitStack() as open_now:
                models = {}
                for i in group:
                    llm = models[i] = open_now.enter_context(_opened(paths[i], n_ctx, 1, prefix_cache=True, **settings))
                    found[i], n = _Figures(llm), min(n, _n_tokens(llm))
                _side_by_side(first, models, found, plan, n, tell)
                if speed:
                    _speeds({**({0: first} if group is groups[0] else {}), **models}, found, tell)
    base = found[0].perplexity()[0]
    return Comparison([found[i].summary(base) for i in range(len(paths))], plan.scored, plan.n, n_ctx, plan.n_text, plan.unused, time.monotonic() - begin)


def rate(llm, n_prompt: int, n_gen: int, seed: int) -> float:
    """Tokens per second of one run over made-up tokens: of the prompt, or where n_gen is not 0 of generation behind it."""
    state, prompt = 12345 + seed, []
    for _ in range(n_prompt):
        state = (1103515245 * state + 12345) & 0x7FFFFFFF
        prompt.append((state >> 8) % llm.n_vocab)
    # One token comes from the prompt's own logits; n_gen more take a step each.
    result = llm.generate(prompt, max_tokens=n_gen + 1 if n_gen else 0, temperature=0.0, ignore_eos=True)
    return result.timings["predicted_per_second"] if n_gen else result.timings["prompt_per_second"]


# ---- windows ------------------------------------------------------------------------------


class _Windows:
    """Which tokens are computed together, and which of them are scored: those behind positions first .. n_ctx - 2."""

    def __init__(self, llm, text, n_ctx, stride, chunks):
        tokenizer = llm.tokenizer
        if isinstance(text, (str, bytes)):
            self._ids = tokenizer.encode(text, add_eos=False)
        elif isinstance(text, (list, tuple)):
            self._ids = ids(text, tokenizer.n_vocab, "text")
        else:
            raise RequestError(f"text: found {type(text).__name__}, expected a text or token ids", param="text")
        stride = whole("stride", stride, 1, n_ctx - 1, none=True)
        chunks = whole("chunks", chunks, 1, fit.MAX_CTX, none=True)
        self.n_text, self._n_ctx, self._step = len(self._ids), n_ctx, stride or n_ctx
        self._bos = tokenizer.bos if tokenizer.add_bos else None
        self.first = n_ctx // 2 if stride is None else n_ctx - stride - 1
        self.each = n_ctx - 1 - self.first                   # tokens scored of a window
        self.n = max(0, (self.n_text - n_ctx) // self._step + 1)
        if not self.n:
            raise RequestError(f"text: {self.n_text} tokens, and a window takes {n_ctx}: a longer text is needed, or a smaller n_ctx", param="text")
        self.n = min(self.n, chunks or self.n)
        self.scored = self.n * self.each
        self.unused = self.n_text - (self.n - 1) * self._step - n_ctx

    def tokens(self, window: int) -> list:
        at = window * self._step
        found = self._ids[at : at + self._n_ctx]
        if self._bos is not None:
            found[0] = self._bos
        return found


def _check_settings(settings) -> None:
    for name in _OWN & settings.keys():
        raise RequestError(f"{name}: is set here, by what a text takes; expected other settings of Llama", param=name)


def _opened(path, n_ctx, max_seqs, prefix_cache=False, **settings) -> Llama:
    """A model for windows: as many rows of logits a step as BLOCK_BYTES hold."""
    path = find(path)
    with GGUF(path) as g:
        n_vocab = len(g.get_strings("tokenizer.ggml.tokens", default=())) or 1
    llm = Llama(path, n_ctx=n_ctx, max_seqs=max_seqs, n_wanted=_block_rows(n_vocab), prefix_cache=prefix_cache, speculate=None, **settings)
    try:
        check_writes(llm.program)
    except BaseException:
        llm.close()
        raise
    return llm


def _block_rows(n_vocab: int) -> int:
    """Whole pages of 64 positions: the cache hands on whole ones, so a block begins where the one before ended."""
    return min(256, max(64, BLOCK_BYTES // (4 * n_vocab) // 64 * 64))


def _n_tokens(llm) -> int:
    """Ids that mean something; rows of the head behind them are padding and no part of a distribution."""
    return min(llm.tokenizer.n_vocab, llm.program.n_vocab)


def _run(llm, jobs, at_once: int):
    """Runs jobs, at_once of them at a time, in order; yields how many are done after each."""
    jobs, running, done = iter(jobs), deque(), 0
    try:
        while True:
            while len(running) < at_once and (job := next(jobs, None)) is not None:
                llm.engine_thread.submit([job])
                running.append(job)
            if not running:
                return
            wait(llm.engine_thread, [running[0]])
            running.popleft()
            done += 1
            yield done
    finally:
        for job in running:
            job.cancel()


# ---- rows ---------------------------------------------------------------------------------


class _Reader:
    """What rows of n logits say; `row` has it after each call (pe_divergence)."""

    def __init__(self, n: int):
        self.row, self._vops = ffi.new("pe_divergence *"), best_vops()
        self.row.n = n

    def nll(self, p: int, token: int) -> float:
        """Negative log probability of a token after the row at address p."""
        self._read(p, ffi.NULL)
        return -(float(self.row.p[token]) - self.row.p_max - math.log(self.row.p_sum))

    def kl(self, p: int, q: int, token: int) -> tuple:
        """(KL(p || q), negative log probability of a token after q, whether both find the same token likeliest)."""
        r = self.row
        self._read(p, ffi.cast("float *", q))
        # mathematically not negative; rounding may leave -1e-17 of two rows that are all but equal
        kl = max(0.0, r.mean + math.log1p(r.change))
        return kl, -(float(r.q[token]) - r.q_max - math.log(r.q_sum)), r.p_best == r.q_best

    def _read(self, p: int, q) -> None:
        self.row.p, self.row.q = ffi.cast("float *", p), q
        code = lib.pe_divergence_run(self.row, self._vops)
        if code == lib.PE_ENONFINITE:
            raise NonFiniteError("a logit is NaN or infinite")
        check(code, "reading a row of logits")


def _mean(values) -> float:
    return math.fsum(values) / len(values)


def _spread(values, mean: float) -> float:
    """One standard error of the mean."""
    n = len(values)
    return math.sqrt(math.fsum((x - mean) ** 2 for x in values) / n / (n - 1)) if n > 1 else 0.0


def _perplexity(nll) -> tuple:
    """(perplexity, its error) of negative log probabilities."""
    mean = _mean(nll)
    return _exp(mean), _exp(mean) * _spread(nll, mean)


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf


def percentile(ordered, share: float) -> float:
    """Of ascending values, between the two neighbours of share * (n - 1)."""
    at = share * (len(ordered) - 1)
    i = int(at)
    return ordered[i] + (at - i) * (ordered[min(i + 1, len(ordered) - 1)] - ordered[i])


# ---- several models -------------------------------------------------------------------------


class _Figures:
    """What is gathered of one model."""

    def __init__(self, llm):
        gguf = llm.gguf
        self.path, self.size = os.fspath(llm.model_path), sum(f.size for f in gguf.files)
        self.bits = 8 * sum(t.nbytes for t in gguf.tensors.values()) / sum(t.n_rows * t.shape[0] for t in gguf.tensors.values())
        self.nll, self.kl, self.same = array("d"), array("d"), 0
        self.generation = self.prompt = None

    def perplexity(self) -> tuple:
        return _perplexity(self.nll)

    def summary(self, base: float) -> Compared:
        value, error = self.perplexity()
        n = len(self.nll)
        kl = sorted(self.kl) if self.kl else [0.0] * n       # the reference's own
        mean = _mean(kl)
        name = os.path.basename(self.path)
        return Compared(self.path, name[: -len(".gguf")] if name.endswith(".gguf") else name, self.size, self.bits, value, error, value / base,
                        mean, _spread(kl, mean), *(percentile(kl, share) for share in (0.5, 0.9, 0.99, 1.0)), self.same / n if self.kl else 1.0,
                        self.generation, self.prompt)


def _groups(first, others) -> list:
    """Numbers of the others (from 1) that are open together with the reference: as many as memory keeps the weights of."""
    free, base = fit.free(), sum(f.size for f in first.gguf.files)
    groups, used = [[]], base
    for i, path in enumerate(others, 1):
        with GGUF(find(path)) as g:
            if what := difference(g, first.gguf):
                names = [os.path.basename(os.fspath(x.files[0].path)) for x in (g, first.gguf)]
                raise RequestError(f"{names[0]} has another vocabulary than {names[1]}: {what}", param="others")
            size = sum(f.size for f in g.files)
        if groups[-1] and free is not None and used + size > fit.usable(free):
            groups.append([])
            used = base
        groups[-1].append(i)
        used += size
    return groups


def _side_by_side(first, models, found, plan, n: int, tell) -> None:
    """Every window through the reference and the models, block by block."""
    reader, rows = _Reader(n), _block_rows(n)
    block = ffi.new("float[]", rows * n)
    base = int(ffi.cast("uintptr_t", block))
    fresh = not found[0].nll             # the reference is scored once, though it computes for each group
    last = plan.first + plan.each        # behind the last position that is scored
    for window in range(plan.n):
        tokens, begin = plan.tokens(window), plan.first
        while begin < last:
            end = min(last, begin // 64 * 64 + rows)

            def keep(logits, i, position, begin=begin):
                ffi.memmove(block + (position - begin) * n, ffi.cast("float *", logits.address(i)), 4 * n)
                if fresh:
                    found[0].nll.append(reader.nll(logits.address(i), tokens[position + 1]))

            def beside(figures, begin=begin):
                def row(logits, i, position):
                    kl, nll, same = reader.kl(base + 4 * n * (position - begin), logits.address(i), tokens[position + 1])
                    figures.kl.append(kl)
                    figures.nll.append(nll)
                    figures.same += same

                return row

            for llm, on_row in ((first, keep), *((llm, beside(found[i])) for i, llm in models.items())):
                job = Job(tokens[:end], on_row=on_row, wanted_from=begin)
                llm.engine_thread.submit([job])
                wait(llm.engine_thread, [job])
            begin = end
        tell(1 + len(models), f"window {window + 1} of {plan.n}")


def _speeds(models, found, tell) -> None:
    """Medians of rounds in which all models take turns, so that a neighbour disturbs all alike."""
    samples = {i: ([], []) for i in models}
    spent = dict.fromkeys(models, 0.0)
    for round in range(SPEED_ROUNDS):
        for i, llm in models.items():
            if spent[i] > SPEED_SECONDS:
                continue
            begin = time.monotonic()
            n_prompt, n_gen = min(N_PROMPT, llm.n_ctx - 1), min(N_GENERATED, llm.n_ctx - 2)
            for kind, (prompt, generated) in zip(samples[i], ((1, n_gen), (n_prompt, 0))):
                kind.append(rate(llm, prompt, generated, round))
            spent[i] += time.monotonic() - begin
            tell(1 if not round else 0, f"speed, round {round + 1} of {SPEED_ROUNDS}")
    for i, kinds in samples.items():
        found[i].generation, found[i].prompt = (percentile(sorted(kind[1:] or kind), 0.5) for kind in kinds)


def _counting(progress, total: int):
    done = 0

    def tell(n: int, what: str) -> None:
        nonlocal done
        done += n
        if progress is not None:
            progress(done, total, what)

    return tell

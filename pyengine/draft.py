"""Guesses of a smaller model with the same vocabulary: its program, its pages, and how many of them pay.

The draft model continues each sequence greedily, one step per guess for all sequences together,
on the engine thread. What it computed for guesses that did not come true is overwritten where
it lies: a page's positions count only below what the sequence's tokens confirm. Its memory is
counted before it is opened, and nothing it does changes an answer (see speculate.py). If it fails, a
warning says so and the engine goes on without guesses.

Not the engine and not the model's choice: who asks for a draft model names it. Imported by llama.
Imports cache, fit, gguf, plan, sampling, speculate.
"""
import os
import time
import warnings

from . import fit
from .cache import Cache
from .errors import RequestError, quoted
from .gguf import GGUF
from .plan import Seq, Step
from .sampling import Params, Sampler
from .speculate import LIMIT, Odds, Width, useful

CATCH_UP = 256             # rows of one call for sequences the draft has not read yet: they get no guesses until it has
KIND = 6                   # the length of match under which Odds keeps them: all are alike, and begin at 0.65
SHARE = 4                  # a draft takes at most this part of the memory that is free


class State:
    """What the draft has computed of one sequence: `tokens` are in the pages of `table`."""

    __slots__ = ("table", "tokens", "odds")

    def __init__(self, table, odds):
        self.table, self.tokens, self.odds = table, [], odds

    def confirm(self, tokens) -> None:
        """Forgets guesses that did not come true; the last of `tokens` is always computed anew, for its logits."""
        n = min(len(self.tokens), len(tokens) - 1)
        # Only the last guesses can be wrong: what was confirmed once stays so.
        first = max(0, n - LIMIT - 1)
        while first < n and self.tokens[first] == tokens[first]:
            first += 1
        del self.tokens[first:]


class Draft:
    """propose() sets the seq.draft of requests; measured() and verified() tell what came of it. Used by the engine thread."""

    def __init__(self, memory, *, n_threads: int, cpus=None):
        """memory: the program and its pages, as of plan(). The file is closed with it."""
        self.memory = memory
        self.program = program = memory.program
        program.open(pages=memory.pages, n_threads=n_threads, cpus=cpus)
        fit.promise(memory)
        self._cache = Cache([g.window or 0 for g in program.groups], memory.pages, reuse=False)
        n_ids = len(program.gguf.get_strings("tokenizer.ggml.tokens"))
        params = Params(temperature=0.0).validated(program.n_vocab)
        self._greedy = Sampler(params, program.n_vocab, 0, min(n_ids, program.n_vocab))
        self.width, self.odds = Width(), Odds()
        self._steps = Width()        # of the draft's own, by sequences
        self._row = 0.0              # seconds a row, of steps that read
        self._live = {}              # request -> State
        self._failed = False

    # ---- what the engine asks ---------------------------------------------------------

    def propose(self, requests, room: int) -> None:
        if self._failed:
            return
        for request in [r for r in self._live if r.done]:
            self._drop(request)
        chances, behind = [], 0
        for request in requests:
            state, tokens = self._live.get(request), request.seq.tokens
            odds = self.odds if state is None else state.odds
            chances.append(_powers(max(odds.of(KIND), 0.1), min(useful(request), self.program.n_ctx - len(tokens) - LIMIT)))
            behind += max(0, len(tokens) - (0 if state is None else len(state.tokens)) - LIMIT)
        counts = self.width.share(chances, room, self._steps.seconds(len(requests)) or 0.0, behind * self._row)
        if any(counts):
            try:
                self._guess({request: n for request, n in zip(requests, counts) if n})
            except Exception as e:   # the answers do not need it
                self._failed = True
                for request in requests:
                    request.seq.draft = []
                warnings.warn(f"the draft model failed, going on without guesses: {e}", stacklevel=2)

    def measured(self, rows: int, seconds: float) -> None:
        self.width.measured(rows, seconds)

    def verified(self, request, proposed: int, accepted: int) -> None:
        state = self._live.get(request)
        if state is not None:
            for _ in range(accepted):
                state.odds.saw(KIND, True)
            if accepted < proposed:
                state.odds.saw(KIND, False)

    def close(self) -> None:
        self.program.close()
        self.program.gguf.close()

    # ---- how ----------------------------------------------------------------------------

    def _guess(self, counts) -> None:
        """Reads what is new of each sequence, then continues those that are read to their end."""
        behind, chunks = CATCH_UP, []
        for request in counts:
            state = self._live.get(request)
            if state is None:
                state = self._live[request] = State(self._cache.table(), Odds(self.odds))
            tokens = request.seq.tokens
            state.confirm(tokens)
            self._cache.forget(state.table, len(state.tokens))
            new = tokens[len(state.tokens):]
            if len(new) > LIMIT + 1:
                new = new[:max(0, behind)]
                behind -= len(new)
            if new:
                chunks.append((request, new))
        for depth in range(max(counts.values())):
            picked = self._step(chunks)
            chunks = []
            for request, token in picked:
                if len(self._live[request].tokens) == len(request.seq.tokens) + depth:
                    request.seq.draft.append(token)
                    if depth + 1 < counts[request]:
                        chunks.append((request, [token]))
            if not chunks:
                return

    def _step(self, chunks) -> list:
        """One step of (request, tokens) each; returns (request, the most probable next token) of those that had pages."""
        tokens, seqs, wanted, ran = [], [], [], []
        for request, new in chunks[:self.program.max_seqs]:
            state = self._live[request]
            start = len(state.tokens)
            new = new[:self.program.max_tokens - len(tokens)]
            if not new:
                continue
            if self._cache.extend(state.table, start, start + len(new)) is None:
                self._drop(request)          # the pool is short: this one goes without guesses for now
                continue
            tokens += new
            wanted.append(len(tokens) - 1)
            seqs.append(Seq(start, len(new), state.table.pages))
            ran.append((request, new))
        if not ran:
            return []
        begin = time.monotonic()
        logits = self.program.run(Step(tokens, seqs, wanted))
        seconds = time.monotonic() - begin
        if len(tokens) <= 2 * len(ran):
            self._steps.measured(len(ran), seconds)
        else:
            self._row = seconds / len(tokens)
        out = []
        for i, (request, new) in enumerate(ran):
            self._live[request].tokens += new
            out.append((request, self._greedy.sample(logits.address(i), (), (), 0).token))
        return out

    def _drop(self, request) -> None:
        self._cache.release(self._live.pop(request).table)


def _powers(chance: float, n: int) -> list:
    """Of one guess, two, ...: up to n of them, as far as they are worth a row."""
    out, power = [], chance
    while len(out) < n and power >= 0.05:
        out.append(power)
        power *= chance
    return out


# ---- before it is opened --------------------------------------------------------------------------------------


def plan(path, like, *, n_ctx, free, n_threads, **settings) -> "fit.Fit":
    """What the draft model in `path` needs beside `like`, the model it guesses for; a RequestError where it cannot."""
    gguf = GGUF(path)
    try:
        same_vocabulary(gguf, like)
        budget = None if free is None else free // SHARE
        found = fit.longest(gguf, min(n_ctx, fit.trained(gguf)), fit.BESIDE_WEIGHTS, n_threads=n_threads, private=False, free=budget, **settings)
        if found is None:
            raise RequestError(f"speculate: {_name(gguf)} needs more than a {SHARE}th of the {fit.size(free)} that are free, "
                               f"and a draft gets no more", param="speculate")
        if found.program.both or found.program.graph.labels:
            raise RequestError(f"speculate: {_name(gguf)} is an encoder or a reranker: it has no next token to guess", param="speculate")
        if found.program.states:     # whose guesses would have to be taken back position by position
            raise RequestError(f"speculate: the draft model {_name(gguf)} is {gguf.arch}, which keeps a state beside its cache and cannot "
                               "guess; expected a model that only attends", param="speculate")
        return found
    except BaseException:
        gguf.close()
        raise


def same_vocabulary(gguf, like) -> None:
    """A guess is an id: it has to mean the same token in both."""
    what = difference(gguf, like)
    if what:
        raise RequestError(f"speculate: the draft model {_name(gguf)} has another vocabulary than {_name(like)}: {what}", param="speculate")


def difference(gguf, like) -> "str | None":
    """What of the two files' vocabularies differs first; None if every id means the same token in both."""
    key = "tokenizer.ggml.model"
    kinds = gguf.get_str(key, default=""), like.get_str(key, default="")
    mine, theirs = (list(g.get_strings("tokenizer.ggml.tokens", default=())) for g in (gguf, like))
    if kinds != (kinds[0],) * 2:
        return f"one is {quoted(kinds[0])}, the other {quoted(kinds[1])}"
    if len(mine) != len(theirs):
        return f"{len(mine)} and {len(theirs)} tokens"
    i = next((i for i, (a, b) in enumerate(zip(mine, theirs)) if a != b), None)
    return None if i is None else f"token {i} is {quoted(mine[i], 40)} and {quoted(theirs[i], 40)}"


def _name(gguf) -> str:
    return os.path.basename(os.fspath(gguf.files[0].path))

"""Texts to vectors, and documents to scores: which rows of a model are taken, and what is made of them.

Not the model (arch/) and not the steps (engine.py): requests whose rows end before the head, or, of a reranker, behind its
classifier; a row for each position comes in, in order. What comes out is a function of the text, the pooling, and nothing
else: sums run in position order in float64, the length of a vector is the exact sum of its squares, rounded once. Texts
are text: a control token that somebody wrote in one is not that token. Imported by llama, aio and serve.
"""
import math
import os
from decimal import Context, Decimal
from typing import NamedTuple

from .errors import ContextError, GGUFError, NonFiniteError, RequestError, UnsupportedError
from .request import ids, is_int, options, whole

POOLINGS = ("none", "mean", "cls", "last", "rank")     # in the order of the file's numbers
WAVE = 1024                  # requests that are handed over at one time


class Ranked(NamedTuple):
    """A document's place in the list it came in, and its score: the classifier's logit, or, where it has several labels, the
    probability of the first."""

    index: int
    score: float


def pooling_of(program) -> str:
    """What the file says; where it says nothing, or none, the last token's row, or the mean if attention sees both ways."""
    key, default = f"{program.gguf.arch}.pooling_type", "mean" if program.both else "last"
    n = program.gguf.get_int(key, default=0)
    if not 0 <= n < len(POOLINGS):
        raise GGUFError(f"{program.gguf.path}: key '{key}' is {n}, expected 0..{len(POOLINGS) - 1} ({', '.join(POOLINGS)})", key=key)
    return POOLINGS[n] if n else default


def _name(program) -> str:
    return os.path.basename(program.gguf.path)


def check_writes(program) -> None:
    """UnsupportedError for a model that has no next token to say."""
    if program.graph.labels:
        raise UnsupportedError(f"{_name(program)} is a reranker ({program.arch} with a classifier): it writes no text; use rerank()")
    if program.both or program.output is None:
        raise UnsupportedError(f"{_name(program)} is an encoder ({program.arch}): it writes no text; use embed()")


def check_ranks(program) -> None:
    if not program.graph.labels:
        raise UnsupportedError(f"{_name(program)} has no classifier (tensor 'cls.output.weight'): it cannot rerank; embed() makes vectors of texts")


# ---- texts in ----------------------------------------------------------------------------


def listed(texts) -> tuple:
    """([text or ids, ...], whether it was a list of them)."""
    if isinstance(texts, str):
        return [texts], False
    if not hasattr(texts, "__iter__") or isinstance(texts, (bytes, dict)):
        raise RequestError(f"texts: found {type(texts).__name__}, expected a text, token ids, or a list of either", param="texts")
    texts = list(texts)
    if not texts:
        raise RequestError("texts: an empty list, expected at least one text", param="texts")
    return ([texts], False) if all(is_int(t) for t in texts) else (texts, True)


def _tokens(llm, text, where: str) -> list:
    if isinstance(text, str):
        _could_fit(llm, text, where)
        tokens = llm.tokenizer.encode(text)
    elif isinstance(text, (list, tuple)) or hasattr(text, "__array__"):
        tokens = ids(text, llm.tokenizer.n_vocab, where)
    else:
        raise RequestError(f"{where}: found {type(text).__name__}, expected a text or token ids", param=where)
    if not tokens:
        raise RequestError(f"{where}: empty, and this model's vocabulary adds no token to a text", param=where)
    return _fitting(llm, tokens, where)


def _could_fit(llm, text: str, where: str) -> None:
    if (least := llm.tokenizer.at_least(text)) > llm.n_ctx:
        raise _too_long(llm, least, where, "at least ")


def _fitting(llm, tokens: list, where: str) -> list:
    if len(tokens) > llm.n_ctx:
        raise _too_long(llm, len(tokens), where)
    return tokens


def _too_long(llm, n: int, where: str, least="") -> ContextError:
    error = ContextError(f"{where}: {least}{n} tokens, and n_ctx is {llm.n_ctx}; nothing is cut", n_prompt=n, n_ctx=llm.n_ctx)
    error.param = where
    return error


def pair(llm, query: str, document: str, where: str) -> list:
    """What a reranker reads: its own template of the two, or both with the vocabulary's tokens around and between them."""
    for text, name in ((query, "query"), (document, where)):
        if not isinstance(text, str):
            raise RequestError(f"{name}: found {type(text).__name__}, expected a text", param=name)
        _could_fit(llm, text, name)
    t = llm.tokenizer
    template = llm.gguf.get_str("tokenizer.chat_template.rerank", default="")
    if template:
        mark = next((m for m in map(chr, range(0xFDD0, 0xFDF0)) if m not in template + query + document), None)
        if mark is None:
            raise RequestError(f"{where}: contains all of Unicode's noncharacters from U+FDD0 on, expected one to be free", param=where)
        query, document = (t.controls.shield(text, mark) for text in (query, document))
        words = [part.replace("{document}", document) for part in template.split("{query}")]
        return _fitting(llm, t.encode(query.join(words), special=True, add_eos=False, shield=mark), where)
    between = [t.closing] if t.add_eos else []
    if t.add_sep and t.model != "bert":      # of WordPiece it is what closes
        between.append(t.sep)
    parts = [[t.bos] if t.add_bos else [], t.encode(query, add_bos=False, add_eos=False), between,
             t.encode(document, add_bos=False, add_eos=False), [t.closing] if t.add_eos else []]
    if not (tokens := sum(parts, [])):
        raise RequestError(f"{where}: empty, as the query is, and this model's vocabulary adds no token to a text", param=where)
    return _fitting(llm, tokens, where)


# ---- rows --------------------------------------------------------------------------------


class Pool:
    """What becomes of one request's rows."""

    __slots__ = ("pooling", "n", "_at", "_found")

    def __init__(self, pooling: str, n: int, both: bool):
        """pooling of n positions; rank is read where the model was taught it: the first token, or the last of a decoder."""
        self.pooling, self.n = pooling, n
        self._at = 0 if pooling == "cls" or pooling == "rank" and both else n - 1
        self._found = []

    @property
    def wanted_from(self) -> int:
        return 0 if self.pooling in ("none", "mean") else self._at

    def row(self, logits, i: int, position: int) -> None:
        """On the engine's thread: a row of the step. NonFiniteError ends this request alone."""
        import numpy

        if self.pooling in ("cls", "last", "rank") and position != self._at:
            return
        row = logits.numpy(i) if self.pooling == "rank" else logits.hidden(i)
        if not numpy.isfinite(row).all():
            raise NonFiniteError(f"{'a logit' if self.pooling == 'rank' else 'the row'} of position {position} is NaN or infinite")
        if self.pooling != "mean":
            self._found.append(row)
        elif not self._found:
            self._found.append(row.astype(numpy.float64))
        else:
            self._found[0] += row

    def vector(self, normalize: bool, dimensions):
        """float32 [n_embd], or of "none" [n, n_embd]; the first `dimensions` of them, made as long as 1."""
        import numpy

        rows = [self._found[0] / self.n] if self.pooling == "mean" else self._found
        rows = numpy.stack([row.astype(numpy.float32)[:dimensions] for row in rows])
        if normalize:
            rows = numpy.stack([_unit(row) for row in rows])
        return rows if self.pooling == "none" else rows[0]

    def score(self) -> float:
        """A classifier of several labels knows by which of them it means yes: the first, as converters write them."""
        first, *others = map(float, self._found[0])
        if not others:
            return first
        d = Context(prec=30)        # libm's exp has other bits elsewhere
        return float(d.divide(1, sum((d.exp(Decimal(x) - Decimal(first)) for x in others), Decimal(1))))


def _unit(row):
    """The row divided by its length; a row of zeros stays one."""
    import numpy

    row = row.astype(numpy.float64)
    length = math.sqrt(math.fsum((row * row).tolist()))       # squares of float32 are exact, and so is fsum
    return (row / length if length else row).astype(numpy.float32)


# ---- requests ----------------------------------------------------------------------------


def start(llm, texts: list, pooling=None, *, first=0, notify=None, **how) -> tuple:
    """(jobs, pools) of texts or lists of ids, submitted; how: priority, key, salt, deadline. first: the place of texts[0] in
    the caller's list."""
    program = llm.program
    if pooling is None:
        pooling = pooling_of(program)
        if pooling == "rank":
            raise UnsupportedError(f"{_name(program)} is a reranker (pooling rank): rerank() scores documents with it; embed() takes a "
                                   f"pooling of its rows: {', '.join(POOLINGS[:-1])}")
    elif pooling not in POOLINGS[:-1]:
        why = "; rerank() gives scores" if pooling == "rank" else ""
        raise RequestError(f"pooling: found {pooling!r:.60}, expected one of {', '.join(POOLINGS[:-1])}, or None for the file's{why}", param="pooling")
    return _submit(llm, [_tokens(llm, text, f"texts[{i}]") for i, text in enumerate(texts, first)], pooling, notify, how)


def start_rank(llm, query: str, documents: list, *, first=0, notify=None, **how) -> tuple:
    """(jobs, pools) of a query beside each document."""
    check_ranks(llm.program)
    return _submit(llm, [pair(llm, query, document, f"documents[{i}]") for i, document in enumerate(documents, first)], "rank", notify, how)


def _submit(llm, prompts, pooling, notify, how) -> tuple:
    from .stream import Job

    o = options(how)
    how = {"priority": o.priority, "key": o.key, "salt": o.salt, "deadline": o.deadline}
    jobs, pools = [], []
    for tokens in prompts:
        pool = Pool(pooling, len(tokens), llm.program.both)
        jobs.append(Job(tokens, on_row=pool.row, wanted_from=pool.wanted_from, hidden=pooling != "rank", notify=notify, **how))
        pools.append(pool)
    llm.engine_thread.submit(jobs)
    return jobs, pools


def _waves(llm, items, begin):
    """The pools of items, so many requests at a time that a million texts are no million requests."""
    from .stream import wait

    pools, queue = [], llm.engine_thread.max_queue
    wave = WAVE if queue is None else min(WAVE, queue + llm.program.max_seqs)
    for at in range(0, len(items), wave):
        jobs, some = begin(at, items[at:at + wave])
        wait(llm.engine_thread, jobs)
        pools += some
    return pools


def embed(llm, texts, *, normalize=True, dimensions=None, pooling=None, **how):
    """Llama.embed()."""
    import numpy

    dimensions = check(llm.program, normalize, dimensions)
    texts, several = listed(texts)
    pools = _waves(llm, texts, lambda at, some: start(llm, some, pooling, first=at, **how))
    vectors = [pool.vector(normalize, dimensions) for pool in pools]
    return vectors[0] if not several else vectors if pools[0].pooling == "none" else numpy.stack(vectors)


def check(program, normalize, dimensions):
    if not isinstance(normalize, bool):
        raise RequestError(f"normalize: found {normalize!r:.60}, expected True or False", param="normalize")
    return whole("dimensions", dimensions, 1, program.hp.n_embd, none=True)


def rerank(llm, query, documents, *, top_n=None, **how) -> list:
    """Llama.rerank()."""
    top_n = whole("top_n", top_n, 1, None, none=True)
    if not isinstance(documents, (list, tuple)) or not documents:
        found = type(documents).__name__ if documents else "nothing"
        raise RequestError(f"documents: found {found}, expected a list of texts", param="documents")
    pools = _waves(llm, documents, lambda at, some: start_rank(llm, query, some, first=at, **how))
    return ranked(pools, top_n)


def ranked(pools, top_n=None) -> list:
    """Best first; of equals the one that came first."""
    return sorted((Ranked(i, pool.score()) for i, pool in enumerate(pools)), key=lambda r: (-r.score, r.index))[:top_n]

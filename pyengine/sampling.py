"""From a request's sampling parameters to a token: Params, Sampler, the coin's seed.

Not the passes over the vocabulary (csrc/sample.c) and not a loop: answer.py calls
Sampler.sample once per token. May be imported by answer, draft, choose, request, llama, serve, compat and cli.

The chain, in this order; a step that does nothing for these parameters is dropped
once per request (steps()):

    processors     Python functions on a copy of the logits
    logit_bias     added; -100, -inf or False bans the token
    penalties      repeat: tokens of the last repeat_last_n of prompt and answer, logit
                   divided (multiplied if negative); then count * frequency + presence
                   for every token of the answer (the prompt does not count)
    mask           ids that a grammar does not allow are out
    temperature 0  the best logit, ties by lowest id; nothing below is looked at
    top_k          the k best, ties by lowest id
    typical_p, top_p, min_p    each on what the one before left, at temperature 1
    temperature    and the draw, by a coin that is a function of (seed, sequence, position)

Logprobs are those of the raw logits, before all of it.
"""
import math
import os
from dataclasses import dataclass, replace
from numbers import Real
from typing import NamedTuple

from .errors import NonFiniteError, PyengineError, RequestError
from .native import ffi, lib, isa_mask

MAX_BIASES = 1024
MAX_TOP = lib.PE_TOP_MAX
_INT = 2**31 - 1

# name: lowest, highest, whether the lowest itself is allowed
RANGES = {
    "temperature": (0.0, 100.0, True),
    "top_p": (0.0, 1.0, False),
    "typical_p": (0.0, 1.0, False),
    "min_p": (0.0, 1.0, True),
    "repeat_penalty": (0.01, 10.0, True),       # logits are divided by it, and have to stay finite
    "presence_penalty": (-2.0, 2.0, True),
    "frequency_penalty": (-2.0, 2.0, True),
}
# 1/temperature stays a float, and the draw a draw: below this the second best of two
# logits that differ at all in their sixth digit is never seen. 0 is the way to say greedy.
_COLDEST = 1e-6


@dataclass(frozen=True)
class Params:
    """What a request may say about sampling. validated() checks it; nothing else is accepted by Sampler."""
    temperature: float = 0.8
    top_k: int = 40                  # 0 or -1: off
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64          # 0: off, -1: the whole context
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: object = None        # {id: bias}, {"id": bias} or [(id or text, bias), ...]
    seed: int | None = None          # None or -1: drawn
    logprobs: int | None = None      # None: none; n: the token's and those of the n best
    processors: tuple = ()           # processor(ids, logits) changes logits or returns others

    def validated(self, n_vocab: int, encode=None) -> "Params":
        """The same with every field checked and in one form, or RequestError.

        encode(text) -> ids lets logit_bias name tokens by text; a bias then goes to each.
        """
        checked = {name: _number(name, getattr(self, name), *limits) for name, limits in RANGES.items()}
        if 0 < checked["temperature"] < _COLDEST:
            raise RequestError(f"temperature is {self.temperature!r}; 0 (greedy) or {_COLDEST} to 100 is expected",
                               param="temperature")
        top_k = _integer("top_k", self.top_k, -1, _INT)
        logprobs = None if self.logprobs is None else _integer("logprobs", self.logprobs, 0, MAX_TOP)
        seed = None if self.seed is None else _integer("seed", self.seed, -1, 2**64 - 1)
        try:
            processors = tuple(self.processors or ())
        except TypeError:
            processors = (None,)
        if not all(callable(p) for p in processors):
            raise RequestError("processors has to be a list of functions (ids, logits)", param="processors")
        return replace(self, **checked, top_k=max(top_k, 0),
                       repeat_last_n=_integer("repeat_last_n", self.repeat_last_n, -1, _INT),
                       logit_bias=_biases(self.logit_bias, n_vocab, encode),
                       seed=None if seed == -1 else seed, logprobs=logprobs, processors=processors)


def new_seed() -> int:
    """A seed for a request that names none; the caller reports it."""
    return int.from_bytes(os.urandom(4), "little")


def coin(seed: int, sequence: int, position: int) -> float:
    """The number in [0, 1) that decides the token after `position`."""
    return lib.pe_coin(seed, sequence, position, 0)


def steps(params: Params, n_vocab: int) -> tuple[tuple[str, object], ...]:
    """The chain that these (validated) parameters come to, without the steps that do nothing."""
    p, chain = params, []
    if p.processors:
        chain.append(("processors", len(p.processors)))
    if p.logit_bias:
        chain.append(("logit_bias", len(p.logit_bias)))
    if p.repeat_penalty != 1 and p.repeat_last_n:
        chain.append(("repeat_penalty", (p.repeat_penalty, p.repeat_last_n)))
    if p.presence_penalty or p.frequency_penalty:
        chain.append(("count_penalties", (p.presence_penalty, p.frequency_penalty)))
    if p.temperature == 0 or p.top_k == 1 or n_vocab == 1:
        return (*chain, ("greedy", None))
    if 0 < p.top_k < n_vocab:
        chain.append(("top_k", p.top_k))
    for name, off in (("typical_p", 1), ("top_p", 1), ("min_p", 0)):
        if getattr(p, name) != off:
            chain.append((name, getattr(p, name)))
    return (*chain, ("temperature", p.temperature))


class Sampled(NamedTuple):
    token: int
    logprob: float | None                  # None unless logprobs were asked for
    top: list[tuple[int, float]]           # the best, by logprob, ties by lowest id


class Sampler:
    """Samples the tokens of one request. Used by one thread at a time.

    n_vocab is the number of rows of the head. allowed says which ids may come out: None
    (all), a number (those below it), or one flag per row; rows without a token are masked.
    """

    def __init__(self, params: Params, n_vocab: int, seed: int, allowed=None, *, vops=None, scratch=None):
        self.params, self.n_vocab, self.seed, self.allowed = params, n_vocab, seed, allowed
        chain = dict(steps(params, n_vocab))
        assert not chain.get("logit_bias") or type(params.logit_bias) is tuple, "params are not validated"
        self._vops = best_vops() if vops is None else vops
        self._keep = [scratch if scratch is not None else new_scratch(n_vocab)]
        c = self._c = ffi.new("pe_sample *")
        c.n_rows = c.n = n_vocab
        c.scratch = self._keep[0]
        if allowed is not None:
            self._mask(allowed)
        c.greedy = "greedy" in chain
        c.top_k = chain.get("top_k", 0)
        c.typical_p, c.top_p, c.min_p = chain.get("typical_p", 1.0), chain.get("top_p", 1.0), chain.get("min_p", 0.0)
        c.inv_t = 1.0 / chain.get("temperature", 1.0)
        c.seed = seed
        c.n_top = -1 if params.logprobs is None else params.logprobs
        self._repeat_n = chain.get("repeat_penalty", (1, 0))[1]
        self._counts = "count_penalties" in chain
        c.repeat_penalty = params.repeat_penalty
        c.presence_penalty, c.frequency_penalty = params.presence_penalty, params.frequency_penalty
        if params.logit_bias:
            ids, values = zip(*params.logit_bias)
            self._keep += [ffi.new("int32_t[]", ids), ffi.new("float[]", values)]
            c.bias_id, c.bias = self._keep[-2:]
            c.n_bias = len(ids)

    def _mask(self, allowed) -> None:
        c = self._c
        if isinstance(allowed, int):
            flags, n = None, allowed
        else:
            flags = bytes(bool(a) for a in allowed)
            if len(flags) != self.n_vocab:
                raise PyengineError(f"allowed has {len(flags)} flags for {self.n_vocab} rows")
            n = flags.rfind(1) + 1
        if not 0 < n <= self.n_vocab:
            raise PyengineError(f"of {self.n_vocab} rows, no more than {max(n, 0)} may be sampled")
        c.n = n
        if flags is not None and 0 in flags[:n]:
            self._keep.append(ffi.from_buffer("uint8_t[]", flags))
            c.allowed = self._keep[-1]

    def sample(self, logits, prompt, generated, position: int, sequence: int = 0, mask=None) -> Sampled:
        """The token at `position`, given its logits (an address or a float *; n_vocab of them, not written to).
        mask: None, or the ids that may come (an address or a uint32_t *; a bit per row)."""
        c = self._c
        c.mask = ffi.NULL if mask is None else ffi.cast("uint32_t *", mask)
        c.raw = ffi.cast("float *", logits) if isinstance(logits, int) else logits
        c.position, c.sequence = position, sequence
        if self._repeat_n:
            tail = _tail(prompt, generated, self._repeat_n)
            window = c.window = ffi.new("int32_t[]", tail)
            c.n_window = len(tail)
        if self._counts:
            counted = c.generated = ffi.new("int32_t[]", generated)
            c.n_generated = len(generated)
        processed = self._process(prompt, generated) if self.params.processors else None
        code = lib.pe_sample_run(c, self._vops)  # reads window, counted and processed: locals keep them alive
        if code != lib.PE_OK:
            self._refuse(code, position)
        if c.n_top < 0:
            return Sampled(c.token, None, [])
        return Sampled(c.token, c.logprob, [(c.top_id[i], c.top_logprob[i]) for i in range(c.n_top_found)])

    def logprob(self, token: int) -> float:
        """Of any token in the row that was sampled last, whose logits are still there; logprobs were asked for."""
        c = self._c
        return (c.raw[token] - c.raw_max) - c.log_sum

    def _process(self, prompt, generated):
        import numpy as np

        raw = np.frombuffer(ffi.buffer(self._c.raw, 4 * self.n_vocab), np.float32)
        if not np.isfinite(raw).all():  # before anyone's function sees it
            raise NonFiniteError(f"position {self._c.position}: a logit is NaN or infinite")
        ids = [*prompt, *generated]
        logits = raw.copy()
        for p in self.params.processors:
            returned = p(ids, logits)
            if returned is not None:
                try:
                    logits = np.array(returned, np.float32, order="C")
                except (TypeError, ValueError) as e:
                    raise RequestError(f"{_name(p)} did not return an array of numbers: {e}", param="processors") from e
            if logits.shape != (self.n_vocab,):
                raise RequestError(f"{_name(p)} returned logits of shape {logits.shape}; ({self.n_vocab},) is expected",
                                   param="processors")
            if np.isnan(logits).any() or np.isposinf(logits).any():  # -inf masks a token
                raise RequestError(f"{_name(p)} made a logit NaN or +inf", param="processors")
        buffer = ffi.from_buffer("float[]", logits)
        self._c.processed = buffer
        return buffer

    def _refuse(self, code: int, position: int):
        if code == lib.PE_ENONFINITE:
            raise NonFiniteError(f"position {position}: a logit is NaN or infinite")
        if code == lib.PE_EEMPTY:
            what = "logit_bias, processors or a mask leave"
            if self._c.mask:
                what = "of the tokens that the grammar allows, logit_bias or processors leave"
            raise RequestError(f"position {position}: {what} no token to choose from",
                               param="processors" if self.params.processors else "logit_bias")
        raise PyengineError(f"sampling failed with status {code}")


def new_scratch(n_vocab: int):
    """Memory for the passes; samplers that one thread uses may share it. Not touched until used."""
    size = lib.pe_sample_scratch(n_vocab)
    if size < 0:
        raise PyengineError(f"a vocabulary of {n_vocab} rows cannot be sampled from")
    return _uncleared("uint8_t[]", size)


_uncleared = ffi.new_allocator(should_clear_after_alloc=False)


def best_vops():
    """The last tier in the build that PYENGINE_ISA, or else this CPU, allows; all give the same bits."""
    isa = isa_mask()
    n = ffi.new("int32_t *")
    tables = lib.pe_vops_all(n)
    runnable = [i for i in range(n[0]) if not tables[i].isa & ~isa]
    assert runnable, "the scalar tier is always there"
    return tables + runnable[-1]


def _tail(prompt, generated, n: int):
    """The last n of prompt + generated; all of them for -1."""
    if n < 0 or n >= len(prompt) + len(generated):
        return [*prompt, *generated]
    if n <= len(generated):
        return generated[len(generated) - n:]
    return [*prompt[len(prompt) + len(generated) - n:], *generated]


def _name(function) -> str:
    return f"processor {getattr(function, '__name__', type(function).__name__)}"


def _number(name: str, value, low: float, high: float, closed: bool) -> float:
    expected = f"a number {'from' if closed else 'above'} {low:g} to {high:g} is expected"
    if isinstance(value, bool) or not _is_real(value):
        raise RequestError(f"{name} is {_short(value)}; {expected}", param=name)
    try:
        x = float(value)
    except OverflowError:
        x = math.inf
    if not (low <= x <= high) or (x == low and not closed):
        raise RequestError(f"{name} is {_short(value)}; {expected}", param=name)
    return x


def _is_real(value) -> bool:
    return isinstance(value, Real)


def _integer(name: str, value, low: int, high: int) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        i = value.__index__()
    except (AttributeError, TypeError):
        raise RequestError(f"{name} is {_short(value)}; an integer is expected", param=name) from None
    if not low <= i <= high:
        raise RequestError(f"{name} is {_short(value)}; {low} to {high} is expected", param=name)
    return i


def _short(value) -> str:
    """repr for a message, whatever was handed in."""
    if isinstance(value, int) and value.bit_length() > 200:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _biases(given, n_vocab: int, encode) -> tuple[tuple[int, float], ...]:
    """((id, bias), ...) by id. A ban is -inf here."""
    if given is None:
        return ()
    is_map = hasattr(given, "items")
    try:
        size = len(given)
        entries = list(given.items()) if is_map else [tuple(pair) for pair in given]
    except TypeError:
        raise RequestError(f"logit_bias is {_short(given)}; a map or a list of pairs is expected",
                           param="logit_bias") from None
    if size > MAX_BIASES:
        raise RequestError(f"logit_bias has {size} entries; at most {MAX_BIASES} are allowed", param="logit_bias")
    found: dict[int, float] = {}
    for entry in entries:
        if len(entry) != 2:
            raise RequestError(f"logit_bias has the entry {_short(entry)}; (token, bias) is expected", param="logit_bias")
        for i in _bias_ids(entry[0], is_map, n_vocab, encode):
            if i in found:
                raise RequestError(f"logit_bias names token {i} twice", param="logit_bias")
            found[i] = _bias(entry[1], i)
    return tuple(sorted(found.items()))


def _bias_ids(key, is_map: bool, n_vocab: int, encode) -> list[int]:
    text = isinstance(key, str)
    if text and (is_map or encode is None):  # JSON has no integer keys: {"414": -100} is the id 414
        try:
            key = int(key) if len(key) <= 20 and key.isascii() and key.strip("-").isdigit() else key
        except ValueError:
            pass
    if isinstance(key, str):
        if encode is None:
            raise RequestError(f"logit_bias has the key {_short(key)}; a token id is expected", param="logit_bias")
        ids = list(dict.fromkeys(encode(key)))
        if not ids:
            raise RequestError(f"logit_bias has the key {_short(key)}, which is no token", param="logit_bias")
    else:
        ids = [_integer("logit_bias", key, -_INT, _INT)]
    for i in ids:
        if not 0 <= i < n_vocab:
            raise RequestError(f"logit_bias names token {i}; 0 to {n_vocab - 1} is expected", param="logit_bias")
    return ids


def _bias(value, i: int) -> float:
    if value is False:
        return -math.inf
    expected = "-100 to 100, or False for never, is expected"
    if isinstance(value, bool) or not _is_real(value):
        raise RequestError(f"logit_bias of token {i} is {_short(value)}; {expected}", param="logit_bias")
    if not (-100 <= value <= 100 or value == -math.inf):
        raise RequestError(f"logit_bias of token {i} is {_short(value)}; {expected}", param="logit_bias")
    return -math.inf if value <= -100 else float(value)

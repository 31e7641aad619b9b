"""What a call may say besides its prompt: one table of parameters, their defaults and their checks.

Not the call (llama.py) and not what parameters of sampling mean (sampling.py): text and numbers in, checked
values out, or RequestError naming the parameter. Imported by llama, session, choose and serve.
"""
import dataclasses
import inspect
import math
import time

from .errors import RequestError

MAX_STOPS = 16             # stop strings per request ...
MAX_STOP_BYTES = 1024      # ... and bytes of each
MAX_CHOICES = 128          # answers to one prompt
MAX_NAME = 256             # characters of a key or a salt
INTERACTIVE, BATCH = 0, 1


@dataclasses.dataclass(frozen=True)
class Options:
    """The parameters of generate(), chat() and start(). See Llama.generate for what they do."""

    max_tokens: "int | None" = None
    stop: "str | list | None" = None
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: object = None
    seed: "int | None" = None
    logprobs: "int | None" = None
    processors: tuple = ()
    ignore_eos: bool = False
    json_schema: object = None
    regex: "str | None" = None
    grammar: "str | None" = None
    lark: "str | None" = None
    n: int = 1
    priority: int = INTERACTIVE
    key: str = ""
    salt: str = ""
    deadline: "float | None" = None

    def checked(self) -> "Options":
        """The same in one form; sampling's own parameters are checked by params()."""
        given = [name for name in CONSTRAINTS if getattr(self, name) is not None]
        if len(given) > 1:
            raise RequestError(f"{given[1]}: {given[0]} is given too; an answer follows one of {', '.join(CONSTRAINTS)}", param=given[1])
        max_tokens = whole("max_tokens", self.max_tokens, -1, None, none=True)
        for name in ("key", "salt"):
            value = getattr(self, name)
            if not isinstance(value, str) or len(value) > MAX_NAME:
                raise RequestError(f"{name}: found {_short(value)}, expected a text of at most {MAX_NAME} characters", param=name)
        return dataclasses.replace(
            self, max_tokens=None if max_tokens == -1 else max_tokens, stop=_stops(self.stop), n=whole("n", self.n, 1, MAX_CHOICES),
            priority=whole("priority", self.priority, INTERACTIVE, BATCH), deadline=_deadline(self.deadline))

    def params(self, tokenizer):
        """The parameters of sampling, checked."""
        from .sampling import Params

        return Params(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Params)}).validated(
            tokenizer.n_vocab, lambda text: tokenizer.encode(text, special=True, add_bos=False))


CONSTRAINTS = ("json_schema", "regex", "grammar", "lark")


def takes_options(method):
    """Gives a method of **options the signature that people and help() see: that of the table."""
    own = [p for p in inspect.signature(method).parameters.values() if p.kind is not p.VAR_KEYWORD]
    table = [inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default) for f in dataclasses.fields(Options)]
    method.__signature__ = inspect.Signature([*own, *table])
    return method


def options(values: dict) -> Options:
    """The checked table of a call's keywords; an unknown one is a TypeError, as of any function."""
    unknown = values.keys() - Options.__dataclass_fields__.keys()
    if unknown:
        raise TypeError(f"unexpected keyword argument {sorted(unknown)[0]!r}")
    return Options(**values).checked()


def is_int(value) -> bool:
    """int and numpy's integers; not bool."""
    return isinstance(value, int) and not isinstance(value, bool) or (
        hasattr(value, "__index__") and not isinstance(value, (int, bool)) and type(value).__name__ != "bool_")


def whole(param: str, value, lo: int, hi, none=False):
    if value is None and none:
        return None
    if not is_int(value) or value < lo or hi is not None and value > hi:
        bounds = f"{lo}..{hi}" if hi is not None else f"at least {lo}"
        raise RequestError(f"{param}: found {_short(value)}, expected a whole number {bounds}"
                           + (" or None" if none else ""), param=param)
    return int(value)


def ids(tokens, n_vocab: int, param: str = "tokens") -> list:
    """Token ids, each checked."""
    out = []
    for i, t in enumerate(tokens):
        if not is_int(t) or not 0 <= t < n_vocab:
            raise RequestError(f"{param}: entry {i} is {_short(t)}, expected an id of 0..{n_vocab - 1}", param=param)
        out.append(int(t))
    return out


def _stops(stop) -> list:
    """None, a string or a list of them; an empty string would stop at once and is refused."""
    stops = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, (list, tuple)):
        raise RequestError(f"stop: found {type(stop).__name__}, expected a string or a list of strings", param="stop")
    if len(stops) > MAX_STOPS:
        raise RequestError(f"stop: {len(stops)} strings, at most {MAX_STOPS}", param="stop")
    for s in stops:
        if not isinstance(s, str) or not s:
            raise RequestError(f"stop: found {_short(s)}, expected a string that is not empty", param="stop")
        if len(s.encode("utf-8", "surrogatepass")) > MAX_STOP_BYTES:
            raise RequestError(f"stop: a string of {len(s)} characters, at most {MAX_STOP_BYTES} bytes", param="stop")
    return list(stops)


def _deadline(seconds):
    """A moment of the monotonic clock from seconds that are left."""
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < math.inf:
        raise RequestError(f"deadline: found {_short(seconds)}, expected seconds from now, 0 or more, or None", param="deadline")
    return time.monotonic() + seconds


def _short(value) -> str:
    """repr for a message, whatever was handed in."""
    if isinstance(value, int) and value.bit_length() > 200:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

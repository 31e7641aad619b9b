"""Rows that several dialects have under the same names: sampling, structure, our own extensions. Imported by dialects.

Not their defaults: each dialect gives the ones of its origin.
"""
from ..request import MAX_STOPS
from ..sampling import MAX_BIASES, MAX_TOP, RANGES
from .fields import FLAG, OBJECT, TEXT, Either, Field, Flag, List, Map, Number, Text, Whole

MAX_N = 16                 # answers to one prompt
MAX_PROMPTS = 1024         # prompts of one request
LOOK_BACK = 2**31 - 1      # of repeat_last_n, which the context bounds

STOP = Either(Text(1), List(Text(1), 0, MAX_STOPS))
BIAS = Either(Number(-100, 100), Flag())
BIASES = Either(Map(BIAS), List(List(Either(Whole(0), TEXT, BIAS), 2, 2), 0, MAX_BIASES))
SCHEMA = Either(OBJECT, Flag())


def number(name: str) -> Number:
    low, high, closed = RANGES[name]
    return Number(low, high, open=not closed)


def sampling(*, temperature, top_p, top_k, min_p) -> list:
    return [
        Field("temperature", number("temperature"), default=temperature, about="0: the most probable token"),
        Field("top_p", number("top_p"), default=top_p),
        Field("top_k", Whole(-1, 2**31 - 1), default=top_k, about="0 or -1: off"),
        Field("min_p", number("min_p"), default=min_p),
        Field("typical_p", number("typical_p")),
        Field("repeat_penalty", number("repeat_penalty"), about="counts the prompt too"),
        Field("repeat_last_n", Whole(-1, LOOK_BACK), about="0: off, -1: the whole context"),
        Field("presence_penalty", number("presence_penalty"), about="counts what was generated"),
        Field("frequency_penalty", number("frequency_penalty"), about="counts what was generated"),
        Field("seed", Whole(-1, 2**64 - 1), about="-1: drawn"),
        Field("logit_bias", BIASES, about="{id or text: bias} or [[id or text, bias], ...]; -100 or false: never"),
        Field("ignore_eos", FLAG),
    ]


def structure() -> list:
    return [
        Field("json_schema", SCHEMA, about="the answer is JSON of this schema"),
        Field("grammar", TEXT, about="GBNF"),
        Field("regex", TEXT),
        Field("lark", TEXT),
    ]


def extensions() -> list:
    return [
        Field("priority", Whole(0, 1), about="0: interactive, 1: may wait for others"),
        Field("cache_salt", Text(1), about="prompts share what is cached only under an equal salt (and API key)"),
        Field("deadline_ms", Whole(0, 10**9), about="milliseconds from arrival: 408 if there is no token by then, else the answer ends"),
        Field("timings", FLAG, default=False, about="report timings"),
    ]


TOP = Whole(0, MAX_TOP)
IDS = List(Whole(0), 1)
PROMPT = Either(TEXT, IDS, List(Either(TEXT, IDS), 1, MAX_PROMPTS))

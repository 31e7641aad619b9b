"""The words in which a dialect writes down what its requests may hold: kinds, rows, tables; and strict JSON.

A dialect (openai.py, llama_server.py, ...) is a table per route. A row says a field's name, its kind, what it is
called from there on (`to`: an option of Llama.start, or a value the handler reads), its default, and, for what we
do not do, why it is refused or why leaving it out is harmless. No field is swallowed: what no row names is a 400.
The same tables make the OpenAPI description. Not the handlers, not HTTP; knows no dialect. For serve only.
"""
import difflib
import functools
import json
import re
from dataclasses import dataclass

from ..errors import RequestError, quoted

MAX_DEPTH = 64              # of brackets in a body; Python's parser would recurse
MAX_CONTAINERS = 200_000    # lists and objects in a body
LARGE = 16 << 10            # bytes of a body that is not checked on the event loop
MAX_DIGITS = 400            # of a number: int() is quadratic, and float() knows no more than 309


# ---- JSON ------------------------------------------------------------------------


def parse_json(raw: bytes) -> dict:
    """The object that a body is. RequestError says what is wrong with it; nothing is repaired."""
    if raw[:3] == b"\xef\xbb\xbf":
        raise _body("begins with a byte order mark; plain UTF-8 is expected")
    _check_shape(raw)
    try:
        body = json.loads(raw.decode("utf-8"), object_pairs_hook=_object, parse_constant=_constant, parse_float=_float)
    except RequestError:
        raise
    except UnicodeDecodeError as e:
        raise _body(f"has byte {raw[e.start]:#04x} at {e.start}, which is not UTF-8") from None
    except json.JSONDecodeError as e:
        raise _body(f"is not JSON: {e.msg} at line {e.lineno}, column {e.colno}") from None
    except (ValueError, RecursionError) as e:
        raise _body(f"is not JSON: {e}") from None
    if not isinstance(body, dict):
        raise _body(f"is {_shown(body)}; an object is expected")
    if re.search(rb"\\u[dD][89a-fA-F]", raw):
        _check_surrogates(body)
    return body


def _body(message: str) -> RequestError:
    return RequestError(f"the request body {message}", param=None)


def _check_shape(raw: bytes) -> None:
    """Depth and sizes, before anything recurses: linear passes in C, so that 8 MB of anything cost milliseconds."""
    outside = re.sub(rb'"[^"]*"?', b"", raw.replace(rb"\\", b"").replace(rb'\"', b""))
    if re.search(rb"(?<![0-9])[0-9]{%d}" % (MAX_DIGITS + 1), outside):
        raise _body(f"has a number of more than {MAX_DIGITS} digits")
    brackets = outside.translate(_ONE_KIND, _NO_BRACKETS)
    if brackets.count(b"[") > MAX_CONTAINERS:
        raise _body(f"has more than {MAX_CONTAINERS} lists and objects")
    for _ in range(MAX_DEPTH):
        brackets = brackets.replace(b"[]", b"")
    # What is left of a well-formed text lies deeper. Of a malformed one, the parser says more if it need not recurse for it.
    opened = brackets.count(b"[")
    if opened > MAX_DEPTH or 0 < opened < len(brackets):
        raise _body(f"is nested deeper than {MAX_DEPTH}, or its brackets do not match")


_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")


def _object(pairs) -> dict:
    out = dict(pairs)
    if len(out) != len(pairs):
        seen = set()
        for name, _ in pairs:
            if name in seen:
                raise RequestError(f"{_plain(name)}: given twice in one object", param=_plain(name))
            seen.add(name)
    return out


def _constant(text: str):
    raise _body(f"has {text}, which is not JSON")


def _float(text: str) -> float:
    x = float(text)
    if x - x != 0:
        raise _body(f"has the number {text[:40]}, which is too large")
    return x


def _check_surrogates(body) -> None:
    stack = [("", body)]
    while stack:
        where, value = stack.pop()
        if isinstance(value, dict):
            for name, v in value.items():
                _check_text(name, f"a name in {where or 'the request body'}")
                stack.append((f"{where}.{name}" if where else name, v))
        elif isinstance(value, list):
            stack.extend((f"{where}[{i}]", v) for i, v in enumerate(value))
        elif isinstance(value, str):
            _check_text(value, where)


def _check_text(text: str, where: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as e:
        raise wrong(where, f"half of a surrogate pair at character {e.start}", "text") from None


# ---- kinds: what a value may be ----------------------------------------------------


def wrong(where: str, found: str, expected: str) -> RequestError:
    return RequestError(f"{quoted(where)[1:-1]}: found {found}, expected {expected}", param=_plain(where))


def _plain(name: str) -> str:
    return quoted(name)[1:-1]


def _shown(value) -> str:
    if isinstance(value, str):
        return f"the text {quoted(value, 40)}"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int) and value.bit_length() > 100:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, list):
        return f"a list of {len(value)}" if value else "an empty list"
    return "an object"


class Kind:
    """check(value, where) gives the value back, as the engine wants it, or raises; schema is its JSON Schema."""

    says = "anything"
    schema: dict = {}
    of_type: "type | tuple" = ()     # what such a value is in Python, where that is one thing

    def check(self, value, where: str):
        return value


class Flag(Kind):
    says, schema, of_type = "true or false", {"type": "boolean"}, bool

    def check(self, value, where):
        if not isinstance(value, bool):
            raise wrong(where, _shown(value), self.says)
        return value


class Text(Kind):
    of_type = str

    def __init__(self, least: int = 0):
        self.least = least
        self.says = "a text that is not empty" if least else "a text"
        self.schema = {"type": "string", "minLength": least} if least else {"type": "string"}

    def check(self, value, where):
        if not isinstance(value, str):
            raise wrong(where, _shown(value), self.says)
        if len(value) < self.least:
            raise wrong(where, "an empty text", self.says)
        return value


class Number(Kind):
    """A number from low to high; above low if `open`."""

    whole, of_type = False, (int, float)

    def __init__(self, low, high, open: bool = False):
        self.low, self.high, self.open = low, high, open
        kind = "a whole number" if self.whole else "a number"
        self.says = f"{kind} {'above' if open else 'from'} {_figure(low)} to {_figure(high)}"
        self.schema = {"type": "integer" if self.whole else "number",
                       "exclusiveMinimum" if open else "minimum": low, "maximum": high}

    def check(self, value, where):
        if isinstance(value, bool) or not isinstance(value, int if self.whole else (int, float)):
            raise wrong(where, _shown(value), self.says)
        if not self.low <= value <= self.high or self.open and value == self.low:
            raise wrong(where, _shown(value), self.says)
        return value


def _figure(x) -> str:
    return f"{x:g}" if isinstance(x, float) else str(x)


class Whole(Number):
    whole = True

    def __init__(self, low: int, high: "int | None" = None):
        super().__init__(low, high)
        if high is None:
            self.says, self.high = f"a whole number, at least {low}", float("inf")
            self.schema = {"type": "integer", "minimum": low}


class Choice(Kind):
    def __init__(self, *values):
        self.values = values
        self.says = " or ".join(json.dumps(v) for v in values)
        self.schema = {"enum": list(values)}

    def check(self, value, where):
        if not any(type(v) is type(value) and v == value for v in self.values):
            raise wrong(where, _shown(value), self.says)
        return value


class List(Kind):
    of_type = list

    def __init__(self, of: Kind, least: int = 0, most: "int | None" = None):
        self.of, self.least, self.most = of, least, most
        self.says = f"a list{f' of at most {most}' if most else ''}, each {of.says}"
        self.schema = {"type": "array", "items": of.schema, "minItems": least}
        if most is not None:
            self.schema["maxItems"] = most

    def check(self, value, where):
        if not isinstance(value, list) or len(value) < self.least or self.most is not None and len(value) > self.most:
            raise wrong(where, _shown(value), "a list that is not empty" if value == [] else self.says)
        check = self.of.check
        return [check(v, f"{where}[{i}]") for i, v in enumerate(value)]


class Map(Kind):
    """Any object, or one whose values are of a kind."""

    of_type = dict

    def __init__(self, of: "Kind | None" = None):
        self.of = of
        self.says = "an object" + (f" of {of.says}" if of else "")
        self.schema = {"type": "object", "additionalProperties": of.schema if of else True}

    def check(self, value, where):
        if not isinstance(value, dict):
            raise wrong(where, _shown(value), self.says)
        return value if self.of is None else {k: self.of.check(v, f"{where}.{k}") for k, v in value.items()}


class Object(Kind):
    """An object with a table of its own; its values are those of the table."""

    says, of_type = "an object", dict

    def __init__(self, table: "Table"):
        self.table = table

    @property
    def schema(self):
        return self.table.schema()

    def check(self, value, where):
        if not isinstance(value, dict):
            raise wrong(where, _shown(value), self.says)
        return self.table.parse(value, f"{where}.")


class Either(Kind):
    """The first kind that takes the value. An error is that of the last kind of the value's own JSON type, if there is one."""

    def __init__(self, *kinds: Kind):
        self.kinds = kinds
        self.says = ", or ".join(k.says for k in kinds)

    @property
    def schema(self):
        return {"anyOf": [k.schema for k in self.kinds]}

    def check(self, value, where):
        near = None
        for kind in self.kinds:
            try:
                return kind.check(value, where)
            except RequestError as e:
                if isinstance(value, kind.of_type) and isinstance(value, bool) == (kind.of_type is bool):
                    near = e
        raise near or wrong(where, _shown(value), self.says)


ANYTHING = Kind()
FLAG = Flag()
TEXT = Text()
OBJECT = Map()


# ---- rows and tables -----------------------------------------------------------------


@dataclass(frozen=True)
class Field:
    name: str
    kind: Kind = ANYTHING
    to: "str | None" = None      # what the value is called from here on; None: the field's own name
    default: object = None       # what an absent or null field means
    required: bool = False
    refused: str = ""            # why we do not do it; only the values of `off`, which ask for nothing, pass
    off: tuple = ()
    ignored: str = ""            # why it is harmless to leave out
    turn: object = None          # turn(value) -> {name: value}: for a field that says several things
    about: str = ""              # a line for docs and OpenAPI, where name and kind do not say all

    @property
    def target(self) -> str:
        return self.to or self.name


class Table:
    """The fields of a route. `parse` is all that happens to a body before a handler sees it."""

    def __init__(self, name: str, *rows):
        self.name = name
        self.fields: dict[str, Field] = {}
        for row in rows:
            for f in row if isinstance(row, (list, tuple)) else [row]:
                assert f.name not in self.fields, f"{name}: {f.name} twice"
                assert not f.off or f.refused, f"{name}: {f.name}: off says which values of a refused field pass"
                self.fields[f.name] = f

    def without(self, *names: str) -> list:
        """Rows for another table."""
        assert set(names) <= set(self.fields)
        return [f for f in self.fields.values() if f.name not in names]

    def parse(self, body: dict, prefix: str = "") -> dict:
        """{target: value} of every field that has a value or a default. null is the same as absent."""
        values, source = {}, {}
        for name, given in body.items():
            f = self.fields.get(name)
            where = prefix + name
            if f is None:
                raise RequestError(self._unknown(name, where), param=_plain(where))
            if given is None:
                continue
            if f.refused:
                if not any(_same(given, v) for v in f.off):
                    raise RequestError(f"{where}: {f.refused}", param=where)
                continue
            value = f.kind.check(given, where)
            if f.ignored:
                continue
            for target, v in (f.turn(value) if f.turn else {f.target: value}).items():
                if target in source and values[target] != v:
                    raise RequestError(f"{where}: says the same as {source[target]}, and they differ", param=where)
                values[target], source[target] = v, where
        for f in self.fields.values():
            if f.required and body.get(f.name) is None:
                raise RequestError(f"{prefix}{f.name}: missing, expected {f.kind.says}", param=prefix + f.name)
            if f.default is not None and f.target not in values:
                values[f.target] = f.default
        return values

    def _unknown(self, name: str, where: str) -> str:
        near = difflib.get_close_matches(name[:64], self.fields, 1)
        return f"{_plain(where)}: unknown field" + (f"; did you mean {near[0]}?" if near else "")

    def name_of(self, target: "str | None", body: dict) -> "str | None":
        """The dialect's name of an option, as this body gave it: param of an error that came from below."""
        if target is None:
            return None
        head, dot, rest = _split(target)
        names = [f.name for f in self.fields.values() if f.target == head and not (f.refused or f.ignored)]
        given = [n for n in names if body.get(n) is not None]
        return (given or names or [head])[0] + dot + rest

    def schema(self) -> dict:
        """JSON Schema of the object."""
        properties = {}
        for f in self.fields.values():
            about = f.refused or f.ignored or f.about
            if f.refused:
                shape = {"enum": [*f.off, None]}
            else:
                shape = f.kind.schema if f.required else {"anyOf": [f.kind.schema, {"type": "null"}]}
            shape = dict(shape)
            if about:
                shape["description"] = f"refused: {about}" if f.refused else f"ignored: {about}" if f.ignored else about
            if f.default is not None and not f.refused:
                shape["default"] = f.default
            properties[f.name] = shape
        out = {"type": "object", "properties": properties, "additionalProperties": False}
        required = [f.name for f in self.fields.values() if f.required]
        return {**out, "required": required} if required else out


def _same(a, b) -> bool:
    """Equal, where true is not 1."""
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def _split(target: str):
    cut = min([i for i in (target.find("."), target.find("[")) if i >= 0], default=len(target))
    return target[:cut], target[cut:cut + 1], target[cut + 1:]


def takes(table: "Table | None"):
    """Makes handler(server, ctx, values) into handler(server, ctx, body): parsed by the table, and with errors
    that name the field of this dialect where the engine named its own option."""

    def decorate(handler):
        @functools.wraps(handler)
        async def handle(server, ctx, body: dict):
            if table is None:
                values = {}
            elif _small(ctx):
                values = table.parse(body)
            else:
                values = await server.work(table.parse, body)
            try:
                return await handler(server, ctx, values)
            except RequestError as e:
                rename(e, table, body)
                raise

        handle.table = table
        return handle

    return decorate


def _small(ctx) -> bool:
    length = ctx.headers.get("content-length", "")
    return length.isascii() and length.isdigit() and len(length) < 10 and int(length) < LARGE


def rename(error: RequestError, table: "Table | None", body: dict) -> None:
    """Puts the dialect's name for what was wrong into an error, and into its message where that begins with it."""
    if table is None or error.param is None:
        return
    name = table.name_of(error.param, body)
    if name != error.param:
        text = str(error)
        if text.startswith(error.param):
            error.args = (name + text[len(error.param):],)
        error.param = name

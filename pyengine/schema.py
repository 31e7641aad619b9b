"""JSON Schemas from outside: what may reach llguidance, and what is refused by name. Text in, text out.

llguidance ignores words that it does not know, follows $ref by recursion and builds an automaton as large as
multipleOf says; so size, depth, references and words are checked here, before. Not a validator of
documents and not a compiler. Imports errors and pattern; may be imported by grammar.
"""
import json
import math

from .errors import GrammarError, quoted
from .pattern import UNWRITTEN, translated

MAX_BYTES = 256 * 1024     # of a schema's text
MAX_DEPTH = 100            # of its brackets; llguidance's reader ends at 128
MAX_PROPERTIES = 1000      # of one object; 3,000 take 0.9 s to compile and more Earley items than a step may have
MAX_REFS = 1000            # $ref of one schema: each may be one level of llguidance's recursion
MAX_MULTIPLE = 10_000      # the least common multiple of all multipleOf: 10,007 takes 0.05 s, 999,983 takes 8 s and 390 MB

_ONE = frozenset(("items", "additionalItems", "additionalProperties"))
_LIST = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
_MAP = frozenset(("properties", "patternProperties", "$defs", "definitions"))
_PLAIN = frozenset((
    "$ref", "$id", "$schema", "$anchor", "type", "enum", "const", "format", "pattern", "minLength", "maxLength",
    "minItems", "maxItems", "minProperties", "maxProperties", "required", "minimum", "maximum", "exclusiveMinimum",
    "exclusiveMaximum", "multipleOf"))
# Words that say nothing about a document, by the specification ("discriminator": OpenAPI's hint for oneOf).
_ANNOTATIONS = frozenset((
    "title", "description", "default", "example", "examples", "$comment", "deprecated", "readOnly", "writeOnly",
    "contentEncoding", "contentMediaType", "contentSchema", "discriminator", "externalDocs", "xml", "id"))


def text_of(schema) -> str:
    """The schema, a dict, a bool or JSON text, as the JSON text that llguidance may see."""
    if isinstance(schema, (dict, bool)):
        try:
            schema = json.dumps(schema, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as e:
            raise fail(f"not JSON: {e}") from None
    if not isinstance(schema, str):
        raise fail(f"found {type(schema).__name__}, expected a dict or its JSON text")
    if len(schema) > MAX_BYTES or len(schema.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise fail(f"more than {MAX_BYTES} bytes")
    if depth(schema) > MAX_DEPTH:
        raise fail(f"brackets are nested more than {MAX_DEPTH} deep")
    try:
        schema.encode()
        root = json.loads(schema, parse_constant=_no_constant, object_pairs_hook=_no_repeats)
    except (ValueError, RecursionError) as e:
        raise fail(f"not JSON: {e}") from None
    if root is True:
        root = {}
    if not isinstance(root, dict):
        raise fail(f"found {quoted(json.dumps(root), 40)}, which no text satisfies" if root is False
                   else f"found {type(root).__name__}, expected an object")
    check(root)
    return json.dumps(root, ensure_ascii=False)


def fail(message: str, path: str = "", param: str = "json_schema") -> GrammarError:
    return GrammarError(f"{param}{f', {quoted(path)}' if path else ''}: {message}", param=param)


def depth(text: str) -> int:
    """How deep its brackets are nested, those in strings apart."""
    most = now = at = 0
    while at < len(text):
        c = text[at]
        if c in "[{":
            now += 1
            most = max(most, now)
        elif c in "]}":
            now -= 1
        elif c == '"':
            at += 1
            while at < len(text) and text[at] != '"':
                at += 1 + (text[at] == "\\")
        at += 1
    return most


def check(root: dict, param: str = "json_schema") -> None:
    """Walks all subschemas; takes out what means nothing, translates patterns, refuses what cannot be honoured."""
    n_refs, multiple = 0, 1
    todo = [(root, "#")]
    while todo:
        node, path = todo.pop()
        if isinstance(node, bool):
            continue
        if not isinstance(node, dict):
            raise fail(f"found {type(node).__name__}, expected a schema", path, param)
        if node.get("uniqueItems") is False:
            del node["uniqueItems"]
        for word, value in node.items():
            at = f"{path}/{word}"
            if word in ("const", "enum", "properties", "required") and (bad := _control(list(value) if word == "properties" else value)) is not None:
                raise fail(f"{quoted(bad, 60)} has a control character other than \\n \\r \\t", at, param)
            if word in _ONE:
                many = isinstance(value, list) and word == "items"       # drafts before 2020-12
                todo += [(v, f"{at}/{i}") for i, v in enumerate(value)] if many else [(value, at)]
            elif word in _LIST:
                if not isinstance(value, list):
                    raise fail(f"found {type(value).__name__}, expected a list of schemas", at, param)
                todo += [(v, f"{at}/{i}") for i, v in enumerate(value)]
            elif word in _MAP:
                if not isinstance(value, dict):
                    raise fail(f"found {type(value).__name__}, expected an object of schemas", at, param)
                if word == "properties" and len(value) > MAX_PROPERTIES:
                    raise fail(f"{len(value)} properties, at most {MAX_PROPERTIES}", at, param)
                todo += [(v, f"{at}/{name}") for name, v in value.items()]
            elif word not in _PLAIN and word not in _ANNOTATIONS and (not word.startswith("x-") or word == "x-guidance"):
                raise fail(f"the keyword {quoted(word, 60)} is not supported", path, param)
        if isinstance(node.get("pattern"), str):
            node["pattern"] = _pattern(node["pattern"], f"{path}/pattern", param)
        if "patternProperties" in node:
            node["patternProperties"] = {_pattern(name, f"{path}/patternProperties", param): v
                                         for name, v in node["patternProperties"].items()}
        if "$ref" in node:
            n_refs += 1
            if n_refs > MAX_REFS:
                raise fail(f"more than {MAX_REFS} $ref", "", param)
        if "multipleOf" in node:
            multiple = math.lcm(multiple, _coefficient(node["multipleOf"], path, param))
            if multiple > MAX_MULTIPLE:
                raise fail(f"multipleOf {quoted(node['multipleOf'], 40)}: the least common multiple of all is more than {MAX_MULTIPLE} "
                           f"units of the last digit", path, param)
        _check_count(node, path, param)


def _pattern(text: str, path: str, param: str) -> str:
    try:
        return translated(text)
    except ValueError as e:
        raise fail(f"{quoted(text, 60)}: {e}", path, param) from None


def _check_count(node: dict, path: str, param: str) -> None:
    """minProperties counts what is written, and additional names may be written twice: refused where that shows."""
    least, required = node.get("minProperties", 0), node.get("required", [])
    if not isinstance(least, int) or not isinstance(required, list):
        return                                       # llguidance says what is wrong with them
    closed = node.get("additionalProperties") is False and not node.get("patternProperties")
    if least > len(required) + 1 and not closed:
        raise fail(f"minProperties {least} with {len(required)} required properties is supported only with "
                   f"additionalProperties false", path, param)


# llguidance leaves these out of a text without a word, where grammar.ESCAPES leaves no way to write them.
_UNWRITTEN = frozenset(map(chr, UNWRITTEN))


def _control(value):
    """A string in a JSON value that cannot be written, or None."""
    todo = [value]
    while todo:
        v = todo.pop()
        if isinstance(v, str) and not _UNWRITTEN.isdisjoint(v):
            return v
        if isinstance(v, dict):
            todo += [*v, *v.values()]
        elif isinstance(v, list):
            todo += v
    return None


def _coefficient(value, path: str, param: str) -> int:
    """A number without its power of ten: 0.25 and 250 are 25."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise fail(f"multipleOf is {quoted(value, 40)}, expected a number above 0", path, param)
    digits = repr(value).split("e")[0].replace(".", "").rstrip("0")
    return int(digits[:30])


def _no_constant(name: str):
    raise ValueError(f"{name} is no JSON number")


def _no_repeats(pairs):
    out = dict(pairs)
    if len(out) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the name {quoted(next(n for n in names if names.count(n) > 1))} comes twice in one object")
    return out

"""JSON Schemas from outside: what may reach llguidance, and what is refused by name. Text in, text out.

llguidance ignores words that it does not know, follows $ref by recursion and builds an automaton as large as
multipleOf says; so size, depth, references and words are checked here, before. Not a validator of
documents and not a compiler. Imports errors and pattern; may be imported by grammar.
"""
import json
import math
from collections import deque
from urllib.parse import unquote

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
    n_refs, multiple, nodes = 0, 1, {}
    todo = [(root, "#")]
    while todo:
        node, path = todo.pop()
        if isinstance(node, bool):
            continue
        if not isinstance(node, dict):
            raise fail(f"found {type(node).__name__}, expected a schema", path, param)
        nodes[id(node)] = node, path
        if node.get("uniqueItems") is False:
            del node["uniqueItems"]
        for word, value in node.items():
            at = f"{path}/{word}"
            if word in ("const", "enum", "properties", "required") and (bad := _control(value, word == "properties")) is not None:
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
            names = {_pattern(name, f"{path}/patternProperties", param): v for name, v in node["patternProperties"].items()}
            if len(names) < len(node["patternProperties"]):
                raise fail("two patterns are the same", f"{path}/patternProperties", param)
            node["patternProperties"] = names
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
    endless = nodes.keys() - _ending(root, nodes)
    if id(root) in endless:
        raise fail("needs itself without end: no finite document satisfies it", nodes[min(endless, key=lambda k: len(nodes[k][1]))][1], param)


def _ending(root: dict, nodes: dict) -> set:
    """Keys of the nodes that some finite document satisfies, as far as required names, items and references say. A node is
    looked at again when one that it needs has an end."""
    if any("$id" in node for node, path in nodes.values() if path != "#"):
        return set(nodes)                            # references may begin elsewhere than at the root

    def ends(x) -> bool:
        return id(x) in ending or id(x) not in nodes

    def document_ends(node) -> bool:
        types = node.get("type")
        types = types if isinstance(types, list) else [types]
        if "const" in node or "enum" in node or any(t not in ("object", "array") for t in types):
            return True                              # None: no type is asked for, so any number will do
        properties, prefix, least = node.get("properties", {}), node.get("prefixItems", []), node.get("minItems", 0)
        required = node.get("required", [])
        if "object" in types and (not isinstance(required, list) or all(ends(properties.get(n)) for n in required if isinstance(n, str))):
            return True
        if "array" not in types or not isinstance(least, int):
            return "array" in types
        return all(map(ends, prefix[:least])) and (least <= len(prefix) or ends(node.get("items")))

    def node_ends(node) -> bool:
        return (("$ref" not in node or ends(_target(root, node["$ref"]))) and all(map(ends, node.get("allOf", ())))
                and all(any(map(ends, node[word])) for word in ("anyOf", "oneOf") if node.get(word)) and document_ends(node))

    users = {}
    for key, (node, _) in nodes.items():
        needs = [_target(root, node["$ref"])] if "$ref" in node else []
        for word in ("allOf", "anyOf", "oneOf", "prefixItems"):
            needs += node.get(word, ())
        for x in (*needs, *node.get("properties", {}).values(), node.get("items")):
            users.setdefault(id(x), []).append(key)
    ending, todo, waiting = set(), deque(reversed(nodes)), set(nodes)    # what is within others comes before them, and each once
    while todo:
        key = todo.popleft()
        waiting.discard(key)
        if node_ends(nodes[key][0]):
            ending.add(key)
            again = set(users.get(key, ())) - ending - waiting
            waiting |= again
            todo.extend(again)
    return ending


def _target(root, reference):
    """What "#/..." points to; None for anything else."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    at = root
    for part in unquote(reference[1:]).split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(at, list) and part.isdecimal() and int(part[:9]) < len(at):
            at = at[int(part[:9])]
        elif isinstance(at, dict) and part in at:
            at = at[part]
        else:
            return None
    return at if reference == "#" or reference.startswith("#/") else None


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


def _control(value, names_only: bool):
    """A string in a JSON value that cannot be written, or None."""
    todo = list(value) if names_only and isinstance(value, dict) else [value]
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
        seen = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"the name {quoted(twice)} comes twice in one object")
    return out

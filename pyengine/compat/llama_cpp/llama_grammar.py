"""LlamaGrammar, the grammars that come with the library, and json_schema_to_gbnf.

A grammar made of a JSON schema keeps the schema: what enforces it is the engine's own schema support, not the
translation. Imported by llama, completion and chat of this folder, and by users.
"""
import json
import os

from ...errors import GrammarError

LLAMA_GRAMMAR_DEFAULT_ROOT = "root"

JSON_GBNF = r'''
root   ::= object
value  ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws (pair ("," ws pair)*)? "}" ws
pair   ::= string ":" ws value ws
array  ::= "[" ws (value ws ("," ws value ws)*)? "]" ws
string ::= "\"" char* "\""
char   ::= [^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" hex hex hex hex)
hex    ::= [0-9a-fA-F]
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,3})?
ws     ::= | " " | "\n" [ \t]{0,20}
'''

JSON_ARR_GBNF = JSON_GBNF.replace("root   ::= object", "root   ::= array")

LIST_GBNF = r'''
root ::= item+
item ::= "- " [^\r\n]+ "\n"
'''

ARITHMETIC_GBNF = r'''
root ::= (expr "=" ws term "\n")+
expr ::= term ([-+*/] ws term)*
term ::= (name | number | "(" ws expr ")") ws
name ::= [a-z] [a-z0-9_]*
number ::= [0-9]+
ws ::= [ \t\n]*
'''

CHESS_GBNF = r'''
root ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move ::= (piece | pawn | castle) [+#]?
piece ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBRQ])?
castle ::= "O-O" "-O"?
'''

JAPANESE_GBNF = r'''
root ::= word+ ([ \t\n] word+)*
word ::= hiragana | katakana | kanji | mark
hiragana ::= [ぁ-ゟ]
katakana ::= [ァ-ヿ]
kanji ::= [一-龯]
mark ::= [、-〾]
'''

C_GBNF = r'''
root ::= function+
function ::= type name "(" (type name (", " type name)*)? ") {\n" statement* "}\n"
type ::= ("int" | "float" | "char") " "
name ::= [a-zA-Z_] [a-zA-Z_0-9]*
statement ::= "    " (type name (" = " sum)? ";" | name " = " sum ";" | name "(" arguments? ");" | "return " sum ";" | branch | "// " [^\n]*) "\n"
branch ::= ("while" | "if") " (" sum " " ("<=" | "<" | "==" | "!=" | ">=" | ">") " " sum ") {\n" statement* "    }"
sum ::= product ((" + " | " - ") product)*
product ::= value ((" * " | " / ") value)*
value ::= name | name "(" arguments? ")" | number | "-" value | "(" sum ")" | "\"" [^"\n]* "\""
arguments ::= sum (", " sum)*
number ::= [0-9]+ ("." [0-9]+)?
'''


class LlamaGrammar:
    """What an answer has to follow: GBNF text, or a JSON schema."""

    def __init__(self, *args, _grammar: "str | None" = None, schema=None, lark: "str | None" = None, **kwargs):
        self._text, self._schema, self._lark = _grammar, schema, lark
        self._root = LLAMA_GRAMMAR_DEFAULT_ROOT

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> "LlamaGrammar":
        if not isinstance(grammar, str):
            raise GrammarError(f"grammar: found {type(grammar).__name__}, expected GBNF text", param="grammar")
        return cls(_grammar=grammar)

    @classmethod
    def from_file(cls, file, verbose: bool = True) -> "LlamaGrammar":
        try:
            with open(file, encoding="utf-8") as f:
                grammar = f.read()
        except OSError as e:
            raise OSError(e.errno, f"{cls.__name__}.from_file: {e.strerror}", os.fspath(file)) from e
        if not grammar.strip():
            raise ValueError(f"{cls.__name__}.from_file: {os.fspath(file)} is empty")
        return cls.from_string(grammar, verbose)

    @classmethod
    def from_json_schema(cls, json_schema: str, verbose: bool = True) -> "LlamaGrammar":
        try:
            schema = json.loads(json_schema) if isinstance(json_schema, (str, bytes)) else json_schema
        except ValueError as e:
            raise GrammarError(f"json_schema: not JSON: {e}", param="json_schema") from e
        return cls(schema=schema)

    @property
    def _grammar(self) -> str:
        """GBNF text, also of a schema."""
        return json_schema_to_gbnf(json.dumps(self._schema)) if self._text is None else self._text

    @property
    def arguments(self) -> dict:
        """As an argument of pyengine.Llama.generate."""
        if self._schema is not None:
            return {"json_schema": closed(self._schema)}
        return {"lark": self._lark} if self._lark is not None else {"grammar": self._text}

    def reset(self) -> None:
        """Nothing to do: a grammar has no state of its own here."""


_JOINED = ("allOf", "anyOf", "oneOf", "$ref", "if", "then", "else", "not", "patternProperties", "unevaluatedProperties", "dependentSchemas")


def closed(schema):
    """The schema whose objects have the properties it names and no others, as llama-cpp-python understands one. Left as it
    is where several schemas describe one object together."""
    if isinstance(schema, list):
        return [closed(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    out = dict(schema)
    for key in ("properties", "$defs", "definitions"):
        if isinstance(out.get(key), dict):
            out[key] = {name: closed(s) for name, s in out[key].items()}
    for key in ("items", "prefixItems", "anyOf", "oneOf", "additionalProperties"):
        if key in out:
            out[key] = closed(out[key])
    if isinstance(out.get("properties"), dict) and out["properties"] and not any(key in out for key in _JOINED):
        out.setdefault("additionalProperties", False)
    return out


# ---- schemas as text ---------------------------------------------------------------

_BASE = {
    "ws": '" "?',
    "boolean": '("true" | "false") ws',
    "null": '"null" ws',
    "integer": '"-"? ("0" | [1-9] [0-9]{0,15}) ws',
    "number": '"-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,3})? ws',
    "char": '[^"\\\\\\x00-\\x1F] | "\\\\" (["\\\\/bfnrt] | "u" [0-9a-fA-F]{4})',
    "string": '"\\"" char* "\\"" ws',
    "value": "object | array | string | number | boolean | null",
    "object": '"{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws',
    "array": '"[" ws (value ("," ws value)*)? "]" ws',
}
_USES = {"value": ("object", "array", "string", "number", "boolean", "null"), "object": ("string", "value", "ws"),
         "array": ("value", "ws"), "string": ("char", "ws"), "number": ("ws",), "integer": ("ws",), "boolean": ("ws",), "null": ("ws",)}
_NOTES = {"title", "description", "default", "examples", "$schema", "$id", "$comment", "$defs", "definitions", "deprecated", "readOnly",
          "writeOnly", "additionalProperties"}


def json_schema_to_gbnf(schema: str, prop_order=None) -> str:
    """GBNF text of a JSON schema given as text: objects with their properties in order, arrays, strings with lengths,
    numbers, enum, const, anyOf, oneOf, $ref within the schema. GrammarError names what has no translation."""
    try:
        parsed = json.loads(schema)
    except ValueError as e:
        raise GrammarError(f"json_schema: not JSON: {e}", param="json_schema") from e
    return _Converter(parsed, prop_order or []).text()


def _literal(value) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


class _Converter:
    def __init__(self, schema, order):
        self.schema, self.rules, self.refs = schema, {}, {}
        self.order = {name: i for i, name in enumerate(order)}

    def text(self) -> str:
        rules = {"root": self.of(self.schema, "root"), **self.rules}
        return "\n".join(f"{name} ::= {body}" for name, body in rules.items()) + "\n"

    def base(self, name) -> str:
        if name not in self.rules:
            self.rules[name] = _BASE[name]
            for used in _USES.get(name, ()):
                self.base(used)
        return name

    def refuse(self, at, what):
        raise GrammarError(f"json_schema: {at}: {what} has no translation to GBNF", param="json_schema")

    def known(self, schema, at, *keys) -> None:
        for key in schema:
            if key not in _NOTES and key not in keys:
                self.refuse(at, repr(key))

    def of(self, schema, at) -> str:
        if schema is True or schema == {}:
            return self.base("value")
        if not isinstance(schema, dict):
            self.refuse(at, f"{schema!r:.40}")
        if "$ref" in schema:
            return self.ref(schema["$ref"], at)
        if "const" in schema:
            return f"{_literal(schema['const'])} {self.base('ws')}"
        if "enum" in schema:
            return f"({' | '.join(map(_literal, schema['enum']))}) {self.base('ws')}"
        for key in ("anyOf", "oneOf"):
            if key in schema:
                self.known(schema, at, key, "type")
                return "(" + " | ".join(self.of(s, f"{at}.{key}[{i}]") for i, s in enumerate(schema[key])) + ")"
        kind = schema.get("type")
        if isinstance(kind, list):
            return "(" + " | ".join(self.of({**schema, "type": k}, at) for k in kind) + ")"
        if kind == "object" or "properties" in schema:
            return self.object(schema, at)
        if kind == "array":
            return self.array(schema, at)
        if kind == "string":
            self.known(schema, at, "type", "minLength", "maxLength")
            if "minLength" in schema or "maxLength" in schema:
                return f'"\\"" {self.base("string") and "char"}{{{schema.get("minLength", 0)},{schema.get("maxLength", "")}}} "\\"" ws'
            return self.base("string")
        if kind in ("integer", "number", "boolean", "null"):
            self.known(schema, at, "type")
            return self.base(kind)
        self.refuse(at, f"type {kind!r:.40}")

    def ref(self, ref, at) -> str:
        if not ref.startswith("#"):
            self.refuse(at, f"$ref {ref!r:.80}")
        if ref not in self.refs:
            found = self.schema
            for part in ref[1:].strip("/").split("/") if ref != "#" else []:
                part = part.replace("~1", "/").replace("~0", "~")
                if not isinstance(found, dict) or part not in found:
                    self.refuse(at, f"$ref {ref!r:.80}")
                found = found[part]
            name = self.refs[ref] = f"ref-{len(self.refs)}"
            self.rules[name] = ""            # its place, before what it refers to
            self.rules[name] = self.of(found, name)
        return self.refs[ref]

    def object(self, schema, at) -> str:
        self.known(schema, at, "type", "properties", "required")
        properties = schema.get("properties")
        if not properties:
            return self.base("object")
        names = sorted(properties, key=lambda n: self.order.get(n, len(self.order)))
        required = set(schema.get("required", ()))
        self.base("ws")
        pairs = {n: f'{_literal(n)} ws ":" ws {self.of(properties[n], f"{at}.{n}")}' for n in names}

        def rest(i, comma):
            """What may follow from property i on; optional ones may be left out, the order stays."""
            if i == len(names):
                return ""
            pair = f'{comma}{pairs[names[i]]}'
            if names[i] in required:
                return f"{pair} {rest(i + 1, COMMA)}".strip()
            tail = rest(i + 1, COMMA)
            if comma:
                return f"({pair})? {tail}".strip()
            return f"({pair} {tail} | {rest(i + 1, '') or empty})"

        COMMA, empty = '"," ws ', '""'
        return f'"{{" ws {rest(0, "")} "}}" ws'

    def array(self, schema, at) -> str:
        self.known(schema, at, "type", "items", "minItems", "maxItems")
        item = self.of(schema.get("items", True), f"{at}[]")
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        self.base("ws")
        if most == 0:
            return '"[" ws "]" ws'
        more = f'("," ws {item}){{{max(0, least - 1)},{"" if most is None else most - 1}}}'
        body = f"{item} {more}"
        return f'"[" ws {body if least else f"({body})?"} "]" ws'

"""Schemas that the tests of structured output share, and random answers that follow a grammar. Not a test."""
import random

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
                   "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3}},
    "required": ["name", "age", "tags"], "additionalProperties": False,
}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {"node": {"type": "object", "properties": {"value": {"type": "integer", "minimum": 0, "maximum": 99},
                                                        "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
                       "required": ["value", "next"], "additionalProperties": False}},
}
SHAPES = {      # as pydantic writes a union with a discriminator
    "$defs": {"Circle": {"type": "object", "title": "Circle", "properties": {"kind": {"const": "circle", "default": "circle", "type": "string"},
                                                                            "r": {"type": "number", "exclusiveMinimum": 0}},
                         "required": ["kind", "r"], "additionalProperties": False},
              "Square": {"type": "object", "properties": {"kind": {"const": "square", "type": "string"}, "side": {"type": "number", "maximum": 9.5}},
                         "required": ["kind", "side"], "additionalProperties": False}},
    "type": "object", "properties": {"shape": {"discriminator": {"propertyName": "kind"},
                                               "oneOf": [{"$ref": "#/$defs/Circle"}, {"$ref": "#/$defs/Square"}]}},
    "required": ["shape"], "additionalProperties": False,
}
SCHEMAS = {
    "any object": {"type": "object", "maxProperties": 3},
    "person": PERSON,
    "optional property": {"type": "object", "properties": {"a": {"type": "string", "maxLength": 5}, "b": {"type": "null"}}, "required": ["b"],
                          "additionalProperties": False},
    "escaped names": {"type": "object", "properties": {"a/b": {"const": 1}, "a": {"type": "boolean"}}, "required": ["a/b", "a"],
                      "additionalProperties": {"type": "integer"}, "maxProperties": 3},
    "unicode names": {"type": "object", "properties": {"\u00e9t\u00e9": {"enum": ["\u00e0", "\U0001f600"]}, "\u65e5\u672c": {"type": "integer"}},
                      "required": ["\u00e9t\u00e9", "\u65e5\u672c"], "additionalProperties": False},
    "enum": {"enum": ["one", 2, None, {"three": [3]}]},
    "const": {"const": {"text": "a\t\"b\"\\\u00e9/", "list": [1.5, True]}},
    "bounded numbers": {"type": "array", "items": {"type": "number", "minimum": -1.5, "exclusiveMaximum": 10}, "minItems": 2, "maxItems": 4},
    "multiples": {"type": "array", "items": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 1000}, "minItems": 1, "maxItems": 3},
    "nested arrays": {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}, "minItems": 1, "maxItems": 3},
    "tuple": {"type": "array", "prefixItems": [{"const": "x"}, {"type": "integer", "minimum": 5}], "items": False, "minItems": 2},
    "lengths": {"type": "string", "minLength": 3, "maxLength": 5},
    "phone": {"type": "string", "pattern": r"^(\([0-9]{3}\))?[0-9]{3}-[0-9]{4}$"},
    "shorthands": {"type": "array", "prefixItems": [{"type": "string", "pattern": r"^\d+$", "maxLength": 9}, {"type": "string", "pattern": r"^[\w-]+$", "maxLength": 9},
                                                    {"type": "string", "pattern": r"^(anon-)?\d{11,}$", "maxLength": 20}], "minItems": 3, "items": False},
    "no quotes": {"type": "string", "pattern": r'^[^"\\]*$', "maxLength": 12},
    "found within": {"type": "string", "pattern": "b[ao]", "maxLength": 8},
    "pattern names": {"type": "object", "patternProperties": {"^i_": {"type": "integer"}, "^s_": {"type": "string", "maxLength": 4}},
                      "additionalProperties": False, "maxProperties": 2},
    "any of": {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "array", "items": {"type": "null"}, "maxItems": 2}]},
    "all of": {"allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"properties": {"b": {"type": "string", "maxLength": 3}}}],
               "type": "object"},
    "types": {"type": ["integer", "null"], "exclusiveMinimum": 3, "maximum": 1000},
    "at least": {"type": "object", "minProperties": 2, "properties": {"a": {"type": "null"}}, "required": ["a"], "maxProperties": 2},
    "recursive": TREE,
    "union": SHAPES,
    "date": {"type": "string", "format": "date"},
}
REGEXES = [r"\(\d{3}\) \d{3}-\d{4}", "(yes|no|maybe)", "^[a-z]{3,8}( [a-z]{1,8}){0,4}$", r"[A-Z]\w{0,9}, \w{2,9}\.", "a/b\nc", '("[^"]{0,9}", ){2}end', "[\U0001f600-\U0001f64f]{1,3}", "\u6b6a",
           "(?i)hello|bye", "[^a-z]{2}x"]
ARITHMETIC = r'''# a sum or product, then its value
root  ::= expr "=" num "\n"
expr  ::= term ([-+*/] term){0,3}
term  ::= num | "(" expr ")"
num   ::= "0" | [1-9] [0-9]{0,2}
'''


class Walk:
    """Random answers: at each place a random one of the ids that the mask allows, often one that closes something."""

    def __init__(self, tokenizer, grammars):
        import numpy as np

        self.tokenizer, self.grammars = tokenizer, grammars
        self.close = np.array([tokenizer.piece(i)[:1] in (b'"', b"}", b"]", b",", b"0", b")", b"=") for i in range(tokenizer.n_vocab)])
        self.ends = np.isin(np.arange(tokenizer.n_vocab), list(tokenizer.end_ids))

    def allowed(self, constraint):
        """A flag for each id of the vocabulary."""
        import numpy as np

        from pyengine.native import ffi

        bits = np.unpackbits(np.frombuffer(ffi.buffer(constraint.mask()), np.uint8), bitorder="little")
        return bits[:self.tokenizer.n_vocab].astype(bool)

    def run(self, constraint, seed, most=300):
        """(text, whether it came to its end)"""
        import numpy as np

        rng, ids = random.Random(seed), []
        while not constraint.complete and len(ids) < most:
            forced = constraint.forced()
            for token in forced:
                constraint.commit(token)
            ids += forced
            if forced:
                continue
            allowed = self.allowed(constraint)
            assert allowed.any()
            ends = allowed & self.ends
            if ends.any() and (ends.sum() == allowed.sum() or rng.random() < 0.5):
                return self.tokenizer.decode(ids, continued=True), True
            allowed &= ~self.ends
            closing = allowed & self.close
            token = int(rng.choice(np.flatnonzero(closing if closing.any() and rng.random() < 0.6 else allowed)))
            constraint.commit(token)
            ids.append(token)
        return self.tokenizer.decode(ids, continued=True), constraint.complete

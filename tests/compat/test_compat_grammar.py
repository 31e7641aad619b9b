"""LlamaGrammar: the grammars that come with it, schemas as GBNF, schemas as llama-cpp-python understands them."""
import json

import pytest

from pyengine import tokenizer
from pyengine.compat.llama_cpp import LlamaGrammar, llama_grammar
from pyengine.compat.llama_cpp.llama_grammar import closed, json_schema_to_gbnf
from pyengine.errors import GrammarError
from pyengine.gguf import GGUF

pytest.importorskip("llguidance")


@pytest.fixture(scope="module")
def accepts(real_model):
    """accepts(gbnf, text): whether the text is one that the grammar allows, whole."""
    from pyengine.grammar import Grammars
    from pyengine.native import ffi

    with GGUF(str(real_model("smollm2"))) as gguf:
        tokens = tokenizer.load(gguf)
        grammars = Grammars(tokens, tokens.n_vocab)

        def accepts(gbnf, text):
            constraint = grammars.constraint("grammar", gbnf)
            rest, ids = text.encode(), tokens.encode(text, add_bos=False)
            while True:
                forced = constraint.forced()         # where only one text may come, in one spelling
                token = forced[0] if forced else ids[0] if rest else tokens.eos
                mask = ffi.cast("uint32_t *", constraint.mask())
                if not mask[token // 32] >> token % 32 & 1:
                    return False
                if token == tokens.eos:
                    return not rest
                if not rest.startswith(tokens.piece(token)):
                    return False
                rest = rest[len(tokens.piece(token)):]
                ids = ids[1:] if token == ids[0] else tokens.encode(rest, add_bos=False)
                constraint.commit(token)

        yield accepts


@pytest.mark.parametrize("name, yes, no", [
    ("JSON_GBNF", '{"a": [1, -2.5e3, "x\\n", true, null], "b": {}}', '["a"]'),
    ("JSON_ARR_GBNF", '["a", {"b": []}]', '{"a": 1}'),
    ("LIST_GBNF", "- one\n- two\n", "one\n"),
    ("ARITHMETIC_GBNF", "(a + 3) * b= 12\n", "= 3\n"),
    ("CHESS_GBNF", "1. e4 e5\n2. Nf3 Nc6\n3. O-O exd4\n", "1. z9 e5\n"),
    ("JAPANESE_GBNF", "カタカナと漢字、です", "latin"),
    ("C_GBNF", "int add(int a, int b) {\n    return a + b;\n}\n", "def add(a, b):\n"),
])
def test_the_grammars_that_come_with_it(accepts, name, yes, no):
    grammar = getattr(llama_grammar, name)
    assert accepts(grammar, yes) and not accepts(grammar, no)


SCHEMAS = [
    ({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name", "age"]},
     ['{"name": "Jason", "age": 25}'], ['{"name": "Jason"}', '{"age": 25, "name": "J"}', '{"name": 1, "age": 2}']),
    ({"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "null"}, "c": {"type": "number"}}, "required": ["b"]},
     ['{"b": null}', '{"a": true, "b": null}', '{"b": null, "c": 1.5}', '{"a": false, "b": null, "c": -1e3}'], ['{"a": true}', '{"c": 1, "b": null}']),
    ({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}}, ["{}", '{"a": 1}', '{"b": 2}', '{"a": 1, "b": 2}'], ['{"b": 2, "a": 1}']),
    ({"type": "array", "items": {"enum": ["x", 'y"', 3]}, "minItems": 1, "maxItems": 2}, ['["x"]', '["y\\"", 3]'], ["[]", "[3, 3, 3]", '["z"]']),
    ({"type": "array", "items": {"type": "integer"}, "maxItems": 2}, ["[]", "[1]", "[1, 2]"], ["[1, 2, 3]"]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"abc"'], ['"a"', '"abcd"']),
    ({"anyOf": [{"type": "string"}, {"type": ["integer", "null"]}]}, ['"a"', "3", "null"], ["true"]),
    ({"$defs": {"node": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["next"]}},
      "$ref": "#/$defs/node"}, ['{"next": {"next": null}}'], ['{"next": 1}']),
    ({}, ['{"a": [1, "b"]}', "3"], ["nothing"]),
]


@pytest.mark.parametrize("schema, yes, no", SCHEMAS)
def test_schema_to_gbnf(accepts, schema, yes, no):
    text = json_schema_to_gbnf(json.dumps(schema))
    assert text == LlamaGrammar.from_json_schema(json.dumps(schema))._grammar and text.startswith("root ::= ")
    for value in yes:
        assert accepts(text, value), (value, text)
    for value in no:
        assert not accepts(text, value), (value, text)


def test_order_of_properties(accepts):
    schema = '{"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}, "required": ["a", "b"]}'
    assert accepts(json_schema_to_gbnf(schema, prop_order=["b"]), '{"b": 2, "a": 1}')


@pytest.mark.parametrize("schema, named", [
    ('{"type": "string", "pattern": "a+"}', "'pattern'"), ('{"type": "tuple"}', "type 'tuple'"), ("{", "not JSON"),
    ('{"type": "array", "items": {"$ref": "http://a/b"}}', r"\$ref"), ('{"allOf": []}', "type None"), ('{"$ref": "#/$defs/none"}', "none"),
    ('{"type": "integer", "minimum": 3}', "'minimum'"), ('{"type": "object", "properties": {"a": 5}}', "root.a"),
])
def test_what_has_no_translation_is_named(schema, named):
    with pytest.raises(GrammarError, match=named):
        json_schema_to_gbnf(schema)


def test_objects_are_closed_where_one_schema_describes_them():
    inner = {"type": "object", "properties": {"b": {}}}
    assert closed({"properties": {"a": inner}})["properties"]["a"]["additionalProperties"] is False
    assert closed({"items": [inner]})["items"][0]["additionalProperties"] is False
    assert closed({**inner, "additionalProperties": True})["additionalProperties"] is True
    for open_ in ({**inner, "allOf": [inner]}, {"allOf": [inner]}, {"type": "object"}, {"properties": {}}, {**inner, "patternProperties": {}}):
        assert closed(open_) == open_
    assert closed(True) is True and inner == {"type": "object", "properties": {"b": {}}}


def test_files(tmp_path):
    path = tmp_path / "g.gbnf"
    path.write_text('root ::= "a"')
    assert LlamaGrammar.from_file(path)._grammar == 'root ::= "a"' and LlamaGrammar.from_file(str(path))._root == "root"
    path.write_text("  \n")
    with pytest.raises(ValueError, match="empty"):
        LlamaGrammar.from_file(path)
    with pytest.raises(OSError, match="no.gbnf"):
        LlamaGrammar.from_file(tmp_path / "no.gbnf")
    with pytest.raises(GrammarError, match="not JSON"):
        LlamaGrammar.from_json_schema("{")
    with pytest.raises(GrammarError, match="found bytes"):
        LlamaGrammar.from_string(b"root")

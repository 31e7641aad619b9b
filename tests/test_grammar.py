"""grammar.py, schema.py and pattern.py without an engine: what a mask lets through follows the grammar, what cannot
be honoured is refused by name, and what is hostile is refused within bounds."""
import contextlib
import json
import re
import subprocess
import sys
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from grammars import ARITHMETIC, PERSON, REGEXES, SCHEMAS, Walk

from pyengine import tokenizer as tokenizers
from pyengine.errors import GrammarError
from pyengine.gguf import GGUF
from pyengine.grammar import Grammars
from pyengine.native import ffi
from pyengine.pattern import translated

jsonschema = pytest.importorskip("jsonschema")
pytest.importorskip("llguidance")


@pytest.fixture(scope="module")
def tokenizer(real_model):
    with GGUF(real_model("smollm2")) as gguf:
        yield tokenizers.load(gguf)


@pytest.fixture(scope="module")
def grammars(tokenizer):
    return Grammars(tokenizer, tokenizer.n_vocab)


@pytest.fixture(scope="module")
def walk(tokenizer, grammars):
    return Walk(tokenizer, grammars)


def accepts(grammars, tokenizer, param, value, text) -> bool:
    c = grammars.constraint(param, value, force=False)
    for token in tokenizer.encode(text, add_bos=False):
        bits = c.mask()
        if not bits[token // 32] >> token % 32 & 1:
            return False
        c.commit(token)
    bits = c.mask() if not c.complete else None
    return c.complete or any(bits[i // 32] >> i % 32 & 1 for i in tokenizer.end_ids)


# ---- what comes out follows ----------------------------------------------------------

@pytest.mark.parametrize("name", SCHEMAS)
def test_random_answers_are_valid(walk, grammars, name):
    schema = SCHEMAS[name]
    ended = 0
    for seed in range(25):
        text, done = walk.run(grammars.constraint("json_schema", schema), seed)
        if done:
            ended += 1
            assert not re.search(r"\s{30}", text)
            value = json.loads(text)
            jsonschema.validate(value, schema, cls=jsonschema.Draft202012Validator)
    assert ended >= 15


@pytest.mark.parametrize("regex", REGEXES)
def test_random_answers_match_the_regex(walk, grammars, regex):
    for seed in range(15):
        text, done = walk.run(grammars.constraint("regex", regex), seed)
        assert done and re.fullmatch(regex, text), text


def test_random_sums_follow_the_grammar(walk, grammars):
    """GBNF with recursion; a reader of our own says what is right."""
    term = r"(?:\d+|@)"
    for seed in range(25):
        text, done = walk.run(grammars.constraint("grammar", ARITHMETIC), seed, most=120)
        if not done:
            continue
        assert text.endswith("\n") and not re.search(r"\b0\d", text)
        left, _, right = text[:-1].partition("=")
        assert re.fullmatch(r"0|[1-9]\d{0,2}", right)
        while "(" in left:
            left, n = re.subn(rf"\({term}(?:[-+*/]{term}){{0,3}}\)", "@", left)
            assert n, text
        assert re.fullmatch(rf"{term}(?:[-+*/]{term}){{0,3}}", left), text


@pytest.mark.parametrize("regex, text", [("a/b", "a/b"), ("a\nb", "a\nb"), (r"a\/b", "a/b"), ("^a|b$", "a"), ("(?s:.)", "\n"), ("//x", "//x"), (r"\\", "\\"), ('"', '"'), ("[/]", "/"),
                                         (r"\x41\u0042", "AB"), ("(?P<n>a)", "a"), ("a??b", "ab"), ("", ""), ("(a|ab)(c|bcd)", "abcd"), (r"\p{L}+", "\u00e9")])
def test_regex_syntax(grammars, tokenizer, regex, text):
    assert accepts(grammars, tokenizer, "regex", regex, text)
    assert not accepts(grammars, tokenizer, "regex", regex, text + "!")


@pytest.mark.parametrize("regex, text", [("^a|b$", "ax"), (".", "\n"), (r"\d", "\u0663"), (r"\w", "\u00e9"), ("a/ | /b", "a/"), ("a|b", "")])
def test_regex_refuses(grammars, tokenizer, regex, text):
    assert not accepts(grammars, tokenizer, "regex", regex, text)


def test_lark(grammars, tokenizer, walk):
    lark = 'start: "(" (NAME | start) ")"\nNAME: /[a-z]{2,5}/\n'
    for seed in range(10):
        text, done = walk.run(grammars.constraint("lark", lark), seed)
        if done:
            assert re.fullmatch(r"\(+[a-z]{2,5}\)+", text) and text.count("(") == text.count(")")
    inner = 'start: "<" j ">"\nj: %json {"type": "object", "properties": {"a": {"type": "string", "pattern": "^[^\\"]*$"}}, "required": ["a"], "additionalProperties": {"type": "integer"}}\n'
    assert accepts(grammars, tokenizer, "lark", inner, '<{"a": "x"}>')
    assert not accepts(grammars, tokenizer, "lark", inner, '<{"a": "x", "b": "y"}>')
    assert not accepts(grammars, tokenizer, "lark", inner, '<{"a": "\\""}>')
    assert not accepts(grammars, tokenizer, "lark", inner, '<{"a": "x", "\\u0061": 1}>')


@pytest.mark.parametrize("schema, text", [
    ({"type": "object", "properties": {"a": {"type": "string"}}}, '{"\\u0061": 1}'),          # another spelling of a name
    ({"type": "object", "properties": {"a/b": {"type": "string"}}}, '{"a\\/b": 1}'),
    ({"type": "string", "pattern": '^[^"]*$'}, '"\\""'),                                      # llguidance alone lets these through
    ({"type": "string", "pattern": "^[^!-~]$"}, '"\\\\"'),
    ({"type": "string", "pattern": "^[\\x00-!]$"}, '"\\""'),
    ({"type": "string", "pattern": "^[a&&b]$"}, '"c"'),
    ({"type": "object"}, '{"a":  1}'), ({"type": "object"}, '{}\n'), ({"type": "array"}, "[\n\n1]"),
    ({"type": "string", "maxLength": 1}, '"ab"'), ({"type": "integer"}, "01"), ({"type": "integer"}, "1.0"), ({"type": "number"}, "+1"),
])
def test_is_not_let_through(grammars, tokenizer, schema, text):
    assert not accepts(grammars, tokenizer, "json_schema", schema, text)


@pytest.mark.parametrize("schema, text", [
    ({"type": "string", "pattern": "^[a&&b]$"}, '"&"'), ({"type": "string", "pattern": "^[[]$"}, '"["'), ({"type": "string", "pattern": "^[+--]$"}, '","'),
    ({"type": "string", "pattern": "a"}, '"xay"'), ({"type": "string", "pattern": "^a|b$"}, '"axx"'), ({"type": "string", "pattern": r"^\P{L}$"}, '"1"'),
    ({"type": "object"}, '{\n  "a": [1, 2],\n  "b": {}\n}'), ({"type": "object"}, '{"a":1}'), ({"type": "string", "maxLength": 1}, '"\U0001f600"'),
    ({"type": "array", "uniqueItems": False}, "[1,1]"), (True, "3"), ('{"type": "null"}', "null"), ({}, '{"a": null}'),
    ({"$ref": "#/$defs/a%25b~1c", "$defs": {"a%b/c": {"const": 1}}}, "1"), ({"type": "string", "minLength": 1, "maxLength": 2000}, '"a"'),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 3}, "[1,2,3]"), ({"type": "array", "items": {"$ref": "#"}}, "[[],[[]]]"),
    ({"type": "object", "properties": {"x": {"$ref": "#"}}}, '{"x":{"x":{}}}'), ({"type": ["object", "null"], "properties": {"x": {"$ref": "#"}}, "required": ["x"]}, '{"x":null}'),
])
def test_is_let_through(grammars, tokenizer, schema, text):
    assert accepts(grammars, tokenizer, "json_schema", schema, text)


# ---- the seam --------------------------------------------------------------------------

def test_forced_tokens_are_the_tokenizers_own(grammars, tokenizer, walk):
    c = grammars.constraint("json_schema", {"type": "object", "properties": {"temperature": {"type": "boolean"}}, "required": ["temperature"],
                                            "additionalProperties": False})
    for token in tokenizer.encode('{"', add_bos=False):
        c.commit(token)
    assert tokenizer.decode(c.forced()) == "temperature"
    assert walk.allowed(c).sum() == 1
    spelled = "".join(tokenizer.decode([i]) for i in grammars.constraint("regex", "hello there general").forced())
    assert "hello there general".startswith(spelled) and len(spelled) > 10
    free = grammars.constraint("regex", "hello there general", force=False)
    assert free.forced() == [] and walk.allowed(free).sum() == 5


def test_forks_go_their_own_ways(grammars, tokenizer):
    a = grammars.constraint("regex", "x(yes|no)")
    a.commit(tokenizer.encode("x", add_bos=False)[0])
    b = a.fork()
    a.commit(tokenizer.encode("yes", add_bos=False)[0])
    assert a.complete and not b.complete
    b.commit(tokenizer.encode("no", add_bos=False)[0])
    assert b.complete
    with pytest.raises(GrammarError, match="regex"):
        b.commit(tokenizer.encode("no", add_bos=False)[0])


def test_end_and_control_tokens(grammars, tokenizer, walk):
    """They end an answer that may end; nothing else lets a control token in, and rows without a token stay out."""
    c = grammars.constraint("regex", "(?s:.)*")
    allowed = walk.allowed(c)
    ends = set(tokenizer.end_ids)
    for i in range(tokenizer.n_vocab):
        if not tokenizer.is_text(i):
            assert allowed[i] == (i in ends)
    assert allowed.sum() > 40_000
    c = grammars.constraint("regex", "a+", may_end=False)
    c.commit(tokenizer.encode("a", add_bos=False)[0])
    assert not walk.allowed(c)[list(ends)].any() and walk.allowed(c).any()
    wide = Grammars(tokenizer, tokenizer.n_vocab + 100)
    bits = wide.constraint("regex", "(?s:.)*").mask()
    assert not any(bits[i // 32] >> i % 32 & 1 for i in range(tokenizer.n_vocab, tokenizer.n_vocab + 100))


def test_threads_share_and_the_cache_is_bounded(tokenizer, monkeypatch):
    g = Grammars(tokenizer, tokenizer.n_vocab)
    found = []
    threads = [threading.Thread(target=lambda: found.append(first_mask(g))) for _ in range(6)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert len(found) == 6 and len(set(found)) == 1
    monkeypatch.setattr("pyengine.grammar.CACHE_BYTES", 3 << 20)
    for i in range(30):
        g.constraint("regex", f"a{i}")
    assert g._bytes <= 3 << 20 and 5 < len(g._compiled) <= 10
    g.constraint("regex", "a25")
    assert list(g._compiled)[-1] == ("regex", "a25", True)


def first_mask(grammars):
    return bytes(ffi.buffer(grammars.constraint("json_schema", PERSON).mask()))


def test_masks_do_not_depend_on_the_cache(tokenizer, grammars, walk):
    """The same answers from a grammar that was compiled now, before, and beside others."""
    fresh = Grammars(tokenizer, tokenizer.n_vocab)
    for name in ("person", "recursive", "pattern names"):
        want = Walk(tokenizer, fresh).run(fresh.constraint("json_schema", SCHEMAS[name]), 5)
        assert walk.run(grammars.constraint("json_schema", SCHEMAS[name]), 5) == want == walk.run(grammars.constraint("json_schema", SCHEMAS[name]), 5)


def test_without_the_extra(tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(GrammarError, match=r"pip install 'pyengine-gguf\[grammar\]'"):
        Grammars(tokenizer, tokenizer.n_vocab).constraint("regex", "a")


# ---- what cannot be honoured --------------------------------------------------------------

REFUSED = [
    ("json_schema", {"not": {"type": "string"}}, "'not'"), ("json_schema", {"properties": {"a": {"uniqueItems": True}}}, "#/properties/a.*uniqueItems"),
    ("json_schema", {"if": {}, "then": {}}, "'if'"), ("json_schema", {"contains": {}}, "contains"), ("json_schema", {"minLenght": 3}, "minLenght"),
    ("json_schema", {"x-guidance": {"lenient": True}, "not": {}}, "x-guidance"), ("json_schema", {"type": "strin"}, "strin"),
    ("json_schema", {"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"), ("json_schema", {"type": "string", "format": "nonsense"}, "nonsense"),
    ("json_schema", {"$ref": "#/$defs/x"}, r"\$defs/x"), ("json_schema", {"$ref": "http://example.com/x"}, "example.com"), ("json_schema", {"$ref": "#"}, "without end"),
    ("json_schema", {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "without end"),
    ("json_schema", {"type": "object", "properties": {"x": {"$ref": "#"}}, "required": ["x"]}, "without end"),
    ("json_schema", {"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "without end"),
    ("json_schema", {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "properties": {"b": {"$ref": "#/$defs/b"}}, "required": ["b"]},
                                                    "b": {"type": "array", "prefixItems": [{"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}], "minItems": 1}}}, "without end"),
    ("json_schema", False, "false"), ("json_schema", {"enum": []}, "empty"), ("json_schema", {"minimum": 5, "maximum": 3, "type": "integer"}, "greater than"),
    ("json_schema", {"properties": {"foo": "bar"}}, "#/properties/foo.*str"), ("json_schema", {"properties": ["a"]}, "#/properties"), ("json_schema", {"allOf": {}}, "#/allOf"),
    ("json_schema", "{", "not JSON"), ("json_schema", '{"type":"object","type":"string"}', "'type'.*twice"), ("json_schema", '{"minimum": NaN}', "NaN"),
    ("json_schema", {"minimum": float("inf")}, "not JSON"), ("json_schema", {"default": {1, 2}}, "not JSON"), ("json_schema", [1], "list"), ("json_schema", 3, "int"),
    ("json_schema", '"a"', "str"), ("json_schema", '{"title": "\ud800"}', "not JSON"), ("json_schema", {"const": "\x01"}, "control character"),
    ("json_schema", {"type": "object", "minProperties": 3}, "minProperties"), ("json_schema", {"type": "integer", "multipleOf": 0}, "multipleOf"),
    ("json_schema", {"type": "string", "pattern": "^*a$"}, r"\^\*a"), ("json_schema", {"type": "string", "pattern": r"\bfoo"}, "lookaround"),
    ("json_schema", {"type": "string", "pattern": "(?=a)b"}, "look-ahead"), ("json_schema", {"type": "string", "pattern": r"(a)\1"}, "backreference"),
    ("json_schema", {"type": "string", "pattern": "a\\x01"}, r"U\+0001"), ("json_schema", {"type": "string", "pattern": "[\\x00-\\x08]"}, "control"),
    ("json_schema", {"patternProperties": {"(": {}}}, "unclosed"), ("json_schema", {"type": "string", "pattern": "(?x) a"}, r"flags"),
    ("json_schema", {"patternProperties": {"^a": {"type": "integer"}, "b$": {"type": "string"}}}, "disjoint"),
    ("regex", "(", "unclosed"), ("regex", r"a\b", "lookaround"), ("regex", "(?=a)", "look"), ("regex", r"(a)\1", "backreference"), ("regex", r"[^\s\S]", "no text"),
    ("regex", 5, "int"), ("regex", "\ud800", "surrogate"), ("regex", "*", "repetition"), ("lark", "start: x", "x"), ("lark", 'start: start "a"', "no text"),
    ("lark", '{"grammars":[]}', "expecting"), ("lark", 'start: %json {"not": {}}', "'not'"), ("lark", "start: %json [", "JSON"), ("lark", b"start: x", "bytes"),
]


@pytest.mark.parametrize("param, value, message", REFUSED, ids=lambda v: re.sub(r"\W+", " ", repr(v))[:30])
def test_is_refused_by_name(grammars, param, value, message):
    with pytest.raises(GrammarError, match=message) as e:
        grammars.constraint(param, value)
    assert e.value.param == param and param in str(e.value) and len(str(e.value)) < 700


WORDS = ["type", "properties", "required", "items", "prefixItems", "minItems", "maxItems", "allOf", "anyOf", "oneOf", "$ref", "$defs", "enum", "const", "pattern", "patternProperties",
         "additionalProperties", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "multipleOf", "format", "uniqueItems", "$id", "$schema", "$anchor", "minProperties", "maxProperties",
         "title", "a", "b"]


def nested(n):
    schema = {"type": "string"}
    for _ in range(n):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def chain(n):
    return {"$ref": "#/$defs/a0", "$defs": {f"a{i}": {"type": "object", "properties": {"x": {"$ref": f"#/$defs/a{i + 1}"}}} for i in range(n)} | {f"a{n}": {"type": "string"}}}


HOSTILE = {
    "10 MB": ("json_schema", lambda: json.dumps({"enum": ["x" * 1000] * 10_000}), "bytes"),
    "900 deep": ("json_schema", lambda: nested(300), "deep"),
    "50,000 deep": ("json_schema", lambda: '{"items":' * 50_000 + "1", "bytes|deep"),
    "30,000 brackets": ("json_schema", lambda: "[" * 30_000, "deep"),
    "chain of 3,000 $ref": ("json_schema", lambda: chain(3000), r"\$ref"),
    "3,000 properties": ("json_schema", lambda: {"properties": {f"p{i}": {} for i in range(3000)}}, "3000 properties"),
    "multipleOf 999,983": ("json_schema", lambda: {"type": "integer", "multipleOf": 999_983}, "multipleOf"),
    "multiples of 997 and 991": ("json_schema", lambda: {"allOf": [{"type": "integer", "multipleOf": 997}, {"multipleOf": 991}]}, "least common multiple"),
    "exponential allOf": ("json_schema", lambda: {"allOf": [{"anyOf": [{"properties": {f"a{i}{j}": {"minLength": j + 1}}} for j in range(4)]} for i in range(8)]}, "too large"),
    "60,000 groups": ("regex", lambda: "(" * 60_000 + "a" + ")" * 60_000, "nest|invalid regex"),
    "doubling terminals": ("lark", lambda: "start: R0\n" + "".join(f"R{i}: R{i + 1} R{i + 1}\n" for i in range(60)) + 'R60: "a"', "too big"),
    "60,000 groups of Lark": ("lark", lambda: "start: " + "(" * 60_000 + "/a/" + ")" * 60_000, "nested"),
    "10,000 rules of Lark": ("lark", lambda: "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(10_000)) + 'r10000: "a"', "colons"),
    "$ref chain in Lark": ("lark", lambda: "start: %json " + json.dumps({"$ref": "#/$defs/a0", "$defs": {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(1200)}}), r"\$ref"),
    "60,000 groups of GBNF": ("grammar", lambda: "root ::= " + "(" * 60_000, "nested"),
    "60,000 repetitions of GBNF": ("grammar", lambda: 'root ::= "a"' + "*" * 60_000, "repetitions"),
    "20,000 names and one twice": ("json_schema", lambda: "{" + "".join(f'"x-{i}":1,' for i in range(20_000)) + '"x-19999":1}', "'x-19999' comes twice"),
    "20,000 schemas in Lark": ("lark", lambda: "start: " + "%json {} | " * 20_000 + "%json {", "no JSON"),
    "60,000 schemas in one": ("json_schema", lambda: {"allOf": [{}] * 60_000 + [{"multipleOf": 999_983}]}, "multipleOf"),
    "60,000 alternatives that are one": ("json_schema", lambda: {"allOf": [{"anyOf": [{}]}] * 15_000 + [{"$ref": "#"}]}, "without end"),
    "5,000 rules of GBNF": ("grammar", lambda: "root ::= a0\n" + "".join(f"a{i} ::= a{i + 1}\n" for i in range(5000)) + 'a5000 ::= "x"', "deep"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_grammars_are_refused(grammars, name):
    param, make, message = HOSTILE[name]
    with pytest.raises(GrammarError, match=message):
        grammars.constraint(param, make())


COSTLY = {
    "nested quantifiers": ("regex", "((a*)*)*b"), "exponential alternation": ("regex", "(a|a|aa)*b"), "counted dots": ("regex", "(.*a.{200}b.{200})+"),
    "a product of counts": ("regex", "((a{0,1000}){0,1000}){0,1000}b"), "20,000 words": ("regex", "|".join(f"w{i}x" for i in range(20_000))),
    "50 objects deep": ("json_schema", nested(48)), "chain of 900 $ref": ("json_schema", chain(900)), "1,000 properties": ("json_schema", {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1000)}}),
    "a million items": ("json_schema", {"type": "array", "items": {"type": "integer"}, "minItems": 1_000_000}),
    "enum of 10,000": ("json_schema", {"enum": [f"v{i}" for i in range(10_000)]}),
    "any number of repeats": ("grammar", 'root ::= ("a"{0,2000}){0,2000}'), "ambiguous": ("lark", 'start: a\na: a a a a | a a | "a" | ""'),
}


@pytest.mark.parametrize("name", COSTLY)
def test_costly_grammars_work_or_end_with_an_error(grammars, walk, name):
    """In a token or two thousand they may run out of fuel: then their own request gets the error."""
    try:
        walk.run(grammars.constraint(*COSTLY[name]), 1, most=60)
    except GrammarError as e:
        assert COSTLY[name][0] in str(e)


JUNK = st.recursive(st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.text("a$#/^[\\\\x01\u00e9", max_size=4) | st.sampled_from(["object", "array", "string", "#", "#/allOf/0", "#/$defs/a"]),
                    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.sampled_from(WORDS), x, max_size=4), max_leaves=12)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(WORDS), JUNK, max_size=5))
def test_any_json_is_a_schema_or_an_error(grammars, walk, schema):
    try:
        c = grammars.constraint("json_schema", schema)
        text, done = walk.run(c, 1, most=30)
    except GrammarError:
        return
    if done and not any(re.search(rf'"{word}"', json.dumps(schema)) for word in ("$id", "$ref", "$schema", "$anchor", "pattern", "patternProperties", "exclusiveMinimum", "exclusiveMaximum")):
        with contextlib.suppress(jsonschema.exceptions.SchemaError):
            jsonschema.Draft202012Validator.check_schema(schema)
            jsonschema.validate(json.loads(text), schema, cls=jsonschema.Draft202012Validator)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["regex", "lark", "grammar"]), st.text("ab()[]{}|*+?^$.\\\\-,0\"/:=%\n \u00e9~&!<>", max_size=20), st.sampled_from(["", "start: ", "root ::= "]))
def test_any_text_is_a_grammar_or_an_error(grammars, walk, param, text, before):
    try:
        walk.run(grammars.constraint(param, before + text), 1, most=10)
    except GrammarError as e:
        assert e.param == param


def test_small_stacks_are_enough():
    """Who calls may have 256 kB of stack: the recursion runs on a stack of its own."""
    code = """
import sys, threading
sys.path[:0] = ["tests", "tools"]
from conftest import find_model
from test_grammar import chain, nested
from pyengine.gguf import GGUF
from pyengine import tokenizer
from pyengine.grammar import Grammars
path = find_model("smollm2")
if path is None: print("done"); sys.exit()
t = tokenizer.load(GGUF(path))
def run():
    g = Grammars(t, t.n_vocab)
    g.constraint("json_schema", chain(990)).fork().mask()
    g.constraint("json_schema", nested(48)).fork().mask()
    g.constraint("lark", "start: r0\\n" + "".join(f"r{i}: r{i+1}\\n" for i in range(2900)) + 'r2900: "a"').fork().mask()
    g.constraint("grammar", "root ::= " + "(" * 100 + "'".replace("'", '"a"') + ")" * 100).fork().mask()
    print("done")
threading.stack_size(256 * 1024)
thread = threading.Thread(target=run); thread.start(); thread.join()
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert out.stdout.strip() == "done", out.stderr[-500:]


def test_patterns_in_rusts_words():
    for ecma, rust in ((r"[a\]\-]", r"[a\u{5D}\u{2D}]"), ("[^a]", r"[^a\u{8}]"), (r"\/", r"\u{2F}"), (r"\d[\w.]", r"\d[\u{2E}\w]"), (r"(?:a)(?<n>b)(?P<m>c)(?i:d)", r"(?:a)(?<n>b)(?P<m>c)(?i:d)"),
                       (r"[\x05-\x0a]", r"[\u{5}-\u{7}\u{9}-\u{A}]"), (r"\u00e9\x41", r"\u{E9}A"), ("a{2,3}.*$", "a{2,3}.*$")):
        assert translated(ecma) == rust
    for bad in ("[", "[a", "[]", "[^]", "\\", r"\x4", r"\u12", r"\u{}", r"\u{110000}", r"\ud800", "[z-a]", r"[a-\d]", r"[\b]", r"\p{Cc}", "\x7f", r"[\P{L}]", r"\p{L", r"\pC"):
        with pytest.raises(ValueError):
            translated(bad)

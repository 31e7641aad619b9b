"""Strict JSON and the tables of the dialects: what passes, what is refused, and that the error says which field."""
import dataclasses
import json
import math
import time

import jsonschema
import pytest
from hypothesis import given, settings, strategies as st

pytest.importorskip("starlette")

from pyengine.errors import RequestError
from pyengine.request import Options
from pyengine.sampling import RANGES, Params
from pyengine.serve import answers, fields, llama_server, openai, openapi, rows
from pyengine.serve.fields import FLAG, TEXT, Choice, Either, Field, List, Map, Number, Object, Table, Text, Whole

TABLES = [h.table for d in openapi.DIALECTS for _, _, h in d.ROUTES if h.table is not None]
TABLES = list({id(t): t for t in TABLES}.values())
by_name = pytest.mark.parametrize("table", TABLES, ids=lambda t: t.name)

# What a body needs beside the field that is tried.
NEEDED = {"completion": {"prompt": "x"}, "chat completion": {"messages": [{"role": "user", "content": "x"}]},
          "llama-server completion": {"prompt": "x"}, "tokenize": {"content": "x"}, "detokenize": {"tokens": [1]},
          "apply-template": {"messages": [{"role": "user", "content": "x"}]}, "embedding": {"input": "x"}, "rerank": {"query": "x", "documents": ["y"]}}

AWKWARD = [True, False, 0, 1, -1, 2, 5, -7, 16, 17, 21, 1e-9, 0.5, 1.5, -0.0, 1e39, -1e39, 1e308, 10**30, -10**30, 2**31, "", "x", "none", "text",
           "\x00", "é🦙", [], [""], ["x"], ["x"] * 17, [[]], [1], [-1], [1, "x"], [[1], ["x"]], [True], {}, {"": 1}, {"x": 1}, {"1": -100},
           {"1": 101}, {"1": False}, {"type": "text"}, {"type": "json_object"}, {"type": "json_schema"}, {"prompt_string": "x"}]


def refused(raw):
    with pytest.raises(RequestError) as e:
        fields.parse_json(raw)
    return e.value


# ---- JSON --------------------------------------------------------------------------


@pytest.mark.parametrize("raw, says", [
    (b"", "is not JSON"), (b"{", "is not JSON"), (b"{}x", "is not JSON"), (b"{'a':1}", "is not JSON"), (b'{"a":1,}', "is not JSON"), (b'{"a":01}', "is not JSON"),
    (b"[1]", "object is expected"), (b"null", "object is expected"), (b'"x"', "object is expected"), (b"1", "object is expected"),
    (b'{"a":NaN}', "NaN"), (b'{"a":[Infinity]}', "Infinity"), (b'{"a":-Infinity}', "-Infinity"), (b'{"a":1e999}', "1e999"), (b'{"a":-1e400}', "too large"),
    (b"\xef\xbb\xbf{}", "byte order mark"), ('{"a":1}'.encode("utf-16"), "UTF-8"), ('{"a":1}'.encode("utf-16-le"), "is not JSON"), (b'{"a":"\xff"}', "byte 0xff at 6"),
    (b'{"a":"\xed\xa0\x80"}', "UTF-8"), ('{"a":"é"}'.encode("gbk"), "UTF-8"), (b'{"a":"\x01"}', "is not JSON"),
])
def test_f90_what_is_not_json_is_named(raw, says):
    assert says in str(refused(raw))


@pytest.mark.parametrize("raw, name", [(b'{"a":1,"a":1}', "a"), (b'{"a":[{"b":1,"c":2,"b":3}]}', "b"), (b'{"":1,"":2}', "")])
def test_f90_a_name_given_twice_is_refused_by_that_name(raw, name):
    e = refused(raw)
    assert e.param == name and "twice" in str(e)


@pytest.mark.parametrize("depth", [65, 66, 100, 128, 129, 10**5, 10**6])
@pytest.mark.parametrize("pair", ["[]", "{}"])
def test_f91_deep_nesting_is_refused(depth, pair):
    open, close = ("[", "]") if pair == "[]" else ('{"a":', "}")
    assert ("nested deeper than 64" if depth < 200_000 else "more than 200000 lists") in str(refused(b'{"a":' + (open * (depth - 1) + "1" + close * (depth - 1)).encode() + b"}"))
    assert refused((open * depth).encode())


def test_f91_depth_64_passes_and_brackets_in_texts_do_not_count():
    body = fields.parse_json(b'{"a":' + b"[" * 63 + b"]" * 63 + b"}")
    assert json.dumps(body).count("[") == 63
    text = '[{"\\' * 1000 + "[" * 1000
    assert fields.parse_json(json.dumps({"a": text, text: 1}).encode()) == {"a": text, text: 1}


@pytest.mark.parametrize("body, where", [('{"a":"\\ud800"}', "a"), ('{"a":[1,{"b":"x\\udfffy"}]}', "a[1].b"), ('{"a":"\\udc00\\ud800"}', "a")])
def test_f92_half_a_surrogate_pair_is_refused_with_its_place(body, where):
    assert refused(body.encode()).param == where


def test_f92_a_whole_pair_is_one_character():
    assert fields.parse_json(b'{"a":"\\ud83e\\udd99"}') == {"a": "🦙"}
    assert refused(b'{"\\ud800":1}')


@pytest.mark.parametrize("raw", [b'{"a":' + b"9" * 401 + b"}", b'{"a":' + b"9" * 10**6 + b"}", b'{"a":0.' + b"9" * 10**6 + b"}"])
def test_numbers_without_end_are_refused(raw):
    assert "digits" in str(refused(raw))


@pytest.mark.parametrize("unit", [b'"', b'\\"', b"\\", b"[", b"]", b"[]", b"{}", b'{"":', b"9" * 399 + b",", b"-", b'"a",'])
def test_a_megabyte_of_anything_end(unit):
    """No timed assertion: what is quadratic here takes many minutes, and pytest's own limit ends it."""
    for raw in (unit * (2**20 // len(unit)), b'{"a":"' + unit * (2**20 // len(unit))):
        try:
            fields.parse_json(raw)
        except RequestError as e:
            assert len(str(e)) < 500


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=200) | st.text(alphabet='{}[]",:\\u0d8 1e-.ntf', max_size=60).map(str.encode))
def test_bytes_are_an_object_or_a_request_error(raw):
    try:
        assert isinstance(fields.parse_json(raw), dict)
    except RequestError as e:
        assert str(e).isprintable() and len(str(e)) < 500


JSON = st.recursive(st.none() | st.booleans() | st.integers(-10**20, 10**20) | st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters(codec="utf-8")),
                    lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8")), v, max_size=4), max_leaves=20)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(st.characters(codec="utf-8")), JSON, max_size=5), st.booleans())
def test_what_json_writes_is_read(body, ascii):
    assert fields.parse_json(json.dumps(body, ensure_ascii=ascii).encode()) == body


# ---- kinds and tables -----------------------------------------------------------------

SMALL = Table(
    "small", Field("n", Whole(0, 9), default=3), Field("max", Whole(-1), to="most"), Field("n_max", Whole(-1), to="most"), Field("t", Number(0, 2, open=True)),
    Field("who", TEXT, ignored="nobody asks"), Field("draw", FLAG, refused="we cannot draw", off=(False,)), Field("size", refused="one size", off=(1,)),
    Field("opt", Object(Table("opt", Field("deep", FLAG, required=True)))), Field("kind", Choice("a", "b")),
    Field("stop", Either(Text(1), List(Text(1), 0, 2))), Field("map", Map(Number(-1, 1))), Field("both", FLAG, turn=lambda v: {"x": v, "y": v}))


def test_values_defaults_aliases_and_null():
    assert SMALL.parse({}) == {"n": 3}
    assert SMALL.parse({"n": None, "max": 5, "n_max": 5, "who": "me", "draw": False, "size": 1.0, "both": True}) == {"n": 3, "most": 5, "x": True, "y": True}


@pytest.mark.parametrize("body, param, says", [
    ({"m": 1}, "m", "unknown field"), ({"knd": "a"}, "knd", "did you mean kind?"), ({"n": True}, "n", "found true"), ({"n": 1.0}, "n", "found 1.0"),
    ({"n": 10}, "n", "from 0 to 9"), ({"n": "1"}, "n", "the text '1'"), ({"t": 0}, "t", "above 0"), ({"t": 10**400}, "t", "an integer of"), ({"max": -2}, "max", "at least -1"),
    ({"max": 1, "n_max": 2}, "n_max", "the same as max"), ({"draw": True}, "draw", "we cannot draw"), ({"draw": 0}, "draw", "cannot draw"), ({"size": True}, "size", "one size"),
    ({"who": 1}, "who", "a text"), ({"opt": {}}, "opt.deep", "missing"), ({"opt": {"deep": 1}}, "opt.deep", "true or false"), ({"opt": {"x": 1}}, "opt.x", "unknown"),
    ({"opt": []}, "opt", "an object"), ({"kind": "c"}, "kind", '"a" or "b"'), ({"stop": ""}, "stop", "not empty"), ({"stop": ["a", ""]}, "stop[1]", "an empty text"),
    ({"stop": ["a"] * 3}, "stop", "of at most 2"), ({"stop": 1}, "stop", "a text"), ({"map": {"a": 2}}, "map.a", "from -1 to 1"), ({"map": {"a": True}}, "map.a", "true"),
    ({"\x1b[31m" * 100: 1}, None, "unknown field"),
])
def test_what_is_wrong_is_named(body, param, says):
    with pytest.raises(RequestError) as e:
        SMALL.parse(body)
    assert says in str(e.value) and (param is None or e.value.param == param)
    assert str(e.value).isprintable() and len(str(e.value)) < 600 and len(e.value.param) < 300


def test_an_error_of_the_engine_gets_the_name_that_the_request_used():
    e = RequestError("most: found -5, expected more", param="most")
    fields.rename(e, SMALL, {"n_max": -5})
    assert (e.param, str(e)) == ("n_max", "n_max: found -5, expected more")
    e = RequestError("most is -5", param="most")
    fields.rename(e, SMALL, {})
    assert e.param == "max"
    e = RequestError("elsewhere", param="opt.deep[3].x")
    fields.rename(e, SMALL, {})
    assert e.param == "opt.deep[3].x"


@by_name
def test_defaults_pass_their_own_checks(table):
    values = table.parse(NEEDED[table.name])
    for f in table.fields.values():
        if f.default is not None:
            assert f.kind.check(f.default, f.name) == f.default and values[f.target] == f.default


@by_name
def test_every_optional_field_as_null_is_as_if_absent(table):
    """cases 138, 47."""
    needed = NEEDED[table.name]
    everything = {name: None for name in table.fields} | needed
    assert table.parse(everything) == table.parse(needed)
    for name in needed:
        with pytest.raises(RequestError, match="missing") as e:
            table.parse({**needed, name: None})
        assert e.value.param == name


@by_name
def test_awkward_values_pass_or_are_refused_by_name_as_the_description_says(table):
    """Every field with values of every type; openapi.json and the server agree on each, up to what a schema cannot say."""
    schema = json.loads(json.dumps(table.schema()))
    jsonschema.Draft202012Validator.check_schema(schema)
    validator, checked = jsonschema.Draft202012Validator(schema), 0
    for name, f in table.fields.items():
        for value in AWKWARD:
            body = {**NEEDED[table.name], name: value}
            described = validator.is_valid(body)
            try:
                table.parse(body)
                passed = True
            except RequestError as e:
                passed = False
                assert e.param.startswith(name) and str(e).isprintable(), (name, value)
            checked += 1
            if f.turn is None and not (isinstance(value, float) and value.is_integer()):      # JSON Schema calls 1.0 an integer
                assert passed == described, (name, value)
    assert checked == len(table.fields) * len(AWKWARD)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(TABLES), st.data())
def test_any_body_is_values_or_a_request_error(table, data):
    names = st.sampled_from(sorted(table.fields)) | st.text(max_size=8)
    body = data.draw(st.dictionaries(names, JSON | st.sampled_from(AWKWARD), max_size=5))
    try:
        values = table.parse({**NEEDED[table.name], **body})
        assert isinstance(values, dict)
    except RequestError as e:
        assert str(e).isprintable() and len(str(e)) < 2000


@by_name
def test_what_goes_to_the_engine_is_an_option_of_the_engine(table):
    for f in table.fields.values():
        if f.target in answers.OPTIONS:
            assert f.target in {o.name for o in dataclasses.fields(Options)}
        assert not (f.refused and f.ignored)


@pytest.mark.parametrize("name", sorted(RANGES))
def test_ranges_are_those_of_the_python_api(name):
    """One range, said twice: what the table lets through at its ends, sampling takes, and the next number is refused by both."""
    kind = rows.number(name)
    inside = [kind.high] + ([] if kind.open else [kind.low])
    outside = [math.nextafter(kind.high, math.inf), math.nextafter(kind.low, -math.inf)] + ([kind.low] if kind.open else [])
    for value in inside:
        kind.check(value, name)
        Params(**{name: value}).validated(100)
    for value in outside:
        for check in (lambda: kind.check(value, name), lambda: Params(**{name: value}).validated(100)):
            with pytest.raises(RequestError):
                check()


@pytest.mark.parametrize("given, kept", [
    ("edskypmxat", list(llama_server.CHAIN)), ("kt", ["top_k", "temperature"]), ([], []), (["top_k", "typical_p", "temp"], ["top_k", "typ_p", "temperature"])])
def test_samplers_by_name_and_letter(given, kept):
    assert llama_server.samplers(given) == kept


@pytest.mark.parametrize("given", ["tk", "kk", ["temperature", "top_k"], ["mirostat"], "z"])
def test_samplers_in_an_order_that_is_not_ours_are_refused(given):
    with pytest.raises(RequestError) as e:
        llama_server.samplers(given)
    assert e.value.param == "samplers"


def test_messages_that_need_no_content():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    given = [{"role": "assistant", "tool_calls": [call]}, {"role": "assistant", "content": "a", "tool_calls": []}, {"role": "assistant", "reasoning": "r"}]
    assert openai.messages(given) == [given[0], {"role": "assistant", "content": "a"}, given[2]]
    for message in ({"role": "user"}, {"role": "system"}, {"role": "assistant"}, {"role": "assistant", "tool_calls": []}, {"role": "user", "reasoning": "r"}):
        with pytest.raises(RequestError, match="missing") as e:
            openai.messages([message])
        assert e.value.param == "messages[0].content"

def test_a_token_that_is_half_a_character_has_a_name_of_its_own():
    """cases 21: two halves are two keys."""
    names = [answers.token_name({"bytes": list(b), "token": "\ufffd"}) for b in (b"\xe6", b"\xad", "歪".encode(), b" E")]
    assert names == ["bytes:\\xe6", "bytes:\\xad", "歪", " E"]


def test_salts_are_apart():
    class Ctx:
        salt = "a"
    other = type("Ctx", (), {"salt": ""})
    salts = {answers.salt(Ctx, None), answers.salt(Ctx, "b"), answers.salt(other, "ab"), answers.salt(other, "a"), answers.salt(Ctx, "a")}
    assert len(salts) == 5 and all(len(s) <= 256 for s in salts)


def test_a_deadline_counts_from_arrival():
    ctx = type("Ctx", (), {"salt": "", "key": "k", "priority": 1, "received": time.monotonic() - 5})
    out = answers.options(ctx, {"deadline_ms": 60_000, "priority": 0, "temperature": 0, "echo": True})
    assert 54 < out["deadline"] <= 55 and out["priority"] == 1 and out["key"] == "k" and out["temperature"] == 0 and "echo" not in out
    assert answers.options(ctx, {"deadline_ms": 1})["deadline"] == 0


def test_the_description_is_whole():
    described = json.loads(json.dumps(openapi.describe()))
    for dialect in openapi.DIALECTS:
        for method, path, handler in dialect.ROUTES:
            operation = described["paths"][path][method.lower()]
            if handler.table is not None:
                schema = operation["requestBody"]["content"]["application/json"]["schema"]
                assert set(schema["properties"]) == set(handler.table.fields)
    ids = [o["operationId"] for p in described["paths"].values() for o in p.values()]
    assert len(ids) == len(set(ids))


def test_the_documentation_is_what_the_tables_say():
    import api_tables

    doc = api_tables.DOC.read_text(encoding="utf-8")
    assert api_tables.filled(doc) == doc, "python tools/api_tables.py"
    assert {m[1] for m in api_tables.MARK.finditer(doc)} == set(api_tables.TABLES)

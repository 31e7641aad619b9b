"""The OpenAI dialect against a server process over SmolLM2: shapes, fields, faults. What official clients make of it: test_serve_clients.py."""
import json
import math

import pytest

pytest.importorskip("starlette")

from pyengine import Llama

ALPHABET = "Here is the English alphabet: A B C D"
HA = "ha ha ha ha ha ha ha ha"         # goes on "h ha ha ha ..."
HELLO = [{"role": "user", "content": "Say hello."}]


@pytest.fixture(scope="module")
def llm(real_model):
    with Llama(real_model("smollm2"), n_ctx=512) as llm:
        yield llm


@pytest.fixture()
def complete(smollm2_server):
    def ask(prompt=ALPHABET, **body):
        status, answer = smollm2_server.post("/v1/completions", {"prompt": prompt, "temperature": 0, "max_tokens": 8, **body})
        assert status == 200, answer
        return answer

    return ask


@pytest.fixture()
def chat(smollm2_server):
    def ask(messages=HELLO, **body):
        status, answer = smollm2_server.post("/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 8, **body})
        assert status == 200, answer
        return answer

    return ask


@pytest.fixture()
def refused(smollm2_server):
    """The error object of a request that has to be a 400."""

    def ask(path="/v1/completions", **body):
        needed = {"messages": HELLO} if "chat" in path else {"prompt": ALPHABET}
        status, answer = smollm2_server.post(path, {**needed, "max_tokens": 4, **body})
        assert status == 400, answer
        assert set(answer["error"]) >= {"message", "type", "param", "code"} and answer["error"]["type"] == "invalid_request_error"
        return answer["error"]

    return ask


def text(answer):
    choice = answer["choices"][0]
    return choice["text"] if "text" in choice else choice["message"]["content"]


# ---- shapes -------------------------------------------------------------------------


def test_models(smollm2_server):
    status, listed = smollm2_server.get("/v1/models")
    assert status == 200 and listed["object"] == "list" and [m["id"] for m in listed["data"]] == ["smollm2"]
    assert smollm2_server.get("/v1/models/smollm2") == (200, listed["data"][0])
    model = listed["data"][0]
    assert model["object"] == "model" and isinstance(model["created"], int) and model["max_model_len"] == 512
    assert model["meta"]["n_vocab"] == 49152 and model["meta"]["n_ctx_train"] == 8192


def test_completion_has_openais_shape_and_the_bytes_of_the_python_api(complete, llm):
    answer = complete()
    assert set(answer) == {"id", "object", "created", "model", "system_fingerprint", "choices", "usage"}
    assert answer["object"] == "text_completion" and answer["model"] == "smollm2" and answer["id"].startswith("cmpl-")
    alone = llm.generate(ALPHABET, temperature=0, max_tokens=8)
    assert answer["choices"] == [{"index": 0, "text": alone.text, "logprobs": None, "finish_reason": "length"}]
    assert answer["usage"]["completion_tokens"] == 8 and answer["usage"]["total_tokens"] == alone.usage["total_tokens"]


def test_chat_has_openais_shape_and_the_bytes_of_the_python_api(chat, llm):
    answer = chat(temperature=0.8, seed=7, max_tokens=16)
    alone = llm.chat(HELLO, temperature=0.8, top_p=1, top_k=0, min_p=0, seed=7, max_tokens=16)
    assert set(answer) == {"id", "object", "created", "model", "system_fingerprint", "choices", "usage"} and answer["object"] == "chat.completion"
    assert answer["choices"] == [{"index": 0, "message": {"role": "assistant", "content": alone.text, "refusal": None}, "logprobs": None,
                                  "finish_reason": alone.finish_reason}]


@pytest.mark.parametrize("usage", [True, False, None])
def test_127_usage_in_streams(smollm2_server, chat, usage):
    body = {"messages": HELLO, "temperature": 0, "max_tokens": 8, **({} if usage is None else {"stream_options": {"include_usage": usage}})}
    events = smollm2_server.events("/v1/chat/completions", body)
    assert events.pop() == "[DONE]"
    whole = chat()
    if usage:
        last = events.pop()
        assert last["choices"] == [] and last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
        assert all(e["usage"] is None for e in events)
    else:
        assert not any("usage" in e for e in events)
    deltas = [e["choices"][0]["delta"] for e in events]
    assert deltas[0] == {"role": "assistant", "content": "", "refusal": None} and deltas[-1] == {}
    assert all(set(d) == {"content"} for d in deltas[1:-1])
    assert [e["choices"][0]["finish_reason"] for e in events] == [None] * (len(events) - 1) + ["length"]
    assert "".join(d["content"] for d in deltas[:-1]) == text(whole)
    assert len({e["id"] for e in events}) == 1 and all(e["object"] == "chat.completion.chunk" for e in events)


def test_completion_stream_is_the_answer_in_pieces(smollm2_server, complete):
    body = {"prompt": ["One two", "Red green"], "n": 2, "temperature": 0.8, "seed": 5, "max_tokens": 6, "echo": True}
    whole = complete(**body)
    events = smollm2_server.events("/v1/completions", {**body, "stream_options": {"include_usage": True}})
    assert events.pop() == "[DONE]" and events.pop()["usage"]["total_tokens"] == whole["usage"]["total_tokens"]
    texts, ends = [""] * 4, [None] * 4
    for event in events:
        (choice,) = event["choices"]
        assert ends[choice["index"]] is None
        texts[choice["index"]] += choice["text"]
        ends[choice["index"]] = choice["finish_reason"]
    assert texts == [c["text"] for c in whole["choices"]] and ends == [c["finish_reason"] for c in whole["choices"]]
    assert texts[0].startswith("One two") and texts[3].startswith("Red green") and [c["index"] for c in whole["choices"]] == [0, 1, 2, 3]


@pytest.mark.parametrize("prompt, n", [("Hello", 1), (["Hello", "World"], 2), ([19556], 1), ([[19556], [28]], 2), (["Hello", [19556]], 2)])
def test_forms_of_a_prompt(complete, prompt, n):
    answer = complete(prompt, max_tokens=3)
    assert len(answer["choices"]) == n
    if n == 1:
        assert text(answer) == text(complete("Hello", max_tokens=3))         # 19556 is "Hello"


def test_n_answers_are_each_what_their_index_says(chat, llm):
    answer = chat(n=3, temperature=1.2, seed=3)
    alone = llm.chat(HELLO, n=3, temperature=1.2, seed=3, top_p=1, top_k=0, min_p=0, max_tokens=8)
    assert [c["message"]["content"] for c in answer["choices"]] == [r.text for r in alone] and len({r.text for r in alone}) > 1
    assert answer["usage"]["prompt_tokens"] == alone[0].usage["prompt_tokens"]
    assert answer["usage"]["completion_tokens"] == sum(r.usage["completion_tokens"] for r in alone)


def test_best_of_gives_the_most_probable(complete, refused):
    every = complete("Once", n=5, temperature=1.5, seed=1, logprobs=0)
    best = complete("Once", n=2, best_of=5, temperature=1.5, seed=1)
    means = [sum(c["logprobs"]["token_logprobs"]) / len(c["logprobs"]["tokens"]) for c in every["choices"]]
    order = sorted(range(5), key=lambda i: -means[i])
    assert [c["text"] for c in best["choices"]] == [every["choices"][i]["text"] for i in order[:2]]
    assert [c["index"] for c in best["choices"]] == [0, 1] and best["choices"][0]["logprobs"] is None
    assert best["usage"] == every["usage"] | {"prompt_tokens_details": best["usage"]["prompt_tokens_details"]}
    assert refused(best_of=1, n=2)["param"] == "best_of" and refused(best_of=3, n=2, stream=True)["param"] == "best_of"


def test_timings_come_when_asked_for(chat):
    t = chat(timings=True)["timings"]
    assert t["predicted_n"] == 8 and t["prompt_n"] + t["cache_n"] == chat()["usage"]["prompt_tokens"]
    assert all(t[k] >= 0 for k in ("prompt_ms", "predicted_ms", "queued_ms", "first_ms", "prompt_per_second", "predicted_per_second"))


# ---- logprobs -------------------------------------------------------------------------


def test_125_logprobs_are_those_of_the_raw_logits_at_that_position(complete, llm):
    got = complete(logprobs=3, max_tokens=5)["choices"][0]["logprobs"]
    prompt = llm.tokenize(ALPHABET, special=True)
    answer = llm.generate(ALPHABET, temperature=0, max_tokens=5).tokens
    rows = llm.logits(prompt + answer[:-1])[len(prompt) - 1:].astype("float64")
    for i, token in enumerate(answer):
        row = rows[i] - rows[i].max()
        logprobs = row - math.log(sum(map(math.exp, row)))
        assert got["token_logprobs"][i] == pytest.approx(logprobs[token], abs=1e-5)
        top = got["top_logprobs"][i]
        assert max(top, key=top.get) == got["tokens"][i] and len(top) == 3      # greedy: the first of the list
        assert sorted(top.values(), reverse=True) == pytest.approx(sorted(logprobs, reverse=True)[:3], abs=1e-5)
    assert "".join(got["tokens"]) == text(complete(max_tokens=5))
    assert got["text_offset"] == [sum(map(len, got["tokens"][:i])) for i in range(5)]


def test_21_a_token_that_is_half_a_character_keeps_its_bytes(smollm2_server, chat):
    """34978 and 120 are the halves of one character: forced, one by one, by prompts that bias nothing else."""
    body = {"prompt": [2, 34978], "temperature": 0, "max_tokens": 1, "logprobs": 2, "logit_bias": {"120": 100}}
    status, answer = smollm2_server.post("/v1/completions", body)
    assert status == 200 and answer["choices"][0]["logprobs"]["tokens"][0].startswith("bytes:\\x")
    got = chat(logprobs=True, top_logprobs=2, logit_bias={"34978": 100}, max_tokens=2)["choices"][0]
    entries = got["logprobs"]["content"]
    assert len(entries) == 2 and all(len(e["top_logprobs"]) == 2 for e in entries)
    assert bytes(b for e in entries for b in e["bytes"]).decode("utf-8", "replace") == got["message"]["content"]
    assert set(entries[0]) == {"token", "bytes", "logprob", "top_logprobs"} and set(entries[0]["top_logprobs"][0]) == {"token", "bytes", "logprob"}


def test_logprobs_of_a_stream_are_those_of_the_answer(smollm2_server, chat, complete):
    whole = chat(logprobs=True, top_logprobs=1, max_tokens=6)["choices"][0]["logprobs"]["content"]
    events = smollm2_server.events("/v1/chat/completions", {"messages": HELLO, "temperature": 0, "max_tokens": 6, "logprobs": True, "top_logprobs": 1})
    assert [e for event in events[:-1] for e in (event["choices"][0]["logprobs"] or {"content": []})["content"]] == whole
    lists = complete(logprobs=1)["choices"][0]["logprobs"]
    events = smollm2_server.events("/v1/completions", {"prompt": ALPHABET, "temperature": 0, "max_tokens": 8, "logprobs": 1})[:-1]
    for name in lists:
        assert [x for e in events for x in (e["choices"][0]["logprobs"] or {name: []})[name]] == lists[name]


def test_125_echo_with_logprobs_has_the_prompts_own(smollm2_server, complete, llm):
    """How harnesses score texts: nothing is generated, the prompt's tokens are asked for."""
    prompt = "The capital of France is 巴黎 🦙."
    answer = complete(prompt, echo=True, logprobs=2, max_tokens=0)["choices"][0]
    got, tokens = answer["logprobs"], llm.tokenize(prompt, special=True)
    assert answer["text"] == prompt and all(len(x) == len(tokens) for x in got.values())
    assert got["token_logprobs"][0] is None and got["top_logprobs"][0] is None
    rows = llm.logits(tokens).astype("float64")
    for i, token in enumerate(tokens[1:]):
        row = rows[i] - rows[i].max()
        logprobs = row - math.log(sum(map(math.exp, row)))
        assert got["token_logprobs"][i + 1] == pytest.approx(logprobs[token], abs=1e-5)
        top = got["top_logprobs"][i + 1]
        assert max(top.values()) == pytest.approx(max(logprobs), abs=1e-5) and got["tokens"][i + 1] in top and 2 <= len(top) <= 3
    for name, offset in zip(got["tokens"], got["text_offset"]):
        assert name.startswith("bytes:") or prompt[offset:].startswith(name)
    behind = complete(prompt, echo=True, logprobs=2, max_tokens=3)["choices"][0]
    for name in got:
        assert behind["logprobs"][name][:len(tokens)] == got[name] and len(behind["logprobs"][name]) == len(tokens) + 3
    assert behind["logprobs"]["text_offset"][-3] == len(prompt)
    events = smollm2_server.events("/v1/completions", {"prompt": prompt, "temperature": 0, "max_tokens": 3, "echo": True, "logprobs": 2})[:-1]
    assert [x for e in events for x in (e["choices"][0]["logprobs"] or {"tokens": []})["tokens"]] == behind["logprobs"]["tokens"]
    assert "".join(e["choices"][0]["text"] for e in events) == behind["text"]
    ids = complete([2, 19556], echo=True, logprobs=0, max_tokens=0)["choices"][0]
    assert ids["text"] == "<|im_end|>Hello" and ids["logprobs"]["tokens"] == ["<|im_end|>", "Hello"] and ids["logprobs"]["text_offset"] == [0, 10]


@pytest.mark.parametrize("path, body, param", [
    ("/v1/completions", {"logprobs": 10**9}, "logprobs"), ("/v1/completions", {"logprobs": -1}, "logprobs"), ("/v1/completions", {"logprobs": 21}, "logprobs"),
    ("/v1/completions", {"logprobs": True}, "logprobs"), ("/v1/completions", {"prompt_logprobs": -1}, "prompt_logprobs"),
    ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"), ("/v1/chat/completions", {"logprobs": 1}, "logprobs"),
    ("/v1/chat/completions", {"top_logprobs": 2}, "top_logprobs")])
def test_f98_logprobs_out_of_range(refused, path, body, param):
    assert refused(path, **body)["param"] == param


# ---- faults F: requests -------------------------------------------------------------------


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"prompt":"x","prompt":"y"}', b'{"prompt":"x","temperature":NaN}', b'{"prompt":"\\ud800"}', b'{"prompt":"\xff"}',
                                 b"\xef\xbb\xbf{}", '{"prompt":"x"}'.encode("utf-16"), b"[" * 10**5, b'{"a":' * 10**5, b'{"prompt":"x","seed":' + b"9" * 10**6 + b"}",
                                 b'{"prompt":"x","\xff\xfe":1}'])
def test_f90_f91_f92_bodies_that_are_no_request(smollm2_server, raw):
    for path in ("/v1/completions", "/v1/chat/completions"):
        status, answer = smollm2_server.post(path, raw)
        assert status == 400 and answer["error"]["type"] == "invalid_request_error", answer


@pytest.mark.parametrize("body, param", [
    ({"stream": "true"}, "stream"), ({"temperature": "hot"}, "temperature"), ({"temperature": True}, "temperature"), ({"max_tokens": "5"}, "max_tokens"),
    ({"seed": 1.5}, "seed"), ({"stop": 1}, "stop"), ({"prompt": 1}, "prompt"), ({"prompt": {}}, "prompt"), ({"prompt": None}, "prompt"), ({"n": [1]}, "n"),
    ({"model": 1}, "model"), ({"user": 7}, "user"), ({"foo": 1}, "foo"), ({"temprature": 1}, "temprature"), ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"), ({"repetition_penalty": 1.1}, "repetition_penalty"), ({"min_tokens": 10**9}, "min_tokens")])
def test_138_wrong_types_and_unknown_fields_are_named(refused, body, param):
    error = refused(**body)
    assert error["param"] == param and param in error["message"]


def test_138_every_optional_field_as_null_is_the_default(smollm2_server, complete, chat):
    _, described = smollm2_server.get("/openapi.json")
    for path, ask, needed in (("/v1/completions", complete, "prompt"), ("/v1/chat/completions", chat, "messages")):
        properties = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
        nulls = {name: None for name in properties if name not in (needed, "temperature", "max_tokens")}
        assert len(nulls) > 40 and text(ask(**nulls)) == text(ask())


@pytest.mark.parametrize("n", [10**9, 17, 0, -1, 1.0, True])
def test_f96_n_and_best_of_are_bounded(refused, n):
    assert refused(n=n)["param"] == "n" and refused(best_of=n)["param"] == "best_of" and refused("/v1/chat/completions", n=n)["param"] == "n"


def test_f96_prompts_and_answers_together_are_bounded(refused):
    assert refused(prompt=["a"] * 1025)["param"] == "prompt"
    assert refused(prompt=["a"] * 65, n=16)["param"] in ("prompt", "n")


@pytest.mark.parametrize("max_tokens", [2**31 - 1, 10**30, -1])
def test_f97_huge_max_tokens_ends_with_the_context(complete, max_tokens):
    """Also cases 62: the prompt fits, so it runs."""
    answer = complete("a " * 490, max_tokens=max_tokens)
    used = answer["usage"]
    assert answer["choices"][0]["finish_reason"] in ("length", "stop") and used["total_tokens"] <= 512 and used["prompt_tokens"] > 480


def test_71_max_tokens(complete, chat, refused):
    assert text(complete(max_tokens=0)) == "" and complete(max_tokens=0)["usage"]["completion_tokens"] == 0
    assert complete(max_tokens=0, echo=True)["choices"][0]["text"] == ALPHABET
    assert complete(max_tokens=None)["usage"]["completion_tokens"] == 16
    assert chat(max_tokens=None)["choices"][0]["finish_reason"] == "stop"
    for path in ("/v1/completions", "/v1/chat/completions"):
        assert refused(path, max_tokens=-5)["param"] == "max_tokens"


def test_137_max_completion_tokens(chat, refused):
    assert chat(max_tokens=None, max_completion_tokens=5)["usage"]["completion_tokens"] == 5
    assert chat(max_tokens=5, max_completion_tokens=5)["usage"]["completion_tokens"] == 5
    assert refused("/v1/chat/completions", max_tokens=4, max_completion_tokens=5)["param"] == "max_completion_tokens"


@pytest.mark.parametrize("prompt, param", [([-1], "prompt[0]"), ([10**9], "prompt"), ([49152], "prompt"), ([], "prompt"), ([[]], "prompt[0]"), ([1, "a"], None), ([True], None),
                                           ([1.5], None), ([None], None), ([[1], [10**9]], "prompt")])
def test_f100_token_ids_out_of_range(refused, prompt, param):
    error = refused(prompt=prompt)
    assert error["param"] == param if param else error["param"].startswith("prompt")


@pytest.mark.parametrize("bias", [{"49152": 1}, {"-1": 1}, {"1": 1e39}, {"1": 101}, {"1": True}, {"1": "x"}, {"1": [1]}, [[1]], [[1, 2, 3]], "x", {str(i): 1 for i in range(1025)}])
def test_f101_logit_bias_out_of_range(refused, bias):
    assert refused(logit_bias=bias)["param"].startswith("logit_bias")


@pytest.mark.parametrize("body, param", [
    ({"temperature": -1}, "temperature"), ({"temperature": 1e38}, "temperature"), ({"temperature": 1e-9}, "temperature"), ({"top_p": 0}, "top_p"), ({"top_p": 2}, "top_p"),
    ({"presence_penalty": 2.1}, "presence_penalty"), ({"frequency_penalty": -1e38}, "frequency_penalty"), ({"repeat_penalty": 0}, "repeat_penalty"), ({"min_p": 1.5}, "min_p"),
    ({"typical_p": 0}, "typical_p"), ({"top_k": -2}, "top_k"), ({"repeat_last_n": -2}, "repeat_last_n"), ({"seed": -2}, "seed"), ({"seed": 2**64}, "seed")])
def test_f103_numbers_outside_their_ranges(refused, body, param):
    assert refused(**body)["param"] == param


def test_f103_every_number_at_its_ends_is_finite(smollm2_server):
    _, described = smollm2_server.get("/openapi.json")
    properties = described["paths"]["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    tried = 0
    for name in ("temperature", "top_p", "min_p", "typical_p", "repeat_penalty", "presence_penalty", "frequency_penalty", "top_k", "repeat_last_n", "seed"):
        shape = properties[name]["anyOf"][0]
        for value in (shape.get("minimum"), shape.get("exclusiveMinimum", 0) + 1e-6 if "exclusiveMinimum" in shape else None, shape["maximum"]):
            if value is not None:
                status, answer = smollm2_server.post("/v1/completions", {"prompt": ALPHABET, "max_tokens": 3, "seed": 1, name: value})
                assert status == 200, (name, value, answer)
                tried += 1
    assert tried == 20


@pytest.mark.parametrize("last", [2**31 - 1, 0, -1, 5000])
def test_f99_52_repeat_last_n_is_bounded_by_the_context(complete, last):
    off, on = complete(HA), complete(HA, repeat_penalty=1.9, repeat_last_n=last)
    assert (text(off) == text(on)) == (last == 0)


@pytest.mark.parametrize("stop", ["", [""], ["a", ""], ["x"] * 17, "x" * 1025, "é" * 513, ["a", 1], {"a": 1}])
def test_f104_47_stop_strings_that_cannot_be(refused, stop):
    assert refused(stop=stop)["param"].startswith("stop")


def test_47_no_stop_string_is_said_in_three_ways(complete):
    assert text(complete(stop=None)) == text(complete(stop=[])) == text(complete())


def test_42_nothing_of_a_stop_string_is_sent(smollm2_server, complete):
    assert text(complete()).startswith(" E F G H")
    answer = complete(stop="F G H", max_tokens=20)
    assert text(answer) == " E " and answer["choices"][0]["finish_reason"] == "stop" and answer["choices"][0]["stop_reason"] == "F G H"
    events = smollm2_server.events("/v1/completions", {"prompt": ALPHABET, "temperature": 0, "max_tokens": 20, "stop": ["F G H", "zzz"]})[:-1]
    assert "".join(e["choices"][0]["text"] for e in events) == " E "
    assert complete(stop=["H", "F G H", "G"], max_tokens=20)["choices"][0]["stop_reason"] == "G"


@pytest.mark.parametrize("seed", range(2))
def test_f105_18_pieces_of_a_stream_are_whole_characters(smollm2_server, seed):
    """At this temperature half characters are drawn all the time."""
    body = {"prompt": "歪🦙é", "temperature": 2.5, "seed": seed, "max_tokens": 40}
    _, whole = smollm2_server.post("/v1/completions", body)
    pieces = [e["choices"][0]["text"] for e in smollm2_server.events("/v1/completions", body)[:-1]]
    assert "".join(pieces) == text(whole) and len(pieces) > 10


def test_143_other_alphabets_are_utf8_on_the_wire(smollm2_server):
    import urllib.request

    body = json.dumps({"prompt": "日本語 🦙", "max_tokens": 0, "echo": True}).encode()
    with urllib.request.urlopen(urllib.request.Request(smollm2_server.url + "/v1/completions", body, {"Content-Type": "application/json"})) as answer:
        raw = answer.read()
    assert answer.headers["Content-Type"] == "application/json; charset=utf-8" and "日本語 🦙".encode() in raw


@pytest.mark.parametrize("name", ["\x1b[31m", "é" * 300, "a\nb", "\u202e", "x" * 100_000])
def test_f106_an_error_that_repeats_what_came_is_escaped_and_short(refused, name):
    message = refused(**{name: 1})["message"]
    assert message.isprintable() and len(message) < 500


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "x\x00y", "http://127.0.0.1/m.gguf", "gpt-4o", "SMOLLM2", ""])
def test_f107_a_model_name_is_compared_and_never_a_path(smollm2_server, name):
    for path, body in (("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", {"messages": HELLO}), ("/completion", {"prompt": "x"})):
        status, answer = smollm2_server.post(path, {**body, "model": name})
        assert status == 404 and "smollm2" in answer["error"]["message"] and answer["error"]["message"].isprintable()
    assert smollm2_server.get("/v1/models/gpt-4o")[0] == 404


@pytest.mark.parametrize("part", [
    {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}, {"type": "input_audio"},
    {"type": "file"}, {"type": "video_url"}, {}, {"type": "text"}, {"type": "text", "text": 1}, {"type": "text", "text": "x", "image": "y"}, "x", None, []])
def test_f109_parts_of_messages_that_are_not_text(refused, part):
    error = refused("/v1/chat/completions", messages=[{"role": "user", "content": [{"type": "text", "text": "Look:"}, part]}])
    assert error["param"].startswith("messages[0].content[1]")


@pytest.mark.parametrize("messages, param", [
    ([], "messages"), ("x", "messages"), ({}, "messages"), (None, "messages"), ([1], "messages[0]"), ([{}], "messages[0].role"), ([{"role": "user"}], "messages[0].content"),
    ([{"role": "", "content": "x"}], "messages[0].role"), ([{"role": 1, "content": "x"}], "messages[0].role"), ([{"role": "<|im_end|>", "content": "x"}], "messages[0].role"),
    ([{"role": "user", "content": None}], "messages[0].content"), ([{"role": "user", "content": []}], "messages[0].content"), ([{"role": "user", "content": 1}], "messages[0].content"),
    ([*HELLO, {"role": "user", "content": "x", "foo": 1}], "messages[1].foo"), ([{"role": "user", "content": "x"}] * 20_001, "messages")])
def test_f84_messages_of_a_wrong_shape(refused, messages, param):
    assert refused("/v1/chat/completions", messages=messages)["param"] == param


# ---- fields that do something, and fields that cannot ----------------------------------------


@pytest.mark.parametrize("body", [
    {"temperature": 1.5, "seed": 1, "prompt": HA}, {"logit_bias": {"414": -100}}, {"logit_bias": {"414": False}}, {"logit_bias": [[" E", -100]]}, {"presence_penalty": 2, "prompt": "1 1 1 1 1 1 1 1 1"},
    {"frequency_penalty": 2, "prompt": HA}, {"repeat_penalty": 1.9, "prompt": HA}, {"stop": " F"}, {"max_tokens": 3}, {"echo": True}, {"temperature": 1.5, "seed": 2, "top_k": 1}])
def test_56_57_every_field_of_sampling_has_an_effect(complete, body):
    without = {k: v for k, v in body.items() if k in ("prompt", "max_tokens") and "prompt" in body}
    same = "top_k" in body          # the one candidate that is left is the greedy one
    assert (text(complete(**without)) == text(complete(**body))) == same


@pytest.mark.parametrize("off, on", [({"top_p": 1.0}, {"top_p": 0.05}), ({"min_p": 0.0}, {"min_p": 0.9}), ({"typical_p": 1.0}, {"typical_p": 0.05}), ({"top_k": 0}, {"top_k": 2}),
                                     ({"top_k": -1}, {"top_k": 2})])
def test_56_the_nets_of_sampling_have_an_effect(complete, off, on):
    hot = {"prompt": "Once", "temperature": 2.0, "seed": 11, "max_tokens": 12}
    assert text(complete(**hot, **off)) == text(complete(**hot)) != text(complete(**hot, **on))


def test_57_a_ban_bans_and_a_push_pushes(complete):
    assert text(complete(max_tokens=1)) == " E"
    assert text(complete(max_tokens=1, logit_bias={"414": -100})) != " E"
    assert text(complete(max_tokens=3, logit_bias={"19556": 100})) == "HelloHelloHello"


def test_45_the_end_of_a_turn_ends_and_ignore_eos_goes_on(complete):
    for ignore, n in ((False, 0), (True, 3)):
        answer = complete(max_tokens=3, logit_bias={"2": 100}, ignore_eos=ignore)
        assert text(answer) == "" and answer["usage"]["completion_tokens"] == n and answer["choices"][0]["finish_reason"] == ("length" if n else "stop")


def test_48_a_control_token_is_counted_and_not_shown(complete):
    answer = complete(max_tokens=3, logit_bias={"5": 100})
    assert text(answer) == "" and answer["usage"]["completion_tokens"] == 3


def test_49_temperature_0_is_greedy(complete, llm):
    prompt = llm.tokenize(ALPHABET, special=True)
    for _ in range(6):
        prompt.append(int(llm.logits(prompt)[-1].argmax()))
    assert text(complete(max_tokens=6)) == llm.detokenize(prompt[-6:]) == text(complete(max_tokens=6, top_p=0.1, top_k=50, seed=3))


def test_55_presence_counts_what_was_generated_only(complete):
    """The prompt has 1 nine times; the first of the answer comes all the same, the second not."""
    ones = "1 1 1 1 1 1 1 1 1"
    assert text(complete(ones, max_tokens=2)) == " 1" == text(complete(ones, max_tokens=2, presence_penalty=2))
    assert text(complete(ones)) == " 1 1 1 1" != text(complete(ones, presence_penalty=2))


def test_73_the_same_again_and_its_beginnings_are_as_from_a_fresh_engine(complete, real_model):
    prompt = "The five boxing wizards jump quickly over the lazy dog, and then " * 12
    with Llama(real_model("smollm2"), n_ctx=512, prefix_cache=False) as fresh:
        for part in (prompt, prompt, prompt[:300], prompt[:400] + "they rest.", prompt):
            assert text(complete(part)) == fresh.generate(part, temperature=0, max_tokens=8).text


def test_75_a_follow_up_turn_computes_only_what_is_new(chat):
    messages = [{"role": "user", "content": "Tell me about rivers. " * 40}]
    first = chat(messages, max_tokens=20)
    messages += [{"role": "assistant", "content": text(first)}, {"role": "user", "content": "And lakes?"}]
    second = chat(messages, timings=True)
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= first["usage"]["prompt_tokens"] - 1 and second["timings"]["cache_n"] == cached
    assert second["timings"]["prompt_n"] == second["usage"]["prompt_tokens"] - cached
    for apart in ({"cache_prompt": False}, {"cache_salt": "mine"}):
        anew = chat(messages, **apart)
        assert anew["usage"]["prompt_tokens_details"]["cached_tokens"] == 0 and text(anew) == text(second)
    assert chat(messages, cache_salt="mine")["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert chat(messages, cache_salt="yours")["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize("path, body, field", [
    ("/v1/completions", {"prompt": "a " * 600}, "prompt"), ("/v1/completions", {"prompt": [28] * 513}, "prompt"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a " * 600}]}, "messages")])
def test_a_prompt_that_does_not_fit_is_an_error_with_the_counts(smollm2_server, path, body, field):
    status, answer = smollm2_server.post(path, body)
    error = answer["error"]
    assert status == 400 and error["code"] == "context_length_exceeded" and error["param"] == field
    assert error["n_ctx"] == 512 and error["n_prompt_tokens"] >= 513 and "512" in error["message"]


@pytest.mark.parametrize("body, param", [
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"), ({"tools": [{}], "tool_choice": "auto"}, "tools[0]"), ({"documents": [{"text": "x"}]}, "documents"), ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function"}}, "tool_choice"), ({"functions": [{}]}, "functions"), ({"modalities": ["text", "audio"]}, "modalities"), ({"audio": {}}, "audio"),
    ({"chat_template": "{{ x }}"}, "chat_template"), ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs.enable_thinking"), ({"reasoning_effort": "low"}, "reasoning_effort"),
    ({"web_search_options": {}}, "web_search_options"), ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"), ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"), ({"priority": 2}, "priority"), ({"cache_salt": ""}, "cache_salt"),
    ({"deadline_ms": -1}, "deadline_ms"), ({"response_format": {"type": "xml"}}, "response_format.type"), ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "text", "json_schema": {"schema": {}}}}, "response_format.json_schema"), ({"response_format": "json"}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema.schema")])
def test_what_is_not_supported_is_named(refused, body, param):
    assert refused("/v1/chat/completions", **body)["param"] == param


def test_what_asks_for_nothing_passes(chat):
    harmless = {"tools": [], "tool_choice": "none", "parallel_tool_calls": True, "user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "modalities": ["text"],
                "response_format": {"type": "text"}, "logprobs": False, "top_logprobs": 0, "n": 1, "priority": 0, "deadline_ms": 10**8, "prediction": {"type": "content", "content": "x"}}
    assert text(chat(**harmless)) == text(chat())
    assert text(chat(tools=[{"type": "function", "function": {"name": "f"}}], tool_choice="none")) == text(chat())


def test_roles_and_parts_and_nulls_of_messages(chat):
    as_system = chat([{"role": "system", "content": "Be brief."}, *HELLO])
    assert text(chat([{"role": "developer", "content": "Be brief."}, *HELLO])) == text(as_system)
    parts = [{"type": "text", "text": "Say"}, {"type": "text", "text": "hello."}]
    assert text(chat([{"role": "user", "content": parts}])) == text(chat([{"role": "user", "content": "Say\nhello."}]))
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    replay = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "audio": None}, {"role": "tool", "tool_call_id": "1", "content": "42"}, *HELLO]
    assert chat(replay)["usage"]["completion_tokens"] > 0            # cases 34


def test_a_deadline_that_has_passed_is_a_408(smollm2_server):
    status, answer = smollm2_server.post("/v1/completions", {"prompt": "a " * 450, "deadline_ms": 0, "cache_prompt": False})
    assert status == 408 and answer["error"]["code"] == "deadline"


def test_a_deadline_within_an_answer_ends_it(complete):
    answer = complete("Once upon a time", max_tokens=400, deadline_ms=500, ignore_eos=True)
    assert answer["choices"][0]["finish_reason"] == "length" and answer["choices"][0].get("stop_reason") in ("deadline", None)
    assert (answer["choices"][0].get("stop_reason") == "deadline") == (answer["usage"]["completion_tokens"] < 400)


def test_suffix_needs_a_model_with_tokens_for_it(refused):
    assert "fill-in-the-middle" in refused(suffix="def")["message"]
    assert refused(suffix="x", prompt=["a", "b"])["param"] == "suffix"


def test_what_a_user_writes_is_no_control_token_in_chat(chat):
    """And is one in a completion, where the prompt is the whole text."""
    plain = chat([{"role": "user", "content": "<|im_end|>"}])["usage"]["prompt_tokens"]
    assert plain == chat([{"role": "user", "content": ""}])["usage"]["prompt_tokens"] + 7

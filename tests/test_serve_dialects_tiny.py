"""The dialects over tiny models whose files are made for the case: no template, a template that refuses or reads variables, tokens for
filling in, a weight that is not a number, keys. In process, through the whole app."""
import json

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")

import tiny_gguf
from serving import KEY, OTHER, client, run

from pyengine import Llama
from pyengine.serve import Settings, create_app

SPEC = tiny_gguf.Spec(vocabulary="bpe", n_embd=32, n_ff=(48,), n_head=2, n_head_kv=(1,))
HELLO = [{"role": "user", "content": "hello"}]
READS = "{{ reasoning_effort }}{{ enable_thinking }}{% for m in messages %}{{ m.role }}:{{ m.content }}{% endfor %}"
REFUSES = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{{ messages[0].content }}"


@pytest.fixture()
def ask(tmp_path):
    """ask(requests, template, metadata=, tensors=, **settings): the answers to [(path, body, headers), ...] of one server."""
    import dataclasses

    def asked(requests, template=tiny_gguf.CHATML, metadata=None, tensors=None, **settings):
        path = tmp_path / "tiny.gguf"
        tiny_gguf.write(path, dataclasses.replace(SPEC, chat_template=template), keys=metadata, tensors=tensors)

        async def conversation(app):
            out = []
            async with client(app) as http:
                for where, body, *headers in requests:
                    answer = await http.post(where, json=body, headers=headers[0] if headers else {}) if body is not None else await http.get(where)
                    out.append((answer.status_code, answer.json() if answer.headers["content-type"].startswith("application/json") else answer.text))
            return out

        with Llama(path, n_ctx=256, max_seqs=4) as llm:
            return run(conversation(create_app(llm, Settings(**{"model": "tiny", **settings}))))

    return asked


def chat(**body):
    return "/v1/chat/completions", {"messages": HELLO, "max_tokens": 4, "temperature": 0, **body}


def complete(**body):
    return "/v1/completions", {"prompt": "hello", "max_tokens": 4, "temperature": 0, **body}


def test_36_chat_with_a_model_without_a_template_is_an_error_and_completion_works(ask):
    (status, answer), (applied, _), (fine, _), (props, facts) = ask([chat(), ("/apply-template", {"messages": HELLO}), complete(), ("/props", None)], template="")
    assert status == applied == 400 and "no chat template" in answer["error"]["message"] and fine == props == 200 and facts["chat_template"] == ""


def test_25_a_template_that_refuses_is_a_400_in_its_own_words(ask):
    (status, answer), (fine, _) = ask([chat(messages=[{"role": "system", "content": "x"}, *HELLO]), chat()], template=REFUSES)
    assert status == 400 and "System role not supported" in answer["error"]["message"] and fine == 200


@pytest.mark.parametrize("template", ["{{ messages", "{% for i in range(10**9) %}x{% endfor %}", "{{ ''.__class__.__mro__ }}", "{{ 'A' * 10**9 }}"])
def test_a_template_of_the_file_that_is_broken_or_hostile_is_a_400(ask, template):
    (status, answer), (fine, _) = ask([chat(), complete()], template=template)
    assert status == 400 and fine == 200, answer


def test_a_template_of_the_file_that_is_no_text_hinders_nothing_else(ask):
    for template, key in (("", "tokenizer.chat_template"), (tiny_gguf.CHATML, "tokenizer.chat_template.tool_use")):
        (status, answer), (tools, refused), (props, _), (fine, _) = ask([chat(), chat(tools=[TOOL]), ("/props", None), complete()], template=template, metadata={key: 5})
        assert (props, fine, tools) == (200, 200, 400) and f"key '{key}'" in refused["error"]["message"] and "expected a string" in refused["error"]["message"]
        assert status == (200 if template else 400), answer


def test_f83_a_template_from_the_client_is_refused(ask):
    for body in ({"chat_template": "x"}, {"chat_template_kwargs": {"chat_template": "x"}}, {"chat_template_kwargs": {"messages": []}}):
        ((status, answer),) = ask([chat(**body)])
        assert status == 400 and answer["error"]["param"].startswith("chat_template")


def test_variables_that_a_template_reads(ask):
    given = [("/tokenize", {"content": text}) for text in ("highTrueuser:hello", "TrueFalseuser:hello")]
    answers = ask([chat(reasoning_effort="high", chat_template_kwargs={"enable_thinking": True}), chat(chat_template_kwargs={"enable_thinking": True, "thinking": 1}), *given], template=READS)
    assert answers[0][0] == 200 and answers[0][1]["usage"]["prompt_tokens"] == len(answers[2][1]["tokens"])
    assert answers[1][0] == 400 and answers[1][1]["error"]["param"] == "chat_template_kwargs.thinking"
    (agree, _), (status, answer) = ask([chat(reasoning_effort="high", chat_template_kwargs={"reasoning_effort": said}) for said in ("high", "low")], template=READS)
    assert agree == 200 and status == 400 and answer["error"]["param"] == "chat_template_kwargs.reasoning_effort"


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
LISTS = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}({{ c.function.arguments | tojson }}){% endfor %}{% endfor %}"


def test_tools_are_written_out_or_refused(ask):
    def applied(**body):
        return "/apply-template", {"messages": HELLO, **body}

    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": \"<é>\"}"}}]}
    (_, shown), (_, hidden), (_, replay), (auto, a), (none, b), *refused = ask([
        applied(tools=[TOOL]), applied(), applied(messages=[*HELLO, call]), chat(tools=[TOOL], tool_choice="auto"), chat(tools=[TOOL], tool_choice="none"),
        chat(tools=[TOOL], tool_choice="required"), chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "f"}}),
        chat(tools=[{"type": "web_search"}]), chat(tools=[{"type": "function", "function": {}}])], template=LISTS)
    assert shown["prompt"] == "[f]hello" and hidden["prompt"] == "hello" and replay["prompt"] == 'hello({"x": "<é>"})'
    assert auto == none == 200 and a["usage"]["prompt_tokens"] > b["usage"]["prompt_tokens"]
    assert [(s, r["error"]["param"]) for s, r in refused] == [(400, "tool_choice"), (400, "tool_choice"), (400, "tools[0]"), (400, "tools[0]")]
    assert 'found {"type": "web_search"}' in refused[2][1]["error"]["message"] and 'found "required"' in refused[0][1]["error"]["message"]
    ((status, answer),) = ask([chat(tools=[TOOL])])          # chatml does not know of tools
    assert status == 400 and answer["error"]["param"] == "tools" and "does not read" in answer["error"]["message"]


def test_37_the_tool_use_template_where_there_are_tools(ask):
    named = {"tokenizer.chat_template.tool_use": "with {{ tools[0].function.name }}", "tokenizer.chat_templates": ["default", "tool_use"]}
    answers = ask([("/apply-template", {"messages": HELLO, **more}) for more in ({}, {"tools": [TOOL]}, {"tools": []})] + [("/props", None)],
                  template="without", metadata=named)
    assert [body["prompt"] for _, body in answers[:3]] == ["without", "with f", "without"]
    assert answers[3][1]["chat_templates"] == ["default", "tool_use"] and answers[3][1]["chat_template_tool_use"].startswith("with ")


def test_continuing_the_last_message(ask):
    talk = [*HELLO, {"role": "assistant", "content": "It is "}]
    (_, text), (_, ended), (status, answer), (refused, error) = ask([
        ("/apply-template", {"messages": talk, "continue_final_message": True}), ("/apply-template", {"messages": talk, "add_generation_prompt": False}),
        chat(messages=talk, continue_final_message=True), chat(messages=[*talk, {"role": "assistant", "tool_calls": [{}]}], continue_final_message=True)])
    assert text["prompt"].endswith("<|im_start|>assistant\nIt is ") and ended["prompt"] == text["prompt"] + "<|im_end|>\n"
    assert status == 200 and answer["usage"]["prompt_tokens"] > 10 and refused == 400 and error["error"]["param"] == "messages[2].content"


def test_60_when_no_token_is_left_that_request_fails_and_others_do_not(ask):
    banned = {str(i): -100 for i in range(SPEC.n_vocab)}
    (status, answer), (fine, _) = ask([complete(logit_bias=banned), complete()])
    assert status == 400 and answer["error"]["param"] == "logit_bias" and fine == 200


def test_60_logits_that_are_no_numbers_are_an_error_of_the_request(ask):
    import numpy

    (status, answer), (tokens, _), (health, _) = ask([complete(), ("/tokenize", {"content": "x"}), ("/health", None)],
                                                     tensors={"output_norm.weight": numpy.full(32, numpy.nan, numpy.float32)})
    assert status == 500 and "internal" in answer["error"]["message"] and tokens == health == 200


def test_suffix_is_filled_in_by_a_model_with_tokens_for_it(ask):
    keys = {f"tokenizer.ggml.fim_{name}_token_id": i for i, name in enumerate(("pre", "suf", "mid"), 10)}
    (status, filled), (_, tokens), (_, tail), (_, direct) = ask([
        complete(prompt="ab", suffix="cd", echo=True), ("/tokenize", {"content": "ab"}), ("/tokenize", {"content": "cd"}), complete(prompt=[10])], metadata=keys)
    assert status == 200 and filled["usage"]["prompt_tokens"] == 3 + len(tokens["tokens"]) + len(tail["tokens"])
    ids = [10, *tokens["tokens"], 11, *tail["tokens"], 12]
    ((_, same),) = ask([complete(prompt=ids)], metadata=keys)
    assert filled["choices"][0]["text"] == "ab" + same["choices"][0]["text"] and direct["usage"]["prompt_tokens"] == 1


def test_a_stream_of_several_answers(ask):
    (_, whole), (_, events) = ask([chat(n=3, temperature=1.5, seed=2), chat(n=3, temperature=1.5, seed=2, stream=True)])
    texts, roles, ends = [""] * 3, [0] * 3, [None] * 3
    lines = [line.removeprefix("data: ") for line in events.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    for line in lines:
        (choice,) = json.loads(line)["choices"]
        i = choice["index"]
        roles[i] += "role" in choice["delta"]
        assert roles[i] == 1 and ends[i] is None
        texts[i] += choice["delta"].get("content", "")
        ends[i] = choice["finish_reason"]
    assert texts == [c["message"]["content"] for c in whole["choices"]] and ends == [c["finish_reason"] for c in whole["choices"]]


def test_f126_keys_do_not_see_each_others_prompts(ask):
    from pyengine.serve.guard import Keys, new_key

    keys = Keys([new_key(KEY, "alice"), new_key(OTHER, "bob")])
    long = {"prompt": "the same long prompt of two people " * 6, "max_tokens": 1, "temperature": 0}
    alice, bob = ({"Authorization": f"Bearer {k}"} for k in (KEY, OTHER))
    answers = ask([("/v1/completions", long, alice), ("/v1/completions", long, bob), ("/v1/completions", long, alice), ("/v1/completions", {**long, "cache_salt": "x"}, alice),
                   ("/completion", {"prompt": long["prompt"], "n_predict": 1}, bob), ("/v1/completions", long)], keys=keys)
    assert [status for status, _ in answers] == [200] * 5 + [401]
    cached = [a["usage"]["prompt_tokens_details"]["cached_tokens"] for _, a in answers[:4]] + [answers[4][1]["tokens_cached"]]
    assert [c > 0 for c in cached] == [False, False, True, False, True]
    assert len({a["choices"][0]["text"] for _, a in answers[:4]}) == 1


def test_a_prompt_text_is_in_no_log(ask, caplog):
    with caplog.at_level("DEBUG"):
        ask([complete(prompt="xyzzy plugh", logit_bias={"99999": 1}), chat(messages=[{"role": "user", "content": "xyzzy plugh"}], foo=1), complete(prompt="xyzzy plugh")])
    assert "plugh" not in caplog.text


# ---- routes ------------------------------------------------------------------------------


def test_refusals_of_a_route_have_its_dialects_form(ask):
    native, openai, missing = ask([("/completion", None), ("/v1/completions", None), ("/completion/x", None)])
    assert native[0] == openai[0] == 405 and missing[0] == 404
    assert native[1]["error"]["code"] == 405 and openai[1]["error"]["code"] is None and missing[1]["error"]["code"] is None


def test_no_redirect_names_a_host_or_a_scheme(ask):
    """Behind a proxy that does TLS it would lead to http://, key and all."""
    (status, body), = ask([("/v1/completions/", None)])
    assert status == 404 and body["error"]["message"] == "no route '/v1/completions/'"


def test_a_models_name_may_have_a_slash(ask):
    listed, one, other = ask([("/v1/models", None), ("/v1/models/org%2Fname:8b", None), ("/v1/models/org/other", None)], model="org/name:8b")
    assert listed[1]["data"][0]["id"] == "org/name:8b" and one == (200, listed[1]["data"][0])
    assert other[0] == 404 and other[1]["error"]["code"] == "model_not_found"


def test_messages_say_what_is_wrong(ask):
    late, nothing, parts = ask([complete(deadline_ms=0), chat(messages=[]), chat(messages=[{"role": "user", "content": []}])])
    assert late[0] == 408 and late[1]["error"]["message"] == "the deadline of 0 s passed before the first token"
    assert nothing[1]["error"]["message"] == "messages: found an empty list, expected a list that is not empty"
    assert parts[1]["error"]["message"] == "messages[0].content: found an empty list, expected a list that is not empty"

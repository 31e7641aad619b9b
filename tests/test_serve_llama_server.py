"""The llama-server dialect against a server process over SmolLM2: /completion, tokens, templates, what the server says of itself."""
import threading
import time

import pytest

pytest.importorskip("starlette")

from pyengine import Llama
from pyengine.serve import llama_server

ALPHABET = "Here is the English alphabet: A B C D"


@pytest.fixture(scope="module")
def llm(real_model):
    with Llama(real_model("smollm2"), n_ctx=512) as llm:
        yield llm


@pytest.fixture()
def complete(smollm2_server):
    def ask(prompt=ALPHABET, **body):
        status, answer = smollm2_server.post("/completion", {"prompt": prompt, "temperature": 0, "n_predict": 8, **body})
        assert status == 200, answer
        return answer

    return ask


@pytest.fixture()
def post(smollm2_server):
    def ask(path, status=200, **body):
        got, answer = smollm2_server.post(path, body)
        assert got == status, answer
        return answer

    return ask


def test_a_completion_has_llama_servers_shape_and_the_bytes_of_the_python_api(complete, llm):
    answer = complete(temperature=0.8, seed=3)
    alone = llm.generate(ALPHABET, seed=3, max_tokens=8)          # the defaults are the same: llama-server's
    assert set(answer) == {"index", "content", "tokens", "id_slot", "stop", "model", "tokens_predicted", "tokens_evaluated", "generation_settings", "prompt",
                           "has_new_line", "truncated", "stop_type", "stopping_word", "tokens_cached", "timings"}
    assert answer["content"] == alone.text and answer["tokens"] == [] and answer["tokens_predicted"] == 8 and answer["truncated"] is False
    assert answer["stop"] is True and answer["stop_type"] == "limit" and answer["prompt"] == ALPHABET and answer["model"] == "smollm2"
    assert answer["tokens_evaluated"] == alone.usage["prompt_tokens"]
    t = answer["timings"]
    assert set(t) >= {"cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second", "predicted_n", "predicted_ms", "predicted_per_token_ms", "predicted_per_second"}
    assert t["cache_n"] + t["prompt_n"] == answer["tokens_evaluated"] and t["cache_n"] == answer["tokens_cached"]


def test_settings_are_what_was_used_and_repeat_the_answer(complete):
    first = complete("Once", temperature=1.2, top_k=30, logit_bias=[[414, False], [" F", 2]])
    used = first["generation_settings"]
    assert used["temperature"] == 1.2 and used["top_k"] == 30 and used["top_p"] == 0.95 and used["min_p"] == 0.05 and used["n_predict"] == 8
    assert [414, False] in used["logit_bias"] and used["seed"] >= 0 and used["samplers"] == list(llama_server.CHAIN)
    known = {k: v for k, v in used.items() if k in llama_server.COMPLETION.fields and k not in ("n_probs", "grammar", "temperature", "n_predict")}
    assert complete("Once", temperature=1.2, **known)["content"] == first["content"]


@pytest.mark.parametrize("body, stop_type, word", [
    ({}, "limit", ""), ({"stop": ["F G", "zz"]}, "word", "F G"), ({"logit_bias": [[2, 100]]}, "eos", ""), ({"n_predict": 0}, "limit", "")])
def test_why_it_stopped(complete, body, stop_type, word):
    answer = complete(**body)
    assert (answer["stop_type"], answer["stopping_word"]) == (stop_type, word)
    assert "F" not in answer["content"] or not word


def test_a_stream_is_the_answer_in_pieces(smollm2_server, complete):
    whole = complete(n_probs=2, return_tokens=True, n_predict=12, stop=["J K"])
    events = smollm2_server.events("/completion", {"prompt": ALPHABET, "temperature": 0, "n_predict": 12, "n_probs": 2, "stop": ["J K"]})
    last = events.pop()
    assert last["stop"] is True and last["content"] == "" and last["stop_type"] == "word" and last["stopping_word"] == "J K"
    assert all(e["stop"] is False and set(e) >= {"index", "content", "tokens", "id_slot", "tokens_predicted", "tokens_evaluated"} for e in events)
    assert "".join(e["content"] for e in events) == whole["content"] == " E F G H I "
    assert [t for e in events for t in e["tokens"]] == whole["tokens"]
    assert [p for e in events for p in e["completion_probabilities"]] == whole["completion_probabilities"]
    assert events[-1]["tokens_predicted"] == whole["tokens_predicted"] == last["tokens_predicted"]
    first = whole["completion_probabilities"][0]
    assert set(first) == {"id", "token", "bytes", "logprob", "top_logprobs"} and len(first["top_logprobs"]) == 2 and first["id"] == 414


@pytest.mark.parametrize("prompt, tokens", [
    ("Hello", [19556]), ([19556], [19556]), (["Hello", 28, " A"], [19556, 28, 330]), ([19556, " A"], [19556, 330]), ({"prompt_string": "Hello"}, [19556]),
    ("<|im_end|>", [2]), ({"prompt_string": "Hello", "multimodal_data": []}, [19556])])
def test_forms_of_one_prompt(complete, llm, prompt, tokens):
    answer = complete(prompt)
    assert answer["tokens_evaluated"] == len(tokens) and answer["content"] == llm.generate(tokens, temperature=0, max_tokens=8).text
    assert answer["prompt"] == llm.detokenize(tokens, special=True)


def test_several_prompts_and_answers_are_a_list(complete, smollm2_server, llm):
    answers = complete(["Hello", [19556, 28], ["A", 28], {"prompt_string": "x"}], n=2)
    assert [a["index"] for a in answers] == list(range(8)) and answers[0]["content"] == answers[1]["content"] == complete("Hello")["content"]
    assert isinstance(complete(["Hello"]), list) and isinstance(complete([19556]), dict)
    texts = {}
    for e in smollm2_server.events("/completion", {"prompt": ["Hello", "World"], "temperature": 0, "n_predict": 5}):
        texts[e["index"]] = texts.get(e["index"], "") + e["content"]
    assert texts == {i: a["content"] for i, a in enumerate(complete(["Hello", "World"], n_predict=5))}


def test_samplers_that_are_left_out_are_off(complete):
    hot = {"prompt": "Once", "temperature": 1.7, "seed": 4, "n_predict": 12}
    assert complete(**hot, samplers=["temperature"])["content"] == complete(**hot, top_k=0, top_p=1.0, min_p=0.0)["content"]
    assert complete(**hot, samplers="edskypmxt")["content"] == complete(**hot)["content"] != complete(**hot, samplers=["temperature"])["content"]
    assert complete(**hot, samplers=["top_k"])["content"] == complete(**{**hot, "temperature": 1.0}, top_p=1.0, min_p=0.0)["content"]


@pytest.mark.parametrize("body, param", [
    ({"samplers": ["temperature", "top_k"]}, "samplers"), ({"samplers": ["mirostat"]}, "samplers"), ({"dry_multiplier": 0.8}, "dry_multiplier"), ({"mirostat": 2}, "mirostat"),
    ({"xtc_probability": 0.1}, "xtc_probability"), ({"top_n_sigma": 1.0}, "top_n_sigma"), ({"dynatemp_range": 0.5}, "dynatemp_range"), ({"lora": [{"id": 0, "scale": 1}]}, "lora"),
    ({"image_data": [{"data": "x"}]}, "image_data"), ({"post_sampling_probs": True}, "post_sampling_probs"), ({"t_max_predict_ms": 100}, "t_max_predict_ms"), ({"foo": 1}, "foo"),
    ({"n_predict": -2}, "n_predict"), ({"n_predict": True}, "n_predict"), ({"n_probs": 21}, "n_probs"), ({"n_cmpl": 17}, "n_cmpl"), ({"prompt": []}, "prompt"), ({"prompt": [[]]}, "prompt[0]"),
    ({"prompt": {"prompt_string": "x", "multimodal_data": ["eA=="]}}, "prompt.multimodal_data"), ({"prompt": [-1]}, "prompt"), ({"prompt": [99999, "x"]}, "prompt"), ({"n_predict": 4, "max_tokens": 5}, "max_tokens"),
    ({"stop": [""]}, "stop[0]"), ({"response_fields": "x"}, "response_fields"), ({"repeat_last_n": -2}, "repeat_last_n")])
def test_f90_f103_what_is_wrong_or_not_supported_is_named(post, body, param):
    error = post("/completion", 400, **{"prompt": "x", "n_predict": 2, **body})["error"]
    assert error["code"] == 400 and error["type"] == "invalid_request_error" and error["param"].startswith(param), error


@pytest.mark.parametrize("body, param", [({"n_discard": -1}, "n_discard"), ({"n_discard": 2**31 - 1}, "n_discard"), ({"n_keep": -2}, "n_keep")])
def test_f102_68_the_context_is_never_shifted(post, complete, body, param):
    assert post("/completion", 400, prompt="x", **body)["error"]["param"] == param
    answer = complete("a " * 500, n_predict=100, n_keep=2**31 - 1, n_discard=0, ignore_eos=True)
    assert answer["stop_type"] == "limit" and answer["tokens_evaluated"] + answer["tokens_predicted"] == 512 and answer["truncated"] is False


def test_what_switches_off_what_we_have_not_passes(complete):
    off = {"dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_sequence_breakers": ["\n"], "mirostat": 0, "mirostat_tau": 5, "xtc_probability": 0.0, "xtc_threshold": 0.1,
           "top_n_sigma": -1.0, "dynatemp_range": 0, "dynatemp_exponent": 1, "n_keep": 0, "n_discard": 0, "n_indent": 0, "min_keep": 0, "id_slot": -1, "image_data": [], "lora": [],
           "t_max_predict_ms": 0, "post_sampling_probs": False, "return_progress": False, "n_cache_reuse": 0, "cache_prompt": True, "verbose": False, "timings_per_token": True}
    assert complete(**off)["content"] == complete()["content"]


def test_a_prompt_that_does_not_fit(post):
    error = post("/completion", 400, prompt="a " * 600)["error"]
    assert error["type"] == "exceed_context_size_error" and error["n_ctx"] == 512 and error["n_prompt_tokens"] > 512 and error["param"] == "prompt"


def test_response_fields(complete):
    answer = complete(response_fields=["content", "timings/predicted_n", "nothing", "generation_settings/seed/x"])
    assert set(answer) == {"content", "timings/predicted_n"} and answer["timings/predicted_n"] == 8


@pytest.mark.parametrize("body, tokens", [
    ({"content": "<|im_end|>"}, [2]), ({"content": "<|im_end|>", "parse_special": False}, [44, 108, 306, 79, 486, 108, 46]), ({"content": ""}, []),
    ({"content": "Hello", "add_special": True}, [19556]), ({"content": ["Hello", 28, "<|im_end|>"]}, [19556, 28, 2]), ({"content": []}, [])])
def test_40_tokenize(post, body, tokens):
    assert post("/tokenize", **body) == {"tokens": tokens}


def test_tokenize_with_pieces_and_back(post):
    text = "Hello 歪 🦙"
    pieces = post("/tokenize", content=text, with_pieces=True)["tokens"]
    raw = b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces)
    assert raw.decode() == text and any(isinstance(p["piece"], list) for p in pieces)
    assert post("/detokenize", tokens=[p["id"] for p in pieces]) == {"content": text}
    assert post("/detokenize", tokens=[2, 19556])["content"] == "<|im_end|>Hello" and post("/detokenize", tokens=[]) == {"content": ""}


@pytest.mark.parametrize("path, body, param", [
    ("/tokenize", {}, "content"), ("/tokenize", {"content": 1}, "content"), ("/tokenize", {"content": [99999], "with_pieces": True}, "content"), ("/tokenize", {"content": "x", "add_bos": True}, "add_bos"),
    ("/detokenize", {"tokens": [-1]}, "tokens[0]"), ("/detokenize", {"tokens": [99999]}, "tokens"), ("/detokenize", {"tokens": "x"}, "tokens"),
    ("/apply-template", {"messages": []}, "messages"), ("/apply-template", {"messages": [{"role": "user"}]}, "messages[0].content"), ("/apply-template", {"messages": [{"role": "user", "content": "x"}], "tools": [{}]}, "tools[0]")])
def test_f84_f100_tokens_and_messages_that_cannot_be(post, path, body, param):
    assert post(path, 400, **body)["error"]["param"] == param


def test_apply_template_is_what_chat_computes(post, llm):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    prompt = post("/apply-template", messages=messages)["prompt"]
    assert prompt == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert post("/tokenize", content=prompt)["tokens"] == llm.chat_tokens(messages)
    assert not post("/apply-template", messages=messages, add_generation_prompt=False)["prompt"].endswith("assistant\n")


def test_64_67_props_say_the_context_that_each_request_has(smollm2_server, complete):
    status, props = smollm2_server.get("/props")
    assert status == 200 and props["default_generation_settings"]["n_ctx"] == 512 and props["total_slots"] == 8
    assert "<|im_start|>" in props["chat_template"] and props["bos_token"] == "<|im_start|>" and props["eos_token"] == "<|im_end|>"
    defaults = props["default_generation_settings"]["params"]
    assert defaults["temperature"] == 0.8 and defaults["top_k"] == 40 and defaults["top_p"] == 0.95 and defaults["min_p"] == 0.05
    assert complete("a " * 400)["tokens_evaluated"] > 390          # more than 512 / 8
    assert "/" not in props["model_path"]


def test_f130_slots_show_what_runs_and_nothing_of_what_it_says(smollm2_server):
    import json

    secret = "xyzzy plugh"
    idle = smollm2_server.get("/slots")[1]
    assert len(idle) == 8 and all(set(s) == {"id", "n_ctx", "is_processing"} for s in idle)
    asked = threading.Thread(target=smollm2_server.post, args=("/completion", {"prompt": secret, "n_predict": 150, "ignore_eos": True}))
    asked.start()
    busy = []
    while asked.is_alive() and not busy:
        slots = smollm2_server.get("/slots")[1]
        assert secret not in json.dumps(slots) and "plugh" not in json.dumps(slots)
        busy = [s for s in slots if s["is_processing"]]
        time.sleep(0.005)
    assert busy and busy[0]["n_prompt_tokens"] >= 4 and set(busy[0]) == {"id", "n_ctx", "is_processing", "n_prompt_tokens", "n_prompt_tokens_cache", "n_decoded", "n_remain"}
    asked.join()
    assert not any("xyzzy" in line for line in smollm2_server.lines)


@pytest.mark.parametrize("method, path", [("GET", "/completion"), ("POST", "/props"), ("POST", "/slots"), ("GET", "/tokenize")])
def test_other_methods_are_405(smollm2_server, method, path):
    status, answer = smollm2_server.get(path) if method == "GET" else smollm2_server.post(path, {})
    assert status == 405 and "error" in answer

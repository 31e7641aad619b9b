"""compat.llama_cpp on a real model: response objects, streams, parameters, errors, token-level calls, states.

KEYS are what llama-cpp-python 0.3.36 answers on the same model, in its order.
"""
import gc
import json
import pickle

import numpy as np
import pytest

import pyengine
import pyengine.compat.llama_cpp as llama_cpp
from pyengine.compat.llama_cpp import Llama, LlamaGrammar, LogitsProcessorList, MinTokensLogitsProcessor, StoppingCriteriaList
from pyengine.errors import ContextError, GrammarError, RequestError, SessionError, UnsupportedError

PROMPT = "The capital of France is"
TALK = [{"role": "user", "content": "Say hi."}]
COMPLETION = ["id", "object", "created", "model", "choices", "usage"]
CHAT_CHUNK = ["id", "model", "created", "object", "choices"]
TOOL_CHUNK = ["id", "object", "created", "model", "choices"]
DETAIL = {"type": "function", "function": {"name": "UserDetail", "parameters": {
    "type": "object", "title": "UserDetail", "properties": {"name": {"title": "Name", "type": "string"}, "age": {"title": "Age", "type": "integer"}},
    "required": ["name", "age"]}}}
FORCED = {"type": "function", "function": {"name": "UserDetail"}}
EXTRACT = [{"role": "user", "content": "Extract Jason is 25 years old"}]


@pytest.fixture(scope="module")
def llm(real_model):
    llm = Llama(str(real_model("smollm2")), verbose=False)
    yield llm
    llm.close()


def greedy(llm, prompt=PROMPT, n=8, **more):
    return llm.create_completion(prompt, max_tokens=n, temperature=0, **more)


# ---- completions -----------------------------------------------------------------


def test_completion_object(llm):
    r = greedy(llm)
    assert list(r) == COMPLETION and r["object"] == "text_completion" and r["id"].startswith("cmpl-") and len(r["id"]) == 41
    assert isinstance(r["created"], int) and r["model"] == llm.model_path
    (choice,) = r["choices"]
    assert list(choice) == ["text", "index", "logprobs", "finish_reason"] and choice["finish_reason"] == "length" and choice["logprobs"] is None
    assert list(r["usage"].items()) == [("prompt_tokens", 5), ("completion_tokens", 8), ("total_tokens", 13)]
    assert choice["text"].startswith(" Paris.") and greedy(llm, model="mine")["model"] == "mine"
    with pyengine.Llama(llm.model_path, n_ctx=64) as ours:
        assert ours.generate(PROMPT, max_tokens=8, temperature=0).text == choice["text"]


def test_stream_is_the_whole_in_pieces(llm):
    whole = greedy(llm, n=12)["choices"][0]
    chunks = list(greedy(llm, n=12, stream=True))
    assert all(list(c) == COMPLETION[:-1] and list(c["choices"][0]) == ["text", "index", "logprobs", "finish_reason"] for c in chunks)
    assert "".join(c["choices"][0]["text"] for c in chunks) == whole["text"] and len({c["id"] for c in chunks}) == 1
    assert [c["choices"][0]["finish_reason"] for c in chunks[-2:]] == [None, "length"] and chunks[-1]["choices"][0]["text"] == ""


def test_stop_and_echo(llm):
    r = greedy(llm, "1, 2, 3, 4,", 20, stop=[" 7"], echo=True)["choices"][0]
    assert r["text"] == "1, 2, 3, 4, 5, 6," and r["finish_reason"] == "stop"
    chunks = list(greedy(llm, "1, 2, 3, 4,", 20, stop=" 7", echo=True, stream=True))
    assert "".join(c["choices"][0]["text"] for c in chunks) == r["text"] and chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert greedy(llm, n=2, stop=[])["choices"][0]["text"] == greedy(llm, n=2, stop=None)["choices"][0]["text"]


def test_logprobs(llm):
    r = greedy(llm, logprobs=2)["choices"][0]
    columns = r["logprobs"]
    assert list(columns) == ["tokens", "text_offset", "token_logprobs", "top_logprobs"]
    assert columns["tokens"][:2] == [" Paris", "."] and columns["text_offset"][:2] == [len(PROMPT), len(PROMPT) + 6]
    assert all(type(p) is float and p == max(top.values()) and len(top) == 2 for p, top in zip(columns["token_logprobs"], columns["top_logprobs"]))
    json.dumps(columns)
    pieces = [c["choices"][0]["logprobs"] for c in greedy(llm, logprobs=2, stream=True)]
    assert pieces[-1] is None
    assert {k: sum((p[k] for p in pieces[:-1]), []) for k in columns} == columns


def test_logprobs_of_the_prompt_belong_to_their_tokens(llm):
    """There they are those of the token before."""
    columns = greedy(llm, n=2, logprobs=1, echo=True)["choices"][0]["logprobs"]
    assert columns["tokens"][:5] == ["The", " capital", " of", " France", " is"] and columns["text_offset"][:4] == [0, 3, 11, 14]
    assert columns["token_logprobs"][0] is None and columns["top_logprobs"][0] is None
    ids = llm.tokenize(PROMPT.encode())
    expected = Llama.logits_to_logprobs(llm._llm.logits(ids))
    for i in range(1, 5):
        assert columns["token_logprobs"][i] == pytest.approx(float(expected[i - 1][ids[i]]), abs=1e-4)
        assert max(columns["top_logprobs"][i].values()) == pytest.approx(float(expected[i - 1].max()), abs=1e-4)
        assert columns["tokens"][i] in columns["top_logprobs"][i]


def test_several_prompts_and_ids(llm):
    r = greedy(llm, [PROMPT, "1, 2, 3,"], 4)
    assert [c["index"] for c in r["choices"]] == [0, 1] and r["usage"]["completion_tokens"] == 8
    assert r["choices"][0]["text"] == greedy(llm, n=4)["choices"][0]["text"]
    assert greedy(llm, llm.tokenize(PROMPT.encode()), 4)["choices"][0]["text"] == r["choices"][0]["text"]
    streamed = ["", ""]
    for chunk in greedy(llm, [PROMPT, "1, 2, 3,"], 4, stream=True):
        streamed[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert streamed == [c["text"] for c in r["choices"]]


def test_seeds(llm):
    def text(**seed):
        return llm(PROMPT, max_tokens=12, temperature=1.0, **seed)["choices"][0]["text"]

    assert text(seed=7) == text(seed=7) != text(seed=8)
    llm.set_seed(7)
    assert text() == text(seed=7)
    llm.set_seed(llama_cpp.LLAMA_DEFAULT_SEED)
    assert len({text() for _ in range(4)}) > 1


def test_max_tokens_to_the_end_of_the_context(llm):
    prompt = [100] * 500
    for n in (None, 0, -1, 1000):
        r = llm.create_completion(prompt, max_tokens=n, temperature=0, logit_bias={2: -100, 0: -100})
        assert r["usage"]["completion_tokens"] == 12 and r["choices"][0]["finish_reason"] == "length"
    for n in (512, 513):
        with pytest.raises(ValueError, match=rf"^Requested tokens \({n}\) exceed context window of 512$") as e:
            llm.create_completion([100] * n)
        assert isinstance(e.value, ContextError)


def test_bias_and_processors_together(llm):
    """There the one replaced the other by None."""
    seen = []

    def no_paris(ids, scores):
        seen.append((ids.dtype, len(ids), scores.shape, scores.dtype))
        scores[llm.tokenize(b" Paris")[0]] = -np.inf
        return scores

    the = llm.tokenize(b" the")[0]
    r = greedy(llm, n=3, logit_bias={the: -100.0}, logits_processor=LogitsProcessorList([no_paris]))["choices"][0]["text"]
    assert not r.startswith((" Paris", " the")) and seen[0] == (np.dtype(np.intc), 5, (49152,), np.dtype(np.float32)) and seen[-1][1] == 7
    eos = llm.token_eos()
    forced = greedy(llm, n=9, logit_bias={eos: 100.0})
    assert forced["usage"]["completion_tokens"] == 0 and forced["choices"][0]["finish_reason"] == "stop"
    least = greedy(llm, n=9, logit_bias={eos: 50.0}, logits_processor=LogitsProcessorList([MinTokensLogitsProcessor(4, eos)]))
    assert least["usage"]["completion_tokens"] == 4


def test_stopping_criteria(llm):
    lengths = []

    def after(ids, logits):
        lengths.append((len(ids), int(np.argmax(logits))))
        return len(ids) >= 8

    for stream in (False, True):
        lengths.clear()
        r = greedy(llm, n=50, stopping_criteria=StoppingCriteriaList([after]), stream=stream)
        reason = list(r)[-1]["choices"][0]["finish_reason"] if stream else r["choices"][0]["finish_reason"]
        assert reason == "stop" and [n for n, _ in lengths] == [5, 6, 7, 8]
    assert lengths[0][1] == llm.tokenize(b" Paris")[0]


def test_an_abandoned_stream_ends_its_request(llm):
    before = llm._llm.stats()["running"]
    for steps in (0, 1):
        stream = greedy(llm, n=400, stream=True)
        for _ in range(steps):
            next(stream)
        del stream
        gc.collect()
    assert greedy(llm, n=1)["usage"]["completion_tokens"] == 1
    assert llm._llm.stats()["running"] == before == 0


def test_what_cannot_be_honoured_says_so(llm, recwarn):
    with pytest.raises(UnsupportedError, match="mirostat_mode: found 2"):
        greedy(llm, mirostat_mode=2)
    with pytest.raises(RequestError, match="suffix: this model's vocabulary"):
        greedy(llm, suffix="}")
    with pytest.raises(RequestError, match="grammar: found str"):
        greedy(llm, grammar="root ::= \"a\"")
    with pytest.raises(RuntimeError, match="^Llama model must be created with embedding=True to call this method$"):
        llm.create_embedding("Hello")
    with pytest.raises(AttributeError, match="no llama.cpp behind"):
        llm.ctx
    with pytest.raises(AttributeError, match="llama_decode.*not offered"):
        llama_cpp.llama_decode
    with pytest.raises(RequestError, match="bytes"):
        greedy(llm, b"bytes")
    llama_cpp.llama.options._said.clear()
    greedy(llm, n=1, tfs_z=0.5), greedy(llm, n=1, tfs_z=0.5)
    assert [str(w.message)[:5] for w in recwarn if w.category is RuntimeWarning] == ["tfs_z"]


# ---- chats -----------------------------------------------------------------------


def test_chat_object(llm):
    r = llm.create_chat_completion(TALK, max_tokens=4, temperature=0, logprobs=True, top_logprobs=2)
    assert list(r) == COMPLETION and r["object"] == "chat.completion" and r["id"].startswith("chatcmpl-") and llm.chat_format == "chat_template.default"
    (choice,) = r["choices"]
    assert list(choice) == ["index", "message", "logprobs", "finish_reason"] and list(choice["message"]) == ["role", "content"]
    assert list(choice["logprobs"]) == ["content", "refusal"] and len(choice["logprobs"]["content"]) == 4
    entry = choice["logprobs"]["content"][0]
    assert list(entry) == ["token", "bytes", "logprob", "top_logprobs"] and list(entry["top_logprobs"][0]) == ["token", "logprob", "bytes"]
    assert len(entry["top_logprobs"]) == 2 and entry["logprob"] == entry["top_logprobs"][0]["logprob"]
    assert llm._llm.chat(TALK, max_tokens=4, temperature=0).text == choice["message"]["content"]


def test_chat_stream(llm):
    whole = llm.create_chat_completion(TALK, max_tokens=6, temperature=0)["choices"][0]["message"]["content"]
    chunks = list(llm.create_chat_completion(TALK, max_tokens=6, temperature=0, stream=True))
    assert all(list(c) == CHAT_CHUNK and c["object"] == "chat.completion.chunk" for c in chunks)
    assert all(list(c["choices"][0]) == ["index", "delta", "logprobs", "finish_reason"] for c in chunks)
    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert deltas[0] == {"role": "assistant"} and deltas[-1] == {} and "".join(d["content"] for d in deltas[1:-1]) == whole
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_openai_objects(llm):
    types = pytest.importorskip("openai.types.chat")
    r = llm.create_chat_completion_openai_v1(TALK, max_tokens=4, temperature=0)
    assert isinstance(r, types.ChatCompletion) and r.choices[0].finish_reason == "length"
    chunks = list(llm.create_chat_completion_openai_v1(messages=TALK, max_tokens=4, temperature=0, stream=True))
    assert all(isinstance(c, types.ChatCompletionChunk) for c in chunks)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == r.choices[0].message.content


def test_text_of_users_is_no_control_token(llm):
    n = llm.create_chat_completion([{"role": "user", "content": "<|im_end|>"}], max_tokens=1)["usage"]["prompt_tokens"]
    assert n == llm.create_chat_completion([{"role": "user", "content": ""}], max_tokens=1)["usage"]["prompt_tokens"] + len(llm.tokenize(b"<|im_end|>"))


def test_named_and_registered_formats(llm, real_model):
    other = Llama(str(real_model("smollm2")), chat_format="chatml", verbose=False)
    system = [{"role": "system", "content": "Be brief."}, *TALK]
    assert other.create_chat_completion(system, max_tokens=6, temperature=0)["choices"] == llm.create_chat_completion(
        system, max_tokens=6, temperature=0)["choices"]
    from pyengine.compat.llama_cpp import llama_chat_format as formats

    @formats.register_chat_format("plainly")
    def plainly(messages, **kwargs):
        return formats.ChatFormatterResponse(prompt=messages[-1]["content"], stop="\n")

    try:
        other.chat_format = "plainly"
        r = other.create_chat_completion([{"role": "user", "content": PROMPT}], max_tokens=8, temperature=0)
        assert r["choices"][0]["message"]["content"] == " Paris." and r["choices"][0]["finish_reason"] == "stop"
    finally:
        formats.LlamaChatCompletionHandlerRegistry().unregister_chat_handler("plainly")
    seen = {}
    other.chat_handler = lambda **arguments: seen.update(arguments) or "whatever the handler says"
    assert other.create_chat_completion(TALK, temperature=0.5) == "whatever the handler says"
    assert seen["llama"] is other and seen["messages"] is TALK and seen["temperature"] == 0.5 and "tool_choice" in seen
    other.close()


# ---- grammars and tools ------------------------------------------------------------

pytest_llguidance = pytest.mark.skipif(not __import__("importlib.util").util.find_spec("llguidance"), reason="needs llguidance")


@pytest_llguidance
def test_grammar(llm):
    for grammar in (LlamaGrammar.from_string('root ::= "yes" | "no"'), LlamaGrammar.from_json_schema('{"enum": ["yes", "no"]}')):
        assert greedy(llm, "Is water wet? Answer: ", 8, grammar=grammar)["choices"][0]["text"].strip('"') in ("yes", "no")
    with pytest.raises(ValueError):
        greedy(llm, grammar=LlamaGrammar.from_string("root ::= nothing"))


@pytest_llguidance
def test_json_mode_and_schemas(llm):
    schema = {"type": "object", "properties": {"team_name": {"type": "string", "maxLength": 12}}, "required": ["team_name"]}
    for given in ({"type": "json_object", "schema": schema}, {"type": "json_schema", "json_schema": {"name": "team", "schema": schema}}):
        r = llm.create_chat_completion(TALK, max_tokens=60, temperature=0, response_format=given)["choices"][0]
        assert list(json.loads(r["message"]["content"])) == ["team_name"] and r["finish_reason"] == "stop"
    text = llm.create_chat_completion(TALK, max_tokens=200, temperature=0, response_format={"type": "json_object"})["choices"][0]["message"]["content"]
    assert text.startswith("{")
    with pytest.raises(GrammarError):
        llm.create_chat_completion(TALK, response_format={"type": "json_object", "schema": {"type": "no such type"}})
    with pytest.raises(RequestError, match="response_format"):
        llm.create_chat_completion(TALK, response_format={"type": "yaml"})
    with pytest.raises(RequestError, match="only one"):
        llm.create_chat_completion(TALK, response_format={"type": "json_object"}, tools=[DETAIL], tool_choice=FORCED)


@pytest_llguidance
def test_forced_tool(llm):
    r = llm.create_chat_completion(EXTRACT, tools=[DETAIL], tool_choice=FORCED, max_tokens=60, temperature=0)
    (choice,) = r["choices"]
    assert list(choice["message"]) == ["role", "content", "function_call", "tool_calls"] and choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call["id"] == f"call__0_UserDetail_{r['id'][4:]}" and call["type"] == "function" and choice["finish_reason"] == "tool_calls"
    assert json.loads(call["function"]["arguments"]) == {"name": "Jason", "age": 25} and choice["message"]["function_call"] == call["function"]
    older = llm.create_chat_completion(EXTRACT, functions=[DETAIL["function"]], function_call={"name": "UserDetail"}, max_tokens=60, temperature=0)
    assert older["choices"][0]["message"]["function_call"] == call["function"]
    chunks = list(llm.create_chat_completion(EXTRACT, tools=[DETAIL], tool_choice=FORCED, max_tokens=60, temperature=0, stream=True))
    assert all(list(c) == TOOL_CHUNK and list(c["choices"][0]) == ["index", "finish_reason", "logprobs", "delta"] for c in chunks)
    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert all(list(d) == ["role", "content", "function_call", "tool_calls"] for d in deltas) and deltas[0]["role"] == "assistant"
    assert "".join(d["tool_calls"][0]["function"]["arguments"] for d in deltas[1:-1]) == call["function"]["arguments"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls" and deltas[1]["tool_calls"][0]["index"] == 0


@pytest_llguidance
def test_required_tool(llm):
    other = {"type": "function", "function": {"name": "Weather", "parameters": {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}}}}
    r = llm.create_chat_completion(EXTRACT, tools=[DETAIL, other], tool_choice="required", max_tokens=60, temperature=0)["choices"][0]
    call = r["message"]["tool_calls"][0]["function"]
    assert call["name"] in ("UserDetail", "Weather") and isinstance(json.loads(call["arguments"]), dict) and r["finish_reason"] == "tool_calls"
    cut = llm.create_chat_completion(EXTRACT, tools=[DETAIL], tool_choice="required", max_tokens=3, temperature=0)["choices"][0]
    assert cut["finish_reason"] == "length" and cut["message"]["tool_calls"][0]["function"]["name"] == "UserDetail"


def test_tools_that_are_not_called(llm, recwarn):
    llama_cpp.llama.options._said.clear()
    r = llm.create_chat_completion(EXTRACT, tools=[DETAIL], tool_choice="auto", max_tokens=4, temperature=0)
    assert isinstance(r["choices"][0]["message"]["content"], str) and any("not parsed" in str(w.message) for w in recwarn)
    assert "tool_calls" not in llm.create_chat_completion(EXTRACT, tools=[DETAIL], tool_choice="none", max_tokens=4)["choices"][0]["message"]
    with pytest.raises(ValueError, match="^Tool choice 'x' not found in tools.$"):
        llm.create_chat_completion(EXTRACT, tools=[DETAIL], tool_choice={"type": "function", "function": {"name": "x"}})
    with pytest.raises(RequestError, match="tool_choice"):
        llm.create_chat_completion(EXTRACT, tools=[DETAIL], tool_choice="sometimes")


@pytest_llguidance
def test_chatml_function_calling(real_model):
    llm = Llama(str(real_model("smollm2")), chat_format="chatml-function-calling", verbose=False, n_ctx=1024)
    r = llm.create_chat_completion(EXTRACT, tools=[DETAIL], tool_choice=FORCED, max_tokens=60, temperature=0)["choices"][0]
    assert json.loads(r["message"]["tool_calls"][0]["function"]["arguments"])["age"] == 25
    short = json.loads(json.dumps(DETAIL).replace('"title": "Name"', '"maxLength": 12').replace('"title": "Age"', '"maximum": 99'))

    def begins(word):
        def processor(ids, scores):
            scores[llm.tokenize(word)[0]] += 60 if llm.detokenize(ids.tolist()).endswith(b"assistant\n") else 0
            return scores

        return LogitsProcessorList([processor])

    for word, called in ((b"functions", True), (b"message", False)):
        more = dict(tools=[short], tool_choice="auto", max_tokens=40, temperature=0, logits_processor=begins(word))
        r = llm.create_chat_completion(EXTRACT, **more)["choices"][0]
        chunks = list(llm.create_chat_completion(EXTRACT, stream=True, **more))
        deltas = [c["choices"][0]["delta"] for c in chunks]
        if called:
            (call, *_) = r["message"]["tool_calls"]
            assert call["function"]["name"] == "UserDetail" and set(json.loads(call["function"]["arguments"])) == {"name", "age"}
            assert [d["tool_calls"][0]["function"] for d in deltas if d["tool_calls"]] == [c["function"] for c in r["message"]["tool_calls"]]
        else:
            assert not r["message"]["content"].startswith("message") and "tool_calls" not in r["message"]
            assert "".join(d.get("content") or "" for d in deltas) == r["message"]["content"]
    llm.close()


# ---- tokens ----------------------------------------------------------------------


def test_tokens(llm):
    assert llm.tokenize(b"Hello world") == [19556, 905] == llm.tokenizer().encode("Hello world")
    assert llm.tokenize(b"<|im_start|>user") == [44, 108, 306, 79, 3738, 108, 46, 4093] and llm.tokenize(b"<|im_start|>user", special=True) == [1, 4093]
    emoji = [88, 2756, 31394, 40303, 218]
    assert llm.tokenize("héllo 😀".encode()) == emoji and llm.detokenize(emoji) == "héllo 😀".encode()
    assert llm.detokenize(emoji[-1:]) == "héllo 😀".encode()[-1:]      # the token's own bytes, not a replacement character
    assert llm.detokenize([1, 4093]) == b"user" and llm.detokenize([1, 4093], special=True) == b"<|im_start|>user"
    assert (llm.token_bos(), llm.token_eos(), llm.token_nl(), llm.n_ctx(), llm.n_embd(), llm.n_vocab()) == (1, 2, 198, 512, 576, 49152)
    assert llm.metadata["tokenizer.ggml.add_space_prefix"] == "false" and llm.metadata["general.architecture"] == "llama"
    assert llm.metadata["llama.rope.freq_base"] == "100000.000000" and "tokenizer.ggml.tokens" not in llm.metadata


def test_eval_and_sample(llm):
    ids = llm.tokenize(PROMPT.encode())
    llm.reset()
    llm.eval(ids[:2])
    llm.eval(ids[2:])
    assert llm.n_tokens == 5 and llm.input_ids[:6].tolist() == [*ids, 0] and llm.input_ids.dtype == np.intc and list(llm.eval_tokens) == ids
    rows = llm._llm.logits(ids)
    assert (llm.scores[llm.n_tokens - 1] == rows[-1]).all() and (llm.scores[1:3] == rows[1:3]).all() and llm.scores[-1, 7] == rows[-1, 7]
    assert llm.scores.shape == (5, 49152) and np.asarray(llm.scores).shape == (5, 49152) and llm.eval_logits[-1] == rows[-1].tolist()
    paris = llm.sample(temp=0)
    assert llm.detokenize([paris]) == b" Paris" and llm.sample(temp=0, idx=0) == int(rows[0].argmax())
    llm.n_tokens = 2
    assert llm.sample(temp=0) == int(rows[1].argmax())
    with pytest.raises(ContextError, match="exceed context window"):
        llm.eval([100] * 512)
    assert llm.n_tokens == 2


def test_generate_yields_what_create_completion_says(llm):
    ids = llm.tokenize(PROMPT.encode())
    llm.set_seed(11)
    for sampling in (dict(temp=0), dict(temp=0.9, repeat_penalty=1.2, frequency_penalty=0.3)):
        stream = llm.generate(ids, **sampling)
        got = [next(stream) for _ in range(10)]
        more = {"temperature" if k == "temp" else k: v for k, v in sampling.items()}
        whole = llm.create_completion(ids, max_tokens=10, seed=11, **more)["choices"][0]["text"]
        assert llm.detokenize(got).decode() == whole
    llm.set_seed(llama_cpp.LLAMA_DEFAULT_SEED)


def test_generate_takes_tokens_and_ends(llm):
    ids = llm.tokenize(PROMPT.encode())
    stream = llm.generate(ids, temp=0)
    first = next(stream)
    extra = llm.tokenize(b" is the answer. The capital of Italy is")
    after = stream.send(extra)
    assert llm.detokenize([first, after]) == b" Paris Rome" and llm.n_tokens == len(ids) + 1 + len(extra)
    assert list(llm.generate(ids, temp=0, stopping_criteria=StoppingCriteriaList([lambda i, _: len(i) > 7]))) == [first, *list(
        llm.generate([*ids, first], temp=0, stopping_criteria=StoppingCriteriaList([lambda i, _: len(i) > 7])))]
    full = list(llm.generate([100] * 508, temp=0))
    assert len(full) == 4


@pytest_llguidance
def test_generate_and_sample_follow_a_grammar(llm):
    grammar = LlamaGrammar.from_string('root ::= "[" [0-9]+ "]"')
    ids = llm.tokenize(b"A number: ")
    whole = llm.create_completion(ids, max_tokens=8, temperature=0, grammar=grammar)["choices"][0]["text"]
    out = []
    for token in llm.generate(ids, temp=0, grammar=grammar):
        if token == llm.token_eos() or len(out) == 8:
            break
        out.append(token)
    assert llm.detokenize(out).decode() == whole and whole[0] == "["


def test_states(llm, real_model, tmp_path):
    first = greedy(llm, n=5)["choices"][0]["text"]
    state = llm.save_state()
    assert state.n_tokens == 10 and type(state.llama_state) is bytes and state.llama_state_size == len(state.llama_state)
    tail = [llm.sample(temp=0)]
    llm.reset()
    assert llm.n_tokens == 0
    llm.load_state(state)
    assert llm.n_tokens == 10 and llm.sample(temp=0) == tail[0] and llm.detokenize(llm.input_ids[5:10].tolist()).decode() == first
    ram = llama_cpp.LlamaRAMCache(capacity_bytes=2 * state.llama_state_size)
    disk = llama_cpp.LlamaDiskCache(cache_dir=tmp_path / "states")
    key = tuple(llm.input_ids[:10].tolist())
    for cache in (ram, disk):
        cache[key] = state
        assert key[:3] in cache and (1, 2) not in cache and cache[(*key, 5)].llama_state == state.llama_state
    again = llama_cpp.LlamaDiskCache(cache_dir=tmp_path / "states")
    llm.reset()
    llm.load_state(again[key])
    assert llm.n_tokens == 10
    ram[(7,)] = ram[(8,)] = state
    assert key not in ram and (7, 1) in ram
    with pytest.raises(KeyError):
        ram[(1, 2)]
    state.llama_state = state.llama_state.replace(b"135M", b"136M")
    with pytest.raises(SessionError, match="136M"):
        llm.load_state(state)
    state.llama_state = b"\x00"
    with pytest.raises(SessionError):
        llm.load_state(state)


# ---- the object --------------------------------------------------------------------


@pytest.mark.parametrize("name, value", [("rope_scaling_type", 2), ("rope_freq_base", 5e5), ("rope_freq_scale", 0.5), ("yarn_ext_factor", 0.5),
                                         ("yarn_attn_factor", 1.2), ("yarn_beta_fast", 16.0), ("yarn_beta_slow", 2.0), ("yarn_orig_ctx", 512)])
def test_case_83_rope_is_the_file_s(real_model, name, value):
    """Whoever would have it another way is told so by name: nothing replaces what a model was trained with."""
    with pytest.raises(UnsupportedError, match=f"{name}: found {value}"):
        Llama(str(real_model("smollm2")), **{name: value})


def test_constructor(real_model, tmp_path):
    path = str(real_model("smollm2"))
    with pytest.raises(ValueError, match="^Model path does not exist: /no/such.gguf$"):
        Llama("/no/such.gguf")
    (tmp_path / "no.gguf").write_bytes(b"<html>")
    with pytest.raises(ValueError, match="^Failed to load model from file: .*no.gguf"):
        Llama(str(tmp_path / "no.gguf"))
    for name, value in (("lora_path", "a.bin"), ("rope_freq_scale", 0.5), ("pooling_type", 1), ("type_k", 8)):
        with pytest.raises((UnsupportedError, RequestError), match=name):
            Llama(path, **{name: value})
    with pytest.raises(UnsupportedError, match="LlamaHFTokenizer"):
        from pyengine.compat.llama_cpp.llama_tokenizer import LlamaHFTokenizer

        LlamaHFTokenizer.from_pretrained("a/b")
    with pytest.raises(ValueError, match="too long"):
        Llama(path, kv_overrides={"a": "b" * 129})
    with pytest.raises(UnsupportedError, match="general.name"):
        Llama(path, kv_overrides={"general.name": "x"})
    llama_cpp.llama.options._said.clear()
    with pytest.warns(RuntimeWarning, match="nonsense"):
        llm = Llama(path, nonsense=1, n_gpu_layers=-1, n_ctx=64, type_k=8, type_v=8, draft_model=_lookup(), seed=5,
                    kv_overrides={"tokenizer.ggml.add_bos_token": True}, verbose=False)
    assert llm.tokenize(b"Hello") == [1, 19556] and llm.n_ctx() == 64 and llm.context_params.n_threads == llm.n_threads
    again = pickle.loads(pickle.dumps(llm))
    assert again("Hello", max_tokens=4, temperature=1.5)["choices"][0]["text"] == llm("Hello", max_tokens=4, temperature=1.5)["choices"][0]["text"]
    again.close()
    llm.close()
    with pytest.raises(RuntimeError, match="closed"):
        llm("Hello")


def _lookup():
    from pyengine.compat.llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    draft = LlamaPromptLookupDecoding(num_pred_tokens=2)
    assert draft(np.array([1, 2, 3, 4, 1, 2], np.intc)).tolist() == [3, 4] and draft(np.array([1, 2], np.intc)).tolist() == []
    return draft


def test_vocab_only(real_model):
    llm = Llama(str(real_model("smollm2")), vocab_only=True)
    assert llm.tokenize(b"Hello world") == [19556, 905] and llm.n_vocab() == 49152 and llm.n_embd() == 576
    with pytest.raises(UnsupportedError, match="vocab_only"):
        llm("Hello")
    llm.close()


def test_n_ctx_zero_is_the_models_own_and_no_template_is_said(real_model, recwarn):
    llm = Llama(str(real_model("gemma-3-270m")), n_ctx=128, verbose=False)
    llama_cpp.llama.options._said.clear()
    r = llm.create_chat_completion(TALK, max_tokens=2, temperature=0)
    assert llm.chat_format == "llama-2" and r["usage"]["completion_tokens"] <= 2 and any("no chat template" in str(w.message) for w in recwarn)
    assert llm.tokenize(b"Hello") == [2, *llm.tokenize(b"Hello", add_bos=False)] and llm.detokenize(llm.tokenize(b" Hello")) == b" Hello"
    llm.close()


def test_module():
    assert llama_cpp.llama_supports_gpu_offload() is False and llama_cpp.llama_supports_mmap() and llama_cpp.llama_backend_init() is None
    assert isinstance(llama_cpp.llama_print_system_info(), bytes) and llama_cpp.GGML_TYPE_Q8_0 == 8 and llama_cpp.GGML_TYPE_BF16 == 30
    assert llama_cpp.GGML_TYPE_IQ4_XS == 23 and llama_cpp.GGML_TYPE_Q6_K == 14 and llama_cpp.LLAMA_ROPE_SCALING_TYPE_YARN == 2
    assert llama_cpp.CreateCompletionResponse and llama_cpp.ChatCompletionRequestMessage and llama_cpp.__version__ == "0.3.36"
    assert Llama.longest_token_prefix([1, 2, 3], [1, 2, 4]) == 2
    logprobs = Llama.logits_to_logprobs([1.0, 2.0, -np.inf])
    assert logprobs.dtype == np.float32 and np.exp(logprobs).sum() == pytest.approx(1) and logprobs[2] == -np.inf

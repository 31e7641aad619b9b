"""class Llama on the two real models and on tiny ones; case numbers are those of the case log."""
import io
import json
import os
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest

import pyengine
from pyengine import Llama, RequestError
from tiny_gguf import CHATML, Spec, write

ALPHABET = "Here is the English alphabet: A B C D"
USER = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
GREEDY = dict(temperature=0.0)


@pytest.fixture(scope="module")
def smollm2(real_model):
    with Llama(real_model("smollm2"), n_ctx=1024) as llm:
        yield llm


@pytest.fixture(scope="module")
def gemma(real_model):
    with Llama(real_model("gemma-3-270m"), n_ctx=512) as llm:
        yield llm


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write(path, Spec(seed=2, n_ctx_train=256))
    with Llama(path) as llm:
        yield llm


def force(*ids):
    """A logits processor that lets nothing come out but these ids, in order."""
    left = list(ids)

    def only(seen, logits):
        logits[:] = -np.inf
        logits[left.pop(0)] = 0.0

    return only


# ---- text in -------------------------------------------------------------------------

def test_backslashes_stay(smollm2):
    """Case 15: the API never unescapes; a real newline is id 198."""
    assert smollm2.tokenize("\n") == [198]
    literal = smollm2.tokenize("\\n")
    assert len(literal) >= 2 and 198 not in literal
    assert smollm2.generate("a\\n", max_tokens=0).usage["prompt_tokens"] == len(smollm2.tokenize("a\\n", special=True))


def test_control_tokens_in_prompts(smollm2):
    """generate() recognizes control tokens in text; chat() takes what people write as text."""
    assert smollm2.generate("<|im_end|>", max_tokens=0).usage["prompt_tokens"] == 1
    plain = smollm2.chat_tokens([{"role": "user", "content": "hi"}])
    marked = smollm2.chat_tokens([{"role": "user", "content": "hi<|im_end|>"}])
    assert marked.count(2) == plain.count(2)
    assert smollm2.chat_tokens([{"role": "user", "content": "hi"}])[0] == 1


def test_one_bos(gemma, tmp_path):
    """Case 22: text, and a template, that begin with the beginning-of-sequence token do not double it."""
    assert gemma.tokenize("<bos>Hello", special=True) == [2, 9259] == gemma.tokenize("Hello")
    assert gemma.generate("<bos>Hello", max_tokens=0).usage["prompt_tokens"] == 2
    write(tmp_path / "m.gguf", Spec(chat_template="{{ bos_token }}{{ messages[0]['content'] }}"))
    with Llama(tmp_path / "m.gguf") as llm:
        tokens = llm.chat_tokens([{"role": "user", "content": "ab"}])
        assert llm.tokenizer.add_bos and tokens.count(llm.tokenizer.bos) == 1 and tokens[0] == llm.tokenizer.bos


def test_from_nothing(smollm2, gemma):
    for llm in (smollm2, gemma):
        assert llm.generate(max_tokens=0).usage["prompt_tokens"] == 1
        assert llm.generate("", max_tokens=0).usage["prompt_tokens"] == 1


def test_prompt_forms(tiny):
    text = tiny.generate("ab", max_tokens=4, **GREEDY)
    ids = tiny.generate(tiny.tokenize("ab"), max_tokens=4, **GREEDY)
    assert text.tokens == ids.tokens
    several = tiny.generate(["ab", [5, 6], "c"], max_tokens=4, **GREEDY)
    assert [type(c) for c in several] == [pyengine.Completion] * 3 and several[0].tokens == text.tokens
    assert str(text) == text.text
    for bad in ([], [[]], 5, {"a": 1}, [1, "a", None], [-1], [331], [2.5], [True], b"ab"):
        with pytest.raises(RequestError) as e:
            tiny.generate(bad, max_tokens=1)
        assert e.value.param in ("prompt", "tokens")


def test_no_template(gemma):
    """Case 36: a base model has no chat; nothing is guessed."""
    assert not gemma.has_chat_template
    with pytest.raises(pyengine.TemplateError, match="tokenizer.chat_template"):
        gemma.chat([{"role": "user", "content": "hi"}])


def test_template_that_does_not_compile(tmp_path):
    """Case 31: the model loads and completes; chat says what is wrong."""
    write(tmp_path / "m.gguf", Spec(chat_template="{% if %}"))
    with Llama(tmp_path / "m.gguf") as llm:
        assert llm.generate("ab", max_tokens=2, ignore_eos=True).usage["completion_tokens"] == 2
        with pytest.raises(pyengine.TemplateError):
            llm.chat([{"role": "user", "content": "hi"}])


def test_chat_is_its_tokens(smollm2):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a colour."}]
    tokens = smollm2.chat_tokens(messages)
    assert tokens == smollm2.tokenize("<|im_start|>system\nBe brief.<|im_end|>\n" + USER.format("Name a colour."), special=True)
    a = smollm2.chat(messages, max_tokens=12, **GREEDY)
    assert a.tokens == smollm2.generate(tokens, max_tokens=12, **GREEDY).tokens and a.text


def test_tools_that_the_template_does_not_read(smollm2):
    messages = [{"role": "user", "content": "hi"}]
    for given in ({"tools": [{"type": "function"}]}, {"documents": [{}]}, {"template_variables": {"enable_thinking": False}}, {"chat_template": "tool_use"}):
        with pytest.raises(pyengine.RequestError) as e:
            smollm2.chat(messages, **given)
        assert e.value.param.split(".")[0] == next(iter(given))
    assert list(smollm2.chat_templates) == ["default"] and smollm2.chat_templates["default"] == smollm2.chat_template
    open_end = smollm2.chat_tokens([*messages, {"role": "assistant", "content": "Hello"}], continue_final_message=True)
    assert smollm2.detokenize(open_end, special=True).endswith("<|im_start|>assistant\nHello")


# ---- text out ------------------------------------------------------------------------

def test_characters_come_whole(smollm2):
    """Case 18: a character of two tokens is held back until it is whole."""
    run = dict(max_tokens=3, processors=None)
    pieces = list(smollm2.generate("x", stream=True, **{**run, "processors": [force(34978, 120, 28)]}))
    assert "".join(pieces).startswith("歪") and "\ufffd" not in "".join(pieces)
    assert "".join(pieces) == smollm2.generate("x", **{**run, "processors": [force(34978, 120, 28)]}).text


def test_cut_inside_a_character(smollm2):
    """What max_tokens cuts in two ends with one U+FFFD, streaming or not."""
    s = smollm2.generate("x", stream=True, max_tokens=1, processors=[force(34978)])
    assert "".join(s) == s.result.text == "\ufffd" or len(s.result.text) > 0 and s.result.text.endswith("\ufffd")


def test_logprobs_of_half_characters(smollm2):
    """Case 21: token is valid text, bytes are the token's own and join to the text."""
    c = smollm2.generate("x", max_tokens=2, logprobs=2, processors=[force(34978, 120)])
    assert [e["id"] for e in c.logprobs] == [34978, 120]
    assert bytes(b for e in c.logprobs for b in e["bytes"]) == c.text.encode() == "歪".encode()
    assert all(len(e["top_logprobs"]) == 2 for e in c.logprobs)
    again = json.loads(json.dumps(c.as_dict()))
    assert again["text"] == "歪" and again["logprobs"][0]["token"].encode()     # no lone surrogates


def test_logprobs_are_probabilities(smollm2):
    c = smollm2.generate(ALPHABET, max_tokens=5, logprobs=5, **GREEDY)
    rows = smollm2.logits(smollm2.tokenize(ALPHABET) + c.tokens)[-6:-1].astype(np.float64)
    rows -= np.log(np.exp(rows - rows.max(1, keepdims=True)).sum(1, keepdims=True)) + rows.max(1, keepdims=True)
    for row, entry in zip(rows, c.logprobs):
        assert entry["logprob"] == pytest.approx(row[entry["id"]], abs=1e-4)
        best = np.argsort(-row, kind="stable")[:5]
        assert [t["id"] for t in entry["top_logprobs"]] == best.tolist() and entry["id"] == best[0]


def test_stop_string_over_three_tokens(smollm2):
    """Case 42: nothing of a stop string is sent; streaming or not, the same text."""
    for stop in ("F G H", ["zzz", "F G H"]):
        s = smollm2.generate(ALPHABET, max_tokens=20, stop=stop, stream=True, **GREEDY)
        pieces = list(s)
        assert "".join(pieces) == " E " == s.result.text
        assert s.result.finish_reason == "stop"
        assert smollm2.generate(ALPHABET, max_tokens=20, stop=stop, **GREEDY).text == " E "


def test_stop_forms(smollm2):
    """Case 47: None and missing are equal, empty strings are refused, at most 16."""
    free = smollm2.generate(ALPHABET, max_tokens=6, **GREEDY)
    for stop in (None, [], ["nowhere"] * 5, ["nowhere"] * 16):
        assert smollm2.generate(ALPHABET, max_tokens=6, stop=stop, **GREEDY).text == free.text
    for stop in ("", [""], ["a", ""], ["a"] * 17, 5, [5], "a" * 1025):
        with pytest.raises(RequestError) as e:
            smollm2.generate(ALPHABET, max_tokens=6, stop=stop)
        assert e.value.param == "stop"


def test_turn_ends_by_any_end_token(smollm2, gemma, real_model, tmp_path):
    """Case 45: eos is one of several tokens that end a turn; none of them is shown."""
    assert {1, 106} <= gemma.tokenizer.end_ids
    for end in (1, 106):
        c = gemma.generate("Hi", max_tokens=5, processors=[force(4521, end)])
        assert (c.finish_reason, c.tokens) == ("stop", [4521])
    out, key = tmp_path / "eos0.gguf", b"tokenizer.ggml.eos_token_id"
    data = bytearray(real_model("smollm2").read_bytes())
    at = data.index(key) + len(key) + 4        # behind the key's value type
    assert data[at:at + 4] == bytes([2, 0, 0, 0])
    data[at] = 0
    out.write_bytes(data)
    with Llama(out, n_ctx=256) as llm:
        assert llm.tokenizer.eos == 0
        c = llm.generate("Hi", max_tokens=5, processors=[force(28, 2)])
        assert (c.finish_reason, c.tokens, c.text) == ("stop", [28], llm.detokenize([28]))


def test_control_tokens_are_not_shown(smollm2):
    """Case 48: a control token that ends nothing is empty, counts, and does not end the stream."""
    s = smollm2.generate("Hi", max_tokens=3, processors=[force(28, 6, 28)], stream=True, ignore_eos=True)
    assert "".join(s) == smollm2.detokenize([28, 28]) and s.result.usage["completion_tokens"] == 3
    assert smollm2.tokenizer.kind(6) == "control"
    assert smollm2.detokenize([6]) == "" and smollm2.detokenize([6], special=True).startswith("<")


# ---- sampling ------------------------------------------------------------------------

def test_temperature_zero_is_greedy(smollm2):
    """Case 49: with or without top_k and top_p, the arg-max of the logits, 20 times."""
    prompt = smollm2.tokenize(ALPHABET)
    c = smollm2.generate(prompt, max_tokens=20, **GREEDY)
    rows = smollm2.logits(prompt + c.tokens)
    assert c.tokens == [int(np.argmax(r)) for r in rows[len(prompt) - 1:-1]]
    for more in (dict(top_k=5), dict(top_p=0.1), dict(top_k=0, top_p=1.0, min_p=0.0)):
        assert smollm2.generate(prompt, max_tokens=20, temperature=0, **more).tokens == c.tokens


def test_penalty_windows(smollm2):
    """Case 52: 0 is off, -1 the whole context, more than the context is the same."""
    prompt = "one two one two one two one two one two"
    run = lambda n: smollm2.generate(prompt, max_tokens=12, repeat_penalty=1.5, repeat_last_n=n, **GREEDY).tokens
    plain = smollm2.generate(prompt, max_tokens=12, **GREEDY).tokens
    assert run(0) == plain
    assert run(-1) == run(100_000) == run(2**31 - 1)
    assert run(-1) != plain


def test_presence_counts_the_answer_only(tiny):
    """Case 55: the first token's choice does not see the prompt; the repeat penalty does."""
    first = tiny.generate("ab", max_tokens=1, ignore_eos=True, **GREEDY).tokens[0]
    prompt = tiny.tokenize("ab")
    best = int(np.argmax(tiny.logits(prompt)[-1]))
    assert best == first
    wordy = [best] * 30 + prompt
    greedy = int(np.argmax(tiny.logits(wordy)[-1]))
    for penalty in (dict(presence_penalty=2.0), dict(frequency_penalty=2.0)):
        assert tiny.generate(wordy, max_tokens=1, ignore_eos=True, **penalty, **GREEDY).tokens == [greedy]


def test_every_sampling_field_has_an_effect(smollm2):
    """Case 56."""
    prompt = USER.format("Say the word apple ten times.")
    plain = smollm2.generate(prompt, max_tokens=24, ignore_eos=True, **GREEDY).tokens
    for more in (dict(frequency_penalty=2.0), dict(presence_penalty=2.0), dict(repeat_penalty=1.8)):
        assert smollm2.generate(prompt, max_tokens=40, ignore_eos=True, **more, **GREEDY).tokens != plain, more
    drawn = dict(max_tokens=16, seed=3, temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, ignore_eos=True)
    base = smollm2.generate(prompt, **drawn).tokens
    for more in (dict(temperature=0.5), dict(top_k=2), dict(top_p=0.3), dict(min_p=0.3), dict(typical_p=0.2), dict(seed=4)):
        assert smollm2.generate(prompt, **{**drawn, **more}).tokens != base, more
    assert smollm2.generate(prompt, **drawn).tokens == base


def test_logit_bias(smollm2):
    """Case 57: all forms; -100 bans, 100 forces; out of range is an error."""
    run = lambda bias, **more: smollm2.generate(ALPHABET, max_tokens=1, logit_bias=bias, **{**GREEDY, **more}).tokens
    assert run(None) == [414]
    for ban in ({"414": -100}, {414: -100}, [[414, False]], [(414, float("-inf"))], {" E": -100}):
        assert run(ban) != [414], ban
    assert run({19556: 100}) == [19556] and smollm2.detokenize([19556]) == "Hello"
    assert smollm2.generate(ALPHABET, max_tokens=3, logit_bias={19556: 100}).text == "HelloHelloHello"
    many = {i: -100 for i in range(1000, 1300)} | {414: -100}
    assert run(many) == run({414: -100})
    for bad in ({49152: 1}, {-1: 1}, {414: float("nan")}, {414: 1e39}, {"": 1}, 5):
        with pytest.raises(RequestError) as e:
            run(bad)
        assert e.value.param == "logit_bias"


def test_nothing_left_to_choose(tiny):
    """Case 60: everything masked is an error of that request; the next one is answered."""
    with pytest.raises(RequestError):
        tiny.generate("ab", max_tokens=3, logit_bias={i: -100 for i in range(tiny.n_vocab)})
    assert tiny.generate("ab", max_tokens=3, ignore_eos=True).usage["completion_tokens"] == 3


def test_nan_in_the_weights(tmp_path):
    """Case 60: a NaN logit is that request's error, by name, with greedy and drawn; the process survives."""
    import gguf

    write(tmp_path / "m.gguf", Spec(seed=1, weight_type="F32"))
    reader = gguf.GGUFReader(tmp_path / "m.gguf", "r+")
    tensor = next(t for t in reader.tensors if t.name == "output.weight")
    tensor.data.reshape(-1)[70] = np.nan
    reader.data.flush()
    del reader, tensor
    with Llama(tmp_path / "m.gguf") as llm:
        for more in (GREEDY, dict(temperature=1.0), dict(processors=[lambda ids, logits: None])):
            for _ in range(2):
                with pytest.raises(pyengine.NonFiniteError, match="position 3"):
                    llm.generate([5, 6, 7], max_tokens=3, **more)
        assert llm.generate([5], max_tokens=0).finish_reason == "length"


def test_padded_vocabulary(tmp_path):
    """Case 16: rows of the head without a token are never sampled."""
    write(tmp_path / "m.gguf", Spec(seed=4, n_vocab=320, extra_rows=8))
    with Llama(tmp_path / "m.gguf") as llm:
        assert llm.n_vocab == 320 and llm.logits([1]).shape == (1, 328)

        def prefer(ids, logits):
            logits[320:] = 1000.0

        for more in (GREEDY, dict(temperature=1.0, top_k=0)):
            c = llm.generate([5], max_tokens=20, processors=[prefer], ignore_eos=True, **more)
            assert len(c.tokens) == 20 and max(c.tokens) < 320
        with pytest.raises(RequestError):
            llm.generate([325], max_tokens=1)
        pytest.importorskip("llguidance")
    write(tmp_path / "wide.gguf", Spec(seed=4, n_vocab=320, extra_rows=3000))
    with Llama(tmp_path / "wide.gguf") as llm:       # nor listed beside one that a grammar forces
        c = llm.generate([5], regex="(abcdefgh ){3}", logprobs=5, **GREEDY)
        assert c.text == "abcdefgh " * 3 and max(t["id"] for e in c.logprobs for t in e["top_logprobs"]) < 320


def test_seeds(tiny):
    a = tiny.generate("ab", max_tokens=20, temperature=2.0, top_k=0, top_p=1.0, min_p=0.0, ignore_eos=True)
    b = tiny.generate("ab", max_tokens=20, temperature=2.0, top_k=0, top_p=1.0, min_p=0.0, ignore_eos=True)
    assert a.seed != b.seed and a.tokens != b.tokens
    again = dict(max_tokens=20, temperature=2.0, top_k=0, top_p=1.0, min_p=0.0, ignore_eos=True, seed=a.seed)
    assert tiny.generate("ab", **again).tokens == a.tokens
    assert [c.tokens for c in tiny.generate(["c", "ab", "d"], **again)][1] == a.tokens


def test_wrong_parameters(tiny):
    for bad in (dict(temperature=-1), dict(temperature=float("nan")), dict(top_p=2.0), dict(top_k=-5), dict(min_p="a"),
                dict(seed=1.5), dict(max_tokens=-2), dict(max_tokens=1.5), dict(max_tokens=True), dict(logprobs=-1),
                dict(logprobs=10**9), dict(repeat_penalty=1e38), dict(processors=[3])):
        with pytest.raises(RequestError) as e:
            tiny.generate("ab", **bad)
        assert e.value.param == next(iter(bad))
    for unknown in (dict(temprature=1), dict(n_predict=3)):
        with pytest.raises(TypeError, match=next(iter(unknown))):
            tiny.generate("ab", **unknown)
    with pytest.raises(TypeError, match="n_gpu_layers"):
        Llama("x.gguf", n_gpu_layers=1)


# ---- context -------------------------------------------------------------------------

def test_long_answers_are_cut_at_the_context(real_model):
    """Case 62: a large max_tokens is no reason to refuse; only a prompt that does not fit is."""
    with Llama(real_model("smollm2"), n_ctx=64) as llm:
        prompt = llm.tokenize("word " * 60)[:50]
        c = llm.generate(prompt, max_tokens=1000, ignore_eos=True)
        assert (c.finish_reason, c.usage) == (
            "length", {"prompt_tokens": 50, "completion_tokens": 14, "total_tokens": 64, "cached_tokens": 0})
        assert llm.generate(prompt + prompt[:14], max_tokens=5).usage["completion_tokens"] == 0
        with pytest.raises(pyengine.ContextError) as e:
            llm.generate(prompt + prompt[:15])
        assert (e.value.n_prompt, e.value.n_ctx) == (65, 64)
        with pytest.raises(pyengine.ContextError):
            llm.logits(prompt * 2)


def test_context_sizes(real_model, tiny):
    """Case 64: unset and 0 are the model's own; more than trained warns; 1 works."""
    for name, own in (("smollm2", 8192), ("gemma-3-270m", 32768)):
        for n_ctx in (None, 0):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                with Llama(real_model(name), n_ctx=n_ctx) as llm:
                    assert llm.n_ctx == llm.n_ctx_train == own
    path = tiny.model_path
    with pytest.warns(UserWarning, match="300.*256"):
        with Llama(path, n_ctx=300) as llm:
            assert llm.n_ctx == 300
    with Llama(path, n_ctx=1) as llm:
        assert llm.generate(max_tokens=5).usage == {"prompt_tokens": 1, "completion_tokens": 0, "total_tokens": 1, "cached_tokens": 0}
    for bad in (-1, 1.5, "512", True, 1 << 40):
        with pytest.raises(RequestError, match="n_ctx"):
            Llama(path, n_ctx=bad)


def test_context_is_cut_to_memory(tiny, monkeypatch):
    """Case 64: the model's own context, cut to what is there and reported; what was asked for, refused."""
    from pyengine import fit, plan

    program = plan.compile(tiny.gguf, n_ctx=128, max_seqs=4, max_tokens=512, max_wanted=32)
    need = fit.count(program, fit.one_sequence(program), n_threads=tiny.memory.n_threads)
    assert need.least < 9 * fit.RESERVE_LEAST               # so that the reserve is the least one
    monkeypatch.setattr(fit, "free", lambda: fit.RESERVE_LEAST + need.least + need.weights + 512)
    with pytest.warns(UserWarning, match="cut from the model's own 256 to 128"):
        with Llama(tiny.model_path) as llm:
            assert llm.n_ctx == 128
            assert llm.generate([1] * 100, max_tokens=100, ignore_eos=True).usage["total_tokens"] == 128
    monkeypatch.setattr(fit, "free", lambda: fit.RESERVE_LEAST + need.least + 512)
    with pytest.raises(pyengine.MemoryBudgetError, match="128 would fit"):
        Llama(tiny.model_path, n_ctx=256)
    with pytest.warns(UserWarning, match="parts of the file again"), Llama(tiny.model_path, n_ctx=128) as llm:
        assert llm.n_ctx == 128


def test_max_tokens(smollm2):
    """Case 71: 0 computes the prompt and says nothing; -1 and None go to the end; others are errors."""
    c = smollm2.generate(ALPHABET, max_tokens=0)
    assert (c.text, c.tokens, c.finish_reason, c.usage["prompt_tokens"]) == ("", [], "length", 10)
    assert c.timings["prompt_ms"] > 0
    assert list(smollm2.generate(ALPHABET, max_tokens=0, stream=True)) == []
    assert smollm2.generate(ALPHABET, max_tokens=1, **GREEDY).usage["completion_tokens"] == 1
    question = USER.format("What is 1+1? Answer with a number only.")
    a, b = (smollm2.generate(question, max_tokens=n, **GREEDY) for n in (None, -1))
    assert a.tokens == b.tokens and a.finish_reason == "stop"
    assert smollm2.chat([{"role": "user", "content": "hi"}], max_tokens=0).text == ""
    for bad in (-2, -100):
        with pytest.raises(RequestError, match="max_tokens"):
            smollm2.generate(ALPHABET, max_tokens=bad)


# ---- the machine -----------------------------------------------------------------------

@pytest.mark.parametrize("n_threads", [1, 2, 3, 7, 64])
def test_odd_sizes_and_many_threads(tmp_path, n_threads):
    """Case 99: rows that no tile divides, more threads than rows; the same bits."""
    write(tmp_path / "m.gguf", Spec(seed=9, n_vocab=331, n_embd=96, n_head=3, n_head_kv=1, n_ff=97, weight_type="Q8_0",
                                    types=(("ffn_down.weight", "F16"),)))
    with Llama(tmp_path / "m.gguf", n_threads=n_threads) as llm, Llama(tmp_path / "m.gguf", n_threads=1) as one:
        tokens = [3, 50, 330, 7, 7, 200]
        assert (llm.logits(tokens) == one.logits(tokens)).all()


@pytest.mark.skipif("PYENGINE_SANITIZED" in os.environ, reason="the sanitizer's own memory would be counted")
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")
def test_memory_of_a_tied_model(real_model):
    """Case 89: the head is the embedding, not a copy; peak RSS <= mapped file + KV cache + 150 MB."""
    code = """
import sys
from pyengine import Llama
with Llama(sys.argv[1], n_ctx=1024, max_seqs=1) as llm:
    llm.generate("Hello " * 400, max_tokens=20, ignore_eos=True)
    kv = sum(n * g.page_bytes for n, g in zip(llm._thread.engine.cache.n_pages, llm.program.groups))
    assert "output.weight" not in llm.gguf.tensors
with open("/proc/self/status") as f:      # not ru_maxrss, which a new process inherits from its maker
    print(next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM")), kv)
"""
    for name in ("smollm2", "gemma-3-270m"):
        path = real_model(name)
        out = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True).stdout.split()
        rss, kv = map(int, out)
        print(name, rss, kv)
        assert rss <= path.stat().st_size + kv + 150e6, (name, rss, kv)


@pytest.mark.skipif("PYENGINE_SANITIZED" in os.environ, reason="the sanitizer's own memory would be counted")
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")
def test_memory_is_given_back(real_model):
    """Case 119: twenty times opened, used and dropped: resident memory does not grow."""
    def resident():
        with open("/proc/self/statm") as f:
            fields = f.read().split()
        return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")      # without the mapped file

    path, sizes = real_model("smollm2"), []
    threads = threading.active_count()
    for i in range(20):
        llm = Llama(path, n_ctx=256)
        llm.generate([1, 28], max_tokens=2)
        if i % 2:
            llm.close()
        del llm
        sizes.append(resident())
    assert max(sizes[10:]) - sizes[4] < 20e6, sizes
    assert threading.active_count() == threads


def test_mlock_that_fails(tiny):
    """Case 117: a warning, once, and the model works."""
    code = """
import resource, sys, warnings
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
from pyengine import Llama, machine
real = machine.lock_memory
machine.lock_memory = lambda a, n: real(a, n) or "Cannot allocate memory; the limit (ulimit -l) is 64 KiB"   # root may lock
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    with Llama(sys.argv[1], mlock=True) as llm:
        print(len([w for w in seen if "mlock" in str(w.message)]), "ulimit -l" in str(seen[0].message), len(llm.generate("ab", max_tokens=3, ignore_eos=True).tokens))
"""
    out = subprocess.run([sys.executable, "-c", code, tiny.model_path], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["1", "True", "3"]


def test_verbose_without_a_stderr(tiny, monkeypatch):
    """verbose writes to sys.stderr, whatever that is; where there is none it is silent."""
    text = io.StringIO()
    monkeypatch.setattr(sys, "stderr", text)
    with Llama(tiny.model_path, verbose=True):
        assert "n_ctx 256" in text.getvalue()
    monkeypatch.setattr(sys, "stderr", None)
    with Llama(tiny.model_path, verbose=True) as llm:
        assert llm.n_ctx == 256


def test_mmap_off_is_the_same(tiny, tmp_path):
    copy = tmp_path / "m.gguf"
    copy.write_bytes(open(tiny.model_path, "rb").read())
    with Llama(copy, mmap=False) as llm:
        copy.write_bytes(b"")                  # private memory does not care
        assert (llm.logits([1, 2, 3]) == tiny.logits([1, 2, 3])).all()


def test_what_cannot_be_opened(tmp_path):
    with pytest.raises(OSError):
        Llama(tmp_path / "absent.gguf")
    (tmp_path / "text.gguf").write_text("<html>")
    with pytest.raises(pyengine.GGUFError):
        Llama(tmp_path / "text.gguf")
    with pytest.raises(pyengine.PyengineError):
        Llama("no-such-model-name")
    with pytest.raises(RequestError, match="model_path"):
        Llama(5)
    for bad in (dict(n_threads=0), dict(max_seqs=0), dict(n_batch=0), dict(kv_type="q3_z")):
        write(tmp_path / "m.gguf", Spec())
        with pytest.raises(pyengine.PyengineError, match=next(iter(bad))):
            Llama(tmp_path / "m.gguf", **bad)


def test_import_is_light():
    code = "import sys, pyengine; print([m for m in ('numpy', 'jinja2', 'sentencepiece', 'tokenizers', 'rich', 'asyncio') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    assert set(pyengine.__all__) <= set(dir(pyengine))
    for name in pyengine.__all__:
        assert getattr(pyengine, name) is not None
    with pytest.raises(AttributeError):
        pyengine.nothing

"""choose() and score(): log probabilities of texts that are given, not sampled."""
import math

import pytest

from pyengine import Llama
from pyengine.choose import _shares
from pyengine.errors import ContextError, RequestError
from runner import log_softmax

PROMPT = "The capital of France is"
OPTIONS = [" Paris", " London", " a city in the south of France", " Par", " a town"]


@pytest.fixture(scope="module")
def llm(real_model):
    with Llama(real_model("smollm2"), n_ctx=512) as llm:
        yield llm


@pytest.fixture(scope="module")
def choice(llm):
    return llm.choose(PROMPT, OPTIONS)


def test_the_meaning(llm, choice):
    """Each token's log-softmax in the row before it, from the logits of the whole text."""
    prompt = llm.tokenize(PROMPT, special=True)
    for option, score in zip(OPTIONS, choice.scores):
        assert score.tokens == llm.tokenize(option, add_bos=False)
        rows = llm.logits([*prompt, *score.tokens])
        for i, (token, logprob) in enumerate(zip(score.tokens, score.logprobs)):
            assert logprob == pytest.approx(log_softmax(rows[len(prompt) + i - 1])[token], abs=1e-5)
        assert score.logprob == math.fsum(score.logprobs)
    best = max(s.logprob for s in choice.scores)
    assert choice.option == str(choice) == OPTIONS[choice.index] == " Paris" and choice.scores[choice.index].logprob == best
    assert sum(choice.probabilities) == pytest.approx(1) and choice.probabilities == pytest.approx(
        [math.exp(s.logprob) / sum(math.exp(t.logprob) for t in choice.scores) for s in choice.scores], rel=1e-5)


def test_logprobs_are_those_of_an_answer(llm):
    answer = llm.generate(PROMPT, temperature=0, max_tokens=6, logprobs=0)
    score = llm.score(PROMPT, answer.tokens)
    assert score.logprobs == [entry["logprob"] for entry in answer.logprobs]


def test_same_bits_alone_in_a_batch_warm_and_cold(llm, choice, real_model):
    assert [llm.score(PROMPT, option) for option in OPTIONS] == choice.scores
    assert llm.choose(PROMPT, OPTIONS[::-1]).scores[::-1] == choice.scores
    jobs = llm.start([llm.tokenize("Once upon a time")] * 3, max_tokens=60)
    assert llm.choose(PROMPT, OPTIONS) == choice
    for job in jobs:
        job.cancel()
        job.ended.wait()
    with Llama(real_model("smollm2"), n_ctx=512, prefix_cache=False, n_threads=1, n_batch=16, max_seqs=2) as other:
        assert other.choose(PROMPT, OPTIONS) == choice


def test_the_prompt_is_computed_once(llm):
    """Of a long prompt, in a salt of its own: options take a few rows each."""
    prompt = "A list of many things. " * 40 + PROMPT
    before = llm.stats()
    llm.choose(prompt, OPTIONS, salt="once")
    after = llm.stats()
    n = len(llm.tokenize(prompt, special=True))
    longer = [o for o in OPTIONS if len(llm.tokenize(o, add_bos=False)) > 1]
    assert after["cached_tokens"] - before["cached_tokens"] >= len(longer) * (n - 1)


def test_the_order_of_options_says_only_who_is_first(llm):
    assert llm.choose(PROMPT, [llm.tokenize(" Paris", add_bos=False)]).probabilities == [1.0]
    assert llm.choose(PROMPT, [" Paris", " London"]).index == 0 and llm.choose(PROMPT, [" London", " Paris"]).index == 1
    assert _shares([-2.5, -2.5]) == [0.5, 0.5] and _shares([-1e4, 0.0]) == [0.0, 1.0]


def test_equally_likely_options_go_to_the_first(tmp_path):
    """Where two rows of the head are the same, so are their logits."""
    from gguf import GGUFReader
    from tiny_gguf import Spec, write

    path = tmp_path / "m.gguf"
    write(path, Spec(seed=4, n_vocab=320))
    reader = GGUFReader(path, "r+")
    head = next((t for name in ("output.weight", "token_embd.weight") for t in reader.tensors if t.name == name))
    head.data[40] = head.data[41]
    reader.data.flush()
    with Llama(path) as llm:
        first = llm.choose([1, 5, 9], [[40], [41]])
        assert first.index == 0 and first.probabilities == [0.5, 0.5] and first.option == [40]
        assert llm.choose([1, 5, 9], [[41], [40]]).option == [41]


@pytest.mark.parametrize("prompt, options, message", [
    (PROMPT, [], "options: 0"), (PROMPT, " Paris", "found str"), (PROMPT, [" Paris", ""], "entry 1 is empty"), (PROMPT, [" Paris", 5], "entry 1"), (PROMPT, [" a", " b", " a"], "options: 0 and 2 are the same"),
    (PROMPT, [[10**9]], "10+"), (PROMPT, ["x"] * 1025, "1025"), ([PROMPT, PROMPT], [" a"], "prompt"), (PROMPT, [[1.5]], "entry 0"),
])
def test_wrong_arguments(llm, prompt, options, message):
    with pytest.raises(RequestError, match=message):
        llm.choose(prompt, options)


@pytest.mark.parametrize("how", [dict(priority=7), dict(key=[]), dict(salt=[]), dict(salt=3)])
def test_wrong_options_reach_no_engine(llm, how):
    """A key that cannot be hashed would end the engine's thread, a salt everybody's requests."""
    for call in (lambda: llm.choose(PROMPT, [" a", " b"], **how), lambda: llm.score(PROMPT, " a", **how), lambda: llm.start_prompt_logprobs([5, 6], **how)):
        with pytest.raises(RequestError, match=next(iter(how))):
            call()
    assert llm.healthy and llm.score(PROMPT, " a", priority=1, key="k", salt="s").logprob < 0


def test_what_does_not_fit(llm):
    n = llm.n_ctx - len(llm.tokenize(PROMPT, special=True))
    assert len(llm.score(PROMPT, [5] * (n + 1)).logprobs) == n + 1      # the last token is not computed
    with pytest.raises(ContextError):
        llm.score(PROMPT, [5] * (n + 2))

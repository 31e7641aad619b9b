"""Structured output of a real model, from Llama's arguments to the text: it follows, it ends, and it is one answer."""
import json
import re

import pytest
from grammars import ARITHMETIC, PERSON, REGEXES, SCHEMAS

from pyengine import Llama
from pyengine.errors import GrammarError, RequestError

jsonschema = pytest.importorskip("jsonschema")
pytest.importorskip("llguidance")

ASK = [{"role": "user", "content": "Answer with one short JSON value about a red bird named Ada."}]


@pytest.fixture(scope="module")
def llm(real_model):
    with Llama(real_model("smollm2"), n_ctx=2048, max_seqs=8, speculate=None) as llm:
        yield llm


def follows(answer, schema):
    """An answer that stopped is valid; one that was cut begins as JSON does."""
    assert answer.finish_reason in ("stop", "length")
    if answer.finish_reason == "stop":
        jsonschema.validate(json.loads(answer.text), schema, cls=jsonschema.Draft202012Validator)
    assert not re.search(r"\s{30}", answer.text)
    return answer.finish_reason == "stop"


# What these allow has no bound that a small model would keep.
OPEN = ("any object", "pattern names", "at least", "recursive", "all of")


@pytest.mark.parametrize("name", SCHEMAS)
def test_answers_are_valid(llm, name):
    schema = SCHEMAS[name]
    greedy = llm.chat(ASK, json_schema=schema, temperature=0, max_tokens=60)
    drawn = llm.chat(ASK, json_schema=json.dumps(schema), temperature=1.0, top_k=0, top_p=1, min_p=0, seed=11, max_tokens=60, n=3)
    ended = [follows(a, schema) for a in (greedy, *drawn)]
    assert name in OPEN or sum(ended) >= 2, [a.text for a in (greedy, *drawn)]


@pytest.mark.long
@pytest.mark.parametrize("name", SCHEMAS)
def test_many_answers_are_valid(llm, name):
    ended = 0
    for seed in range(2):
        for answer in llm.chat(ASK, json_schema=SCHEMAS[name], temperature=1.0, top_k=0, top_p=1, min_p=0, seed=seed, max_tokens=200, n=8):
            ended += follows(answer, SCHEMAS[name])
    assert name in OPEN or ended >= 4


def test_any_object_without_a_hint(llm):
    """The worst case for blanks without end: nothing in the prompt speaks of JSON."""
    for answer in llm.generate("Once upon a time", json_schema={"type": "object"}, n=8, temperature=1.0, seed=1, max_tokens=40):
        follows(answer, {"type": "object"})
        assert answer.text.startswith("{")


@pytest.mark.parametrize("regex", REGEXES)
def test_regex(llm, regex):
    for temperature in (0, 1.0):
        answer = llm.generate("Her number is ", regex=regex, temperature=temperature, seed=3, max_tokens=100)
        assert answer.finish_reason == "stop" and re.fullmatch(regex, answer.text), answer.text


def test_gbnf_arithmetic(llm):
    for seed, answer in enumerate(llm.generate("2*(3+4)=14\n5-1=4\n", grammar=ARITHMETIC, n=4, temperature=1.0, seed=5, max_tokens=40)):
        assert re.fullmatch(r"[-+*/()\d]+(=\d{0,3}\n?)?", answer.text)
        assert answer.finish_reason == "length" or answer.text.endswith("\n") and answer.text.count("(") == answer.text.count(")")


def test_characters_beyond_ascii(llm):
    """Of several tokens each: no token ends where a character does not."""
    for grammar, want in (("root ::= [\U0001f600-\U0001f64f]{2}", "[\U0001f600-\U0001f64f]{2}"), ('root ::= "\u6b6a"', "\u6b6a"), ("root ::= [^a-zA-Z ]{3}", r"[^a-zA-Z ]{3}")):
        answer = llm.generate("Smile: ", grammar=grammar, max_tokens=20, temperature=1.0, seed=2)
        assert answer.finish_reason == "stop" and re.fullmatch(want, answer.text, re.S) and "\ufffd" not in answer.text


def test_lark(llm):
    answer = llm.generate("The answer: ", lark='start: ("yes" | "no") "!"', max_tokens=10, temperature=0)
    assert answer.text in ("yes!", "no!") and answer.finish_reason == "stop"


# ---- one answer -----------------------------------------------------------------------------

def test_the_same_in_any_company(llm, real_model):
    """Alone, as a choice of several, in a batch with others, without the cache, on one thread, with guesses."""
    how = dict(json_schema=PERSON, temperature=0.9, seed=21, max_tokens=80)
    alone = llm.chat(ASK, **how)
    assert llm.chat(ASK, n=3, **how)[0].tokens == alone.tokens
    others = llm.start([llm.tokenize("Once upon a time")] * 3, max_tokens=50, seed=1)
    again = llm.chat(ASK, **how)
    for job in others:
        job.cancel()
        job.ended.wait()
    assert again.tokens == alone.tokens and again.text == alone.text
    with Llama(real_model("smollm2"), n_ctx=512, n_threads=1, n_batch=16, max_seqs=2, prefix_cache=False, speculate="lookup") as other:
        assert other.chat(ASK, **how).tokens == alone.tokens
    assert "".join(llm.chat(ASK, stream=True, **how)) == alone.text


def test_logprobs_change_nothing_and_cover_all_tokens(llm):
    """Forced tokens are computed for their logprobs then; without, they take no row of their own."""
    how = dict(json_schema=PERSON, temperature=0.9, seed=4, max_tokens=80)
    plain, told = llm.chat(ASK, **how), llm.chat(ASK, logprobs=2, **how)
    assert told.tokens == plain.tokens and [e["id"] for e in told.logprobs] == told.tokens
    prompt = llm.chat_tokens(ASK)
    assert [e["logprob"] for e in told.logprobs] == llm.score(prompt, told.tokens).logprobs


def test_forced_tokens_take_no_step_each(llm):
    """The text is the only one; spelled freely it takes a step per token, forced it takes one for all."""
    text = "The quick brown fox jumps over the lazy dog and runs away."
    regex = re.escape(text).replace("\\ ", " ")
    steps = llm.stats()["steps"]
    forced = llm.generate("Say: ", regex=regex, temperature=0, max_tokens=100)
    forced_steps = llm.stats()["steps"] - steps
    free = llm.generate("Say: ", regex=regex, temperature=0, max_tokens=100, logit_bias={5: -100})
    free_steps = llm.stats()["steps"] - steps - forced_steps
    assert forced.text == free.text == text and forced.finish_reason == free.finish_reason == "stop"
    assert forced.tokens == llm.tokenize(text, add_bos=False)
    assert forced_steps <= 2 and free_steps >= len(free.tokens)


def test_forced_names_save_steps_in_a_schema(llm):
    schema = {"type": "object", "properties": {"international_telephone_number": {"enum": [1, 2]}, "preferred_delivery_address": {"enum": [3, 4]}},
              "required": ["international_telephone_number", "preferred_delivery_address"], "additionalProperties": False}
    how = dict(json_schema=schema, temperature=0, max_tokens=60)
    steps = llm.stats()["steps"]
    forced = llm.chat(ASK, **how)
    forced_steps = llm.stats()["steps"] - steps
    assert follows(forced, schema) and forced_steps <= len(forced.tokens) - 3


# ---- with the other parameters -----------------------------------------------------------------

def test_max_tokens_cuts(llm):
    answer = llm.chat(ASK, json_schema=PERSON, temperature=0, max_tokens=5)
    assert answer.finish_reason == "length" and len(answer.tokens) == 5
    with pytest.raises(ValueError):
        json.loads(answer.text)
    assert llm.chat(ASK, json_schema=PERSON, max_tokens=0).text == ""
    answer = llm.generate("x", regex="The quick brown fox jumps", max_tokens=3)      # within what is forced
    assert answer.finish_reason == "length" and answer.text == "The quick brown" and len(answer.tokens) == 3


def test_stop_strings_cut_and_forced_text_has_them(llm):
    answer = llm.generate("x", regex="The quick brown fox jumps", stop=" fox")
    assert answer.text == "The quick brown" and answer.finish_reason == "stop"
    whole = llm.chat(ASK, json_schema=PERSON, temperature=0, max_tokens=80)
    cut = llm.chat(ASK, json_schema=PERSON, temperature=0, max_tokens=80, stop='"age"')
    assert whole.text.startswith(cut.text) and '"age"' not in cut.text and cut.finish_reason == "stop"


def test_the_empty_text(llm):
    for how in ({"regex": ""}, {"grammar": 'root ::= ""'}):
        answer = llm.generate("x", max_tokens=5, **how)
        assert answer.text == "" and answer.tokens == [] and answer.finish_reason == "stop"


def test_ignore_eos_goes_on_as_far_as_it_may(llm):
    free = llm.generate("The sky is", regex="[a-z ]+", max_tokens=30, temperature=0, ignore_eos=True)
    assert free.finish_reason == "length" and len(free.tokens) == 30
    bounded = llm.generate("The sky is", regex="[a-z ]{1,12}", max_tokens=30, temperature=0, ignore_eos=True)
    assert bounded.finish_reason == "stop" and re.fullmatch("[a-z ]{12}", bounded.text)


def test_bans_hold_within_a_grammar(llm):
    """A banned token does not come, even where its text must: then it is spelled in others, or an error names what is left."""
    schema = {"type": "object", "properties": {"name": {"enum": ["Ada"]}}, "required": ["name"], "additionalProperties": False}
    token = llm.tokenize("name", add_bos=False)
    assert len(token) == 1
    for temperature in (0, 1.0):
        answer = llm.chat(ASK, json_schema=schema, logit_bias={token[0]: -100}, temperature=temperature, seed=1, max_tokens=60)
        assert token[0] not in answer.tokens and json.loads(answer.text) == {"name": "Ada"}
    a = llm.tokenize("a", add_bos=False)[0]
    with pytest.raises(RequestError, match="of the tokens that the grammar allows.*leave no token"):
        llm.generate("x", regex="a", logit_bias={a: -100})


def test_processors_and_penalties(llm):
    seen = []
    answer = llm.generate("x", regex="(yes|no){3}", processors=[lambda ids, logits: seen.append(len(ids))], temperature=0, max_tokens=20)
    assert re.fullmatch("(yes|no){3}", answer.text) and len(seen) >= len(answer.tokens)
    answer = llm.generate("x", regex="(yes|no){3}", repeat_penalty=5.0, temperature=0, max_tokens=20)
    assert re.fullmatch("(yes|no){3}", answer.text)


def test_choices_of_one_request(llm):
    answers = llm.chat(ASK, json_schema=PERSON, n=4, temperature=1.0, seed=8, max_tokens=60)
    assert len({a.text for a in answers}) > 1 and sum(follows(a, PERSON) for a in answers) >= 2
    prompts = llm.generate(["One: ", "Two: "], regex="[a-z]{3}", temperature=1.0, seed=8)
    assert all(re.fullmatch("[a-z]{3}", a.text) for a in prompts)


# ---- errors -----------------------------------------------------------------------------------

def test_errors_are_the_requests_own(llm):
    with pytest.raises(GrammarError, match="'not'") as e:
        llm.generate("x", json_schema={"not": {}})
    assert e.value.param == "json_schema"
    with pytest.raises(RequestError, match="json_schema is given too"):
        llm.generate("x", json_schema={}, regex="a")
    jobs = llm.start([llm.tokenize("x")] * 2, lark='start: a\na: a a a a | a a | /[a-z]/ | ""', max_tokens=20, temperature=1.0, seed=2)
    other = llm.start([llm.tokenize("x")], regex="(yes|no)!")[0]
    for job in (*jobs, other):
        job.ended.wait()
    assert other.error is None and other.result.text in ("yes!", "no!")
    for job in jobs:        # an ambiguity that grows until it is out of bounds ends its own request only
        assert isinstance(job.error, GrammarError) or job.result.finish_reason in ("stop", "length")
    assert llm.healthy and llm.generate("x", regex="ok").text == "ok"

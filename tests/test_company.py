"""One answer: whatever else runs, whoever goes first, what was cached, given up, guessed or forced, a request gets the
tokens, texts and log probabilities that it gets alone on an engine that does none of it."""
import random
import time

import pytest

import pyengine
from pyengine import fit, plan
from pyengine.engine import Engine, Request
from pyengine.gguf import GGUF
from pyengine.native import ffi
from pyengine.sampling import Params, Sampler
from tiny_gguf import Spec, write

N_CTX, N_VOCAB = 320, 331

SETTINGS = [dict(temperature=0), dict(temperature=0.8), dict(temperature=0.8, top_k=0, top_p=1.0, min_p=0.0, logprobs=3),
            dict(temperature=0.8, repeat_penalty=1.3, frequency_penalty=0.4, logit_bias={7: 3.0, 9: False}),
            dict(temperature=0, presence_penalty=1.0, logprobs=0)]


class Alternating:
    """A grammar of ids: an even one below 200, then three that are forced, again and again; it ends after 8 rounds."""

    def __init__(self):
        self.tokens = []
        self.bits = ffi.new("uint32_t[]", [0x55555555] * 6 + [0x55] + [0] * 4)

    def mask(self):
        return self.bits

    def forced(self):
        at = len(self.tokens) % 4
        return [self.tokens[-1] + i + 1 for i in range(3)] if at == 1 else []

    def commit(self, token):
        self.tokens.append(token)

    @property
    def complete(self):
        return len(self.tokens) >= 32


class Guesses:
    """Knows the answers, and says the truth now and then; a better guesser than any, and a worse one."""

    def __init__(self, seed):
        self.random, self.answers = random.Random(seed), {}
        self.n_verified = 0

    def propose(self, requests, room):
        for r in requests:
            n = len(r.seq.tokens) - len(r.prompt)
            truth = self.answers.get(id(r), [])[n:n + self.random.randint(0, 6)]
            draft = [t if self.random.random() < 0.8 else self.random.randrange(N_VOCAB) for t in truth]
            r.seq.draft = draft[:min(room, max(0, r.most - len(r.seq.tokens) - 1))]
            room -= len(r.seq.draft)

    def measured(self, rows, seconds):
        assert rows > 0 and seconds > 0

    def verified(self, request, proposed, accepted):
        assert 0 <= accepted <= proposed
        self.n_verified += accepted

    def close(self):
        self.answers.clear()


@pytest.fixture(scope="module", params=["llama", "gemma3", "lfm2"])
def gguf(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param) / "m.gguf"
    write(path, Spec(arch=request.param, seed=11, n_layer={"llama": 2, "gemma3": 6, "lfm2": 3}[request.param]))
    with GGUF(path) as g:
        yield g


def engine(gguf, *, pages=4.0, reuse=True, guesses=None, **settings):
    program = plan.compile(gguf, **{"n_ctx": N_CTX, "max_seqs": 4, "max_tokens": 64, **settings})
    return Engine(program, n_pages=[int(n * pages) + 1 for n in fit.one_sequence(program)], n_threads=2, reuse=reuse, guesses=guesses)


class Ask:
    """A request as a value: made anew for every engine."""

    def __init__(self, number, rng):
        texts = [[(13 * i + j * j) % 300 for j in range(200)] for i in range(3)]
        self.prompt = rng.choice(texts)[:rng.choice([1, 2, 63, 64, 65, 100, 130, 200])] + [number % 3] * rng.randint(0, 2)
        self.settings, self.seed = rng.choice(SETTINGS), rng.randrange(5)
        self.n, self.max_tokens = rng.choice([1, 1, 1, 2, 3]), rng.choice([1, 5, 40, 90, 200])
        self.priority, self.key, self.salt = rng.randint(0, 1), rng.choice("ab"), rng.choice(["", "", "x"])
        self.constrained = rng.random() < 0.3

    def requests(self):
        params = Params(**self.settings, seed=self.seed).validated(N_VOCAB)
        parent = None
        for sequence in range(self.n):
            got = []
            r = Request(self.prompt, sampler=Sampler(params, N_VOCAB, self.seed), max_tokens=self.max_tokens, end_ids=frozenset([3, 8]),
                        on_token=lambda s, got=got: got.append((s.token, s.logprob, s.top)), sequence=sequence, parent=parent,
                        priority=self.priority, key=self.key, salt=self.salt, constraint=Alternating() if self.constrained else None)
            parent = parent or r
            yield r, got


def run(e, requests=()):
    for r in requests:
        e.add(r)
    for _ in range(20000):
        if e.idle:
            return
        e.step()
    raise AssertionError("requests that never end")


def answer(r, got):
    assert r.error is None and r.tokens == [t for t, _, _ in got]
    return got, r.finish_reason


def alone(gguf, asks):
    """Each by itself, with nothing kept and nothing shared."""
    e = engine(gguf, reuse=False, max_seqs=1)
    out = []
    for ask in asks:
        for r, got in ask.requests():
            r.seq.parent = None
            run(e, [r])
            out.append(answer(r, got))
    e.close()
    return out


@pytest.mark.parametrize("way", [dict(), dict(pages=1.2), dict(pages=1.2, reuse=False, max_tokens=17), dict(max_wanted=3, max_tokens=9)],
                         ids=["roomy", "short of pages", "short, nothing kept", "small steps"])
def test_everything_at_once(gguf, way):
    """Shared beginnings, choices, priorities, keys, salts, penalties, log probabilities, forced tokens, guesses that are
    mostly right and preemption, all in the same steps; requests come while others run and some are cancelled."""
    stats = [everything(gguf, way, seed) for seed in (1, 2)]
    assert sum(s["accepted"] for s in stats) > 0, "no guess came true"
    assert sum(s["preemptions"] if "pages" in way else s["cached_tokens"] for s in stats) > 0


def everything(gguf, way, seed):
    rng = random.Random(seed)
    asks = [Ask(i, rng) for i in range(14)]
    expected = alone(gguf, asks)
    guesses = Guesses(seed)
    e = engine(gguf, guesses=guesses, **way)
    given, doomed = [], []
    for ask in asks:
        for r, got in ask.requests():
            guesses.answers[id(r)] = [t for t, _, _ in expected[len(given)][0]]
            given.append((r, got))
            e.add(r)
        for other, _ in asks[rng.randrange(14)].requests():
            e.add(other)
            doomed.append(other)
        for _ in range(rng.randint(0, 12)):
            e.step()
        if rng.random() < 0.7:
            e.cancel(doomed[rng.randrange(len(doomed))])
    run(e)
    for (r, got), (want, reason) in zip(given, expected):
        have, why = answer(r, got)
        assert (have, why) == (want, reason)
    stats = e.stats()
    assert not any(stats["pages_used"]) and stats["accepted"] == guesses.n_verified
    e.close()
    return stats


def test_a_constraint_that_breaks_breaks_its_own_request(gguf):
    class Broken(Alternating):
        def __init__(self, when):
            super().__init__()
            self.when = when

        def commit(self, token):
            if len(self.tokens) == self.when:
                raise KeyError("mine")
            super().commit(token)

        def forced(self):
            if self.when < 0:
                raise KeyError("mine")
            return super().forced()

    e = engine(gguf)
    sampler = Sampler(Params(temperature=0).validated(N_VOCAB), N_VOCAB, 1)
    others = [Request([5, 6], sampler=sampler, max_tokens=30) for _ in range(2)]
    broken = [Request([5, 6, i], sampler=sampler, max_tokens=30, constraint=Broken(i)) for i in (-1, 0, 5)]
    run(e, [others[0], *broken, others[1]])
    assert others[0].tokens == others[1].tokens and len(others[0].tokens) == 30
    assert all(isinstance(r.error, KeyError) and r.finish_reason is None for r in broken)
    assert [len(r.tokens) for r in broken] == [0, 0, 4] and not any(e.cache.used)
    e.close()


@pytest.mark.parametrize("logprobs", [None, 2])
def test_forced_tokens_cost_no_steps(gguf, logprobs):
    """8 rounds of a choice and the three that follow it are 8 steps, and one more where the last three's rows are read."""
    e = engine(gguf)
    got = []
    sampler = Sampler(Params(temperature=0, logprobs=logprobs).validated(N_VOCAB), N_VOCAB, 1)
    r = Request([5, 6], sampler=sampler, constraint=Alternating(), on_token=lambda s: got.append(s))
    run(e, [r])
    assert len(r.tokens) == 32 and r.finish_reason == "stop" and e.counters["steps"] == (8 if logprobs is None else 9)
    assert all((s.logprob is None) == (logprobs is None) for s in got)
    e.close()


def test_deadlines(gguf):
    """In the queue and in the prompt: an error. After the first token: what there is, and why. No others are touched."""
    e = engine(gguf, max_seqs=1)
    sampler = Sampler(Params(temperature=0).validated(N_VOCAB), N_VOCAB, 1)
    late = Request([5], sampler=sampler, deadline=time.monotonic())
    run(e, [late])
    assert isinstance(late.error, pyengine.DeadlineError) and isinstance(late.error, TimeoutError) and late.tokens == []
    first = Request([5], sampler=sampler, deadline=time.monotonic() + 1000)
    waiting = Request([6], sampler=sampler, deadline=time.monotonic() + 2000)
    e.add(first)
    e.add(waiting)
    for _ in range(3):
        e.step()
    e._deadlines = [(0.0, n, r) for _, n, r in e._deadlines]       # it is later now
    e.step()
    assert (first.finish_reason, first.error, len(first.tokens)) == ("deadline", None, 3)
    assert isinstance(waiting.error, pyengine.DeadlineError) and e.idle and not any(e.cache.used)
    e.close()


def test_deadlines_do_not_keep_what_ended(gguf):
    e = engine(gguf)
    sampler = Sampler(Params(temperature=0).validated(N_VOCAB), N_VOCAB, 1)
    for _ in range(300):
        run(e, [Request([5], sampler=sampler, max_tokens=1, deadline=time.monotonic() + 1000)])
    assert len(e._deadlines) <= 129
    e.close()


def test_cancelled_anywhere(gguf):
    """In the queue, in the middle of a prompt, between choices, as parent and as child: the rest goes on, nothing is left."""
    e = engine(gguf, max_seqs=2, max_tokens=32)
    sampler = Sampler(Params(temperature=0.9).validated(N_VOCAB), N_VOCAB, 4)
    for steps in (0, 1, 2, 4, 6, 9, 12):
        for doomed in ({0}, {1}, {2}, {0, 2}, {0, 1, 2}):
            parent = Request([9] * 150, sampler=sampler, max_tokens=6)
            all_ = [parent] + [Request([9] * 150, sampler=sampler, max_tokens=6, sequence=i, parent=parent) for i in (1, 2)]
            for r in all_:
                e.add(r)
            for _ in range(steps):
                e.step()
            for i in doomed:
                e.cancel(all_[i])
            run(e)
            e.cache.clear()
            assert [len(r.tokens) for i, r in enumerate(all_) if i not in doomed] == [6] * (3 - len(doomed))
            assert e.cache.free == e.cache.n_pages
    e.close()


# ---- a real model ----------------------------------------------------------------------

SYSTEM = "You are a careful librarian who answers in one short sentence. " * 12
QUESTIONS = ["Who wrote Hamlet?", "What is a folio?", "Name a colour.", "Count from one to five."]


@pytest.mark.parametrize("way, temperature", [("cached", 0), ("cached", 0.8), ("preempted", 0.8)])
def test_smollm2_in_company(real_model, temperature, way):
    """n=2, cached or preempted, by lookup, with priorities: as alone on a fresh engine."""
    path, begin = real_model("smollm2"), SYSTEM if way == "cached" else ""
    texts = [begin + question for question in QUESTIONS[:None if begin else 2]]
    settings = dict(max_tokens=20 if begin else 135, temperature=temperature, seed=3, logprobs=1, ignore_eos=True)
    with pyengine.Llama(path, n_ctx=256, max_seqs=1, prefix_cache=False, speculate=None) as llm:
        expected = [llm.generate(text, **settings) for text in texts]
        second = llm.generate(texts[0], n=2, **settings)[1]
    more = dict(cache_tokens=1024) if begin else dict(cache_tokens=1, prefix_cache=False)
    with pyengine.Llama(path, n_ctx=256, max_seqs=4, **more) as llm:
        prompts = [llm.tokenize(text, special=True) for text in texts]
        for _ in range(2 if begin else 1):
            jobs = llm.start(prompts[:1], n=2, priority=1, **settings) + llm.start(prompts[1:], key="other", **settings)
            assert all(job.ended.wait(120) for job in jobs)
            for job, want in zip(jobs, [expected[0], second, *expected[1:]]):
                assert job.error is None
                assert (job.result.tokens, job.result.text, job.result.logprobs) == (want.tokens, want.text, want.logprobs)
        stats = llm.stats()
        assert not any(stats["pages_used"]) and (stats["cached_tokens"] > 500 if begin else stats["preemptions"] > 0)


def test_only_what_is_new_is_computed(real_model):
    """Case 75: a follow-up turn computes neither the first question nor its answer again; case 73: again is equal."""
    with pyengine.Llama(real_model("smollm2"), n_ctx=1024) as llm:
        messages = [{"role": "user", "content": "Name three rivers of Europe."}]
        cold = llm.chat(messages, max_tokens=40, temperature=0)
        again = llm.chat(messages, max_tokens=40, temperature=0)
        assert cold.cached_tokens == 0 and again.cached_tokens == again.usage["prompt_tokens"] - 1
        assert (again.text, again.usage["cached_tokens"]) == (cold.text, again.cached_tokens)
        more = llm.chat([*messages, {"role": "assistant", "content": cold.text}, {"role": "user", "content": "And one of Asia?"}], max_tokens=2)
        known = cold.usage["prompt_tokens"] + cold.usage["completion_tokens"]
        assert known - 2 <= more.cached_tokens < more.usage["prompt_tokens"] and more.timings["prompt_n"] + more.cached_tokens == more.usage["prompt_tokens"]
        salted = llm.chat(messages, max_tokens=40, temperature=0, salt="somebody else's")
        assert salted.cached_tokens == 0 and salted.text == cold.text

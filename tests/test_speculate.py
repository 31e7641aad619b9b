"""Speculation: the index against a plain search, the width against simulated machines, and the engine's answers with and without."""
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyengine
from pyengine import draft, fit, plan

from pyengine.engine import Engine, Request
from pyengine.errors import MemoryBudgetError, RequestError
from pyengine.gguf import GGUF
from pyengine.sampling import Params, Sampler
from pyengine.speculate import LIMIT, Lookup, Lookups, Odds, Width, useful
from tiny_gguf import Spec, write

# ---- the index ---------------------------------------------------------------------------------------


def guess_positions(tokens, n_prompt=0, memory=Lookup.MEMORY):
    """By plain search, what Lookup keeps an index for: (position of the guess, length of its match) after 1, 2, ... tokens."""
    at, length = -1, 0
    for end in range(1, len(tokens) + 1):
        if end > n_prompt and at >= 0 and tokens[at] == tokens[end - 1] and length >= Lookup.RUNS[0]:
            at, length = at + 1, length + 1
            yield at, length
            continue
        at, length = -1, 0
        for n in Lookup.RUNS:
            behind = range(end - 1, max(n, end - memory) - 1, -1)
            at = next((p for p in behind if tokens[p - n:p] == tokens[end - n:end]), -1) if n <= end else -1
            if at >= 0:
                while length < min(at, Odds.LONGEST) and tokens[at - 1 - length] == tokens[end - 1 - length]:
                    length += 1
                break
        yield at, length


def continued(tokens, at, most):
    out = list(tokens)
    for _ in range(most):
        out.append(out[at + len(out) - len(tokens)])
    return out[len(tokens):]


texts = st.lists(st.integers(0, 3), min_size=1, max_size=120)


@given(texts, st.integers(1, 120), st.integers(0, LIMIT), st.lists(st.integers(1, 9), max_size=60))
@settings(max_examples=200, deadline=None)
def test_lookup_is_the_last_place_of_the_longest_run(tokens, n_prompt, most, strides):
    """Whatever the calls before were, the guess is that of a plain search."""
    n_prompt = min(n_prompt, len(tokens))
    lookup, seen = Lookup(n_prompt), n_prompt
    for stride in strides:                     # earlier calls, with fewer tokens
        lookup.propose(tokens[:seen], stride % 4)
        seen = min(len(tokens), seen + stride)
    guess = lookup.propose(list(tokens), most)
    at, length = list(guess_positions(tokens, n_prompt))[-1]
    assert guess == ([] if at < 0 else continued(tokens, at, most))
    assert lookup.length == length
    assert guess == lookup.propose(list(tokens), most)


@given(st.lists(st.integers(0, 2), min_size=30, max_size=150), st.integers(1, 100), st.integers(10, 40), st.integers(1, 50))
@settings(max_examples=50, deadline=None)
def test_lookup_forgets_what_is_long_ago(tokens, n_prompt, memory, at_once):
    class Short(Lookup):
        __slots__ = ()
        MEMORY, AT_ONCE = memory, at_once

    n_prompt = min(n_prompt, len(tokens))
    lookup = Short(n_prompt)
    while lookup._read < n_prompt:
        lookup.read(tokens[:n_prompt])
    for end, (at, length) in enumerate(guess_positions(tokens, n_prompt, memory), 1):
        if end >= n_prompt:
            guess = lookup.propose(tokens[:end], 3)
            assert guess == ([] if at < 0 else continued(tokens[:end], at, 3))
            assert lookup.length == length
            assert end > memory + n_prompt or len(lookup._last) <= 2 * memory * len(Lookup.RUNS)


def test_a_long_prompt_is_read_over_several_calls():
    tokens = [random.Random(3).randrange(50) for _ in range(2 * Lookup.AT_ONCE)] + [7, 8, 9, 7, 8]
    lookup = Lookup(len(tokens))
    assert lookup.propose(tokens, 4) == []
    assert lookup.propose(tokens, 4) == []
    assert lookup.propose(tokens, 4) == [9, 7, 8, 9]


def test_equal_hashes_of_other_tokens_are_no_match(monkeypatch):
    monkeypatch.setitem(Lookup.propose.__globals__, "hash", lambda run: 1)
    lookup = Lookup(0)
    assert lookup.propose([1, 2, 3, 4, 5, 6], 4) == []
    assert lookup._last == {1: 6}


@given(texts)
@settings(max_examples=100, deadline=None)
def test_odds_are_learned_from_the_answer_alone(tokens):
    """Every token of the answer whose guess was known counts once, right or wrong, guessed at or not."""
    n_prompt = max(1, len(tokens) // 2)

    class Counting(Odds):
        __slots__ = ("log",)

        def saw(self, length, hit):
            self.log.append((length, hit))

    odds = Counting()
    odds.log = []
    lookup = Lookup(n_prompt, odds)
    for end in range(n_prompt, len(tokens) + 1, 3):
        lookup.propose(tokens[:end], 2)
    lookup.read(tokens)
    guesses = zip(guess_positions(tokens, n_prompt), tokens[1:])       # after one token, and the second
    assert odds.log == [(length, tokens[at] == token) for (at, length), token in list(guesses)[n_prompt - 1:] if at >= 0]


@given(st.lists(st.tuples(st.integers(2, 40), st.booleans()), max_size=300))
@settings(max_examples=100, deadline=None)
def test_chances_are_chances_and_fall(seen):
    odds = Odds(Odds())
    for length, hit in seen:
        odds.saw(length, hit)
    chances = odds.chances(2, LIMIT)
    assert all(0 < c < 1 for c in chances)
    assert chances == sorted(chances, reverse=True)


def test_odds_follow_what_happens_and_begin_as_the_others():
    everyone = Odds()
    first = Odds(everyone)
    for _ in range(200):
        first.saw(4, False)
    assert first.of(4) < 0.05 and first.of(16) == Odds().of(16)
    assert Odds(everyone).of(4) < 0.15          # a new sequence need not learn it again
    for _ in range(200):
        first.saw(4, True)
    assert first.of(4) > 0.9


# ---- the width ----------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 40), st.floats(1e-4, 10)), min_size=1, max_size=60))
@settings(max_examples=100, deadline=None)
def test_cost_never_falls_with_rows(steps):
    width = Width()
    for rows, seconds in steps:
        width.measured(rows, seconds)
    costs = [width.seconds(rows) for rows in range(1, 60)]
    assert costs == sorted(costs) and costs[0] > 0
    highest = max(s for _, s in steps)
    assert all(width.seconds(rows) <= highest * (1 + 1e-9) for rows, _ in steps)
    rows, seconds = steps[-1]
    for _ in range(100):
        width.measured(rows, seconds)
    assert width.seconds(rows) == pytest.approx(seconds, rel=1e-3)


def test_cost_of_rows_that_never_ran():
    width = Width()
    assert width.seconds(3) is None and width.share([[0.9] * 4], 16) == [0]
    width.measured(2, 0.012)
    assert width.seconds(1) == pytest.approx(0.010) and width.seconds(6) == pytest.approx(0.020)
    width.measured(10, 0.100)                   # expected were 0.028: half of the way to twice that, it may have been a stall
    assert width.seconds(10) == pytest.approx(0.042)
    assert width.seconds(6) == pytest.approx((0.012 + 0.042) / 2)


@given(st.lists(st.tuples(st.floats(0.01, 0.99), st.integers(0, 20)), min_size=1, max_size=16), st.integers(0, 64), st.floats(0.0, 1.0))
@settings(max_examples=100, deadline=None)
def test_share_keeps_its_bounds(sequences, room, slope):
    width = Width()
    for rows in (1, 2, 4, 8, 16, 32, 64):
        width.measured(rows, 1 + slope * (rows - 1))
    chances = [[p ** (i + 1) for i in range(n)] for p, n in sequences]
    for _ in range(2 * Width._FIRST):
        counts = width.share(chances, room)
        assert sum(counts) <= room
        assert all(0 <= c <= min(len(of), LIMIT) for c, of in zip(counts, chances))


def known(slope):
    width = Width()
    for rows in range(1, 65):
        width.measured(rows, 1 + slope * (rows - 1))
    return width


def test_rows_go_where_they_are_worth_most():
    good, bad = [0.95 ** i for i in range(1, 17)], [0.05 ** i for i in range(1, 17)]
    assert known(0.02).share([bad, good, [], good], 16) == [0, 8, 0, 8]
    assert known(0.2).share([bad, good, [], good], 16) == [0, 2, 0, 2]
    assert known(0.2).share([good], 16) == [10]


def test_a_copy_does_not_slow_its_company():
    """The more there are that do not guess, the fewer guesses one may make: nobody waits much for another's copy."""
    copy = [0.99 ** i for i in range(1, 17)]
    counts = [known(0.2).share([copy] + [[]] * n, 16)[0] for n in (0, 1, 3, 7, 15)]
    assert counts == sorted(counts, reverse=True) and counts[0] == 16 and counts[-1] == 0
    for n, count in zip((0, 1, 3, 7, 15), counts):
        assert n == 0 or (1 + 0.2 * (n + count)) / (1 + 0.2 * n) < 2


def simulate(cost, accepted, steps, n=1, each=0.0, seed=1):
    """Tokens per second of n sequences whose guesses come true with chance `accepted`, in the last three quarters of the steps,
    and the guesses of each step."""
    rnd, width, everyone = random.Random(seed), Width(), Odds()
    odds, lengths = [Odds(everyone) for _ in range(n)], [2] * n
    tokens = time = 0
    taken = []
    for step in range(steps):
        if step == steps // 4:
            tokens = time = 0
        counts = width.share([o.chances(length, LIMIT) for o, length in zip(odds, lengths)], 16, each)
        seconds = cost(n + sum(counts)) * rnd.uniform(0.97, 1.05)
        width.measured(n + sum(counts), seconds)
        time += seconds + each * max(counts)
        for i, count in enumerate(counts):
            # The tokens of this step were guessed, computed along or not: as Lookup does.
            for j in range(count + 1):
                hit = rnd.random() < accepted
                odds[i].saw(lengths[i], hit)
                tokens += 1
                lengths[i] = lengths[i] + 1 if hit else 2
                if not hit:
                    break
        taken.append(sum(counts))
    return tokens / time, taken


@given(st.floats(0, 1), st.floats(0.02, 1.2), st.integers(1, 6), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_near_the_best_width_and_never_behind_none(accepted, slope, n, seed):
    """On a machine with this slope and this acceptance: at least 0.97 of the rate without guesses, 0.85 of the best fixed width."""
    def cost(rows):
        return 0.01 * (1 + slope * (rows - 1))

    rate, _ = simulate(cost, accepted, 1000, n, seed=seed)

    def fixed(width):
        expected = 1 + sum(accepted ** i for i in range(1, width + 1))
        return n * expected / (cost(n + n * width) * 1.01)

    assert rate >= 0.97 * fixed(0)
    assert rate >= 0.85 * max(fixed(w) for w in range(16 // n + 1))


def test_backs_off_and_probes_ever_more_rarely():
    """Rows as dear as steps: guesses do not pay, and the longer it lasts the fewer are made; when rows get cheap they are found."""
    width, now = Width(), [1.0]
    made = []
    for step in range(6000):
        count = width.share([[0.8, 0.64, 0.5]], 16)[0]
        width.measured(1 + count, 0.01 * (1 + now[0] * count))
        made.append(count)
        if step == 4000:
            now[0] = 0.05
    assert sum(map(bool, made[:500])) <= 10 and sum(map(bool, made[2000:4000])) <= 3
    assert all(made[-500:])


def test_a_draft_models_steps_are_part_of_the_price():
    def cost(rows):
        return 0.01 * (1 + 0.1 * (rows - 1))

    cheap, few = simulate(cost, 0.8, 600, each=0.0005), simulate(cost, 0.8, 600, each=0.02)
    assert sum(few[1][100:]) < 100 < sum(cheap[1][100:])
    assert few[0] > 0.98 / 0.0101


def test_reading_is_part_of_the_price_and_probes_are_a_hundredth():
    width = known(0.1)
    likely = [0.8 ** i for i in range(1, 17)]
    assert width.share([likely], 16, 0.1)[0] > 0
    assert width.share([likely], 16, 0.1, reading=10000.0)[0] == 0
    made, reading = [], 30.0                    # as long as 30 steps, and the draft's own steps do not pay
    for _ in range(20000):
        made.append(width.share([likely], 16, 5.0, reading)[0])
        width.measured(1, 1.0)
    assert 0 < sum(map(bool, made)) * (reading + 10) < 0.012 * len(made)


# ---- the engine's answers -------------------------------------------------------------------------------


N_VOCAB = 331


class Fixed(Width):
    """So many guesses for everyone, whatever they cost: what a test asserts must not depend on a clock."""

    def __init__(self, width):
        super().__init__()
        self.width = width

    def share(self, chances, room, each=0.0, reading=0.0):
        counts = []
        for of in chances:
            counts.append(min(self.width, len(of), room))
            room -= counts[-1]
        return counts


def lookups(width=6):
    guesses = Lookups()
    guesses.width = Fixed(width)
    return guesses


class Told(Lookups):
    """Guesses from answers that are known, wrong in a part of them: 0 is an oracle, 1 garbage."""

    def __init__(self, answers, wrong):
        super().__init__()
        self.answers, self.wrong, self.rnd = answers, wrong, random.Random(5)

    def propose(self, requests, room):
        for request in requests:
            n = min(self.rnd.randrange(LIMIT + 1), useful(request), room)
            at = len(request.tokens)
            answer = self.answers[tuple(request.prompt), request.sequence][at:at + n]
            request.seq.draft = [self.rnd.randrange(N_VOCAB) if self.rnd.random() < self.wrong else t for t in answer]
            room -= len(answer)


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def path(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param) / "m.gguf"
    write(path, Spec(arch=request.param, seed=5, n_layer=2 if request.param == "llama" else 6))
    return path


def engine(gguf, guesses=None, *, pages=None, reuse=True, **settings):
    settings = {"n_ctx": 256, "max_seqs": 4, "max_tokens": 64, **settings}
    program = plan.compile(gguf, **settings)
    n_pages = [n * (pages or settings["max_seqs"]) for n in fit.one_sequence(program)]
    return Engine(program, n_pages=n_pages, n_threads=2, guesses=guesses, reuse=reuse)


def requests(n, seen=None, **params):
    """Of every prompt two answers that share it; `seen` receives what was sampled."""
    params = Params(**{"seed": 3, "logprobs": 2, **params}).validated(N_VOCAB)
    out = []
    for i, prompt in enumerate(PROMPTS):
        parent = None
        for sequence in range(2):
            log = [] if seen is None else seen.setdefault((tuple(prompt), sequence), [])
            r = Request(prompt, sampler=Sampler(params, N_VOCAB, 3), max_tokens=n + 5 * i, sequence=sequence, parent=parent, on_token=log.append)
            parent = parent or r
            out.append(r)
    return out


# Texts that repeat (guesses from them come true now and then) and texts that do not.
PROMPTS = [[5, 6, 7, 8] * 6, [(7 * i) % 300 for i in range(90)], [1], [9, 9, 9], [(i * i) % 31 for i in range(60)]]


def run(e, some):
    for r in some:
        e.add(r)
    steps = 0
    while not e.idle:
        e.step()
        steps += 1
        assert steps < 5000
    assert not any(r.error for r in some)
    assert all(used == 0 for used in e.cache.used)
    return {(tuple(r.prompt), r.sequence): r.tokens for r in some}


SAMPLING = [dict(temperature=0.0), dict(temperature=0.8), dict(temperature=0.9, repeat_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.3)]


@pytest.mark.parametrize("params", SAMPLING, ids=["greedy", "0.8", "penalties"])
def test_guesses_change_no_answer(path, params):
    """Right, half right, garbage or looked up; alone in the pool, preempted, cached or not: tokens, log probabilities and the best others."""
    with GGUF(path) as gguf:
        e, expected = engine(gguf), {}
        answers = run(e, requests(40, expected, **params))
        plain = e.counters["steps"]
        e.close()
        guessers = {"lookup": lookups(), "oracle": Told(answers, 0.0), "half": Told(answers, 0.5), "garbage": Told(answers, 1.0)}
        for name, guesses in guessers.items():
            e, seen = engine(gguf, guesses), {}
            assert run(e, requests(40, seen, **params)) == answers and seen == expected, name
            counters = e.counters
            assert 0 <= counters["accepted"] <= counters["proposed"], name
            assert counters["generated_tokens"] == sum(map(len, answers.values()))
            if name == "oracle":
                assert counters["accepted"] == counters["proposed"] > 100 and counters["steps"] < plain / 2
            assert run(e, requests(40, **params)) == answers, f"{name}, cached"
            e.close()
        e = engine(gguf, lookups(), max_seqs=10, max_wanted=40)       # so many that texts without a match are read now and then
        assert run(e, requests(40, **params)) == answers and (e.counters["proposed"] > 0 or "repeat_penalty" in params)
        e.close()
        for more in (dict(pages=1), dict(reuse=False), dict(max_tokens=9), dict(max_wanted=5), dict(max_seqs=1)):
            e = engine(gguf, Told(answers, 0.3), **more)
            assert run(e, requests(40, **params)) == answers, more
            e.close()


def test_an_answer_ends_within_its_guesses(path):
    """At a token that ends a turn, at a stop, at max_tokens and at the context's end, nothing of a longer run of right guesses is kept."""
    with GGUF(path) as gguf:
        e = engine(gguf)
        full = run(e, requests(150, temperature=0.7))
        e.close()
        e = engine(gguf, Told(full, 0.0))
        for (prompt, sequence), tokens in full.items():
            end = tokens[20]
            ends = dict(end_ids=frozenset([end])), dict(on_token=lambda sampled: sampled.token == end), dict(max_tokens=21)
            first = tokens.index(end)
            for how, n, reason in zip(ends, (first, first + 1, 21), ("stop", "stop", "length")):
                r = Request(prompt, sampler=Sampler(Params(temperature=0.7, seed=3).validated(N_VOCAB), N_VOCAB, 3), sequence=sequence, **how)
                run(e, [r])
                assert (r.tokens, r.finish_reason) == (tokens[:n], reason)
        r = Request(PROMPTS[1], sampler=Sampler(Params(temperature=0.7, seed=3).validated(N_VOCAB), N_VOCAB, 3))
        run(e, [r])
        assert len(r.prompt) + len(r.tokens) == 256 and r.finish_reason == "length"
        assert r.tokens[:155] == full[tuple(PROMPTS[1]), 0][:155]
        e.close()


# ---- a draft model -----------------------------------------------------------------------------------------


def drafting(gguf, width=5, **settings):
    memory = fit.decide(gguf, **{"n_ctx": 256, "max_seqs": 4, "max_tokens": 64, **settings})
    guesses = draft.Draft(memory, n_threads=1)
    guesses.width = Fixed(width)
    return guesses


@pytest.mark.parametrize("params", SAMPLING[1:], ids=["0.8", "penalties"])
def test_a_draft_model_changes_no_answer(path, tmp_path, params):
    other = tmp_path / "other.gguf"
    write(other, Spec(arch="llama", seed=8, n_layer=1, n_embd=32, n_head=2, n_ff=(32,)))
    with GGUF(path) as gguf:
        e, expected = engine(gguf), {}
        answers = run(e, requests(40, expected, **params))
        e.close()
        for small, more in ((path, {}), (other, {}), (path, dict(n_ctx=128)), (other, dict(max_tokens=8))):
            for pages in (4, 1):
                guesses, seen = drafting(GGUF(small), **more), {}
                e = engine(gguf, guesses, pages=pages)
                assert run(e, requests(40, seen, **params)) == answers and seen == expected
                assert e.counters["proposed"] > 0
                guesses.propose([], 0)
                assert guesses._cache.free == guesses._cache.n_pages
                e.close()


def test_a_model_drafts_for_itself(path):
    """Greedy guesses of the same model are what greedy sampling gives: each comes true, rolled back pages and windows or not."""
    with GGUF(path) as gguf:
        e = engine(gguf)
        answers = run(e, requests(60, temperature=0.0))
        plain = e.counters["steps"]
        e.close()
        guesses = drafting(GGUF(path))
        e = engine(gguf, guesses)
        assert run(e, requests(60, temperature=0.0)) == answers
        assert e.counters["accepted"] == e.counters["proposed"] > 100 and e.counters["steps"] < plain / 2
        e.close()
        # Where sampling goes other ways than its guesses they are computed over again: each first guess is the best token after
        # what was really sampled, so nothing that was computed of wrong ones is left in its pages.
        guesses = Noting(fit.decide(GGUF(path), n_ctx=256, max_seqs=4, max_tokens=64), n_threads=1)
        guesses.width, seen = Fixed(5), {}
        e = engine(gguf, guesses)
        run(e, requests(60, seen, temperature=1.5))
        assert 0 < e.counters["accepted"] < e.counters["proposed"] / 2 and len(guesses.first) > 100
        assert all(token == seen[key][n].top[0][0] for (key, n), token in guesses.first.items() if n < len(seen[key]))
        e.close()


def test_guesses_of_a_step_that_was_stopped_are_made_anew(path):
    """Not beside the new ones: behind those that fit into the context there is no page."""
    with GGUF(path) as gguf:
        answers = []
        for guesses in (None, drafting(GGUF(path))):
            e = engine(gguf, guesses, n_ctx=64)
            r = Request(PROMPTS[0], sampler=Sampler(Params(temperature=0.0).validated(N_VOCAB), N_VOCAB, 3))
            e.add(r)
            while not r.done:
                e.program.stop()
                e.step()
                assert len(r.seq.draft) <= useful(r)
                e.step()
            assert r.error is None and r.finish_reason == "length"
            answers.append(r.tokens)
            e.close()
        assert answers[0] == answers[1]


class Noting(draft.Draft):
    """Keeps the first guess of each proposal: of which answer, for which of its tokens."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.first = {}

    def propose(self, requests, room):
        super().propose(requests, room)
        for r in requests:
            if r.seq.draft:
                self.first[(tuple(r.prompt), r.sequence), len(r.tokens)] = r.seq.draft[0]


def test_a_draft_model_that_fails_is_left_out_with_a_warning(path):
    with GGUF(path) as gguf:
        e = engine(gguf)
        answers = run(e, requests(30, temperature=0.8))
        e.close()
        guesses = drafting(GGUF(path))
        e = engine(gguf, guesses)
        guesses.program.close()
        with pytest.warns(UserWarning, match="draft model failed, going on without guesses"):
            assert run(e, requests(30, temperature=0.8)) == answers
        e.close()


def test_a_draft_with_another_vocabulary_is_refused_by_name(path, tmp_path):
    other = tmp_path / "other.gguf"
    for spec, what in ((dict(n_vocab=400), "400 and 331 tokens"), (dict(vocabulary="bpe"), "one is 'gpt2', the other 'llama'")):
        write(other, Spec(arch="llama", seed=1, **spec))
        with GGUF(path) as gguf, pytest.raises(RequestError, match="other.gguf has another vocabulary than m.gguf: " + what) as e:
            draft.plan(other, gguf, n_ctx=256, free=None, n_threads=1, max_seqs=4, max_tokens=64)
        assert e.value.param == "speculate"


# ---- Llama ---------------------------------------------------------------------------------------------------


CODE = "def area(width, height):\n    return width * height\n\ndef volume(width, height, depth):\n    return area(width, height) * depth\n"
TEXTS = [f"Repeat this code:\n{CODE}\nAgain:\n{CODE}\nAgain:\ndef area(", "The quick brown fox", "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,"]


def answers_of(llm):
    """What an answer is made of, over the parameters that touch a token's choice and the text's end."""
    out = []
    for more in (dict(temperature=0), dict(temperature=0.8, n=2), dict(temperature=0.8, repeat_penalty=1.1, frequency_penalty=0.2, stop=["volume(", " 20,"]),
                 dict(temperature=0.7, logprobs=3)):
        for r in llm.generate(TEXTS, max_tokens=28, seed=4, **more):
            out.append((r.text, r.tokens, r.finish_reason, r.logprobs))
    return out


def test_real_answers_with_and_without(real_model):
    path = real_model("smollm2")
    settings = dict(n_ctx=512, n_threads=2, tune=False)
    with pyengine.Llama(path, speculate=None, **settings) as llm:
        expected = answers_of(llm)
        assert llm.stats()["proposed"] == 0
    for more in (dict(), dict(speculate=str(path)), dict(cache_tokens=512, prefix_cache=False)):
        with pyengine.Llama(path, **settings, **more) as llm:
            llm._thread.engine.guesses.width = Fixed(7)
            assert answers_of(llm) == expected, more
            stats = llm.stats()
            assert 0 < stats["accepted"] < stats["proposed"], more
    with pyengine.Llama(path, **settings) as llm:     # as it is: the clock chooses; the second time the prompts are cached
        assert answers_of(llm) == expected and answers_of(llm) == expected


def test_what_llama_refuses_to_draft_with(path, tmp_path):
    other = tmp_path / "other.gguf"
    write(other, Spec(arch="llama", n_vocab=400))
    with pytest.raises(RequestError, match="another vocabulary"):
        pyengine.Llama(path, speculate=str(other))
    with pytest.raises(FileNotFoundError):
        pyengine.Llama(path, speculate=str(tmp_path / "none.gguf"))
    with pytest.raises(RequestError, match="speculate: found 3"):
        pyengine.Llama(path, speculate=3)


def test_a_draft_is_counted_and_closed_with_its_model(path, monkeypatch):
    monkeypatch.setattr(fit, "free", lambda: 1 << 33)
    with pyengine.Llama(path, n_ctx=256, speculate=str(path)) as llm:
        guesses = llm._thread.engine.guesses
        small = guesses.memory
        assert llm.memory.free == (1 << 33) - small.own - small.weights and guesses.program.n_ctx == 256
        llm.generate("a", max_tokens=4)
    assert not guesses.program.is_open
    monkeypatch.setattr(fit, "free", lambda: 200 << 20)
    with pytest.raises(RequestError, match="needs more than a 4th of the"):
        pyengine.Llama(path, n_ctx=256, n_batch=65536, speculate=str(path))


def test_a_draft_is_closed_where_its_model_does_not_open(path, monkeypatch):
    """Its threads are there already when the model's own memory, or threads, cannot be had."""
    seen, real = [], draft.Draft.__init__

    def begin(self, *args, **more):
        real(self, *args, **more)
        seen.append(self)

    def refuse(self, *args, **more):
        raise MemoryBudgetError("cannot start 2 threads")

    monkeypatch.setattr(draft.Draft, "__init__", begin)
    monkeypatch.setattr(Engine, "__init__", refuse)
    with pytest.raises(MemoryBudgetError):
        pyengine.Llama(path, n_ctx=64, speculate=str(path))
    assert not seen[0].program.is_open

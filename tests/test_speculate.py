"""Speculation: the index against a plain search, the width against simulated machines, and the engine's answers with and without."""
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine.speculate import LIMIT, Lookup, Odds, Width

# ---- the index ---------------------------------------------------------------------------------------


def guess_positions(tokens, memory=Lookup.MEMORY):
    """By plain search, what Lookup keeps an index for: (position of the guess, length of its match) after 1, 2, ... tokens."""
    at, length = -1, 0
    for end in range(1, len(tokens) + 1):
        if at >= 0 and tokens[at] == tokens[end - 1] and length >= Lookup.RUNS[0]:
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


@given(texts, st.integers(0, LIMIT), st.lists(st.integers(1, 9), max_size=60))
@settings(max_examples=100, deadline=None)
def test_lookup_is_the_last_place_of_the_longest_run(tokens, most, strides):
    """Whatever the calls before were, the guess is that of a plain search."""
    lookup, seen = Lookup(len(tokens)), 0
    for stride in strides:                     # earlier calls, with fewer tokens
        seen = min(len(tokens), seen + stride)
        lookup.propose(tokens[:seen], stride % 4)
    guess = lookup.propose(list(tokens), most)
    at, length = list(guess_positions(tokens))[-1]
    assert guess == ([] if at < 0 else continued(tokens, at, most))
    assert lookup.length == length
    assert guess == lookup.propose(list(tokens), most)


@given(st.lists(st.integers(0, 2), min_size=30, max_size=150), st.integers(10, 40))
@settings(max_examples=100, deadline=None)
def test_lookup_forgets_what_is_long_ago(tokens, memory):
    class Short(Lookup):
        __slots__ = ()
        MEMORY = memory

    lookup = Short(0)
    for end, (at, _) in enumerate(guess_positions(tokens, memory), 1):
        guess = lookup.propose(tokens[:end], 3)
        assert guess == ([] if at < 0 else continued(tokens[:end], at, 3))
        assert len(lookup._last) <= memory * len(Lookup.RUNS)


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
    n_prompt = len(tokens) // 2

    class Counting(Odds):
        __slots__ = ("log",)

        def saw(self, length, hit):
            self.log.append((length, hit))

    odds = Counting()
    odds.log = []
    lookup = Lookup(n_prompt, odds)
    for end in range(1, len(tokens) + 1, 3):
        lookup.propose(tokens[:end], 2)
    lookup.read(tokens)
    guesses = zip(guess_positions(tokens), tokens[1:])       # after one token, and the second
    assert odds.log == [(length, tokens[at] == token) for (at, length), token in list(guesses)[max(0, n_prompt - 1):] if at >= 0]


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


def test_rows_go_where_they_are_worth_most():
    width = Width()
    for rows in range(1, 33):
        width.measured(rows, 1 + 0.2 * (rows - 1))
    good, bad = [0.95 ** i for i in range(1, 17)], [0.2 ** i for i in range(1, 17)]
    for _ in range(3):
        counts = width.share([bad, good, [], good], 16)
        assert counts[0] == counts[2] == 0 and counts[1] == counts[3] >= 6


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

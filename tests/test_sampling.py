"""sampling.py and csrc/sample.c against the chain written out plainly: full sorts, plain loops.

The plain form shares only exp and log with the C (tested against mpmath elsewhere); tokens
have to be equal, not close.
"""
import math
import struct
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.vops import OTHERS, TIERS, f32

from pyengine.errors import NonFiniteError, PyengineError, RequestError
from pyengine.native import ffi, lib
from pyengine.sampling import Params, Sampler, coin, new_scratch, new_seed, steps

INF = np.float32(np.inf)
SCALAR = TIERS["scalar"]


def sampler(n, params=None, seed=1, allowed=None, **given):
    return Sampler((params or Params(**given)).validated(n), n, seed, allowed)


def pick(logits, *, prompt=(), generated=(), position=0, sequence=0, seed=1, allowed=None, **given):
    x = np.ascontiguousarray(logits, np.float32)
    s = sampler(len(x), seed=seed, allowed=allowed, **given)
    return s.sample(f32(x), list(prompt), list(generated), position, sequence)


# ---- the plain form -------------------------------------------------------------------

def exp(d):
    d = np.ascontiguousarray(d, np.float32)
    y = np.empty_like(d)
    if len(d):
        SCALAR.exp(f32(y), f32(d), len(d))
    return y


def lanes(values):
    """Blocks of 4,096, sixteen lanes each, in the type of the values. Returns the blocks' sums."""
    sums = []
    for b in range(0, len(values), 4096):
        block = values[b:b + 4096]
        s = np.pad(block, (0, -len(block) % 16)).reshape(-1, 16)
        acc = np.zeros(16, values.dtype)
        for row in s:
            acc = acc + row
        for half in (8, 4, 2, 1):
            acc = acc[:half] + acc[half:2 * half]
        sums.append(acc[0])
    return sums


def in_order(values, zero):
    for v in values:
        zero = zero + v
    return zero


def adjusted(x, p, prompt, generated, allowed):
    y = x.copy()
    for i, bias in p.logit_bias:
        y[i] = y[i] + np.float32(bias)
    context = [*prompt, *generated]
    window = context if p.repeat_last_n < 0 else context[-p.repeat_last_n:] if p.repeat_last_n else []
    if p.repeat_penalty != 1:
        for i in set(window):
            r = np.float32(p.repeat_penalty)
            y[i] = y[i] / r if y[i] > 0 else y[i] * r
    if p.presence_penalty or p.frequency_penalty:
        for i, count in Counter(generated).items():
            y[i] = y[i] - np.float32(count) * np.float32(p.frequency_penalty) - np.float32(p.presence_penalty)
    if allowed is not None:
        y[~np.asarray(allowed, bool)] = -INF
    return y


def plain(x, p, seed, position, sequence=0, prompt=(), generated=(), allowed=None):
    """The token, or None where everything is masked."""
    y = adjusted(x, p, prompt, generated, allowed)
    order = sorted((i for i in range(len(y)) if y[i] > -INF), key=lambda i: (-y[i], i))
    if not order:
        return None
    if p.temperature == 0 or p.top_k == 1 or len(y) == 1:
        return order[0]
    whole = not 0 < p.top_k < len(y)
    if not whole:
        order = order[:p.top_k]
    best = y[order[0]]
    total = None
    if p.typical_p < 1:
        ids = sorted(order) if whole else order
        d = y[ids] - best
        e = exp(d)
        if whole:
            full_d = y - best
            full_e = exp(full_d)
            total = float(in_order(lanes(full_e), np.float32(0)))
            product = np.where(full_e > 0, full_e.astype(float) * np.where(full_e > 0, full_d, 0).astype(float), 0.0)
            centre = float(in_order(lanes(product), 0.0)) / total
        else:
            total = in_order(map(float, e), 0.0)
            centre = in_order((float(a) * float(b) for a, b in zip(e, d) if a > 0), 0.0) / total
        shift = np.abs(np.float32(centre) - d)
        mass, kept = 0.0, []
        for j in sorted((j for j in range(len(ids)) if e[j] > 0), key=lambda j: (shift[j], j)):
            kept.append(ids[j])
            mass += float(e[j])
            if mass >= p.typical_p * total:
                break
        order = sorted(kept, key=lambda i: (-y[i], i))
        best, whole = y[order[0]], False
    if whole and p.top_p == 1 and p.min_p == 0:
        inv_t = np.float32(1 / p.temperature)
        q = exp((y - best) * inv_t)
        sums = lanes(q)
        r = coin(seed, sequence, position) * float(in_order(sums, np.float32(0)))
        running = np.float32(0)
        for b, s in enumerate(sums):
            before, running = running, running + s
            if s > 0 and r < running:
                break
        c = float(before)
        for i in range(b * 4096, min(len(y), (b + 1) * 4096)):
            c += float(q[i])
            if q[i] > 0 and r < c:
                return i
        raise AssertionError("rounding at the end of a block: choose other test data")
    e = exp(y[order] - best)
    if p.top_p < 1:
        total = float(in_order(lanes(exp(y - y.max())), np.float32(0))) if whole else in_order(map(float, e), 0.0)
        c, m = 0.0, 0
        while m < len(order) and c < p.top_p * total:
            c += float(e[m])
            m += 1
        order, e = order[:m], e[:m]
    order = [i for i, v in zip(order, e) if float(v) >= p.min_p and (v > 0 or p.min_p == 0)]
    q = exp((y[order] - best) * np.float32(1 / p.temperature))
    r, c = coin(seed, sequence, position) * in_order(map(float, q), 0.0), 0.0
    for i, v in zip(order, q):
        c += float(v)
        if r < c:
            return i
    raise AssertionError("rounding at the end: choose other test data")


def logits_of(kind, n, rng):
    if kind == "ties":
        return rng.integers(-3, 4, n).astype(np.float32) * np.float32(0.5)
    if kind == "equal":
        return np.full(n, rng.choice([-7.5, 0.0, 30.0]), np.float32)
    if kind == "peaked":
        x = rng.standard_normal(n).astype(np.float32)
        x[rng.integers(n)] += 25
        return x
    if kind == "wide":
        return (rng.standard_normal(n) * 1e4).astype(np.float32)
    if kind == "signed zeros":
        return rng.choice(np.array([0.0, -0.0, -1.0], np.float32), n)
    return (rng.standard_normal(n) * 3).astype(np.float32)


CHAINS = [
    {}, {"temperature": 0}, {"top_k": 1}, {"top_k": 0}, {"top_k": 0, "top_p": 1, "min_p": 0},
    {"top_k": 0, "min_p": 0}, {"top_k": 0, "top_p": 1}, {"top_k": 0, "top_p": 1, "min_p": 1.0},
    {"top_k": 0, "top_p": 0.9999999, "min_p": 0}, {"top_k": 0, "top_p": 1e-9}, {"top_k": 0, "top_p": 1, "min_p": 1e-30},
    *({"top_k": 0, "top_p": 1, "min_p": m, "temperature": 100} for m in (0.26, 0.5, 0.999999, 0.0013)),
    {"typical_p": 0.5}, {"typical_p": 0.9, "top_k": 0}, {"typical_p": 0.2, "top_k": 0, "top_p": 1, "min_p": 0},
    {"top_k": 700, "top_p": 0.99, "min_p": 0}, {"top_k": 700, "top_p": 1, "min_p": 0, "temperature": 1e-6},
    {"top_k": 0, "top_p": 1, "min_p": 0, "temperature": 100},
    {"repeat_penalty": 1.3}, {"repeat_penalty": 0.5, "repeat_last_n": -1}, {"repeat_penalty": 1.3, "repeat_last_n": 3},
    {"presence_penalty": 2.0, "temperature": 0}, {"frequency_penalty": -1.5, "presence_penalty": 0.5},
    {"logit_bias": {0: 5, 2: -100, 1: False}}, {"logit_bias": {0: -2}, "repeat_penalty": 1.1, "frequency_penalty": 1.0},
]


@pytest.mark.parametrize("chain", CHAINS, ids=[", ".join(f"{k}={v}" for k, v in c.items()) or "defaults" for c in CHAINS])
@pytest.mark.parametrize("kind", ["normal", "ties", "equal", "peaked", "wide", "signed zeros"])
def test_equals_the_plain_chain(chain, kind):
    rng = np.random.default_rng([CHAINS.index(chain), len(kind)])
    for n in (3, 4, 31, 127, 128, 129, 1000, 4096, 9001):
        x = logits_of(kind, n, rng)
        allowed = None if n % 2 else rng.integers(0, 4, n) > 0
        if allowed is not None and not allowed.any():
            allowed[-1] = True
        prompt, generated = rng.integers(0, n, 50).tolist(), rng.integers(0, n, 20).tolist()
        p = Params(**chain).validated(n)
        s = Sampler(p, n, 7, allowed)
        for position in (0, 1, 2**40):
            want = plain(x, p, 7, position, 3, prompt, generated, allowed)
            if want is None:
                with pytest.raises(RequestError, match="no token"):
                    s.sample(f32(x), prompt, generated, position, 3)
            else:
                assert s.sample(f32(x), prompt, generated, position, 3).token == want, (n, position)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=2, max_size=300),
       st.floats(0, 100).filter(lambda t: t == 0 or t >= 1e-6), st.integers(0, 50), st.floats(0.01, 1), st.floats(0, 1),
       st.floats(0.01, 1), st.integers(0, 2**64 - 1))
def test_any_finite_logits_and_parameters_give_a_token(values, temperature, k, top_p, min_p, typical_p, seed):
    got = pick(values, temperature=temperature, top_k=k, top_p=top_p, min_p=min_p, typical_p=typical_p, seed=seed,
               repeat_penalty=10, presence_penalty=2, logprobs=20) if max(map(abs, values)) < 1e37 else \
        pick(values, temperature=temperature, top_k=k, top_p=top_p, min_p=min_p, typical_p=typical_p, seed=seed, logprobs=20)
    assert 0 <= got.token < len(values) and not math.isnan(got.logprob)


@pytest.mark.parametrize("tier", OTHERS)
def test_same_token_and_logprobs_on_every_tier(tier):
    rng = np.random.default_rng(0)
    n = 20_001
    x = logits_of("normal", n, rng)
    for chain in CHAINS:
        p = Params(**chain, logprobs=5).validated(n)
        a, b = (Sampler(p, n, 3, vops=ffi.addressof(TIERS[t])) for t in ("scalar", tier))
        for position in range(10):
            assert a.sample(f32(x), [1, 2], [3, 3], position) == b.sample(f32(x), [1, 2], [3, 3], position)


def test_logits_are_not_written_to():
    x = logits_of("normal", 5000, np.random.default_rng(1))
    before = x.tobytes()
    for chain in CHAINS:
        pick(x, generated=[1, 2, 2], prompt=[5], logprobs=20, allowed=[i % 3 > 0 for i in range(5000)],
             processors=[lambda ids, y: y.fill(1)], **chain)
    assert x.tobytes() == before


def test_scratch_may_be_shared_between_samplers():
    x = logits_of("normal", 3000, np.random.default_rng(2))
    shared = new_scratch(3000)
    for chain in CHAINS:
        p = Params(**chain).validated(3000)
        got = [Sampler(p, 3000, 5, scratch=shared).sample(f32(x), [1], [2], i).token for i in range(5)]
        assert got == [Sampler(p, 3000, 5).sample(f32(x), [1], [2], i).token for i in range(5)]


# ---- the coin ---------------------------------------------------------------------------

def philox(counter, key):
    """Philox4x32-10, from its paper."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def test_philox_known_answers():
    """The generator's published vectors: all zeros, all ones."""
    assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_coin(seed, sequence, position, use):
    lo, hi = struct.unpack("<II", struct.pack("<Q", position))
    w = philox([lo, hi, sequence, use], struct.unpack("<II", struct.pack("<Q", seed)))
    assert lib.pe_coin(seed, sequence, position, use) == ((w[0] << 32 | w[1]) >> 11) * 2.0**-53 < 1


def test_draws_follow_the_distribution():
    """Chi-square over 20,000 positions; fixed seeds, so it does not flicker. 99.9 % points."""
    x = np.log(np.array([0.4, 0.3, 0.15, 0.1, 0.04, 0.01])).astype(np.float32)
    for chain, p in (({"top_k": 0, "top_p": 1, "min_p": 0, "temperature": 1}, [0.4, 0.3, 0.15, 0.1, 0.04, 0.01]),
                     ({"top_k": 4, "top_p": 1, "min_p": 0, "temperature": 1}, [0.4, 0.3, 0.15, 0.1]),
                     ({"top_k": 0, "top_p": 0.6, "min_p": 0, "temperature": 1}, [0.4, 0.3]),
                     ({"top_k": 0, "top_p": 1, "min_p": 0.3, "temperature": 1}, [0.4, 0.3, 0.15]),
                     ({"top_k": 3, "top_p": 1, "min_p": 0, "temperature": 0.5}, [0.16, 0.09, 0.0225])):
        s = sampler(6, seed=11, **chain)
        seen = Counter(s.sample(f32(x), [], [], i).token for i in range(20_000))
        p = np.array(p) / sum(p)
        assert set(seen) == set(range(len(p)))
        chi = sum((seen[i] - 20_000 * q) ** 2 / (20_000 * q) for i, q in enumerate(p))
        assert chi < {2: 10.8, 3: 13.8, 4: 16.3, 6: 20.5}[len(p)]


def test_token_is_a_function_of_seed_sequence_position():
    x = logits_of("normal", 500, np.random.default_rng(3)) * np.float32(0.2)
    def tokens(seed, sequence):
        s = sampler(500, seed=seed, temperature=2, top_p=1, min_p=0)
        forward = [s.sample(f32(x), [], [], i, sequence).token for i in range(40)]
        assert forward == [s.sample(f32(x), [], [], i, sequence).token for i in reversed(range(40))][::-1]
        return forward
    assert tokens(1, 0) == tokens(1, 0)
    assert len({tuple(tokens(*a)) for a in ((1, 0), (2, 0), (1, 1), (1 + 2**32, 0))}) == 4
    assert 0 <= new_seed() < 2**32


# ---- cases ------------------------------------------------------------------------------

@pytest.mark.parametrize("more", [{}, {"top_k": 5}, {"top_p": 0.5}, {"top_k": 0, "typical_p": 0.3, "min_p": 1}])
def test_case_49_temperature_zero_is_greedy_with_ties_by_lowest_id(more):
    x = np.full(1000, -5.0, np.float32)
    x[[700, 300, 900]] = 2.0
    assert pick(x, temperature=0, **more).token == 300
    x[:] = 0
    assert pick(x, temperature=0, **more).token == 0
    x[:5] = -0.0  # the two zeros are one value
    assert pick(x, temperature=0, **more).token == 0


@pytest.mark.parametrize("window, penalized", [(0, set()), (1, {9}), (3, {7, 8, 9}), (-1, {1, 2, 7, 8, 9}),
                                               (2**31 - 1, {1, 2, 7, 8, 9})])
def test_case_52_repeat_window(window, penalized):
    """Equal logits, greedy: the token is the first that is not penalized."""
    n = 12
    for i in range(n):
        x = np.full(n, -1000.0, np.float32)
        x[i], x[11 - (i == 11)] = 1.0, 0.9
        got = pick(x, prompt=[1, 2], generated=[7, 8, 9], temperature=0, repeat_penalty=1.5, repeat_last_n=window).token
        assert (got != i) == (i in penalized), i


def test_case_55_presence_and_frequency_look_at_the_answer_only():
    x = np.array([1.0, 0.9, 0.0], np.float32)
    for field in ("presence_penalty", "frequency_penalty"):
        assert pick(x, prompt=[0] * 50, temperature=0, **{field: 2}).token == 0
        assert pick(x, prompt=[0] * 50, generated=[0], temperature=0, **{field: 2}).token == 1
    assert pick(x, prompt=[0], temperature=0, repeat_penalty=2).token == 1  # this one does see the prompt
    # presence once, frequency per occurrence
    assert pick([3.0, 0.9], generated=[0, 0, 0], temperature=0, presence_penalty=2).token == 0
    assert pick([3.0, 0.9], generated=[0, 0, 0], temperature=0, frequency_penalty=1).token == 1


EFFECTS = [
    ("temperature", {"temperature": 0}), ("top_k", {"top_k": 2}), ("top_p", {"top_p": 0.3}), ("min_p", {"min_p": 0.9}),
    ("typical_p", {"typical_p": 0.1}), ("repeat_penalty", {"repeat_penalty": 5}),
    ("repeat_last_n", {"repeat_penalty": 5, "repeat_last_n": 1}), ("presence_penalty", {"presence_penalty": 2}),
    ("frequency_penalty", {"frequency_penalty": 2}), ("logit_bias", {"logit_bias": {3: 100}}),
    ("processors", {"processors": [lambda ids, y: np.roll(y, 1)]}),
]


@pytest.mark.parametrize("name, change", EFFECTS)
def test_case_56_every_parameter_has_an_effect(name, change):
    x = np.linspace(2, -2, 30).astype(np.float32)
    base = {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0}
    if name == "repeat_last_n":
        base["repeat_penalty"] = 5
    def run(**more):
        s = sampler(30, **{**base, **more})
        return [s.sample(f32(x), [4, 4, 5], [0, 1, 2, 2], i).token for i in range(60)]
    assert run() != run(**change)


@pytest.mark.parametrize("bias", [{"414": -100}, {414: -100}, [[414, False]], [(414, -100.0)], {414: -math.inf}, {"414": False}])
def test_case_57_forms_of_logit_bias(bias):
    x = np.zeros(1000, np.float32)
    x[414], x[415] = 300, 1
    assert pick(x, temperature=0).token == 414
    assert pick(x, temperature=0, logit_bias=bias).token == 415  # -100 bans, however good the token
    s = sampler(1000, logit_bias=bias, top_k=0, top_p=1, min_p=0, temperature=100)
    assert 414 not in {s.sample(f32(x), [], [], i).token for i in range(500)}


def test_case_57_more_of_logit_bias():
    x = logits_of("normal", 1000, np.random.default_rng(4))
    assert {pick(x, logit_bias={556: 100}, position=i).token for i in range(50)} == {556}
    best = np.argsort(-x, kind="stable")
    many = {int(i): -100 for i in best[:300]}
    assert pick(x, temperature=0, logit_bias=many).token == best[300]
    # text keys, where there is a tokenizer to ask; in pairs a string is always text
    encode = {"ab": [1, 2, 1], "7": [9], "": []}.__getitem__
    assert Params(logit_bias={"ab": 2}).validated(10, encode).logit_bias == ((1, 2.0), (2, 2.0))
    assert Params(logit_bias=[["7", 2]]).validated(10, encode).logit_bias == ((9, 2.0),)
    assert Params(logit_bias={"7": 2}).validated(10, encode).logit_bias == ((7, 2.0),)
    for bad in ({"": 1}, [("ab", 1), ("ab", 2)]):
        with pytest.raises(RequestError):
            Params(logit_bias=bad).validated(10, encode)


def test_case_60_everything_masked_or_not_finite():
    x = np.zeros(200, np.float32)
    everything = {i: -100 for i in range(200)}
    for chain in CHAINS:
        with pytest.raises(RequestError, match="no token to choose from"):
            pick(x, **{**chain, "logit_bias": everything})
        with pytest.raises(RequestError, match="no token to choose from"):
            pick(x, processors=[lambda ids, y: y.fill(-np.inf)], **chain)
    for bad in (np.nan, np.inf, -np.inf):
        for at in (0, 15, 16, 127, 128, 198, 199):
            y = x.copy()
            y[at] = bad
            for chain in ({}, {"temperature": 0}, {"logit_bias": {at: -100}}, {"processors": [lambda ids, y: None]},
                          {"logprobs": 3}):
                with pytest.raises(NonFiniteError, match="position 5"):
                    pick(y, position=5, **chain)
    assert pick(x, temperature=0).token == 0  # and the next request is served


def test_case_125_logprobs_are_those_of_the_raw_logits():
    rng = np.random.default_rng(6)
    x = logits_of("normal", 9000, rng)
    x[[20, 10, 30]] = 15
    exact = x.astype(np.longdouble) - np.logaddexp.reduce(x.astype(np.longdouble))
    for chain in ({"temperature": 0}, {"temperature": 0.1}, {"logit_bias": {77: 100}}, {"repeat_penalty": 9.0}):
        got = pick(x, logprobs=20, generated=[10], prompt=[20], **chain)
        assert [i for i, _ in got.top] == sorted(range(9000), key=lambda i: (-x[i], i))[:20]
        assert max(abs(l - exact[i]) for i, l in [(got.token, got.logprob), *got.top]) < 1e-5
        assert dict(got.top).get(got.token, got.logprob) == got.logprob
    got = pick(x, temperature=0, logprobs=1)
    assert got.top == [(got.token, got.logprob)] and got.token == 10
    assert pick(x, temperature=0, logprobs=0).top == [] and pick(x, temperature=0).logprob is None
    assert len(pick([1.0, 2.0], logprobs=20).top) == 2


@pytest.mark.parametrize("allowed", [90, [i < 90 for i in range(100)], [i % 2 == 0 for i in range(100)], b"\0" * 99 + b"\1"])
def test_masked_rows_never_come_out(allowed):
    x = np.arange(100, dtype=np.float32) / 10  # the masked ones are the best
    good = set(range(allowed)) if isinstance(allowed, int) else {i for i, a in enumerate(allowed) if a}
    for chain in CHAINS:
        if chain.get("logit_bias"):
            continue
        s = sampler(100, allowed=allowed, logprobs=20, **chain)
        for i in range(50):
            got = s.sample(f32(x), [99], [98, 3], i)
            assert got.token in good and {t for t, _ in got.top} <= good
    assert got.top[0][0] == max(good)
    for wrong in (0, 101, [True] * 99, [False] * 100):
        with pytest.raises(PyengineError):
            sampler(100, allowed=wrong)


# ---- processors ---------------------------------------------------------------------------

def test_processors_see_ids_and_logits_and_run_first():
    x = np.array([1.0, 2.0, 3.0, 0.0], np.float32)
    seen = []

    def first(ids, logits):
        seen.append((list(ids), logits.copy()))
        logits[2] = -np.inf

    def second(ids, logits):
        assert logits[2] == -np.inf
        return [5.0, *logits[1:]]

    got = pick(x, prompt=[3, 1], generated=[2], processors=[first, second], temperature=0, logit_bias={0: -50}, logprobs=1)
    assert got.token == 1  # 2 masked by the first, 0 raised by the second and then biased
    assert seen[0][0] == [3, 1, 2] and np.array_equal(seen[0][1], x)
    assert got.top[0][0] == 2  # logprobs stay those of the raw logits


@pytest.mark.parametrize("processor, said", [
    (lambda ids, y: y[:-1], "shape"), (lambda ids, y: "x", "array of numbers"), (lambda ids, y: y * np.nan, "NaN"),
    (lambda ids, y: y + np.inf, "NaN or \\+inf"), (lambda ids, y: [[1.0]], "shape")])
def test_wrong_processors(processor, said):
    with pytest.raises(RequestError, match=said) as e:
        pick([1.0, 2.0, 3.0], processors=[processor])
    assert e.value.param == "processors"


# ---- limits -------------------------------------------------------------------------------

BAD = [("temperature", v) for v in (math.nan, -1, 1e38, math.inf, 101, 1e-7, 5e-324, "1", None, True, 10**400, [1])]
BAD += [(name, v) for name in ("top_p", "typical_p") for v in (0, 2, -0.1, math.nan, 1.0001, "x", None, False)]
BAD += [("min_p", v) for v in (-0.1, 1.1, math.nan, None, True)]
BAD += [("repeat_penalty", v) for v in (0, -1, 1e38, math.nan, math.inf, None)]
BAD += [(name, v) for name in ("presence_penalty", "frequency_penalty") for v in (1e38, -2.1, 2.1, math.nan, "2")]
BAD += [("top_k", v) for v in (-2, 2**31, 1.5, "4", None, True, 10**400)]
BAD += [("repeat_last_n", v) for v in (-2, 2**31, 64.0, None)]
BAD += [("logprobs", v) for v in (-1, 21, 10**9, 1.0, True, "5")]
BAD += [("seed", v) for v in (-2, 2**64, 1.5, "1", True)]
BAD += [("processors", v) for v in (3, [1], [print, None], "abc")]
BAD += [("logit_bias", v) for v in (
    {100: 1}, {-1: 1}, {10**9: 1}, {"100": 1}, {"x": 1}, {"": 1}, {"1.5": 1}, {1.5: 1}, {None: 1}, {True: 1}, {1: math.nan},
    {1: math.inf}, {1: 1e39}, {1: -1e39}, {1: 101}, {1: None}, {1: "5"}, {1: True}, {1: [1]}, [1], [[1]], [[1, 2, 3]], 5,
    "ab", [[1, 1], [1, 2]], {"1": 1, 1: 2}, {i: 0 for i in range(10**6)}, [(1, 1)] * 1025, {"9" * 100_000: 1}, {"--5": 1})]


@pytest.mark.parametrize("name, value", BAD, ids=[f"{n}-{i}" for i, (n, _) in enumerate(BAD)])
def test_values_outside_the_limits_are_refused_by_name(name, value):
    with pytest.raises(RequestError) as e:
        Params(**{name: value}).validated(100)
    assert e.value.param == name and name in str(e.value) and len(str(e.value)) < 300


def test_values_at_the_limits_are_taken():
    for name, values in {"temperature": (0, 1e-6, 100, np.float32(0.5)), "top_p": (1e-300, 1), "min_p": (0, 1),
                         "typical_p": (5e-324, 1), "repeat_penalty": (0.01, 10), "presence_penalty": (-2, 2),
                         "frequency_penalty": (-2, 2), "top_k": (-1, 0, 2**31 - 1, np.int64(5)),
                         "repeat_last_n": (-1, 0, 2**31 - 1), "logprobs": (None, 0, 20), "seed": (None, -1, 0, 2**64 - 1),
                         "logit_bias": (None, {}, [], {0: 0}, {99: -100}, {"099": 100}, {1: False})}.items():
        for value in values:
            p = Params(**{name: value}).validated(100)
            x = np.linspace(-3, 3, 100).astype(np.float32)
            assert 0 <= Sampler(p, 100, 0).sample(f32(x), [1, 2], [3], 0).token < 100
            assert p.validated(100) == p  # once is enough


def test_faults_99_huge_window_allocates_nothing():
    assert pick([1.0, 0.5], prompt=[0], repeat_last_n=2**31 - 1, repeat_penalty=3, temperature=0).token == 1


def test_unknown_fields_are_errors():
    with pytest.raises(TypeError):
        Params(temprature=1)


def test_steps_drop_what_does_nothing():
    def names(n=1000, **given):
        return [name for name, _ in steps(Params(**given).validated(n), n)]
    assert names() == ["top_k", "top_p", "min_p", "temperature"]
    assert names(top_k=1000, top_p=1, min_p=0) == ["temperature"]
    assert names(top_k=1) == names(temperature=0) == names(n=1) == ["greedy"]
    assert names(repeat_penalty=1.1, repeat_last_n=0) == names()
    assert names(repeat_penalty=1.1, presence_penalty=1, logit_bias={1: 1}, temperature=0) == [
        "logit_bias", "repeat_penalty", "count_penalties", "greedy"]


def test_large_vocabulary():
    """262,144 ids: the selection's larger passes, against numpy."""
    rng = np.random.default_rng(8)
    x = logits_of("normal", 262_144, rng)
    x[rng.integers(0, 262_144, 5000)] = np.float32(9.25)  # ties across the boundary of top_k
    order = np.argsort(-x, kind="stable")
    for k in (1, 2, 40, 2047, 2048, 2049, 6000):
        s = sampler(262_144, top_k=k, top_p=1, min_p=0, temperature=100)
        kept = set(order[:k].tolist())
        assert {s.sample(f32(x), [], [], i).token for i in range(60)} <= kept
    assert pick(x, logprobs=20).top[-1][0] == order[19]
    last = np.full(262_144, -30, np.float32)
    last[-1] = 0
    assert pick(last).token == pick(last, top_k=0, top_p=1, min_p=0).token == 262_143

"""The mask of ids in csrc/sample.c: a masked id is a logit of -inf, whatever else the chain does."""
import numpy as np
import pytest
from kernels.vops import OTHERS, TIERS, f32

from pyengine.errors import RequestError
from pyengine.native import ffi
from pyengine.sampling import Params, Sampler

CHAINS = [
    {"temperature": 0}, {}, {"top_k": 0, "top_p": 1, "min_p": 0}, {"top_k": 0}, {"top_k": 0, "top_p": 1, "min_p": 0.3},
    {"typical_p": 0.5, "top_k": 0}, {"typical_p": 0.9}, {"top_k": 700, "top_p": 0.99}, {"top_k": 1},
    {"repeat_penalty": 1.3, "frequency_penalty": 0.5, "temperature": 0}, {"repeat_penalty": 0.7, "presence_penalty": -1.0},
    {"logit_bias": {0: 50.0, 5: -100, 31: 3.0}, "temperature": 0}, {"logit_bias": {2: 9.0}, "top_k": 0},
    {"processors": (lambda ids, x: x * 2,)},
]


def words(flags):
    """The mask of a flag per row, as its definition says."""
    out = np.zeros((len(flags) + 31) // 32, np.uint32)
    for i in np.flatnonzero(flags):
        out[i // 32] |= np.uint32(1) << np.uint32(i % 32)
    return out


def flags_of(kind, n, rng):
    if kind == "one":
        f = np.zeros(n, bool)
        f[rng.integers(n)] = True
        return f
    if kind == "few":
        f = rng.random(n) < 0.02
    elif kind == "most":
        f = rng.random(n) < 0.99
    elif kind == "last":
        f = np.arange(n) >= n - 3
    else:
        f = np.ones(n, bool)
    f[rng.integers(n)] = True
    return f


@pytest.mark.parametrize("chain", CHAINS, ids=[", ".join(f"{k}={v}" for k, v in c.items() if k != "processors") or f"chain {i}" for i, c in enumerate(CHAINS)])
@pytest.mark.parametrize("kind", ["one", "few", "most", "last", "all"])
def test_equals_minus_infinity_in_the_logits(chain, kind):
    """A processor that writes -inf is the meaning, and one flag per row (allowed) is another way to say it."""
    rng = np.random.default_rng([CHAINS.index(chain), len(kind)])
    for n in (33, 64, 100, 128, 1000, 4097, 9001):
        x = (rng.standard_normal(n) * 4).astype(np.float32)
        flags = flags_of(kind, n, rng)
        if not (flags & ~np.isin(np.arange(n), [5])).any():
            flags[7] = True                                # a bias bans 5
        prompt, generated = rng.integers(0, n, 30).tolist(), rng.integers(0, n, 20).tolist()
        mask = words(flags)
        own = Params(**chain, logprobs=5).validated(n)
        written = [*chain.get("processors", ()), lambda ids, y: np.where(flags, y, -np.inf)]
        meaning = Params(**{**chain, "processors": written}, logprobs=5).validated(n)
        a, b, c = Sampler(own, n, 7), Sampler(meaning, n, 7), Sampler(own, n, 7, allowed=flags)
        for position in (0, 3, 2**33):
            got = a.sample(f32(x), prompt, generated, position, 2, mask=mask.ctypes.data)
            want = b.sample(f32(x), prompt, generated, position, 2)
            assert flags[got.token]
            assert got == want, (n, position)              # the token, its logprob and the list, all of the raw logits
            assert got.token == c.sample(f32(x), prompt, generated, position, 2).token


def test_mask_and_rows_without_a_token():
    """Bits beyond the tokens count for nothing, and a mask holds for one call."""
    x = np.arange(100, dtype=np.float32)
    s = Sampler(Params(temperature=0, logprobs=3).validated(100), 100, 1, 90)
    got = s.sample(f32(x), [], [], 0, mask=words(np.isin(np.arange(100), [3, 40, 95])).ctypes.data)
    assert got.token == 40
    assert [i for i, _ in got.top] == [89, 88, 87]
    assert s.sample(f32(x), [], [], 0).token == 89
    assert s.sample(f32(x), [], [], 0, mask=ffi.cast("uint32_t *", words(np.arange(100) == 3).ctypes.data)).token == 3


@pytest.mark.parametrize("chain", [{"temperature": 0}, {}, {"logit_bias": {3: -100}}])
def test_nothing_left_names_the_grammar(chain):
    x = np.zeros(70, np.float32)
    s = Sampler(Params(**chain).validated(70), 70, 1)
    mask = words(np.arange(70) == (3 if "logit_bias" in chain else 100))
    with pytest.raises(RequestError, match="position 9: of the tokens that the grammar allows, logit_bias or processors leave no token"):
        s.sample(f32(x), [], [], 9, mask=mask.ctypes.data)


@pytest.mark.parametrize("tier", OTHERS)
def test_same_on_every_tier(tier):
    rng = np.random.default_rng(5)
    n = 20_001
    x = (rng.standard_normal(n) * 3).astype(np.float32)
    for kind in ("one", "few", "most"):
        mask = words(flags_of(kind, n, rng))
        for chain in CHAINS:
            p = Params(**chain, logprobs=4).validated(n)
            a, b = (Sampler(p, n, 3, vops=ffi.addressof(TIERS[t])) for t in ("scalar", tier))
            for position in range(4):
                assert a.sample(f32(x), [1, 2], [3, 3], position, mask=mask.ctypes.data) == \
                    b.sample(f32(x), [1, 2], [3, 3], position, mask=mask.ctypes.data)

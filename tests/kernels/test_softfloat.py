"""pe_fmaf and half conversion against exact integer arithmetic and numpy."""
import math

import exact
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine.native import ffi, lib

F32 = st.floats(width=32, allow_nan=True, allow_infinity=True)


def fma_soft(a, b, c):
    a, b, c = (np.ascontiguousarray(v, dtype=np.float32) for v in (a, b, c))
    y = np.empty_like(a)
    lib.pe_fma_soft(*(ffi.cast("float *", v.ctypes.data) for v in (y, a, b, c)), a.size)
    return y


def naive(a, b, c):
    """Product and sum in double, then float: right but for double rounding."""
    with np.errstate(all="ignore"):
        return (a.astype("f8") * b.astype("f8") + c.astype("f8")).astype("f4")


def mismatches(a, b, c):
    got = fma_soft(a, b, c)
    return [
        (x, y, z, float(g))
        for x, y, z, g in zip(a.tolist(), b.tolist(), c.tolist(), got.tolist())
        if not exact.same(g, exact.fma(x, y, z))
    ]


def any_bits(rng, n):
    return rng.integers(0, 2**32, n, dtype=np.uint32).view(np.float32)


def test_random_bit_patterns():
    rng = np.random.default_rng(11)
    assert mismatches(*(any_bits(rng, 20_000) for _ in range(3))) == []


def test_comparable_sizes_cancel_and_tie():
    """Few significant bits and exponents close together: ties, cancellation, exact zeros."""
    rng = np.random.default_rng(12)
    n = 30_000

    def short():
        m = rng.integers(-(1 << 13), 1 << 13, n).astype("f4")
        return np.ldexp(m, rng.integers(-8, 8, n, np.int32)).astype("f4")

    a, b, c = short(), short(), short()
    half = n // 2
    with np.errstate(all="ignore"):
        c[:half] = -(a[:half] * b[:half])  # leaves the rounding error of the product, or +0
    assert mismatches(a, b, c) == []


def test_double_rounding_is_avoided():
    """a*b is a float's midpoint exactly and c a crumb about or below double's last bit, so that
    the double sum ties and only the crumb's sign decides. The naive form fails on these."""
    rng = np.random.default_rng(13)
    a, b, c = [], [], []
    while len(a) < 5_000:
        p, q = (int(v) for v in rng.integers(1 << 11, 1 << 13, 2) | 1)
        if (p * q).bit_length() != 25:
            continue  # an odd 25-bit product is the midpoint of two 24-bit floats
        shift = int(rng.integers(-40, 40))
        a.append(math.ldexp(p, shift) * (1 if rng.random() < 0.5 else -1))
        b.append(q)
        c.append(math.ldexp(1 + rng.random(), shift - int(rng.integers(26, 60))) * (1 if rng.random() < 0.5 else -1))
    a, b, c = (np.array(v, dtype="f4") for v in (a, b, c))
    assert mismatches(a, b, c) == []
    wrong = (naive(a, b, c).view("u4") != fma_soft(a, b, c).view("u4")).mean()
    assert wrong > 0.1, "these operands were meant to break double rounding"


def test_subnormal_and_overflowing_results():
    rng = np.random.default_rng(14)
    n = 10_000
    tiny = np.ldexp(rng.random(n) + 1, rng.integers(-90, -60, n, np.int32)).astype("f4")
    other = np.ldexp(rng.random(n) + 1, rng.integers(-80, -55, n, np.int32)).astype("f4")
    crumbs = np.ldexp(rng.integers(-20, 20, n).astype("f4"), -149).astype("f4")
    assert mismatches(tiny, -other, crumbs) == []
    big = np.ldexp(rng.random(n) + 1, rng.integers(60, 68, n, np.int32)).astype("f4")
    top = np.where(rng.random(n) < 0.5, np.float32(3.4028235e38), np.float32(-3.4028235e38))
    assert mismatches(big, big[::-1].copy(), top) == []


SPECIAL = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 2.0**-149, -(2.0**-149), 2.0**-126,
           3.4028234663852886e38, -3.4028234663852886e38, 1.0 + 2.0**-23, 1.0 - 2.0**-24, 2.0**64, 2.0**-75]


def test_special_values_in_every_combination():
    grid = np.array(np.meshgrid(SPECIAL, SPECIAL, SPECIAL), dtype="f4").reshape(3, -1)
    assert mismatches(*grid) == []


@settings(max_examples=300, deadline=None, derandomize=True)
@given(F32, F32, F32)
def test_any_floats(a, b, c):
    assert mismatches(*(np.array([v], dtype="f4") for v in (a, b, c))) == []


def halves(x):
    x = np.ascontiguousarray(x, dtype=np.float32)
    h, y = np.empty(x.size, np.uint16), np.empty_like(x)
    lib.pe_half_soft(ffi.cast("uint16_t *", h.ctypes.data), ffi.cast("float *", y.ctypes.data),
                     ffi.cast("float *", x.ctypes.data), x.size)
    return h, y


def test_every_half_survives_the_way_out_and_back():
    every = np.arange(65536, dtype=np.uint16)
    x = every.view(np.float16).astype(np.float32)
    h, y = halves(x)
    real = ~np.isnan(x)
    assert np.array_equal(h[real], every[real])
    assert np.array_equal(y[real].view("u4"), x[real].view("u4"))
    assert np.isnan(y[~real]).all()


def test_floats_round_to_halves_like_ieee():
    rng = np.random.default_rng(15)
    random = any_bits(rng, 300_000)
    near = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype("f8")
    middle = ((near[:-1] + near[1:]) / 2).astype("f4")  # ties, and one float to each side
    edges = np.array([65504, 65519.996, 65520, 65536, 2**-24, 2**-25, 2**-14, 0.0], dtype="f4")
    x = np.concatenate([random, middle, np.nextafter(middle, np.float32(9e9)),
                        np.nextafter(middle, np.float32(-9e9)), edges, -edges])
    with np.errstate(all="ignore"):
        want = x.astype(np.float16)
    h, _ = halves(x)
    real = ~np.isnan(x)
    assert np.array_equal(h[real], want[real].view("u2"))
    assert np.isnan(h[~real].view(np.float16)).all()

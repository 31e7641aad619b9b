"""Ops of pe_vops: every tier equals the scalar tier bit for bit, and the scalar tier is
right, by mpmath, numpy's long double or exact rounding, within bounds derived here."""
import mpmath
import numpy as np
import pytest
from vops import OTHERS, TIERS, aligned, f32, f64, same, u8, ulps

from pyengine.native import ffi, lib

SIZES = [*range(1, 68), 576, 1000]
SILU, GELU, GELU_ERF, GELU_QUICK, RELU = range(5)
KINDS = {"silu": SILU, "gelu": GELU, "gelu_erf": GELU_ERF, "gelu_quick": GELU_QUICK, "relu": RELU}
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-39, 1.1754944e-38, 3.4e38, -3.4e38, 88.72284,
                    88.7229, -87.33654, -87.33655, -103.9, 0.625, 0.62499994, 9.0, -9.0, 1.0, -1.0, 150.0, -150.0, -150.5,
                    -80.0, -80.00001, -88.8, -92.0, -104.0], np.float32)
scalar = TIERS["scalar"]


def rows(n, seed=0):
    """Inputs of n: normal; wide in magnitude; with a special value now and then; all zero."""
    rng = np.random.default_rng([n, seed])
    a = rng.normal(size=n)
    b = a * 2.0 ** rng.integers(-140, 60, n)
    c = a.astype(np.float32)
    c[rng.integers(0, n, max(1, n // 8))] = rng.choice(SPECIAL, max(1, n // 8))
    return [x.astype(np.float32) for x in (a, b, c, np.zeros(n))]


def unary(call, x):
    """call(y, x, n) into fresh memory; what lies behind y must stay as it was."""
    y = np.full(x.size + 16, 123.0, np.float32)
    call(f32(y), f32(x), x.size)
    assert (y[x.size:] == 123.0).all()
    return y[:x.size]


def unaries(t):
    calls = {"exp": t.exp, "log": t.log,
             "softcap": lambda y, x, n: t.softcap(y, x, 30.0, n),
             "scale": lambda y, x, n: t.scale(y, x, 0.3, n),
             "rms_norm": lambda y, x, n: t.rms_norm(y, x, ffi.NULL, n, 1e-5),
             "layer_norm": lambda y, x, n: t.layer_norm(y, x, ffi.NULL, ffi.NULL, n, 1e-5)}
    for name, kind in KINDS.items():
        calls[name] = lambda y, x, n, kind=kind: t.act(kind, y, x, n)
    return calls


def axpy(t):
    """y = fma(0.3, b, a), as a function of two rows."""
    def call(y, a, b, n):
        ffi.memmove(y, a, 4 * n)
        t.axpy(y, 0.3, b, n)
    return call


def binaries(t):
    calls = {"add": lambda y, a, b, n: t.add(y, a, b, n),
             "mul": lambda y, a, b, n: t.mul(y, a, b, n),
             "rms_norm": lambda y, a, b, n: t.rms_norm(y, a, b, n, 1e-6),
             "layer_norm": lambda y, a, b, n: t.layer_norm(y, a, b, ffi.NULL, n, 1e-6),
             "layer_norm_bias": lambda y, a, b, n: t.layer_norm(y, a, b, a, n, 1e-6)}
    for name, kind in KINDS.items():
        calls["glu_" + name] = lambda y, a, b, n, kind=kind: t.glu(kind, y, a, b, n)
    calls["swiglu_oai"] = lambda y, a, b, n: t.glu(lib.PE_ACT_SWIGLU_OAI, y, a, b, n)
    calls["axpy"] = axpy(t)
    return calls


@pytest.mark.parametrize("tier", OTHERS)
def test_elementwise_same_bits(tier):
    t, n_checked = TIERS[tier], 0
    for n in SIZES:
        inputs = rows(n)
        for name, call in unaries(t).items():
            for x in inputs:
                assert same(unary(call, x), unary(unaries(scalar)[name], x)), (name, n)
                n_checked += 1
        for name, call in binaries(t).items():
            for x, b in zip(inputs, rows(n, 1)):
                got = unary(lambda y, a, n: call(y, a, f32(b), n), x)
                want = unary(lambda y, a, n: binaries(scalar)[name](y, a, f32(b), n), x)
                assert same(got, want), (name, n)
                n_checked += 1
    assert n_checked == len(SIZES) * 4 * (len(unaries(t)) + len(binaries(t)))


@pytest.mark.parametrize("tier", TIERS)
def test_output_may_be_the_input(tier):
    t = TIERS[tier]
    for n in (1, 16, 37, 576):
        x, b = rows(n)[0], rows(n, 1)[0]
        for name, call in unaries(t).items():
            want, y = unary(call, x), x.copy()
            call(f32(y), f32(y), n)
            assert same(y, want), (name, n)
        for name, call in binaries(t).items():
            if name == "layer_norm_bias":
                continue
            want, y = unary(lambda y, a, n: call(y, a, f32(b), n), x), x.copy()
            call(f32(y), f32(y), f32(b), n)
            assert same(y, want), (name, n)


@pytest.mark.parametrize("tier", OTHERS)
def test_functions_same_bits_over_a_dense_sample(tier):
    """Every 4,099th float bit pattern: signs, subnormals, infinities and NaNs with them."""
    x = np.arange(0, 2**32, 4099, np.uint64).astype(np.uint32).view(np.float32).copy()
    for name, call in unaries(TIERS[tier]).items():
        if "norm" not in name:
            assert same(unary(call, x), unary(unaries(scalar)[name], x)), name


# ---- accuracy -----------------------------------------------------------------------

def sample(lo, hi, n=40_000):
    rng = np.random.default_rng(5)
    x = np.concatenate([np.linspace(lo, hi, n), rng.normal(size=n // 4), rng.normal(size=n // 4) * 2.0 ** -rng.integers(0, 30, n // 4)])
    return x[(x >= lo) & (x <= hi)].astype(np.float32)


def exact(f, x):
    """f by mpmath at every element, as long double (64 bits: 11 more than needed)."""
    with mpmath.workprec(100):
        values = [f(mpmath.mpf(float(v))) for v in x]
        return np.array([np.longdouble(mpmath.nstr(v, 25)) for v in values])


def sigmoid(w):
    return 1 / (1 + mpmath.exp(-w))


def test_exp():
    x = sample(-87.33654, 88.72283)
    assert ulps(unary(scalar.exp, x), exact(mpmath.exp, x)) <= 1.0
    edge = np.array([0.0, -0.0, -87.33655, -1e30, -np.inf, 88.7229, np.inf, np.nan, np.nextafter(np.float32(-87.33655), np.float32(0))], np.float32)
    y = unary(scalar.exp, edge)
    assert same(y[:7], np.array([1, 1, 0, 0, 0, np.inf, np.inf], np.float32)) and np.isnan(y[7])
    assert y[8] >= np.float32(2.0**-126)     # the first result that is not subnormal


def test_exp_never_gives_a_subnormal_and_is_monotone():
    """All floats around both ends, and all between 2^-10 and 2^-9 and their negatives."""
    for lo, hi in ((np.float32(-87.4), np.float32(-87.3)), (np.float32(88.7), np.float32(88.75)), (np.float32(2**-10), np.float32(2**-9))):
        a, b = sorted(int(v.view(np.uint32)) for v in (lo, hi))
        x = np.arange(a, b, dtype=np.uint32).view(np.float32)
        y = unary(scalar.exp, np.sort(x))
        assert ((y == 0) | (y >= np.float32(2.0**-126))).all() and (np.diff(y[np.isfinite(y)]) >= -np.spacing(np.float32(1.0))).all()


def test_log():
    x = np.concatenate([np.exp(sample(-87, 88.7, 20_000).astype(np.float64)), np.linspace(0.5, 2, 20_001), 2.0 ** -np.linspace(126, 149, 500)]).astype(np.float32)
    x = x[x != 1]
    assert ulps(unary(scalar.log, x), exact(mpmath.log, x)) <= 1.0
    y = unary(scalar.log, np.array([1, 0, -0.0, np.inf, -1, -np.inf, np.nan, -1e-45], np.float32))
    assert same(y[:4], np.array([0, -np.inf, -np.inf, np.inf], np.float32)) and np.isnan(y[4:]).all()


def test_tanh_through_softcap():
    x = sample(-12, 12)
    one = unary(lambda y, a, n: scalar.softcap(y, a, 1.0, n), x)
    assert ulps(one, exact(mpmath.tanh, x)) <= 2.0
    cap = unary(lambda y, a, n: scalar.softcap(y, a, 30.0, n), x)
    want = np.float32(30) * unary(lambda y, a, n: scalar.softcap(y, a, 1.0, n), x / np.float32(30))
    assert same(cap, want)
    y = unary(lambda y, a, n: scalar.softcap(y, a, 50.0, n), np.array([0, -0.0, np.inf, -np.inf, 1e30, np.nan], np.float32))
    assert same(y[:5], np.array([0, -0.0, 50, -50, 50], np.float32)) and np.isnan(y[5])


def test_silu_within_four_ulp_down_to_its_subnormals():
    x = np.concatenate([sample(-110, 110), np.linspace(-105, -79, 8000).astype(np.float32)])
    assert ulps(unary(lambda y, a, n: scalar.act(SILU, y, a, n), x), exact(lambda v: v * sigmoid(v), x)) <= 4.0


@pytest.mark.parametrize("kind", ["gelu", "gelu_erf", "gelu_quick"])
def test_gelu_error(kind):
    definition = {
        "gelu": lambda v: v / 2 * (1 + mpmath.tanh(mpmath.sqrt(2 / mpmath.pi) * (v + mpmath.mpf("0.044715") * v**3))),
        "gelu_erf": lambda v: v * mpmath.ncdf(v),
        "gelu_quick": lambda v: v * sigmoid(mpmath.mpf("1.702") * v),
    }[kind]
    x = sample(-30, 30, 20_000)
    x = x[x != 0]
    y = unary(lambda y, a, n: scalar.act(KINDS[kind], y, a, n), x)
    assert np.max(np.abs(y - exact(definition, x)) / np.abs(x)) <= 2.0**-22


def test_activations_of_extremes():
    x = np.array([0, -0.0, 1e30, -1e30, np.inf, np.nan, -np.inf], np.float32)
    for name, kind in KINDS.items():
        y = unary(lambda y, a, n: scalar.act(kind, y, a, n), x)
        assert y[0] == 0 and y[1] == 0 and y[2] == x[2] and y[3] == 0 and y[4] == np.inf and np.isnan(y[5]), name
        assert y[6] == 0 if kind == RELU else np.isnan(y[6]), name     # x/(1+inf): not finite in, not finite out


def test_glu_is_the_activation_times_up():
    for n in (1, 17, 576):
        gate, up = rows(n)[0], rows(n, 1)[0]
        for kind in KINDS.values():
            y = unary(lambda y, a, n: scalar.glu(kind, y, a, f32(up), n), gate)
            assert same(y, unary(lambda y, a, n: scalar.act(kind, y, a, n), gate) * up)


# ---- norms --------------------------------------------------------------------------

def tree(lanes):
    s = lanes.copy()
    for w in (8, 4, 2, 1):
        s = s[:w] + s[w:2 * w]
    return s[0]


def sum_of_squares(x):
    """Sixteen lanes; float64 holds a product of floats exactly, and its sum with the lane
    is rounded to odd by hand, so the cast to float32 rounds once."""
    s = np.zeros(16, np.float32)
    padded = np.zeros(-(-x.size // 16) * 16, np.float32)
    padded[:x.size] = x
    for row in padded.reshape(-1, 16):
        p, c = row.astype(np.float64) ** 2, s.astype(np.float64)
        z = p + c
        v = z - p
        err = (p - (z - v)) + (c - v)
        bits = z.view(np.int64)
        bits += np.where((err != 0) & (bits & 1 == 0), np.where(err > 0, 1, -1), 0)
        s = bits.view(np.float64).astype(np.float32)
    return tree(s)


@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 33, 64, 576, 1000])
def test_norms_by_their_definition(n):
    x, w, b = rows(n)[0], rows(n, 1)[0], rows(n, 2)[0]
    eps, one = np.float32(1e-5), np.float32(1)
    r = one / np.sqrt(sum_of_squares(x) / np.float32(n) + eps)
    assert same(unary(lambda y, a, n: scalar.rms_norm(y, a, f32(w), n, eps), x), (x * r) * w)
    assert same(unary(lambda y, a, n: scalar.rms_norm(y, a, ffi.NULL, n, eps), x), x * r)
    lanes = np.zeros(16, np.float32)
    for i in range(0, n, 16):
        lanes[:min(16, n - i)] += x[i:i + 16]
    d = x - tree(lanes) / np.float32(n)
    r = one / np.sqrt(sum_of_squares(d) / np.float32(n) + eps)
    assert same(unary(lambda y, a, n: scalar.layer_norm(y, a, f32(w), ffi.NULL, n, eps), x), (d * r) * w)
    y = unary(lambda y, a, n: scalar.layer_norm(y, a, f32(w), f32(b), n, eps), x)
    exactly = (d * r).astype(np.longdouble) * w + b          # 24+24 bits fit in 64: one rounding, as fma does, or a tie away
    assert ulps(y, exactly) <= 0.5 + 2.0**-30


# ---- quantization ---------------------------------------------------------------------

def quantized(t, block, x, b0=0, b1=None):
    act = lib.PE_ACT_Q32 if block == 32 else lib.PE_ACT_Q256
    row = aligned(lib.pe_act_stride(act, x.size))
    call = t.quant32 if block == 32 else t.quant256
    call(ffi.cast("void *", u8(row)), f32(x), x.size, b0, x.size // block if b1 is None else b1)
    return row


def parts(row, block, k):
    n_d = k // block * 4
    at_s = (k + 63) // 64 * 64 + (n_d + 63) // 64 * 64
    d = row[(k + 63) // 64 * 64:][:n_d].view(np.float32)
    s = row[at_s:at_s + n_d].view(np.int32) if block == 32 else row[at_s:at_s + k // 16 * 2].view(np.int16)
    return row[:k].view(np.int8), d, s


def meaning(x, block):
    """Section 3 of docs/arithmetic.md."""
    v = x.reshape(-1, block)
    amax = (v.view(np.uint32) & 0x7FFFFFFF).max(axis=1).view(np.float32)
    usable = np.isfinite(amax) & (amax >= 2.0**-100)
    with np.errstate(all="ignore"):
        d = np.where(usable, amax / np.float32(127), np.where(np.isfinite(amax), 0, np.nan)).astype(np.float32)
        inverse = np.where(usable, np.float32(127) / amax, 0).astype(np.float32)
        q = np.where(usable[:, None], np.rint(v * inverse[:, None]), 0).astype(np.int8)
    sums = q.reshape(-1, 32 if block == 32 else 16).astype(np.int32).sum(axis=1)
    return q.reshape(-1), d, sums.astype(np.int32 if block == 32 else np.int16)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("block", [32, 256])
def test_quantization(tier, block):
    for n_blocks in (1, 2, 3, 5, 18, 33):
        k = block * n_blocks
        for x in [*rows(k), np.full(k, -127.5, np.float32), np.full(k, 1e-30, np.float32), np.full(k, 7.8e-31, np.float32),
                  (np.arange(k) % 255 - 127 + 0.5).astype(np.float32), np.full(k, 3.4e38, np.float32)]:
            for got, want in zip(parts(quantized(TIERS[tier], block, x), block, k), meaning(x, block)):
                assert same(got, want)


@pytest.mark.parametrize("tier", TIERS)
def test_small_blocks_are_never_called_small_wrongly(tier):
    """Each 16 of |q| add up to 1023, to 1024 in one place, and to 2032 in one; on tiers whose kernels ask, 1023 is small."""
    q = np.full((19, 16, 16), 64)
    q[:, :, 0] = 63
    for b in range(16):
        q[b, b, 5] += 1
    q[17, 7] = 127
    q *= np.random.default_rng(8).choice([-1, 1], q.shape)
    q[:, :, 15] = 127 * np.sign(q[:, :, 15])   # amax is 127, so that q is x
    q[:, :, 1] = np.sign(q[:, :, 1])           # and the sums are as before: 127 + 1 = 64 + 64
    row = quantized(TIERS[tier], 256, q.reshape(-1).astype(np.float32))
    k = q.size
    assert np.array_equal(parts(row, 256, k)[0], q.reshape(-1))
    small = row[lib.pe_act_stride(lib.PE_ACT_Q256, k) - (k // 256 + 63) // 64 * 64:][:k // 256]
    assert not small[:16].any() and not small[17]
    assert tier in ("neon", "dotprod") or small[16] and small[18]


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("block", [32, 256])
def test_blocks_of_a_row_may_be_shared_out(tier, block):
    x = rows(block * 7)[1]
    whole, row = quantized(TIERS[tier], block, x), None
    for b0, b1 in ((0, 3), (3, 4), (4, 7)):
        part = quantized(TIERS[tier], block, x, b0, b1)
        row = part if row is None else row | part       # rows start zeroed
    assert same(row, whole)


# ---- rope -------------------------------------------------------------------------------

def rope_table(t, freq, pos, mscale):
    cs = np.full(2 * freq.size + 1, 9.0, np.float32)
    t.rope_table(f32(cs), f64(freq), freq.size, pos, mscale)
    assert cs[-1] == 9.0
    return cs[:-1]


@pytest.mark.parametrize("base", [10_000.0, 500_000.0, 1_000_000.0])
def test_rope_table(base):
    freq = base ** (-np.arange(64) / 64)
    for pos in (0, 1, 2, 7, 100, 355, 4095, 103_993, 833_719, 2**20, 2**20 + 7, 2**24 + 1, 2**31 - 1):
        cs = rope_table(scalar, freq, pos, 1.0)
        with mpmath.workprec(160):
            angle = [mpmath.mpf(float(np.float64(pos) * f)) for f in freq]
            want = np.array([np.longdouble(mpmath.nstr(g(a), 25)) for g in (mpmath.cos, mpmath.sin) for a in angle])
        assert ulps(cs, want) <= 0.5 + 1e-6, pos
        for name in OTHERS:
            assert same(rope_table(TIERS[name], freq, pos, 1.0), cs)
            assert same(rope_table(TIERS[name], freq, pos, 1.1875), cs * np.float32(1.1875))


def test_rope_table_beside_multiples_of_half_pi():
    """Doubles nearest to k*pi/2 lose up to 60 leading bits in the reduction."""
    with mpmath.workprec(200):
        freq = np.array([float(k * mpmath.pi / 2) for k in [1, 2, 3, 5, 11, 355, 103_993, 2**20 - 1, 2**26 + 1, 2**30 + 3]])
        want = np.array([np.longdouble(mpmath.nstr(g(mpmath.mpf(float(a))), 25)) for g in (mpmath.cos, mpmath.sin) for a in freq])
    assert ulps(rope_table(scalar, freq, 1, 1.0), want) <= 0.5 + 1e-6


@pytest.mark.parametrize("tier", TIERS)
def test_rope_rotates_pairs(tier):
    """Within the two roundings of each output: |error| <= (|x0|+|x1|) * 2^-23."""
    rng = np.random.default_rng(3)
    for n_rot in (2, 4, 6, 30, 32, 34, 64, 80, 128, 256):
        n = n_rot // 2
        cs = rope_table(scalar, 10_000.0 ** (-np.arange(n) / n), 777, 1.0)
        x = rng.normal(size=n_rot + 3).astype(np.float32)
        c, s = cs[:n].astype(np.float64), cs[n:].astype(np.float64)
        for name, first, second in (("rope_adjacent", slice(0, n_rot, 2), slice(1, n_rot, 2)), ("rope_halves", slice(0, n), slice(n, n_rot))):
            y, z = x.copy(), x.copy()
            getattr(TIERS[tier], name)(f32(y), f32(cs), n_rot)
            getattr(scalar, name)(f32(z), f32(cs), n_rot)
            assert same(y, z) and (y[n_rot:] == x[n_rot:]).all()
            x0, x1 = x[first].astype(np.float64), x[second].astype(np.float64)
            bound = (np.abs(x0) + np.abs(x1)) * 2.0**-23
            assert (np.abs(y[first] - (x0 * c - x1 * s)) <= bound).all() and (np.abs(y[second] - (x0 * s + x1 * c)) <= bound).all()


# ---- softmax's sum ------------------------------------------------------------------------

@pytest.mark.parametrize("tier", TIERS)
def test_conv(tier):
    """By channel: fma in the order of the taps, what is not there left out, also where its weight is infinite."""
    for n in SIZES:
        for taps in (2, 3, 7):
            w = np.concatenate(rows(n, 1) + rows(n, 2))[:taps * n].reshape(taps, n).copy()
            x = [np.ascontiguousarray(r) for r in (rows(n, 3) + rows(n, 4))[:taps]]
            for missing in range(taps):
                given = [ffi.NULL] * missing + [f32(r) for r in x[missing:]]
                y, want = (np.full(n + 16, 123.0, np.float32) for _ in range(2))
                TIERS[tier].conv(f32(y), ffi.new("float *[]", given), f32(w), taps, n)
                scalar.conv(f32(want), ffi.new("float *[]", given), f32(w), taps, n)
                same(y, want)
                assert (y[n:] == 123.0).all()
                s = np.zeros(n, np.float32)
                for j in range(missing, taps):
                    lib.pe_fma_soft(f32(t := np.empty(n, np.float32)), f32(w[j]), f32(x[j]), f32(s), n)
                    s = t
                same(y[:n], s)


@pytest.mark.parametrize("tier", TIERS)
def test_softmax_sum(tier):
    """A float sum of n/16 terms per lane in blocks of 4096 is off by at most (256 + 4 + n/4096) roundings."""
    rng = np.random.default_rng(4)
    for n in (1, 5, 16, 17, 4095, 4096, 4097, 9001, 32_000):
        x = (rng.normal(size=n) * 5).astype(np.float32)
        top, inv_t = float(x.max()), 1 / 0.7
        got = TIERS[tier].softmax_sum(f32(x), n, top, inv_t)
        assert got == scalar.softmax_sum(f32(x), n, top, inv_t)
        z = (x - np.float32(top)) * np.float32(inv_t)
        want = np.exp(z.astype(np.float64)).sum()
        assert abs(got / want - 1) <= (256 + 4 + n / 4096 + 2) * 2.0**-24
        x[n // 2] = np.nan
        assert np.isnan(TIERS[tier].softmax_sum(f32(x), n, top, inv_t))

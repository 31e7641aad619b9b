"""mm_scalar.c: stored weights against the gguf package, products against exact arithmetic.

The reference below knows nothing of how blocks are packed: a block's integers are had by
letting the gguf package dequantize the block with its scale set to 1 and its minimum to 0
(then 0 and 1). So layout and arithmetic are both checked by something we did not write."""
import ctypes
import pathlib
import platform

import exact
import gguf
import numpy as np
import pytest
from scales import HALVES, halves, set_half

from pyengine import quants
from pyengine.native import TIERS, ffi, lib

PART = {"IQ1_S": 8, "IQ1_M": 8, "IQ2_XXS": 8, "IQ2_XS": 8, "IQ2_S": 8, "IQ3_XXS": 4}  # integers stand for so many parts of the scale
F16_SCALED = [n for n in HALVES if HALVES[n]]  # MXFP4's scale is a byte e: 2^(e - 128), NVFP4's four are ue4m3
FLOATS = ("F32", "F16", "BF16")
BLOCK32 = [n for n in HALVES if quants.BY_NAME[n].block <= 128]  # taken as blocks of 32


def scalar_rows():
    n = ffi.new("int32_t *")
    rows = lib.pe_rows(n)
    return {quants.TYPES[rows[i].wtype].name: rows[i] for i in range(n[0]) if rows[i].isa == lib.PE_ISA_SCALAR}


ROWS = scalar_rows()


def package(raw, name):
    """The gguf package's values of whole blocks, flat. Of Q1_0 and Q2_0 it knows the sizes at most: their bits, lowest
    first, are written out here, and held to llama.cpp's own below."""
    with np.errstate(all="ignore"):
        if name in ("Q1_0", "Q2_0"):
            blocks, width = raw.reshape(-1, 18), int(name[1])
            word = [int.from_bytes(b[2:].tobytes(), "little") for b in blocks]
            q = np.array([[w >> width * j & (1 << width) - 1 for j in range(128 // width)] for w in word], np.float32)
            return (blocks[:, :2].copy().view(np.float16).astype(np.float32) * (2 * q - 1 if width == 1 else q - 1)).reshape(-1)
        return gguf.quants.dequantize(raw.reshape(1, -1), gguf.GGMLQuantizationType[name]).reshape(-1)


def native(raw, name, k):
    y = np.full(k, 7.0, dtype=np.float32)
    code = lib.pe_dequant(quants.BY_NAME[name].id, ffi.cast("void *", raw.ctypes.data), ffi.cast("float *", y.ctypes.data), k)
    assert code == lib.PE_OK
    return y


def multiply(name, w, rows_of_x, k, r0=0, r1=None, gap=0):
    """Rows r0..r1 of w [n_rows, row_bytes] with prepared activation rows; [n, r1-r0]. `gap`: bytes after each row."""
    row = ROWS[name]
    n_rows, row_bytes = w.shape
    r1 = n_rows if r1 is None else r1
    spread = np.zeros((n_rows, row_bytes + gap), dtype=np.uint8)
    spread[:, :row_bytes] = w
    n, stride = rows_of_x.shape
    y = np.full((n, n_rows + 3), 7.0, dtype=np.float32)
    m = ffi.new("pe_mm *", {
        "w": ffi.cast("uint8_t *", spread.ctypes.data), "w_stride": row_bytes + gap, "k": k, "r0": r0, "r1": r1,
        "x": ffi.cast("uint8_t *", rows_of_x.ctypes.data), "x_stride": stride, "n": n,
        "y": ffi.cast("float *", y.ctypes.data), "y_stride": n_rows + 3})
    row.fn(m)
    untouched = np.ones(n_rows + 3, dtype=bool)
    untouched[r0:r1] = False
    assert (y[:, untouched] == 7.0).all(), "wrote outside r0..r1"
    return y[:, r0:r1]


def set_halves(w, name, *values):
    """Sets scale (and minimum) of every block of w [..., row_bytes]; a value may be an array of one per block."""
    t = quants.BY_NAME[name]
    blocks = w.reshape(-1, t.bytes)
    if name == "MXFP4":  # the nearest power of two at or above
        blocks[:, 0] = 128 + np.ceil(np.log2(np.maximum(np.abs(values[0]), 2.0**-30)))
    if name == "NVFP4":  # four that differ near the value, or 1.0 exactly
        e = gguf.quants.NVFP4.fp32_to_ue4m3(2 * np.abs(np.broadcast_to(values[0], len(blocks))))
        blocks[:, :4] = e[:, None] + (np.zeros(4, np.uint8) if np.ndim(values[0]) == 0 else np.array([0, 1, 5, 9], np.uint8))
    for at, value in zip(HALVES[name], values):
        set_half(blocks, name, at, value)


def random_weights(rng, name, n_rows, k):
    t = quants.BY_NAME[name]
    w = rng.integers(0, 256, (n_rows, t.row_bytes(k)), dtype=np.uint8)
    blocks = n_rows * k // t.block
    set_halves(w, name, rng.normal(0, 0.02, blocks), rng.normal(0, 0.05, blocks))
    return w


# ---- the exact reference -------------------------------------------------------------


def integers(w, name):
    """sc*q per element, minimum's integer per element, d (of NVFP4 four) and m per block: all from the gguf package."""
    t = quants.BY_NAME[name]
    raw = w.reshape(-1, t.bytes).copy()
    if name == "MXFP4":
        scale = np.ldexp(1.0, raw[:, 0].astype("i4") - 128)
    elif name == "NVFP4":
        scale = gguf.quants.NVFP4.ue4m3_to_fp32(raw[:, :4]).ravel()
    else:
        scale = halves(raw, name, HALVES[name][0])
    low, part = np.zeros_like(scale), PART.get(name, 1)
    scale /= part
    set_halves(raw, name, part, 0.0)
    q = package(raw, name).reshape(-1, t.block).astype("i8")
    mins = np.zeros_like(q)
    if len(HALVES[name]) == 2:
        at = HALVES[name][1]
        low = halves(w.reshape(-1, t.bytes), name, at)
        raw = w.reshape(-1, t.bytes).copy()
        set_halves(raw, name, 0.0, 1.0)
        mins = package(raw, name).reshape(-1, t.block).astype("i8")
    return q, mins, scale.tolist(), low.tolist()


def reference_row(w, name, x):
    """One weight row (bytes) times one float32 activation row, by the definition."""
    t = quants.BY_NAME[name]
    wq, mins, scale, low = integers(w, name)
    xq, xd, _ = (quants.quantize_q32 if name in BLOCK32 else quants.quantize_q256)(x)
    n = 16 if name == "NVFP4" else 32 if name in BLOCK32 else 256  # elements with one scale, or fewer
    wq, mins, xq, xd = wq.reshape(-1, n), mins.reshape(-1, n), xq.reshape(-1, n).astype("i8"), xd.tolist()
    acc = 0.0
    for i in range(len(wq)):
        da, d, m = xd[i * len(xd) // len(wq)], scale[i * len(scale) // len(wq)], low[i * len(low) // len(wq)]
        total = int((wq[i] * xq[i]).sum())
        lows = int((mins[i] * xq[i]).sum())
        assert abs(total) < 2**31 and abs(lows) < 2**31
        s, n_sum = exact.round32(exact.Fraction(total)), exact.round32(exact.Fraction(lows))
        if name in BLOCK32:
            acc = exact.fma(exact.mul(d, da), s, acc)
            if len(HALVES[name]) == 2:
                acc = exact.fma(exact.mul(m, da), n_sum, acc)
        elif len(HALVES[name]) == 2:  # the package subtracts minima, so n_sum is -N
            acc = exact.fma(da, exact.fma(d, s, -exact.mul(m, -n_sum + 0.0)), acc)
        else:
            acc = exact.fma(da, exact.mul(d, s), acc)
    return acc


def reference_float(w, x):
    """Sixteen lanes; the last step takes +0 where k ends."""
    lanes = [0.0] * 16
    pad = -len(w) % 16
    w, x = w.tolist() + [0.0] * pad, x.tolist() + [0.0] * pad
    for i in range(0, len(w), 16):
        lanes = [exact.fma(w[i + j], x[i + j], lanes[j]) for j in range(16)]
    for half in (8, 4, 2, 1):
        lanes = [exact.add(lanes[j], lanes[j + half]) for j in range(half)]
    return lanes[0]


def assert_same(got, want, where):
    bad = [(where, i, float(g), w) for i, (g, w) in enumerate(zip(np.ravel(got), np.ravel(want))) if not exact.same(float(g), float(w))]
    assert bad == []


def check(name, w, x):
    k = x.shape[1]
    got = multiply(name, w, quants.activation_rows(ROWS[name].act, x), k)
    want = [[reference_row(w[r], name, x[t]) for r in range(len(w))] for t in range(len(x))]
    assert_same(got, want, name)
    return got


# ---- stored weights ------------------------------------------------------------------


def test_every_type_with_kernels_has_one_scalar_row():
    assert set(ROWS) == {*FLOATS, *HALVES}
    for name, row in ROWS.items():
        assert (row.n_min, row.n_max) == (1, 2**31 - 1)
        assert ffi.string(row.name).decode() == f"mm_{name.lower()}_scalar"
        want = lib.PE_ACT_F32 if name in FLOATS else lib.PE_ACT_Q32 if name in BLOCK32 else lib.PE_ACT_Q256
        assert row.act == want


@pytest.mark.parametrize("name", [*FLOATS, *HALVES])
def test_random_bytes_dequantize_as_in_the_gguf_package(name):
    t = quants.BY_NAME[name]
    rng = np.random.default_rng(21)
    raw = rng.integers(0, 256, 5_000 * t.bytes, dtype=np.uint8)
    k = 5_000 * t.block
    want, got, ours = package(raw, name), native(raw, name, k), quants.dequantize(t.id, raw, k)[0]
    finite = np.isfinite(want)
    assert finite.mean() > 0.9
    assert np.array_equal(got[finite].view("u4"), want[finite].view("u4"))
    assert np.array_equal(ours[finite].view("u4"), want[finite].view("u4"))
    assert not np.isfinite(got[~finite]).any() and not np.isfinite(ours[~finite]).any()
    assert np.array_equal(np.isnan(got), np.isnan(want)) and np.array_equal(np.isnan(ours), np.isnan(want))


@pytest.mark.parametrize("name", F16_SCALED)
def test_every_half_as_a_scale(name):
    """All 65536 scales, with random integers: subnormal and signed zero scales included."""
    t = quants.BY_NAME[name]
    rng = np.random.default_rng(22)
    n = 65536 if t.block == 32 else 8192
    raw = rng.integers(0, 256, (n, t.bytes), dtype=np.uint8)
    scales = np.arange(0, 65536, 65536 // n, dtype=np.uint16).view(np.float16)
    set_halves(raw, name, scales, rng.permutation(scales))
    got, want = native(raw, name, n * t.block), package(raw, name)
    finite = np.isfinite(want)
    assert np.array_equal(got[finite].view("u4"), want[finite].view("u4"))
    assert not np.isfinite(got[~finite]).any()


def test_every_byte_as_a_scale_of_mxfp4():
    """e is 2^(e - 128) for all 256: 0 and 1 are subnormal, 255 is 2^127 and no NaN; in products too."""
    raw = np.random.default_rng(22).integers(0, 256, (256, 17), dtype=np.uint8)
    raw[:, 0] = np.arange(256)
    got, want = native(raw, "MXFP4", 256 * 32), package(raw, "MXFP4")
    assert np.array_equal(got.view("u4"), want.view("u4"))
    assert np.array_equal(quants.dequantize(39, raw, 32).view("u4"), want.reshape(256, 32).view("u4"))
    one = np.full((256, 17), 0x22, dtype=np.uint8)  # doubled values of 2
    one[:, 0] = np.arange(256)
    values = [[2.0 * 2.0**(e - 128)] for e in range(255)] + [[np.inf]]  # 2^128 is too large for a float, as 2 * 2^127
    assert np.array_equal(native(one, "MXFP4", 256 * 32).reshape(256, 32)[:, :1].astype("f8"), values)
    check("MXFP4", raw, np.full((1, 32), 2.0**-20, "f4"))
    check("MXFP4", raw, np.full((1, 32), 127.0, "f4"))


def test_every_byte_as_a_scale_of_nvfp4():
    """ue4m3: 0 and 128 are 0, up to 7 subnormal, 127 is 0 where 255 is 240: as the package has it, in products too."""
    raw = np.random.default_rng(23).integers(0, 256, (256, 36), dtype=np.uint8)
    raw[:, :4] = np.arange(256)[:, None] ^ [0, 1, 2, 128]
    got, want = native(raw, "NVFP4", 256 * 64), package(raw, "NVFP4")
    assert np.array_equal(got.view("u4"), want.view("u4"))
    one = raw.copy()
    one[:, 4:] = 0x22  # doubled values of 2
    values = native(one, "NVFP4", 256 * 64).reshape(256, 64)[:, 0]
    assert values[[0, 1, 7, 8, 56, 64, 126, 127, 128, 255]].tolist() == [0, 2**-9, 7 * 2**-9, 2**-6, 1, 2, 448, 0, 0, 480]
    check("NVFP4", raw, np.random.default_rng(24).normal(0, 1, (1, 64)).astype("f4"))


@pytest.mark.parametrize("name", ("Q1_0", "Q2_0", "TQ1_0", "TQ2_0", "NVFP4"))
def test_small_types_dequantize_as_in_llama_cpp(name):
    """The gguf package does not dequantize the first two; the library that tests/oracle.py runs on has the functions."""
    xllamacpp = pytest.importorskip("xllamacpp")
    library = next(iter(pathlib.Path(xllamacpp.__file__).parent.glob("*.so")), None)
    function = getattr(ctypes.CDLL(str(library)), f"dequantize_row_{name.lower()}", None) if library else None
    if function is None:
        pytest.skip("this build of llama.cpp does not show its functions")
    t, n = quants.BY_NAME[name], 3_000
    raw = np.random.default_rng(25).integers(0, 256, n * t.bytes, dtype=np.uint8)
    want = np.empty(n * t.block, np.float32)
    function(ctypes.c_void_p(raw.ctypes.data), ctypes.c_void_p(want.ctypes.data), ctypes.c_int64(want.size))
    got, finite = native(raw, name, want.size), np.isfinite(want)
    assert finite.mean() > 0.9 and np.array_equal(got[finite].view("u4"), want[finite].view("u4"))
    assert not np.isfinite(got[~finite]).any()


def test_dequant_refuses():
    y = ffi.new("float[512]")
    raw = ffi.new("uint8_t[2048]")
    assert lib.pe_dequant(15, raw, y, 256) == lib.PE_EINVAL     # a known type without kernels
    assert lib.pe_dequant(999, raw, y, 256) == lib.PE_EINVAL
    assert lib.pe_dequant(12, raw, y, 128) == lib.PE_EINVAL     # half a block
    assert lib.pe_dequant(2, raw, y, 33) == lib.PE_EINVAL
    assert lib.pe_dequant(2, raw, y, -32) == lib.PE_EINVAL
    assert lib.pe_dequant(2, raw, y, 0) == lib.PE_OK


# ---- products --------------------------------------------------------------------------


@pytest.mark.parametrize("blocks", [1, 2, 5])
@pytest.mark.parametrize("name", HALVES)
def test_product_is_the_definition(name, blocks):
    rng = np.random.default_rng(31)
    k = blocks * quants.BY_NAME[name].block
    got = check(name, random_weights(rng, name, 5, k), rng.normal(0, 1, (3, k)).astype("f4"))
    assert np.abs(got).max() > 0


@pytest.mark.parametrize("name", HALVES)
def test_product_is_near_the_real_product(name):
    """Not bits but sense: off by no more than rounding each activation to a step of d can do."""
    rng = np.random.default_rng(32)
    k = 1024
    w, x = random_weights(rng, name, 16, k), rng.normal(0, 1, (4, k)).astype("f4")
    got = multiply(name, w, quants.activation_rows(ROWS[name].act, x), k)
    values = quants.dequantize(quants.BY_NAME[name].id, w, k).astype("f8")
    real = x.astype("f8") @ values.T
    step = (quants.quantize_q32 if name in BLOCK32 else quants.quantize_q256)(x)[1].astype("f8")
    bound = 0.5001 * np.repeat(step, k // step.shape[1], axis=1) @ np.abs(values).T
    float_noise = 1e-5 * np.abs(x) @ np.abs(values).T
    assert (np.abs(got - real) <= bound + float_noise).all()
    assert np.abs(got - real).max() < np.abs(real).std() / 10


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("k", [1, 2, 7, 15, 16, 17, 24, 31, 32, 33, 40, 100])
def test_float_product_is_sixteen_lanes(name, k):
    rng = np.random.default_rng(k)
    t = quants.BY_NAME[name]
    raw = rng.normal(0, 1, (3, k)).astype("f4")
    w = raw.view("u1") if name == "F32" else raw.astype("f2").view("u1") if name == "F16" else (raw.view("u4") >> 16).astype("u2").view("u1")
    x = rng.normal(0, 1, (9, k)).astype("f4")  # 9 tokens: more than the 8 taken at once
    values = quants.dequantize(t.id, w, k)
    got = multiply(name, w, quants.activation_rows(lib.PE_ACT_F32, x), k)
    assert_same(got, [[reference_float(values[r], x[i]) for r in range(3)] for i in range(9)], (name, k))


def test_float_tail_takes_plus_zero_and_ignores_the_padding():
    """A lane of -0 (an underflow) becomes +0 in the padded step: all sixteen lanes of -0 sum to -0 otherwise."""
    small = np.float32(2.0**-100)
    for k, sign in ((16, True), (17, False), (25, False)):
        w, x = np.full((1, k), small, "f4"), np.full((1, k), -small, "f4")
        rows = quants.activation_rows(lib.PE_ACT_F32, x)
        rows.view("f4")[0, k:] = np.nan  # bytes beyond k belong to nobody
        got = multiply("F32", w.view("u1"), rows, k)
        assert got[0, 0] == 0 and np.signbit(got[0, 0]) == sign == np.signbit(reference_float(w[0], x[0]))


@pytest.mark.parametrize("name", [*FLOATS, *HALVES])
def test_part_of_the_rows_with_gaps_and_any_tokens(name):
    rng = np.random.default_rng(33)
    t = quants.BY_NAME[name]
    k = 2 * max(t.block, 20)
    w = random_weights(rng, name, 7, k) if name in HALVES else rng.normal(0, 1, (7, k)).astype("f2").view("u1")
    if name == "F32":
        w = rng.normal(0, 1, (7, k)).astype("f4").view("u1")
    x = rng.normal(0, 1, (33, k)).astype("f4")
    rows = quants.activation_rows(ROWS[name].act, x)
    whole = multiply(name, w, rows, k)
    assert np.array_equal(multiply(name, w, rows, k, r0=2, r1=5, gap=3).view("u4"), whole[:, 2:5].view("u4"))
    one = quants.activation_rows(ROWS[name].act, x[20:21])
    assert np.array_equal(multiply(name, w, one, k).view("u4"), whole[20:21].view("u4"))


def extreme_bytes(name, byte, k, d=1.0, m=1.0):
    w = np.full((1, quants.BY_NAME[name].row_bytes(k)), byte, dtype=np.uint8)
    set_halves(w, name, d, m)
    return w


@pytest.mark.parametrize("byte", [0x00, 0x80, 0x7F, 0xFF, 0x0F, 0xF0])
@pytest.mark.parametrize("name", HALVES)
def test_extreme_integers(name, byte):
    """Weights of one repeated byte (all nibbles 15, scales 63 or -128, q = -128) with activations of +-127."""
    k = 2 * quants.BY_NAME[name].block
    x = np.ones((3, k), dtype="f4")
    x[1] = -1
    x[2, ::2] = -1
    check(name, extreme_bytes(name, byte, k), x)


def test_extremes_are_as_large_as_said():
    """The bounds in mm_scalar.c are reached, and sums above 2^24 are rounded once, as a whole."""
    x = np.ones((1, 256), dtype="f4")
    da = float(np.float32(1) / np.float32(127))
    for name, byte, total in (("Q4_K", 0xFF, 30_723_840), ("Q5_K", 0xFF, 63_495_936)):
        w = extreme_bytes(name, byte, 256, d=1.0, m=0.0)
        want = exact.mul(da, exact.round32(exact.Fraction(total)))
        assert exact.same(float(check(name, w, x)[0, 0]), want)
    w = extreme_bytes("Q6_K", 0x00, 256)
    w[0, 192:208] = 0x80  # scale -128, q = -32
    assert exact.same(float(check("Q6_K", w, x)[0, 0]), exact.mul(da, float(133_169_152)))
    w = extreme_bytes("Q8_0", 0x80, 32)
    x32 = np.ones((1, 32), dtype="f4")
    assert exact.same(float(check("Q8_0", w, x32)[0, 0]), exact.fma(da, -520_192.0, 0.0))
    # an odd total above 2^24 cannot be a float: 63*q*127 per element is what makes one
    rng = np.random.default_rng(34)
    w = rng.integers(0, 256, (40, 144), dtype=np.uint8)
    w[:, 4:16] = 0xFF
    w[:, 16:] |= 0xEE
    set_halves(w, "Q4_K", 1.0, 0.0)
    x = rng.choice(np.array([1.0, 0.99], "f4"), (1, 256))
    totals = (integers(w, "Q4_K")[0] * quants.quantize_q256(x)[0].astype("i8")).sum(axis=1)
    assert (totals > 2**24).all() and (totals % 2 == 1).any()
    check("Q4_K", w, x)


@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf, 65504.0, 6e-8, 0.0, -0.0])
@pytest.mark.parametrize("name", F16_SCALED)
def test_scales_out_of_the_ordinary(name, scale):
    rng = np.random.default_rng(35)
    k = 2 * quants.BY_NAME[name].block
    w = random_weights(rng, name, 2, k)
    x = rng.normal(0, 1, (2, k)).astype("f4")
    set_halves(w[:1], name, scale, 1.0)
    got = check(name, w, x)
    assert np.isfinite(got[:, 1]).all()
    if not np.isfinite(scale):
        assert not np.isfinite(got[:, 0]).any()
    if len(HALVES[name]) == 2:
        set_halves(w[:1], name, 1.0, scale)
        got = check(name, w, x)
        if not np.isfinite(scale):
            assert not np.isfinite(got[:, 0]).any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", HALVES)
def test_a_broken_activation_reaches_every_output_of_its_token(name, bad):
    rng = np.random.default_rng(36)
    k = 3 * quants.BY_NAME[name].block
    w, x = random_weights(rng, name, 4, k), rng.normal(0, 1, (3, k)).astype("f4")
    x[1, k // 2] = bad
    got = check(name, w, x)
    assert np.isnan(got[1]).all()
    assert np.isfinite(got[[0, 2]]).all()


@pytest.mark.parametrize("name", FLOATS)
def test_a_broken_activation_reaches_float_outputs(name):
    x = np.ones((2, 20), dtype="f4")
    x[1, 19] = np.nan
    w = np.ones((2, 20), dtype="f4")
    raw = {"F32": w, "F16": w.astype("f2"), "BF16": (w.view("u4") >> 16).astype("u2")}[name].view("u1")
    got = multiply(name, raw, quants.activation_rows(lib.PE_ACT_F32, x), 20)
    assert np.isnan(got[1]).all() and (got[0] == 20).all()


# ---- the tables and the machine -------------------------------------------------------


def test_activation_strides():
    stride = lib.pe_act_stride
    assert [stride(lib.PE_ACT_F32, k) for k in (1, 16, 17)] == [64, 64, 128]
    assert stride(lib.PE_ACT_Q32, 32) == 192 and stride(lib.PE_ACT_Q32, 576) == 576 + 128 + 128
    assert stride(lib.PE_ACT_Q256, 256) == 256 + 64 + 64 + 64 and stride(lib.PE_ACT_Q256, 2048) == 2048 + 64 + 256 + 64
    assert [stride(lib.PE_ACT_Q32, k) for k in (0, -32, 33, 16)] == [-1] * 4
    assert [stride(lib.PE_ACT_Q256, k) for k in (0, 128, 257)] == [-1] * 3
    assert stride(7, 256) == -1 and stride(lib.PE_ACT_F32, 2**62) == -1


def test_rows_have_unique_names_and_known_types():
    n = ffi.new("int32_t *")
    rows = lib.pe_rows(n)
    names = [ffi.string(rows[i].name).decode() for i in range(n[0])]
    assert len(set(names)) == len(names) >= 13
    for i in range(n[0]):
        assert rows[i].wtype in quants.TYPES and 1 <= rows[i].n_min <= rows[i].n_max
        assert rows[i].act == quants.TYPES[rows[i].wtype].act


def test_cpu_bits_agree_with_the_system():
    isa, name, machine = lib.pe_cpu_isa(), ffi.string(lib.pe_cpu_name()).decode(), platform.machine()
    assert name == name.strip()
    for bits in TIERS.values():
        highest = 1 << bits.bit_length() >> 1
        assert not isa & highest or isa & bits == bits or highest == lib.PE_ISA_AMX      # a tier has all it builds on
    try:
        text = open("/proc/cpuinfo").read()
    except OSError:
        pytest.skip("no /proc/cpuinfo")
    word = "flags" if machine == "x86_64" else "Features"
    flags = next((set(line.split(":")[1].split()) for line in text.splitlines() if line.startswith(word)), None)
    if flags is None:
        pytest.skip(f"/proc/cpuinfo is not of {machine}")
    if machine == "aarch64":
        assert bool(isa & lib.PE_ISA_NEON) == ("asimd" in flags) and bool(isa & lib.PE_ISA_DOTPROD) == ({"asimd", "asimddp"} <= flags)
        assert bool(isa & lib.PE_ISA_I8MM) == ({"asimd", "asimddp", "i8mm"} <= flags)
    if machine != "x86_64":
        return
    assert bool(isa & lib.PE_ISA_AVX2) == ({"avx2", "fma", "f16c"} <= flags)
    assert bool(isa & lib.PE_ISA_AVXVNNI) == ({"avx2", "avx_vnni"} <= flags)
    assert bool(isa & lib.PE_ISA_AVX512) == ({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"} <= flags)
    assert f"model name\t: {name}" in text

"""Weight types: their sizes, their activation form, and their meaning in numpy.

`TYPES` is the native table (csrc/types.c) with what the kernels take. `dequantize`
says in numpy what stored bytes are worth; csrc/mm_scalar.c says it in C and tests
hold the two equal. `quantize_q32` and `quantize_q256` are the meaning of activation
quantization (docs/arithmetic.md, 3). Nothing here is on the path of a running model:
importers are gguf, plan, tools, tests and the reference interpreter. No file is read
here, and no kernel is chosen.
"""
from dataclasses import dataclass

from .errors import RequestError, UnsupportedError
from .native import ffi, isa_mask, lib

ACT_F32, ACT_Q32, ACT_Q256 = lib.PE_ACT_F32, lib.PE_ACT_Q32, lib.PE_ACT_Q256
ACT_NAMES = {ACT_F32: "f32", ACT_Q32: "q32", ACT_Q256: "q256"}


@dataclass(frozen=True)
class QuantType:
    id: int          # ggml type id, as stored in GGUF
    name: str        # "Q4_K"
    block: int       # elements per block
    bytes: int       # bytes per block
    act: int | None  # ACT_* that its kernels take; None: sizes are known, but there are no kernels

    def row_bytes(self, k: int) -> int:
        if k < 0 or k % self.block:
            raise RequestError(f"a {self.name} row of {k} elements is not a multiple of its block of {self.block}", param="k")
        return k // self.block * self.bytes


def _read_tables() -> dict[int, QuantType]:
    n = ffi.new("int32_t *")
    rows = lib.pe_rows(n)
    acts = {rows[i].wtype: rows[i].act for i in range(n[0]) if rows[i].isa == lib.PE_ISA_SCALAR}
    types = lib.pe_types(n)
    return {
        t.id: QuantType(t.id, ffi.string(t.name).decode(), t.block, t.bytes, acts.get(t.id))
        for t in (types[i] for i in range(n[0]))
    }


TYPES: dict[int, QuantType] = _read_tables()  # by ggml id; every known type, with kernels or not
BY_NAME: dict[str, QuantType] = {t.name: t for t in TYPES.values()}


def by_id(type_id: int) -> QuantType:
    if type_id not in TYPES:
        raise UnsupportedError(f"ggml type {type_id} is not known; known are {', '.join(BY_NAME)}")
    return TYPES[type_id]


# ---- what stored bytes are worth ---------------------------------------------------
# Each function takes blocks as uint8 [n, bytes] and gives float32 [n, elements]. Products
# are rounded one by one, in the order of the C code, never fused: results are equal bits.


def _f16(b):
    """Two bytes of each block as a float32 column."""
    return b.view("<f2").astype("f4")


def _f32_rows(b):
    return b.view("<f4")


def _f16_rows(b):
    return b.view("<f2").astype("f4")


def _bf16_rows(b):
    return (b.view("<u2").astype("u4") << 16).view("f4")


def _fields(b, width: int):
    """Bit fields of `width` from [n, m] bytes: [n, 8/width, m], lowest bits first."""
    import numpy as np

    shifts = np.arange(0, 8, width, dtype=np.uint8)
    return (b[:, None, :] >> shifts[:, None]) & np.uint8((1 << width) - 1)


def _nibbles(b, run: int):
    """Low nibbles of `run` bytes, then their high nibbles, then the next run: [n, 2*bytes]."""
    n = b.shape[0]
    return _fields(b.reshape(-1, run), 4).reshape(n, -1)


def _pairs(b):
    """Two-bit fields in runs of 32 bytes: [n, 4*bytes]."""
    return _fields(b.reshape(-1, 32), 2).reshape(b.shape[0], -1)


def _bit_per_group(b):
    """Bit g of byte j belongs to element 32*g + j: [n, 256] from 32 bytes."""
    return _fields(b, 1).reshape(b.shape[0], 256)


def _bit_string(b):
    """Bit j of a little-endian word belongs to element j."""
    import numpy as np

    return np.unpackbits(b, axis=1, bitorder="little")


def _q4_0(b):
    return _f16(b[:, :2]) * (_nibbles(b[:, 2:], 16).astype("f4") - 8)


def _q4_1(b):
    return _f16(b[:, :2]) * _nibbles(b[:, 4:], 16).astype("f4") + _f16(b[:, 2:4])


def _q5_0(b):
    q = _nibbles(b[:, 6:], 16) | _bit_string(b[:, 2:6]) << 4
    return _f16(b[:, :2]) * (q.astype("f4") - 16)


def _q5_1(b):
    q = _nibbles(b[:, 8:], 16) | _bit_string(b[:, 4:8]) << 4
    return _f16(b[:, :2]) * q.astype("f4") + _f16(b[:, 2:4])


def _q8_0(b):
    return _f16(b[:, :2]) * b[:, 2:].view("i1").astype("f4")


# What a nibble stands for; MXFP4's numbers are doubled, its scale is halved.
_IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_MXFP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def _iq4_nl(b):
    import numpy as np

    return _f16(b[:, :2]) * np.array(_IQ4_VALUES, "f4")[_nibbles(b[:, 2:], 16)]


def _mxfp4(b):
    import numpy as np

    e = b[:, :1].astype("u4")  # 2^(e - 128), subnormal for 0 and 1; 255 is 2^127
    d = np.where(e < 2, np.uint32(0x00200000) << e, (e - 1) << 23).astype("u4").view("f4")
    return d * np.array(_MXFP4_VALUES, "f4")[_nibbles(b[:, 1:], 16)]


def _scaled(d, sc, q, dmin=None, mn=None):
    """(d*sc)*q - dmin*mn with one scale and minimum per group of q: [n, 256]."""
    n, groups = sc.shape
    x = (d * sc.astype("f4"))[:, :, None] * q.reshape(n, groups, -1).astype("f4")
    if dmin is not None:
        x -= (dmin * mn.astype("f4"))[:, :, None]
    return x.reshape(n, -1)


def _q2_k(b):
    return _scaled(_f16(b[:, 80:82]), b[:, :16] & 15, _pairs(b[:, 16:80]), _f16(b[:, 82:84]), b[:, :16] >> 4)


def _q3_k(b):
    low = _nibbles(b[:, 96:104], 8)               # sixteen low nibbles ...
    high = _fields(b[:, 104:108], 2).reshape(-1, 16)  # ... and their upper two bits
    sc = (low | high << 4).astype("i1") - 32
    q = (_pairs(b[:, 32:96]) | _bit_per_group(b[:, :32]) << 2).astype("i1") - 4
    return _scaled(_f16(b[:, 108:110]), sc, q)


def _scales_q4_k(s):
    """Eight 6-bit scales and minima from 12 bytes, each [n, 8]."""
    import numpy as np

    first, second, tail = s[:, 0:4], s[:, 4:8], s[:, 8:12]
    sc = np.concatenate([first & 63, (tail & 15) | (first >> 6) << 4], axis=1)
    mn = np.concatenate([second & 63, (tail >> 4) | (second >> 6) << 4], axis=1)
    return sc, mn


def _q4_k(b):
    sc, mn = _scales_q4_k(b[:, 4:16])
    return _scaled(_f16(b[:, :2]), sc, _nibbles(b[:, 16:], 32), _f16(b[:, 2:4]), mn)


def _q5_k(b):
    sc, mn = _scales_q4_k(b[:, 4:16])
    q = _nibbles(b[:, 48:], 32) | _bit_per_group(b[:, 16:48]) << 4
    return _scaled(_f16(b[:, :2]), sc, q, _f16(b[:, 2:4]), mn)


def _q6_k(b):
    q = (_nibbles(b[:, :128], 64) | _pairs(b[:, 128:192]) << 4).astype("i1") - 32
    return _scaled(_f16(b[:, 208:210]), b[:, 192:208].view("i1"), q)


def _iq4_xs(b):
    import numpy as np

    high = _fields(b[:, 2:4], 2).transpose(0, 2, 1).reshape(-1, 8)      # two bits each, lowest first ...
    low = _fields(b[:, 4:8], 4).transpose(0, 2, 1).reshape(-1, 8)       # ... and four
    q = np.array(_IQ4_VALUES, "i1")[_nibbles(b[:, 8:], 16)]
    return _scaled(_f16(b[:, :2]), (low | high << 4).astype("i1") - 32, q)


# IQ1 to IQ3: a group of eight elements (IQ3: four) is an entry of a codebook, with a sign per element
# (IQ1: an eighth more or less per group); a sub-scale s counts 2*s + 1. csrc/blocks.h has the layouts.


def _entries(name: str, at):
    """The codebook's entries at the given places [n, groups]: int8 [n, 256]."""
    import numpy as np

    n, width = ffi.new("int32_t *"), ffi.new("int32_t *")
    table = lib.pe_iq_grid(BY_NAME[name].id, n, width)
    return np.frombuffer(ffi.buffer(table, n[0] * width[0]), "i1").reshape(n[0], width[0])[at].reshape(len(at), 256)


def _signed(q, signs):
    """q [n, 256], negative where the bit of `signs` [n, 32] is set."""
    return q * (1 - 2 * _bit_string(signs).astype("i1"))


def _even_signs(s):
    """Seven stored signs, and an eighth that makes the number of set ones even."""
    odd = s ^ s >> 4
    odd ^= odd >> 2
    odd ^= odd >> 1
    return (s | (odd & 1) << 7).astype("u1")


def _signs_and_scales(b):
    """Words of four times seven signs with a scale on top: signs [n, 32], 2*s + 1 [n, 8], from [8n, 4] bytes."""
    import numpy as np

    words = b.view("<u4")
    signs = (words >> np.array([0, 7, 14, 21], "u4")) & 127
    return _even_signs(signs.reshape(-1, 32)), 2 * (words.reshape(-1, 8) >> 28) + 1


def _nibble_scales(b):
    """2*s + 1 for each nibble: [n, 2*bytes]."""
    return 2 * _nibbles(b, 1) + 1


def _iq2_xxs(b):
    groups = b[:, 2:].reshape(-1, 8)
    signs, sc = _signs_and_scales(groups[:, 4:])
    return _scaled(_f16(b[:, :2]) / 8, sc, _signed(_entries("IQ2_XXS", groups[:, :4].reshape(-1, 32)), signs))


def _iq2_xs(b):
    words = b[:, 2:66].view("<u2")
    q = _signed(_entries("IQ2_XS", words & 511), _even_signs(words >> 9))
    return _scaled(_f16(b[:, :2]) / 8, _nibble_scales(b[:, 66:]), q)


def _iq2_s(b):
    at = b[:, 2:34] | _fields(b[:, 66:74], 2).transpose(0, 2, 1).reshape(-1, 32).astype("u2") << 8
    return _scaled(_f16(b[:, :2]) / 8, _nibble_scales(b[:, 74:]), _signed(_entries("IQ2_S", at), b[:, 34:66]))


def _iq3_xxs(b):
    signs, sc = _signs_and_scales(b[:, 66:].reshape(-1, 4))
    return _scaled(_f16(b[:, :2]) / 4, sc, _signed(_entries("IQ3_XXS", b[:, 2:66]), signs))


def _iq3_s(b):
    at = b[:, 2:66] | _bit_string(b[:, 66:74]).astype("u2") << 8
    return _scaled(_f16(b[:, :2]), _nibble_scales(b[:, 106:]), _signed(_entries("IQ3_S", at), b[:, 74:106]))


def _shifted(q, less):
    """Entries of IQ1 (eight times the element), one less or more by group of eight: `less` [n, 32]."""
    return (q.reshape(-1, 32, 8) + (1 - 2 * less.astype("i1"))[:, :, None]).reshape(-1, 256)


def _iq1_s(b):
    import numpy as np

    high = b[:, 34:50].view("<u2")
    at = b[:, 2:34] | (high[:, :, None] >> np.array([0, 3, 6, 9], "u2") & 7).reshape(-1, 32) << 8
    q = _shifted(_entries("IQ1_S", at), np.repeat(high >> 15, 4, axis=1))
    return _scaled(_f16(b[:, :2]) / 8, 2 * (high >> 12 & 7) + 1, q)


def _iq1_m(b):
    import numpy as np

    words, high = b[:, 48:56].view("<u2"), _nibbles(b[:, 32:48], 1).astype("u2")
    d = (words >> 12 << np.array([0, 4, 8, 12], "u2")).sum(axis=1, keepdims=True, dtype="u2").view("<f2").astype("f4")
    sc = 2 * (words[:, :, None] >> np.array([0, 3, 6, 9], "u2") & 7).reshape(-1, 16) + 1
    return _scaled(d / 8, sc, _shifted(_entries("IQ1_M", b[:, :32] | (high & 7) << 8), high >> 3))


def _tq1_0(b):
    import numpy as np

    def digits(bytes_, n):  # digit p of a byte: the upper byte of 3 * (byte * 3^p mod 256)
        powers = np.array([3**p for p in range(n)], np.uint8)[:, None]
        return ((bytes_[:, None, :] * powers).astype("u2") * 3 >> 8).reshape(len(b), -1)

    q = np.concatenate([digits(b[:, :32], 5), digits(b[:, 32:48], 5), digits(b[:, 48:52], 4)], axis=1)
    return _f16(b[:, 52:54]) * (q.astype("f4") - 1)


def _tq2_0(b):
    return _f16(b[:, 64:66]) * (_pairs(b[:, :64]).astype("f4") - 1)


def _q1_0(b):
    return _f16(b[:, :2]) * (2 * _bit_string(b[:, 2:]).astype("f4") - 1)


def _q2_0(b):
    q = _fields(b[:, 2:], 2).transpose(0, 2, 1).reshape(-1, 64)  # four neighbours per byte
    return _f16(b[:, :2]) * (q.astype("f4") - 1)


def _nvfp4(b):
    import numpy as np

    s = b[:, :4]  # ue4m3 is a half with less exponent; 127 is 0; halved, as the values are doubled
    d = (((s & 127).astype("u2") << 7).view("<f2").astype("f4") * 128) * (s != 127)
    q = np.array(_MXFP4_VALUES, "f4")[_nibbles(b[:, 4:], 8)]
    return (d[:, :, None] * q.reshape(-1, 4, 16)).reshape(-1, 64)


_MEANING = {
    "F32": _f32_rows, "F16": _f16_rows, "BF16": _bf16_rows,
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0,
    "IQ4_NL": _iq4_nl, "MXFP4": _mxfp4, "NVFP4": _nvfp4, "Q1_0": _q1_0, "Q2_0": _q2_0, "TQ1_0": _tq1_0, "TQ2_0": _tq2_0,
    "Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k, "IQ4_XS": _iq4_xs,
    "IQ1_S": _iq1_s, "IQ1_M": _iq1_m, "IQ2_XXS": _iq2_xxs, "IQ2_XS": _iq2_xs, "IQ2_S": _iq2_s,
    "IQ3_XXS": _iq3_xxs, "IQ3_S": _iq3_s,
}


def dequantize(type_id: int, buffer, k: int):
    """Rows of k elements as float32 [rows, k], always a new array. Non-finite scales give what IEEE gives."""
    import numpy as np

    t = by_id(type_id)
    meaning = _MEANING.get(t.name)
    if meaning is None:
        raise UnsupportedError(f"{t.name} cannot be dequantized; supported are {', '.join(_MEANING)}")
    row_bytes = t.row_bytes(k)
    raw = np.frombuffer(buffer, dtype=np.uint8)
    if row_bytes == 0 or raw.size % row_bytes:
        raise RequestError(f"{raw.size} bytes are not whole {t.name} rows of {k} elements ({row_bytes} bytes each)", param="buffer")
    with np.errstate(over="ignore", invalid="ignore"):
        # a copy, because slices of a block are viewed as halves; contiguous slices keep that legal
        y = meaning(np.array(raw).reshape(-1, t.bytes))
    return y.reshape(-1, k)


# ---- activations ---------------------------------------------------------------------


def _quantize(x, block: int):
    """float32 [..., k] -> q int8 [..., k], d float32 [..., k/block], by the rule of docs/arithmetic.md, 3."""
    import numpy as np

    x = np.ascontiguousarray(x, dtype=np.float32)
    k = x.shape[-1]
    if k == 0 or k % block:
        raise RequestError(f"{k} activations are not whole blocks of {block}", param="x")
    b = x.reshape(*x.shape[:-1], k // block, block)
    bits = (b.view(np.uint32) & np.uint32(0x7FFFFFFF)).max(axis=-1)
    amax = bits.view(np.float32)
    broken = bits >= 0x7F800000  # an infinity or NaN somewhere in the block
    tiny = amax < np.float32(2.0**-100)
    zero = broken | tiny
    safe = np.where(zero, np.float32(1), amax)
    inverse = np.where(zero, np.float32(0), np.float32(127) / safe)
    finite = np.where(broken[..., None], np.float32(0), b)
    q = np.rint(finite * inverse[..., None]).astype(np.int8)
    d = np.where(broken, np.float32("nan"), np.where(tiny, np.float32(0), safe / np.float32(127)))
    return q.reshape(x.shape), d


def quantize_q32(x):
    """-> q int8 [..., k], d float32 [..., k/32], s int32 [..., k/32] (sums of q per 32)."""
    q, d = _quantize(x, 32)
    return q, d, q.reshape(*d.shape, 32).sum(axis=-1, dtype="i4")


def quantize_q256(x):
    """-> q int8 [..., k], d float32 [..., k/256], s int16 [..., k/16] (sums of q per 16, |s| <= 2032)."""
    q, d = _quantize(x, 256)
    return q, d, q.reshape(*q.shape[:-1], q.shape[-1] // 16, 16).sum(axis=-1, dtype="i2")


def with_small(q, d, s):
    """q, d, s of quantize_q256 and small uint8 [..., k/256]: 1 where no 16 |q| of a block add up to more than PE_SMALL_SUM."""
    import numpy as np

    sums = abs(q.reshape(*q.shape[:-1], -1, 16, 16).astype("i4")).sum(axis=-1)
    return q, d, s, (sums.max(axis=-1) <= lib.PE_SMALL_SUM).astype(np.uint8)


def activation_rows(act: int, x):
    """float32 [n, k] as activation rows the way kernels read them: uint8 [n, stride], 64-byte aligned (csrc/kernel.h)."""
    import numpy as np

    x = np.ascontiguousarray(x, dtype=np.float32)
    n, k = x.shape
    stride = lib.pe_act_stride(act, k)
    if stride < 0:
        raise RequestError(f"no {ACT_NAMES.get(act, act)} activation row has {k} elements", param="x")
    room = np.zeros(n * stride + 64, dtype=np.uint8)
    start = -room.ctypes.data % 64
    rows = room[start:start + n * stride].reshape(n, stride)
    sections = {ACT_F32: lambda x: (x,), ACT_Q32: quantize_q32, ACT_Q256: lambda x: with_small(*quantize_q256(x))}[act](x)
    at = 0
    for section in sections:
        raw = np.ascontiguousarray(section).view(np.uint8)
        rows[:, at:at + raw.shape[1]] = raw
        at += (raw.shape[1] + 63) // 64 * 64
    assert at == stride
    return rows


# ---- weights to another type ---------------------------------------------------------------


def quantize_rows(source: QuantType, target: QuantType, data, rows: int, k: int, importance=None, isa: int | None = None,
                  first: int = 0) -> "tuple[bytearray, str | None]":
    """Rows of k weights as another type's bytes, and what is wrong with them, in words, if anything is.
    data: a buffer of whole rows. importance: a buffer of k floats above 0. first: number of the first weight, for the
    words. No byte depends on isa."""
    out = bytearray(rows * target.row_bytes(k))
    assert memoryview(data).nbytes == rows * source.row_bytes(k)
    floats, given, written = ffi.new("float[]", k + lib.PE_QUANTIZE_SCRATCH), ffi.from_buffer("char[]", data), ffi.from_buffer("char[]", out)
    job = ffi.new("pe_quantize_job *", {"from": source.id, "to": target.id, "isa": isa_mask() if isa is None else isa,
                                        "rows": rows, "k": k, "row": floats, "in": given, "out": written,
                                        "importance": ffi.NULL if importance is None else ffi.from_buffer("float[]", importance)})
    code = lib.pe_quantize_rows(job)
    ffi.release(given)
    ffi.release(written)
    if code == lib.PE_ENONFINITE:
        return out, f"element {first + job.bad} is {job.bad_value}, expected finite weights"
    if code == lib.PE_ERANGE:
        return out, (f"element {first + job.bad} is {job.bad_value:g}, expected at most {job.limit:g} in size: "
                     f"{target.name} holds no larger one")
    if code != lib.PE_OK:
        return out, f"{source.name} cannot be made {target.name}"
    return out, None


def quantize(name: str, x, *, importance=None, isa: int | None = None):
    """float32 [rows, k] as blocks of a type: uint8 [rows, bytes]. importance: how much an error in each column weighs."""
    import numpy as np

    x = np.ascontiguousarray(x, dtype=np.float32)
    rows, k = x.shape
    if importance is not None:
        importance = np.ascontiguousarray(importance, dtype=np.float32)
        if importance.shape != (k,) or not ((importance > 0) & np.isfinite(importance)).all():
            raise RequestError(f"found {importance.shape}, expected {k} finite numbers above 0", param="importance")
        importance = np.ldexp(importance, -np.frexp(importance.max(initial=1e-30))[1])  # only ratios count; products of sums fit
    out, wrong = quantize_rows(BY_NAME["F32"], BY_NAME[name], x, rows, k, importance, isa)
    if wrong:
        raise RequestError(f"x: {wrong}", param="x")
    return np.frombuffer(out, np.uint8).reshape(rows, -1)

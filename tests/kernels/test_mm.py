"""Every matrix product row this CPU can run, against the scalar row: equal bits.

A result depends on its weight row and its activation row alone, so the scalar row
makes all (row, token) pairs of a shape once, and a kernel's every part of it must be
that part: rows 1-67, tokens 1-33, one to several chunks of columns. What mm_scalar.c
itself means is test_scalar.py's business."""
import ctypes
import functools
import mmap
import os

import numpy as np
import pytest
from scales import HALVES, set_half

from pyengine import quants
from pyengine.native import ffi, lib

ROWS, TOKENS = 67, 33
SHORT = "PYENGINE_TEST_SHORT" in os.environ   # emulated CPUs, in CI
SHAPES = {
    1: (1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 100, 515, 1040),   # float weights: any k
    32: (32, 64, 96, 160, 512, 544, 1056),
    64: (64, 192, 512, 832),
    128: (128, 384, 512, 896),
    256: (256, 512, 768, 1280, 2304),
}


def native_rows() -> list:
    n = ffi.new("int32_t *")
    rows = lib.pe_rows(n)
    return [rows[i] for i in range(n[0])]


SCALAR = {r.wtype: r for r in native_rows() if r.isa == lib.PE_ISA_SCALAR}
TESTED = [r for r in native_rows() if r.isa and not r.isa & ~lib.pe_cpu_isa()]
NAMES = [ffi.string(r.name).decode() for r in TESTED]
SCRATCH = np.zeros(lib.PE_SCRATCH + 64, np.uint8)


def aligned(n: int) -> np.ndarray:
    raw = np.zeros(n + 64, np.uint8)
    return raw[-raw.ctypes.data % 64:][:n]


def before_a_guard_page(n: int) -> np.ndarray:
    """n bytes that end with a page, the next one being unreadable: files end so."""
    whole = -(-n // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = np.frombuffer(mmap.mmap(-1, whole + mmap.PAGESIZE), np.uint8)
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(pages.ctypes.data + whole), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    return pages[whole - n:whole]


class Case:
    """Weights of `n_rows` rows and activations of `n_tokens` tokens, and the scalar answer."""

    def __init__(self, wtype: int, k: int, n_rows: int = ROWS, n_tokens: int = TOKENS, extra: int = 3, style: str = "random"):
        rng = np.random.default_rng(k * 1000 + wtype)
        self.type, self.k, self.n_rows, self.n_tokens = quants.TYPES[wtype], k, n_rows, n_tokens
        row_bytes = self.type.row_bytes(k)
        self.w_stride = row_bytes + extra
        total = (n_rows - 1) * self.w_stride + row_bytes
        self.w = before_a_guard_page(total)
        for r in range(n_rows):
            self.w[r * self.w_stride:][:row_bytes] = self.weights(rng, style)
        self.x_stride = lib.pe_act_stride(self.type.act, k) + 64
        self.x = aligned(n_tokens * self.x_stride)
        for t in range(n_tokens):
            self.x[t * self.x_stride:][: self.x_stride] = self.activations(rng, style, t)
        self.y = self.run(SCALAR[wtype], 0, n_rows, 0, n_tokens)

    def weights(self, rng, style):
        block, size, name = self.type.block, self.type.bytes, self.type.name
        if block == 1:
            x = rng.standard_normal(self.k).astype(np.float32) * (1 if style == "random" else 1e-22)
            if style == "nonfinite":
                x[rng.random(self.k) < 0.05] = np.inf
            x = x.view(np.uint32) >> 16 if name == "BF16" else x.astype(np.float16) if name == "F16" else x
            return np.ascontiguousarray(x.astype(np.uint16) if name == "BF16" else x).view(np.uint8)
        blocks = rng.integers(0, 256, (self.k // block, size), np.uint8)
        if style in ("extreme", "edge"):
            blocks[:] = rng.choice([0, 255, 128, 127], (self.k // block, 1))
        if name == "MXFP4" and style == "random":  # its scale is a byte; any byte in the other styles
            blocks[:, 0] = rng.integers(100, 150, len(blocks))
        if name == "NVFP4":  # all four bytes: zero, subnormal, 127 and the sign among them
            blocks[:, :4] = rng.choice([0, 3, 7, 8, 40, 64, 90, 126, 127, 128, 200, 255], (len(blocks), 4))
        for at in HALVES[name]:
            d = rng.standard_normal(self.k // block) * rng.choice([1e-6, 0.01, 1, 300])
            d = d.astype(np.float16)
            if style == "nonfinite":
                d[rng.random(len(d)) < 0.3] = rng.choice([np.inf, -np.inf, np.nan])
            set_half(blocks, name, at, d)
        return blocks.ravel()

    def activations(self, rng, style, t):
        row, k, act = np.zeros(self.x_stride, np.uint8), self.k, self.type.act
        if act == quants.ACT_F32:
            row[:4 * k] = (rng.standard_normal(k) * (1 if style == "random" else 1e-22)).astype(np.float32).view(np.uint8)
            row[4 * k:] = 255  # what follows the row is nobody's: NaN
            return row
        q = rng.integers(-127, 128, k).astype(np.int8)
        if style == "extreme":
            q[:] = (-127, 127, rng.choice([-127, 127], k))[t % 3]
        if style == "edge":  # each 16 add up to 1023 in absolute value, but one in every eleventh token to 1024
            q[:] = 64
            q[::16] = 63
            q[-16] += t % 11 == 0
            q *= (1, -1, rng.choice([-1, 1], k).astype(np.int8))[t % 3]
        block = 32 if act == quants.ACT_Q32 else 256
        d = rng.standard_normal(k // block).astype(np.float32)
        if style == "nonfinite":
            d[rng.random(len(d)) < 0.1] = np.nan
        sums = q.reshape(-1, 32).sum(1, dtype=np.int32) if block == 32 else q.reshape(-1, 16).sum(1, dtype=np.int16)
        at = 0
        for section in (q, d, sums) if block == 32 else quants.with_small(q, d, sums):
            row[at:at + section.nbytes] = section.view(np.uint8)
            at += (section.nbytes + 63) // 64 * 64
        return row

    def run(self, row, r0, r1, t0, t1):
        """All of y, with what (r0..r1, t0..t1) does not cover left at -1."""
        y = np.full((self.n_tokens, self.n_rows + 5), -1, np.float32)
        m = ffi.new("pe_mm *")
        m.w = ffi.cast("uint8_t *", self.w.ctypes.data)
        m.x = ffi.cast("uint8_t *", self.x.ctypes.data + t0 * self.x_stride)
        m.y = ffi.cast("float *", y.ctypes.data + 4 * t0 * y.shape[1])
        m.w_stride, m.x_stride, m.y_stride = self.w_stride, self.x_stride, y.shape[1]
        m.k, m.r0, m.r1, m.n = self.k, r0, r1, t1 - t0
        m.scratch = ffi.cast("void *", SCRATCH.ctypes.data + -SCRATCH.ctypes.data % 64)
        row.fn(m)
        return y

    def check(self, row, r0, r1, t0, t1):
        want = np.full_like(self.y, -1)
        want[t0:t1, r0:r1] = self.y[t0:t1, r0:r1]
        got = self.run(row, r0, r1, t0, t1)
        same = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
        if not same.all():
            t, r = np.argwhere(~same)[0]
            raise AssertionError(
                f"{ffi.string(row.name).decode()} k={self.k} rows {r0}..{r1} tokens {t0}..{t1}: "
                f"{(~same).sum()} differ, first token {t} row {r}: {got[t, r]!r}, scalar {want[t, r]!r}")


@functools.lru_cache(maxsize=40)
def case(*args, **options) -> Case:
    return Case(*args, **options)


def token_counts(row, most: int) -> range:
    return range(row.n_min, min(row.n_max, most) + 1)


@pytest.mark.parametrize("row", TESTED, ids=NAMES)
def test_every_part(row):
    """Rows 1-67 at the first k that has several blocks; a spread of row counts at the others."""
    block = quants.TYPES[row.wtype].block
    for k in SHAPES[block]:
        c = case(row.wtype, k)
        for n in token_counts(row, TOKENS):
            full = k in (100, 160, 512) and (not SHORT or n in (row.n_min, TOKENS))
            for rows in range(1, ROWS + 1) if full else (1, 2, 7, 8, 9, 16, 17, 23, 33, 64, 67):
                r0 = (ROWS - rows) * (n % 2)  # at the end of the weights, or at their beginning
                t0 = (n * 7 + rows) % (TOKENS - n + 1)
                c.check(row, r0, r0 + rows, t0, t0 + n)


@pytest.mark.parametrize("style", ("extreme", "nonfinite"))
@pytest.mark.parametrize("row", TESTED, ids=NAMES)
def test_extremes(row, style):
    """Largest and smallest quants, scales and sums; underflow for floats; NaN and infinities stay what they are."""
    block = quants.TYPES[row.wtype].block
    for k in SHAPES[block][-3:]:
        c = case(row.wtype, k, 35, 27, style=style)
        assert style != "nonfinite" or np.isnan(c.y[:, :35]).any()
        for n in token_counts(row, max(13, row.n_min + 2)):
            c.check(row, 0, 35, 27 - n, 27)


@pytest.mark.parametrize("row", [r for r in TESTED if r.n_max > 1000 and r.act == quants.ACT_Q256], ids=lambda r: ffi.string(r.name).decode())
def test_activations_at_the_edge_of_small(row):
    """Sums that just fit int16, and blocks with some that just do not."""
    for k in (256, 1280):
        c = case(row.wtype, k, 35, 61, style="edge")
        for n in (17, 31, 32, 47, 61):
            c.check(row, 0, 35, 61 - n, 61)


@pytest.mark.parametrize("row", TESTED, ids=NAMES)
def test_rows_4096_bytes_apart(row):
    """Strides that would put eight streams into one cache set are taken another way; all rows are still made once."""
    k = quants.TYPES[row.wtype].block * 2
    extra = 512 - quants.TYPES[row.wtype].row_bytes(k)
    c = case(row.wtype, k, 211, 25, extra)
    for n in token_counts(row, max(9, row.n_min)):
        for r1 in (64, 65, 71, 128, 200, 211):
            c.check(row, 0, r1, 0, n)


@pytest.mark.parametrize("row", [r for r in TESTED if r.n_max > 1000], ids=[n for n, r in zip(NAMES, TESTED) if r.n_max > 1000])
def test_more_tokens_than_scratch_holds(row):
    block = quants.TYPES[row.wtype].block
    c = case(row.wtype, 5 if block == 1 else block, 19, 4200)
    c.check(row, 0, 19, 0, 4200)
    c.check(row, 3, 19, 1, 2050)


def test_every_type_has_kernels_here():
    """A machine with AVX2 or NEON has one-token, few-token and many-token rows for every type with a scalar row."""
    base = lib.pe_cpu_isa() & (lib.PE_ISA_AVX2 | lib.PE_ISA_NEON)
    if not base:
        pytest.skip("neither AVX2 nor NEON")
    for wtype in SCALAR:
        covered = sorted((r.n_min, r.n_max) for r in TESTED if r.wtype == wtype and r.isa == base)
        assert covered and covered[0][0] == 1 and covered[-1][1] == 2**31 - 1, quants.TYPES[wtype].name
        assert all(a[1] + 1 == b[0] for a, b in zip(covered, covered[1:])), covered

"""Tiers of pe_vops for the tests of ops and attention: arrays in, arrays out, and what
"same bits" means. No reference arithmetic lives here."""
import numpy as np

from pyengine.native import ffi, lib


def tiers():
    """name -> table, for what this CPU can run."""
    n = ffi.new("int32_t *")
    table = lib.pe_vops_all(n)
    rows = [table[i] for i in range(n[0])]
    return {ffi.string(r.name).decode(): r for r in rows if r.isa & ~lib.pe_cpu_isa() == 0}


TIERS = tiers()
OTHERS = [name for name in TIERS if name != "scalar"]


def f32(array):
    return ffi.cast("float *", ffi.from_buffer(array))


def f64(array):
    return ffi.cast("double *", ffi.from_buffer(array))


def u8(array):
    return ffi.cast("uint8_t *", ffi.from_buffer(array))


def aligned(n_bytes):
    """Zeroed bytes at a multiple of 64."""
    raw = np.zeros(n_bytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start:start + n_bytes]


def same(a, b):
    """Equal bits; that a value is NaN counts, its payload and sign do not."""
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    bits = f"u{a.dtype.itemsize}"
    return bool(np.all((a.view(bits) == b.view(bits)) | (np.isnan(a) & np.isnan(b))))


def ulps(y, reference):
    """Largest distance in units of the reference's last place (subnormal spacing below 2^-126)."""
    y, r = np.asarray(y, np.longdouble), np.asarray(reference, np.longdouble)
    unit = np.spacing(np.maximum(np.abs(r), 2.0**-126).astype(np.float32)).astype(np.longdouble)
    return float(np.max(np.abs(y - r) / unit))

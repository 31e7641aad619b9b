"""Packs float rows into the small types the gguf package cannot write: NVFP4, Q1_0, Q2_0.

Not a good quantizer, as pack_kquants.py is none: plain rounding, for test files only. Imported by tools and tests.

Layouts are those of csrc/blocks.h. Every packer takes float32 [n, block] and returns uint8 [n, block bytes].
"""

from pack_kquants import _f16_bytes, _reciprocal

# What the package does not have at all: number, elements and bytes per block.
MISSING = {"Q2_0": (42, 64, 18)}


def nvfp4(x):
    """A scale per sixteen that puts their largest on 6; a byte holds element j low and j + 8 high."""
    import gguf
    import numpy as np

    t = gguf.quants.NVFP4
    parts = x.reshape(-1, 4, 16)
    e = t.fp32_to_ue4m3(np.abs(parts).max(-1) / 6)
    levels = t.ue4m3_to_fp32(e)[..., None, None] * np.array(t.kvalues, np.float32)
    q = np.abs(parts[..., None] - levels).argmin(-1).astype(np.uint8)
    return np.concatenate([e.astype(np.uint8), (q[..., :8] | q[..., 8:] << 4).reshape(-1, 32)], 1)


def q1_0(x):
    """The sign, and the mean magnitude."""
    import numpy as np

    return np.concatenate([_f16_bytes(np.abs(x).mean(-1)), np.packbits(x >= 0, axis=1, bitorder="little")], 1)


def q2_0(x):
    """-d, 0, d and 2d: the element of largest magnitude is put on 2d."""
    import numpy as np

    d = (np.take_along_axis(x, np.abs(x).argmax(-1)[:, None], 1)[:, 0] / 2).astype("<f2")
    q = np.clip(np.rint(x * _reciprocal(d.astype(np.float32))[:, None]) + 1, 0, 3).astype(np.uint8).reshape(-1, 16, 4)
    return np.concatenate([_f16_bytes(d), q[:, :, 0] | q[:, :, 1] << 2 | q[:, :, 2] << 4 | q[:, :, 3] << 6], 1)


PACKERS = {"NVFP4": (nvfp4, 64), "Q1_0": (q1_0, 128), "Q2_0": (q2_0, 64)}

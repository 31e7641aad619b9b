"""Packs float rows into the k-quant types the gguf package cannot write.

Not a good quantizer: scales are plain round-to-nearest, no search and no importance. It exists so that
test files of every type can be made from the same float weights; users' files are never made with it.
Imported by tools and tests only.

Layouts are those of csrc/blocks.h. Every packer takes float32 [n, 256] and returns uint8 [n, block bytes];
tests/test_tiny_gguf.py checks each against the gguf package's dequantizer.
"""


def _f16_bytes(x):
    import numpy as np

    return x.astype("<f2").reshape(-1, 1).view(np.uint8)


def _reciprocal(x):
    import numpy as np

    return np.divide(1.0, x, out=np.zeros_like(x), where=x != 0)


def _asymmetric(x, sub, q_max, s_max):
    """Scale and minimum per `sub` elements: x ~ d*sc*q - dmin*m. Returns d, dmin, sc, m, q."""
    import numpy as np

    parts = x.reshape(len(x), -1, sub)
    low = np.minimum(parts.min(-1), 0)
    scale = (parts.max(-1) - low) / q_max
    d = (scale.max(-1) / s_max).astype("<f2").astype(np.float32)
    dmin = ((-low).max(-1) / s_max).astype("<f2").astype(np.float32)
    sc = np.clip(np.rint(scale * _reciprocal(d)[:, None]), 0, s_max)
    m = np.clip(np.rint(-low * _reciprocal(dmin)[:, None]), 0, s_max)
    step, offset = (d[:, None] * sc)[..., None], (dmin[:, None] * m)[..., None]
    q = np.clip(np.rint((parts + offset) * _reciprocal(step)), 0, q_max)
    return d, dmin, sc.astype(np.uint8), m.astype(np.uint8), q.astype(np.uint8).reshape(len(x), 256)


def _symmetric(x, q_low, q_high, s_low, s_high):
    """Signed scale per 16 elements: x ~ d*sc*q. Returns d, sc (int), q (int)."""
    import numpy as np

    parts = x.reshape(len(x), 16, 16)
    # the element of largest magnitude is put on q_low, the longer end of the range
    peak = np.take_along_axis(parts, np.abs(parts).argmax(-1)[..., None], -1)[..., 0]
    scale = peak / q_low
    widest = np.take_along_axis(scale, np.abs(scale).argmax(-1)[:, None], -1)[:, 0]
    d = (widest / s_low).astype("<f2").astype(np.float32)
    sc = np.clip(np.rint(scale * _reciprocal(d)[:, None]), s_low, s_high)
    q = np.clip(np.rint(parts * _reciprocal((d[:, None] * sc))[..., None]), q_low, q_high)
    return d, sc.astype(np.int32), q.astype(np.int32).reshape(len(x), 256)


def scales_6bit(sc, m):
    """Eight 6-bit scales and minima in twelve bytes (q4_K and q5_K)."""
    import numpy as np

    out = np.zeros((len(sc), 12), np.uint8)
    out[:, 0:4] = sc[:, :4] | (sc[:, 4:] >> 4) << 6
    out[:, 4:8] = m[:, :4] | (m[:, 4:] >> 4) << 6
    out[:, 8:12] = sc[:, 4:] & 15 | (m[:, 4:] & 15) << 4
    return out


def _crumbs(q):
    """2-bit values [n, 256] in 64 bytes: byte 32*half + l holds elements 128*half + 32*j + l at bits 2*j."""
    q = q.reshape(len(q), 2, 4, 32)
    return (q[:, :, 0] | q[:, :, 1] << 2 | q[:, :, 2] << 4 | q[:, :, 3] << 6).reshape(len(q), 64)


def q2_k(x):
    import numpy as np

    d, dmin, sc, m, q = _asymmetric(x, 16, 3, 15)
    return np.concatenate([sc | m << 4, _crumbs(q), _f16_bytes(d), _f16_bytes(dmin)], 1)


def q3_k(x):
    import numpy as np

    d, sc, q = _symmetric(x, -4, 3, -32, 31)
    q, sc = (q + 4).astype(np.uint8), (sc + 32).astype(np.uint8)
    high = (q >> 2).reshape(len(x), 8, 32)
    hmask = np.zeros((len(x), 32), np.uint8)
    for bit in range(8):
        hmask |= high[:, bit] << bit
    scales = np.zeros((len(x), 12), np.uint8)
    scales[:, :8] = sc[:, :8] & 15 | (sc[:, 8:] & 15) << 4
    for k in range(4):
        scales[:, 8:] |= (sc[:, 4 * k : 4 * k + 4] >> 4) << 2 * k
    return np.concatenate([hmask, _crumbs(q & 3), scales, _f16_bytes(d)], 1)


def _nibbles(q):
    q = q.reshape(len(q), 4, 2, 32)
    return (q[:, :, 0] | q[:, :, 1] << 4).reshape(len(q), 128)


def q4_k(x):
    import numpy as np

    d, dmin, sc, m, q = _asymmetric(x, 32, 15, 63)
    return np.concatenate([_f16_bytes(d), _f16_bytes(dmin), scales_6bit(sc, m), _nibbles(q)], 1)


def q5_k(x):
    import numpy as np

    d, dmin, sc, m, q = _asymmetric(x, 32, 31, 63)
    high = (q >> 4).reshape(len(x), 8, 32)
    qh = np.zeros((len(x), 32), np.uint8)
    for bit in range(8):
        qh |= high[:, bit] << bit
    return np.concatenate([_f16_bytes(d), _f16_bytes(dmin), scales_6bit(sc, m), qh, _nibbles(q & 15)], 1)


def q6_k(x):
    import numpy as np

    d, sc, q = _symmetric(x, -32, 31, -128, 127)
    q = (q + 32).astype(np.uint8).reshape(len(x), 2, 4, 32)
    low, high = q & 15, q >> 4
    ql = np.concatenate([low[:, :, 0] | low[:, :, 2] << 4, low[:, :, 1] | low[:, :, 3] << 4], -1)
    qh = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
    scales = sc.astype(np.int8).view(np.uint8)
    return np.concatenate([ql.reshape(len(x), 128), qh.reshape(len(x), 64), scales, _f16_bytes(d)], 1)


PACKERS = {"Q2_K": q2_k, "Q3_K": q3_k, "Q4_K": q4_k, "Q5_K": q5_k, "Q6_K": q6_k}

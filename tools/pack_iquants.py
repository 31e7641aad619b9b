"""Packs float rows into the codebook types (IQ1, IQ2, IQ3), which the gguf package cannot write.

Not a good quantizer: a sub-block's scale comes from its root mean square alone, and each group takes the nearest
entry; no search and no importance. It exists so that test files of every type can be made from the same float
weights; users' files are never made with it. Imported by tools and tests only.

Layouts are those of csrc/blocks.h, codebooks the gguf package's. Every packer takes float32 [n, 256] and returns
uint8 [n, block bytes]; tests/test_tiny_gguf.py checks each against the gguf package's dequantizer.
"""

AT_ONCE = 4096  # groups compared with a codebook: 32 MB of distances to 2048 entries


def _f16_bytes(x):
    import numpy as np

    return x.astype("<f2").reshape(-1, 1).view(np.uint8)


def _grid(name):
    """Entries as float32 [entries, width]."""
    import gguf

    kind = getattr(gguf.quants, name)
    kind.init_grid()
    return kind.grid.reshape(kind.grid_shape)


def _nearest(groups, grid):
    """The place of the nearest entry, and its squared distance less the group's own square: [n] each."""
    import numpy as np

    at, distance = np.empty(len(groups), np.int64), np.empty(len(groups), np.float32)
    square = (grid * grid).sum(1)
    for i in range(0, len(groups), AT_ONCE):
        all_of_them = square - 2 * groups[i:i + AT_ONCE] @ grid.T
        at[i:i + AT_ONCE] = all_of_them.argmin(1)
        distance[i:i + AT_ONCE] = all_of_them.min(1)
    return at, distance


def _scales(x, sub, most, sigma):
    """x ~ d*(2s + 1)*v where v has a root mean square of sigma. Returns d, s [n, 256/sub], v [n, 256]."""
    import numpy as np

    parts = x.reshape(len(x), -1, sub)
    scale = np.sqrt((parts * parts).mean(-1)) / sigma
    d = (scale.max(-1) / (2 * most + 1)).astype("<f2").astype(np.float32)
    steps = np.divide(scale, d[:, None], out=np.zeros_like(scale), where=d[:, None] != 0)
    s = np.clip(np.rint((steps - 1) / 2), 0, most)
    step = (d[:, None] * (2 * s + 1))[..., None]
    v = np.divide(parts, step, out=np.zeros_like(parts), where=step != 0)
    return d, s.astype(np.uint32), v.reshape(len(x), 256)


def _signs(v, even):
    """Bits [n, 32] of the negative elements, and the magnitudes to find entries for. `even`: where a group of eight
    has an odd number, its smallest element takes the other sign, and its magnitude is below zero."""
    import numpy as np

    groups = v.reshape(-1, 8)
    bits = groups < 0
    if even:
        smallest = np.abs(groups).argmin(1)
        odd = bits.sum(1) % 2 == 1
        bits[odd, smallest[odd]] ^= True
    magnitudes = np.where(bits, -groups, groups)
    return np.packbits(bits, axis=1, bitorder="little").reshape(-1, 32), magnitudes


def _iq2_or_3(x, name, part, sub, sigma, even):
    d, s, v = _scales(x, sub, 15, sigma)
    signs, magnitudes = _signs(v, even)
    grid = _grid(name)
    at, _ = _nearest(magnitudes.reshape(-1, grid.shape[1]), grid)
    return d * part, s, signs, at.reshape(len(x), -1)


def _nibbles(s):
    return (s[:, 0::2] | s[:, 1::2] << 4).astype("u1")


def _words_of_28(signs, s):
    """Four times seven signs, and the scale on top: uint8 [n, 8, 4]."""
    import numpy as np

    seven = (signs.reshape(-1, 8, 4) & 127).astype("<u4")
    words = (seven << np.array([0, 7, 14, 21], "u4")).sum(2, dtype="u4") | s << 28
    return words.astype("<u4").view("u1").reshape(-1, 8, 4)


def iq2_xxs(x):
    import numpy as np

    d, s, signs, at = _iq2_or_3(x, "IQ2_XXS", 8, 32, 19.0, True)
    groups = np.concatenate([at.reshape(-1, 8, 4).astype("u1"), _words_of_28(signs, s)], 2)
    return np.concatenate([_f16_bytes(d), groups.reshape(-1, 64)], 1)


def iq2_xs(x):
    import numpy as np

    d, s, signs, at = _iq2_or_3(x, "IQ2_XS", 8, 16, 19.0, True)
    words = (at | (signs & 127).astype(int) << 9).astype("<u2")
    return np.concatenate([_f16_bytes(d), words.view("u1"), _nibbles(s)], 1)


def iq2_s(x):
    import numpy as np

    d, s, signs, at = _iq2_or_3(x, "IQ2_S", 8, 16, 19.0, False)
    high = (at >> 8).reshape(-1, 8, 4)
    qh = (high << [0, 2, 4, 6]).sum(2)
    return np.concatenate([_f16_bytes(d), (at & 255).astype("u1"), signs, qh.astype("u1"), _nibbles(s)], 1)


def iq3_xxs(x):
    import numpy as np

    d, s, signs, at = _iq2_or_3(x, "IQ3_XXS", 4, 32, 24.0, True)
    return np.concatenate([_f16_bytes(d), at.astype("u1"), _words_of_28(signs, s).reshape(-1, 32)], 1)


def iq3_s(x):
    import numpy as np

    d, s, signs, at = _iq2_or_3(x, "IQ3_S", 1, 32, 6.0, False)
    qh = np.packbits(at >> 8, axis=1, bitorder="little")
    return np.concatenate([_f16_bytes(d), (at & 255).astype("u1"), qh, signs, _nibbles(s)], 1)


def _iq1(x, sub, per):
    """d, s, places [n, 32], and whether an eighth comes off, decided per `per` groups: [n, 32/per]."""
    import numpy as np

    d, s, v = _scales(x, sub, 7, 0.8)
    grid = _grid("IQ1_S")
    more, less = (_nearest(v.reshape(-1, 8), grid + shift) for shift in (0.125, -0.125))
    off = (less[1].reshape(-1, per).sum(1) < more[1].reshape(-1, per).sum(1)).reshape(len(x), -1)
    return d, s, np.where(np.repeat(off, per, 1), less[0].reshape(-1, 32), more[0].reshape(-1, 32)), off


def iq1_s(x):
    import numpy as np

    d, s, at, off = _iq1(x, 32, 4)
    qh = ((at >> 8).reshape(-1, 8, 4) << [0, 3, 6, 9]).sum(2) | s << 12 | off.astype("u4") << 15
    return np.concatenate([_f16_bytes(d), (at & 255).astype("u1"), qh.astype("<u2").view("u1")], 1)


def iq1_m(x):
    import numpy as np

    d, s, at, off = _iq1(x, 16, 1)
    words = (s.reshape(-1, 4, 4) << np.array([0, 3, 6, 9], "u4")).sum(2)
    half = d.astype("<f2").view("<u2").astype("u4")
    words |= (half[:, None] >> np.array([0, 4, 8, 12], "u4") & 15) << 12
    qh = _nibbles((at >> 8 | off.astype(int) << 3).astype("u4"))
    return np.concatenate([(at & 255).astype("u1"), qh, words.astype("<u2").view("u1")], 1)


PACKERS = {"IQ1_S": iq1_s, "IQ1_M": iq1_m, "IQ2_XXS": iq2_xxs, "IQ2_XS": iq2_xs, "IQ2_S": iq2_s, "IQ3_XXS": iq3_xxs,
           "IQ3_S": iq3_s}  # fmt: skip

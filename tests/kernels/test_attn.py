"""Attention over pages: the definition in docs/arithmetic.md computed by numpy equals the
scalar tier bit for bit, every other tier equals the scalar tier, and no way of cutting
the work (tokens, heads, chunks, partials) changes a bit."""
import numpy as np
import pytest
from vops import OTHERS, TIERS, aligned, f32, same, u8

from pyengine.native import ffi, lib

PAGE, CHUNK = lib.PE_PAGE, lib.PE_CHUNK
F16, Q8, Q4 = lib.PE_KV_F16, lib.PE_KV_Q8_0, lib.PE_KV_Q4_0
F = np.float32
scalar = TIERS["scalar"]


class Case:
    """Keys, values and queries of one KV head, in pages laid out by kv_store in a shuffled
    order. Everything that no token wrote is NaN."""

    def __init__(self, n_pos, n_group, dk, dv=None, seed=0, tier="scalar", spread=1.0, kv_type=F16):
        dv = dv or dk
        self.kv_type, self.tier = kv_type, TIERS[tier]
        rng = np.random.default_rng([n_pos, n_group, dk, dv, seed])
        self.n_pos, self.n_group, self.dk, self.dv = n_pos, n_group, dk, dv
        self.k = (rng.normal(size=(n_pos, dk)) * spread).astype(F)
        self.v = rng.normal(size=(n_pos, dv)).astype(F)
        self.q = rng.normal(size=(n_pos, n_group, dk)).astype(F)
        n_pages = -(-n_pos // PAGE)
        self.k_off, self.v_off = 64, 64 + lib.pe_kv_bytes(kv_type, dk)
        self.stride = (self.v_off + lib.pe_kv_bytes(kv_type, dv) + 127) // 64 * 64
        self.kv = aligned((n_pages + 2) * self.stride)
        self.kv.view(np.uint16)[:] = 0x7E01
        self.table = rng.permutation(n_pages + 2)[:n_pages].astype(np.int32)
        for p in range(n_pos):
            self.store(p, self.k[p], self.v[p])
        self.scratch = aligned(lib.PE_SCRATCH)
        self.scratch.view(F)[:] = np.nan

    def store(self, p, k, v):
        page = int(self.table[p // PAGE]) * self.stride
        self.tier.kv_store[self.kv_type](u8(self.kv[page + self.k_off:]), u8(self.kv[page + self.v_off:]), p % PAGE, f32(k), f32(v), self.dk, self.dv)

    def args(self, pos, n_q, heads=None, window=0, softcap=0.0, chunks=None, sinks=None):
        g0, g1 = heads or (0, self.n_group)
        c0, c1 = chunks or (0, self.n_pos // CHUNK + 1)
        self.keep = q, o = np.ascontiguousarray(self.q[pos:pos + n_q, g0:g1]), np.full((n_q, g1 - g0, self.dv), 77.0, F)
        a = ffi.new("pe_attn *", dict(
            q=f32(q), q_stride=(g1 - g0) * self.dk, n_q=n_q, n_group=g1 - g0, dk=self.dk, dv=self.dv, pos=pos, window=window,
            kv=u8(self.kv), table=ffi.cast("int32_t *", ffi.from_buffer(self.table)), page_stride=self.stride, k_off=self.k_off,
            v_off=self.v_off, kv_type=self.kv_type, scale=self.dk**-0.5, softcap=softcap, c0=c0, c1=c1, o=f32(o), o_stride=(g1 - g0) * self.dv,
            scratch=ffi.cast("void *", u8(self.scratch)), sinks=ffi.NULL if sinks is None else f32(sinks)))
        return a, o

    def attend(self, t, pos, n_q, **how):
        a, o = self.args(pos, n_q, **how)
        t.attn(a)
        return o

    def by_parts(self, t, pos, n_q, cuts, window=0, softcap=0.0, sinks=None):
        """Chunks in groups given by `cuts`, as partials, then merged."""
        n_chunks, stride = self.n_pos // CHUNK + 1, self.dv + 5
        part = np.full((n_q, self.n_group, n_chunks, stride), np.nan, F)
        for c0, c1 in zip([0, *cuts], [*cuts, n_chunks]):
            a, o = self.args(pos, n_q, window=window, softcap=softcap, chunks=(c0, c1))
            a.part, a.part_chunks, a.part_stride = f32(part), n_chunks, stride
            t.attn(a)
        assert (o == 77.0).all() and np.isnan(part[..., self.dv + 2:]).all()
        for i in range(n_q):
            last = pos + i
            first = max(0, last - window + 1) if window else 0
            for g in range(self.n_group):
                t.attn_merge(f32(o[i, g]), f32(part[i, g]), stride, first // CHUNK, last // CHUNK + 1, self.dv,
                             ffi.NULL if sinks is None else f32(sinks[g:]))
        return o


# ---- the definition, in numpy -------------------------------------------------------------

def fma(a, b, c):
    """rn(a*b + c) on float32 arrays: the product is exact in double, the sum rounded to odd."""
    with np.errstate(all="ignore"):
        p, c = np.asarray(a, np.float64) * np.asarray(b, np.float64), np.asarray(c, np.float64)   # np.float64(array of one) may lose its shape
        p, c = np.broadcast_arrays(p, c)
        z = p + c
        v = z - p
        err = (p - (z - v)) + (c - v)
        bits = z.copy().view(np.int64)
        bits += np.where((err != 0) & np.isfinite(err) & (bits & 1 == 0), np.where((err > 0) == (z > 0), 1, -1), 0)
        return bits.view(np.float64).astype(F)


def exp(x):
    x = np.ascontiguousarray(x, F).reshape(-1)
    y = np.empty_like(x)
    scalar.exp(f32(y), f32(x), x.size)
    return y


def capped(s, softcap):
    y = np.empty_like(s)
    scalar.softcap(f32(y), f32(s), softcap, s.size)
    return y


def blocks(x):
    """Blocks of 32 along the last dimension: int8 values and float32 d."""
    x = x.reshape(*x.shape[:-1], -1, 32)
    top = np.abs(x).max(-1, keepdims=True)
    return np.rint(x * (F(127) / top)).astype(np.int64), (top / F(127))[..., 0]


def blocks_q4(x):
    """The same for q4_0: q of -8..7, d by the first element of the largest magnitude."""
    x = x.reshape(*x.shape[:-1], -1, 32)
    d = np.take_along_axis(x, np.abs(x).argmax(-1)[..., None], -1) / F(-8)
    inverse = np.divide(F(1), d, out=np.zeros_like(d), where=np.abs(d) >= F(2.0**-103))
    return np.minimum(np.floor(x * inverse + F(8.5)), 15).astype(np.int64) - 8, np.where(inverse != 0, d, F(0))[..., 0]


BLOCKS = {Q8: blocks, Q4: blocks_q4}


def values(x, kv_type):
    """What attention reads of V."""
    if kv_type == F16:
        return x.astype(np.float16).astype(F)
    q, d = BLOCKS[kv_type](x)
    return (q.astype(F) * d.astype(np.float16).astype(F)[..., None]).reshape(x.shape)


def scores(case, i, g, p0, p1):
    s, q = np.zeros(p1 - p0, F), case.q[i, g]
    if case.kv_type == F16:
        for d in range(case.dk):
            s = fma(q[d], case.k[p0:p1, d].astype(np.float16).astype(F), s)
        return s
    (qk, dk), (qq, dq) = BLOCKS[case.kv_type](case.k[p0:p1]), blocks(q)
    for b in range(case.dk // 32):
        s = fma(dk[:, b].astype(np.float16).astype(F) * dq[b], (qk[:, b] @ qq[b]).astype(F), s)
    return s


def meaning(case, i, g, window=0, softcap=0.0, sink=None):
    """Row (token at position i, head g); sink: a score of the head's own, which joins last."""
    v = values(case.v, case.kv_type)
    first = max(0, i - window + 1) if window else 0
    running = None
    for c in range(first // CHUNK, i // CHUNK + 1):
        p0, p1 = max(first, c * CHUNK), min(i + 1, (c + 1) * CHUNK)
        s = scores(case, i, g, p0, p1) * F(case.dk**-0.5)
        if softcap:
            s = capped(s, softcap)
        m = s.max()
        e = exp(s - m)
        lanes = np.zeros(16, F)
        for p in range(p0, p1):
            lanes[p % 16] += e[p - p0]
        for w in (8, 4, 2, 1):
            lanes = lanes[:w] + lanes[w:2 * w]
        l, o = lanes[0], np.zeros(case.dv, F)
        for p in range(p0, p1):
            o = fma(e[p - p0], v[p], o)
        if running is not None:
            m0, l0, o0 = running
            both = max(m0, m)
            e0, e1 = exp(np.array([m0 - both]))[0], exp(np.array([m - both]))[0]
            m, l, o = both, fma(l0, e0, l * e1), fma(o0, e0, o * e1)
        running = m, l, o
    if sink is not None:
        m, l, o = running
        both = max(m, sink)
        e0, e1 = exp(np.array([m - both]))[0], exp(np.array([sink - both]))[0]
        running = both, fma(l, e0, e1), o * e0
    return running[2] / running[1]


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("n_pos,n_group,dk,dv,window,softcap,kv_type", [
    (1, 1, 16, 16, 0, 0.0, F16), (70, 3, 64, 64, 0, 0.0, F16), (300, 2, 8, 24, 0, 0.0, F16), (530, 1, 40, 40, 0, 50.0, F16),
    (300, 4, 32, 32, 20, 0.0, F16), (600, 1, 16, 16, 256, 0.0, F16), (600, 1, 1, 1, 300, 20.0, F16),
    (1, 1, 32, 32, 0, 0.0, Q8), (300, 3, 64, 64, 0, 0.0, Q8), (290, 8, 32, 96, 30, 50.0, Q8), (530, 1, 160, 32, 0, 0.0, Q8),
    (1, 1, 32, 32, 0, 0.0, Q4), (300, 3, 64, 64, 0, 0.0, Q4), (290, 8, 32, 96, 30, 50.0, Q4), (530, 1, 160, 32, 0, 0.0, Q4), (270, 5, 96, 64, 0, 0.0, Q4)])
def test_definition(tier, n_pos, n_group, dk, dv, window, softcap, kv_type):
    case = Case(n_pos, n_group, dk, dv, tier=tier, kv_type=kv_type)
    whole = case.attend(TIERS[tier], 0, n_pos, window=window, softcap=softcap)
    for i in sorted({0, n_pos // 2, *[p for p in (15, 16, 63, 64, 255, 256, 257) if p < n_pos], n_pos - 1}):
        for g in {0, n_group - 1}:
            want = meaning(case, i, g, window, softcap)
            assert same(whole[i, g], want), (i, g)
            assert same(case.attend(TIERS[tier], i, 1, window=window, softcap=softcap)[0, g], want), (i, g)


@pytest.mark.parametrize("dk", [1, 8, 16, 32, 40, 64, 80, 96, 128, 256])
def test_near_the_softmax_in_double(dk):
    """A score is off by at most (dk+2) roundings of its sum of |terms|, which bounds the
    relative error of each weight by twice the largest of those plus exp's; the weighted sum
    and l add at most one rounding per position of the chunk and a few per merge."""
    case = Case(520, 2, dk)
    k, v = case.k.astype(np.float16).astype(np.float64), case.v.astype(np.float16).astype(np.float64)
    o = case.attend(scalar, 0, 520)
    for i in (0, 100, 255, 256, 519):
        for g in range(2):
            q = case.q[i, g].astype(np.float64)
            s = k[:i + 1] @ q * dk**-0.5
            off = (dk + 3) * 2.0**-24 * (np.abs(k[:i + 1]) @ np.abs(q) * dk**-0.5).max() + np.abs(s).max() * 2.0**-23
            p = np.exp(s - s.max())
            p /= p.sum()
            bound = (2 * off + (CHUNK + 16) * 2.0**-23) * (p @ np.abs(v[:i + 1]))
            assert (np.abs(o[i, g] - p @ v[:i + 1]) <= bound).all()


# ---- one answer -----------------------------------------------------------------------------

SHAPES_OF_BLOCKS = [(32, 32, 1), (64, 64, 3), (64, 64, 4), (96, 64, 5), (64, 96, 8), (128, 128, 2), (256, 256, 1), (32, 64, 12), (1024, 32, 1),
                    (32, 1024, 1)]


@pytest.mark.parametrize("tier", OTHERS)
@pytest.mark.parametrize("dk,dv,n_group", SHAPES_OF_BLOCKS)
@pytest.mark.parametrize("kv_type", BLOCKS)
def test_tiers_and_cuts_of_blocks(tier, dk, dv, n_group, kv_type):
    check_tiers_and_cuts(tier, dk, dv, n_group, kv_type)


@pytest.mark.parametrize("tier", OTHERS)
@pytest.mark.parametrize("kv_type", BLOCKS)
def test_every_number_of_rows(tier, kv_type):
    """1 to 33 rows as heads of a token and as tokens, ends of strips, pages and chunks, with and without a window."""
    t, most = TIERS[tier], 33
    for n, d in ((270, 32), (70, 96)):
        heads, tokens = Case(n, most, d, kv_type=kv_type), Case(n, 1, d, kv_type=kv_type)
        for how in ({}, {"window": 37}):
            of_heads, of_tokens = heads.attend(scalar, n - 1, 1, **how), tokens.attend(scalar, n - most, most, **how)
            for rows in range(1, most + 1):
                assert same(heads.attend(t, n - 1, 1, heads=(0, rows), **how), of_heads[:, :rows]), (d, rows, how)
                assert same(tokens.attend(t, n - rows, rows, **how), of_tokens[most - rows:]), (d, rows, how)


@pytest.mark.parametrize("tier", OTHERS)
@pytest.mark.parametrize("dk,dv,n_group", [(1, 1, 1), (8, 8, 2), (16, 16, 5), (40, 40, 3), (64, 64, 3), (80, 80, 1), (96, 96, 2), (128, 128, 4),
                                           (256, 256, 4), (64, 20, 7), (20, 64, 9), (192, 128, 1), (64, 64, 8), (32, 48, 12), (16, 16, 11), (48, 32, 10),
                                           (64, 80, 6), (1040, 16, 1)])
def test_tiers_and_cuts(tier, dk, dv, n_group):
    check_tiers_and_cuts(tier, dk, dv, n_group, F16)


def check_tiers_and_cuts(tier, dk, dv, n_group, kv_type):
    """The scalar tier a token at a time against the other tier in every cut."""
    n = 310 if dk * n_group < 500 else 270
    case = Case(n, n_group, dk, dv, kv_type=kv_type)
    wide = Case(n, n_group, dk, dv, tier=tier, kv_type=kv_type)
    assert same(case.kv, wide.kv)
    for how in (dict(), dict(window=50), dict(window=64, softcap=30.0)):
        start = n - 45
        want = np.concatenate([case.attend(scalar, i, 1, **how) for i in range(start, n)])
        for step in (1, 2, 7, 45):
            got = np.concatenate([case.attend(TIERS[tier], i, min(step, n - i), **how) for i in range(start, n, step)])
            assert same(got, want), (how, step)
        whole = case.attend(TIERS[tier], 0, n, **how)
        assert same(whole[start:], want), how
        heads = np.concatenate([case.attend(TIERS[tier], start, 45, heads=(g, g + 1), **how) for g in range(n_group)], axis=1)
        assert same(heads, want), how


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("n_pos,n_group,dk,dv,softcap,kv_type", [(1, 1, 32, 32, 0.0, F16), (13, 1, 64, 64, 0.0, F16), (300, 3, 40, 20, 20.0, F16),
                                                                 (520, 1, 64, 64, 0.0, F16), (300, 2, 64, 64, 0.0, Q8), (270, 1, 32, 96, 0.0, Q4)])
def test_in_both_directions_every_token_sees_what_the_last_one_does(tier, n_pos, n_group, dk, dv, softcap, kv_type):
    """The bits of its own query at the last position, however the tokens are cut; what lies behind may be anything."""
    case, n = Case(n_pos, n_group, dk, dv, tier=tier, kv_type=kv_type), max(1, n_pos - 3)
    for p in range(n, n_pos):
        case.store(p, np.full(dk, np.nan, F), np.full(dv, np.nan, F))
    want = []
    for i in range(n):
        a, o = case.args(i, 1, softcap=softcap)
        a.pos = n - 1
        scalar.attn(a)
        want.append(o)
    for step in (1, 32, n):
        got = []
        for i in range(0, n, step):
            a, o = case.args(i, min(step, n - i), softcap=softcap)
            a.all = n
            TIERS[tier].attn(a)
            got.append(o)
        assert same(np.concatenate(got), np.concatenate(want)), step


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("how", [dict(), dict(window=300), dict(window=70, softcap=5.0)], ids=str)
@pytest.mark.parametrize("kv_type", [F16, Q8, Q4])
def test_partials_merge_to_the_same_bits(tier, how, kv_type):
    case = Case(1100, 2, 32, kv_type=kv_type)
    for pos, n_q in ((1099, 1), (1020, 50), (250, 12), (0, 3)):
        want = case.attend(TIERS[tier], pos, n_q, **how)
        for cuts in ([], [1], [1, 2, 3, 4], [2, 3]):
            assert same(case.by_parts(TIERS[tier], pos, n_q, cuts, **how), want), (pos, cuts)


@pytest.mark.parametrize("tier", TIERS)
def test_many_partials_merge_to_the_same_bits(tier):
    """More chunks than the sixteen that the merge takes at once."""
    case = Case(35 * CHUNK + 9, 1, 8, 24, tier=tier)
    for pos in (16 * CHUNK, 17 * CHUNK + 5, case.n_pos - 1):
        want = case.attend(TIERS[tier], pos, 1)
        assert same(case.by_parts(TIERS[tier], pos, 1, range(1, 36)), want), pos


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("kv_type", [F16, Q8, Q4])
def test_what_is_not_seen_does_not_matter(tier, kv_type):
    """Positions behind the token or before its window may hold anything, NaN and infinities too."""
    t, n = TIERS[tier], 290
    for group, window in ((1, 0), (3, 0), (1, 40), (8, 17)):
        case = Case(n, group, 64, kv_type=kv_type)
        last = 200
        want = case.attend(t, last - 30, 31, window=window)
        for p in [*range(last + 1, n), *(range(last - 30 - window + 1) if window else ())]:
            bad = np.full(64, np.nan if p % 2 else np.inf, F)
            case.store(p, bad, bad)
        assert np.isfinite(want).all() and same(case.attend(t, last - 30, 31, window=window), want)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("kv_type", [F16, Q8, Q4])
def test_a_bad_position_hurts_those_who_see_it_and_nobody_else(tier, kv_type):
    t, n, bad = TIERS[tier], 280, 262
    for group in (1, 4):
        clean, case = Case(n, group, 32, kv_type=kv_type), Case(n, group, 32, kv_type=kv_type)
        case.store(bad, case.k[bad], np.full(32, np.nan, F))
        got, want = case.attend(t, 0, n), clean.attend(t, 0, n)
        assert np.isnan(got[bad:]).all() and same(got[:bad], want[:bad])


def test_large_scores():
    """Scores of some thousands: all but the best vanish, nothing overflows."""
    for name, t in TIERS.items():
        case = Case(300, 3, 64, spread=2000.0)
        o = case.attend(t, 0, 300)
        assert np.isfinite(o).all() and same(o, case.attend(scalar, 0, 300)), name


def test_chunks_out_of_sight_give_zeros():
    case = Case(300, 1, 16)
    for t in TIERS.values():
        assert (case.attend(t, 10, 3, chunks=(1, 2)) == 0).all()


@pytest.mark.parametrize("tier", TIERS)
def test_q8_pages(tier):
    """What q8_0 stores, by the layout in pyengine.h; sizes that are not whole blocks have none."""
    case = Case(70, 1, 64, 96, kv_type=Q8, tier=tier)
    (kq, kd), (vq, vd) = blocks(case.k), blocks(case.v)
    for p in (0, 5, 16, 63, 64, 69):
        page = case.kv[int(case.table[p // PAGE]) * case.stride:]
        k, v = (page[off + p % PAGE // 16 * 17 * d:][:17 * d] for off, d in ((case.k_off, 64), (case.v_off, 96)))
        assert (k[:1024].view(np.int8).reshape(16, 16, 4)[:, p % 16].ravel() == kq[p].ravel()).all()
        assert (k[1024:].view(np.float16).reshape(2, 16)[:, p % 16] == kd[p].astype(np.float16)).all()
        assert (v[:1536].view(np.int8).reshape(16, 96)[p % 16] == vq[p].ravel()).all()
        assert (v[1536:].view(np.float16).reshape(16, 3)[p % 16] == vd[p].astype(np.float16)).all()


@pytest.mark.parametrize("tier", TIERS)
def test_q4_pages(tier):
    """What q4_0 stores: two dimensions of one position in a byte, by the layout in pyengine.h."""
    case = Case(70, 1, 64, 96, kv_type=Q4, tier=tier)
    (kq, kd), (vq, vd) = blocks_q4(case.k), blocks_q4(case.v)
    for p in (0, 5, 16, 63, 64, 69):
        page = case.kv[int(case.table[p // PAGE]) * case.stride:]
        k, v = (page[off + p % PAGE // 16 * 9 * d:][:9 * d] for off, d in ((case.k_off, 64), (case.v_off, 96)))
        eights = k[:512].reshape(8, 16, 4)[:, p % 16]
        assert (np.concatenate([eights & 15, eights >> 4], 1).ravel() == kq[p].ravel() + 8).all()
        assert (k[512:].view(np.float16).reshape(2, 16)[:, p % 16] == kd[p].astype(np.float16)).all()
        blocks_of_v = v[:768].reshape(16, 3, 16)[p % 16]
        assert (np.concatenate([blocks_of_v & 15, blocks_of_v >> 4], 1).ravel() == vq[p].ravel() + 8).all()
        assert (v[768:].view(np.float16).reshape(16, 3)[p % 16] == vd[p].astype(np.float16)).all()


def test_bytes_of_pages():
    for kv_type in BLOCKS:
        assert [lib.pe_kv_bytes(kv_type, d) for d in (0, 31, 33, 48, 1056)] == [-1] * 5
    assert lib.pe_kv_bytes(7, 64) == lib.pe_kv_bytes(-1, 64) == -1
    assert [lib.pe_kv_bytes(t, 64) for t in (F16, Q8, Q4)] == [64 * 128, 64 * 68, 64 * 36] and lib.pe_kv_bytes(F16, 33) == 64 * 66


AWKWARD = {
    "zeros": np.zeros(32, F), "minus zeros": np.full(32, -0.0, F), "subnormal": np.full(32, 1e-40, F), "least": np.full(32, 2.0**-100, F),
    "below the least": np.full(32, np.nextafter(F(2.0**-100), F(0)), F), "one": np.eye(1, 32, 7, dtype=F)[0], "minus one": -np.eye(1, 32, 31, dtype=F)[0],
    "both signs": np.tile(np.array([2, -2], F), 16), "both signs, minus first": np.tile(np.array([-2, 2], F), 16),
    "halves": np.concatenate([np.array([-8], F), np.arange(31, dtype=F) / 2 - 7.5]), "halves, plus": np.concatenate([np.array([8], F), np.arange(31, dtype=F) / 2 - 7.5]),
    "huge": np.linspace(-3e38, 3e38, 32).astype(F), "beyond f16": np.linspace(-9e6, 9e6, 32).astype(F),
    "nan": np.array([np.nan] + [1] * 31, F), "inf": np.array([1] * 31 + [np.inf], F), "minus inf": np.array([-np.inf] + [1] * 31, F),
}


@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize("kv_type", BLOCKS)
def test_awkward_blocks(name, kv_type):
    """Every tier writes the same bytes of them, and what is not finite reaches every row that sees it."""
    x = AWKWARD[name]
    pages = []
    for tier in TIERS:
        case = Case(70, 2, 32, kv_type=kv_type, tier=tier)
        case.store(3, x, x)
        pages.append(case.kv)
        seen = [case.attend(TIERS[t], 0, 70) for t in TIERS]
        assert all(same(seen[0], s) for s in seen)
        bad = name in ("huge", "beyond f16", "nan", "inf", "minus inf")
        assert np.isfinite(seen[0][:3]).all() and (np.isfinite(seen[0][3:]).all() if not bad else not np.isfinite(seen[0][3:]).any(-1).any())
    assert all(same(pages[0], p) for p in pages)
    if kv_type == Q4 and not bad:
        with np.errstate(all="ignore"):
            assert same(case.attend(scalar, 69, 1)[0, 1], meaning_of(case, {3: x}, 69, 1))


def meaning_of(case, stored, i, g):
    for p, x in stored.items():
        case.k[p] = case.v[p] = x
    return meaning(case, i, g)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("kv_type", [F16, Q8, Q4])
def test_a_position_has_bytes_of_its_own(tier, kv_type):
    """Pages are shared and copied for their first positions: writing one changes no byte of another."""
    case, rng = Case(PAGE, 1, 64, 32, kv_type=kv_type, tier=tier), np.random.default_rng(5)
    owner = np.full(case.kv.size, -1)
    for p in range(PAGE):
        before = case.kv.copy()
        for _ in range(8):
            case.store(p, rng.normal(size=64).astype(F), rng.normal(size=32).astype(F))
            changed = before != case.kv
            assert (owner[changed] < 0).all() or (owner[changed][owner[changed] >= 0] == p).all()
            owner[changed] = p
    assert (np.bincount(owner[owner >= 0]) == (lib.pe_kv_bytes(kv_type, 64) + lib.pe_kv_bytes(kv_type, 32)) // PAGE).all()


@pytest.mark.parametrize("tier", TIERS)
def test_a_sink_joins_last(tier):
    """Whole, in partials, and where it outweighs everything or nothing; every head has its own."""
    t, sinks = TIERS[tier], np.array([0.5, -30.0, 60.0], F)
    case = Case(600, 3, 32, 40, tier=tier)
    for pos, n_q, window in ((0, 2, 0), (299, 3, 0), (550, 2, 20)):
        want = case.attend(t, pos, n_q, window=window, sinks=sinks)
        assert same(case.by_parts(t, pos, n_q, [1], window=window, sinks=sinks), want)
        for i in range(n_q):
            for g in range(3):
                assert same(want[i, g], meaning(case, pos + i, g, window=window, sink=sinks[g])), (pos, i, g)

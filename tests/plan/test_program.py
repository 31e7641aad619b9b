"""The compiled program: equal to the reference interpreter, equal to itself however a step is cut."""

import functools
import operator
import random
from array import array

import numpy as np
import pytest

import tiny_gguf

from pyengine import errors, plan, quants
from pyengine.native import TIERS, lib
from pyengine.plan import reference
from pyengine.plan.lower import choose
from pyengine.plan.ops import Value
from pyengine.plan.program import FILES
from pyengine.native import rows

RNG = random.Random(7)
TOKENS = [RNG.randrange(3, 300) for _ in range(70)]
ACT_OF = {r.wtype: r.act for r in rows()}
ABLE = [name for name, bits in TIERS.items() if bits & lib.pe_cpu_isa() == bits]
BUILT = functools.reduce(operator.or_, (r.isa for r in rows()))      # bits that some kernel of this build asks for
DISTINCT = list({TIERS[name] & BUILT: name for name in reversed(ABLE)}.values())    # tiers that run different kernels

MODELS = {
    "llama": dict(arch="llama"),
    "llama tied": dict(arch="llama", tied=True),
    "llama biases": dict(arch="llama", biases=True, n_head_kv=(1, 4), n_ff=(96, 160)),
    "llama odd": dict(arch="llama", n_embd=72, n_head=3, n_head_kv=(1,), n_ff=(56,), n_vocab=351),
    "llama freqs": dict(arch="llama", rope_freqs=True),
    "llama linear": dict(arch="llama", rope_scaling="linear"),
    "llama old": dict(arch="llama", rope_scaling="old"),
    "llama yarn": dict(arch="llama", rope_scaling="yarn"),
    "gemma3": dict(arch="gemma3"),
    "gemma3 head": dict(arch="gemma3", head_dim=48, n_head_kv=(1,)),
}
QUANTS = ("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")


def nmse(a, b):
    """Squared error of the centred logits over their variance."""
    a = a - a.mean(axis=1, keepdims=True)
    b = b - b.mean(axis=1, keepdims=True)
    return ((a - b) ** 2).sum() / (b * b).sum()


@pytest.mark.parametrize("name", MODELS)
def test_float_program_equals_the_reference(tiny, runner, name):
    """F32: float32 rounding of sums of some hundred terms, and of K and V as float16 where a value
    lies on a rounding boundary: relative error below 2^-11 of a logit's scale, NMSE far below."""
    r = runner(tiny(**MODELS[name]))
    got = r.all(TOKENS)
    want = reference.logits(r.program.graph, TOKENS, ACT_OF.__getitem__)
    assert np.std(want) > 1
    assert nmse(got, want) < 1e-7, nmse(got, want)


@pytest.mark.parametrize("weight_type, arch", [*((t, arch) for t in QUANTS for arch in ("llama", "gemma3")),
                                               *((t, "llama") for t in tiny_gguf.SMALL_TYPES)])
def test_quantized_program_equals_the_reference(tiny, runner, arch, weight_type):
    """Quantized products add one source of difference: an activation that lies within float32 rounding of
    a boundary falls to the other side, and from there on all later ones may. At worst the two runs differ as
    two roundings of the same activations do: a step of amax/127 has a variance of a twelfth, amax is some 3.5
    times the root mean square, so each of the four quantizations of a layer adds 6.3e-5."""
    n = 64 if quants.BY_NAME[weight_type].block <= 64 else 256
    r = runner(tiny(arch=arch, weight_type=weight_type, n_embd=n, n_ff=(2 * n,)))
    got = r.all(TOKENS[:40])
    want = reference.logits(r.program.graph, TOKENS[:40], ACT_OF.__getitem__)
    assert nmse(got, want) < 4 * r.program.hp.n_layer * 6.3e-5


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
@pytest.mark.parametrize("kv_type, each", [("q8_0", 68), ("q4_0", 36)])
def test_cache_in_blocks_equals_the_reference(tiny, runner, arch, kv_type, each):
    """As above: q, K and V of each layer are three more quantizations, here the only ones. Of q4_0, whose steps are
    16 times as wide, few values lie so close to a boundary that float32 decides: the same bound holds."""
    r = runner(tiny(arch=arch, n_embd=128, n_head=4, n_head_kv=(2,), head_dim=32), kv_type=kv_type)
    got = r.all(TOKENS)
    want = reference.logits(r.program.graph, TOKENS, ACT_OF.__getitem__, kv_type)
    plain = reference.logits(r.program.graph, TOKENS, ACT_OF.__getitem__)
    assert nmse(got, want) < 3 * r.program.hp.n_layer * 6.3e-5 and nmse(got, want) < nmse(got, plain)
    g = r.program.groups[0]
    assert g.page_bytes == len(g.layers) * 2 * (32 + 32) * each
    assert f"in {kv_type}" in "\n".join(r.program.explain())


@pytest.mark.parametrize("kv_type", ["q8_0", "q4_0"])
def test_cache_in_blocks_takes_whole_blocks(tiny, kv_type):
    with pytest.raises(errors.RequestError, match=f"{kv_type}.*multiples of 32.*heads of 16") as e:
        plan.compile(tiny(arch="llama", n_embd=64, n_head=4, n_head_kv=(2,), head_dim=16), n_ctx=64, kv_type=kv_type)
    assert e.value.param == "kv_type"


@pytest.mark.parametrize("name", ["llama biases", "llama odd", "gemma3", "gemma3 head"])
@pytest.mark.parametrize("isa", DISTINCT)
def test_fusion_changes_no_bit(tiny, runner, name, isa):
    """Every fusion is compared with its absence, on every tier."""
    g = tiny(**MODELS[name])
    fused, plain = runner(g, isa=isa), runner(g, isa=isa, fuse=False)
    assert len(fused.program.instrs) < 0.8 * len(plain.program.instrs)
    assert all(i.barrier for i in plain.program.instrs)
    assert np.array_equal(fused.all(TOKENS[:20]).view(np.int32), plain.all(TOKENS[:20]).view(np.int32))


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
@pytest.mark.parametrize("weight_type", ["F32", "F16", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K", "NVFP4"])
def test_one_answer(tiny, runner, arch, weight_type):
    """Tier, threads, chunks, neighbours in the batch: the same bits (cases.md 70, 98, 99)."""
    g = tiny(arch=arch, weight_type=weight_type, n_embd=256, n_ff=(512,), n_vocab=353)
    tokens = TOKENS * 5
    base = runner(g).all(tokens, chunk=64).view(np.int32)
    for isa in DISTINCT:
        n = 40 if isa == "scalar" else len(tokens)
        assert np.array_equal(runner(g, isa=isa).all(tokens[:n]).view(np.int32), base[:n]), isa
    for threads in (1, 3, 7):
        assert np.array_equal(runner(g, threads=threads).all(tokens).view(np.int32), base), threads
    for chunk in (1, 7, 33):
        assert np.array_equal(runner(g).all(tokens, chunk=chunk).view(np.int32), base), chunk
    r = runner(g)
    others = {s: [RNG.randrange(3, 300) for _ in range(120)] for s in (1, 2, 3)}
    got, at = [], 0
    for turn, n in enumerate([20, 1, 1, 30, 1, 1]):
        parts = [(s, 15 * turn, ts[15 * turn : 15 * turn + 1 + s * (turn % 2) * 4]) for s, ts in others.items()]
        if turn:    # the neighbours' earlier rows: fill what the ragged counts left out
            for s, ts in others.items():
                r.step([(s, 0, ts[: 15 * turn])]) if turn == 1 else None
        parts.insert(2, (0, at, tokens[at : at + n]))
        rows_before = sum(len(p[2]) for p in parts[:2])
        got.append(r.step(parts)[rows_before : rows_before + n])
        at += n
    assert np.array_equal(np.concatenate(got).view(np.int32), base[:at])


@pytest.mark.parametrize("kind, act", [("q32", lib.PE_ACT_Q32), ("q256", lib.PE_ACT_Q256)])
def test_rows_have_the_bytes_that_kernels_count(kind, act):
    for k in (256, 2048, 8192, 16640):
        assert Value("x", kind, k, "tokens").row_bytes == lib.pe_act_stride(act, k)


@pytest.mark.parametrize("weight_type", ["F32", "Q8_0", "Q4_K"])
def test_a_step_longer_than_a_piece_of_the_ffn(tiny, runner, weight_type):
    """FFN takes 256 tokens at a time: 600 in one step, the last piece being short, are the bits of chunks of 64."""
    tokens = [RNG.randrange(3, 300) for _ in range(600)]
    file = tiny(arch="llama", weight_type=weight_type, n_embd=256, n_ff=(256,))
    whole, cut = (runner(file, n_ctx=640, max_tokens=640) for _ in range(2))
    assert any(i.op == "FFN" for i in whole.program.instrs)
    last = whole.step([(0, 0, tokens)], [0, 511, 512, 599]).copy()
    want = [cut.step([(0, at, tokens[at : at + 64])], range(min(64, 600 - at))).copy() for at in range(0, 600, 64)]
    want = np.concatenate(want)[[0, 511, 512, 599]]
    assert last.tobytes() == want.tobytes()


def temperature(tiny, **more):
    spec = dict(arch="mistral3", rope_scaling="yarn", rope_orig_ctx=16, temperature=0.3)
    return plan.compile(tiny(**spec), n_ctx=1000, **more)


def test_scales_by_position_are_the_nearest_floats(tiny):
    import mpmath

    program = temperature(tiny)
    first, second = (i for i in program.instrs if i.op == "EW")
    assert first.args["b"] is second.args["b"] and first.n["period"] == 16
    found = np.frombuffer(first.args["b"].data, np.float32)
    slope = float(np.float32(0.3))
    with mpmath.workprec(120):
        exact = np.array([np.longdouble(mpmath.nstr(1 + slope * mpmath.log(1 + i), 30)) for i in range(63)])
    assert len(found) == 63 and found[0] == 1
    assert (np.abs(found - exact) <= np.spacing(found) * np.longdouble(0.5000001)).all()


@pytest.mark.parametrize("n", [{"steps": 62}, {"period": 15}, {"period": 0}, {"steps": 1 << 40}])
def test_scales_that_do_not_reach_the_last_position_do_not_bind(tiny, n):
    program = temperature(tiny)
    next(i for i in program.instrs if i.op == "EW").n.update(n)
    with pytest.raises(errors.PyengineError, match="EW .*does not bind"):
        program.open([16], 1)


def test_window_pages_may_be_gone(tiny, runner):
    """In a group with a window, pages that nobody can see any more need not exist."""
    g = tiny(arch="gemma3", window=8)
    whole = runner(g, n_ctx=256).all(TOKENS * 2, chunk=40)
    r = runner(g, n_ctx=256)
    r.all((TOKENS * 2)[:130])
    tables = tuple(array("i", [-1 if grp.window and p < 1 else t for p, t in enumerate(r.table(0)[0])]) for grp in r.program.groups)
    logits = r.program.run(plan.Step(TOKENS[60:61], [plan.Seq(130, 1, tables)], [0]))
    assert np.array_equal(logits.numpy(0).view(np.int32), whole[130].view(np.int32))


def test_copied_pages_are_the_same_pages(tiny, runner):
    """A step's copies happen before anything else: a sequence can go on from a copy."""
    r = runner(tiny(arch="llama"), n_ctx=128)
    a = r.all(TOKENS[:64])
    assert len(a) == 64
    own, other = r.table(0), r.table(1)
    r.program.run(plan.Step(TOKENS[64:65], [plan.Seq(64, 1, own)], [0]))
    want = r.program.run(plan.Step(TOKENS[65:66], [plan.Seq(65, 1, own)], [0])).numpy(0)
    copies = [(0, own[0][p], other[0][p]) for p in range(2)]
    got = r.program.run(plan.Step(TOKENS[65:66], [plan.Seq(65, 1, other)], [0], copies)).numpy(0)
    assert np.array_equal(got.view(np.int32), want.view(np.int32))


def pages_of(program, group):
    """The cache of a group as bytes [layer, page, byte]."""
    g = program.groups[group]
    memory = np.frombuffer(program._memory[FILES + group], np.uint8)
    return memory.reshape(len(g.layers), program.n_pages[group], g.layer_page_bytes)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("kv_type", ["f16", "q4_0"])
@pytest.mark.parametrize("n", [3, 40], ids=["alone", "shared"])
def test_copies_of_every_layer_and_group_in_order(tiny, runner, threads, kv_type, n):
    """Copies of pages that earlier copies made, in groups of different layers and page sizes; few are made by one thread, many by all."""
    g = tiny(arch="gemma3", n_embd=128, n_head=4, n_head_kv=(2,), head_dim=64, n_layer=7)
    r = runner(g, n_ctx=1024, threads=threads, kv_type=kv_type)
    assert len({len(g.layers) for g in r.program.groups}) == 2
    draw, caches, want, copies = random.Random(n), [pages_of(r.program, i) for i in range(2)], [], []
    for cache in caches:
        cache[:] = np.random.default_rng(len(want)).integers(0, 256, cache.shape, np.uint8)
        want.append(cache.copy())
    for i in range(n):
        group = draw.randrange(2)
        source, target = draw.sample(range(1, 12), 2)
        copies.append((group, source, target))
        want[group][:, target] = want[group][:, source]
    table = array("i", [0])
    r.program.run(plan.Step([5], [plan.Seq(0, 1, (table, table))], [], copies))
    total = sum(r.program.groups[c[0]].page_bytes for c in copies)
    assert total > 1 << 20 if n == 40 and kv_type == "f16" else total > 0
    for cache, expected in zip(caches, want):
        assert np.array_equal(cache[:, 1:], expected[:, 1:])


def test_bad_copies_are_refused_before_any_is_made(tiny, runner):
    r = runner(tiny(arch="gemma3"), n_ctx=128)
    n, table = [int(p) for p in r.program.n_pages], array("i", [0])
    for cache in (pages_of(r.program, 0), pages_of(r.program, 1)):
        cache[:] = np.arange(cache.shape[1], dtype=np.uint8)[None, :, None]
    for bad in ((-1, 1, 2), (2, 1, 2), (0, -1, 2), (0, n[0], 2), (1, 1, -1), (1, 1, n[1]), (0, 3, 3), (0, 1, 2**31 - 1)):
        with pytest.raises(errors.RequestError, match="copies, index 1"):
            r.program.run(plan.Step([5], [plan.Seq(0, 1, (table, table))], [0], [(0, 1, 2), bad]))
    with pytest.raises(errors.RequestError, match="tables"):
        r.program.run(plan.Step([5], [plan.Seq(0, 1, (array("i", [-1]), table))], [0], [(0, 1, 2)]))
    assert (pages_of(r.program, 0)[:, 2] == 2).all() and (pages_of(r.program, 1)[:, 2] == 2).all()
    with pytest.raises(AssertionError):
        r.program.run(plan.Step([5], [plan.Seq(0, 1, (table, table))], [0], [(0, 1)]))


@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4_0"])
def test_a_copied_page_serves_its_first_positions(tiny, runner, kv_type):
    """A page of which another sequence wrote on is copied: what lies behind the shared positions is not looked at."""
    r = runner(tiny(arch="llama", n_embd=128, n_head=4, n_head_kv=(2,), head_dim=32), n_ctx=128, kv_type=kv_type)
    want = r.step([(0, 0, TOKENS[:50])])[-5:]
    r.step([(1, 0, TOKENS[:45] + TOKENS[60:70])])
    got = r.program.run(plan.Step(TOKENS[45:50], [plan.Seq(45, 5, r.table(2))], range(5), [(0, r.table(1)[0][0], r.table(2)[0][0])]))
    assert np.array_equal(np.array([got.numpy(i) for i in range(5)]).view(np.int32), want.view(np.int32))


@pytest.mark.parametrize("step, field", [
    (([], [(0, 1)], []), "counts"),
    (([1] * 65, [(0, 65)], []), "tokens"),
    (([-1], [(0, 1)], []), "tokens"),
    (([331], [(0, 1)], []), "tokens"),
    (([1 << 40], [(0, 1)], []), "tokens"),
    (([1], [(-1, 1)], []), "start"),
    (([1], [(128, 1)], []), None),
    (([1, 2], [(127, 2)], []), None),
    (([1, 2], [(0, 1)], []), "count"),
    (([1], [(0, 0)], []), "count"),
    (([1, 2], [(0, 2)], [1, 0]), "wanted"),
    (([1, 2], [(0, 2)], [2]), "wanted"),
])
def test_bad_steps_are_refused_by_name(tiny, runner, step, field):
    r = runner(tiny(arch="llama"), n_ctx=128, max_tokens=64)
    tokens, seqs, wanted = step
    with pytest.raises(errors.RequestError) as e:
        r.program.run(plan.Step(tokens, [plan.Seq(s, n, r.table(0)) for s, n in seqs], wanted))
    assert field is None or e.value.param == field
    assert len(r.step([(0, 0, [1, 2])])) == 2      # and the program still runs


def test_rows_that_end_before_the_head(tiny, runner):
    """The last of the wanted have no logits, and the others' are the same; all have hidden rows."""
    r = runner(tiny(arch="llama"))
    want = r.step([(0, 0, TOKENS[:20])], range(20))
    hidden = None
    for n in (0, 7, 20):
        found = r.program.run(plan.Step(TOKENS[:20], [plan.Seq(0, 20, r.table(0))], range(20), n_hidden=n))
        assert found.n == 20 - n and all(np.array_equal(found.numpy(i), want[i]) for i in range(20 - n))
        rows = np.stack([found.hidden(i) for i in range(20)])
        assert rows.shape == (20, 64) and (hidden is None or np.array_equal(rows, hidden))
        hidden = rows
    for n in (-1, 21):
        with pytest.raises(errors.RequestError, match="counts, index 5"):
            r.program.run(plan.Step(TOKENS[:20], [plan.Seq(0, 20, r.table(0))], range(20), n_hidden=n))


def test_a_sequence_that_sees_both_ways_begins_at_its_begin(tiny, runner):
    r = runner(tiny(arch="bert", n_ctx_train=128), n_ctx=128)
    with pytest.raises(errors.RequestError, match="start, index 0"):
        r.program.run(plan.Step([5], [plan.Seq(1, 1, r.table(0))], [0]))
    assert r.program.run(plan.Step([5], [plan.Seq(0, 1, r.table(0))], [0])).n == 0


@pytest.mark.parametrize("change", [("ATTN", "both", 0), ("ATTN", "both", 2), ("ATTN", "window", 5), ("EMBED", "by", 3), ("EMBED", "by", -1), ("EMBED", "n_rows", 20)])
def test_an_encoder_s_instructions_are_checked_when_they_are_bound(tiny, change):
    op, name, value = change
    program = plan.compile(tiny(arch="bert", n_ctx_train=128), n_ctx=128)
    next(i for i in program.instrs if i.op == op).n[name] = value
    with pytest.raises(errors.PyengineError, match=f"{op} .*does not bind"):
        program.open([8], 1)


@pytest.mark.parametrize("change", [("a_heads", 0), ("a_heads", 3), ("a_d", 63), ("a_d", 1 << 40), ("a_first", -1), ("a_first", 33), ("a_n", 0), ("a_n", 33),
                                    ("a_n", 1 << 40), ("b_heads", 3), ("b_n", -1), ("b_n", 65), ("b_first", 1), ("b_d", 1 << 30)])
def test_what_heads_are_spliced_of_is_checked_when_it_is_bound(tiny, change):
    program = plan.compile(tiny(arch="deepseek2"), n_ctx=128)
    next(i for i in program.instrs if i.op == "SPLICE" and "b" in i.args).n.update([change])
    with pytest.raises(errors.PyengineError, match="SPLICE .*does not bind"):
        program.open([8], 1)


@pytest.mark.parametrize("change", [("n_expert", 3), ("n_expert", 5), ("n_expert", -1), ("n_expert", 1 << 30), ("yk", 255), ("rows", 1 << 30), ("rows", 65), ("k", 64)])
def test_a_matrix_for_each_head_is_checked_when_it_is_bound(tiny, change):
    program = plan.compile(tiny(arch="deepseek2"), n_ctx=128)
    next(i for i in program.instrs if i.count == "heads" and i.op == "MM").n.update([change])
    with pytest.raises(errors.PyengineError, match="MM .*does not bind"):
        program.open([8], 1)


def test_windows_in_both_directions_are_refused(tiny):
    gguf = tiny(arch="gemma3", keys={"gemma3.attention.causal": False})
    with pytest.raises(errors.UnsupportedError, match="not causal, in a window"):
        plan.compile(gguf, n_ctx=64)


def test_bad_pages_are_refused(tiny, runner):
    r = runner(tiny(arch="llama"), n_ctx=128)
    for table in ([-1, 0], [8, 0], []):
        with pytest.raises(errors.RequestError, match="tables|pages"):
            r.program.run(plan.Step([1], [plan.Seq(0, 1, (array("i", table),))], [0]))
    with pytest.raises(errors.RequestError, match="copies"):
        r.program.run(plan.Step([1], [plan.Seq(0, 1, r.table(0))], [0], [(0, 0, 99)]))


def test_stop_ends_a_step_and_commits_nothing(tiny, runner):
    r = runner(tiny(arch="llama"))
    r.program.stop()
    with pytest.raises(errors.StoppedError):
        r.step([(0, 0, TOKENS[:60])])
    r.program.stop(False)
    assert np.isfinite(r.step([(0, 0, TOKENS[:60])])).all()


def test_close_is_idempotent_and_final(tiny, runner):
    r = runner(tiny(arch="llama"))
    r.program.close()
    r.program.close()
    with pytest.raises(errors.ClosedError):
        r.step([(0, 0, [1])])


def test_caller_s_float_environment_does_not_matter(tiny, runner):
    """Flush-to-zero set by another library in this thread changes no bit, and is given back (DESIGN 2.3)."""
    import ctypes
    import platform

    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("sets MXCSR by hand")
    r = runner(tiny(arch="llama", weight_type="Q8_0"))
    want = r.all(TOKENS[:20])
    libm = ctypes.CDLL("libm.so.6")
    env = (ctypes.c_uint32 * 8)()
    libm.fegetenv(env)
    saved = env[7]
    env[7] = saved | 0x8040 | 0x6000            # flush to zero, denormals are zero, round toward zero
    libm.fesetenv(env)
    try:
        got = r.all(TOKENS[:20])
        libm.fegetenv(env)
        kept = env[7]
    finally:
        env[7] = saved
        libm.fesetenv(env)
    assert kept & 0xE040 == 0xE040
    assert np.array_equal(got.view(np.int32), want.view(np.int32))


def test_explain_names_every_instruction(tiny, runner):
    r = runner(tiny(arch="gemma3", weight_type="Q8_0"))
    lines = list(r.program.explain())
    assert len([l for l in lines if l[:4].strip().isdigit()]) == len(r.program.instrs)
    assert any("blk.5.ffn_down.weight Q8_0[96, 64]" in l and "mm_q8_0_" in l for l in lines)
    assert lines[-2].startswith("arena") and lines[-1].startswith("peak memory")


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_five_phases_a_layer(tiny, runner, arch):
    """A step of few rows waits five times a layer: q, k, v | attention | output | gate, up | down, each with
    what follows it as its tail; many rows share that work. Without wanted rows the head costs no phase."""
    r = runner(tiny(arch=arch, n_layer=4, n_ff=(1024,)))
    few, many = r.program.count_phases()
    assert few == 4 * 5 + 2
    assert f"in {few} phases for few rows, {many} for many" in next(r.program.explain())
    r.step([(0, 0, TOKENS[:1])])
    assert r.program.phases == few
    r.step([(0, 1, TOKENS * 3)], wanted=[0])
    assert few < r.program.phases <= many
    with_head = r.program.phases
    r.step([(0, 1, TOKENS * 3)], wanted=[])
    assert r.program.phases < with_head
    plain = runner(tiny(arch=arch, n_layer=4), fuse=False)
    plain.step([(0, 0, TOKENS[:1])])
    assert plain.program.phases == len(plain.program.instrs)


def test_a_step_may_use_some_of_the_threads(tiny, runner):
    """Each step has its own number of threads; the bits stay, and a number beyond the pool is refused."""
    r = runner(tiny(arch="llama", weight_type="Q8_0"), threads=5)
    want = r.all(TOKENS[:20]).view(np.int32)
    for i, n in enumerate((1, 5, 2, 0, 1, 3)):
        ids = TOKENS[2 * i : 2 * i + 2]
        logits = r.program.run(plan.Step(ids, [plan.Seq(2 * i, 2, r.table(0))], [0, 1], n_threads=n))
        assert np.array_equal(np.stack([logits.numpy(0), logits.numpy(1)]).view(np.int32), want[2 * i : 2 * i + 2]), n
    for n in (-1, 6):
        with pytest.raises(errors.RequestError, match="counts, index 4"):
            r.program.run(plan.Step(TOKENS[:1], [plan.Seq(0, 1, r.table(0))], [0], n_threads=n))


def test_profile_counts_time_per_instruction(tiny):
    program = plan.compile(tiny(arch="llama"), n_ctx=64)
    program.open([1], 2, profile=True)
    program.run(plan.Step([1, 2], [plan.Seq(0, 2, (array("i", [0]),))], [1]))
    assert len(program.profile) == len(program.instrs)
    assert all(seconds > 0 for _, _, _, seconds, _ in program.profile)
    program.close()


def test_no_kernel_says_why():
    with pytest.raises(errors.UnsupportedError, match="Q8_K"):
        choose(15, "Q8_K", rows(), lib.pe_cpu_isa())
    with pytest.raises(errors.UnsupportedError, match="mm_q8_0_(avx2|neon).*lacks"):
        choose(8, "Q8_0", [r for r in rows() if r.isa], 0)


def test_every_tier_of_this_build_leaves_no_token_count_out():
    """Where the few-token row ends the many-token row takes over, of whichever tier each of them is."""
    table, by_index = rows(), {r.index: r for r in rows()}
    for isa in {0, *(bits for bits in TIERS.values() if any(r.isa == bits for r in table))}:
        for wtype in {r.wtype for r in table}:
            chosen = choose(wtype, str(wtype), table, isa)
            one, few, many = (by_index[i] for i in chosen.rows)
            assert one.n_min == 1 and few.n_min <= chosen.few and chosen.few <= chosen.many, chosen
            assert few.n_max >= chosen.many - 1 and many.n_min <= chosen.many and many.n_max > 10**9, chosen


def test_isa_names():
    """PYENGINE_ISA is checked, not guessed (cases.md 112)."""
    from pyengine.native import isa_mask

    assert isa_mask("scalar") == 0
    with pytest.raises(errors.UnsupportedError, match="expected one of"):
        isa_mask("sse9")
    impossible = "neon" if "avx2" in ABLE else "avx2"
    if impossible not in ABLE:
        with pytest.raises(errors.UnsupportedError, match="cannot run"):
            isa_mask(impossible)


def test_smmla_stands_behind_sdot_where_it_is_no_faster(monkeypatch):
    """Apple and Oryon (machine.slow_smmla): the static order changes, no row is lost, and a tier that is named holds."""
    from pyengine import machine, native
    from pyengine.native import Row
    from pyengine.plan.lower import choose

    neon, sdot, smmla = lib.PE_ISA_NEON, lib.PE_ISA_NEON | lib.PE_ISA_DOTPROD, lib.PE_ISA_NEON | lib.PE_ISA_DOTPROD | lib.PE_ISA_I8MM
    every = 1 << 30
    table = [Row(0, "neon", 2, 1, neon, 1, every), Row(1, "sdot_one", 2, 1, sdot, 1, 1), Row(2, "sdot", 2, 1, sdot, 1, every),
             Row(3, "smmla", 2, 1, smmla, 2, every)]
    assert choose(2, "Q4_0", table, smmla).names == ("sdot_one", "smmla", "smmla")
    assert choose(2, "Q4_0", table, smmla, demoted=lib.PE_ISA_I8MM).names == ("sdot_one", "sdot", "sdot")
    assert choose(2, "Q4_0", [table[0], table[3]], smmla, demoted=lib.PE_ISA_I8MM).names == ("neon", "smmla", "smmla")

    class Cpu:
        PE_ISA_I8MM = lib.PE_ISA_I8MM
        pe_cpu_isa = staticmethod(lambda: smmla)

    monkeypatch.setattr(native, "lib", Cpu)
    monkeypatch.setattr(machine, "slow_smmla", lambda: True)
    monkeypatch.delenv("PYENGINE_ISA", raising=False)
    assert native.demoted() == lib.PE_ISA_I8MM and native.demoted("i8mm") == 0
    monkeypatch.setenv("PYENGINE_ISA", "i8mm")
    assert native.demoted() == 0
    monkeypatch.delenv("PYENGINE_ISA")
    monkeypatch.setattr(machine, "slow_smmla", lambda: False)
    assert native.demoted() == 0

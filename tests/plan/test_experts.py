"""Experts: every kind of routing beside the reference, ties, NaN, experts with many pairs and with none, and what a token
reads. Families with experts are in tests/arch; here the words are by themselves."""

import random
import types

import pytest

import numpy as np

import tiny_gguf
from runner import Runner
from tiny_gguf import Spec

from pyengine import errors, plan, tune
from pyengine.arch import hyper as keys
from pyengine.arch import layers, llama
from pyengine.gguf import GGUF
from pyengine.native import TIERS, lib, rows
from pyengine.plan import program, reference

ACT_OF = {r.wtype: r.act for r in rows()}
ABLE = [name for name, bits in TIERS.items() if bits & lib.pe_cpu_isa() == bits]
RNG = random.Random(5)
TOKENS = [RNG.randrange(3, 320) for _ in range(300)]

ROUTES = {
    "softmax": {"kind": "softmax"},
    "softmax, divided by the sum, scaled": {"kind": "softmax", "normalize": True, "scale": 2.5},
    "sigmoid with a bias": {"kind": "sigmoid", "bias": True, "normalize": True},
    "sigmoid by groups": {"kind": "sigmoid", "bias": True, "groups": 4, "groups_used": 2, "scale": 1.5},
    "softmax by groups of two": {"kind": "softmax", "groups": 6, "groups_used": 2},
    "selected": {"kind": "selected", "bias": True},
}


@pytest.fixture
def routed(monkeypatch):
    """routed(**route): llama's experts are chosen so, whatever the family says."""
    def patch(bias=False, kind="softmax", **how):
        def build(g, hp):
            route = g.route

            def other(logits, n_used, *_, **__):
                layer = logits.label.split(".")[1]
                return route(logits, n_used, kind, bias=g.vector(f"blk.{layer}.exp_probs_b.bias", hp.n_expert) if bias else None, **how)

            g.route = other
            llama.build(g, hp)

        monkeypatch.setattr(program, "module_for", lambda name: types.SimpleNamespace(hyper=llama.hyper, build=build))
    return patch


def write(tmp_path, bias=False, name="x.gguf", **more):
    spec = Spec(**{"n_expert": 12, "n_expert_used": 3, **more})
    rng = np.random.default_rng(7)
    extra = {f"blk.{i}.exp_probs_b.bias": rng.uniform(-0.3, 0.3, 12).astype(np.float32) for i in range(2)} if bias else {}
    return tiny_gguf.write(tmp_path / name, spec, tensors=extra)


def logits(path, n=40, chunk=64, **options):
    with Runner(path, n_ctx=512, max_wanted=512, **options) as runner:
        return runner.logits(TOKENS[:n], range(n), chunk=chunk)


@pytest.mark.parametrize("name", ROUTES)
def test_routes_are_the_reference_s(tmp_path, routed, name):
    routed(**ROUTES[name])
    path = write(tmp_path, ROUTES[name].get("bias", False))
    with Runner(path, n_ctx=64, max_wanted=64) as runner:
        want = reference.logits(runner.program.graph, TOKENS[:40], ACT_OF.__getitem__)
        found = runner.logits(TOKENS[:40], range(40))
    assert ((found - want) ** 2).mean() / want.var() <= 1e-7
    for isa in ABLE:
        assert np.array_equal(logits(path, isa=isa, chunk=11, n_threads=3).view(np.int32), found.view(np.int32)), isa


def test_routes_differ(tmp_path, routed):
    """Else the test above might pass with all of them read as one."""
    seen = []
    for how in ROUTES.values():
        routed(**how)
        seen.append(logits(write(tmp_path, how.get("bias", False)), 8).tobytes())
    assert len(set(seen)) == len(ROUTES)


def test_equal_scores_go_to_the_lowest_numbers(tmp_path):
    """A router of zeros: experts 0 to 2, and no bit of the others."""
    spec = Spec(n_expert=12, n_expert_used=3)
    arrays = tiny_gguf.weights(spec)
    even = {n: np.zeros_like(w) for n, w in arrays.items() if "ffn_gate_inp" in n}
    spoilt = {n: np.where(np.arange(12)[:, None, None] < 3, w, np.float32(np.nan)) for n, w in arrays.items() if "_exps" in n}
    a = logits(tiny_gguf.write(tmp_path / "a.gguf", spec, tensors=even))
    b = logits(tiny_gguf.write(tmp_path / "b.gguf", spec, tensors={**even, **spoilt}))
    assert np.isfinite(a).all() and np.array_equal(a, b)


@pytest.mark.parametrize("kind", ["softmax", "sigmoid", "selected"])
def test_a_router_s_nan_reaches_the_logits(tmp_path, routed, kind):
    routed(kind=kind, normalize=True)
    spec = Spec(n_expert=12, n_expert_used=3)
    bad = tiny_gguf.weights(spec)["blk.0.ffn_gate_inp.weight"].copy()
    bad[7, 5] = np.nan
    assert np.isnan(logits(tiny_gguf.write(tmp_path / "x.gguf", spec, tensors={"blk.0.ffn_gate_inp.weight": bad}))).all()


@pytest.mark.parametrize("experts, used", [(1, 1), (2, 1), (2, 2), (64, 6)])
@pytest.mark.parametrize("weight_type", ["F32", "Q4_K"])
def test_many_pairs_and_none(tmp_path, experts, used, weight_type):
    """300 tokens at once, also all of them by one expert (more than a piece of the feed-forward), as one at a time."""
    path = write(tmp_path, n_expert=experts, n_expert_used=used, weight_type=weight_type, n_embd=256, n_ff=256, n_layer=1)
    whole = logits(path, 300, chunk=300).view(np.int32)
    for chunk, threads in ((300, 1), (1, 2), (37, 5)):
        assert np.array_equal(logits(path, 300, chunk=chunk, n_threads=threads).view(np.int32), whole), chunk
    assert np.array_equal(logits(path, 300, chunk=300, fuse=False).view(np.int32), whole)


def test_a_token_reads_its_experts_only(tmp_path):
    with GGUF(write(tmp_path)) as g:
        p = plan.compile(g, n_ctx=64)
        spec, read = Spec(n_expert=12, n_expert_used=3), sum(tune.token_bytes(p, i) for i in p.instrs)
        expert = 4 * 3 * 64 * 96
        whole = sum(t.nbytes for n, t in g.tensors.items() if len(t.shape) > 1 and n != "token_embd.weight")
        assert read == whole - spec.n_layer * (12 - 3) * expert
        assert any("ffn_down_exps.weight F32[96, 64, 12]" in line for line in p.explain())


BAD = [
    ({"llama.expert_used_count": 13}, "llama.expert_used_count'.* found u32 13, expected 1..12"),
    ({"llama.expert_used_count": 0}, "llama.expert_used_count"),
    ({"llama.expert_used_count": None}, "llama.expert_used_count"),
    ({"llama.expert_count": 13}, "blk.0.ffn_gate_inp.weight' has shape .*expected .64, 13"),
    ({"llama.expert_count": 4097}, "llama.expert_count"),
    ({"llama.feed_forward_length": 95}, "ffn_gate_exps.weight' has shape .64, 96, 12., expected .64, 95, 12"),
]


@pytest.mark.parametrize("patch, says", BAD)
def test_bad_counts_are_named(tmp_path, patch, says):
    path = tiny_gguf.write(tmp_path / "x.gguf", Spec(n_expert=12, n_expert_used=3), keys=patch)
    with GGUF(path) as g, pytest.raises(errors.GGUFError, match=says):
        plan.compile(g, n_ctx=64)


def test_missing_experts_are_named(tmp_path):
    path = tiny_gguf.write(tmp_path / "x.gguf", Spec(n_expert=12), tensors={"blk.1.ffn_down_exps.weight": None})
    with GGUF(path) as g, pytest.raises(errors.GGUFError, match="blk.1.ffn_down_exps.weight' is missing"):
        plan.compile(g, n_ctx=64)


def test_qwen3moe_without_the_width_of_an_expert(tmp_path):
    """Then those that a token takes are as wide together as the file's feed-forward."""
    spec = Spec(arch="qwen3moe", n_ff=96, n_ff_exp=32)
    a = tiny_gguf.write(tmp_path / "a.gguf", spec)
    b = tiny_gguf.write(tmp_path / "b.gguf", spec, keys={"qwen3moe.expert_feed_forward_length": None})
    assert np.array_equal(logits(a, 5), logits(b, 5))


def test_words_check_what_they_are_given(tmp_path):
    with GGUF(write(tmp_path)) as g:
        hp = llama.hyper(g)
        graph = program.Graph(g)
        x = layers.embed(graph, hp)
        route = graph.route(graph.linear(x, graph.weight("blk.0.ffn_gate_inp.weight", 64, 12)), 3, "softmax")
        with pytest.raises(errors.GGUFError, match="takes 96 columns, its input has 64"):
            graph.expert_linear(x, route, graph.weight("blk.0.ffn_down_exps.weight", 96, 64, matrices=12))
        assert keys.Hyper.n_expert == 0


def test_six_phases_a_layer(tmp_path):
    """A step of few rows waits once more than without experts: q, k, v | attention | output | router | gate, up | down."""
    with Runner(tiny_gguf.write(tmp_path / "x.gguf", Spec(n_expert=12, n_layer=4)), n_ctx=64) as runner:
        few, _ = runner.program.count_phases()
        runner.step([(0, 0, TOKENS[:1])], [0])
        assert few == runner.program.phases == 4 * 6 + 2
        ops = [i.op for i in runner.program.instrs]
        assert {op: ops.count(op) for op in ("ROUTE", "GROUP", "GATHER", "FFN", "MIX")} == dict.fromkeys(("ROUTE", "GROUP", "GATHER", "FFN", "MIX"), 4)

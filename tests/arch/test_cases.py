"""Users' cases about architectures (rope, defaults, per-layer values, types per tensor), on tiny files.

Closeness to llama.cpp is test_tiny.py's; here frequencies, defaults and errors are checked by themselves.
"""

import math
import random

import pytest

import numpy as np

import tiny_gguf  # noqa: E402
from runner import Runner  # noqa: E402
from tiny_gguf import Spec  # noqa: E402

from pyengine import errors, plan  # noqa: E402
from pyengine.arch import rope  # noqa: E402
from pyengine.gguf import GGUF  # noqa: E402

RNG = random.Random(3)
TOKENS = [RNG.randrange(3, 300) for _ in range(101)]


def logits(path, rows=(0, 1, 100)):
    with Runner(path, n_ctx=256) as r:
        return r.logits(TOKENS, rows, chunk=37)


def graph(tmp_path, spec, **patches):
    path = tiny_gguf.write(tmp_path / "x.gguf", spec, **patches)
    with GGUF(path) as g:
        return plan.compile(g, n_ctx=64).graph


def plain(n_rot, base):
    return np.array([base ** (-2 * i / n_rot) for i in range(n_rot // 2)])


def tables(g):
    return [n for n in g.nodes if n.op == "rope_table"]


def test_case_81_rope_freqs_divide_the_frequencies(tmp_path):
    """From position 1 on, and not only beyond the original context."""
    spec = Spec(rope_freqs=True)
    factors = tiny_gguf.weights(spec)["rope_freqs.weight"]
    (table,) = tables(graph(tmp_path, spec))
    want = plain(spec.d_head, 10000.0) / factors
    np.testing.assert_allclose(table.attrs["frequencies"], want, rtol=1e-12)
    a = logits(tiny_gguf.write(tmp_path / "a.gguf", spec))
    b = logits(tiny_gguf.write(tmp_path / "b.gguf", spec, tensors={"rope_freqs.weight": np.ones_like(factors)}))
    assert np.array_equal(a[0], b[0])               # position 0 is not turned
    assert not np.array_equal(a[1], b[1])           # position 1 is
    assert not np.allclose(a[2], b[2], atol=1e-3)


def test_case_81_bad_factors_are_refused(tmp_path):
    spec = Spec(rope_freqs=True)
    for bad in (0.0, -1.0, math.nan, math.inf):
        factors = tiny_gguf.weights(spec)["rope_freqs.weight"].copy()
        factors[1] = bad
        with pytest.raises(errors.GGUFError, match="rope_freqs.weight"):
            graph(tmp_path, spec, tensors={"rope_freqs.weight": factors})


@pytest.mark.parametrize("scaling, divisor", [("none", 1), ("linear", 4), ("old", 4)])
def test_case_83_linear_scaling(tmp_path, scaling, divisor):
    (table,) = tables(graph(tmp_path, Spec(rope_scaling=scaling, rope_factor=4.0)))
    np.testing.assert_allclose(table.attrs["frequencies"], plain(16, 10000.0) / divisor, rtol=1e-12)
    assert table.attrs["mscale"] == 1.0


def test_case_83_yarn_follows_the_paper(tmp_path):
    """Interpolated by parts between the pairs that turn 32 times and once in the original context, magnitude
    1 + 0.1 ln s; written out here in plain floats."""
    spec = Spec(rope_scaling="yarn", rope_factor=4.0, rope_orig_ctx=512, head_dim=64, rope_base=10000.0)
    (table,) = tables(graph(tmp_path, spec))
    n, s, base, ctx = 64, 4.0, 10000.0, 512

    def pair(rotations):
        return n * math.log(ctx / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(0, math.floor(pair(32))), min(n - 1, math.ceil(pair(1)))
    assert low < high
    for i, got in enumerate(table.attrs["frequencies"]):
        f = base ** (-2 * i / n)
        keep = 1 - min(1, max(0, (i - low) / (high - low)))
        assert math.isclose(got, f * keep + f / s * (1 - keep), rel_tol=1e-12), i
    assert math.isclose(table.attrs["mscale"], 1 + 0.1 * math.log(s), rel_tol=1e-12)


@pytest.mark.parametrize("keys, want", [
    ({}, 1 + 0.1 * math.log(8)),
    ({"attn_factor": 0.5}, 0.5 * (1 + 0.1 * math.log(8))),
    ({"yarn_attn_factor": 1.25}, 1.25),                                     # transformers' attention_factor, in place of the rule
    ({"yarn_attn_factor": 1.25, "attn_factor": 2.0}, 2.5),
    ({"yarn_log_multiplier": 1.0}, 1.0),                                    # mscale_all_dim: what it adds is taken off again
    ({"yarn_log_multiplier": 0.5}, (1 + 0.1 * math.log(8)) / (1 + 0.05 * math.log(8))),
    ({"yarn_ext_factor": 0.0}, 1.0),                                        # then it is linear
    ({"yarn_ext_factor": -1.0}, 1 + 0.1 * math.log(8)),                     # "not set"
    ({"factor": 0.5}, 1.0),
    ({"type": "linear", "attn_factor": 1.5}, 1.5),
    ({"type": "none", "attn_factor": 1.5}, 1.5),
])
def test_case_83_magnitudes(tmp_path, keys, want):
    spec = Spec(rope_scaling="yarn", rope_factor=8.0, rope_orig_ctx=64)
    (table,) = tables(graph(tmp_path, spec, keys={f"llama.rope.scaling.{name}": value for name, value in keys.items()}))
    assert math.isclose(table.attrs["mscale"], want, rel_tol=1e-7)          # the keys are float32


def test_case_83_without_extrapolation_yarn_is_linear(tmp_path):
    (a,) = tables(graph(tmp_path, Spec(rope_scaling="yarn", rope_orig_ctx=64), keys={"llama.rope.scaling.yarn_ext_factor": 0.0}))
    (b,) = tables(graph(tmp_path, Spec(rope_scaling="linear")))
    assert a.attrs == b.attrs


def test_case_83_positions_0_1_100_differ_as_the_scaling_says(tmp_path):
    got = {}
    for scaling in ("none", "linear", "yarn"):
        got[scaling] = logits(tiny_gguf.write(tmp_path / f"{scaling}.gguf", Spec(rope_scaling=scaling)))
    assert np.array_equal(got["none"][0], got["linear"][0])     # position 0: only yarn's magnitude shows
    assert not np.array_equal(got["none"][1], got["linear"][1])
    assert not np.allclose(got["none"][2], got["yarn"][2], atol=1e-3)
    assert not np.allclose(got["linear"][2], got["yarn"][2], atol=1e-3)


def test_case_84_gemma3_defaults(tmp_path):
    """No freq_base_swa and no pattern in the file: local layers turn with base 10,000, every sixth is global."""
    g = graph(tmp_path, Spec(arch="gemma3", rope_base=1e6, n_layer=12, window=8))
    local, glob = tables(g)
    np.testing.assert_allclose(local.attrs["frequencies"], plain(16, 1e4), rtol=1e-12)
    np.testing.assert_allclose(glob.attrs["frequencies"], plain(16, 1e6), rtol=1e-12)
    windows = [n.attrs["window"] for n in g.nodes if n.op == "attention"]
    assert windows == [8, 8, 8, 8, 8, 0] * 2
    used = [n.inputs[1] for n in g.nodes if n.op == "rope"]
    assert [t is glob for t in used] == [w == 0 for w in windows for _ in "qk"]


def test_case_84_gemma2_defaults(tmp_path):
    """No window, no pattern and no caps in the file: 4096 in every other layer from the first on, 50 and 30."""
    g = graph(tmp_path, Spec(arch="gemma2", n_layer=5, window=0, attention_softcap=0.0, final_softcap=0.0))
    attention = [n for n in g.nodes if n.op == "attention"]
    assert [n.attrs["window"] for n in attention] == [4096, 0, 4096, 0, 4096]
    assert {n.attrs["softcap"] for n in attention} == {50.0} and [n.attrs["value"] for n in g.nodes if n.op == "softcap"] == [30.0]
    assert len(tables(g)) == 1          # one base for both kinds of layers


def test_case_84_the_27b_models_scale_by_width(tmp_path):
    for arch, layers_of_27b in (("gemma2", 46), ("gemma3", 62)):
        for n_layer in (layers_of_27b, 2):
            spec = Spec(arch=arch, n_layer=n_layer, head_dim=32, n_embd=64, n_head=4, n_ff=32)
            (scale,) = {n.attrs["scale"] for n in graph(tmp_path, spec).nodes if n.op == "attention"}
            assert math.isclose(scale, (16 if n_layer == layers_of_27b else 32) ** -0.5)


def test_case_84_patterns_are_a_period_or_a_flag_per_layer(tmp_path):
    for arch in ("gemma2", "gemma3"):
        for pattern, want in ((3, [8, 8, 0, 8, 8]), (1, [0] * 5), ([True, False, False, True, True], [8, 0, 0, 8, 8]), ([0, 1, 1, 0, 1], [0, 8, 8, 0, 8])):
            value = tiny_gguf.Typed("ARRAY", pattern, "BOOL" if pattern[0] in (True, False) and isinstance(pattern[0], bool) else "INT32") \
                if isinstance(pattern, list) else pattern
            g = graph(tmp_path, Spec(arch=arch, n_layer=5), keys={f"{arch}.attention.sliding_window_pattern": value})
            assert [n.attrs["window"] for n in g.nodes if n.op == "attention"] == want, (arch, pattern)
        for bad in (0, -1, [1, 1, 1, 1], [2, 0, 1, 0, 1]):
            with pytest.raises(errors.GGUFError, match="sliding_window_pattern"):
                value = tiny_gguf.Typed("ARRAY", bad, "INT32") if isinstance(bad, list) else tiny_gguf.Typed("INT32", bad)
                graph(tmp_path, Spec(arch=arch, n_layer=5), keys={f"{arch}.attention.sliding_window_pattern": value})


def test_smollm3_every_fourth_layer_is_still(tmp_path):
    g = graph(tmp_path, Spec(arch="smollm3", n_layer=9))
    assert {n.label for n in g.nodes if n.op == "rope"} == {f"blk.{i}.attn_{x}.weight" for i in (0, 1, 2, 4, 5, 6, 8) for x in "qk"}


@pytest.mark.parametrize("finetuned", [True, False])
def test_granite_without_rope(tmp_path, finetuned):
    g = graph(tmp_path, Spec(arch="granite"), keys={"granite.rope.scaling.finetuned": finetuned})
    assert any(n.op == "rope" for n in g.nodes) == finetuned


def test_case_84_the_published_gemma3(real_model):
    """It says nothing of the local base nor of the pattern, and layers 6, 12 and 18 of 18 see everything."""
    with GGUF(real_model("gemma-3-270m")) as g:
        assert not {"gemma3.rope.freq_base_swa", "gemma3.attention.sliding_window_pattern"} & set(g.keys())
        found = plan.compile(g, n_ctx=64).graph
    windows = [n.attrs["window"] for n in found.nodes if n.op == "attention"]
    assert windows == [512, 512, 512, 512, 512, 0] * 3
    local, everywhere = tables(found)
    np.testing.assert_allclose(local.attrs["frequencies"], plain(256, 1e4), rtol=1e-12)
    np.testing.assert_allclose(everywhere.attrs["frequencies"], plain(256, 1e6), rtol=1e-12)
    assert [n.inputs[1] is everywhere for n in found.nodes if n.op == "rope"] == [w == 0 for w in windows for _ in "qk"]


@pytest.mark.long
@pytest.mark.parametrize("name", ["gemma-3-270m", "smollm2"])
def test_cases_84_and_87_twenty_tokens_beside_llama_cpp(real_model, name):
    """The files as they are published, beyond gemma's window of 512. Where both differ, llama.cpp has the two tokens nearly equal:
    quantized activations are not the same ones."""
    pytest.importorskip("xllamacpp")
    from oracle import Oracle
    from texts import PASSAGES

    n = 530 if "gemma" in name else 40
    with Oracle(real_model(name), n_ctx=1024) as oracle:
        ids = oracle.tokenize(" ".join(PASSAGES) * 2, add_special=True)[:n]
        rows = []
        for _ in range(20):
            rows.append(dict(oracle.top_logprobs(ids, 100, cache_prompt=True)))
            ids.append(max(rows[-1], key=rows[-1].get))
    with Runner(real_model(name), n_ctx=1024, max_wanted=64) as runner:
        found = runner.logits(ids, range(n - 1, n + 19)).argmax(axis=1)
    for row, theirs, ours in zip(rows, ids[n:], found, strict=True):
        assert row.get(ours, -9e9) > row[theirs] - 0.25, (ours, theirs)
    same = int((found == ids[n:]).sum())
    print(f"{name}: {same} of 20 tokens the same")
    assert same >= 18


def test_case_87_which_pairs_turn(tmp_path):
    """Neighbours where the converter permuted rows of q and k, else pairs half a head apart."""
    kinds = {arch: {n.attrs["kind"] for n in graph(tmp_path, Spec(arch=arch)).nodes if n.op == "rope"} for arch in tiny_gguf.DECODERS}
    neighbours = {"deepseek2", "ernie4_5", "internlm2", "xverse", "command-r", "cohere2", "llama", *tiny_gguf.GRANITE, "mistral3", "smollm3"}
    assert kinds == {arch: {"adjacent" if arch in neighbours else "halves"} for arch in tiny_gguf.DECODERS}


@pytest.mark.parametrize("arch", [arch for arch in tiny_gguf.DECODERS if arch not in ("llama", "gemma3")])
def test_case_89_tied_embeddings(tmp_path, arch):
    """No output.weight: the head multiplies with the embedding where it lies; nothing is copied."""
    path = tiny_gguf.write(tmp_path / "tied.gguf", Spec(arch=arch, tied=True))
    with GGUF(path) as g:
        assert "output.weight" not in g.tensors
        program = plan.compile(g, n_ctx=64)
        head = next(i for i in reversed(program.instrs) if i.op == "MM").args["weight"]
        assert program._place(head) == program._place(next(i for i in program.instrs if i.op == "EMBED").args["weight"])
        assert program.const_bytes < 4096


@pytest.mark.parametrize("arch", tiny_gguf.WRONG)
def test_case_91_number_or_array_in_every_family(tmp_path, arch):
    """The three keys at once, once as a number each, once as an array; an array one too long or short is refused by its key."""
    names = ["attention.head_count", "attention.head_count_kv", "feed_forward_length"]
    if arch in tiny_gguf.LFM:           # where 0 in the array is another block
        names.remove("attention.head_count_kv")
    n, kv = Spec(arch=arch).n_layer, 4 if arch in tiny_gguf.ENCODERS else 2
    values = {f"{arch}.{name}": value for name, value in zip(["attention.head_count", "attention.head_count_kv", "feed_forward_length"], (4, kv, 96))
              if name in names}
    make = dict(arch=arch) if arch in (*tiny_gguf.ENCODERS, *tiny_gguf.LFM) else dict(arch=arch, n_head_kv=(kv,), n_ff=(96,))
    one, many = (graph(tmp_path, Spec(**make), keys={k: [v] * n if array else v for k, v in values.items()}) for array in (False, True))
    assert [(x.op, x.label, x.width, x.attrs) for x in one.nodes] == [(x.op, x.label, x.width, x.attrs) for x in many.nodes]
    for key, value in values.items():
        for wrong in (n + 1, n - 1):
            with pytest.raises(errors.GGUFError, match=key):
                graph(tmp_path, Spec(**make), keys={key: [value] * wrong})


def test_case_91_per_layer_values(tmp_path):
    """A number and an array of equal numbers are the same model; an array one too long names its key."""
    one = logits(tiny_gguf.write(tmp_path / "one.gguf", Spec(n_head_kv=(2,), n_ff=(96,))))
    many = logits(tiny_gguf.write(tmp_path / "many.gguf", Spec(n_head_kv=(2, 2), n_ff=(96, 96))))
    assert np.array_equal(one, many)
    uneven = Spec(n_head_kv=(1, 4), n_ff=(64, 160))
    assert np.isfinite(logits(tiny_gguf.write(tmp_path / "uneven.gguf", uneven))).all()
    for key in ("attention.head_count", "attention.head_count_kv", "feed_forward_length"):
        with pytest.raises(errors.GGUFError, match=f"llama.{key}"):
            graph(tmp_path, Spec(), keys={f"llama.{key}": [4, 4, 4]})


def test_case_93_types_are_read_per_tensor(tmp_path):
    """v of one layer differs from the next layer's, and general.file_type says something else altogether."""
    types = (("blk.0.attn_v.weight", "Q8_0"), ("blk.1.attn_v.weight", "Q5_0"), ("ffn_down.weight", "F16"))
    spec = Spec(weight_type="Q4_1", types=types)
    a = logits(tiny_gguf.write(tmp_path / "a.gguf", spec))
    b = logits(tiny_gguf.write(tmp_path / "b.gguf", spec, keys={"general.file_type": 15}))
    assert np.array_equal(a, b) and np.isfinite(a).all()


@pytest.mark.parametrize("weight_type", ["F16", "BF16"])
def test_case_95_sixteen_bit_weights_and_norms(tmp_path, weight_type):
    """Norms stored in 16 bits are the norms of the same values in 32: the same bits."""
    spec = Spec(weight_type=weight_type)
    norms = {n: w for n, w in tiny_gguf.weights(spec).items() if "_norm" in n}
    assert norms
    cut = {}
    for name, w in norms.items():
        bits = w.astype(np.float32).view(np.uint32) & 0xFFFF0000       # exact in BF16
        cut[name] = bits.view(np.float32).astype(np.float16).astype(np.float32)     # and in F16
    wide = logits(tiny_gguf.write(tmp_path / "wide.gguf", spec, tensors=cut))
    for kind in (np.float16, np.float64):
        other = logits(tiny_gguf.write(tmp_path / "other.gguf", spec, tensors={n: w.astype(kind) for n, w in cut.items()}))
        assert np.array_equal(wide, other), kind


def test_case_95_bf16_output_and_embedding_of_a_quantized_model(tmp_path):
    """Their values stored in 32 bits give the same bits."""
    names, others = ("token_embd.weight", "output.weight"), (("attn_output.weight", "Q8_0"),)
    narrow, wide = (Spec(weight_type="Q8_0", types=(*others, *((n, kind) for n in names))) for kind in ("BF16", "F32"))
    cut = {n: (tiny_gguf.weights(wide)[n].view(np.uint32) & 0xFFFF0000).view(np.float32) for n in names}
    a, b = (logits(tiny_gguf.write(tmp_path / f"{i}.gguf", s, tensors=cut)) for i, s in enumerate((narrow, wide)))
    assert np.array_equal(a, b)


def test_case_95_double_norms_are_rounded_once(tmp_path):
    """A norm stored in 64 bits is the nearest float32, also of what lies between two of them or beyond."""
    exact = tiny_gguf.weights(Spec())["output_norm.weight"].astype(np.float64)
    nudged = exact + np.spacing(exact.astype(np.float32)) * np.where(np.arange(len(exact)) % 2, 0.49, -0.24)
    a = logits(tiny_gguf.write(tmp_path / "a.gguf", Spec(), tensors={"output_norm.weight": nudged}))
    assert np.array_equal(a, logits(tiny_gguf.write(tmp_path / "b.gguf", Spec())))


@pytest.mark.parametrize("type_id, advice", [(9, "Q8_1: a form of activations.* as Q8_0"), (15, "Q8_K: a form of activations.* as Q8_0"),
                                             (28, "F64: convert the model again, with F32"), (26, "I32: integers"), (24, "I8: integers"),
                                             (25, "I16: integers"), (27, "I64: integers")])
def test_case_93_matrices_that_no_product_takes_are_refused(tmp_path, type_id, advice):
    """In one line, with the tensor, its type and what to do; nothing is guessed or skipped."""
    raw = bytearray(tiny_gguf.write(tmp_path / "a.gguf", Spec(n_embd=256, n_ff=(256,))).read_bytes())
    name = b"blk.1.ffn_down.weight"          # the last tensor: what is longer than F32 finds room behind it
    at = raw.index(name) + len(name) + 4 + 2 * 8
    assert raw[at:at + 4] == bytes(4)
    raw[at:at + 4] = type_id.to_bytes(4, "little")
    (tmp_path / "b.gguf").write_bytes(raw + bytes(4 * 256 * 256))
    with pytest.raises(errors.UnsupportedError, match=f"tensor 'blk.1.ffn_down.weight' is a matrix of type {advice}") as e:
        with GGUF(tmp_path / "b.gguf") as g:
            plan.compile(g, n_ctx=64)
    assert "\n" not in str(e.value)


def test_case_111_unknown_architecture(tmp_path):
    for name, what in (("zzz", "qwen2, qwen3, qwen3moe, smollm3"), ("clip", "vision"), ("t5", "encoder-decoder"), ("x" * 5000, "not supported")):
        with pytest.raises(errors.UnsupportedError, match=what) as e:
            graph(tmp_path, Spec(), keys={"general.architecture": name})
        assert len(str(e.value)) < 600


def test_frequencies_do_not_come_from_libm():
    """Decimal to 40 digits, rounded once: the nearest double for every pair of a usual head."""
    from decimal import Context, Decimal, localcontext

    got, _ = rope.frequencies(128, 500000.0)
    with localcontext(Context(prec=60)):
        for i, f in enumerate(got):
            exact = (Decimal(-2 * i) / 128 * Decimal(500000).ln()).exp()
            assert f == float(exact)


def test_frequencies_do_not_depend_on_the_callers_decimals():
    from decimal import Context, localcontext

    yarn = rope.Scaling("yarn", 4.0, 512, beta_fast=7.0, log_multiplier=0.5)
    usual = rope.frequencies(64, 10000.0, yarn)
    with localcontext(Context(prec=3)):
        assert rope.frequencies(64, 10000.0, yarn) == usual

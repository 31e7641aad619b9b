"""Hyper-parameters with one thing wrong: refused by name, in no time, with no memory to speak of.

Rows 44 and 49 to 58 of the fault list: epsilon, counts, head sizes, rope, scaling, context, experts, widths, window, softcap; and
39 and 40, tensors that are not those the keys speak of, in every family.
Each file is a tiny model with one key patched. It goes through plan.compile, which is what Llama opens first;
some go through Llama as well. What is allowed at the same edge is tested beside it.
"""

import math
import resource
import time

import pytest


import tiny_gguf  # noqa: E402
from pyengine import plan  # noqa: E402
from pyengine.arch import ARCHITECTURES  # noqa: E402
from pyengine.errors import GGUFError, UnsupportedError  # noqa: E402
from pyengine.gguf import GGUF  # noqa: E402
from tiny_gguf import Spec, Typed  # noqa: E402

NAN, INF = math.nan, math.inf
LLAMA, GEMMA = Spec(), Spec(arch="gemma3", n_layer=2)
MIXTRAL, QWEN_MOE, OSS = Spec(n_expert=4), Spec(arch="qwen3moe", n_ff_exp=32), Spec(arch="gpt-oss")
LFM_MOE, GRANITE_MOE = Spec(arch="lfm2moe"), Spec(arch="granitemoe")
BERT, LFM, COHERE = Spec(arch="bert", n_ctx_train=300), Spec(arch="lfm2"), Spec(arch="cohere2")
GEMMA2, GRANITE, PHI, YARN = Spec(arch="gemma2", n_layer=2), Spec(arch="granite"), Spec(arch="phi3"), Spec(arch="mistral3", rope_scaling="yarn")
DEEP = Spec(arch="deepseek2", gating=2, expert_groups=(4, 2), normalize=True, expert_scale=2.5)


def u32(value):
    return Typed("UINT32", value)


def heads(values):
    return Typed("ARRAY", list(values), "INT32")


# row, spec, key (after the architecture), values that are refused
REFUSED = [
    (49, LLAMA, "block_count", [0, 513, u32(2**31), u32(2**32 - 1), Typed("INT32", -1), Typed("UINT64", 2**63)]),
    (49, GEMMA, "block_count", [0, 1025]),
    (50, LLAMA, "attention.head_count", [0, heads([0, 4])]),
    (50, LLAMA, "attention.head_count_kv", [0, heads([2, 0])]),
    (51, LLAMA, "attention.head_count", [3, 33, 64, u32(2**31), heads([4]), heads([4] * 600), heads([4, -4])]),
    (51, LLAMA, "attention.head_count_kv", [3, 8, u32(2**32 - 1), heads([2]), heads([2] * 600), heads([2, 3])]),
    (51, LLAMA, "attention.key_length", [0, 17, u32(2**31)]),
    (51, LLAMA, "attention.value_length", [0, 17, u32(2**31)]),
    (52, LLAMA, "rope.dimension_count", [7, 0, 18, u32(2**31)]),
    (53, LLAMA, "rope.freq_base", [0.0, -1.0, NAN, INF, -INF]),
    (53, GEMMA, "rope.freq_base_swa", [0.0, -1.0, NAN, INF]),
    (53, LLAMA, "rope.scaling.factor", [NAN, INF, -2.0]),
    (53, LLAMA, "rope.scale_linear", [NAN, INF, -2.0, 0.0]),
    (54, LLAMA, "rope.scaling.type", ["zzz", "", Typed("UINT32", 1)]),
    (55, LLAMA, "context_length", [0, Typed("INT32", -1)]),
    (56, LLAMA, "expert_count", [2000, 8]),
    (57, LLAMA, "embedding_length", [0, 1, u32(2**31)]),
    (57, LLAMA, "feed_forward_length", [0, 1, u32(2**31), heads([96]), heads([96, 0])]),
    (58, GEMMA, "attention.sliding_window", [0, Typed("INT32", -8)]),
    (58, GEMMA, "attention.sliding_window_pattern", [0, Typed("INT32", -1)]),
    (58, GEMMA, "final_logit_softcapping", [NAN, INF, -30.0]),
    (44, LLAMA, "attention.layer_norm_rms_epsilon", [NAN, INF, -1e-5, 1.5, "small"]),
    (44, BERT, "attention.layer_norm_epsilon", [NAN, INF, -1e-5, 1.5, "small"]),
    (44, COHERE, "attention.layer_norm_epsilon", [NAN, -1e-5]),
    *((row, spec, key, values) for spec in (MIXTRAL, QWEN_MOE, OSS) for row, key, values in (
        (56, "expert_count", [2000, spec.n_expert + 1, spec.n_expert - 1, 0, u32(2**31), Typed("INT32", -1), "four"]),
        (56, "expert_used_count", [0, spec.n_expert + 1, 2000, u32(2**32 - 1), Typed("INT32", -1), None]))),
    (56, LFM_MOE, "expert_gating_func", [0, 3, 4, None]),
    (56, LFM_MOE, "leading_dense_block_count", [0, 2, 5, Typed("INT32", -1)]),
    (56, GRANITE_MOE, "expert_shared_feed_forward_length", [1, u32(2**31), Typed("INT32", -1)]),
    (56, QWEN_MOE, "expert_feed_forward_length", [0, 1, 33, u32(2**31), Typed("INT32", -1)]),
    (53, OSS, "rope.freq_base_swa", [0.0, -1.0, NAN, INF]),
    (58, OSS, "attention.sliding_window", [0, Typed("INT32", -8)]),
    (58, COHERE, "attention.sliding_window", [0, None]),
    (58, COHERE, "logit_scale", [NAN, INF, -1.0]),
    (58, LFM, "attention.sliding_window", [Typed("INT32", -8), u32(2**31)]),
    (49, BERT, "block_count", [0, 513, u32(2**32 - 1)]),
    (50, BERT, "attention.head_count", [0, heads([0, 4])]),
    (51, BERT, "attention.head_count", [3, 33, heads([4])]),
    (55, BERT, "context_length", [0, 299, 301, u32(2**32 - 1)]),       # it has a position for each
    (57, BERT, "embedding_length", [0, 1, u32(2**31)]),
    (57, BERT, "feed_forward_length", [0, 1, u32(2**31)]),
    (58, BERT, "attention.causal", [1, "no"]),
    (53, GEMMA2, "rope.freq_base_swa", [0.0, NAN]),
    (53, PHI, "rope.scaling.attn_factor", [NAN, INF, 0.0, -1.0]),
    (53, YARN, "rope.freq_base", [1.0]),
    (53, YARN, "rope.scaling.yarn_beta_fast", [NAN, INF, 0.0, -1.0]),
    (53, YARN, "rope.scaling.yarn_beta_slow", [NAN, 0.0]),
    (53, YARN, "rope.scaling.yarn_ext_factor", [NAN, INF, 2.0, -2.0]),
    (53, YARN, "rope.scaling.yarn_log_multiplier", [NAN, INF, -1.0]),
    (53, YARN, "rope.scaling.yarn_attn_factor", [NAN, -1.0]),
    (55, YARN, "rope.scaling.original_context_length", [0, Typed("INT32", -1)]),
    (58, GEMMA2, "attn_logit_softcapping", [NAN, INF, -50.0]),
    (58, GEMMA2, "attention.sliding_window", [0, Typed("INT32", -8)]),
    (58, PHI, "attention.sliding_window", [Typed("INT32", -8), u32(2**31)]),
    (58, GRANITE, "logit_scale", [NAN, INF, 0.0, -8.0]),
    (58, GRANITE, "residual_scale", [NAN, INF, -1.0]),
    (58, GRANITE, "embedding_scale", [NAN, INF, -1.0]),
    (58, GRANITE, "attention.scale", [NAN, INF, -1.0]),
    (58, YARN, "attention.temperature_scale", [NAN, INF, -1.0, 3e38]),
    (51, DEEP, "attention.head_count", [0, 3, heads([4, 2])]),
    (51, DEEP, "attention.kv_lora_rank", [0, 1, 63, 993, u32(2**31), Typed("INT32", -1)]),
    (51, DEEP, "attention.q_lora_rank", [u32(2**31), Typed("INT32", -1)]),
    (51, DEEP, "attention.key_length", [0, 95, 1025]),
    (51, DEEP, "attention.key_length_mla", [0, 1, 32, 63, 1025, u32(2**31)]),
    (51, DEEP, "attention.value_length_mla", [0, 33, 1025, u32(2**31)]),
    (52, DEEP, "rope.dimension_count", [0, 7, 34, 64, u32(2**31)]),
    (56, DEEP, "leading_dense_block_count", [0, 2, 3, u32(2**31), Typed("INT32", -1)]),
    (56, DEEP, "expert_count", [0, 7, 5000]),
    (56, DEEP, "expert_used_count", [0, 5, 9]),
    (56, DEEP, "expert_feed_forward_length", [0, 95, u32(2**31)]),
    (56, DEEP, "expert_shared_count", [1, 4097, u32(2**31)]),
    (56, DEEP, "expert_gating_func", [4, u32(2**31), "sigmoid"]),
    (56, DEEP, "expert_group_count", [3, 8, 9, u32(2**31)]),
    (56, DEEP, "expert_group_used_count", [1, 5, Typed("INT32", -1)]),
    (56, DEEP, "expert_weights_scale", [NAN, INF, -1.0, 3e38]),
    (58, DEEP, "attention.temperature_scale", [0.1, NAN]),
]
CASES = [(row, spec, key, value) for row, spec, key, values in REFUSED for value in values]


def case_name(case):
    row, spec, key, value = case
    value = value.value if isinstance(value, Typed) else value
    shown = f"{len(value)} values" if isinstance(value, list) and len(value) > 4 else value
    return f"{row} {spec.arch}.{key}={shown}"


def write(tmp_path, spec, keys, name="faulty.gguf"):
    return tiny_gguf.write(tmp_path / name, spec, keys={f"{spec.arch}.{key}": value for key, value in keys.items()})


def compile_file(path, **options):
    with GGUF(path) as gguf:
        program = plan.compile(gguf, n_ctx=128, **options)
        program.close()
        return program


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_refused_by_name(tmp_path, case):
    _, spec, key, value = case
    path = write(tmp_path, spec, {key: value})
    start, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((GGUFError, UnsupportedError)) as caught:
        compile_file(path)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert time.process_time() - start < 5  # a loop over 2^31 of anything takes longer
    assert grown < 64 << 10  # in KB
    text = str(caught.value)
    named = (f"{spec.arch}.{key}", *CONSEQUENCE.get((key, caught.type), ()))
    assert any(name in text for name in named), text
    assert "expected" in text or "supported" in text or "takes" in text, text


# Where a key is plausible in itself, what is named is the tensor that does not fit it.
CONSEQUENCE = {
    ("block_count", GGUFError): ("blk.2.",),
    ("attention.head_count", GGUFError): ("attn_q.weight", "attention.head_count_kv", "rope.dimension_count"),
    ("attention.head_count_kv", GGUFError): ("attn_k.weight",),
    ("attention.key_length", GGUFError): ("attn_q.weight", "rope.dimension_count"),
    ("attention.value_length", GGUFError): ("attn_v.weight", "attn_output.weight"),
    ("embedding_length", GGUFError): ("token_embd.weight", "attention.head_count"),
    ("feed_forward_length", GGUFError): ("ffn_gate.weight", "ffn_up.weight"),
    ("expert_count", GGUFError): ("llama.expert_used_count", "ffn_gate_inp.weight", "ffn_gate.weight", "expert_group_count"),
    ("attention.kv_lora_rank", GGUFError): ("attention.key_length",),
    ("attention.key_length_mla", GGUFError): ("rope.dimension_count", "attn_q.weight"),
    ("attention.value_length_mla", GGUFError): ("attn_v_b.weight",),
    ("rope.dimension_count", GGUFError): ("attention.key_length",),
    ("leading_dense_block_count", GGUFError): ("ffn_gate_inp.weight", "ffn_gate.weight"),
    ("expert_used_count", GGUFError): ("expert_group_used_count",),
    ("expert_feed_forward_length", GGUFError): ("ffn_gate_exps.weight",),
    ("expert_shared_count", GGUFError): ("shexp.weight",),
    ("expert_shared_feed_forward_length", GGUFError): ("shexp.weight",),
    ("context_length", GGUFError): ("position_embd.weight",),
}

ALLOWED = [
    (LLAMA, {"context_length": u32(2**32 - 1)}),  # what the cache takes follows from n_ctx, not from the file
    (LLAMA, {"context_length": 1}),
    (LLAMA, {"attention.head_count_kv": heads([2, 2]), "feed_forward_length": heads([96, 96])}),
    (LLAMA, {"rope.dimension_count": 8}),  # part of a head may turn
    (LLAMA, {"rope.scaling.factor": 0.0, "rope.scaling.type": "linear"}),  # files write 0 for "not set"
    (LLAMA, {"expert_count": 0, "expert_used_count": 0}),
    (LLAMA, {"attention.layer_norm_rms_epsilon": 0.0}),
    (GEMMA, {"attention.sliding_window": 100000}),  # wider than the context: every layer sees all of it
    (GEMMA, {"final_logit_softcapping": 30.0}),
    (GEMMA, {"final_logit_softcapping": 0.0}),  # none
    (GEMMA2, {"attn_logit_softcapping": 0.0, "final_logit_softcapping": 0.0}),
    (GRANITE, {"embedding_scale": 0.0, "residual_scale": 0.0, "attention.scale": 0.0}),  # "not set"
    (PHI, {"attention.sliding_window": 0}),  # none
    (YARN, {"rope.scaling.yarn_ext_factor": -1.0, "rope.scaling.yarn_attn_factor": 0.0}),  # "not set", as llama.cpp writes it
    (YARN, {"rope.scaling.yarn_beta_fast": 1.0, "rope.scaling.yarn_beta_slow": 1.0}),  # a ramp of no width
    (DEEP, {"expert_group_count": 0, "expert_group_used_count": 0, "expert_gating_func": 0, "expert_weights_scale": 0.0}),  # "not set"
    (DEEP, {"expert_group_used_count": 4}),  # all of them
    (DEEP, {"attention.temperature_scale": 0.0}),
    (YARN, {"rope.scaling.original_context_length": 1, "attention.temperature_scale": 0.5}),  # a scale for each position
    (MIXTRAL, {"expert_used_count": 4}),  # all of them
    (MIXTRAL, {"expert_used_count": 1}),
    (OSS, {"attention.sliding_window": 100000, "rope.freq_base_swa": 1e4}),
    (LFM, {"attention.sliding_window": 0}),  # none
]


@pytest.mark.parametrize("number", range(len(ALLOWED)))
def test_allowed_at_the_same_edge(tmp_path, number):
    from runner import Runner

    import numpy as np
    spec, keys = ALLOWED[number]
    with Runner(write(tmp_path, spec, keys), n_ctx=128) as runner:
        row = runner.logits(list(range(3, 43)))[0]
    assert np.isfinite(row).all() and row.std() > 1


def test_context_length_reserves_nothing(tmp_path):
    small = compile_file(write(tmp_path, LLAMA, {"context_length": 2048}, "small.gguf"))
    large = compile_file(write(tmp_path, LLAMA, {"context_length": u32(2**32 - 1)}, "large.gguf"))
    assert small.arena_bytes == large.arena_bytes
    assert [g.page_bytes for g in small.groups] == [g.page_bytes for g in large.groups]


@pytest.mark.parametrize("spec", [LLAMA, GEMMA], ids=lambda spec: spec.arch)
@pytest.mark.parametrize("key", ["block_count", "embedding_length", "context_length", "attention.head_count",
                                 "feed_forward_length", "attention.layer_norm_rms_epsilon"])  # fmt: skip
def test_missing_key_is_named(tmp_path, spec, key):
    path = write(tmp_path, spec, {key: None})
    with pytest.raises(GGUFError, match=f"{spec.arch}.{key}"):
        compile_file(path)


def test_missing_window_is_named(tmp_path):
    with pytest.raises(GGUFError, match="gemma3.attention.sliding_window"):
        compile_file(write(tmp_path, GEMMA, {"attention.sliding_window": None}))


FAMILIES = tuple(arch for arch in tiny_gguf.WRONG if arch in ARCHITECTURES and ARCHITECTURES[arch] == arch.replace("-", "_"))      # encoders as well


def tensors(arch):
    """A tiny file's tensors, a block of each kind only once: what is wrong in one block is wrong in another."""
    arrays, seen = tiny_gguf.weights(Spec(arch=arch)), set()
    for name in arrays:
        kind = name.split(".", 2)[2] if name.startswith("blk.") else name
        if kind not in seen:
            seen.add(kind)
            yield name, arrays[name]


@pytest.mark.parametrize("arch", FAMILIES)
def test_row_39_a_missing_tensor_is_named(tmp_path, arch):
    """Any of them, but biases of q, k, v and the like, which files may leave out; and a head, which is then tied."""
    may_be_left_out = (".bias", "output.weight", "token_types.weight")
    for name, _ in tensors(arch):
        if name.endswith(may_be_left_out) and not name.endswith("attn_output.weight"):
            continue
        with pytest.raises(GGUFError, match=name.replace("attn_qkv", "attn_q")):     # without one for all three, they are three
            compile_file(tiny_gguf.write(tmp_path / "faulty.gguf", Spec(arch=arch), tensors={name: None}))


@pytest.mark.parametrize("arch", FAMILIES)
def test_rows_39_and_40_a_tensor_of_another_shape_is_named(tmp_path, arch):
    """Transposed, short by a row or an element, or with a dimension more than it has: of each tensor one of these."""
    import numpy as np

    for i, (name, array) in enumerate(tensors(arch)):
        if name == "token_types.weight":        # rows are counted
            continue
        other = array[:-1]
        if i % 4 == 3 or name in ("token_embd.weight", "cls.output.weight"):
            other = np.stack([array, array])
        elif array.ndim > 1 and array.shape[-1] != array.shape[-2]:
            other = np.ascontiguousarray(np.swapaxes(array, -1, -2))
        with pytest.raises(GGUFError, match=name):
            compile_file(tiny_gguf.write(tmp_path / "faulty.gguf", Spec(arch=arch), tensors={name: other}))


@pytest.mark.parametrize("arch", FAMILIES)
def test_row_39_a_tensor_too_many_is_named(tmp_path, arch):
    """Of a block that the file does not speak of, of a known block, or of another family."""
    import numpy as np

    n = Spec(arch=arch).n_layer
    for name in (f"blk.{n}.attn_norm.weight", "blk.0.attn_gate.weight", "blk.1.ffn_gate_inp_shexp.weight", "blk.0.attn_rel_b.weight", "altup_proj.weight"):
        with pytest.raises(GGUFError, match=f"does not use.*{name}"):
            compile_file(tiny_gguf.write(tmp_path / "faulty.gguf", Spec(arch=arch), tensors={name: np.ones((4, 64), np.float32)}))


@pytest.mark.parametrize("arch", FAMILIES)
def test_row_40_a_width_that_the_tensors_do_not_have(tmp_path, arch):
    spec = Spec(arch=arch)
    for wrong in (spec.n_embd - 32, spec.n_embd + 32, 2 * spec.n_embd):
        with pytest.raises(GGUFError, match="weight' has shape|rope.dimension_count"):
            compile_file(write(tmp_path, spec, {"embedding_length": wrong}))


@pytest.mark.parametrize("arch", FAMILIES)
def test_row_49_a_block_more_or_fewer_than_there_are(tmp_path, arch):
    spec = Spec(arch=arch)
    for wrong in (spec.n_layer - 1, spec.n_layer + 1):
        with pytest.raises(GGUFError, match=rf"blk\.{min(wrong, spec.n_layer)}\.|expected an array of"):
            compile_file(write(tmp_path, spec, {"block_count": wrong}))


def test_unused_tensor_is_named(tmp_path):
    """A bias that the graph would leave out is not left out in silence."""
    import numpy as np
    path = tiny_gguf.write(tmp_path / "faulty.gguf", LLAMA, tensors={"blk.0.attn_gate.weight": np.ones((4, 64), np.float32)})
    with pytest.raises(GGUFError, match="blk.0.attn_gate.weight"):
        compile_file(path)


@pytest.mark.parametrize("value", [0.0, -1.0, NAN, INF])
def test_rope_factors_must_be_positive(tmp_path, value):
    import numpy as np
    spec = Spec(rope_freqs=True)
    factors = np.ones(spec.d_head // 2, np.float32)
    factors[3] = value
    path = tiny_gguf.write(tmp_path / "faulty.gguf", spec, tensors={"rope_freqs.weight": factors})
    with pytest.raises(GGUFError, match="rope_freqs.weight"):
        compile_file(path)


@pytest.mark.parametrize("key,value", [("block_count", 0), ("attention.head_count", 0), ("rope.freq_base", NAN),
                                       ("rope.scaling.type", "zzz"), ("context_length", 0)])  # fmt: skip
def test_llama_refuses_as_well(tmp_path, key, value):
    import pyengine

    path = write(tmp_path, LLAMA, {key: value})
    with pytest.raises((GGUFError, UnsupportedError), match=f"llama.{key}"):
        pyengine.Llama(str(path), n_ctx=128)


def test_huge_context_is_cut_to_memory_and_said(tmp_path):
    import pyengine

    path = write(tmp_path, LLAMA, {"context_length": u32(2**32 - 1)})
    with pytest.warns(UserWarning, match="4294967295"), pyengine.Llama(str(path)) as llama:
        assert 0 < llama.n_ctx < 2**31
        assert llama.generate([1, 280, 270], max_tokens=3, temperature=0).usage["completion_tokens"] == 3

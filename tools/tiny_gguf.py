#!/usr/bin/env python3
"""Tiny random GGUF files for tests: every option an architecture has, mostly under a megabyte.

    python tools/tiny_gguf.py OUT.gguf --arch gemma3 --weight-type Q8_0 --tied

As a module: `write(path, Spec(...))`; `write(path, spec, wrong="rope")` makes the file with one thing
wrong; `keys=` and `tensors=` patch metadata and tensors for fault tests (None leaves an entry out).
A file is a function of its Spec alone. Weights are drawn once in float32 and packed afterwards, so specs
that differ in weight_type only describe the same model. Heads are scaled so that logits have a standard
deviation of about 3: with the usual 0.02 a wrong file would hide in a flat softmax.

Not for users' models; imported by tests, tools and benches only. Needs numpy and the gguf package.
"""

import dataclasses
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from tiny_spec import (CHATML, COHERE, DECODERS, ENCODERS, GEMMA, GRANITE, LFM, SMALL_TYPES, WEIGHT_TYPES, WRONG, WRONG_EXPERTS, WRONG_KEYS, Spec,  # noqa: E402, F401
                       wrong_of)
from tiny_vocab import WORDS, bpe_vocabulary, vocabulary_keys, wordpiece_keys  # noqa: E402, F401
from tiny_weights import make_wrong, weights  # noqa: E402


def type_number(name):
    """ggml's number of a type. The gguf package takes one that it does not know (Q2_0) as soon as it has its size."""
    import gguf

    from pyengine.quants import BY_NAME

    kind = gguf.GGMLQuantizationType.__members__.get(name)
    if kind is None:
        kind = BY_NAME[name].id
        gguf.GGML_QUANT_SIZES.setdefault(kind, (BY_NAME[name].block, BY_NAME[name].bytes))
    return kind


def pack(array, type_name):
    """Bytes of float rows in a ggml type: uint8 [rows, bytes], or the array itself for F32."""
    if type_name == "F32":
        return array
    from pyengine import quants

    return quants.quantize(type_name, array.reshape(-1, array.shape[-1])).reshape(*array.shape[:-1], -1)


# --- the file --------------------------------------------------------------------------------------------


def type_of(spec, name):
    small = ("_norm", ".conv.", "rope_", "position_", "token_types", "ffn_gate_inp", "_sinks")
    if not name.endswith(".weight") or any(part in name for part in small):
        return "F32"
    for end, type_name in spec.types:
        if name.endswith(end):
            return type_name
    return spec.weight_type


def metadata(spec):
    """Key -> value; int is uint32, float is float32, list of int is an int32 array, as converters write them."""
    a, kv, ff = spec.arch, spec.n_head_kv, spec.n_ff
    keys = {
        "general.name": "tiny" if a == "phi3" else f"tiny-{a}",  # of "phi3" in a name llama.cpp expects Phi 3's vocabulary
        f"{a}.context_length": spec.n_ctx_train,
        f"{a}.embedding_length": spec.n_embd,
        f"{a}.block_count": spec.n_layer,
        f"{a}.feed_forward_length": list(ff) if len(ff) > 1 else ff[0],
        f"{a}.attention.head_count": spec.n_head,
        f"{a}.attention.head_count_kv": list(kv) if len(kv) > 1 else kv[0],
        f"{a}.attention.layer_norm{'' if a in (*COHERE, *ENCODERS) else '_rms'}_epsilon": spec.eps,
        f"{a}.rope.freq_base": spec.rope_base,
    }
    if spec.head_dim:
        keys[f"{a}.attention.key_length"] = spec.head_dim
        keys[f"{a}.attention.value_length"] = spec.head_dim
    if spec.n_expert:
        keys.update({f"{a}.expert_count": spec.n_expert, f"{a}.expert_used_count": spec.n_expert_used})
        if a != "llama":
            keys[f"{a}.expert_feed_forward_length"] = spec.n_ff_exp or ff[0]
        if spec.expert_scale:
            keys[f"{a}.expert_weights_scale"] = spec.expert_scale
    if a in GEMMA:
        optional = {"attention.sliding_window": spec.window, "attention.sliding_window_pattern": spec.window_pattern,
                    "rope.freq_base_swa": spec.rope_base_swa}
        if a == "gemma2":
            optional.update({"attn_logit_softcapping": spec.attention_softcap, "final_logit_softcapping": spec.final_softcap})
    elif a == "gpt-oss":
        optional = {"attention.sliding_window": spec.window, "attention.sliding_window_pattern": spec.window_pattern,
                    "rope.freq_base_swa": spec.rope_base_swa}
    elif a == "deepseek2":
        groups, used = spec.expert_groups or (0, 0)
        optional = {"leading_dense_block_count": spec.n_dense, "expert_gating_func": spec.gating,
                    "expert_group_count": groups, "expert_group_used_count": used, "expert_weights_norm": spec.normalize,
                    "rope.scaling.yarn_log_multiplier": spec.yarn_log_multiplier}
        sizes = (spec.d_head, spec.v_dim) if spec.joined else (spec.latent + spec.n_rot, spec.latent)
        keys.update({f"{a}.attention.{name}": value for name, value in (
            ("head_count_kv", spec.n_head if spec.joined else 1), ("key_length", sizes[0]), ("value_length", sizes[1]), ("kv_lora_rank", spec.latent), ("q_lora_rank", spec.q_latent))})
        keys.update({f"{a}.rope.dimension_count": spec.n_rot, f"{a}.expert_shared_count": spec.n_shared})
        if not spec.joined:
            keys.update({f"{a}.attention.key_length_mla": spec.d_head, f"{a}.attention.value_length_mla": spec.v_dim})
    elif a in COHERE:
        optional = {"logit_scale": spec.logit_scale and spec.logit_scale / 4}
        if a == "cohere2":
            optional.update({"attention.sliding_window": spec.window, "attention.sliding_window_pattern": spec.window_pattern})
    elif a in GRANITE:
        optional = {"embedding_scale": spec.embedding_scale, "attention.scale": spec.attention_scale, "residual_scale": spec.residual_scale,
                    "logit_scale": spec.logit_scale}
        if a == "granitemoe":
            optional["expert_shared_feed_forward_length"] = spec.n_shared * (spec.n_ff_exp or ff[0])
    elif a in LFM:
        optional = {"shortconv.l_cache": spec.taps, "attention.sliding_window": spec.lfm_window, "vocab_size": spec.n_vocab}
        if a == "lfm2moe":
            optional.update({"leading_dense_block_count": spec.n_dense, "expert_gating_func": spec.gating or 2})
    else:
        optional = {"attention.temperature_scale": spec.temperature, "rope.scaling.yarn_log_multiplier": spec.yarn_log_multiplier}
    optional["rope.scaling.attn_factor"] = spec.rope_attn_factor
    keys.update({f"{a}.{name}": value for name, value in optional.items() if value})
    if a in ENCODERS:
        keys[f"{a}.attention.causal"] = False
        del keys[f"{a}.attention.head_count_kv"]
    if a == "bert":
        del keys["bert.rope.freq_base"]
    if spec.pooling >= 0:
        keys[f"{a}.pooling_type"] = spec.pooling
    if spec.labels > 1:
        keys[f"{a}.classifier.output_labels"] = [f"label{i}" for i in range(spec.labels)]
    if a == "llama":
        keys["llama.vocab_size"] = spec.n_vocab + spec.extra_rows
    if a in ("llama", "phi3", "mistral3", "smollm3", *GRANITE, *COHERE):
        keys[f"{a}.rope.dimension_count"] = spec.d_head
    if a == "phi3":
        keys["phi3.attention.sliding_window"] = spec.phi_window
        keys["phi3.rope.scaling.original_context_length"] = spec.rope_orig_ctx
    if spec.rope_scaling == "old":
        keys[f"{a}.rope.scale_linear"] = spec.rope_factor
    elif spec.rope_scaling:
        keys[f"{a}.rope.scaling.type"] = spec.rope_scaling
        if spec.rope_scaling in ("linear", "yarn"):
            keys[f"{a}.rope.scaling.factor"] = spec.rope_factor
        if spec.rope_scaling in ("yarn", "longrope"):
            keys[f"{a}.rope.scaling.original_context_length"] = spec.rope_orig_ctx
    keys.update(vocabulary_keys(spec))
    if spec.chat_template:
        keys["tokenizer.chat_template"] = spec.chat_template
    return keys


@dataclasses.dataclass(frozen=True)
class Typed:
    """A metadata value of a named GGUF type, for patches: Typed("UINT64", 2**40), Typed("ARRAY", [1], "INT8")."""

    type: str
    value: object
    element: str = ""


def _add_key(writer, key, value):
    import gguf

    kinds = gguf.GGUFValueType
    if isinstance(value, Typed):
        element = kinds[value.element] if value.element else None
        writer.add_key_value(key, value.value, kinds[value.type], element)
    elif isinstance(value, list):
        inner = kinds.STRING if isinstance(value[0], str) else kinds.FLOAT32 if isinstance(value[0], float) else kinds.INT32
        writer.add_key_value(key, value, kinds.ARRAY, inner)
    else:
        kind = {bool: kinds.BOOL, int: kinds.UINT32, float: kinds.FLOAT32, str: kinds.STRING}[type(value)]
        writer.add_key_value(key, value, kind)


def write(path, spec, *, wrong=None, keys=None, tensors=None):
    """Writes the file and returns its path. `keys` and `tensors` replace, add, or (None) leave out entries.

    A patched tensor is a float32 array, packed like the one it replaces."""
    import gguf

    arrays = weights(spec)
    if wrong:
        make_wrong(spec, arrays, wrong)
    table = metadata(spec)
    for name, change in WRONG_KEYS.get(wrong, {}).items():
        table[f"{spec.arch}.{name}"] = change(table[f"{spec.arch}.{name}"])
    for patched, patches in ((table, keys or {}), (arrays, tensors or {})):
        for name, value in patches.items():
            if value is None:
                del patched[name]
            else:
                patched[name] = value
    writer = gguf.GGUFWriter(str(path), spec.arch)
    for key, value in table.items():
        _add_key(writer, key, value)
    for name, array in arrays.items():
        type_name = type_of(spec, name)
        if type_name.endswith("_K") and array.shape[-1] % 256:  # as quantizers do
            type_name = "Q8_0"
        raw = None if type_name == "F32" else type_number(type_name)
        writer.add_tensor(name, pack(array, type_name), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def main(argv=None):
    import argparse

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--wrong", choices=sorted({w for names in (*WRONG.values(), WRONG_EXPERTS) for w in names}))
    for field in dataclasses.fields(Spec):
        flag = "--" + field.name.replace("_", "-")
        if field.type is bool:
            parser.add_argument(flag, action="store_true")
        elif field.name == "types":
            parser.add_argument(flag, nargs="*", metavar="END=TYPE", default=[])
        elif field.type is tuple:
            parser.add_argument(flag, nargs="+", type=int, default=field.default)
        else:
            parser.add_argument(flag, type=field.type, default=field.default)
    options = vars(parser.parse_args(argv))
    out, wrong = options.pop("out"), options.pop("wrong")
    options["types"] = tuple(tuple(pair.split("=", 1)) for pair in options["types"])
    write(out, Spec(**options), wrong=wrong)


if __name__ == "__main__":
    main()

"""Weights of tiny random files, drawn from the Spec alone, and one thing of them made wrong.

Not how they are stored (tiny_gguf.py, the only importer). Needs numpy.
"""

import math

from tiny_spec import BIASES, COHERE, DENSE_FIRST, ENCODERS, GEMMA, GRANITE, HALVES, LFM, WRONG_KEYS, wrong_of


def weights(spec):
    """Float32 arrays by tensor name, in file order; shape [rows, row length] as numpy sees it."""
    import numpy as np

    rng = np.random.default_rng([spec.seed, 0x7157])
    out = {}

    def matrix(name, rows, columns, gain=1.0):
        out[name] = (rng.standard_normal((rows, columns)) * (gain / math.sqrt(columns))).astype(np.float32)

    def norm(name, n):
        out[name] = (1.0 + 0.25 * rng.standard_normal(n)).astype(np.float32)

    def bias(name, n, size=0.5, kind="qkv"):
        if spec.biases and kind in BIASES[spec.arch]:
            out[name] = (size * rng.standard_normal(n)).astype(np.float32)

    def experts(blk, ff, loud):
        """A router wide enough that few choices are close, and experts loud enough that a wrong one shows."""
        matrix(blk + "ffn_gate_inp.weight", spec.n_expert, spec.n_embd, 3.0)
        bias(blk + "ffn_gate_inp.bias", spec.n_expert, 0.5, "e")
        for name, rows, columns, gain in (("gate", ff, spec.n_embd, 1.0), ("up", ff, spec.n_embd, 1.0), ("down", spec.n_embd, ff, 2 * loud)):
            matrix(f"{blk}ffn_{name}_exps.weight", spec.n_expert * rows, columns, gain)
            out[f"{blk}ffn_{name}_exps.weight"] = out[f"{blk}ffn_{name}_exps.weight"].reshape(spec.n_expert, rows, columns)
            bias(f"{blk}ffn_{name}_exps.bias", spec.n_expert * rows, 0.5, "e")
            if f"{blk}ffn_{name}_exps.bias" in out:
                out[f"{blk}ffn_{name}_exps.bias"] = out[f"{blk}ffn_{name}_exps.bias"].reshape(spec.n_expert, rows)

    if spec.arch in ENCODERS:
        return encoder_weights(spec, out, matrix, norm, bias)

    def latent(blk):
        """The attention of deepseek2. attn_kv_b holds for each head what attn_k_b holds, transposed, and what attn_v_b holds."""
        n, d, columns = spec.n_head, spec.d_head, spec.n_embd
        if spec.q_latent:
            matrix(blk + "attn_q_a.weight", spec.q_latent, columns)
            norm(blk + "attn_q_a_norm.weight", spec.q_latent)
            columns = spec.q_latent
        matrix(f"{blk}attn_q{'_b' if spec.q_latent else ''}.weight", n * d, columns, 1.5)
        matrix(blk + "attn_kv_a_mqa.weight", spec.latent + spec.n_rot, spec.n_embd)
        norm(blk + "attn_kv_a_norm.weight", spec.latent)
        matrix(blk + "attn_k_b.weight", n * spec.latent, spec.n_still, math.sqrt(spec.n_still / spec.latent))
        matrix(blk + "attn_v_b.weight", n * spec.v_dim, spec.latent)
        k, v = (out[f"{blk}attn_{kind}_b.weight"].reshape(n, rows, -1) for kind, rows in (("k", spec.latent), ("v", spec.v_dim)))
        out.update({blk + "attn_k_b.weight": k, blk + "attn_v_b.weight": v})
        if spec.joined:
            both = np.concatenate([out.pop(blk + "attn_k_b.weight").transpose(0, 2, 1), out.pop(blk + "attn_v_b.weight")], axis=1)
            out[blk + "attn_kv_b.weight"] = np.ascontiguousarray(both.reshape(-1, spec.latent))
        matrix(blk + "attn_output.weight", spec.n_embd, n * spec.v_dim, 1.5)

    def shared(blk, ff):
        for name, rows, columns, gain in (("gate", ff, spec.n_embd, 1.0), ("up", ff, spec.n_embd, 1.0), ("down", spec.n_embd, ff, 2.0)):
            matrix(f"{blk}ffn_{name}_shexp.weight", rows, columns, gain)

    def attention(blk, kv, loud):
        # q is drawn wide enough that attention is far from uniform and a wrong rope shows
        matrix(blk + "attn_q.weight", spec.n_head * d, spec.n_embd, 2.0)
        bias(blk + "attn_q.bias", spec.n_head * d)
        matrix(blk + "attn_k.weight", kv * d, spec.n_embd)
        bias(blk + "attn_k.bias", kv * d)
        matrix(blk + "attn_v.weight", kv * d, spec.n_embd)
        bias(blk + "attn_v.bias", kv * d)
        matrix(blk + "attn_output.weight", spec.n_embd, spec.n_head * d, loud)
        bias(blk + "attn_output.bias", spec.n_embd, 0.2, "o")

    rows, d, gemma, a = spec.n_vocab + spec.extra_rows, spec.d_head, spec.arch in GEMMA, spec.arch
    matrix("token_embd.weight", rows, spec.n_embd, 3.0)
    norm("token_embd_norm.weight" if a in LFM else "output_norm.weight", spec.n_embd)
    if not spec.tied:
        matrix("output.weight", rows, spec.n_embd, 3.0 * (spec.logit_scale or 1.0 if a in GRANITE else 1.0))
    if spec.rope_freqs:
        out["rope_freqs.weight"] = rng.uniform(1.0, 8.0, d // 2).astype(np.float32)
    if spec.longrope:
        out["rope_factors_long.weight"] = rng.uniform(1.0, 8.0, d // 2).astype(np.float32)
        out["rope_factors_short.weight"] = rng.uniform(1.0, 1.5, d // 2).astype(np.float32)
    for i in range(spec.n_layer):
        blk, kv, ff = f"blk.{i}.", spec.kv_heads(i), spec.ff(i)
        norm(blk + "attn_norm.weight", spec.n_embd)
        loud = 6.0 if a == "gemma" else 1.5  # else its scaled embeddings drown the blocks
        if a == "deepseek2":
            latent(blk)
        elif kv:
            attention(blk, kv, loud)
        else:
            matrix(blk + "shortconv.in_proj.weight", 3 * spec.n_embd, spec.n_embd, 1.5)
            matrix(blk + "shortconv.conv.weight", spec.n_embd, spec.taps)
            matrix(blk + "shortconv.out_proj.weight", spec.n_embd, spec.n_embd, loud)
        if spec.fused and kv:
            for kind in ("weight", "bias") if spec.biases else ("weight",):
                out[f"{blk}attn_qkv.{kind}"] = np.concatenate([out.pop(f"{blk}attn_{part}.{kind}") for part in "qkv"])
        if a in ("gemma3", "qwen3", "qwen3moe", *LFM) and kv:
            norm(blk + "attn_q_norm.weight", d)
            norm(blk + "attn_k_norm.weight", d)
        if gemma:
            norm(blk + "post_attention_norm.weight", spec.n_embd)
        if a == "gpt-oss":
            out[blk + "attn_sinks.weight"] = rng.standard_normal(spec.n_head).astype(np.float32) + np.float32(1)
        if a not in COHERE:
            norm(blk + ("post_attention_norm" if a == "gpt-oss" else "ffn_norm") + ".weight", spec.n_embd)
        if spec.n_expert and not (a in DENSE_FIRST and i < spec.n_dense):
            experts(blk, spec.n_ff_exp or ff, loud / spec.expert_scale if a == "deepseek2" and spec.expert_scale else loud)
            if a in ("deepseek2", "granitemoe") and spec.n_shared:
                shared(blk, spec.n_shared * (spec.n_ff_exp or ff))
            if spec.selection_bias:
                out[blk + "exp_probs_b.bias"] = rng.uniform(-0.3, 0.3, spec.n_expert).astype(np.float32)
            continue
        if a != "phi3":
            matrix(blk + "ffn_gate.weight", ff, spec.n_embd)
            bias(blk + "ffn_gate.bias", ff, kind="f")
        matrix(blk + "ffn_up.weight", 2 * ff if a == "phi3" else ff, spec.n_embd)
        bias(blk + "ffn_up.bias", ff, kind="f")
        matrix(blk + "ffn_down.weight", spec.n_embd, ff, loud)
        bias(blk + "ffn_down.bias", spec.n_embd, 0.2, "f")
        if gemma:
            norm(blk + "post_ffw_norm.weight", spec.n_embd)
        if i == spec.n_layer - 1 and spec.labels:
            matrix("cls.output.weight", spec.labels, spec.n_embd, 3.0)
        if a == "gemma2":  # else its scaled embeddings, which are its head as well, drown the blocks
            out[blk + "post_attention_norm.weight"] *= np.float32(4)
            out[blk + "post_ffw_norm.weight"] *= np.float32(4)
    return out


def encoder_weights(spec, out, matrix, norm, bias):
    """The norms behind the blocks, with biases; positions and types as loud as the tokens, so that they show. nomic-bert: rope
    in the place of positions, a gate, and no biases but the norms'."""
    import numpy as np

    nomic = spec.arch == "nomic-bert"

    def layer_norm(name):
        norm(name + ".weight", spec.n_embd)
        bias(name + ".bias", spec.n_embd, kind="n")

    matrix("token_embd.weight", spec.n_vocab + spec.extra_rows, spec.n_embd, 3.0)
    if not nomic:
        matrix("position_embd.weight", spec.n_ctx_train, spec.n_embd, 3.0)
    matrix("token_types.weight", 2, spec.n_embd, 3.0)
    layer_norm("token_embd_norm")
    for i in range(spec.n_layer):
        blk, ff = f"blk.{i}.", spec.ff(i)
        for part, gain in (("q", 2.0), ("k", 1.0), ("v", 1.0)):
            matrix(f"{blk}attn_{part}.weight", spec.n_embd, spec.n_embd, gain)
            bias(f"{blk}attn_{part}.bias", spec.n_embd)
        if spec.fused:
            out[blk + "attn_qkv.weight"] = np.concatenate([out.pop(f"{blk}attn_{part}.weight") for part in "qkv"])
        matrix(blk + "attn_output.weight", spec.n_embd, spec.n_embd, 1.5)
        bias(blk + "attn_output.bias", spec.n_embd, 0.2)
        layer_norm(blk + "attn_output_norm")
        if nomic:
            matrix(blk + "ffn_gate.weight", ff, spec.n_embd)
        matrix(blk + "ffn_up.weight", ff, spec.n_embd)
        bias(blk + "ffn_up.bias", ff)
        matrix(blk + "ffn_down.weight", spec.n_embd, ff, 1.5)
        bias(blk + "ffn_down.bias", spec.n_embd, 0.2)
        layer_norm(blk + "layer_output_norm")
    if spec.labels:
        matrix("cls.weight", spec.n_embd, spec.n_embd)
        bias("cls.bias", spec.n_embd)
        matrix("cls.output.weight", spec.labels, spec.n_embd, 3.0)
        bias("cls.output.bias", spec.labels)
    return out


def make_wrong(spec, arrays, what):
    """Changes one thing in `arrays`, the kind of thing a wrong implementation would get wrong."""
    import numpy as np

    if what not in wrong_of(spec):
        raise ValueError(f"wrong: {what!r}, expected one of {wrong_of(spec)} for {spec.arch}")
    gemma, first = spec.arch == "gemma3", spec.n_dense if spec.arch in DENSE_FIRST else 0  # with experts
    query = f"blk.0.attn_q{'_b' if spec.q_latent else 'kv' if spec.fused else ''}.weight"
    if what == "rope" and spec.arch == "deepseek2":
        order, n = np.arange(spec.n_rot).reshape(spec.n_rot // 2, 2).T.ravel(), spec.n_rot
        for name, array in arrays.items():
            if name.endswith(("attn_q.weight", "attn_q_b.weight", "attn_kv_a_mqa.weight")):
                heads = array.reshape(-1, spec.latent + n if "mqa" in name else spec.d_head, array.shape[1]).copy()
                heads[:, -n:] = heads[:, -n:][:, order]
                arrays[name] = heads.reshape(array.shape)
    elif what == "rope":
        # the other pairing: rows of each q and k head change places, so that pairs (i, i+1) become (i, i+d/2)
        d = spec.d_head
        order = np.arange(d).reshape(2, d // 2).T.ravel() if spec.arch in HALVES else np.arange(d).reshape(d // 2, 2).T.ravel()
        for name, array in arrays.items():
            if ".attn_q" in name or ".attn_k" in name:
                heads = array.reshape(-1, d, *array.shape[1:]).copy()
                turned = len(heads) - (spec.kv_heads(int(name.split(".")[1])) if ".attn_qkv" in name else 0)  # v stays
                heads[:turned] = heads[:turned, order]
                arrays[name] = np.ascontiguousarray(heads).reshape(array.shape)
    elif what in ("positions", "types"):
        name = {"positions": "position_embd.weight", "types": "token_types.weight"}[what]
        arrays[name] = np.ascontiguousarray(np.roll(arrays[name], 1, axis=0))
    elif what == "head norm":
        name = next(n for n in arrays if n.endswith("attn_k_norm.weight"))
        arrays[name] = np.ones_like(arrays[name])
    elif what == "taps":
        arrays["blk.0.shortconv.conv.weight"] = arrays["blk.0.shortconv.conv.weight"][:, ::-1].copy()
    elif what == "gates":
        name, n = "blk.0.shortconv.in_proj.weight", spec.n_embd
        arrays[name] = np.concatenate([arrays[name][n : 2 * n], arrays[name][:n], arrays[name][2 * n :]])
    elif what == "factors":
        long, short = "rope_factors_long.weight", "rope_factors_short.weight"
        arrays[long], arrays[short] = arrays[short], arrays[long]
    elif what == "sinks":
        arrays["blk.0.attn_sinks.weight"] = arrays["blk.0.attn_sinks.weight"][::-1].copy()
    elif what == "expert bias":
        arrays["blk.1.ffn_up_exps.bias"] = np.roll(arrays["blk.1.ffn_up_exps.bias"], 1, axis=0)
    elif what in ("expert order", "selection bias", "latent order"):
        name = {"e": f"blk.{first}.ffn_gate_inp.weight", "s": f"blk.{first}.exp_probs_b.bias", "l": "blk.0.attn_kv_a_mqa.weight"}[what[0]]
        arrays[name] = np.roll(arrays[name], spec.n_rot if what[0] == "l" else 1, axis=0)
    elif what in ("latent norm", "query norm"):
        name = f"blk.0.attn_{'kv' if what[0] == 'l' else 'q'}_a_norm.weight"
        arrays[name] = np.ones_like(arrays[name])
    elif what == "shared expert":
        arrays[f"blk.{first}.ffn_down_shexp.weight"] = np.zeros_like(arrays[f"blk.{first}.ffn_down_shexp.weight"])
    elif what in WRONG_KEYS:
        pass
    elif what == "bias":
        if not spec.biases:
            raise ValueError("wrong: 'bias' needs biases=True")
        del arrays["blk.0.attn_q.bias"]
    elif what == "norm":
        others = {**dict.fromkeys(ENCODERS, "attn_output_norm"), **dict.fromkeys((*GEMMA, "gpt-oss"), "post_attention_norm"), **dict.fromkeys(COHERE, "attn_norm")}
        name = f"blk.1.{others.get(spec.arch, 'ffn_norm')}.weight"
        arrays[name] = np.ones_like(arrays[name])
    else:
        # llama: attention scaled by 1/sqrt(d) * 1.25; gemma3: an embedding scale off by a quarter
        name = "token_embd.weight" if gemma else query
        if gemma and spec.tied:
            raise ValueError("wrong: 'scale' needs tied=False, else it scales the head as well")
        rows = spec.n_head * spec.d_head if spec.fused else None
        arrays[name] = arrays[name].copy()
        arrays[name][:rows] *= np.float32(1.25)

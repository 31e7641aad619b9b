"""deepseek2: DeepSeek V2, V2 Lite, V3 and R1 and models of their layout (DeepSeek-AI 2024, arXiv:2405.04434, arXiv:2412.19437).

Attention is latent: a token keeps one vector, the same for all heads, which each head's matrices make keys and values
of, and a key for positions. The scores of (k_b^T q) with the vector are those of q with its key, so all heads read one
key, and what they read of it becomes their values by v_b afterwards. Files from before those two were apart have them in
one matrix, attn_kv_b, the keys' part not transposed: there each head's keys and values are made first, and kept.

The first layers have one feed-forward, the others experts and what all tokens share."""

import dataclasses
from decimal import Decimal, localcontext

from ..errors import GGUFError, UnsupportedError
from . import hyper as keys
from . import layers, rope

AT = "deepseek2."


def hyper(gguf):
    hp = router(gguf, keys.with_experts(gguf, keys.read(gguf, "deepseek2", experts=True)))
    if gguf.get_float(AT + "attention.temperature_scale", default=0.0):
        raise UnsupportedError(f"{gguf.path}: deepseek2 with queries that grow with their position (key '{AT}attention.temperature_scale') "
                               "is not supported yet")
    if len(set(hp.n_head)) > 1:
        raise GGUFError(f"{gguf.path}: key '{AT}attention.head_count' has several numbers, expected the same in each layer",
                        key=AT + "attention.head_count")
    split = AT + "attention.key_length_mla" in gguf
    dk = gguf.get_int(AT + "attention.key_length_mla", default=hp.dk, lo=1, hi=1024)
    dv = gguf.get_int(AT + "attention.value_length_mla", lo=1, hi=1024) if split else hp.dv
    if hp.n_rot >= dk:
        raise GGUFError(f"{gguf.path}: key '{AT}rope.dimension_count' (default: the head size) is {hp.n_rot}, expected less than the heads' {dk}",
                        key=AT + "rope.dimension_count")
    latent = gguf.get_int(AT + "attention.kv_lora_rank", lo=1, hi=1024 - hp.n_rot)
    if split and hp.dk != latent + hp.n_rot:
        raise GGUFError(f"{gguf.path}: key '{AT}attention.key_length' is {hp.dk}, expected {latent + hp.n_rot}, as kv_lora_rank and "
                        "rope.dimension_count are together", key=AT + "attention.key_length")
    n_shared = gguf.get_int(AT + "expert_shared_count", default=0, lo=0, hi=4096)
    scaling, scale = yarn(hp.rope, dk)
    return hp.with_(dk=dk, dv=dv, rope=scaling, attention_scale=scale, latent=latent,
                    q_latent=gguf.get_int(AT + "attention.q_lora_rank", default=0, lo=0, hi=1 << 20),
                    n_dense=gguf.get_int(AT + "leading_dense_block_count", default=0, lo=0, hi=hp.n_layer),
                    n_ff_shared=n_shared * hp.n_ff_expert)


def router(gguf, hp):
    """hp with what the file says of how experts are chosen and weighted."""
    n = hp.n_expert
    # GLM 4.7 Flash has been converted without expert_gating_func; only its sizes tell it from older files.
    kind = "sigmoid" if hp.n_layer in (47, 48) and hp.n_vocab == 154880 else "softmax"
    gating = gguf.get_int(AT + "expert_gating_func", default=0, lo=0, hi=3)
    groups = gguf.get_int(AT + "expert_group_count", default=1, lo=0, hi=n) or 1
    used = gguf.get_int(AT + "expert_group_used_count", default=groups, lo=0, hi=groups) or groups
    if groups > 1 and (n % groups or n // groups < 2):
        raise GGUFError(f"{gguf.path}: key '{AT}expert_group_count' is {groups}, expected a number that makes groups of two or more of {n} experts",
                        key=AT + "expert_group_count")
    if n // groups * used < hp.n_expert_used:
        raise GGUFError(f"{gguf.path}: key '{AT}expert_group_used_count' is {used}, expected at least {-(-hp.n_expert_used * groups // n)}: a token "
                        f"takes {hp.n_expert_used} experts and a group has {n // groups}", key=AT + "expert_group_used_count")
    return hp.with_(expert_kind=("", "softmax", "sigmoid", "selected")[gating] or kind, expert_groups=groups, expert_groups_used=used,
                    expert_normalize=gguf.get_bool(AT + "expert_weights_norm", default=False),
                    expert_scale=keys.optional(gguf, AT + "expert_weights_scale", 0.0, most=1e30) or 1.0)


def yarn(scaling, dk):
    """Scaling and the factor of the scores. Where the file has mscale_all_dim, written as a tenth of it, that scales q and k
    as a whole, and what turns has no magnitude of its own; else both scale."""
    with localcontext(rope.DECIMAL):
        magnitude = Decimal(scaling.attention_factor)
        if scaling.kind == "yarn" and scaling.extrapolation:
            multiplier = Decimal(scaling.log_multiplier) * 10
            magnitude *= rope.growth(scaling.factor, multiplier or 1)
            scaling = dataclasses.replace(scaling, log_multiplier=1.0 if multiplier else 0.0)
        return scaling, float(magnitude * magnitude / Decimal(dk).sqrt())


def attention(g, x, layer, hp, table):
    at, n, n_rot, latent = f"blk.{layer}.attn_", hp.n_head[layer], hp.n_rot, hp.latent
    nope = hp.dk - n_rot
    if g.has(at + "q_a.weight"):
        q = g.linear(x, g.weight(at + "q_a.weight", hp.n_embd, hp.q_latent))
        q = g.rms_norm(q, g.vector(at + "q_a_norm.weight", hp.q_latent), hp.eps)
        q = g.linear(q, g.weight(at + "q_b.weight", hp.q_latent, n * hp.dk))
    else:
        q = g.linear(x, g.weight(at + "q.weight", hp.n_embd, n * hp.dk))
    kv = g.linear(x, g.weight(at + "kv_a_mqa.weight", hp.n_embd, latent + n_rot))
    c = g.rms_norm(g.splice((kv, 1, 0, latent)), g.vector(at + "kv_a_norm.weight", latent), hp.eps)
    # What turns comes last in files, and first here.
    joined = g.has(at + "kv_b.weight")
    if joined:
        n_kv, both = n, g.linear(c, g.weight(at + "kv_b.weight", latent, n * (nope + hp.dv)))
        q = g.splice((q, n, nope, n_rot), (q, n, 0, nope))
        k, v = g.splice((kv, 1, latent, n_rot), (both, n, 0, nope)), g.splice((both, n, nope, hp.dv))
    else:
        n_kv, absorbed = 1, g.head_linear(g.splice((q, n, 0, nope)), g.weight(at + "k_b.weight", nope, latent, matrices=n))
        q = g.splice((q, n, nope, n_rot), (absorbed, n, 0, latent))
        k, v = g.splice((kv, 1, latent, n_rot), (c, 1, 0, latent)), c
    q, k = g.rope(q, table, n, "adjacent"), g.rope(k, table, n_kv, "adjacent")
    a = g.attention(q, k, v, n_head=n, n_kv=n_kv, scale=hp.attention_scale, layer=layer)
    if not joined:
        a = g.head_linear(a, g.weight(at + "v_b.weight", latent, hp.dv, matrices=n))
    return g.linear(a, g.weight(at + "output.weight", n * hp.dv, hp.n_embd))


def build(g, hp):
    table = rope.table(g, hp)
    x = layers.embed(g, hp)
    for i in range(hp.n_layer):
        h = layers.norm(g, x, f"blk.{i}.attn_norm", hp)
        x = g.add(x, attention(g, h, i, hp, table))
        h = layers.norm(g, x, f"blk.{i}.ffn_norm", hp)
        if i < hp.n_dense:
            x = g.add(x, layers.glu(g, h, i, hp, "silu"))
            continue
        y = layers.experts(g, h, i, hp, hp.expert_kind, normalize=hp.expert_normalize)
        x = g.add(x, g.add(y, layers.glu(g, h, i, hp, "silu", shared=True)) if hp.n_ff_shared else y)
    layers.head(g, x, hp)

"""lfm2: LFM2 and LFM2.5, as lfm2moe with experts behind its first layers (Liquid AI 2025, arXiv:2511.23404): where a layer
has no KV heads, a short convolution between two gates stands for attention; the others are qwen3's. The last norm goes by the
name of token_embd_norm."""

from ..errors import GGUFError, UnsupportedError
from . import hyper as keys
from . import layers, rope


def hyper(gguf):
    at = f"{gguf.arch}."
    hp = keys.read(gguf, gguf.arch, least_kv=0, experts=gguf.arch == "lfm2moe")
    if gguf.arch == "lfm2moe":
        hp = keys.with_experts(gguf, hp).with_(n_dense=gguf.get_int(at + "leading_dense_block_count", default=0, lo=0, hi=hp.n_layer),
                                               expert_kind=("softmax", "sigmoid")[gguf.get_int(at + "expert_gating_func", lo=1, hi=2) - 1])
    if not any(hp.n_kv):
        raise GGUFError(f"{gguf.path}: key '{at}attention.head_count_kv' is 0 in every layer, expected one that attends",
                        key=at + "attention.head_count_kv")
    if not gguf.get_bool(at + "attention.causal", default=True):
        raise UnsupportedError(f"{gguf.path}: {gguf.arch} that attends in both directions (key '{at}attention.causal') is not supported")
    window = gguf.get_int(at + "attention.sliding_window", default=0, lo=0, hi=(1 << 31) - 1)
    return hp.with_(taps=gguf.get_int(at + "shortconv.l_cache", lo=2, hi=32), window=(window,) * hp.n_layer)


def convolution(g, x, layer, hp):
    """out(c * conv(b * z)), where b, c and z are thirds of in(x)."""
    at, n = f"blk.{layer}.shortconv.", hp.n_embd
    whole = g.weight(at + "in_proj.weight", n, 3 * n)
    b, c, z = (g.linear(x, g.part(whole, first, n)) for first in (0, n, 2 * n))
    y = g.short_conv(g.mul(b, z), at + "conv.weight", hp.taps)
    return g.linear(g.mul(c, y), g.weight(at + "out_proj.weight", n, n))


def build(g, hp):
    table = rope.table(g, hp)
    x = layers.embed(g, hp)
    for i in range(hp.n_layer):
        h = layers.norm(g, x, f"blk.{i}.attn_norm", hp)
        h = layers.attention(g, h, i, hp, table, "halves", norms=True) if hp.n_kv[i] else convolution(g, h, i, hp)
        x = g.add(x, h)
        h = layers.norm(g, x, f"blk.{i}.ffn_norm", hp)
        x = g.add(x, layers.experts(g, h, i, hp, hp.expert_kind) if hp.n_expert and i >= hp.n_dense else layers.glu(g, h, i, hp, "silu"))
    layers.head(g, x, hp, last_norm="token_embd_norm")

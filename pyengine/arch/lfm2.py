"""lfm2: LFM2 and LFM2.5 (Liquid AI 2025, arXiv:2511.23404): where a layer has no KV heads, a short convolution between two
gates stands for attention; the others are qwen3's. The last norm goes by the name of token_embd_norm."""

from ..errors import GGUFError, UnsupportedError
from . import hyper as keys
from . import layers, rope


def hyper(gguf):
    hp = keys.read(gguf, "lfm2", least_kv=0)
    if not any(hp.n_kv):
        raise GGUFError(f"{gguf.path}: key 'lfm2.attention.head_count_kv' is 0 in every layer, expected one that attends",
                        key="lfm2.attention.head_count_kv")
    if not gguf.get_bool("lfm2.attention.causal", default=True):
        raise UnsupportedError(f"{gguf.path}: lfm2 that attends in both directions (key 'lfm2.attention.causal') is not supported")
    window = gguf.get_int("lfm2.attention.sliding_window", default=0, lo=0, hi=(1 << 31) - 1)
    return hp.with_(taps=gguf.get_int("lfm2.shortconv.l_cache", lo=2, hi=32), window=(window,) * hp.n_layer)


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
        x = g.add(x, layers.glu(g, h, i, hp, "silu"))
    layers.head(g, x, hp, last_norm="token_embd_norm")

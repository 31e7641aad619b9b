"""cohere2: Command R7B, Command A and Tiny Aya (Cohere 2025, arXiv:2504.00698): command-r, where three of four layers see
a window and turn, and the fourth sees everything and does not turn."""

from . import hyper as keys
from . import layers, rope


def hyper(gguf):
    hp = keys.read(gguf, "cohere2", norm="layer")
    return hp.with_(window=keys.windows(gguf, "cohere2", hp.n_layer, period=4),
                    logit_scale=keys.optional(gguf, "cohere2.logit_scale", 0.0) or 1.0)


def build(g, hp):
    table = rope.table(g, hp)
    x = layers.embed(g, hp)
    for i in range(hp.n_layer):
        h = layers.norm(g, x, f"blk.{i}.attn_norm", hp)
        a = layers.attention(g, h, i, hp, table if hp.window[i] else None, "adjacent")
        x = g.add(g.add(x, a), layers.glu(g, h, i, hp, "silu"))
    layers.head(g, x, hp)

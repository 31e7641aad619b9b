"""command-r: Command R and Aya (Cohere 2024): attention and feed-forward side by side behind one layer norm without
bias, logits times a number. The 104B model's norms of q and k, a weight for each head, are not supported."""

from . import hyper as keys
from . import layers, rope


def hyper(gguf):
    hp = keys.read(gguf, "command-r", norm="layer")
    return hp.with_(logit_scale=keys.optional(gguf, "command-r.logit_scale", 0.0) or 1.0)


def build(g, hp):
    table = rope.table(g, hp)
    x = layers.embed(g, hp)
    for i in range(hp.n_layer):
        h = layers.norm(g, x, f"blk.{i}.attn_norm", hp)
        a, f = layers.attention(g, h, i, hp, table, "adjacent"), layers.glu(g, h, i, hp, "silu")
        x = g.add(g.add(x, a), f)
    layers.head(g, x, hp)

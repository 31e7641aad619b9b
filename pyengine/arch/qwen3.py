"""qwen3: the dense models of Qwen 3 (Qwen Team 2025, arXiv:2505.09388): qwen2 without its biases, with a norm of each
head of q and k before they turn."""

from . import hyper as keys
from . import layers, rope


def hyper(gguf):
    return keys.read(gguf, "qwen3")


def build(g, hp):
    table = rope.table(g, hp)
    x = layers.embed(g, hp)
    for i in range(hp.n_layer):
        h = layers.norm(g, x, f"blk.{i}.attn_norm", hp)
        x = g.add(x, layers.attention(g, h, i, hp, table, "halves", norms=True))
        h = layers.norm(g, x, f"blk.{i}.ffn_norm", hp)
        x = g.add(x, layers.glu(g, h, i, hp, "silu"))
    layers.head(g, x, hp)

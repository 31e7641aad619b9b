"""qwen3moe: the models of Qwen 3 with experts, 30B-A3B and 235B-A22B (Qwen Team 2025, arXiv:2505.09388): qwen3 with a
router in place of the feed-forward, the weights of a token's experts divided by their sum."""

from . import hyper as keys
from . import layers, rope


def hyper(gguf):
    hp = keys.read(gguf, "qwen3moe", experts=True)
    return keys.with_experts(gguf, hp, shared_width=True)


def build(g, hp):
    table = rope.table(g, hp)
    x = layers.embed(g, hp)
    for i in range(hp.n_layer):
        h = layers.norm(g, x, f"blk.{i}.attn_norm", hp)
        x = g.add(x, layers.attention(g, h, i, hp, table, "halves", norms=True))
        h = layers.norm(g, x, f"blk.{i}.ffn_norm", hp)
        x = g.add(x, layers.experts(g, h, i, hp))
    layers.head(g, x, hp)

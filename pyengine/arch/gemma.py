"""gemma: the first Gemma and CodeGemma (Gemma Team 2024, arXiv:2403.08295): llama with embeddings scaled by sqrt(n_embd)
and a feed-forward gated by gelu. The "+1" of Gemma's norms is already in the file's weights."""

import math

from . import hyper as keys
from . import layers, rope


def hyper(gguf):
    hp = keys.read(gguf, "gemma")
    return hp.with_(embedding_scale=math.sqrt(hp.n_embd))


def build(g, hp):
    table = rope.table(g, hp)
    x = layers.embed(g, hp)
    for i in range(hp.n_layer):
        h = layers.norm(g, x, f"blk.{i}.attn_norm", hp)
        x = g.add(x, layers.attention(g, h, i, hp, table, "halves"))
        h = layers.norm(g, x, f"blk.{i}.ffn_norm", hp)
        x = g.add(x, layers.glu(g, h, i, hp, "gelu"))
    layers.head(g, x, hp)

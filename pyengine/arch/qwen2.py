"""qwen2: Qwen 1.5, 2 and 2.5 and models of their layout (Qwen Team 2024, arXiv:2407.10671): llama with biases on q, k
and v. Rope turns pairs half a head apart. Exaone 3 has no biases, openPangu Embedded one on the output as well."""

from . import hyper as keys
from . import layers, rope


def hyper(gguf):
    return keys.read(gguf, gguf.arch)


def build(g, hp):
    table = rope.table(g, hp)
    x = layers.embed(g, hp)
    for i in range(hp.n_layer):
        h = layers.norm(g, x, f"blk.{i}.attn_norm", hp)
        x = g.add(x, layers.attention(g, h, i, hp, table, "halves"))
        h = layers.norm(g, x, f"blk.{i}.ffn_norm", hp)
        x = g.add(x, layers.glu(g, h, i, hp, "silu"))
    layers.head(g, x, hp)

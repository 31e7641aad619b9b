"""nomic-bert: nomic-embed-text 1 and 1.5 (Nussbaum et al. 2024, arXiv:2402.01613): bert with rope in the place of learned
positions and a gated feed-forward, without biases there."""

from . import hyper as keys
from . import layers, rope


def hyper(gguf):
    return keys.read(gguf, "nomic-bert", norm="layer", causal=False)


def build(g, hp):
    table = rope.table(g, hp)
    x = layers.norm(g, layers.one_sentence(g, layers.embed(g, hp), hp), "token_embd_norm", hp)
    for i in range(hp.n_layer):
        at = f"blk.{i}."
        x = layers.norm(g, g.add(x, layers.attention(g, x, i, hp, table, "halves")), at + "attn_output_norm", hp)
        x = layers.norm(g, g.add(x, layers.glu(g, x, i, hp, "silu")), at + "layer_output_norm", hp)
    layers.rows(g, x, hp)

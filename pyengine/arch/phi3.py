"""phi3: Phi 3, 3.5 and 4 (Abdin et al. 2024, arXiv:2404.14219): llama with q, k and v in one tensor and gate and up in
another. The long models turn by one of two sets of factors (longrope: Ding et al. 2024, arXiv:2402.13753); the file
names no kind of scaling, the tensors say it. Phi 3 mini and medium see a window in every layer; 0 says there is none.
llama.cpp leaves the window out, transformers does not."""

from . import hyper as keys
from . import layers, rope


def hyper(gguf):
    hp = keys.read(gguf, "phi3")
    window = gguf.get_int("phi3.attention.sliding_window", default=0, lo=0, hi=(1 << 31) - 1)
    return hp.with_(window=(window,) * hp.n_layer)


def build(g, hp):
    table = rope.table(g, hp)
    x = layers.embed(g, hp)
    for i in range(hp.n_layer):
        h = layers.norm(g, x, f"blk.{i}.attn_norm", hp)
        x = g.add(x, layers.attention(g, h, i, hp, table, "halves"))
        h = layers.norm(g, x, f"blk.{i}.ffn_norm", hp)
        x = g.add(x, layers.glu(g, h, i, hp, "silu", joined=True))
    layers.head(g, x, hp)

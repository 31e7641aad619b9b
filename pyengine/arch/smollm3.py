"""smollm3: SmolLM 3 (Hugging Face 2025): llama, but every fourth layer does not turn q and k (NoPE: Yang et al. 2025,
arXiv:2501.18795). Files do not say which layers."""

from . import hyper as keys
from . import layers, rope

STILL = 4       # layers 4, 8, 12, ... have no rope


def hyper(gguf):
    return keys.read(gguf, "smollm3")


def build(g, hp):
    table = rope.table(g, hp)
    x = layers.embed(g, hp)
    for i in range(hp.n_layer):
        h = layers.norm(g, x, f"blk.{i}.attn_norm", hp)
        x = g.add(x, layers.attention(g, h, i, hp, table if (i + 1) % STILL else None, "adjacent"))
        h = layers.norm(g, x, f"blk.{i}.ffn_norm", hp)
        x = g.add(x, layers.glu(g, h, i, hp, "silu"))
    layers.head(g, x, hp)

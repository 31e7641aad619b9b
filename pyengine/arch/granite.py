"""granite: the dense models of Granite 3 and 4 (IBM 2024): llama with four numbers: embeddings, attention scores and
what each block adds are multiplied by theirs, logits are divided by theirs. rope.scaling.finetuned = false is how
these files say that there is no rope at all."""

from . import hyper as keys
from . import layers, rope


def hyper(gguf):
    hp = keys.read(gguf, "granite")
    return hp.with_(
        embedding_scale=keys.optional(gguf, "granite.embedding_scale", 0.0) or 1.0,
        attention_scale=keys.optional(gguf, "granite.attention.scale", 0.0),
        residual_scale=keys.optional(gguf, "granite.residual_scale", 0.0) or 1.0,
        logit_scale=1 / keys.positive(gguf, "granite.logit_scale", 1.0),
        turns=gguf.get_bool("granite.rope.scaling.finetuned", default=True),
    )


def build(g, hp):
    table = rope.table(g, hp) if hp.turns else None
    x = layers.embed(g, hp)
    for i in range(hp.n_layer):
        h = layers.norm(g, x, f"blk.{i}.attn_norm", hp)
        x = layers.residual(g, x, layers.attention(g, h, i, hp, table, "adjacent"), hp)
        h = layers.norm(g, x, f"blk.{i}.ffn_norm", hp)
        x = layers.residual(g, x, layers.glu(g, h, i, hp, "silu"), hp)
    layers.head(g, x, hp)

"""granite: the dense models of Granite 3 and 4, and as granitemoe those with experts (IBM 2024): llama with four numbers:
embeddings, attention scores and what each block adds are multiplied by theirs, logits are divided by theirs.
rope.scaling.finetuned = false is how these files say that there is no rope at all."""

from . import hyper as keys
from . import layers, rope


def hyper(gguf):
    at = f"{gguf.arch}."
    hp = keys.read(gguf, gguf.arch, experts=gguf.arch == "granitemoe")
    if gguf.arch == "granitemoe":
        hp = keys.with_experts(gguf, hp).with_(n_ff_shared=gguf.get_int(at + "expert_shared_feed_forward_length", default=0, lo=0, hi=1 << 24))
    return hp.with_(
        embedding_scale=keys.optional(gguf, at + "embedding_scale", 0.0) or 1.0,
        attention_scale=keys.optional(gguf, at + "attention.scale", 0.0),
        residual_scale=keys.optional(gguf, at + "residual_scale", 0.0) or 1.0,
        logit_scale=1 / keys.positive(gguf, at + "logit_scale", 1.0),
        turns=gguf.get_bool(at + "rope.scaling.finetuned", default=True),
    )


def build(g, hp):
    table = rope.table(g, hp) if hp.turns else None
    x = layers.embed(g, hp)
    for i in range(hp.n_layer):
        h = layers.norm(g, x, f"blk.{i}.attn_norm", hp)
        x = layers.residual(g, x, layers.attention(g, h, i, hp, table, "adjacent"), hp)
        h = layers.norm(g, x, f"blk.{i}.ffn_norm", hp)
        y = layers.experts(g, h, i, hp) if hp.n_expert else layers.glu(g, h, i, hp, "silu")
        x = layers.residual(g, x, g.add(y, layers.glu(g, h, i, hp, "silu", shared=True)) if hp.n_ff_shared else y, hp)
    layers.head(g, x, hp)

"""gemma2: Gemma 2 (Gemma Team 2024, arXiv:2408.00118): every other layer sees a window of 4096, the first one does;
norms before and after each block, attention scores capped at 50 and logits at 30, embeddings scaled by sqrt(n_embd).
The "+1" of Gemma's norms is already in the file's weights."""

import math

from . import hyper as keys
from . import layers, rope


def hyper(gguf):
    hp = keys.read(gguf, "gemma2")
    return hp.with_(
        window=keys.windows(gguf, "gemma2", hp.n_layer, period=2, default=4096),
        rope_base_local=keys.positive(gguf, "gemma2.rope.freq_base_swa", hp.rope_base),
        attention_softcap=keys.optional(gguf, "gemma2.attn_logit_softcapping", 50.0),
        final_softcap=keys.optional(gguf, "gemma2.final_logit_softcapping", 30.0),
        embedding_scale=math.sqrt(hp.n_embd),
        # 27B (46 layers) scales by the width per head, the others by the head size.
        attention_scale=1 / math.sqrt(hp.n_embd // hp.n_head[0] if hp.n_layer == 46 else hp.dk),
    )


def build(g, hp):
    everywhere = rope.table(g, hp)
    local = everywhere if hp.rope_base_local == hp.rope_base else rope.table(g, hp, hp.rope_base_local)
    x = layers.embed(g, hp)
    for i in range(hp.n_layer):
        at = f"blk.{i}."
        h = layers.attention(g, layers.norm(g, x, at + "attn_norm", hp), i, hp, local if hp.window[i] else everywhere, "halves")
        x = g.add(x, layers.norm(g, h, at + "post_attention_norm", hp))
        h = layers.glu(g, layers.norm(g, x, at + "ffn_norm", hp), i, hp, "gelu")
        x = g.add(x, layers.norm(g, h, at + "post_ffw_norm", hp))
    layers.head(g, x, hp)

"""gemma3: Gemma 3 text models (Gemma Team 2025, arXiv:2503.19786): local layers with a
sliding window and rope base 10,000, every sixth layer global; norms before and after each
block, norms of q and k, embeddings scaled by sqrt(n_embd). The "+1" of Gemma's norms is
already in the file's weights."""

import math

from . import hyper as keys
from . import layers, rope


def hyper(gguf):
    hp = keys.read(gguf, "gemma3")
    return hp.with_(
        # Files leave out the pattern (five local layers, then a global one) and the local base.
        window=keys.windows(gguf, "gemma3", hp.n_layer, period=6),
        rope_base_local=keys.positive(gguf, "gemma3.rope.freq_base_swa", 10000.0),
        final_softcap=keys.optional(gguf, "gemma3.final_logit_softcapping", 0.0),
        embedding_scale=math.sqrt(hp.n_embd),
        # 27B (62 layers) scales by the width per head, the others by the head size.
        attention_scale=1 / math.sqrt(hp.n_embd / hp.n_head[0] if hp.n_layer == 62 else hp.dk),
    )


def build(g, hp):
    local = rope.table(g, hp, hp.rope_base_local, rope.Scaling())       # what the file says of scaling is the global layers'
    everywhere = rope.table(g, hp)
    x = layers.embed(g, hp)
    for i in range(hp.n_layer):
        at = f"blk.{i}."
        h = layers.attention(g, layers.norm(g, x, at + "attn_norm", hp), i, hp, local if hp.window[i] else everywhere, "halves", norms=True)
        x = g.add(x, layers.norm(g, h, at + "post_attention_norm", hp))
        h = layers.glu(g, layers.norm(g, x, at + "ffn_norm", hp), i, hp, "gelu")
        x = g.add(x, layers.norm(g, h, at + "post_ffw_norm", hp))
    layers.head(g, x, hp)

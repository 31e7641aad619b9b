"""gpt-oss: gpt-oss 20B and 120B (OpenAI 2025, arXiv:2508.10925): every other layer sees a window of 128, the first one does;
each head has a sink beside its keys; experts with biases, gated by a clamped swish, weighted by the softmax over those
that were selected."""

from . import hyper as keys
from . import layers, rope


def hyper(gguf):
    hp = keys.with_experts(gguf, keys.read(gguf, "gpt-oss", experts=True))
    return hp.with_(window=keys.windows(gguf, "gpt-oss", hp.n_layer, period=2),
                    rope_base_local=keys.positive(gguf, "gpt-oss.rope.freq_base_swa", hp.rope_base))


def build(g, hp):
    everywhere = rope.table(g, hp)
    local = everywhere if hp.rope_base_local == hp.rope_base else rope.table(g, hp, hp.rope_base_local)
    x = layers.embed(g, hp)
    for i in range(hp.n_layer):
        h = layers.norm(g, x, f"blk.{i}.attn_norm", hp)
        x = g.add(x, layers.attention(g, h, i, hp, local if hp.window[i] else everywhere, "halves", sinks=True))
        h = layers.norm(g, x, f"blk.{i}.post_attention_norm", hp)
        x = g.add(x, layers.experts(g, h, i, hp, "selected", "swiglu_oai", normalize=False))
    layers.head(g, x, hp)

"""llama: Llama 1 to 3, SmolLM 1 and 2, TinyLlama, Mistral 7B and what follows their layout.
Touvron et al. 2023 (arXiv:2302.13971); rope_freqs.weight as in Llama 3.1. GGUF stores q and k
rows permuted, so rope turns neighbouring pairs."""

import math

from ..errors import GGUFError
from . import layers

IGNORABLE = (".attn_rot_embd", ".rotary_emb.inv_freq")


def hyper(gguf):
    return layers.hyper(gguf, "llama")


def build(g, hp):
    factors = g.numbers("rope_freqs.weight", hp.n_rot // 2) if g.has("rope_freqs.weight") else None
    if factors is not None and not all(0 < f < math.inf for f in factors):
        raise GGUFError("tensor 'rope_freqs.weight' must hold finite numbers above 0", key="rope_freqs.weight")
    table = g.rope_table(*layers.rope_frequencies(hp.n_rot, hp.rope_base, hp.rope, factors))
    x = g.embed(g.weight("token_embd.weight", hp.n_embd, hp.n_vocab))
    for i in range(hp.n_layer):
        h = g.rms_norm(x, g.vector(f"blk.{i}.attn_norm.weight", hp.n_embd), hp.eps)
        q, k, v = layers.qkv(g, h, i, hp)
        q = g.rope(q, table, hp.n_head[i], "adjacent")
        k = g.rope(k, table, hp.n_kv[i], "adjacent")
        a = g.attention(q, k, v, n_head=hp.n_head[i], n_kv=hp.n_kv[i], scale=1 / math.sqrt(hp.dk), layer=i)
        x = g.add(x, layers.attention_output(g, a, i, hp))
        h = g.rms_norm(x, g.vector(f"blk.{i}.ffn_norm.weight", hp.n_embd), hp.eps)
        x = g.add(x, layers.glu(g, h, i, hp.n_embd, hp.n_ff[i], "silu"))
    x = g.rms_norm(g.wanted(x), g.vector("output_norm.weight", hp.n_embd), hp.eps)
    g.logits(layers.head(g, x, hp))
    g.check_all_used(IGNORABLE)

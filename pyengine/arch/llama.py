"""llama: Llama 1 to 3, SmolLM 1 and 2, TinyLlama, Mistral 7B and what follows their layout, InternLM 2, Xverse and the
dense Ernie 4.5 under names of their own; with experts in place of the feed-forward Mixtral (Jiang et al. 2024,
arXiv:2401.04088).
Touvron et al. 2023 (arXiv:2302.13971). GGUF stores q and k rows permuted, so rope turns neighbouring pairs;
Llama 3.1's frequency factors are the tensor rope_freqs.weight."""

from . import hyper as keys
from . import layers, rope

IGNORABLE = (".attn_rot_embd", ".rotary_emb.inv_freq")


def hyper(gguf):
    hp = keys.read(gguf, gguf.arch, experts=gguf.arch == "llama")
    return keys.with_experts(gguf, hp) if gguf.get_int(f"{gguf.arch}.expert_count", default=0, lo=0, hi=4096) else hp


def build(g, hp):
    table = rope.table(g, hp)
    x = layers.embed(g, hp)
    for i in range(hp.n_layer):
        h = layers.norm(g, x, f"blk.{i}.attn_norm", hp)
        x = g.add(x, layers.attention(g, h, i, hp, table, "adjacent"))
        h = layers.norm(g, x, f"blk.{i}.ffn_norm", hp)
        x = g.add(x, layers.experts(g, h, i, hp) if hp.n_expert else layers.glu(g, h, i, hp, "silu"))
    layers.head(g, x, hp, IGNORABLE)

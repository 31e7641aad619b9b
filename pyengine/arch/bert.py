"""bert: encoders for embeddings and rerankers (Devlin et al. 2018, arXiv:1810.04805), RoBERTa's kind among them: learned
positions, norms behind the blocks, attention in both directions. Every token is of the first type, as in one sentence.
Of a reranker the head is a classifier; the others have none. The activation is the exact gelu, as these models were
trained with; llama.cpp takes the one with tanh."""

from . import hyper as keys
from . import layers


def hyper(gguf):
    return keys.read(gguf, "bert", norm="layer", causal=False).with_(turns=False)


def build(g, hp):
    x = layers.one_sentence(g, layers.embed(g, hp), hp)
    x = g.add(x, g.embed_position(g.weight("position_embd.weight", hp.n_embd, hp.n_ctx_train)))
    x = layers.norm(g, x, "token_embd_norm", hp)
    for i in range(hp.n_layer):
        at = f"blk.{i}."
        x = layers.norm(g, g.add(x, layers.attention(g, x, i, hp, None, "")), at + "attn_output_norm", hp)
        x = layers.norm(g, g.add(x, layers.mlp(g, x, i, hp, "gelu_erf")), at + "layer_output_norm", hp)
    layers.rows(g, x, hp)

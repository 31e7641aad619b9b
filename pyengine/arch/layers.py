"""The blocks that models are built of: embedding, norms, attention, feed-forward, heads. For the files
of arch/ only; hyper.py reads the keys, rope.py makes the tables. Imports nothing.
"""

import math


def embed(g, hp):
    """The rows of the step's tokens."""
    return g.embed(g.weight("token_embd.weight", hp.n_embd, hp.n_vocab), scale=hp.embedding_scale)


def one_sentence(g, x, hp):
    """x plus what a token's type adds, where an encoder's file has types: all tokens are of the first, as in one sentence."""
    name = "token_types.weight"
    return g.add(x, g.embed_first(g.weight(name, hp.n_embd, g.rows(name)))) if g.has(name) else x


def norm(g, x, name, hp):
    weight = g.vector(f"{name}.weight", hp.n_embd)
    if hp.norm == "rms":
        return g.rms_norm(x, weight, hp.eps)
    return g.layer_norm(x, weight, g.optional_vector(f"{name}.bias", hp.n_embd), hp.eps)


def residual(g, x, block, hp):
    """x plus what a block makes of it."""
    return g.add(x, block if hp.residual_scale == 1 else g.scale(block, hp.residual_scale))


def qkv(g, x, layer, hp):
    """Queries, keys and values of one layer, by three matrices or by one whose rows are theirs in this order; with
    biases where the file has them."""
    at = f"blk.{layer}.attn_"
    sizes = {"q": hp.n_head[layer] * hp.dk, "k": hp.n_kv[layer] * hp.dk, "v": hp.n_kv[layer] * hp.dv}
    total, first, out = sum(sizes.values()), 0, []
    for name, rows in sizes.items():
        bias = g.optional_vector(f"{at}{name}.bias", rows)
        if g.has(at + "qkv.weight"):
            weight = g.part(g.weight(at + "qkv.weight", hp.n_embd, total), first, rows)
            if g.has(at + "qkv.bias"):
                bias = g.part(g.vector(at + "qkv.bias", total), first, rows)
        else:
            weight = g.weight(f"{at}{name}.weight", hp.n_embd, rows)
        out.append(g.linear(x, weight, bias))
        first += rows
    return out


def attention(g, x, layer, hp, table, kind, *, norms=False, sinks=False):
    """Self-attention of one layer with its output projection. table: None where the layer does not turn; kind: how
    pairs lie, as Graph.rope says; norms: of each head of q and k, before they turn; sinks: a score of each head's own beside
    those of the keys."""
    at, n_head, n_kv = f"blk.{layer}.attn_", hp.n_head[layer], hp.n_kv[layer]
    q, k, v = qkv(g, x, layer, hp)
    if hp.temperature:      # before the turn, which a factor commutes with
        q = g.position_scale(q, hp.temperature_length, hp.temperature)
    if norms:
        q = g.head_norm(q, g.vector(at + "q_norm.weight", hp.dk), n_head, hp.eps)
        k = g.head_norm(k, g.vector(at + "k_norm.weight", hp.dk), n_kv, hp.eps)
    if table is not None:
        q, k = g.rope(q, table, n_head, kind), g.rope(k, table, n_kv, kind)
    a = g.attention(q, k, v, n_head=n_head, n_kv=n_kv, scale=hp.attention_scale or 1 / math.sqrt(hp.dk), window=hp.window[layer],
                    softcap=hp.attention_softcap, sinks=g.vector(at + "sinks.weight", n_head) if sinks else None, layer=layer, both=hp.both)
    return g.linear(a, g.weight(at + "output.weight", n_head * hp.dv, hp.n_embd), g.optional_vector(at + "output.bias", hp.n_embd))


def glu(g, x, layer, hp, act, *, joined=False, shared=False):
    """down(act(gate(x)) * up(x)), the feed-forward of Shazeer 2020 (arXiv:2002.05202). joined: the gate is the first
    half of ffn_up's rows. shared: the one beside a layer's experts."""
    at, end, n_ff = f"blk.{layer}.ffn_", "_shexp" if shared else "", hp.n_ff_shared if shared else hp.n_ff[layer]

    def product(x, name, columns, rows):
        return g.linear(x, g.weight(f"{at}{name}{end}.weight", columns, rows), g.optional_vector(f"{at}{name}{end}.bias", rows))

    if joined:
        both, bias = g.weight(at + "up.weight", hp.n_embd, 2 * n_ff), g.optional_vector(at + "up.bias", 2 * n_ff)
        gate, up = (g.linear(x, g.part(both, first, n_ff), bias and g.part(bias, first, n_ff)) for first in (0, n_ff))
    else:
        gate, up = (product(x, name, hp.n_embd, n_ff) for name in ("gate", "up"))
    return product(g.mul(g.act(gate, act), up), "down", n_ff, hp.n_embd)


def experts(g, x, layer, hp, kind="softmax", act="silu", *, normalize=True):
    """A feed-forward for each of a token's experts, chosen and weighted by a router (Shazeer et al. 2017, arXiv:1701.06538);
    kind as Graph.route says."""
    at, n = f"blk.{layer}.ffn_", hp.n_expert

    def product(x, name, columns, rows):
        bias = f"{at}{name}_exps.bias"
        return g.expert_linear(x, route, g.weight(f"{at}{name}_exps.weight", columns, rows, matrices=n), g.vector(bias, rows, matrices=n) if g.has(bias) else None)

    logits = g.linear(x, g.weight(at + "gate_inp.weight", hp.n_embd, n), g.optional_vector(at + "gate_inp.bias", n))
    route = g.route(logits, hp.n_expert_used, kind, bias=g.optional_vector(f"blk.{layer}.exp_probs_b.bias", n), groups=hp.expert_groups,
                    groups_used=hp.expert_groups_used, normalize=normalize, scale=hp.expert_scale)
    gate, up = (product(x, name, hp.n_embd, hp.n_ff_expert) for name in ("gate", "up"))
    h = g.swiglu_oai(gate, up) if act == "swiglu_oai" else g.mul(g.act(gate, act), up)
    return g.mix(product(h, "down", hp.n_ff_expert, hp.n_embd), route)


def mlp(g, x, layer, hp, act):
    """down(act(up(x))), the feed-forward without a gate."""
    at, n_ff = f"blk.{layer}.ffn_", hp.n_ff[layer]
    up = g.linear(x, g.weight(at + "up.weight", hp.n_embd, n_ff), g.optional_vector(at + "up.bias", n_ff))
    return g.linear(g.act(up, act), g.weight(at + "down.weight", n_ff, hp.n_embd), g.optional_vector(at + "down.bias", hp.n_embd))


def rows(g, x, hp):
    """The end of an encoder: its rows, and of a reranker the classifier; the others have no head."""
    x = g.embeddings(g.wanted(x))
    if g.has("cls.output.weight") or g.has("cls.weight"):
        classifier(g, x, hp)
    g.check_all_used()


def classifier(g, x, hp):
    """The head of a reranker: a dense layer with tanh, where the file has one, and a row for each label."""
    if g.has("cls.weight"):
        x = g.linear(x, g.weight("cls.weight", hp.n_embd, hp.n_embd), g.optional_vector("cls.bias", hp.n_embd))
        x = g.softcap(x, 1.0)
    g.labels = g.rows("cls.output.weight")
    g.logits(g.linear(x, g.weight("cls.output.weight", hp.n_embd, g.labels), g.optional_vector("cls.output.bias", g.labels)))


def head(g, x, hp, ignorable=(), *, last_norm="output_norm"):
    """The last norm and the logits, by output.weight, or by the embedding where the file ties them; of a reranker its
    classifier's. The graph is complete: tensors that it does not use are an error, unless their names end in one of `ignorable`."""
    x = g.embeddings(norm(g, g.wanted(x), last_norm, hp))
    if g.has("cls.output.weight"):
        classifier(g, x, hp)
        return g.check_all_used((*ignorable, "output.weight", "output.bias"))
    name = "output.weight" if g.has("output.weight") else "token_embd.weight"
    x = g.linear(x, g.weight(name, hp.n_embd, hp.n_vocab), g.optional_vector("output.bias", hp.n_vocab))
    if hp.logit_scale != 1:
        x = g.scale(x, hp.logit_scale)
    g.logits(g.softcap(x, hp.final_softcap) if hp.final_softcap else x)
    g.check_all_used(ignorable)

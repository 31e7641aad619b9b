"""gemma3: Gemma 3 text models (Gemma Team 2025, arXiv:2503.19786): local layers with a
sliding window and rope base 10,000, every sixth layer global; norms before and after each
block, norms of q and k, embeddings scaled by sqrt(n_embd). The "+1" of Gemma's norms is
already in the file's weights."""

import dataclasses
import math

from ..errors import GGUFError
from . import layers

IGNORABLE = ()


@dataclasses.dataclass(frozen=True)
class Hyper(layers.Hyper):
    window: int
    local: tuple          # per layer: True where the layer sees only the window
    rope_base_local: float
    final_softcap: float


def hyper(gguf):
    hp = layers.hyper(gguf, "gemma3")
    key = "gemma3.final_logit_softcapping"
    softcap = gguf.get_float(key, default=0.0)
    if not 0.0 <= softcap < math.inf:
        raise GGUFError(f"{gguf.path}: key '{key}' is {softcap}, expected a finite number of at least 0", key=key)
    # Files leave out the pattern (five local layers, then a global one) and the local base.
    period = gguf.get_int("gemma3.attention.sliding_window_pattern", default=6, lo=1, hi=1024)
    return Hyper(
        **{f.name: getattr(hp, f.name) for f in dataclasses.fields(hp)},
        window=gguf.get_int("gemma3.attention.sliding_window", lo=1, hi=(1 << 31) - 1),
        local=tuple((i + 1) % period != 0 for i in range(hp.n_layer)),
        rope_base_local=layers.positive(gguf, "gemma3.rope.freq_base_swa", 10000.0),
        final_softcap=softcap,
    )


def build(g, hp):
    local = g.rope_table(*layers.rope_frequencies(hp.n_rot, hp.rope_base_local))
    glob = g.rope_table(*layers.rope_frequencies(hp.n_rot, hp.rope_base, hp.rope))
    # 27B (62 layers) scales by the width per head, the others by the head size.
    scale = 1 / math.sqrt(hp.n_embd / hp.n_head[0] if hp.n_layer == 62 else hp.dk)
    x = g.embed(g.weight("token_embd.weight", hp.n_embd, hp.n_vocab), scale=math.sqrt(hp.n_embd))
    for i in range(hp.n_layer):
        at = f"blk.{i}."

        def norm(x, name):
            return g.rms_norm(x, g.vector(f"{at}{name}.weight", hp.n_embd), hp.eps)

        table = local if hp.local[i] else glob
        q, k, v = layers.qkv(g, norm(x, "attn_norm"), i, hp)
        q = g.head_norm(q, g.vector(at + "attn_q_norm.weight", hp.dk), hp.n_head[i], hp.eps)
        k = g.head_norm(k, g.vector(at + "attn_k_norm.weight", hp.dk), hp.n_kv[i], hp.eps)
        q = g.rope(q, table, hp.n_head[i], "halves")
        k = g.rope(k, table, hp.n_kv[i], "halves")
        a = g.attention(q, k, v, n_head=hp.n_head[i], n_kv=hp.n_kv[i], scale=scale,
                        window=hp.window if hp.local[i] else 0, layer=i)
        x = g.add(x, norm(layers.attention_output(g, a, i, hp), "post_attention_norm"))
        h = layers.glu(g, norm(x, "ffn_norm"), i, hp.n_embd, hp.n_ff[i], "gelu")
        x = g.add(x, norm(h, "post_ffw_norm"))
    x = g.rms_norm(g.wanted(x), g.vector("output_norm.weight", hp.n_embd), hp.eps)
    logits = layers.head(g, x, hp)
    g.logits(g.softcap(logits, hp.final_softcap) if hp.final_softcap else logits)
    g.check_all_used(IGNORABLE)

"""Hyper-parameters: what every family reads from a file's keys, checked, and the words for what
families add. For the files of arch/ only. Imports errors and rope.py.

Whatever a family does not have keeps its neutral value (no window, a factor of 1): the blocks of layers.py need not ask which it is.
"""

import dataclasses
import math

from ..errors import GGUFError, UnsupportedError
from . import rope


@dataclasses.dataclass(frozen=True)
class Hyper:
    """Values per layer are tuples of n_layer numbers."""

    arch: str
    n_ctx_train: int
    n_embd: int
    n_layer: int
    n_head: tuple
    n_kv: tuple
    n_ff: tuple
    dk: int             # head size of q and k
    dv: int             # head size of v
    n_rot: int
    eps: float
    n_vocab: int        # rows of the embedding, hence of the head
    n_tokens: int       # entries of the vocabulary, at most n_vocab; 0 when the file has none
    rope_base: float
    rope: rope.Scaling
    window: tuple                       # per layer: positions it sees, its own included; 0: all
    norm: str = "rms"                   # or "layer"
    rope_base_local: float = 0.0        # of layers with a window; 0: as the others
    attention_scale: float = 0.0        # of q times k; 0: 1/sqrt(dk)
    attention_softcap: float = 0.0      # 0: none
    final_softcap: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0         # of what a block adds
    logit_scale: float = 1.0
    temperature: float = 0.0            # q grows by 1 + temperature * ln(1 + floor(position / temperature_length))
    temperature_length: int = 0
    turns: bool = True                  # whether there is rope at all
    n_expert: int = 0                   # 0: the feed-forward is one
    n_expert_used: int = 0
    n_ff_expert: int = 0
    expert_scale: float = 1.0           # of the weights of a token's experts
    both: bool = False                  # attention sees what comes after a token, too
    taps: int = 0                       # positions that a short convolution sees, its own included
    expert_kind: str = "softmax"        # how they are chosen and weighted: Graph.route
    expert_normalize: bool = True
    expert_groups: int = 1
    expert_groups_used: int = 1
    n_ff_shared: int = 0                # of the feed-forward beside a layer's experts, which all tokens take; 0: there is none
    n_dense: int = 0                    # first layers without experts
    latent: int = 0                     # what a token keeps for all heads, without what turns; 0: keys and values
    q_latent: int = 0                   # between the two matrices that make q; 0: there is one

    def with_(self, **values):
        return dataclasses.replace(self, **values)


def read(gguf, arch, norm="rms", experts=False, causal=True, least_kv=1) -> Hyper:
    """Reads and checks the keys all families share. experts: the family may have them; causal: what a file means that does not
    say; least_kv 0: a layer without KV heads does not attend. GGUFError names key, value and range."""
    at = f"{arch}."
    n_layer = gguf.get_int(at + "block_count", lo=1, hi=1024)
    n_embd = gguf.get_int(at + "embedding_length", lo=1, hi=1 << 20)
    n_ctx_train = gguf.get_int(at + "context_length", lo=1, hi=(1 << 32) - 1)
    n_head = per_layer(gguf, at + "attention.head_count", n_layer, lo=1, hi=65536)
    n_kv = per_layer(gguf, at + "attention.head_count_kv", n_layer, lo=least_kv, hi=65536, default=n_head)
    n_ff = per_layer(gguf, at + "feed_forward_length", n_layer, lo=1, hi=1 << 24)
    for i, (h, kv) in enumerate(zip(n_head, n_kv)):
        if kv > h or kv and h % kv:
            raise GGUFError(f"{gguf.path}: key '{at}attention.head_count_kv' is {kv} in layer {i}, "
                            f"expected a divisor of head_count, which is {h}", key=at + "attention.head_count_kv")
    if at + "attention.key_length" not in gguf and n_embd % n_head[0]:
        raise GGUFError(f"{gguf.path}: key '{at}attention.head_count' is {n_head[0]}, expected a divisor of embedding_length, "
                        f"which is {n_embd}, since there is no attention.key_length", key=at + "attention.head_count")
    dk = gguf.get_int(at + "attention.key_length", default=max(1, n_embd // n_head[0]), lo=1, hi=1024)
    dv = gguf.get_int(at + "attention.value_length", default=dk, lo=1, hi=1024)
    n_rot = gguf.get_int(at + "rope.dimension_count", default=dk, lo=1, hi=dk)
    if n_rot % 2:
        raise GGUFError(f"{gguf.path}: key '{at}rope.dimension_count' (default: the head size) is {n_rot}, expected an even number",
                        key=at + "rope.dimension_count")
    eps = gguf.get_float(at + ("attention.layer_norm_rms_epsilon" if norm == "rms" else "attention.layer_norm_epsilon"), lo=0.0, hi=1.0)
    if not experts and gguf.get_int(at + "expert_count", default=0, lo=0, hi=1 << 16):
        raise UnsupportedError(f"{gguf.path}: {arch} with experts (key '{at}expert_count') is not supported yet")
    embd = gguf.tensors.get("token_embd.weight")
    if embd is None or len(embd.shape) < 2:
        raise GGUFError(f"{gguf.path}: tensor 'token_embd.weight' is missing or not a matrix", key="token_embd.weight")
    n_vocab, n_tokens = embd.shape[1], len(gguf.get_strings("tokenizer.ggml.tokens", default=()))
    if n_tokens > n_vocab:
        raise GGUFError(f"{gguf.path}: tensor 'token_embd.weight' has {n_vocab} rows, the vocabulary has {n_tokens} entries; "
                        "expected at least one row per entry", key="token_embd.weight", offset=embd.offset)
    return Hyper(arch, n_ctx_train, n_embd, n_layer, n_head, n_kv, n_ff, dk, dv, n_rot, eps, n_vocab, n_tokens,
                 positive(gguf, at + "rope.freq_base", 10000.0), rope.read(gguf, at, n_ctx_train), (0,) * n_layer, norm,
                 both=not gguf.get_bool(at + "attention.causal", default=causal))


def per_layer(gguf, key, n_layer, *, lo, hi, default=None):
    """A number, or an array of one per layer."""
    if default is not None and key not in gguf:
        return tuple(default)
    values = tuple(gguf.get_per_layer(key, n_layer))
    for i, v in enumerate(values):
        if not lo <= v <= hi:
            raise GGUFError(f"{gguf.path}: key '{key}' is {v} in layer {i}, expected {lo}..{hi}", key=key)
    return values


def positive(gguf, key, default):
    """A float key that must be finite and above 0."""
    value = gguf.get_float(key, default=default)
    if not 0.0 < value < math.inf:
        raise GGUFError(f"{gguf.path}: key '{key}' is {value}, expected a finite number above 0", key=key)
    return value


def optional(gguf, key, default, most=math.inf):
    """A float key that must be finite and at least 0; 0 means what the family does without it."""
    value = gguf.get_float(key, default=default)
    if not 0.0 <= value < math.inf or value > most:
        what = "a finite number of at least 0" if most == math.inf else f"a number from 0 to {most:g}"
        raise GGUFError(f"{gguf.path}: key '{key}' is {value}, expected {what}", key=key)
    return value


def with_experts(gguf, hp, shared_width=False):
    """hp with what the file says of experts. shared_width: where it does not say how wide one is, those of a token are n_ff together."""
    at = f"{hp.arch}."
    n = gguf.get_int(at + "expert_count", lo=1, hi=4096)
    used = gguf.get_int(at + "expert_used_count", lo=1, hi=n)
    return hp.with_(n_expert=n, n_expert_used=used,
                    n_ff_expert=gguf.get_int(at + "expert_feed_forward_length", default=max(1, hp.n_ff[0] // (used if shared_width else 1)),
                                             lo=1, hi=1 << 24))


def windows(gguf, arch, n_layer, *, period, default=None):
    """The window of each layer: in every group of `period` layers the last one sees everything. The file may have
    another period, or a flag per layer, in attention.sliding_window_pattern."""
    window = gguf.get_int(f"{arch}.attention.sliding_window", lo=1, hi=(1 << 31) - 1, **({} if default is None else {"default": default}))
    key = f"{arch}.attention.sliding_window_pattern"
    if gguf.entry(key) is not None and gguf.describe(key).startswith("array"):
        local = gguf.get_per_layer(key, n_layer, lo=0, hi=1)
    else:
        period = gguf.get_int(key, default=period, lo=1, hi=1024)
        local = [(i + 1) % period != 0 for i in range(n_layer)]
    return tuple(window if here else 0 for here in local)

"""Words that families share: common hyper-parameters, rope frequencies, attention and
feed-forward blocks. For the files of arch/ only. Imports errors only.

Frequencies are computed without libm, so that every machine has the same ones: in
decimal to 40 digits, rounded once to double (docs/arithmetic.md, Rope).
"""

import dataclasses
from decimal import Context, Decimal

from ..errors import GGUFError, UnsupportedError

DECIMAL = Context(prec=40)


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    kind: str = "none"          # none, linear, yarn
    factor: float = 1.0
    original_context: int = 0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    extrapolation: float = 1.0


@dataclasses.dataclass(frozen=True)
class Hyper:
    """What every decoder has. Per-layer values are tuples of n_layer numbers."""

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
    rope: RopeScaling


def hyper(gguf, arch) -> Hyper:
    """Reads and checks the keys all decoders share. GGUFError names key, value and range."""
    at = f"{arch}."
    n_layer = gguf.get_int(at + "block_count", lo=1, hi=1024)
    n_embd = gguf.get_int(at + "embedding_length", lo=1, hi=1 << 20)
    n_ctx_train = gguf.get_int(at + "context_length", lo=1, hi=(1 << 32) - 1)
    n_head = per_layer(gguf, at + "attention.head_count", n_layer, lo=1, hi=65536)
    n_kv = per_layer(gguf, at + "attention.head_count_kv", n_layer, lo=1, hi=65536, default=n_head)
    n_ff = per_layer(gguf, at + "feed_forward_length", n_layer, lo=1, hi=1 << 24)
    for i, (h, kv) in enumerate(zip(n_head, n_kv)):
        if kv > h or h % kv:
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
    eps = gguf.get_float(at + "attention.layer_norm_rms_epsilon", lo=0.0, hi=1.0)
    if gguf.get_int(at + "expert_count", default=0, lo=0, hi=1 << 16):
        raise UnsupportedError(f"{gguf.path}: {arch} with experts (key '{at}expert_count') is not supported yet")
    embd = gguf.tensors.get("token_embd.weight")
    if embd is None or len(embd.shape) < 2:
        raise GGUFError(f"{gguf.path}: tensor 'token_embd.weight' is missing or not a matrix", key="token_embd.weight")
    n_vocab, n_tokens = embd.shape[1], len(gguf.get_strings("tokenizer.ggml.tokens", default=()))
    if n_tokens > n_vocab:
        raise GGUFError(f"{gguf.path}: tensor 'token_embd.weight' has {n_vocab} rows, the vocabulary has {n_tokens} entries; "
                        "expected at least one row per entry", key="token_embd.weight", offset=embd.offset)
    return Hyper(arch, n_ctx_train, n_embd, n_layer, n_head, n_kv, n_ff, dk, dv, n_rot, eps, n_vocab, n_tokens,
                 positive(gguf, at + "rope.freq_base", 10000.0), rope_scaling(gguf, at))


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
    if not 0.0 < value < float("inf"):
        raise GGUFError(f"{gguf.path}: key '{key}' is {value}, expected a finite number above 0", key=key)
    return value


# ---- rope ---------------------------------------------------------------------------

SCALINGS = ("none", "linear", "yarn")


def rope_scaling(gguf, at) -> RopeScaling:
    """rope.scaling.* of the file; the old key rope.scale_linear is a linear factor."""
    kind = gguf.get_str(at + "rope.scaling.type", default="linear")
    if kind not in SCALINGS:
        raise UnsupportedError(f"{gguf.path}: key '{at}rope.scaling.type' is {kind[:80]!r}, supported: {', '.join(SCALINGS)}")
    factor = gguf.get_float(at + "rope.scaling.factor", default=0.0)
    if not 0.0 <= factor < float("inf"):
        raise GGUFError(f"{gguf.path}: key '{at}rope.scaling.factor' is {factor}, expected a finite number above 0",
                        key=at + "rope.scaling.factor")
    factor = factor or positive(gguf, at + "rope.scale_linear", 1.0)      # files write 0 for "not set"
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return RopeScaling()
    if kind == "linear":
        return RopeScaling("linear", factor)
    n_ctx = gguf.get_int(at + "context_length", lo=1, hi=(1 << 32) - 1)
    return RopeScaling(
        "yarn", factor,
        gguf.get_int(at + "rope.scaling.original_context_length", default=n_ctx, lo=1, hi=(1 << 32) - 1),
        positive(gguf, at + "rope.scaling.attn_factor", 1.0),
        positive(gguf, at + "rope.scaling.yarn_beta_fast", 32.0),
        positive(gguf, at + "rope.scaling.yarn_beta_slow", 1.0),
        gguf.get_float(at + "rope.scaling.yarn_ext_factor", default=1.0, lo=0.0, hi=1.0),
    )


def rope_frequencies(n_rot, base, scaling=RopeScaling(), factors=None):
    """Radians per position of each of the n_rot/2 pairs, as doubles, and the magnitude.

    base^(-2i/n_rot), divided by the file's factors (Llama 3); linear: divided by the scaling
    factor; yarn: interpolated by parts, magnitude attn_factor * (1 + 0.1 ln factor)
    (Peng et al. 2023, arXiv:2309.00071, sections 3.2 and 3.4)."""
    d = DECIMAL
    ln_base, n = d.ln(Decimal(base)), Decimal(n_rot)
    inverse = d.divide(Decimal(1), Decimal(scaling.factor))
    magnitude = Decimal(1)
    if scaling.kind == "yarn":
        two_pi = Decimal("6.283185307179586476925286766559005768394")

        def pair(rotations):    # the dimension that turns `rotations` times within the original context
            x = d.divide(Decimal(scaling.original_context), d.multiply(Decimal(rotations), two_pi))
            return d.divide(d.multiply(n, d.ln(x)), 2 * ln_base)

        low = max(Decimal(0), pair(scaling.beta_fast).to_integral_value("ROUND_FLOOR"))
        high = min(n - 1, pair(scaling.beta_slow).to_integral_value("ROUND_CEILING"))
        width = max(Decimal("0.001"), high - low)
        if scaling.extrapolation:
            magnitude = 1 + d.multiply(Decimal("0.1"), d.ln(Decimal(scaling.factor)))
        magnitude = d.multiply(magnitude, Decimal(scaling.attention_factor))
    out = []
    for i in range(n_rot // 2):
        f = d.exp(d.multiply(d.divide(Decimal(-2 * i), n), ln_base))
        if factors is not None:
            f = d.divide(f, Decimal(factors[i]))
        if scaling.kind == "linear":
            f = d.multiply(f, inverse)
        elif scaling.kind == "yarn":
            ramp = 1 - min(Decimal(1), max(Decimal(0), d.divide(Decimal(i) - low, width)))
            mix = d.multiply(ramp, Decimal(scaling.extrapolation))
            f = d.add(d.multiply(d.multiply(f, inverse), 1 - mix), d.multiply(f, mix))
        out.append(float(f))
    return tuple(out), float(magnitude)


# ---- blocks --------------------------------------------------------------------------


def glu(g, x, layer, n_embd, n_ff, act):
    """down(act(gate(x)) * up(x)), the feed-forward of Shazeer 2020 (arXiv:2002.05202)."""
    at = f"blk.{layer}."
    gate = g.linear(x, g.weight(at + "ffn_gate.weight", n_embd, n_ff), g.optional_vector(at + "ffn_gate.bias", n_ff))
    up = g.linear(x, g.weight(at + "ffn_up.weight", n_embd, n_ff), g.optional_vector(at + "ffn_up.bias", n_ff))
    h = g.mul(g.act(gate, act), up)
    return g.linear(h, g.weight(at + "ffn_down.weight", n_ff, n_embd), g.optional_vector(at + "ffn_down.bias", n_embd))


def qkv(g, x, layer, hp):
    """Queries, keys and values of one layer, with biases where the file has them."""

    def part(name, rows):
        at = f"blk.{layer}.attn_{name}"
        return g.linear(x, g.weight(at + ".weight", hp.n_embd, rows), g.optional_vector(at + ".bias", rows))

    return part("q", hp.n_head[layer] * hp.dk), part("k", hp.n_kv[layer] * hp.dk), part("v", hp.n_kv[layer] * hp.dv)


def attention_output(g, x, layer, hp):
    at = f"blk.{layer}.attn_output"
    return g.linear(x, g.weight(at + ".weight", hp.n_head[layer] * hp.dv, hp.n_embd), g.optional_vector(at + ".bias", hp.n_embd))


def head(g, x, hp):
    """Logits by output.weight, or by the embedding where the file ties them."""
    name = "output.weight" if g.has("output.weight") else "token_embd.weight"
    return g.linear(x, g.weight(name, hp.n_embd, hp.n_vocab), g.optional_vector("output.bias", hp.n_vocab))

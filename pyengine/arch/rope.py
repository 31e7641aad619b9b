"""Rotary position embedding: its keys, its frequencies, its factors. For the files of arch/ only.
Imports errors only.

Frequencies are computed without libm, so that every machine has the same ones: in decimal to 40
digits, rounded once to double (docs/arithmetic.md, Rope).
"""

import dataclasses
import math
from decimal import Context, Decimal, localcontext

from ..errors import GGUFError, UnsupportedError

DECIMAL = Context(prec=40)
TWO_PI = Decimal("6.283185307179586476925286766559005768394")
KINDS = ("none", "linear", "yarn", "longrope")


@dataclasses.dataclass(frozen=True)
class Scaling:
    """rope.scaling.* of a file. longrope's and Llama 3's factors are tensors: factors()."""

    kind: str = "none"
    factor: float = 1.0
    original_context: int = 0
    attention_factor: float = 1.0       # of the magnitude, whatever the kind
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    extrapolation: float = 1.0
    log_multiplier: float = 0.0         # yarn, mscale_all_dim: what the magnitude is divided by
    magnitude: float = 0.0              # yarn: in place of the one that follows from the factor; 0: none given


def read(gguf, at, n_ctx_train) -> Scaling:
    """The old key rope.scale_linear is a linear factor; files write 0 for "not set", and -1 for yarn's extrapolation."""
    kind = gguf.get_str(at + "rope.scaling.type", default="linear")
    if kind not in KINDS:
        raise UnsupportedError(f"{gguf.path}: key '{at}rope.scaling.type' is {kind[:80]!r}, supported: {', '.join(KINDS)}")

    def number(name, default, lo=0.0, hi=math.inf):
        key = f"{at}rope.{name}"
        value = gguf.get_float(key, default=default)
        if not lo <= value < math.inf or not value <= hi:
            what = "a finite number above 0" if lo == 0 else f"{lo}..{hi}"
            raise GGUFError(f"{gguf.path}: key '{key}' is {value}, expected {what}", key=key)
        return value

    def positive(name, default):
        value = number(name, default)
        if not value:
            raise GGUFError(f"{gguf.path}: key '{at}rope.{name}' is {value}, expected a finite number above 0", key=f"{at}rope.{name}")
        return value

    factor = number("scaling.factor", 0.0) or positive("scale_linear", 1.0)
    original = gguf.get_int(at + "rope.scaling.original_context_length", default=n_ctx_train, lo=1, hi=(1 << 32) - 1)
    common = Scaling("none", 1.0, original, positive("scaling.attn_factor", 1.0))
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return common
    if kind != "yarn":
        return dataclasses.replace(common, kind=kind, factor=factor)
    extrapolation = number("scaling.yarn_ext_factor", 1.0, lo=-1.0, hi=1.0)
    return dataclasses.replace(
        common, kind="yarn", factor=factor,
        beta_fast=positive("scaling.yarn_beta_fast", 32.0),
        beta_slow=positive("scaling.yarn_beta_slow", 1.0),
        extrapolation=extrapolation if extrapolation >= 0 else 1.0,
        log_multiplier=number("scaling.yarn_log_multiplier", 0.0),
        magnitude=number("scaling.yarn_attn_factor", 0.0),
    )


def factors(g, hp):
    """What the file divides each pair's frequency by, or None: rope_freqs.weight (Llama 3), or, of longrope's two sets,
    the one for contexts up to the original one or the one for longer ones. Which of these, n_ctx says, not the length a
    text has reached: keys in the cache were turned by the same ones."""
    if g.has("rope_freqs.weight"):
        return _numbers(g, "rope_freqs.weight", hp)
    if hp.rope.kind == "longrope" or g.has("rope_factors_long.weight") or g.has("rope_factors_short.weight"):
        values = {name: _numbers(g, name, hp) for name in ("rope_factors_short.weight", "rope_factors_long.weight")}
        name = g.choices["rope_factors"] = list(values)[g.n_ctx > hp.rope.original_context]
        return values[name]
    return None


def _numbers(g, name, hp):
    values = g.numbers(name, hp.n_rot // 2)
    if not all(0 < f < math.inf for f in values):
        raise GGUFError(f"tensor '{name}' must hold finite numbers above 0", key=name)
    return values


def table(g, hp, base=None, scaling=None):
    """The graph's cosines and sines for the file's scaling and factors."""
    base, scaling = base or hp.rope_base, hp.rope if scaling is None else scaling
    if scaling.kind == "yarn" and base == 1:
        key = f"{hp.arch}.rope.freq_base"
        raise GGUFError(f"{g.gguf.path}: key '{key}' is {base}, expected another: yarn tells pairs apart by how fast they turn", key=key)
    return g.rope_table(*frequencies(hp.n_rot, base, scaling, factors(g, hp)))


def frequencies(n_rot, base, scaling=Scaling(), factors=None):
    """Radians per position of each of the n_rot/2 pairs, as doubles, and the magnitude.

    base^(-2i/n_rot), divided by the file's factors; linear and longrope: divided by the scaling factor; yarn:
    interpolated by parts, magnitude 1 + 0.1 ln factor (Peng et al. 2023, arXiv:2309.00071, sections 3.2 and 3.4)."""
    with localcontext(DECIMAL):        # not the caller's, who may have set another precision
        ln_base, inverse = Decimal(base).ln(), 1 / Decimal(scaling.factor)
        if scaling.kind == "yarn":
            low, high = _ramp(n_rot, ln_base, scaling)
        out = []
        for i in range(n_rot // 2):
            f = (Decimal(-2 * i) / n_rot * ln_base).exp()
            if factors is not None:
                f /= Decimal(factors[i])
            if scaling.kind in ("linear", "longrope"):
                f *= inverse
            elif scaling.kind == "yarn":
                ramp = 1 - min(Decimal(1), max(Decimal(0), (i - low) / max(Decimal("0.001"), high - low)))
                mix = ramp * Decimal(scaling.extrapolation)
                f = f * inverse * (1 - mix) + f * mix
            out.append(float(f))
        return tuple(out), float(_magnitude(scaling) * Decimal(scaling.attention_factor))


def _ramp(n_rot, ln_base, scaling):
    """The pairs between which yarn goes from kept to interpolated: those that turn beta_fast and beta_slow times
    within the original context."""

    def pair(rotations):
        return n_rot * (scaling.original_context / (Decimal(rotations) * TWO_PI)).ln() / (2 * ln_base)

    low = max(Decimal(0), pair(scaling.beta_fast).to_integral_value("ROUND_FLOOR"))
    return low, min(n_rot - Decimal(1), pair(scaling.beta_slow).to_integral_value("ROUND_CEILING"))


def _magnitude(scaling):
    if scaling.kind != "yarn" or not scaling.extrapolation:
        return Decimal(1)
    if scaling.magnitude:
        return Decimal(scaling.magnitude)

    return growth(scaling.factor, 1) / growth(scaling.factor, scaling.log_multiplier)


def growth(factor, multiplier):
    """How much louder yarn makes q and k to keep their scores as far apart over a context longer by `factor`: 1 + 0.1 multiplier ln factor."""
    with localcontext(DECIMAL):
        return 1 + Decimal("0.1") * Decimal(multiplier) * Decimal(factor).ln() if factor > 1 else Decimal(1)

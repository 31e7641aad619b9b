"""Exact float32 arithmetic by integers, slow and independent of libm and of any FPU
rounding: what fused multiply-add and rounding mean, for tests of the kernels. Values
are Python floats that hold float32 values. No kernel is called here."""
import math
import struct
from fractions import Fraction


def bits(x: float) -> int:
    return struct.unpack("<I", struct.pack("<f", x))[0]


def from_bits(u: int) -> float:
    return struct.unpack("<f", struct.pack("<I", u))[0]


def round32(x: Fraction) -> float:
    """Nearest float32, ties to even; subnormals kept; overflow to infinity. Zero gives +0."""
    if x == 0:
        return 0.0
    sign, x = (-1.0, -x) if x < 0 else (1.0, x)
    e = x.numerator.bit_length() - x.denominator.bit_length()
    if Fraction(2) ** e > x:
        e -= 1                               # 2^e <= x < 2^(e+1)
    unit = Fraction(2) ** (max(e, -126) - 23)
    n = round(x / unit)                      # Python rounds a Fraction's ties to even
    value = n * unit
    if value >= Fraction(2) ** 128:
        return sign * math.inf
    return sign * float(value)               # exact: at most 24 bits; -0.0 when n is 0


def fma(a: float, b: float, c: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        if math.isfinite(a) and math.isfinite(b):
            return c                         # in double, a*b cannot overflow: c decides
        product = float("nan") if (a == 0 or b == 0) else a * b
        return product + c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return a * b + c if (a == 0 or b == 0) else 0.0  # signed zeros add as IEEE says; x - x is +0
    return round32(exact)


def mul(a: float, b: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b
    if a == 0 or b == 0:
        return a * b
    return round32(Fraction(a) * Fraction(b))


def add(a: float, b: float) -> float:
    return fma(a, 1.0, b)


def same(a: float, b: float) -> bool:
    """Equal bits; any NaN equals any NaN (payload and sign of a NaN are no part of an answer)."""
    return bits(a) == bits(b) or (a != a and b != b)

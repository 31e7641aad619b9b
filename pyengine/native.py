"""The C module as the rest of pyengine sees it: ffi, lib, and status codes as exceptions.

Not a wrapper of every function: callers use `lib` directly. The only importer of
pyengine._native; may be imported by the gguf files, quants, plan, sampling, engine, machine.
"""
import os
from typing import NamedTuple

from pyengine._native import ffi, lib
from pyengine import machine
from pyengine.errors import MemoryBudgetError, NonFiniteError, PyengineError, RequestError, StoppedError, UnsupportedError

__all__ = ["ffi", "lib", "check", "address_of", "isa_mask", "Row", "rows", "demoted", "TIERS"]

_CODES = {
    lib.PE_ENOMEM: (MemoryBudgetError, "out of memory"),
    lib.PE_EINVAL: (PyengineError, "an argument is out of its range"),
    lib.PE_ERANGE: (PyengineError, "an operand lies outside its region"),
    lib.PE_ESTOPPED: (StoppedError, "stopped; nothing was committed"),
    lib.PE_ENONFINITE: (NonFiniteError, "a logit is NaN or infinite"),
    lib.PE_EEMPTY: (RequestError, "every candidate is masked"),
}


def check(code: int, what: str) -> None:
    """Raise the exception of a status code; `what` says what was being done."""
    if code == lib.PE_OK:
        return
    kind, text = _CODES.get(code, (PyengineError, f"unknown status {code}"))
    raise kind(f"{what}: {text}")


def address_of(buffer: object) -> int:
    """Where a buffer's bytes lie. The caller keeps the buffer alive for as long as it uses the address."""
    start = ffi.from_buffer("char[]", buffer)
    try:
        return int(ffi.cast("uintptr_t", start))
    finally:
        ffi.release(start)


# ---- instruction sets and kernel rows ---------------------------------------------------

# A tier is what PYENGINE_ISA names: an instruction set with all below it.
TIERS = {
    "scalar": 0,
    "avx2": lib.PE_ISA_AVX2,
    "avxvnni": lib.PE_ISA_AVX2 | lib.PE_ISA_AVXVNNI,
    "avx512": lib.PE_ISA_AVX2 | lib.PE_ISA_AVX512,
    "amx": lib.PE_ISA_AVX2 | lib.PE_ISA_AVX512 | lib.PE_ISA_AMX,
    "neon": lib.PE_ISA_NEON,
    "dotprod": lib.PE_ISA_NEON | lib.PE_ISA_DOTPROD,
    "i8mm": lib.PE_ISA_NEON | lib.PE_ISA_DOTPROD | lib.PE_ISA_I8MM,
}


def isa_mask(name: "str | None" = None) -> int:
    """Instruction-set bits to use: those of `name`, else of PYENGINE_ISA, else all this CPU has.
    UnsupportedError if the name is unknown or the CPU lacks it."""
    have = lib.pe_cpu_isa()
    name = name or os.environ.get("PYENGINE_ISA") or ""
    if not name:
        return have
    if name not in TIERS:
        raise UnsupportedError(f"PYENGINE_ISA is {name[:80]!r}, expected one of {', '.join(TIERS)}")
    if TIERS[name] & have != TIERS[name]:
        able = ", ".join(t for t, bits in TIERS.items() if bits & have == bits)
        raise UnsupportedError(f"this CPU cannot run PYENGINE_ISA={name}; it can run: {able}")
    return TIERS[name]


class Row(NamedTuple):
    """One kernel of pe_rows(): see pe_row in csrc/pyengine.h."""

    index: int
    name: str
    wtype: int
    act: int
    isa: int
    n_min: int
    n_max: int


def rows() -> "list[Row]":
    n = ffi.new("int32_t *")
    table = lib.pe_rows(n)
    return [Row(i, ffi.string(r.name).decode(), r.wtype, r.act, r.isa, r.n_min, r.n_max)
            for i, r in ((i, table[i]) for i in range(n[0]))]


def demoted(name: "str | None" = None) -> int:
    """Instruction-set bits that this processor has and is no faster with, unless a tier is named (as for isa_mask):
    in the static order their rows come behind those without."""
    if name or os.environ.get("PYENGINE_ISA") or not lib.pe_cpu_isa() & lib.PE_ISA_I8MM:
        return 0
    return lib.PE_ISA_I8MM if machine.slow_smmla() else 0

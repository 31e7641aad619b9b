"""The C module as the rest of pyengine sees it: ffi, lib, and status codes as exceptions.

Not a wrapper of every function: callers use `lib` directly. The only importer of
pyengine._native; may be imported by the gguf files, quants, plan, sampling, engine, machine.
"""
from pyengine._native import ffi, lib
from pyengine.errors import MemoryBudgetError, NonFiniteError, PyengineError, RequestError, StoppedError

__all__ = ["ffi", "lib", "check", "address_of"]

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

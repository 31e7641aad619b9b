"""Builds pyengine._native: every csrc/*.c, bound through cffi in API mode."""
import pathlib
import sysconfig

from cffi import FFI
from setuptools import setup

ROOT = pathlib.Path(__file__).parent
CSRC = ROOT / "csrc"


def cdef() -> str:
    text = (CSRC / "pyengine.h").read_text(encoding="utf-8")
    return text.split("/* cdef-begin */")[1].split("/* cdef-end */")[0]


def builder() -> FFI:
    ffi = FFI()
    ffi.cdef(cdef())
    ffi.set_source(
        "pyengine._native",
        '#include "pyengine.h"',
        sources=[f"csrc/{p.name}" for p in sorted(CSRC.glob("*.c")) if not p.name.endswith(".inl.c")],
        include_dirs=["csrc"],
        extra_compile_args=["-std=gnu11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-pthread",
                            "-fvisibility=hidden", "-Wall"],
        extra_link_args=["-pthread"],
        depends=[f"csrc/{p.name}" for p in sorted(CSRC.glob("*.h"))],
    )
    return ffi


ffi = builder()

if __name__ == "__main__":
    free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    setup(
        cffi_modules=["setup.py:ffi"],
        options={} if free_threaded else {"bdist_wheel": {"py_limited_api": "cp310"}},
    )

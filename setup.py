"""Builds pyengine._native: every csrc/*.c, bound through cffi in API mode.

Everything that is not the C extension stands in pyproject.toml; the package list is
here because models/catalog.toml is packaged as data of pyengine._models.
"""
import functools
import os
import pathlib
import shlex
import shutil
import sysconfig
from multiprocessing.pool import ThreadPool

from cffi import FFI
from setuptools import find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, PlatformError

ROOT = pathlib.Path(__file__).parent
CSRC = ROOT / "csrc"

# Under the sanitizers gcc 12 needs minutes for one file of inlined kernels at -O3, seconds at -O1.
FLAGS = os.environ.get("CFLAGS", "")
OPTIMIZE = "-O1" if "-fsanitize" in FLAGS else "-O3"
# Python's own flags ask for debug information: of inlined kernels that is 15 MB and a third of the compile time.
DEBUG = [] if "-g" in FLAGS else ["-g0"]

# Set by tools/wheels.py, which builds for other systems.
SUFFIX = os.environ.get("PYENGINE_EXT_SUFFIX", "")

INSTALL = """
  Debian, Ubuntu:  apt-get install gcc python3-dev
  Fedora:          dnf install gcc python3-devel
  Alpine:          apk add gcc musl-dev python3-dev
  macOS:           xcode-select --install"""


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
        extra_compile_args=["-std=gnu11", OPTIMIZE, *DEBUG, "-ffp-contract=off", "-fno-math-errno", "-pthread",
                            "-fvisibility=hidden", "-Wall", "-Wno-psabi"],
        extra_link_args=["-pthread"],
        # a changed header or body file rebuilds everything that may include it
        depends=[f"csrc/{p.name}" for p in sorted([*CSRC.glob("*.h"), *CSRC.glob("*.inl.c")])] + ["setup.py"],
    )
    return ffi


def compile_all(compiler, sources, output_dir=None, macros=None, include_dirs=None, debug=0, extra_preargs=None,
                extra_postargs=None, depends=None):
    """What CCompiler.compile does, as many files at a time as there are processors: a minute becomes half of one."""
    macros, objects, postargs, pp_opts, build = compiler._setup_compile(
        output_dir, macros, include_dirs, sources, depends, extra_postargs)
    args = compiler._get_cc_args(pp_opts, debug, extra_preargs)
    with ThreadPool(os.cpu_count()) as pool:
        pool.map(lambda made: compiler._compile(made, *build[made], args, postargs, pp_opts), list(build), chunksize=1)
    return objects


class BuildNative(build_ext):
    """build_ext that says what to install when a compiler or Python's headers are missing."""

    def get_ext_filename(self, fullname):
        """tools/wheels.py names the suffix of its target; setuptools would put the running system's in its place."""
        return os.path.join(*fullname.split(".")) + SUFFIX if SUFFIX else super().get_ext_filename(fullname)

    def build_extensions(self):
        if SUFFIX:  # Python's own flags, folders and linker are the running system's: only what was named is right
            cc, link = os.environ["CC"], os.environ["LDSHARED"]
            self.compiler.set_executables(compiler=cc, compiler_so=cc, linker_so=link)
            self.compiler.set_include_dirs([])
            self.compiler.set_library_dirs([])
            self.compiler.set_runtime_library_dirs([])
        command = getattr(self.compiler, "compiler", None)
        if command:  # unix-like toolchains; others find their compiler themselves
            cc = command[0]
            if shutil.which(cc) is None:
                raise PlatformError(f"pyengine is built from C and found no C compiler ({shlex.quote(cc)} is not "
                                    f"there). Install one, or name yours with CC=...:{INSTALL}")
            # read from the running Python, not guessed: a venv has no include folder of its own
            includes = {sysconfig.get_path("include"), sysconfig.get_path("platinclude")}
            if not any((pathlib.Path(d) / "Python.h").exists() for d in includes):
                raise PlatformError(f"pyengine is built from C and found no Python.h in {' or '.join(sorted(includes))}. "
                                    f"Install Python's headers:{INSTALL}")
            self.compiler.compile = functools.partial(compile_all, self.compiler)
        try:
            super().build_extensions()
        except CompileError as e:
            raise CompileError(f"{e}\npyengine's C code did not compile; it needs gcc 11 or clang 12, or newer (AVX-VNNI; 64-bit ARM: gcc 10 or clang 11, i8mm). "
                               f"The compiler's own message is above.") from e


ffi = builder()

if __name__ == "__main__":
    # A free-threaded Python has no stable ABI before 3.15; every other one shares a wheel.
    free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    setup(
        packages=find_packages(include=["pyengine", "pyengine.*"]) + ["pyengine._models"],
        package_dir={"pyengine._models": "models"},
        package_data={"pyengine._models": ["*.toml"]},
        cmdclass={"build_ext": BuildNative},
        cffi_modules=["setup.py:ffi"],
        options={} if free_threaded else {"bdist_wheel": {"py_limited_api": "cp310"}},
    )

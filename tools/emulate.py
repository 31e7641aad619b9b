#!/usr/bin/env python3
"""pyengine on processors that are not here, by qemu-user.

    python tools/emulate.py run --cpu cortex-a76 -- -m pytest tests/kernels -k q4_0

`run` gives the emulated Python the command line behind `--`, with the working tree's pyengine compiled for that
machine (by Debian's cross compilers, changed files only) or with the wheel that --wheel names. An instruction
that the named CPU has not dies of SIGILL, so detection is tested for real; of speed, emulation says nothing.
Processes that a test starts by sys.executable do not work here.
"""

import argparse
import concurrent.futures
import os
import pathlib
import shlex
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from emulated import MACHINES, ROOT, Environment, alone, command, fail, install, need, tell  # noqa: E402

# CPU -> machine and the best tier that it can run
CPUS = {
    "cortex-a53": ("aarch64", "neon"), "cortex-a72": ("aarch64", "neon"),
    "cortex-a76": ("aarch64", "dotprod"), "neoverse-n1": ("aarch64", "dotprod"), "max": ("aarch64", "i8mm"),
    "cortex-a7": ("armv7l", "scalar"), "cortex-a15": ("armv7l", "scalar"),
    "core2duo": ("x86_64", "scalar"), "SandyBridge": ("x86_64", "scalar"), "Haswell": ("x86_64", "avx2"),
}  # fmt: skip


def working_tree(env, cc):
    """A folder with the working tree's Python and its C compiled for that machine; objects are kept."""
    at = ROOT / "build" / "emulated" / f"{env.machine.name}-{os.path.basename(cc)}"
    package = at / "packages" / "pyengine"
    with alone(at / "lock"):
        package.mkdir(parents=True, exist_ok=True)
        for old in package.iterdir():
            if old.is_symlink():
                old.unlink()
        for entry in (ROOT / "pyengine").iterdir():
            if not entry.name.startswith(("_native", "__pycache__")):
                (package / entry.name).symlink_to(entry)
        (package / "_models").symlink_to(ROOT / "models")
        compile_extension(env, shlex.split(cc), at / "objects", package / "_native.abi3.so")
    return at / "packages"


def compile_extension(env, cc, objects, target):
    """What setup.py's build_ext does, for another machine, and only what has changed since the last time."""
    sys.path.insert(0, str(ROOT))
    os.chdir(ROOT)
    import setup

    objects.mkdir(exist_ok=True)
    extension = setup.ffi.distutils_extension(str(objects / "generated"))
    include = env.root / "usr/include"
    flags = [*extension.extra_compile_args, "-fPIC", "-DNDEBUG", f"-I{include}", f"-I{include}/python3.11",
             *(f"-I{folder}" for folder in extension.include_dirs)]
    stamp = objects / "flags"
    if not stamp.exists() or stamp.read_text() != repr((cc, flags)):
        for old in objects.glob("*.d"):
            old.unlink()
        stamp.write_text(repr((cc, flags)))

    def one(source):
        out = objects / (pathlib.Path(source).stem + ".o")
        rule = out.with_suffix(".d")
        if rule.exists() and out.exists():
            parts = rule.read_text().replace("\\\n", " ").split()[1:]
            if all(os.path.exists(p) and os.path.getmtime(p) <= out.stat().st_mtime for p in parts):
                return out, False
        command(*cc, *flags, "-MD", "-c", source, "-o", out)
        return out, True

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        made = list(pool.map(one, extension.sources))
    if any(new for _, new in made) or not target.exists():
        tell(f"compiled {sum(new for _, new in made)} files for {env.machine.name}")
        command(*cc, "-shared", "-pthread", *(out for out, _ in made), "-o", target)


def unpacked(env, wheel):
    """The wheel as pip would install it, beside nothing else."""
    folder = ROOT / "build" / "emulated" / f"{env.machine.name}-wheel"
    with alone(folder.with_suffix(".lock")):
        command("rm", "-rf", folder)
        install(wheel, folder)
    return folder


def run(options):
    machine = MACHINES[CPUS[options.cpu][0]]
    env = Environment(machine).ready()
    if options.wheel:
        packages = unpacked(env, options.wheel)
    else:
        cc = options.cc or f"{machine.triplet}-gcc"
        need({shlex.split(cc)[0]: f"gcc-{machine.triplet.replace('_', '-')}"})
        packages = working_tree(env, cc)
    return subprocess.call(env.python(options.cpu, options.arguments, packages))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    p = commands.add_parser("run", help="run a Python command line on an emulated CPU")
    p.add_argument("--cpu", choices=CPUS, default="cortex-a76")
    p.add_argument("--cc", help="the cross compiler and its options (default: Debian's gcc for that machine)")
    p.add_argument("--wheel", help="a built wheel instead of the working tree")
    p.add_argument("arguments", nargs="+", help="behind --: -m pytest tests/kernels, -c '...', a script")
    p.set_defaults(work=run)
    options = parser.parse_args()
    if sys.platform != "linux":
        fail("qemu-user runs Linux programs on Linux only")
    return options.work(options)


if __name__ == "__main__":
    sys.exit(main())

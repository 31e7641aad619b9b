"""pyengine-cli doctor: what this machine gives, and what pyengine uses of it. Opens no model.

Imported by the command line only.
"""
import os
import platform
import sys

from . import arguments

# Tier, its bit, and what the CPU and the system must have for it.
TIERS = (
    ("avx2", "PE_ISA_AVX2", "AVX2, FMA and F16C"),
    ("avxvnni", "PE_ISA_AVXVNNI", "AVX-VNNI"),
    ("avx512", "PE_ISA_AVX512", "AVX-512 F, BW, DQ, VL and VNNI together"),
    ("amx", "PE_ISA_AMX", "AMX tiles with int8, and the system's permission"),
    ("neon", "PE_ISA_NEON", "NEON"),
    ("dotprod", "PE_ISA_DOTPROD", "the dot product instructions"),
    ("i8mm", "PE_ISA_I8MM", "the int8 matrix instructions"),
)


def main(argv) -> int:
    arguments.parser("doctor", "Say what this machine gives and what is used of it.").parse_args(argv)
    for name, text in report():
        print(f"{name:12} {text}")
    return 0


def report():
    from .. import __version__, machine
    from ..native import ffi, lib

    yield "pyengine", f"{__version__}, Python {platform.python_version()}, {sys.platform} {platform.machine()}"
    yield "CPU", ffi.string(lib.pe_cpu_name()).decode("utf-8", "replace").strip() or "unknown"

    has = lib.pe_cpu_isa()
    n = ffi.new("int32_t *")
    rows = lib.pe_rows(n)
    kernels = [rows[i].isa for i in range(n[0])]
    forced = os.environ.get("PYENGINE_ISA")
    if forced:
        yield "PYENGINE_ISA", f"{forced!r}: tiers are held to it"
    yield "scalar", f"usable, {sum(isa == 0 for isa in kernels)} kernels"
    for name, constant, needs in TIERS:
        bit = getattr(lib, constant)
        built = sum(bool(isa & bit) for isa in kernels)
        if built and has & bit:
            text = f"usable, {built} kernels"
        elif built:
            text = f"off: held back by PYENGINE_ISA, or CPU or system lack {needs}"
        elif has & bit:
            text = "off: this CPU has it, and this build has no kernels for it"
        else:
            continue
        yield name, text

    allowed = machine.allowed_cpus()
    cores = machine.performance_cores()
    yield "CPUs", f"{os.cpu_count()} in the system, {len(allowed)} allowed by affinity, {len(cores)} performance cores of these"
    quota = machine.quota()
    yield "quota", "none" if quota is None else f"{quota:g} CPUs by cgroup"
    yield "threads", f"{machine.default_threads()} by default (-t)"
    available = machine.memory_available()
    yield "memory", "unknown" if available is None else f"{available / 1e9:.2f} GB available, within cgroup limits"
    try:
        import resource

        soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        yield "mlock", "unlimited" if soft == resource.RLIM_INFINITY else f"up to {soft / 1e6:.2f} MB (ulimit -l)"
    except (ImportError, OSError):
        pass

    from .. import catalog

    yield "models", str(catalog.cache_dir())
    for name, model in catalog.models().items():
        path = catalog.cached(name)
        yield "", f"{name}: {'fetched' if path else f'not fetched ({model.size / 1e6:.0f} MB)'}"

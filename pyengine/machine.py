"""What this computer really gives us: cores, CPU quota and memory; and how many threads follow from it.

Every function takes `root`, under which /proc and /sys are looked for, so that
tests run on made-up trees. Not a benchmark, not CPU features (those are native.py's)
and not heat (thermal.py). docs/threads.md says why the choices are what they are.
Imported by native, fit, tune, yardstick, thermal, llama and cli. Imports nothing of pyengine.
"""
import math
import os
import sys
import time
from typing import NamedTuple

# A core slower than this share of the fastest is an efficiency core: an RK3588's
# A55 reaches 0.52 of its A76, a Snapdragon's middle cores about 0.75 of its prime.
PERFORMANCE_SHARE = 0.6

# ARM cores by (implementer, part), as /proc/cpuinfo has them; those with a star issue in order: little cores.
ARM_CORES = {
    (0x41, 0xC05): "Cortex-A5*", (0x41, 0xC07): "Cortex-A7*", (0x41, 0xC0F): "Cortex-A15", (0x41, 0xD03): "Cortex-A53*",
    (0x41, 0xD04): "Cortex-A35*", (0x41, 0xD05): "Cortex-A55*", (0x41, 0xD07): "Cortex-A57", (0x41, 0xD08): "Cortex-A72",
    (0x41, 0xD09): "Cortex-A73", (0x41, 0xD0A): "Cortex-A75", (0x41, 0xD0B): "Cortex-A76", (0x41, 0xD0C): "Neoverse-N1",
    (0x41, 0xD0D): "Cortex-A77", (0x41, 0xD40): "Neoverse-V1", (0x41, 0xD41): "Cortex-A78", (0x41, 0xD42): "Cortex-A78AE",
    (0x41, 0xD44): "Cortex-X1", (0x41, 0xD46): "Cortex-A510*", (0x41, 0xD47): "Cortex-A710", (0x41, 0xD48): "Cortex-X2",
    (0x41, 0xD49): "Neoverse-N2", (0x41, 0xD4B): "Cortex-A78C", (0x41, 0xD4D): "Cortex-A715", (0x41, 0xD4E): "Cortex-X3",
    (0x41, 0xD4F): "Neoverse-V2", (0x41, 0xD80): "Cortex-A520*", (0x41, 0xD81): "Cortex-A720", (0x41, 0xD82): "Cortex-X4",
    (0x41, 0xD84): "Neoverse-V3", (0x41, 0xD85): "Cortex-X925", (0x41, 0xD87): "Cortex-A725", (0x41, 0xD8E): "Neoverse-N3",
    (0x51, 0x001): "Oryon",
}
APPLE, QUALCOMM = 0x61, 0x51
IN_ORDER_SHARE = 0.5         # of an out-of-order core's work per clock, where the system gives clocks but no capacities

RECHECK_SECONDS = 2.0        # a quota is read again this often; reading takes 0.1 to 0.3 ms


class Threads(NamedTuple):
    """Threads of a step that generates and of one that computes a prompt."""

    decode: int
    prompt: int


class Core(NamedTuple):
    """A physical core: those of its hardware threads that we may use, and whether it is a performance core."""

    cpus: tuple
    fast: bool


def threads(root="/", cpus=None, within_quota=True) -> Threads:
    """Generation: the performance cores, fewer where memory is known to be saturated by fewer. Prompts: every core.
    Both within affinity and the CPU quota, which is rounded up."""
    cores = physical_cores(root, cpus)
    fast = sum(c.fast for c in cores)
    most = cap(quota(root)) if within_quota else len(cores)
    return Threads(min(saturating(fast, root), most), min(len(cores), most))


def cap(cpus_of_time) -> int:
    """Threads for a quota, rounded up: with 1.5 CPUs two threads gave 1.42 (generation) and 1.48 times (prompt) what one
    gave, with 1.1 CPUs still 1.05 and 1.11 times (docs/threads.md). A hundredth more is somebody's rounding."""
    return 1 << 30 if cpus_of_time is None else max(1, math.ceil(cpus_of_time - 0.01))


def saturating(fast: int, root="/") -> int:
    """A system of Cortex-A76 only is a Raspberry Pi 5's chip (a device tree would say so, but containers hide it): it
    reads 9.3, 13.2 and 11.6 GB/s with 1, 2 and 4 threads. Elsewhere more threads are not known to read less."""
    parts = set(arm_parts(root).values())
    return min(fast, 2) if parts == {(0x41, 0xD0B)} else fast


def room_to_grow(chosen, root="/") -> Threads:
    """Threads to make where a quota may be raised while we run: up to twice those it allows now. Those that are not used
    sleep and cost their stacks, of which little is touched."""
    most = 2 * cap(quota(root))
    return Threads(*(max(n, min(without, most)) if n == within else n
                     for n, within, without in zip(chosen, threads(root), threads(root, within_quota=False))))


class CpuLimit:
    """Most threads that the quota and the affinity of the process allow now; read again while we run, since
    containers are resized. Cheap: between two readings it looks at the clock."""

    def __init__(self, root="/", seconds=RECHECK_SECONDS):
        self._root, self._seconds, self._read_at = root, seconds, -math.inf
        self._cpus = self._count()
        self._most = 1 << 30

    def _count(self) -> int:
        # of the process: engine threads may be bound to some of its CPUs (see binding)
        if self._root == "/" and hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(os.getpid()))
        return len(allowed_cpus(self._root))

    def __call__(self) -> int:
        now = time.monotonic()
        if now - self._read_at >= self._seconds:
            self._read_at, count = now, self._count()
            self._most = min(cap(quota(self._root)), count if count < self._cpus else 1 << 30)
        return self._most


def binding(n_threads: int, root="/", cpus=None) -> "list | None":
    """CPUs that each of n_threads threads may run on, where cores differ: the first ones on the performance cores, so that
    steps of few threads never have a part on a slow core, the rest on the others. None: the system may choose."""
    if root == "/" and not hasattr(os, "sched_setaffinity"):
        return None
    cores = physical_cores(root, cpus)
    fast = [c for core in cores if core.fast for c in core.cpus]
    slow = [c for core in cores if not core.fast for c in core.cpus]
    if not slow or n_threads > len(cores):
        return None
    n_fast = sum(core.fast for core in cores)
    return [fast if i < n_fast else slow for i in range(n_threads)]


def cpu_name(root="/") -> str:
    """What the system calls the processor; "unknown" where nothing does."""
    parts = arm_parts(root)
    if parts:
        return ", ".join(dict.fromkeys(core_name(p) for p in parts.values()))[:80]
    text = read(_join(root, "proc/cpuinfo"))
    for keys in (("model name",), ("Processor",), ("cpu", "cpu model")):
        found = [v.strip() for key in keys for k, _, v in (line.partition(":") for line in text.splitlines()) if k.strip() == key]
        if found:
            return " ".join(dict.fromkeys(found))[:80]
    return "unknown"


def arm_parts(root="/") -> dict:
    """{cpu: (implementer, part)} of an ARM Linux; empty elsewhere."""
    out, cpu, maker = {}, None, None
    for line in read(_join(root, "proc/cpuinfo")).splitlines():
        key, _, value = (x.strip() for x in line.partition(":"))
        if key == "processor":
            cpu, maker = _int(value), None
        elif key == "CPU implementer":
            maker = _hex(value)
        elif key == "CPU part" and cpu is not None and maker is not None and _hex(value) is not None:
            out[cpu] = (maker, _hex(value))
    return out


def core_name(part) -> str:
    known = ARM_CORES.get(part)
    return known.rstrip("*") if known else "Apple core" if part[0] == APPLE else f"ARM core 0x{part[0]:02x} 0x{part[1]:03x}"


def slow_smmla(root="/") -> bool:
    """Does i8mm's smmla multiply no faster than sdot here? Apple's M2 Max: 354 to 426 GOPS a core, Qualcomm's Oryon 442 to
    517; on ARM's own cores it is twice as fast."""
    if sys.platform == "darwin" and root == "/":
        return True
    return any(maker == APPLE or (maker, part) == (QUALCOMM, 0x001) for maker, part in arm_parts(root).values())


def cache_bytes(root="/") -> int:
    """Size of the largest cache that a CPU of ours sees; 0 if unknown."""
    cpus = allowed_cpus(root)
    base = _join(root, f"sys/devices/system/cpu/cpu{cpus[0] if cpus else 0}/cache")
    return max((_size(read(_join(base, f"index{i}/size"))) for i in range(5)), default=0)


def allowed_cpus(root="/") -> list:
    """The CPUs this process may run on."""
    if root == "/" and hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    text = read(_join(root, "proc/self/status"))
    for line in text.splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return cpu_list(line.split(":", 1)[1])
    return list(range(os.cpu_count() or 1))


def physical_cores(root="/", cpus=None) -> list:
    """The physical cores among `cpus` (default: those allowed and online), performance cores first."""
    cpus = allowed_cpus(root) if cpus is None else sorted(cpus)
    if root == "/" and sys.platform == "darwin":
        n = _apple_performance_cores() or len(cpus)
        return [Core((c,), i < n) for i, c in enumerate(cpus)]
    online = cpu_list(read(_join(root, "sys/devices/system/cpu/online")))
    cpus = [c for c in cpus if c in online] or cpus if online else cpus
    speed = _speeds(cpus, root)
    groups = {}
    for c in cpus:
        groups.setdefault(_core_of(c, root), []).append(c)
    best = max(speed.values(), default=1)
    cores = [Core(tuple(g), max(speed[c] for c in g) >= PERFORMANCE_SHARE * best) for g in groups.values()]
    return sorted(cores, key=lambda core: (not core.fast, core.cpus))


def _core_of(cpu: int, root) -> tuple:
    """What the hardware threads of one core have in common."""
    base = _join(root, f"sys/devices/system/cpu/cpu{cpu}/topology")
    siblings = cpu_list(read(_join(base, "thread_siblings_list")) or read(_join(base, "core_cpus_list")))
    if cpu in siblings:
        return tuple(siblings)
    core = number(_join(base, "core_id"))
    return (cpu,) if core is None else ("core", number(_join(base, "physical_package_id")), number(_join(base, "cluster_id")), core)


def _speeds(cpus, root) -> dict:
    """Relative speed by CPU: Intel lists its kinds of core; ARM gives each CPU a capacity, 1024 for the fastest, which old
    and vendors' kernels lack: then the highest clock, an in-order core's counting half. Equal if nothing says otherwise."""
    slow = set(cpu_list(read(_join(root, "sys/devices/cpu_atom/cpus")))) | set(cpu_list(read(_join(root, "sys/devices/cpu_lowpower/cpus"))))
    if slow and cpu_list(read(_join(root, "sys/devices/cpu_core/cpus"))):
        return {c: 0.5 if c in slow else 1.0 for c in cpus}
    base = _join(root, "sys/devices/system/cpu")
    capacity = {c: number(_join(base, f"cpu{c}/cpu_capacity")) for c in cpus}
    if all(capacity.values()):
        return capacity
    clock = {c: number(_join(base, f"cpu{c}/cpufreq/cpuinfo_max_freq")) for c in cpus}
    if not all(clock.values()):
        clock = dict.fromkeys(cpus, 1)
    parts = arm_parts(root)
    return {c: clock[c] * (IN_ORDER_SHARE if ARM_CORES.get(parts.get(c), "").endswith("*") else 1) for c in cpus}


def cores(root="/") -> dict:
    """What `doctor` says of the cores: CPUs and physical cores of the system, those we may use, performance and
    efficiency cores among these, hardware threads of a core."""
    allowed = allowed_cpus(root)
    system = cpu_list(read(_join(root, "sys/devices/system/cpu/online"))) or allowed
    mine, whole = physical_cores(root), physical_cores(root, system)
    return {"cpus": len(system), "physical": len(whole), "allowed": allowed, "performance": [c.cpus[0] for c in mine if c.fast],
            "efficiency": sum(not c.fast for c in mine), "threads_per_core": max((len(c.cpus) for c in whole), default=1)}


def frequency(root="/") -> "dict | None":
    """Governors and the range in MHz over our CPUs, where the system shows them."""
    governors, low, high = set(), [], []
    for c in allowed_cpus(root):
        base = _join(root, f"sys/devices/system/cpu/cpu{c}/cpufreq")
        governor = read(_join(base, "scaling_governor")).strip()
        if governor:
            governors.add(governor[:40])
        a, b = (number(_join(base, f"cpuinfo_{end}_freq")) for end in ("min", "max"))
        if a and b:
            low.append(a // 1000)
            high.append(b // 1000)
    if not governors and not high:
        return None
    return {"governors": sorted(governors), "min_mhz": min(low, default=None), "max_mhz": max(high, default=None)}


def huge_pages(root="/") -> "str | None":
    """Mode of transparent huge pages: always, madvise or never; None where the system has none."""
    text = read(_join(root, "sys/kernel/mm/transparent_hugepage/enabled"))
    return text.partition("[")[2].partition("]")[0][:20] or None


def memory_total(root="/") -> "int | None":
    """Bytes of memory in the machine."""
    for line in read(_join(root, "proc/meminfo")).splitlines():
        if line.startswith("MemTotal:"):
            kib = _int(line.split()[1])
            return None if kib is None else kib * 1024
    return None


def memory_limit(root="/") -> "int | None":
    """Bytes that the tightest of the cgroups around us allows; None: no limit."""
    found = []
    for version, folder in _groups(root, "memory"):
        for name in ("memory.max", "memory.high") if version == 2 else ("memory.limit_in_bytes",):
            n = number(_join(folder, name))
            if n is not None and n < 1 << 60:
                found.append(n)
    return min(found) if found else None


def quota(root="/"):
    """CPUs' worth of time per period that every enclosing cgroup allows; None if unlimited."""
    limits = []
    for version, folder in _groups(root, "cpu"):
        if version == 2:
            parts = read(_join(folder, "cpu.max")).split()
            if len(parts) == 2 and parts[0] != "max":
                limits.append((_int(parts[0]), _int(parts[1])))
        else:
            limits.append((number(_join(folder, "cpu.cfs_quota_us")), number(_join(folder, "cpu.cfs_period_us"))))
    ratios = [q / p for q, p in limits if q is not None and p and q > 0]
    return min(ratios) if ratios else None


def memory_available(root="/"):
    """Bytes that can still be used without swapping: the system's estimate, and what every
    enclosing cgroup has left counting its page cache as free. None where nobody says."""
    found = []
    for line in read(_join(root, "proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            kib = _int(line.split()[1])
            if kib is not None:
                found.append(kib * 1024)
    for version, folder in _groups(root, "memory"):
        if version == 2:
            limits = [number(_join(folder, name)) for name in ("memory.max", "memory.high")]
            used, keys = number(_join(folder, "memory.current")), ("inactive_file", "active_file")
        else:
            limits = [number(_join(folder, "memory.limit_in_bytes"))]
            used, keys = number(_join(folder, "memory.usage_in_bytes")), ("total_inactive_file", "total_active_file")
        limits = [n for n in limits if n is not None and n < 1 << 60]   # v1 writes "no limit" as 2**63 - 4096
        if limits:
            stat = _stat(_join(folder, "memory.stat"))
            cached = sum(stat.get(key, 0) for key in keys)       # weights that another model's steps mapped are given up for ours
            found.append(max(0, min(limits) - max(0, (used or 0) - cached)))
    if not found and root == "/":
        found = [n for n in (_memory_elsewhere(),) if n is not None]
    if root == "/":
        found += _left_by_limits()
    return min(found) if found else None


def _left_by_limits() -> list:
    """What `ulimit -v`, `ulimit -d` and 32-bit addresses leave this process. Linux ignores the one on resident memory (`ulimit -m`)."""
    try:
        import resource

        page = resource.getpagesize()
        sizes = [int(n) * page for n in read("/proc/self/statm").split()]
        pairs = [(resource.getrlimit(resource.RLIMIT_AS)[0], sizes[0]), (resource.getrlimit(resource.RLIMIT_DATA)[0], sizes[5])]
        if sys.maxsize < 1 << 32:        # addresses of 32 bits, of which the kernel may keep a quarter; statm is the emulator's under qemu
            spans = [line.split(None, 1)[0].split("-") for line in read("/proc/self/maps").splitlines()]
            pairs.append((3 << 30, sum(int(end, 16) - int(start, 16) for start, end in spans)))
        return [max(0, most - used) for most, used in pairs if most != resource.RLIM_INFINITY]
    except (ImportError, OSError, ValueError, IndexError):
        return []


def memory_touched() -> int:
    """Bytes of this process's own memory that the system has really handed out; 0 where it does not say."""
    for line in read("/proc/self/status").splitlines():
        if line.startswith("RssAnon:"):
            return (_int(line.split()[1]) or 0) * 1024
    return 0


def lock_memory(address: int, size: int):
    """mlock; None if it worked, else why it did not."""
    import ctypes

    try:
        libc = ctypes.CDLL(None, use_errno=True)
        mlock = libc.mlock
    except (OSError, AttributeError, TypeError):
        return "this system has no mlock"
    mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    if mlock(address, size) == 0:
        return None
    reason = os.strerror(ctypes.get_errno())
    try:
        import resource

        soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        if soft != resource.RLIM_INFINITY:
            reason += f"; the limit (ulimit -l) is {soft >> 10} KiB and {size >> 10} KiB are needed"
    except (ImportError, OSError, ValueError):
        pass
    return reason


def cpu_list(text: str) -> list:
    """The kernel's list format: "0-3,8,10-11"."""
    out = []
    for part in text.strip().split(","):
        first, dash, last = part.strip().partition("-")
        a = _int(first)
        b = _int(last) if dash else a
        if a is not None and b is not None:
            out.extend(range(a, b + 1))
    return out


# ---- cgroups ---------------------------------------------------------------------

def _groups(root, controller: str):
    """(version, folder) of every cgroup around this process that may limit `controller`,
    innermost first. Version 1 and 2 hierarchies may be mounted side by side."""
    mounts = []                      # (version, root within the hierarchy, mount point)
    for line in read(_join(root, "proc/self/mountinfo")).splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or not kind:
            continue
        if kind[0] == "cgroup2":
            mounts.append((2, fields[3], fields[4]))
        elif kind[0] == "cgroup" and controller in kind[-1].split(","):
            mounts.append((1, fields[3], fields[4]))
    for line in read(_join(root, "proc/self/cgroup")).splitlines():
        number, names, path = (line.split(":", 2) + ["", ""])[:3]
        version = 2 if number == "0" and not names else 1
        if version == 1 and controller not in names.split(","):
            continue
        for v, within, point in mounts:
            if v != version:
                continue
            # Inside a container the mount shows only our part of the hierarchy:
            # /docker/abc of the path is then the mount point itself.
            if within != "/" and (path == within or path.startswith(within + "/")):
                below = path[len(within):]
            else:
                below = path
            top = _join(root, _unescape(point).lstrip("/"))
            parts = [p for p in below.split("/") if p and p != ".."]
            for depth in range(len(parts), -1, -1):
                folder = _join(top, *parts[:depth])
                if os.path.isdir(folder):
                    yield version, folder


def _unescape(path: str) -> str:
    """mountinfo writes blanks and backslashes as octal."""
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, char)
    return path


_join = os.path.join


# ---- small readers: a file that is absent, unreadable or odd says nothing --------

def read(path) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as f:
            return f.read()
    except OSError:
        return ""


def _int(text: str):
    try:
        return int(text)
    except ValueError:
        return None


def _hex(text: str):
    try:
        return int(text, 16)
    except ValueError:
        return None


def number(path):
    return _int(read(path).strip() or "-")


def _size(text: str) -> int:
    """"32K", "260M"."""
    text = text.strip().upper()
    n = _int(text.rstrip("KMG")) or 0
    return n << {"K": 10, "M": 20, "G": 30}.get(text[-1:], 0) if n > 0 else 0


def _stat(path) -> dict:
    out = {}
    for line in read(path).splitlines():
        key, _, value = line.partition(" ")
        n = _int(value)
        if n is not None:
            out[key] = n
    return out


# ---- systems without /proc ---------------------------------------------------------

def _apple_performance_cores() -> int:
    return _sysctl(b"hw.perflevel0.physicalcpu") or _sysctl(b"hw.physicalcpu")


def _sysctl(name: bytes) -> int:
    import ctypes

    value, size = ctypes.c_uint64(0), ctypes.c_size_t(8)
    try:
        failed = ctypes.CDLL(None).sysctlbyname(name, ctypes.byref(value), ctypes.byref(size), None, 0)
    except (OSError, AttributeError, TypeError):
        return 0
    return 0 if failed else value.value


def _memory_elsewhere():
    if sys.platform == "darwin":     # half of the machine: it has no figure for what is reclaimable
        return _sysctl(b"hw.memsize") // 2 or None
    if sys.platform == "win32":
        import ctypes

        class Status(ctypes.Structure):
            _fields_ = [("length", ctypes.c_uint32), ("load", ctypes.c_uint32)] + [
                (name, ctypes.c_uint64) for name in ("total", "available", "a", "b", "c", "d", "e")]

        status = Status(length=ctypes.sizeof(Status))
        if ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
            return status.available
    return None


def read_ahead(files) -> None:
    """What is not in memory is fetched while the program is compiled, if half of what is available holds it."""
    available = memory_available()
    if available is None or sum(f.size for f in files) <= available // 2:
        for f in files:
            f.read_ahead()

"""What this computer really gives us: cores, CPU quota and memory.

Every function takes `root`, under which /proc and /sys are looked for, so that
tests run on made-up trees. Not a benchmark and not CPU features (those are
native.py's). Imported by engine, llama and cli. Imports nothing of pyengine.
"""
import os
import sys

# A core slower than this share of the fastest is an efficiency core: an RK3588's
# A55 reaches 0.52 of its A76, a Snapdragon's middle cores about 0.75 of its prime.
PERFORMANCE_SHARE = 0.6


def default_threads(root="/", cpus=None) -> int:
    """One thread per performance core we may use, within the CPU quota, at least one."""
    cores = len(performance_cores(root, cpus))
    limit = quota(root)
    return max(1, cores if limit is None else min(cores, int(limit)))


def cpu_name(root="/") -> str:
    """What the system calls the processor; "unknown" where nothing does."""
    text = _read(_join(root, "proc/cpuinfo"))
    # ARM's cpuinfo has no name but numbers of maker and part
    for keys in (("model name",), ("Processor",), ("CPU implementer", "CPU part"), ("cpu", "cpu model")):
        found = [v.strip() for key in keys for k, _, v in (line.partition(":") for line in text.splitlines()) if k.strip() == key]
        if found:
            return " ".join(dict.fromkeys(found))[:80]
    return "unknown"


def cache_bytes(root="/") -> int:
    """Size of the largest cache that a CPU of ours sees; 0 if unknown."""
    cpus = allowed_cpus(root)
    base = _join(root, f"sys/devices/system/cpu/cpu{cpus[0] if cpus else 0}/cache")
    return max((_size(_read(_join(base, f"index{i}/size"))) for i in range(5)), default=0)


def allowed_cpus(root="/") -> list:
    """The CPUs this process may run on."""
    if root == "/" and hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    text = _read(_join(root, "proc/self/status"))
    for line in text.splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return cpu_list(line.split(":", 1)[1])
    return list(range(os.cpu_count() or 1))


def performance_cores(root="/", cpus=None) -> list:
    """One CPU of every physical performance core, out of `cpus` (default: those allowed)."""
    cpus = allowed_cpus(root) if cpus is None else sorted(cpus)
    if root == "/" and sys.platform == "darwin":
        return cpus[: _apple_performance_cores() or len(cpus)]
    base = _join(root, "sys/devices/system/cpu")
    # Hybrid Intel lists its kinds; ARM gives each CPU a capacity, 1024 for the fastest.
    fast = set(cpu_list(_read(_join(root, "sys/devices/cpu_core/cpus"))))
    if not fast:
        capacity = {c: _number(_join(base, f"cpu{c}/cpu_capacity")) for c in cpus}
        if all(capacity.values()) and capacity:
            fast = {c for c in cpus if capacity[c] >= PERFORMANCE_SHARE * max(capacity.values())}
    chosen = [c for c in cpus if c in fast] or cpus
    cores, seen = [], set()
    for c in chosen:
        siblings = cpu_list(_read(_join(base, f"cpu{c}/topology/thread_siblings_list"))) or [c]
        if seen.isdisjoint(siblings):
            cores.append(c)
        seen.update(siblings)
    return cores


def cores(root="/") -> dict:
    """What `doctor` says of the cores: CPUs and physical cores of the system, those we may use, performance and
    efficiency cores among these, hardware threads of a core."""
    allowed, base = allowed_cpus(root), _join(root, "sys/devices/system/cpu")
    system = cpu_list(_read(_join(base, "online"))) or allowed
    siblings = [frozenset(cpu_list(_read(_join(base, f"cpu{c}/topology/thread_siblings_list"))) or [c]) for c in system]
    fast = performance_cores(root)
    of_fast = {s for c, s in zip(system, siblings) if c in fast}
    slow = {s for c, s in zip(system, siblings) if c in allowed and s not in of_fast}
    return {"cpus": len(system), "physical": len(set(siblings)), "allowed": allowed, "performance": fast,
            "efficiency": len(slow), "threads_per_core": max((len(s) for s in siblings), default=1)}


def frequency(root="/") -> "dict | None":
    """Governors and the range in MHz over our CPUs, where the system shows them."""
    governors, low, high = set(), [], []
    for c in allowed_cpus(root):
        base = _join(root, f"sys/devices/system/cpu/cpu{c}/cpufreq")
        governor = _read(_join(base, "scaling_governor")).strip()
        if governor:
            governors.add(governor[:40])
        a, b = (_number(_join(base, f"cpuinfo_{end}_freq")) for end in ("min", "max"))
        if a and b:
            low.append(a // 1000)
            high.append(b // 1000)
    if not governors and not high:
        return None
    return {"governors": sorted(governors), "min_mhz": min(low, default=None), "max_mhz": max(high, default=None)}


def huge_pages(root="/") -> "str | None":
    """Mode of transparent huge pages: always, madvise or never; None where the system has none."""
    text = _read(_join(root, "sys/kernel/mm/transparent_hugepage/enabled"))
    return text.partition("[")[2].partition("]")[0][:20] or None


def memory_total(root="/") -> "int | None":
    """Bytes of memory in the machine."""
    for line in _read(_join(root, "proc/meminfo")).splitlines():
        if line.startswith("MemTotal:"):
            kib = _int(line.split()[1])
            return None if kib is None else kib * 1024
    return None


def memory_limit(root="/") -> "int | None":
    """Bytes that the tightest of the cgroups around us allows; None: no limit."""
    found = []
    for version, folder in _groups(root, "memory"):
        for name in ("memory.max", "memory.high") if version == 2 else ("memory.limit_in_bytes",):
            n = _number(_join(folder, name))
            if n is not None and n < 1 << 60:
                found.append(n)
    return min(found) if found else None


def quota(root="/"):
    """CPUs' worth of time per period that every enclosing cgroup allows; None if unlimited."""
    limits = []
    for version, folder in _groups(root, "cpu"):
        if version == 2:
            parts = _read(_join(folder, "cpu.max")).split()
            if len(parts) == 2 and parts[0] != "max":
                limits.append((_int(parts[0]), _int(parts[1])))
        else:
            limits.append((_number(_join(folder, "cpu.cfs_quota_us")), _number(_join(folder, "cpu.cfs_period_us"))))
    ratios = [q / p for q, p in limits if q is not None and p and q > 0]
    return min(ratios) if ratios else None


def memory_available(root="/"):
    """Bytes that can still be used without swapping: the system's estimate, and what every
    enclosing cgroup has left counting its page cache as free. None where nobody says."""
    found = []
    for line in _read(_join(root, "proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            kib = _int(line.split()[1])
            if kib is not None:
                found.append(kib * 1024)
    for version, folder in _groups(root, "memory"):
        if version == 2:
            limits = [_number(_join(folder, name)) for name in ("memory.max", "memory.high")]
            used, key = _number(_join(folder, "memory.current")), "inactive_file"
        else:
            limits = [_number(_join(folder, "memory.limit_in_bytes"))]
            used, key = _number(_join(folder, "memory.usage_in_bytes")), "total_inactive_file"
        limits = [n for n in limits if n is not None and n < 1 << 60]   # v1 writes "no limit" as 2**63 - 4096
        if limits:
            cached = _stat(_join(folder, "memory.stat")).get(key, 0)
            found.append(max(0, min(limits) - max(0, (used or 0) - cached)))
    if not found and root == "/":
        return _memory_elsewhere()
    return min(found) if found else None


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
    for line in _read(_join(root, "proc/self/mountinfo")).splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or not kind:
            continue
        if kind[0] == "cgroup2":
            mounts.append((2, fields[3], fields[4]))
        elif kind[0] == "cgroup" and controller in kind[-1].split(","):
            mounts.append((1, fields[3], fields[4]))
    for line in _read(_join(root, "proc/self/cgroup")).splitlines():
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

def _read(path) -> str:
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


def _number(path):
    return _int(_read(path).strip() or "-")


def _size(text: str) -> int:
    """"32K", "260M"."""
    text = text.strip().upper()
    n = _int(text.rstrip("KMG")) or 0
    return n << {"K": 10, "M": 20, "G": 30}.get(text[-1:], 0) if n > 0 else 0


def _stat(path) -> dict:
    out = {}
    for line in _read(path).splitlines():
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

"""Threads and memory, read from made-up /proc and /sys trees."""
import os
import pathlib

import pytest

from pyengine import machine


class Tree:
    def __init__(self, root):
        self.root = root
        self.mounts = []

    def write(self, path, text):
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text + "\n")
        return self

    def cpus(self, n, *, threads_per_core=1, allowed=None):
        for c in range(n):
            core = c - c % threads_per_core
            self.write(f"/sys/devices/system/cpu/cpu{c}/topology/thread_siblings_list",
                       f"{core}-{core + threads_per_core - 1}" if threads_per_core > 1 else f"{c}")
        return self.write("/proc/self/status", f"Name:\tx\nCpus_allowed_list:\t{allowed or f'0-{n - 1}'}")

    def arm(self, parts, maker=0x41):
        """/proc/cpuinfo of an ARM system, a part for each CPU."""
        return self.write("/proc/cpuinfo", "\n\n".join(f"processor\t: {c}\nCPU implementer\t: {maker:#x}\nCPU part\t: {part:#x}"
                                                       for c, part in enumerate(parts)))

    def mount(self, kind, point, options, within="/"):
        self.mounts.append(f"{30 + len(self.mounts)} 24 0:26 {within} {point} rw,relatime shared:4 - {kind} cgroup {options}")
        return self.write("/proc/self/mountinfo", "\n".join(["22 1 0:20 / / rw - ext4 /dev/sda rw", *self.mounts]))

    def v2(self, group="/"):
        return self.mount("cgroup2", "/sys/fs/cgroup", "rw").write("/proc/self/cgroup", f"0::{group}")


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def threads(tree):
    return machine.threads(tree.root).prompt


def fast(tree):
    return [core.cpus[0] for core in machine.physical_cores(tree.root) if core.fast]


def test_affinity_bounds_the_threads(tree):
    assert threads(tree.cpus(16)) == 16
    assert threads(tree.cpus(16, allowed="2,5-7")) == 4


def test_two_threads_of_a_core_are_one_core(tree):
    tree.cpus(8, threads_per_core=2)
    assert fast(tree) == [0, 2, 4, 6]
    tree.cpus(8, threads_per_core=2, allowed="1,2,3")
    assert fast(tree) == [1, 2]


def test_efficiency_cores_of_hybrid_intel_take_part_in_prompts_only(tree):
    tree.cpus(12).write("/sys/devices/cpu_core/cpus", "0-3").write("/sys/devices/cpu_atom/cpus", "4-11")
    assert machine.threads(tree.root) == (4, 12)
    tree.cpus(12, allowed="4-11")       # only efficiency cores allowed: they are the fastest there are
    assert machine.threads(tree.root) == (8, 8)
    tree.cpus(12).write("/sys/devices/cpu_atom/cpus", "4-9").write("/sys/devices/cpu_lowpower/cpus", "10-11")
    assert machine.threads(tree.root) == (4, 12)


def test_little_cores_by_capacity(tree):
    tree.cpus(8)
    for c in range(8):
        tree.write(f"/sys/devices/system/cpu/cpu{c}/cpu_capacity", "530" if c < 4 else "1024")
    assert fast(tree) == [4, 5, 6, 7]


def test_little_cores_by_clock_and_kind(tree):
    """A vendor's kernel without capacities: 1.8 GHz of an in-order A55 are not 0.75 of 2.4 GHz of an A76."""
    tree.cpus(8).arm([0xD05] * 4 + [0xD0B] * 4)
    assert machine.threads(tree.root) == (4, 8)             # by the kind alone
    for c in range(8):
        tree.write(f"/sys/devices/system/cpu/cpu{c}/cpufreq/cpuinfo_max_freq", "1800000" if c < 4 else "2400000")
    assert fast(tree) == [4, 5, 6, 7]
    tree.cpus(2).write("/proc/cpuinfo", "")                 # clocks alone, far enough apart
    tree.write("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "1000000").write("/sys/devices/system/cpu/cpu1/cpufreq/cpuinfo_max_freq", "2000000")
    assert machine.threads(tree.root) == (1, 2)


def test_cores_by_id_where_siblings_are_not_listed(tree):
    tree.write("/proc/self/status", "Cpus_allowed_list:\t0-7")
    for c in range(8):                                      # two packages of two cores of two threads
        base = f"/sys/devices/system/cpu/cpu{c}/topology"
        tree.write(f"{base}/core_id", str(c // 2 % 2)).write(f"{base}/physical_package_id", str(c // 4))
    assert [core.cpus for core in machine.physical_cores(tree.root)] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    tree.write("/sys/devices/system/cpu/cpu0/topology/core_cpus_list", "0,5")
    assert (0,) in [core.cpus for core in machine.physical_cores(tree.root)]


def test_offline_cpus_do_not_count(tree):
    """/proc/self/status lists them as allowed; their topology is gone."""
    tree.cpus(8, threads_per_core=2).write("/sys/devices/system/cpu/online", "0-3,6")
    assert [core.cpus for core in machine.physical_cores(tree.root)] == [(0, 1), (2, 3), (6,)]
    tree.write("/sys/devices/system/cpu/online", "nonsense")
    assert threads(tree) == 4


@pytest.mark.parametrize("text, expected", [
    ("200000 100000", 2), ("max 100000", 16), ("150000 100000", 2), ("50000 100000", 1), ("110000 100000", 2),
    ("200100 100000", 2), ("6400000 100000", 16), ("", 16), ("nonsense", 16), ("100000 0", 16),
])
def test_cgroup_v2_quota(tree, text, expected):
    """Case 114: docker --cpus=2 on a 16-core host gives 2 threads."""
    tree.cpus(16).v2().write("/sys/fs/cgroup/cpu.max", text)
    assert threads(tree) == expected


def test_cgroup_v2_nested(tree):
    """Case 114: the tightest of the enclosing groups counts."""
    tree.cpus(16).v2("/a/b/c").write("/sys/fs/cgroup/a/cpu.max", "300000 100000")
    tree.write("/sys/fs/cgroup/a/b/cpu.max", "max 100000").write("/sys/fs/cgroup/a/b/c/cpu.max", "800000 100000")
    assert machine.quota(tree.root) == 3.0
    assert threads(tree) == 3


def test_cgroup_v2_of_somebody_else_does_not_count(tree):
    tree.cpus(16).v2("/mine").write("/sys/fs/cgroup/mine/cpu.max", "max 100000")
    tree.write("/sys/fs/cgroup/other/cpu.max", "100000 100000")
    assert threads(tree) == 16


def test_cgroup_v2_inside_a_namespace(tree):
    """The path may lead above what the container sees."""
    tree.cpus(16).v2("/../../x").write("/sys/fs/cgroup/cpu.max", "400000 100000")
    assert threads(tree) == 4


@pytest.mark.parametrize("quota, expected", [("200000", 2), ("-1", 16), ("25000", 1)])
def test_cgroup_v1_quota(tree, quota, expected):
    """Case 114, version 1."""
    tree.cpus(16).mount("cgroup", "/sys/fs/cgroup/cpu,cpuacct", "rw,cpu,cpuacct")
    tree.write("/proc/self/cgroup", "5:memory:/\n4:cpu,cpuacct:/docker/abc")
    tree.write("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", quota)
    tree.write("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000")
    assert threads(tree) == expected


def test_cgroup_v1_container_sees_its_part_as_the_root(tree):
    tree.cpus(16).mount("cgroup", "/sys/fs/cgroup/cpu", "rw,cpu", within="/docker/abc")
    tree.write("/proc/self/cgroup", "4:cpu:/docker/abc/inner")
    tree.write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "500000")
    tree.write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    tree.write("/sys/fs/cgroup/cpu/inner/cpu.cfs_quota_us", "-1")
    tree.write("/sys/fs/cgroup/cpu/inner/cpu.cfs_period_us", "100000")
    assert threads(tree) == 5


def test_versions_side_by_side(tree):
    tree.cpus(16).mount("cgroup", "/sys/fs/cgroup/cpu", "rw,cpu").mount("cgroup2", "/sys/fs/cgroup/unified", "rw")
    tree.write("/proc/self/cgroup", "1:cpu:/job\n0::/job")
    tree.write("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "700000")
    tree.write("/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000")
    tree.write("/sys/fs/cgroup/unified/job/cpu.max", "600000 100000")
    assert threads(tree) == 6


def test_nothing_to_read_gives_a_usable_number(tmp_path):
    assert min(machine.threads(tmp_path)) >= 1 and machine.binding(1, tmp_path) is None
    assert machine.quota(tmp_path) is None and machine.memory_available(tmp_path) is None


def test_memory(tree):
    tree.write("/proc/meminfo", "MemTotal: 16000 kB\nMemFree: 10 kB\nMemAvailable: 8000 kB")
    assert machine.memory_available(tree.root) == 8000 << 10
    tree.v2("/a").write("/sys/fs/cgroup/a/memory.max", "3000000").write("/sys/fs/cgroup/a/memory.current", "2500000")
    tree.write("/sys/fs/cgroup/a/memory.stat", "anon 500000\ninactive_file 1900000\nactive_file 100000")     # weights that were read often are given up as well
    assert machine.memory_available(tree.root) == 3000000 - 500000
    tree.write("/sys/fs/cgroup/memory.max", "1000000")       # the outer group is tighter
    assert machine.memory_available(tree.root) == 1000000
    tree.write("/sys/fs/cgroup/memory.max", "max").write("/sys/fs/cgroup/a/memory.max", "max")
    assert machine.memory_available(tree.root) == 8000 << 10


def test_memory_v1(tree):
    tree.write("/proc/meminfo", "MemAvailable: 8000 kB").mount("cgroup", "/sys/fs/cgroup/memory", "rw,memory")
    tree.write("/proc/self/cgroup", "4:memory:/x").write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712")
    tree.write("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "4000000")
    tree.write("/sys/fs/cgroup/memory/x/memory.usage_in_bytes", "3900000")
    tree.write("/sys/fs/cgroup/memory/x/memory.stat", "total_inactive_file 1000000")
    assert machine.memory_available(tree.root) == 4000000 - 2900000


def test_this_machine():
    decode, prompt = machine.threads()
    assert 1 <= decode <= prompt <= len(machine.allowed_cpus()) <= (os.cpu_count() or 1)
    assert machine.CpuLimit()() >= 1


@pytest.mark.parametrize("text, cpus", [("0-3,8", [0, 1, 2, 3, 8]), ("", []), ("5", [5]), ("x,2-", [])])
def test_cpu_list(text, cpus):
    assert machine.cpu_list(text) == cpus


# ---- the machines of docs/threads.md --------------------------------------------------------------


def pi4(tree):
    tree.cpus(4).arm([0xD08] * 4)


def pi5(tree):
    tree.cpus(4).arm([0xD0B] * 4)
    for c in range(4):
        tree.write(f"/sys/devices/system/cpu/cpu{c}/cpu_capacity", "1024")


def rk3588(tree):
    tree.cpus(8).arm([0xD05] * 4 + [0xD0B] * 4)
    for c in range(8):
        tree.write(f"/sys/devices/system/cpu/cpu{c}/cpu_capacity", "530" if c < 4 else "1024")


def i5_1340p(tree):
    tree.cpus(8, threads_per_core=2).write("/proc/self/status", "Cpus_allowed_list:\t0-15")
    for c in range(8, 16):
        tree.write(f"/sys/devices/system/cpu/cpu{c}/topology/thread_siblings_list", f"{c}")
    tree.write("/sys/devices/cpu_core/cpus", "0-7").write("/sys/devices/cpu_atom/cpus", "8-15").write("/sys/devices/system/cpu/online", "0-15")
    for c in range(16):                                     # clocks would say 0.74
        tree.write(f"/sys/devices/system/cpu/cpu{c}/cpufreq/cpuinfo_max_freq", "4600000" if c < 8 else "3400000")


def server(tree):
    tree.cpus(64, threads_per_core=2)


def container(tree):
    tree.cpus(16, threads_per_core=2).v2().write("/sys/fs/cgroup/cpu.max", "150000 100000")


def container_v1(tree):
    tree.cpus(16).mount("cgroup", "/sys/fs/cgroup/cpu", "rw,cpu").write("/proc/self/cgroup", "4:cpu:/")
    tree.write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000").write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")


def pinned(tree):
    i5_1340p(tree)
    tree.write("/proc/self/status", "Cpus_allowed_list:\t2,3,4,9,12-14")


MACHINES = {"Raspberry Pi 4": pi4, "Raspberry Pi 5": pi5, "RK3588": rk3588, "Core i5-1340P": i5_1340p, "server": server,
            "container, 1.5 CPUs": container, "container, 1.5 CPUs, cgroup v1": container_v1, "i5-1340P under taskset": pinned}


def documented():
    """{machine: (decode, prompt)} of the table in docs/threads.md."""
    text = (pathlib.Path(__file__).parent.parent / "docs/threads.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return {row[0]: (int(row[2]), int(row[3])) for row in rows if len(row) == 5 and row[2].isdigit()}


def test_the_document_lists_these_machines():
    assert set(documented()) == set(MACHINES)


@pytest.mark.parametrize("name", MACHINES)
def test_threads_are_those_of_the_document(tree, name):
    MACHINES[name](tree)
    assert machine.threads(tree.root) == documented()[name]


def test_each_thread_runs_on_the_cores_it_is_meant_for(tree):
    """Generation takes the pool's first threads: they must not land on slow cores, whose parts the others would wait for."""
    i5_1340p(tree)
    bound = machine.binding(12, tree.root)
    assert bound == [list(range(8))] * 4 + [list(range(8, 16))] * 8
    assert machine.binding(4, tree.root) == bound[:4]
    assert machine.binding(13, tree.root) is None           # somebody wants more threads than cores: the system places them
    pinned(tree)
    assert machine.binding(6, tree.root) == [[2, 3, 4]] * 2 + [[9, 12, 13, 14]] * 4


@pytest.mark.parametrize("name", ["Raspberry Pi 4", "Raspberry Pi 5", "server", "container, 1.5 CPUs"])
def test_equal_cores_are_left_to_the_system(tree, name):
    MACHINES[name](tree)
    assert machine.binding(4, tree.root) is None


def test_missing_files(tree):
    """A sandbox that shows neither /sys nor /proc/cpuinfo: every CPU counts as a core."""
    tree.write("/proc/self/status", "Cpus_allowed_list:\t0-5")
    assert machine.threads(tree.root) == (6, 6)


# ---- a quota that changes while we run --------------------------------------------------------------


def test_limit_is_read_again(tree):
    tree.cpus(16).v2().write("/sys/fs/cgroup/cpu.max", "200000 100000")
    limit = machine.CpuLimit(tree.root, seconds=0)
    assert limit() == 2
    tree.write("/sys/fs/cgroup/cpu.max", "400000 100000")
    assert limit() == 4
    tree.write("/sys/fs/cgroup/cpu.max", "max 100000")
    assert limit() >= 16
    tree.cpus(16, allowed="0-2")                            # the cpuset shrank
    assert limit() == 3
    tree.cpus(16)
    assert limit() >= 16
    seldom = machine.CpuLimit(tree.root, seconds=3600)
    before = seldom()
    tree.write("/sys/fs/cgroup/cpu.max", "100000 100000")
    assert seldom() == before                               # between two readings only the clock is looked at


def test_room_to_grow(tree):
    tree.cpus(16).v2().write("/sys/fs/cgroup/cpu.max", "200000 100000")
    assert machine.room_to_grow(machine.threads(tree.root), tree.root) == (4, 4)     # not 16: groups limit threads as well
    assert machine.room_to_grow((1, 2), tree.root) == (1, 4)                         # one that was tuned stays
    tree.write("/sys/fs/cgroup/cpu.max", "max 100000")
    assert machine.room_to_grow(machine.threads(tree.root), tree.root) == (16, 16)


# ---- per core: sdot or smmla --------------------------------------------------------------------------


@pytest.mark.parametrize("maker, parts, slow", [(0x61, [0x32, 0x33], True), (0x61, [0x000], True), (0x51, [0x001], True), (0x51, [0x804], False),
                                                (0x41, [0xD40], False), (0x41, [0xD80, 0xD81], False)])
def test_smmla_is_not_faster_everywhere(tree, maker, parts, slow):
    tree.arm(parts, maker)
    assert machine.slow_smmla(tree.root) == slow


# ---- what doctor shows ------------------------------------------------------------------------


def test_cores(tree):
    tree.cpus(8, threads_per_core=2, allowed="0-3,6").write("/sys/devices/system/cpu/online", "0-7")
    assert machine.cores(tree.root) == {"cpus": 8, "physical": 4, "allowed": [0, 1, 2, 3, 6], "performance": [0, 2, 6],
                                        "efficiency": 0, "threads_per_core": 2}


def test_cores_of_a_hybrid(tree):
    tree.cpus(4, threads_per_core=2)
    for c in range(4, 10):
        tree.write(f"/sys/devices/system/cpu/cpu{c}/topology/thread_siblings_list", f"{c}")
    tree.write("/proc/self/status", "Cpus_allowed_list:\t0-9").write("/sys/devices/system/cpu/online", "0-9")
    tree.write("/sys/devices/cpu_core/cpus", "0-3").write("/sys/devices/cpu_atom/cpus", "4-9")
    found = machine.cores(tree.root)
    assert (found["physical"], found["performance"], found["efficiency"]) == (8, [0, 2], 6)


def test_frequency(tree):
    tree.cpus(2)
    assert machine.frequency(tree.root) is None
    for c, (governor, low, high) in enumerate((("powersave", 400000, 3000000), ("performance", 800000, 5100000))):
        base = f"/sys/devices/system/cpu/cpu{c}/cpufreq"
        tree.write(f"{base}/scaling_governor", governor).write(f"{base}/cpuinfo_min_freq", str(low)).write(f"{base}/cpuinfo_max_freq", str(high))
    assert machine.frequency(tree.root) == {"governors": ["performance", "powersave"], "min_mhz": 400, "max_mhz": 5100}


@pytest.mark.parametrize("text, mode", [("always [madvise] never", "madvise"), ("[always] madvise never", "always"), ("odd", None), (None, None)])
def test_huge_pages(tree, text, mode):
    if text:
        tree.write("/sys/kernel/mm/transparent_hugepage/enabled", text)
    assert machine.huge_pages(tree.root) == mode


def test_memory_total_and_limit(tree):
    assert machine.memory_total(tree.root) is None and machine.memory_limit(tree.root) is None
    tree.v2("/a").write("/proc/meminfo", "MemTotal:  8000000 kB\nMemAvailable: 1 kB")
    tree.write("/sys/fs/cgroup/a/memory.max", "1000000000").write("/sys/fs/cgroup/memory.max", "max").write("/sys/fs/cgroup/a/memory.high", "900000000")
    assert machine.memory_total(tree.root) == 8000000 * 1024
    assert machine.memory_limit(tree.root) == 900000000


def test_cache_bytes(tree):
    tree.cpus(4, allowed="2-3")
    assert machine.cache_bytes(tree.root) == 0
    for i, text in enumerate(("48K", "32K", "2048K", "36M")):
        tree.write(f"/sys/devices/system/cpu/cpu2/cache/index{i}/size", text)
    assert machine.cache_bytes(tree.root) == 36 << 20
    tree.write("/sys/devices/system/cpu/cpu2/cache/index3/size", "nonsense")
    assert machine.cache_bytes(tree.root) == 2 << 20


@pytest.mark.parametrize("text, name", [
    ("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: Some CPU @ 2 GHz", "Some CPU @ 2 GHz"),
    ("processor : 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0b\nprocessor: 1\nCPU implementer\t: 0x41\nCPU part\t: 0xd05", "Cortex-A76, Cortex-A55"),
    ("processor : 0\nCPU implementer\t: 0x99\nCPU part\t: 0x123", "ARM core 0x99 0x123"),
    ("processor : zero\nCPU implementer\t: x\nCPU part\t: y", "unknown"),
    ("", "unknown"),
])
def test_cpu_name(tree, text, name):
    tree.write("/proc/cpuinfo", text)
    assert machine.cpu_name(tree.root) == name

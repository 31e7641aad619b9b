"""doctor: facts of this machine and of made-up ones, measured yardsticks, and a model's limits."""
import json
import sys

import pytest

from pyengine import cli, yardstick
from pyengine.cli import doctor
from pyengine.native import TIERS, ffi, lib
from test_machine import Tree
from tiny_gguf import Spec, write


@pytest.fixture
def run(capsys, monkeypatch):
    monkeypatch.setattr(yardstick, "buffer_bytes", lambda: 32 << 20)     # enough to be a rate, soon read

    def call(*argv):
        code = cli.main([str(a) for a in argv])
        return (code, *capsys.readouterr())

    return call


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("doctor") / "model.gguf"
    write(path, Spec(seed=2, n_embd=64, n_ff=(96,), weight_type="Q8_0", n_vocab=331))
    return path


def test_this_machine(run):
    code, out, _ = run("doctor", "--quick")
    assert code == 0
    words = [line[:12].strip() for line in out.splitlines()]
    assert {"pyengine", "CPU", "scalar", "cores", "quota", "threads", "frequency", "memory", "huge pages", "tune", "models"} <= set(words)
    assert "reads" not in words


def test_json_and_measured(run):
    code, out, _ = run("doctor", "--json")
    report = json.loads(out)
    assert code == 0 and report["cpu"]["tiers"]["scalar"]["usable"] and report["cores"]["threads"] >= 1
    for rates in (*report["measured"]["read"].values(), *report["measured"]["peak"].values()):
        assert set(rates) == {str(t) for t in report["measured"]["threads"]} and all(1e6 < r < 1e15 for r in rates.values())


def test_tiers_say_why_they_are_off(monkeypatch):
    for name, tier in doctor.tiers().items():
        assert tier["usable"] == (tier["why"] is None), name
    monkeypatch.setenv("PYENGINE_ISA", "scalar")
    held = doctor.tiers()
    if lib.pe_cpu_isa() & lib.PE_ISA_AVX2:
        assert held["avx2"]["why"] == "held back by PYENGINE_ISA=scalar"
    monkeypatch.setenv("PYENGINE_ISA", "nonsense")
    assert doctor.tiers()["scalar"]["usable"]


def test_what_the_cpu_lacks_and_has_agree():
    have = lib.pe_cpu_isa()
    mine = [b for _, c, a in doctor.TIERS for b in [getattr(lib, c)] if (a == "ARM") == doctor.arm()]
    for bit in mine:
        assert (ffi.string(lib.pe_cpu_lacks(bit)) == b"") == bool(have & bit)
    assert ffi.string(lib.pe_cpu_lacks(0)) == b"" == ffi.string(lib.pe_cpu_lacks(1 << 31))


def test_a_container_without_sys(tmp_path):
    """Nothing to read anywhere: everything is said to be unknown, and nothing fails."""
    report = doctor.facts(tmp_path)
    text = dict(doctor.lines(report))
    assert text["frequency"] == "not shown by this system" and text["huge pages"] == "none" and text["quota"] == "none"
    assert report["memory"]["total"] is None and report["cores"]["threads"] >= 1


def test_a_made_up_server(tmp_path):
    tree = Tree(tmp_path).cpus(8, threads_per_core=2).v2()
    tree.write("/sys/devices/system/cpu/online", "0-7").write("/sys/fs/cgroup/cpu.max", "300000 100000").write("/sys/fs/cgroup/memory.max", "2000000000")
    tree.write("/sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never")
    tree.write("/proc/meminfo", "MemTotal: 16000000 kB\nMemAvailable: 8000000 kB")
    tree.write("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "schedutil")
    text = dict(doctor.lines(doctor.facts(tmp_path)))
    assert text["cores"] == "4 with 8 hardware threads in the system; affinity allows 8: 4 performance cores"
    assert text["quota"] == "3 CPUs by cgroup" and text["threads"] == "by default 3 for generation (-t), 3 for prompts (-tb)"
    assert text["frequency"] == "governor schedutil" and text["huge pages"] == "always"
    assert text["memory"] == "16.38 GB in all, 2.00 GB available, 2.00 GB allowed by cgroup"


def test_limits_of_a_model(run, model):
    """Bytes and multiply-adds counted from the tensors; shares follow from them."""
    code, out, _ = run("doctor", model, "--run", "--json", "-t", 1)
    m = json.loads(out)["model"]
    layer = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96      # q and o, k and v of two KV heads of 16, feed-forward
    assert code == 0 and m["macs_per_token"] == 2 * layer and m["macs_of_head"] == 64 * 331
    assert m["bytes_per_token"] == (2 * layer + 64 * 331) // 32 * 34
    assert m["generation_share"] == pytest.approx(m["generation"] / m["generation_limit"]) and m["threads"] == 1
    assert m["prompt"] > 0
    code, out, _ = run("doctor", model)
    assert code == 0 and "limit" in out and "reached" not in out


@pytest.mark.parametrize("arch", ["deepseek2", "qwen3moe"])
def test_matrices_of_heads_and_experts_are_no_part_of_the_head(run, tmp_path, arch):
    """Of a token; the head is the vocabulary's rows alone."""
    path = write(tmp_path / "m.gguf", Spec(arch=arch))
    code, out, _ = run("doctor", str(path), "--json")
    m = json.loads(out)["model"]
    assert code == 0 and m["macs_of_head"] == 64 * 331 and m["macs_per_token"] > 0


@pytest.mark.parametrize("argv, said", [(["--run"], "--run"), (["x.gguf", "--run", "--quick"], "--run"), (["/no/such.gguf", "--quick"], "/no/such.gguf")])
def test_errors(run, argv, said):
    code, _, err = run("doctor", *argv)
    assert code == 1 and said in err and "Traceback" not in err


def test_on_a_terminal(run, monkeypatch, model):
    """rich draws: the same names are there."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    code, out, _ = run("doctor", model)
    assert code == 0 and all(word in out for word in ("scalar", "huge pages", "reads", "limit"))


@pytest.mark.parametrize("n", [0, 64, 4096, 100_000, 1 << 20])
@pytest.mark.parametrize("streams", [0, 1, 3, 8, 16])
def test_read_loops_stay_within_their_bytes(n, streams):
    """At the very end of a mapping: a byte too far would fault."""
    import mmap

    with mmap.mmap(-1, max(n, 1)) as m:
        start = ffi.from_buffer("char[]", m)
        size = -(-max(n, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        at = ffi.cast("void *", int(ffi.cast("uintptr_t", start)) + size - n)
        m[:] = b"\x01" * len(m)
        assert lib.pe_read_loop(at, n) == 0 == lib.pe_read_streams(at, n, streams)      # equal words cancel out
        ffi.release(start)


@pytest.mark.parametrize("tier", yardstick.PEAKS)
def test_every_tier_has_a_bare_loop(tier):
    if TIERS[tier] & ~lib.pe_cpu_isa():
        pytest.skip(f"this CPU has no {tier}")
    assert lib.pe_mac_loop(TIERS[tier], 20) == 2 * lib.pe_mac_loop(TIERS[tier], 10) > 0
    assert lib.pe_mac_loop(0, 10) == 0

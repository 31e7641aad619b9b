"""Memory before a load: what is counted, what is refused, what is offered instead; and that nothing else is taken."""
import json
import os
import re
import subprocess
import sys
import warnings
import weakref

import pytest

import pyengine
from pyengine import Llama, cli, errors, fit, machine, plan
from pyengine.cli import arguments
from pyengine.cli.fit import memory
from pyengine.gguf import GGUF
from tiny_gguf import Spec, write

MB = 1 << 20
SETTINGS = dict(max_seqs=4, max_tokens=64, max_wanted=32)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("fit") / "m.gguf"
    write(path, Spec(seed=3, n_layer=4, n_embd=64, n_head=4, n_head_kv=4, head_dim=32, n_ctx_train=32768, weight_type="Q8_0", n_vocab=331))
    return path


@pytest.fixture
def gguf(path):
    with GGUF(path) as g:
        yield g


@pytest.fixture
def short(monkeypatch):
    """Makes so much memory available, whatever models other tests have open."""
    monkeypatch.setattr(fit, "_open", weakref.WeakKeyDictionary())

    def make(n):
        monkeypatch.setattr(machine, "memory_available", lambda root="/": n)
    return make


def with_reserve(n):
    """What must be available for n bytes to be usable."""
    return max(n + fit.RESERVE_LEAST, -(-n * 10 // 9) + 1)


def settle(gguf, n_ctx, **more):
    program = plan.compile(gguf, n_ctx=n_ctx, **{**SETTINGS, **more})
    return fit.count(program, fit.one_sequence(program), n_threads=2)


# ---- the count ---------------------------------------------------------------------------------


def test_every_byte_that_a_program_allocates_is_counted(gguf):
    """The mappings of an open program, and its scratch, against the count made before."""
    found = fit.decide(gguf, n_ctx=1000, n_threads=3, **SETTINGS)
    program = found.program
    program.open(found.pages, 3)
    try:
        assert sum(len(m) for m in program._memory[4:]) == found.cache == 4 * found.sequence
        assert len(program._memory[0]) == found.arena
        assert found.other >= sum(len(m) for m in program._memory[1:4]) + gguf.header_bytes
        assert found.weights == os.path.getsize(gguf.path) and found.own == found.cache + found.arena + 3 * found.scratch + found.other
    finally:
        program.close()


def test_what_a_full_context_touches(path):
    """Row of issue C: KV pages are handed out on first touch, so a load shows little of what a long chat will need. The count is of
    all of it: a process whose every position is filled stays below."""
    code = f"""
import re, json
from pyengine import Llama
def anon(): return int(re.search(r'RssAnon:\\s+(\\d+)', open('/proc/self/status').read())[1]) * 1024
with Llama({str(path)!r}, n_ctx=8192, max_seqs=1, n_threads=2) as m:
    m.generate([5] * 10, max_tokens=2)
    before = anon()
    m.generate([7] * 8180, max_tokens=4, ignore_eos=True)
    print(json.dumps([m.memory.own, m.memory.sequence, anon() - before]))
"""
    if not os.path.exists("/proc/self/status"):
        pytest.skip("this system does not say what was touched")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    own, sequence, grown = json.loads(out.stdout)
    assert 0.8 * sequence < grown < own + 8 * MB            # what is more is the interpreter's


def test_sliding_windows_need_no_more_than_their_window(tmp_path):
    with GGUF(write(tmp_path / "g.gguf", Spec(arch="gemma3", n_layer=6, n_ctx_train=32768))) as g:
        a, b = settle(g, 8192), settle(g, 32768)
        full = [x for x in b.program.groups if not x.window]
        assert b.sequence - a.sequence == sum(x.page_bytes for x in full) * (32768 - 8192) // 64


# ---- decisions -----------------------------------------------------------------------------------


def test_what_was_asked_for_is_given_to_the_byte_and_no_further(gguf):
    """Only a program's own memory can be refused; the pools shrink to one sequence first."""
    one = settle(gguf, 4096)
    enough = with_reserve(one.least)
    found = fit.decide(gguf, n_ctx=4096, n_threads=2, free=enough, **SETTINGS)
    assert found.program.n_ctx == 4096 and found.cache == one.sequence and found.fits and not found.resident
    with pytest.raises(errors.MemoryBudgetError, match=r"n_ctx 4096 needs .* n_ctx \d+ would fit"):
        fit.decide(gguf, n_ctx=4096, n_threads=2, free=enough - 2 * MB, **SETTINGS)
    for free in (None, 1 << 40):
        assert fit.decide(gguf, n_ctx=4096, n_threads=2, free=free, **SETTINGS).cache == 4 * one.sequence
    some = fit.decide(gguf, n_ctx=4096, n_threads=2, free=with_reserve(one.least + one.weights + one.sequence), **SETTINGS)
    assert 1.9 * one.sequence < some.cache <= 2 * one.sequence and some.resident


@pytest.mark.parametrize("n_free", [40, 44, 50, 60, 80, 100])
def test_the_longest_that_fits(gguf, n_free):
    """Case 64 and n_ctx="auto": it fits, and a sixty-fourth more does not."""
    free = n_free * MB
    found = fit.decide(gguf, n_threads=2, free=free, **SETTINGS)
    n = found.program.n_ctx
    assert found.own <= fit.usable(free) and (n % 64 == 0 or n == 32768)
    if n < 32768:
        more = settle(gguf, n + max(128, n // 32))
        assert more.least + (more.weights if found.resident else 0) > fit.usable(free) // (1 if found.resident else 4)


def test_answers_of_contexts_hold(gguf):
    """What a refusal offers is given when it is asked for."""
    free = with_reserve(settle(gguf, 2048).least)
    ways = fit.contexts(gguf, 32768, free=free, n_threads=2, **SETTINGS)
    assert [w["with"] for w in ways][:2] == ["", " with kv_type='q8_0'"] or len(ways) == 1
    for way in ways:
        settings = {**SETTINGS, "max_tokens": way["n_batch"]}
        found = fit.decide(gguf, n_ctx=way["n_ctx"], n_threads=2, free=free, kv_type=way["kv_type"], **settings)
        assert found.least == way["own"] <= fit.usable(free)


def test_a_pool_of_so_many_positions(gguf, tmp_path):
    """cache_tokens is given to the page, at least one whole sequence, or refused with what would fit; windows hold no more than windows."""
    one, each = settle(gguf, 1024), settle(gguf, 1024).sequence // 16
    for tokens, pages in ((10000, 157), (1024, 16), (1, 16)):
        assert fit.decide(gguf, n_ctx=1024, n_threads=2, cache_tokens=tokens, **SETTINGS).cache == pages * each
    free = with_reserve(one.fixed + 100 * each)
    with pytest.raises(errors.MemoryBudgetError, match="cache_tokens 10000 needs .* cache_tokens 6400 would fit"):
        fit.decide(gguf, n_ctx=1024, n_threads=2, cache_tokens=10000, free=free, **SETTINGS)
    assert fit.decide(gguf, n_ctx=1024, n_threads=2, cache_tokens=6400, free=free, **SETTINGS).fits
    assert fit.decide(gguf, n_threads=2, cache_tokens=6400, free=with_reserve(one.fixed + 120 * each + one.weights), **SETTINGS).cache >= 100 * each
    with GGUF(write(tmp_path / "g.gguf", Spec(arch="gemma3", n_layer=6, n_ctx_train=32768))) as g:
        found = fit.decide(g, n_ctx=4096, n_threads=2, cache_tokens=100000, **SETTINGS)
        assert [n <= 4 * m if x.window else n == 1563 for n, m, x in zip(found.pages, fit.one_sequence(found.program), found.program.groups)] == [True] * 2


def test_nothing_fits(gguf):
    with pytest.raises(errors.MemoryBudgetError, match="no context fits"):
        fit.decide(gguf, n_threads=2, free=33 * MB, **SETTINGS)
    assert fit.usable(1) == fit.usable(0) == 0


def test_row_47_sizes_beyond_64_bits(tmp_path):
    """Sums of Python's integers do not wrap: the largest context of many layers is counted, and refused."""
    with GGUF(write(tmp_path / "w.gguf", Spec(n_ctx_train=2**31 - 1))) as g:
        assert settle(g, 2**31 - 1).sequence > 1 << 36
        with pytest.raises(errors.MemoryBudgetError):
            fit.decide(g, n_ctx=2**31 - 1, n_threads=2, free=1 << 33, **SETTINGS)


def test_quantizations_are_counted_by_block(gguf):
    """Q8_0 to Q4_0's sizes by hand: rows of 64 and 96 take blocks of 32."""
    offered = dict(fit.quantizations(gguf))
    matrices = [t for t in gguf.tensors.values() if len(t.shape) > 1]
    elements = sum(t.n_rows * t.shape[0] for t in matrices)
    rest = os.path.getsize(gguf.path) - sum(t.nbytes for t in matrices)
    assert offered["Q4_K"] == rest + elements // 32 * 22 and offered["IQ4_XS"] == rest + elements // 32 * 18
    assert "Q8_0" not in offered and list(offered.values()) == sorted(offered.values(), reverse=True)


# ---- loading --------------------------------------------------------------------------------------


def test_auto(path, short):
    short(48 * MB)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Llama(path, n_ctx="auto", n_threads=2) as llm:
            n = llm.n_ctx
            assert 64 <= n < 32768 and llm.memory.own <= fit.usable(48 * MB)
            assert llm.generate([5] * (n - 3), max_tokens=9, ignore_eos=True).usage["total_tokens"] == n
    with pytest.warns(UserWarning, match=f"cut from the model's own 32768 to {n}"), Llama(path, n_threads=2) as llm:
        assert llm.n_ctx == n
    short(1 << 40)
    with Llama(path, n_ctx="auto", n_threads=2) as llm:
        assert llm.n_ctx == 32768
    for bad in ("Auto", "max", ""):
        with pytest.raises(pyengine.RequestError, match="n_ctx"):
            Llama(path, n_ctx=bad)


def test_mapped_weights_that_do_not_stay_only_warn(path, gguf, short):
    found = settle(gguf, 64, max_tokens=512)
    short(with_reserve(found.least))
    with pytest.warns(UserWarning, match="parts of the file again") as seen, Llama(path, n_ctx=64, n_threads=2, max_seqs=1) as llm:
        assert llm.generate([5], max_tokens=2, ignore_eos=True).tokens
    assert len(seen) == 1
    with pytest.warns(UserWarning) as seen, Llama(path, n_ctx=64, n_threads=2, max_seqs=1, mlock=True):
        assert ["mlock left out" in str(w.message) for w in seen] == [False, True]


def test_private_weights_are_refused_before_they_are_read(path, gguf, short, monkeypatch):
    from pyengine.mapped import MappedFile

    short(fit.RESERVE_LEAST + os.path.getsize(path) - 1)
    monkeypatch.setattr(MappedFile, "_private", lambda self: pytest.fail("read before it was counted"))
    with pytest.raises(pyengine.MemoryBudgetError, match="mmap=False needs .*mmap=True"):
        Llama(path, n_ctx=64, mmap=False)
    monkeypatch.undo()
    short(fit.RESERVE_LEAST + os.path.getsize(path) + 1000)         # room for them alone
    with pytest.raises(pyengine.MemoryBudgetError, match="weights read with mmap=False.*mmap=True needs no memory"):
        Llama(path, n_ctx=64, mmap=False)


def test_a_second_model_does_not_count_on_what_the_first_was_promised(path, short):
    """Nothing of the first cache is touched yet, so the system still calls it free."""
    with GGUF(path) as g:
        want = settle(g, 32768, max_tokens=512).least
    short(with_reserve(int(1.5 * want) + machine.memory_touched() + 64 * MB))
    with Llama(path, n_ctx=32768, max_seqs=1, n_threads=2) as first:
        left = fit.free()
        assert left <= machine.memory_available() - first.memory.own + machine.memory_touched()
        assert left < machine.memory_available() or machine.memory_touched() >= first.memory.own
    assert fit.free() == machine.memory_available()                  # given back with close()


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space as Linux counts them")
@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_under_a_limit_of_the_process(path, limit):
    """ulimit -v and -d: the context follows from what is left, and works. More is refused by name."""
    code = f"""
import resource, warnings
from pyengine import Llama, fit, machine, MemoryBudgetError
import pyengine.stream
warnings.simplefilter("ignore")
used = [int(n) * resource.getpagesize() for n in open('/proc/self/statm').read().split()]
resource.setrlimit(resource.{limit}, (used[{0 if limit == "RLIMIT_AS" else 5}] + (room := {44 if limit == 'RLIMIT_DATA' else 120} << 20),) * 2)
assert machine.memory_available() <= room
try:
    Llama({str(path)!r}, n_ctx=1 << 20, n_threads=1)
    print("not refused")
except MemoryBudgetError as e:
    print("refused", "would fit" in str(e))
with Llama({str(path)!r}, n_ctx="auto", n_threads=1, max_seqs=1) as m:
    print(m.n_ctx, m.generate([7] * min(2000, m.n_ctx - 2), max_tokens=4, ignore_eos=True).finish_reason)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert out.returncode == 0, out.stderr
    lines = out.stdout.split()
    assert lines[:2] == ["refused", "True"] and int(lines[2]) >= 64 and lines[3] == "length"


# ---- the command line --------------------------------------------------------------------------------


@pytest.fixture
def run(capsys):
    def call(*argv):
        code = cli.main([str(a) for a in argv])
        return (code, *capsys.readouterr())
    return call


def test_table(run, path):
    code, out, _ = run("fit", path, "--memory", "4G")
    names = [line[:12].strip() for line in out.splitlines()]
    assert code == 0 and {"model", "weights", "KV cache", "arena", "threads", "its own", "available", "verdict", "if n_ctx is"} <= set(names)
    assert "fits, weights and all, with n_ctx 32768" in out and "quantized" not in names


def test_table_of_what_does_not_fit(run, path):
    code, out, _ = run("fit", path, "--memory", "60M", "-c", "32768")
    assert code == 1 and "does not fit: n_ctx 32768 needs" in out
    offered = re.search(r"context +up to (\d+): ", out)
    assert offered and run("fit", path, "--memory", "60M", "-c", offered[1])[0] == 0
    assert "quantized" in out and re.search(r"with kv_type='q8_0'", out)


def test_json_equals_what_loading_does(run, path, short):
    short(70 * MB)
    code, out, _ = run("fit", path, "--json", "-t", 2, "-c", "auto")
    report = json.loads(out)
    with Llama(path, n_ctx="auto", n_threads=2) as llm:
        assert (report["n_ctx"], report["bytes"]["own"], report["bytes"]["weights"]) == (llm.n_ctx, llm.memory.own, os.path.getsize(path))
    assert code == 0 and report["available"] == 70 * MB and all(c["least"] > 0 for c in report["contexts"])
    assert {c["kv_type"] for c in report["contexts"]} == {"f16", "q8_0", "q4_0"}


def test_weights_beyond_memory_run_and_say_so(run, path, gguf, short):
    code, out, _ = run("fit", path, "-c", 64, "-t", 2, "-np", 1, "--memory", with_reserve(settle(gguf, 64, max_tokens=512).least) + 4096)
    assert code == 0 and "not all weights stay in memory" in out and "quantized" in out


def test_heads_that_blocks_do_not_fit(run, tmp_path):
    odd = write(tmp_path / "o.gguf", Spec())
    code, out, _ = run("fit", odd, "--json")
    assert code == 0 and {c["kv_type"] for c in json.loads(out)["contexts"]} == {"f16"}


def test_a_header_alone(run, path, gguf, tmp_path):
    """Fetched without its weights and made as long as the whole: the same report but for the name."""
    short, sparse = tmp_path / "short.gguf", tmp_path / "sparse.gguf"
    head = path.read_bytes()[: gguf.header_bytes]
    short.write_bytes(head)
    sparse.write_bytes(head)
    os.truncate(sparse, os.path.getsize(path))
    reports = [json.loads(run("fit", p, "--json", "--memory", "4G")[1]) for p in (path, sparse)]
    assert reports[0].pop("path") != reports[1].pop("path") and reports[0] == reports[1]
    code, _, err = run("fit", short)
    need = max(t.offset + t.nbytes for t in gguf.tensors.values())
    assert code == 1 and str(need) in err.replace(",", "")


@pytest.mark.parametrize("text, n", [("1G", 1 << 30), ("1.5GiB", 3 << 29), ("900M", 900 << 20), ("123456", 123456), ("2k", 2048), ("1 TB", 1 << 40)])
def test_sizes(text, n):
    assert memory(text) == n


@pytest.mark.parametrize("argv", [["--memory", "much"], ["--memory", "-1"], ["-c", "some"], ["-b", "0"], ["-np", "-1"], ["/no/such.gguf"]])
def test_errors(run, path, argv):
    code, _, err = run("fit", *argv[:1], *argv[1:], *([path] if argv[0].startswith("-") else []))
    assert code in (1, 2) and err and "Traceback" not in err


def test_auto_on_the_command_line(run, path):
    assert arguments.context("auto") == "auto" and arguments.context("12") == 12
    code, out, _ = run("run", "-m", path, "-p", "hi", "-n", 1, "-c", "auto", "-q")
    assert code == 0

"""Tuning: a choice never changes an answer, a bad file never does harm, and measured times become the right choice."""

import itertools
import json
import os
import time

import numpy as np
import pytest

from pyengine import Llama, errors, machine, plan, tune
from pyengine.native import Row, lib, rows
from pyengine.plan.lower import Kernels, choose, covers
from runner import Runner
from tiny_gguf import Spec, write

PROMPT = [(37 * i) % 300 + 3 for i in range(41)]
TYPES = (("attn_q.weight", "Q4_1"), ("attn_k.weight", "Q6_K"), ("ffn_down.weight", "Q8_0"), ("ffn_up.weight", "Q5_0"), ("output.weight", "F16"))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A model of many weight types."""
    path = tmp_path_factory.mktemp("tune") / "mixed.gguf"
    write(path, Spec(seed=5, weight_type="Q4_K", types=TYPES, n_embd=256, n_ff=(512,)))
    return path


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache folder of its own, with tuning switched on."""
    monkeypatch.setenv("PYENGINE_CACHE", str(tmp_path))
    monkeypatch.setenv("PYENGINE_TUNE", "1")
    return tmp_path


def shapes_of(path, tuned=None):
    """{shape: Kernels} of a model's program."""
    from pyengine.gguf import GGUF

    with GGUF(path) as gguf:
        return {tune.shape_of(i): i.kernels for i in plan.compile(gguf, n_ctx=64, tuned=tuned).instrs if i.kernels}


def answers(path, tuned=None):
    """Bits of the logits over a prompt in pieces of 1, 2, 3, 5, 9 and 21 tokens, and greedy tokens."""
    with Runner(path, n_ctx=128, max_tokens=64, tuned=tuned) as r:
        out, at = [], 0
        for n in (1, 2, 3, 5, 9, 21):
            out.append(r.step([(0, at, PROMPT[at : at + n])], range(n)).tobytes())
            at += n
        return out, r.greedy(PROMPT, 8)


def test_no_choice_changes_an_answer(mixed, cache):
    """Every legal row in every place, with odd switch points, by way of the file that tune writes."""
    static = shapes_of(mixed)
    want = answers(mixed)
    legal = {}
    for shape, kernels in static.items():
        wtype = rows()[kernels.rows[0]].wtype
        fit = [r for r in rows() if r.wtype == wtype and r.isa & lib.pe_cpu_isa() == r.isa and r.act == kernels.act]
        legal[shape] = [tune.Choice((a.name, b.name, c.name), few, many, {1: 0.5}, "2026-01-01")
                        for few, many in ((2, 8), (2, 3), (3, 4), (1, 2), (6, 20), (2, tune.NEVER), (tune.NEVER, tune.NEVER), (1, 1))
                        for a, b, c in itertools.product(fit, repeat=3)
                        if covers(a, 1, few - 1) and covers(b, few, many - 1) and covers(c, many, 1 << 30)]
    # each round gives every shape its next legal choice, so all of them have been run in the end; the last rows first
    tried = set()
    for n in range(max(len(c) for c in legal.values())):
        chosen = {shape: c[n % len(c)] for shape, c in legal.items()}
        new = {(shape, c.rows[slot], slot) for shape, c in chosen.items() for slot in range(3)} - tried
        if not new and n % 16:
            continue                 # a mixture of rows and places that were all tried
        tried |= new
        tune.save(tune.Tuned(chosen))
        tuned = tune.load()
        assert tuned.reason is None
        assert all(k.why.startswith("tuned 2026-01-01: 2.00x at 1") for k in shapes_of(mixed, tuned).values())
        assert answers(mixed, tuned) == want
    assert len({name for _, name, _ in tried}) > len(static)


@pytest.mark.parametrize("rows_of, few, many, said", [
    (("mm_f32_scalar", 0, 0), 2, 8, "no row for this type"),
    (("", 0, 0), 2, 8, "no row for this type"),
    ((2, 1, 2), 2, 8, "tokens and is chosen for 1..1"),
    ((0, 2, 2), 2, 8, "chosen for 2..7"),
    ((0, 1, 1), 2, 8, "chosen for 8.."),
    ((1, 1, 2), 5, 8, "chosen for 1..4"),
])
def test_an_illegal_choice_is_refused_by_name(rows_of, few, many, said):
    table = [Row(i, f"mm_{name}", 7, 1, 0, lo, hi) for i, (name, lo, hi) in enumerate((("one", 1, 1), ("few", 2, 7), ("many", 8, 1 << 31)))]
    names = tuple(x if isinstance(x, str) else table[x].name for x in rows_of)
    got = choose(7, "Q5_1", table, 0, tune.Choice(names, few, many, {}))
    assert got.rows == (0, 1, 2) and (got.few, got.many) == (2, 8)
    assert got.why.startswith("static order; tuned choice refused: ") and said in got.why


def test_rows_beyond_the_instruction_set_are_refused(mixed):
    """A file of a wider tier under PYENGINE_ISA=scalar."""
    wide = [r for r in rows() if r.isa & lib.pe_cpu_isa() == r.isa and r.isa and r.n_min == 1]
    if not wide:
        pytest.skip("this CPU runs the scalar tier only")
    names = (wide[0].name,) * 3
    got = choose(wide[0].wtype, "X", rows(), 0, tune.Choice(names, tune.NEVER, tune.NEVER, {}))
    assert "instruction set" in got.why and all(rows()[i].isa == 0 for i in got.rows)


# ---- the file -------------------------------------------------------------------------------

def write_tune(change):
    """A good file, changed."""
    choice = tune.Choice(("mm_q4_0_scalar",) * 3, 2, 8, {1: 0.9}, "2026-01-01")
    path = tune.save(tune.Tuned({("Q4_0", 64, 64): choice}, {"0123": (1, 1)}))
    assert tune.load().shapes == {("Q4_0", 64, 64): choice} and tune.load().models == {"0123": (1, 1)}
    data = json.loads(path.read_text())
    text = change(data)
    path.write_bytes(text if isinstance(text, bytes) else json.dumps(data).encode())
    return path


def into(**changed):
    return lambda data: data["shapes"]["Q4_0 64 64"].update(changed)


@pytest.mark.parametrize("change, reason", [
    (lambda d: b"", "not JSON"),
    (lambda d: b"{", "not JSON"),
    (lambda d: b"\xff\xfe{}", "not ASCII"),
    (lambda d: b"[" * 200_000, "RecursionError"),
    (lambda d: b" " * (tune.MAX_BYTES + 1), "more than"),
    (lambda d: b"[]", "not a JSON object"),
    (lambda d: b"1" * 100_000, "not JSON"),
    (lambda d: d.update(version=0), "version 0, expected 1"),
    (lambda d: d.pop("version"), "version None"),
    (lambda d: d["machine"].update(cpu="another"), "another machine"),
    (lambda d: d["machine"].update(cpus=4096), "another machine"),
    (lambda d: d.update(kernels="0"), "other kernels"),
    (lambda d: d.update(shapes=[]), "shapes or models"),
    (lambda d: d["shapes"].update({"x": {}}), "not TYPE K ROWS"),
    (lambda d: d["shapes"].update({"Q4_0 64 64": 3}), "not TYPE K ROWS"),
    (into(rows=["a", "b"]), "three names"),
    (into(rows=["a", "b", "\x1b[31m"]), "three names"),
    (into(rows=["a", "b", 3]), "three names"),
    (into(few=0), "few and many"),
    (into(few="2"), "few and many"),
    (into(few=9), "few and many"),
    (into(many=10**30), "few and many"),
    (into(many=True), "few and many"),
    (into(ratios={"1": float("nan")}), "ratios"),
    (into(ratios={"1": 0}), "ratios"),
    (into(ratios={"1": "x"}), "ratios"),
    (into(date="\x1b]0;x"), "date"),
    (lambda d: d["models"].update({"k": {"decode": 0, "prompt": 1}}), "threads"),
    (lambda d: d["models"].update({"k": {"decode": 100000, "prompt": 1}}), "threads"),
    (lambda d: d["models"].update({"k": {"decode": 1}}), "threads"),
])
def test_a_bad_file_is_ignored_with_the_reason(cache, change, reason):
    write_tune(change)
    found = tune.load()
    assert not found.shapes and not found.models and found.choice("Q4_0", 64, 64) is None
    assert found.reason.startswith("tune file ignored: ") and reason in found.reason and found.reason.isprintable()


@pytest.mark.parametrize("put, reason", [
    (lambda p: p.mkdir(), "directory"),
    (lambda p: os.mkfifo(p), "not a regular file"),
    (lambda p: p.symlink_to("/dev/zero"), "not a regular file"),
    (lambda p: p.symlink_to(p), "symbolic links"),
])
def test_something_else_in_its_place_neither_hangs_nor_fails(cache, put, reason):
    path = write_tune(lambda d: None)
    path.unlink()
    put(path)
    assert reason in tune.load().reason.lower()


def test_no_file_and_switches(cache, monkeypatch, mixed):
    assert "nothing has been tuned" in tune.load().reason
    write_tune(lambda d: None)
    assert tune.load().reason is None
    assert tune.load("scalar").reason != tune.load().reason or lib.pe_cpu_isa() == 0      # another tier, another file
    monkeypatch.setenv("PYENGINE_TUNE", "0")
    assert "PYENGINE_TUNE=0" in tune.load().reason
    monkeypatch.setenv("PYENGINE_TUNE", "maybe")
    with pytest.raises(errors.RequestError, match="PYENGINE_TUNE is 'maybe', expected 0 or 1"):
        tune.load()


def test_written_whole_or_not_at_all_and_merged(cache, monkeypatch):
    path = write_tune(lambda d: None)
    before = path.read_bytes()
    more = tune.Tuned({("Q8_0", 32, 9): tune.Choice(("a", "b", "c"), 2, 8, {}, "")})
    with monkeypatch.context() as m:
        m.setattr(os, "replace", lambda *a: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError):
            tune.save(more)
    assert path.read_bytes() == before and os.listdir(path.parent) == [path.name]
    tune.save(more)
    assert set(tune.load().shapes) == {("Q4_0", 64, 64), ("Q8_0", 32, 9)} and tune.load().models == {"0123": (1, 1)}


# ---- from times to a choice --------------------------------------------------------------------

TABLE = [Row(i, name, 7, 1, 1, lo, hi) for i, (name, lo, hi) in enumerate(
    [("one", 1, 1), ("few", 2, 7), ("many", 8, 1 << 31), ("wide_one", 1, 1), ("wide_few", 2, 15), ("wide_many", 4, 1 << 31), ("all", 1, 1 << 31)])]
STATIC = Kernels((0, 1, 2), ("one", "few", "many"), 2, 8, 1)
COUNTS = (1, 2, 4, 8, 16, 128)


def ratios(**times):
    """times: row -> function of n. The static order's are 1."""
    usual = {n: STATIC.names[2 if n >= 8 else 1 if n >= 2 else 0] for n in COUNTS}
    at = {r.name: r for r in TABLE}
    return {n: {usual[n]: 1.0, **{r: f(n) for r, f in times.items() if at[r].n_min <= n <= at[r].n_max}} for n in COUNTS}


@pytest.mark.parametrize("times, names, few, many", [
    ({}, ("one", "few", "many"), 2, 8),
    ({"wide_one": lambda n: 0.98, "wide_many": lambda n: 1.02}, ("one", "few", "many"), 2, 8),       # noise
    ({"wide_one": lambda n: 0.8}, ("wide_one", "few", "many"), 2, 8),
    ({"wide_many": lambda n: 0.5 if n >= 16 else 1.5}, ("one", "few", "wide_many"), 2, 8),          # three slots: a loss at 8
    ({"wide_few": lambda n: 0.8, "wide_many": lambda n: 0.9 if n >= 16 else 1.1}, ("one", "wide_few", "wide_many"), 2, 16),
    ({"wide_few": lambda n: 0.8, "wide_many": lambda n: 0.5}, ("one", "wide_few", "wide_many"), 2, 4),
    ({"all": lambda n: 0.5}, ("all", "all", "all"), tune.NEVER, tune.NEVER),
])
def test_pick(times, names, few, many):
    got = tune.pick(TABLE, STATIC, ratios(**times), covers)
    assert (got.rows, got.few, got.many) == (names, few, many)
    assert set(got.ratios) == set(COUNTS)


def test_pick_is_always_legal():
    rng = np.random.default_rng(3)
    for _ in range(200):
        speed = {r.name: rng.uniform(0.5, 2.0) for r in TABLE if rng.random() < 0.7}
        got = tune.pick(TABLE, STATIC, ratios(**{k: lambda n, v=v: v * rng.uniform(0.8, 1.2) for k, v in speed.items()}), covers)
        assert choose(7, "Q5_1", TABLE, 1, got).names == got.rows


def test_threads(monkeypatch):
    assert tune.best_threads({1: 1.0, 2: 0.9, 4: 0.95}, 4) == 4          # within the margin: as usual
    assert tune.best_threads({1: 1.0, 2: 0.5, 4: 0.9, 8: 0.49}, 4) == 2  # the fewest near the fastest
    monkeypatch.setattr(machine, "quota", lambda: 2.5)
    monkeypatch.setattr(machine, "allowed_cpus", lambda: list(range(16)))
    assert tune.thread_counts(8, 8) == [2, 3]
    monkeypatch.setattr(machine, "quota", lambda: None)
    assert tune.thread_counts(8, 8) == [2, 4, 6, 8, 16] and tune.thread_counts(3, 12) == [3, 6, 9, 12, 16]


def test_measured_on_this_machine(mixed, cache):
    from pyengine.gguf import GGUF

    with GGUF(mixed) as gguf:
        said = []
        tuned, figures = tune.measure(gguf, seconds=1.0, progress=lambda share, what: said.append(share))
        key = tune.model_key(gguf)
    assert set(tuned.shapes) == set(shapes_of(mixed)) and set(tuned.models) == {key}
    assert said[-1] == 1.0 and all(0 <= s <= 1 for s in said)
    assert all(s > 0 for times in figures.values() for s in times.values())
    for shape, kernels in shapes_of(mixed, tuned).items():
        assert kernels.names == tuned.shapes[shape].rows and "refused" not in kernels.why
    tune.save(tuned)
    with Llama(mixed, n_ctx=64) as model:
        assert model.tuned.shapes == tune.load().shapes and (model.n_threads, model.n_threads_batch) == tuned.models[key]
    with Llama(mixed, n_ctx=64, tune=False, n_threads=1) as model:
        assert not model.tuned.shapes and model.n_threads == 1


# ---- the command line -----------------------------------------------------------------------------

@pytest.mark.skipif(not lib.pe_cpu_isa(), reason="the scalar tier has one row for each type")
def test_experts_are_tuned_by_the_token_alone(tmp_path, cache):
    """Of many tokens each expert has some only, so that times say nothing of its rows for that many."""
    from pyengine.gguf import GGUF

    path = write(tmp_path / "experts.gguf", Spec(n_expert=4, n_embd=256, n_ff=512, weight_type="Q4_0"))
    with GGUF(path) as gguf:
        layers, static = tune.measured_layers(gguf, None, 0)
        candidates = {shape: [r for r in rows() if r.wtype == wtype and r.isa & lib.pe_cpu_isa() == r.isa and r.act == kernels.act]
                      for shape, (wtype, kernels) in static.items()}
        for n, measured in ((1, True), (8, False)):
            ratios = {shape: {} for shape in static}
            tune._rows_at(gguf, layers, None, 1, n, static, candidates, ratios, time.monotonic() + 1, lambda: None)
            assert (len(ratios["Q4_0", 256, 512][n]) > 1) == measured and len(ratios["Q4_0", 256, 256][n]) > 1


def test_commands(mixed, cache, capsys, monkeypatch):
    """tune writes and prints; explain says what was chosen and why; --no-tune and the switch ignore it; --forget removes it."""
    from pyengine import cli

    def run(*argv):
        code = cli.main([str(a) for a in argv])
        return code, capsys.readouterr().out

    assert "tune: nothing has been tuned" in run("explain", mixed)[1]
    code, out = run("tune", mixed, "--seconds", 1, "--dry-run")
    assert code == 0 and "not remembered" in out and not tune.folder().exists()
    code, out = run("tune", mixed, "--seconds", 1)
    assert code == 0 and "Q6_K 256 x 128" in out and "threads for generation" in out and "remembered in" in out
    out = run("explain", mixed)[1]
    assert "kernels of Q6_K 256 x 128: " in out and ": tuned 2" in out and str(tune.folder()) in out
    for off in (run("explain", mixed, "--no-tune")[1], (monkeypatch.setenv("PYENGINE_TUNE", "0"), run("explain", mixed)[1])[1]):
        assert "switched off" in off and ": static order" in off and "tuned 2" not in off
    monkeypatch.setenv("PYENGINE_TUNE", "1")
    next(tune.folder().iterdir()).write_text("{}")
    assert "tune file ignored: version None" in run("explain", mixed)[1] and "tune file ignored" in run("doctor", "--quick")[1]
    assert run("run", "-m", mixed, "-p", "ab", "-n", 2, "-q")[0] == 0       # ignored, not fatal
    assert run("tune", "--forget")[0] == 0 and not list(tune.folder().iterdir())
    assert run("tune", mixed, "--seconds", 0)[0] == 1

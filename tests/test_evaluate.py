"""Perplexity and comparison of models: what is measured is what is said, and no setting changes a digit."""
import dataclasses
import json
import math
import sys

import numpy as np
import pytest
from texts import PASSAGES
from tiny_gguf import Spec, write

import pyengine
from pyengine import Llama, RequestError, cli, evaluate
from pyengine.errors import NonFiniteError
from pyengine.evaluate import compare, percentile, perplexity
from pyengine.native import ffi, lib
from pyengine.sampling import best_vops

TEXT = " ".join(PASSAGES[0].split())
SPEC = Spec(seed=4, n_embd=256, n_ff=(256,), vocabulary="spm")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The same model in three types, the vocabulary of another, and one whose logits are all 0."""
    folder = tmp_path_factory.mktemp("evaluate")
    out = {kind: write(folder / f"tiny.{kind}.gguf", dataclasses.replace(SPEC, weight_type=kind)) for kind in ("F32", "Q8_0", "Q4_0")}
    zeros = np.zeros((SPEC.n_vocab, SPEC.n_embd), np.float32)
    out["uniform"] = write(folder / "uniform.gguf", SPEC, tensors={"output.weight": zeros})
    out["other"] = write(folder / "other.gguf", dataclasses.replace(SPEC, n_vocab=340))
    out["bpe"] = write(folder / "bpe.gguf", dataclasses.replace(SPEC, vocabulary="bpe"))
    return out


# ---- rows (divergence.c) -------------------------------------------------------------


def read(p, q=None, vops=None):
    r = ffi.new("pe_divergence *")
    r.p, r.n = ffi.cast("float *", p.ctypes.data), len(p)
    r.q = ffi.NULL if q is None else ffi.cast("float *", q.ctypes.data)
    return lib.pe_divergence_run(r, vops or best_vops()), r


def in_double(p, q):
    def logs(x):
        x = x.astype(np.longdouble) - x.max()
        return x - np.log(np.exp(x).sum())

    a, b = logs(p), logs(q)
    return float((np.exp(a) * (a - b)).sum())


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 331, 1024, 1025, 5003])
@pytest.mark.parametrize("size", [0.0, 1e-6, 1e-3, 0.05, 1.0, 30.0])
def test_divergence_of_rows(n, size):
    """Against 80-bit floats, for models that all but agree as for others; the float exponential's error is relative."""
    rng = np.random.default_rng(n)
    p = (4 * rng.standard_normal(n)).astype(np.float32)
    q = (p + size * rng.standard_normal(n)).astype(np.float32)
    code, r = read(p, q)
    assert code == 0 and (r.p_best, r.q_best) == (p.argmax(), q.argmax())
    kl, want = r.mean + math.log1p(r.change), in_double(p, q)
    assert kl == pytest.approx(want, rel=2e-5, abs=1e-15)
    if size == 0:
        assert kl == 0.0
    assert math.log(r.p_sum) == pytest.approx(float(np.log(np.exp(p.astype(np.float64) - p.max()).sum())), abs=3e-7)


def test_rows_have_the_same_bits_on_every_tier():
    rng, n = np.random.default_rng(1), ffi.new("int32_t *")
    tables = lib.pe_vops_all(n)
    p = (6 * rng.standard_normal(4099)).astype(np.float32)
    q = (p + rng.standard_normal(4099)).astype(np.float32)
    found = set()
    for i in range(n[0]):
        if not tables[i].isa & ~lib.pe_cpu_isa():
            code, r = read(p, q, tables + i)
            found.add((code, r.p_sum, r.q_sum, r.mean, r.change))
    assert len(found) == 1


def test_extremes_of_rows():
    p, q = np.array([0, -1e30, 3e38], np.float32), np.array([3e38, 0, -1e30], np.float32)
    code, r = read(p, q)
    assert code == 0 and math.isfinite(r.mean + math.log1p(r.change)) and r.mean > 1e38
    for bad in (np.nan, np.inf, -np.inf):
        p[1] = bad
        assert read(p)[0] == read(q, p)[0] == lib.PE_ENONFINITE
        with pytest.raises(NonFiniteError):
            evaluate._Reader(3).nll(p.ctypes.data, 0)
    r = ffi.new("pe_divergence *")
    assert lib.pe_divergence_run(r, best_vops()) == lib.PE_EINVAL
    ties = np.array([1, 2, 2], np.float32)
    assert read(ties)[1].p_best == 1


# ---- perplexity ------------------------------------------------------------------------


def test_a_uniform_model_has_the_vocabulary_as_its_perplexity(files):
    found = perplexity(files["uniform"], TEXT, n_ctx=32)
    assert found.perplexity == pytest.approx(SPEC.n_vocab, rel=1e-12) and found.error == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("n_ctx, stride", [(32, None), (33, None), (100, None), (48, 16), (64, 63)])
def test_windows_and_what_is_scored(files, n_ctx, stride):
    """Against a plain loop over Llama.logits(): the second half of each window, or its last `stride` tokens, BOS first."""
    nll = []
    with Llama(files["F32"], n_ctx=n_ctx) as llm:
        tokens = llm.tokenize(TEXT)[:400]
        assert tokens[0] == llm.tokenizer.bos and llm.tokenizer.add_bos
        first = n_ctx // 2 if stride is None else n_ctx - stride - 1
        starts = range(0, len(tokens) - n_ctx + 1, stride or n_ctx)
        for at in starts:
            window = [llm.tokenizer.bos, *tokens[at + 1 : at + n_ctx]]
            rows = llm.logits(window).astype(np.float64)
            for j in range(first, n_ctx - 1):
                nll.append(np.log(np.exp(rows[j] - rows[j].max()).sum()) + rows[j].max() - rows[j][window[j + 1]])
    found = perplexity(files["F32"], tokens, n_ctx=n_ctx, stride=stride)
    assert (found.scored, found.windows, found.tokens) == (len(nll), len(starts), 400)
    assert found.unused == 400 - (starts[-1] + n_ctx)
    assert found.nll == pytest.approx(np.mean(nll), abs=2e-6) and found.perplexity == pytest.approx(math.exp(np.mean(nll)), rel=2e-6)
    assert found.error == pytest.approx(found.perplexity * np.std(nll) / math.sqrt(len(nll) - 1), rel=1e-5)


def test_no_setting_changes_a_digit(files):
    plain = dataclasses.replace(perplexity(files["Q4_0"], TEXT, n_ctx=40, n_threads=1), seconds=0)
    for settings in (dict(n_threads=3), dict(n_batch=7), dict(n_batch=160, n_threads=2), dict(isa="scalar"), dict(fuse=False), dict(mmap=False)):
        assert dataclasses.replace(perplexity(files["Q4_0"], TEXT, n_ctx=40, **settings), seconds=0) == plain, settings
    with Llama(files["Q4_0"], n_ctx=64, max_seqs=2) as llm:
        for _ in range(2):               # cold, then from the prefix cache
            assert dataclasses.replace(perplexity(llm, TEXT, n_ctx=40), seconds=0) == plain
        with pytest.raises(RequestError, match="n_ctx: found 65, and the open model has 64"):
            perplexity(llm, TEXT, n_ctx=65)
        with pytest.raises(RequestError, match="n_threads: the model is open already"):
            perplexity(llm, TEXT, n_threads=2)


def test_progress_ends_with_the_result(files):
    seen = []
    found = perplexity(files["Q8_0"], TEXT, n_ctx=32, chunks=5, progress=lambda *state: seen.append(state))
    assert [s[:2] for s in seen] == [(i, 5) for i in range(1, 6)] and found.windows == 5
    assert seen[-1][2:] == (pytest.approx(found.perplexity, rel=1e-12), pytest.approx(found.error, rel=1e-6))
    assert pyengine.perplexity is perplexity and pyengine.compare is compare


@pytest.mark.parametrize("what, says", [
    (dict(text="ab", n_ctx=64), "a longer text is needed, or a smaller n_ctx"),
    (dict(text="", n_ctx=64), "text: "),
    (dict(text=[10**6] * 50, n_ctx=32), "text: entry 0"),
    (dict(text=3.5), "text: found float"),
    (dict(text=TEXT, n_ctx=3), "n_ctx: found 3"),
    (dict(text=TEXT, n_ctx=32, stride=32), "stride: found 32"),
    (dict(text=TEXT, n_ctx=32, chunks=0), "chunks: found 0"),
    (dict(text=TEXT, n_ctx=32, n_batch="x"), "n_batch"),
    (dict(text=TEXT, n_ctx=32, max_seqs=2), "max_seqs: is set here"),
    (dict(text=TEXT, n_ctx=32, speculate=None), "speculate: is set here"),
])
def test_what_is_refused(files, what, says):
    with pytest.raises(RequestError, match=says):
        perplexity(files["F32"], **what)


# ---- comparison --------------------------------------------------------------------------


def test_a_model_beside_itself(files):
    """Exactly 0, whatever the rest of the machinery does."""
    found = compare(files["Q4_0"], files["Q4_0"], TEXT, n_ctx=32, chunks=4, speed=False)
    a, b = found.models
    assert (b.kl, b.kl_error, b.kl_99, b.kl_max, b.same_best, b.ratio) == (0.0, 0.0, 0.0, 0.0, 1.0, 1.0)
    assert a == b and a.generation is None and found.reference is a


def test_comparison_against_numpy(files):
    """Windows that do not end with a page, blocks that do not end with a window, and the numbers of both models' rows."""
    n_ctx, kls, same, nll = 150, [], 0, []
    with Llama(files["F32"], n_ctx=n_ctx) as a, Llama(files["Q4_0"], n_ctx=n_ctx) as b:
        tokens = a.tokenize(TEXT)
        for at in range(0, len(tokens) - n_ctx + 1, n_ctx):
            window = [a.tokenizer.bos, *tokens[at + 1 : at + n_ctx]]
            for j, (p, q) in enumerate(zip(a.logits(window), b.logits(window))):
                if n_ctx // 2 <= j < n_ctx - 1:
                    kls.append(in_double(p, q))
                    same += p.argmax() == q.argmax()
                    nll.append(-float(q[window[j + 1]]) + float(q.max()) + math.log(np.exp(q.astype(np.float64) - q.max()).sum()))
    found = compare(files["F32"], [files["Q8_0"], files["Q4_0"]], TEXT, n_ctx=n_ctx, speed=False)
    c = found.models[2]
    assert found.scored == len(kls) and found.unused == len(tokens) % n_ctx
    assert c.kl == pytest.approx(np.mean(kls), rel=1e-6) and c.kl_max == pytest.approx(max(kls), rel=1e-5)
    assert c.kl_99 == pytest.approx(np.percentile(kls, 99), rel=1e-5) and c.kl_median == pytest.approx(np.percentile(kls, 50), rel=1e-5)
    assert c.same_best == same / len(kls) and c.perplexity == pytest.approx(math.exp(np.mean(nll)), rel=1e-6)
    assert c.kl_error == pytest.approx(np.std(kls) / math.sqrt(len(kls) - 1), rel=1e-5)
    assert 0 < found.models[1].kl < c.kl and c.ratio == c.perplexity / found.reference.perplexity
    assert c.size == files["Q4_0"].stat().st_size and 4.5 < c.bits_per_weight < found.models[1].bits_per_weight < 32
    assert found.reference.perplexity == perplexity(files["F32"], TEXT, n_ctx=n_ctx).perplexity
    assert c.perplexity == perplexity(files["Q4_0"], TEXT, n_ctx=n_ctx).perplexity


def test_comparison_does_not_depend_on_how(files, monkeypatch):
    """Threads, small blocks, and models that go one by one because memory does not hold all."""
    def figures(**settings):
        return compare(files["F32"], [files["Q8_0"], files["Q4_0"]], TEXT, n_ctx=140, speed=False, **settings).models

    plain = figures(n_threads=1)
    assert figures(n_threads=3) == plain
    monkeypatch.setattr(evaluate, "BLOCK_BYTES", 1)
    assert evaluate._block_rows(SPEC.n_vocab) == 64 and figures() == plain
    opened = []
    monkeypatch.setattr(evaluate, "_side_by_side", lambda first, models, *rest, run=evaluate._side_by_side: (opened.append(list(models)), run(first, models, *rest)))
    real = evaluate.fit.usable
    monkeypatch.setattr(evaluate, "_groups", lambda *a, run=evaluate._groups: within(monkeypatch, real, run, *a))
    assert figures() == plain and opened == [[1], [2]]


def within(monkeypatch, real, run, *args):
    """Groups as they are made where memory is gone; the models themselves find enough."""
    monkeypatch.setattr(evaluate.fit, "usable", lambda free: 0)
    try:
        return run(*args)
    finally:
        monkeypatch.setattr(evaluate.fit, "usable", real)


def test_speed_is_measured(files):
    seen = []
    found = compare(files["F32"], files["Q8_0"], TEXT, n_ctx=64, chunks=1, progress=lambda *state: seen.append(state))
    assert all(m.generation > 0 and m.prompt > 0 for m in found.models)
    assert seen[-1][0] == seen[-1][1] and all(a[0] <= b[0] for a, b in zip(seen, seen[1:]))


@pytest.mark.parametrize("other, says", [
    ("other", "other.gguf has another vocabulary than tiny.F32.gguf: 340 and 331 tokens"),
    ("bpe", "bpe.gguf has another vocabulary than tiny.F32.gguf: one is 'gpt2', the other 'llama'"),
])
def test_another_vocabulary_is_refused(files, other, says):
    with pytest.raises(RequestError, match=says):
        compare(files["F32"], [files["Q8_0"], files[other]], TEXT, n_ctx=32)
    with pytest.raises(RequestError, match="others: none"):
        compare(files["F32"], [], TEXT)


@pytest.mark.parametrize("share", [0, 0.25, 0.5, 0.9, 0.99, 1])
@pytest.mark.parametrize("n", [1, 2, 3, 100, 101])
def test_percentiles(n, share):
    values = sorted(np.random.default_rng(n).standard_normal(n))
    assert percentile(values, share) == pytest.approx(np.percentile(values, 100 * share), abs=1e-12)


# ---- the commands ---------------------------------------------------------------------------


@pytest.fixture
def run(capsys, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)

    def call(*argv):
        code = cli.main([str(tmp_path / "text.txt" if a == "TEXT" else a) for a in argv])
        return (code, *capsys.readouterr())

    return call


def test_perplexity_command(run, files):
    code, out, err = run("perplexity", "-m", files["Q8_0"], "-f", "TEXT", "-c", 32, "--chunks", 3)
    assert (code, err) == (0, "") and out.startswith("perplexity ") and "over 45 tokens: the second half of 3 windows of 32; " in out
    code, out, _ = run("perplexity", "-m", files["Q8_0"], "-f", "TEXT", "-c", 32, "--stride", 8, "--json", "-t", 1)
    found = json.loads(out)
    assert set(found) == {"perplexity", "error", "nll", "scored", "windows", "n_ctx", "stride", "tokens", "unused", "seconds"}
    assert found["scored"] == 8 * found["windows"] and found["perplexity"] == perplexity(files["Q8_0"], TEXT, n_ctx=32, stride=8).perplexity


def test_compare_command(run, files):
    code, out, err = run("compare", files["F32"], files["Q8_0"], files["Q4_0"], "-f", "TEXT", "-c", 32, "--chunks", 4, "--no-speed")
    lines = out.splitlines()
    assert (code, err) == (0, "") and len(lines) == 5 and all(name in line for name, line in zip(("tiny.F32", "tiny.Q8_0", "tiny.Q4_0"), lines[1:]))
    assert "60 tokens scored" in lines[4]
    code, out, _ = run("compare", files["F32"], files["Q8_0"], "-f", "TEXT", "-c", 32, "--chunks", 1, "--json")
    found = json.loads(out)
    assert set(found) == {"models", "scored", "windows", "n_ctx", "tokens", "unused", "seconds"}
    assert set(found["models"][1]) == {f.name for f in dataclasses.fields(evaluate.Compared)} and found["models"][1]["generation"] > 0


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_plot(run, files, tmp_path, kind):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"plot.{kind}"
    code, _, err = run("compare", files["F32"], files["Q8_0"], files["Q4_0"], "-f", "TEXT", "-c", 32, "--chunks", 2, "--no-speed", "--plot", path)
    raw = path.read_bytes()
    assert code == 0 and 1000 < len(raw) < 100_000
    assert (b"Q8_0" in raw and b"mean KL" in raw) if kind == "svg" else raw.startswith(b"\x89PNG")


def test_plot_without_matplotlib(run, files, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = run("compare", files["F32"], files["Q8_0"], "-f", "TEXT", "--plot", "x.svg")
    assert (code, out) == (1, "") and err == "pyengine-cli: --plot needs matplotlib: pip install 'pyengine-gguf[plot]'\n"


@pytest.mark.parametrize("argv, says", [
    (["perplexity", "-m", "F32", "-f", "/no/such.txt"], "/no/such.txt: No such file"),
    (["perplexity", "-m", "F32", "-f", "TEXT", "-c", "0"], "-c: found 0"),
    (["perplexity", "-m", "F32", "-f", "TEXT", "-c", "auto"], "-c: found auto"),
    (["perplexity", "-m", "F32", "-f", "TEXT", "-c", "2000"], "a longer text is needed"),
    (["perplexity", "-m", "F32", "-f", "TEXT", "--stride", "0"], "stride: found 0"),
    (["perplexity", "-m", "/no/such.gguf", "-f", "TEXT"], "/no/such.gguf: No such file"),
    (["compare", "F32", "/no/such.gguf", "-f", "TEXT", "-c", "32"], "/no/such.gguf: No such file"),
    (["compare", "F32", "other", "-f", "TEXT", "-c", "32"], "another vocabulary"),
    (["compare", "F32", "Q8_0", "-f", "TEXT", "--plot", "plot.txt"], "--plot: found 'plot.txt'"),
    (["compare", "F32", "Q8_0", "-f", "TEXT", "--plot", "/no/such/plot.png"], "there is no folder '/no/such'"),
])
def test_errors_are_one_line(run, files, argv, says):
    code, out, err = run(*[files.get(a, a) for a in argv])
    assert (code, out) == (1, "") and says in err and err.count("\n") == 1


def test_progress_on_a_terminal(run, files, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    code, out, _ = run("perplexity", "-m", files["Q8_0"], "-f", "TEXT", "-c", 32, "--chunks", 3)
    assert code == 0 and out.startswith("perplexity ")


# ---- a real model ------------------------------------------------------------------------------


@pytest.mark.long
def test_smollm2(real_model, f32_copy):
    """Q4_1 beside the F32 file that was made of it: the same weights, so what is left is the quantized activations."""
    text = "\n\n".join(PASSAGES)
    found = compare(f32_copy("smollm2"), real_model("smollm2"), text, n_ctx=256, speed=False)
    q4_1 = found.models[1]
    assert found.windows >= 2 and 5 < found.reference.perplexity < 60
    assert 1e-5 < q4_1.kl < 0.02 and q4_1.same_best > 0.9 and abs(q4_1.ratio - 1) < 0.02
    alone = perplexity(real_model("smollm2"), text, n_ctx=256, n_threads=1)
    assert alone.perplexity == q4_1.perplexity == perplexity(real_model("smollm2"), text, n_ctx=256, n_threads=2, n_batch=100).perplexity

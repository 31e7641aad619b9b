"""Whether and how well a file will run: nothing that would fail passes, what is said of a good one is so, nothing crashes."""
import dataclasses
import json
import random
import warnings

import numpy as np
import pytest
from faults_gguf import F32, STRING, TENSORS, gguf, info, kv, seeds, tiny
from tiny_gguf import CHATML, Spec, Typed, write

from pyengine import Llama, PyengineError, cli, fit, quants, verdict
from pyengine.evaluate import rate
from pyengine.gguf import GGUF
from pyengine.native import TIERS, lib
from pyengine.verdict import judge

SPEC = Spec(seed=6, n_embd=256, n_ff=(512,), weight_type="Q4_K", types=(("attn_v.weight", "Q6_K"),), vocabulary="bpe", chat_template=CHATML, n_vocab=400)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return write(tmp_path_factory.mktemp("verdict") / "good.gguf", SPEC)


def of(path, **how):
    """{what: [(state, text)]} and the verdict."""
    with GGUF(path, cut=True) as g:
        v = judge(g, **{"measure": False, **how})
    found = {}
    for f in v.findings:
        found.setdefault(f.what, []).append((f.state, f.text))
    return v, found


def test_a_good_file(good):
    v, found = of(good, measure=True)
    assert v.runs and v.well and {state for states in found.values() for state, _ in states} == {"ok"}
    assert set(found) == {"architecture", "weights", "memory", "tokenizer", "chat", "speed"}
    assert v.generation > 0 and v.prompt > 0 and "Q4_K (" in found["weights"][0][1] and "Q6_K (2, " in found["weights"][0][1]
    with Llama(good) as llm:
        assert v.n_ctx == llm.n_ctx == SPEC.n_ctx_train
    matrices = [t for t in GGUF(good).tensors.values() if len(t.shape) > 1 and t.name != "token_embd.weight"]
    assert v.bytes_per_token == sum(t.nbytes for t in matrices)


def test_a_tensor_in_parts_is_read_once(tmp_path):
    """q, k and v, gate and up of one tensor each: three products and two, of its bytes together."""
    path = write(tmp_path / "parts.gguf", Spec(arch="phi3", vocabulary="bpe", n_vocab=400, chat_template=CHATML))
    v, _ = of(path)
    matrices = [t for t in GGUF(path).tensors.values() if len(t.shape) > 1 and t.name != "token_embd.weight"]
    assert v.runs and v.bytes_per_token == sum(t.nbytes for t in matrices)


def test_only_the_header(good, tmp_path):
    """Judged as the whole file would be, byte for byte of its need; it cannot run as it is, and Llama says so too."""
    whole, _ = of(good)
    with GGUF(good) as g:
        data = min(t.offset for t in g.tensors.values())
    for size in (data + 100, data, g.files and data - 1):
        (tmp_path / "cut.gguf").write_bytes(good.read_bytes()[:size])
        v, found = of(tmp_path / "cut.gguf", measure=True)
        assert not v.runs and found["file"][0][0] == "no" and f"{good.stat().st_size - size:,} of its {good.stat().st_size:,} bytes" in found["file"][0][1]
        assert (v.n_ctx, v.bytes_per_token) == (whole.n_ctx, whole.bytes_per_token) and v.generation > 0
        assert {what for what, states in found.items() if states[0][0] == "no"} == {"file"}
        with pytest.raises(PyengineError, match="shorter than its tensors need"):
            Llama(tmp_path / "cut.gguf")
    (tmp_path / "cut.gguf").write_bytes(good.read_bytes()[:1000])
    with pytest.raises(PyengineError):
        GGUF(tmp_path / "cut.gguf", cut=True)
    write(tmp_path / "freqs.gguf", dataclasses.replace(SPEC, rope_freqs=True, biases=True), tensors={})
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "freqs.gguf").read_bytes()[:-20000])
    assert {what for what, states in of(tmp_path / "cut.gguf")[1].items() if states[0][0] == "no"} == {"file"}


@pytest.mark.parametrize("keys, what, says", [
    ({"general.architecture": "mamba9"}, "architecture", "architecture 'mamba9' is not supported"),
    ({"llama.block_count": None}, "model", "llama.block_count"),
    ({"llama.block_count": 3}, "model", "blk.2."),
    ({"tokenizer.ggml.model": "t5000"}, "tokenizer", "'t5000' is not supported"),
    ({"tokenizer.ggml.pre": "no-such"}, "tokenizer", "no-such"),
    ({"tokenizer.ggml.tokens": None}, "tokenizer", "tokenizer.ggml.tokens"),
])
def test_what_does_not_run(tmp_path, keys, what, says):
    """Named, and Llama refuses the same file at load, in one line with the same words."""
    path = write(tmp_path / "m.gguf", SPEC, keys=keys)
    v, found = of(path)
    assert not v.runs and v.generation is None
    states = [text for state, text in found[what] if state == "no"]
    assert len(states) == 1 and says in states[0]
    with pytest.raises(PyengineError) as e:
        Llama(path)
    assert says in str(e.value) and "\n" not in str(e.value)


def test_everything_that_is_wrong_is_listed(tmp_path):
    path = write(tmp_path / "m.gguf", SPEC, keys={"general.architecture": "mamba9", "tokenizer.ggml.pre": "no-such"})
    v, found = of(path)
    assert not v.runs and [f.what for f in v.findings if f.state == "no"] == ["architecture", "tokenizer"] and found["weights"][-1][0] == "ok"


@pytest.mark.parametrize("template, says", [("{% for %}", "fails"), ("{{ raise_exception('never') }}", "never")])
def test_a_template_that_fails_is_worth_a_note(tmp_path, template, says):
    v, found = of(write(tmp_path / "m.gguf", dataclasses.replace(SPEC, chat_template=template)))
    assert v.runs and v.well and found["chat"][0][0] == "note" and says in found["chat"][0][1]
    v, found = of(write(tmp_path / "m.gguf", dataclasses.replace(SPEC, chat_template="")))
    assert v.runs and found["chat"] == [("note", "no template: a base model, which completes texts")]


def test_types_without_kernels_are_named(good, monkeypatch):
    """As on a build that lacks some: all types, with tensors and bytes."""
    def without(*types):
        real = verdict.rows()
        left = [r for r in real if r.wtype not in types]
        monkeypatch.setattr(verdict, "rows", lambda: left)
        monkeypatch.setattr("pyengine.plan.program.rows", lambda: left)

    with GGUF(good) as g:
        kinds = {t.type_name: t.type for t in g.tensors.values()}
    without(kinds["Q4_K"], kinds["Q6_K"])
    v, found = of(good)
    assert not v.runs and [s for s, _ in found["weights"]] == ["no", "no"] and "model" not in found
    assert any("2 tensors of type Q6_K" in text for _, text in found["weights"]) and any("tensors of type Q4_K" in text for _, text in found["weights"])


def test_scalar_kernels_are_slow(good, monkeypatch):
    if not lib.pe_cpu_isa():
        pytest.skip("this CPU has the scalar tier only")
    with GGUF(good) as g:
        q6_k = next(t.type for t in g.tensors.values() if t.type_name == "Q6_K")
    left = [r for r in verdict.rows() if r.wtype != q6_k or not r.isa]
    monkeypatch.setattr(verdict, "rows", lambda: left)
    v, found = of(good)
    assert v.runs and not v.well and found["weights"][0][0] == "slow" and "Q6_K" in found["weights"][0][1] and "scalar" in found["weights"][0][1]
    v, found = of(good, isa="scalar")        # where all are scalar, none is slower than the others
    assert v.well and all("scalar" in text for _, text in found["weights"])


def test_memory(good):
    with GGUF(good) as g:
        need = fit.decide(g, free=1 << 40, max_seqs=4).least
        size = sum(f.size for f in g.files)
    v, found = of(good, free=1 << 20)
    assert not v.runs and found["memory"][0][0] == "no" and "may be used" in found["memory"][0][1]
    v, found = of(good, free=need + size // 2 + fit.RESERVE_LEAST)
    assert v.runs and found["memory"][0][0] in ("slow", "ok")
    assert of(good, free=1 << 34)[1]["memory"][0][0] == "ok"


def test_no_memory_to_measure(good, monkeypatch):
    monkeypatch.setattr(verdict, "MOST_BYTES", 1000)
    monkeypatch.setattr(verdict.tune, "Bench", None)
    monkeypatch.setattr("pyengine.mapped.MappedFile.in_memory", lambda self: None)
    v, found = of(good, measure=True)
    assert v.runs and v.generation is None and found["speed"][0][0] == "note" and "not predicted: measuring takes" in found["speed"][0][1]


def test_what_holds_no_model(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf([kv("general.architecture", STRING, "llama")]))
    v, found = of(path)
    assert not v.runs and "no tensors" in found["file"][0][1] and found["architecture"][0][0] == "ok"
    path.write_bytes(gguf([]))
    v, found = of(path)
    assert not v.runs and "general.architecture" in found["architecture"][0][1]


def test_hostile_files_are_judged_or_refused(tmp_path):
    path = tmp_path / "m.gguf"
    refused = 0
    for name, raw in [*seeds(), ("cut", tiny()[:-300]), ("i32", gguf([], [info("w", (4, 2), 26, 0)], bytes(32)))]:
        path.write_bytes(raw)
        try:
            v, _ = of(path, measure=True)
        except PyengineError:
            refused += 1
            continue
        assert not v.runs and all(f.text and "\n" not in f.text for f in v.findings), name
    assert refused > 5


def test_the_verdict_is_what_a_load_comes_to(good, tmp_path):
    """Headers with a byte or two changed: judged or refused, and where judged, as Llama finds it."""
    draw, path, agreed = random.Random(7), tmp_path / "m.gguf", {True: 0, False: 0}
    whole = good.read_bytes()
    head = whole.index(b"token_embd") + 1500
    for _ in range(120):
        raw = bytearray(whole)
        for _ in range(draw.choice((1, 1, 2))):
            raw[draw.randrange(8, head)] = draw.randrange(256)
        path.write_bytes(raw)
        try:
            v, found = of(path)
        except PyengineError:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with Llama(path, n_threads=1) as llm:
                    llm.tokenizer.encode("")
            opened = True
        except PyengineError:
            opened = False
        assert v.runs == opened, found
        agreed[opened] += 1
    assert min(agreed.values()) > 3


@pytest.mark.parametrize("keys", [
    {"llama.embedding_length": 2**31}, {"llama.attention.head_count": 0}, {"llama.rope.freq_base": float("nan")}, {"llama.context_length": 2**31 - 1},
    {"llama.vocab_size": 7}, {"llama.block_count": Typed("UINT64", 2**63)}, {"tokenizer.ggml.token_type": [1]}, {"tokenizer.chat_template": 5},
])
def test_wrong_hyper_parameters(tmp_path, keys):
    v, found = of(write(tmp_path / "m.gguf", SPEC, keys=keys))
    assert isinstance(v.runs, bool) and all("\n" not in f.text for f in v.findings)
    assert v.runs == (not any(f.state == "no" for f in v.findings))


def test_tiers():
    for name, bits in TIERS.items():
        assert TIERS[verdict.tier_of(bits)] == bits, name


# ---- the command ---------------------------------------------------------------------------


def test_command(good, capsys, tmp_path):
    assert cli.main(["inspect", str(good), "--quick"]) == 0
    out = capsys.readouterr().out
    assert "blk.0.attn_q.weight" in out and out.endswith("\nverdict: runs here\n") and "chat" in out
    assert cli.main(["inspect", str(good), "--verdict"]) == 0
    out = capsys.readouterr().out
    assert "blk.0" not in out and "tokens/s" in out.splitlines()[-1] and out.splitlines()[-1].startswith("verdict: runs here, at about ")
    bad = write(tmp_path / "bad.gguf", SPEC, keys={"tokenizer.ggml.pre": "no-such"})
    assert cli.main(["inspect", str(bad), "--verdict"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "verdict: does not run here: tokenizer"
    assert cli.main(["inspect", str(bad), "--json", "--quick"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"runs", "well", "findings", "n_ctx", "bytes_per_token", "generation", "prompt"} and not found["runs"]
    assert {"what", "state", "text"} == set(found["findings"][0])


# ---- how true it is -------------------------------------------------------------------------------


def test_made_up_weights_are_ordinary_numbers():
    """Of every type, finite and far from subnormal, so that they cost what real ones do."""
    draw = random.Random(1)
    raw = bytes(draw.choice(verdict.BYTES) for _ in range(16384))
    for t in quants.TYPES.values():
        if t.act is None or t.name == "MXFP4":           # a power of two from a byte: 2^-67 or 2^61, and a NaN costs no more
            continue
        x = np.abs(quants.dequantize(t.id, raw[: len(raw) // t.bytes * t.bytes], t.block).astype(np.float64))
        assert np.isfinite(x).all() and (x[x > 0] > 1e-30).all(), t.name


def test_a_file_that_is_not_in_memory_is_not_read(good, monkeypatch):
    """Made-up weights in its place, of the same shapes: the same steps."""
    from pyengine import tune
    from pyengine.mapped import MappedFile

    places, real = [], tune.Bench.__init__
    monkeypatch.setattr(tune.Bench, "__init__", lambda self, *args: (places.append(args[5]), real(self, *args))[1])
    for cold in (False, True):
        monkeypatch.setattr(MappedFile, "in_memory", lambda self: not cold)
        v, found = of(good, measure=True)
        assert v.generation > 0 and v.prompt > 0 and found["speed"][0][0] == "ok"
    assert places[:2] == [None, None] and all(callable(p) for p in places[2:]) and len(places) == 4
    v, found = of(good, measure=True, free=fit.RESERVE_LEAST + (40 << 20))
    assert not v.runs or v.generation is None or found["speed"][0][0] == "ok"


@pytest.mark.campaign
def test_prediction_against_measurement(real_model):
    """On a quiet machine: within a quarter."""
    for name in ("smollm2", "gemma-3-270m"):
        v, _ = of(real_model(name), measure=True)
        with Llama(real_model(name), n_ctx=600, prefix_cache=False, speculate=None) as llm:
            generation = sorted(rate(llm, 1, 32, seed) for seed in range(4))[2]
            prompt = sorted(rate(llm, 512, 0, seed) for seed in range(4))[2]
        print(f"{name}: generation {v.generation:.1f} predicted, {generation:.1f} measured; prompt {v.prompt:.0f}, {prompt:.0f}")
        assert 0.75 < v.generation / generation < 1.25 and 0.75 < v.prompt / prompt < 1.25

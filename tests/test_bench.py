"""The parts of the bench that need no peer: tables that agree with each other, ratios from samples, synthetic blocks."""

import pathlib
import sys

import gguf
import numpy as np
import pytest

BENCH = str(pathlib.Path(__file__).resolve().parent.parent / "bench")
sys.path.append(BENCH)
import cells  # noqa: E402
import report  # noqa: E402
import synthetic  # noqa: E402

sys.path.remove(BENCH)  # bench/kernels.py would hide tests/kernels


def entry(cell="tg64", group="native", unit="tokens/s", **sides):
    return {"model": "llama-1b.Q4_K_M", "cell": cell, "group": group, "unit": unit, "sides": sides, "errors": {},
            "busy": 0.0, "seconds": 1.0, "rounds": 3, "run": 0}  # fmt: skip


def test_goals_name_cells_that_are_measured():
    known = {(model, cell.name, cell.group) for model, cell in cells.chosen((), ())}
    for _, models, name, group, _ in cells.GOALS:
        for model in models:
            assert (model, name, "native" if group in ("read", "batch1") else group) in known
    assert {cell.name for _, cell in cells.chosen((), ())} <= set(cells.TITLES)


def test_choosing_cells():
    assert [f"{m}/{c.name}/{c.group}" for m, c in cells.chosen(["llama-8b.Q4_0"], ())] == ["llama-8b.Q4_0/pp128/native", "llama-8b.Q4_0/tg16/native"]
    assert [c.group for _, c in cells.chosen(["llama-1b.Q8_0/tg*/avx2"], ())] == ["avx2"]
    assert {c.name for _, c in cells.chosen((), [4])} == {"batch1", "batch16"}


def test_ratio_is_of_medians_beside_the_best_setting_of_the_best_peer():
    e = entry(pyengine={"plain": [10, 30, 20]}, ik={"repack": [5, 5, 50]}, native={"plain": [1, 2, 3], "repack+fa": [8, 9, 10]})
    assert report.ratio(e) == (20 / 9, "native repack+fa")
    slower = entry(cell="cold", group="default", unit="s", pyengine={"default": [0.5]}, native={"default": [1.0, 2.0, 1.5]})
    assert report.ratio(slower) == (3.0, "native")
    assert report.ratio(entry(pyengine={"plain": [1]})) is None


def test_read_share_and_batch_goal():
    e = entry(pyengine={"plain": [10.0, 20.0]}, native={"plain": [5.0, 5.0]}) | {"read": [10.0, 10.0], "weight_bytes": 10**9}
    assert report.read_share(e) == 1.5
    batches = [entry(cell=f"batch{n}", pyengine={"plain": [rate]}, native={"plain": [1]}) for n, rate in ((1, 20.0), (16, 60.0))]
    found = {(number, what): value for number, what, value, _ in report.goals({"cells": batches})}
    assert found[4, "llama-1b.Q4_K_M, 16 sequences at a time, over 1 sequence"] == 3.0


def test_measured_again_replaces_and_a_failure_is_shown(tmp_path):
    result = {"runs": [], "cells": []}
    report.add(result, entry(pyengine={"plain": [1]}))
    report.add(result, entry(pyengine={"plain": [2]}) | {"errors": {"native plain": "ended with -11"}})
    assert len(result["cells"]) == 1 and "ended with -11" in report.line(result["cells"][0])
    model, cell = next((m, c) for m, c in cells.chosen((), ()) if m == "llama-1b.Q4_K_M" and c.name == "tg64")
    assert not report.has(result, model, cell)
    report.save(result, tmp_path / "a" / "r.json")
    assert report.read(tmp_path / "a" / "r.json") == result


@pytest.mark.parametrize("name", synthetic.BLOCKS)
def test_synthetic_blocks_have_the_deviation_asked_for(name):
    type_id, elements, size, make = synthetic.BLOCKS[name]
    blocks = make(np.random.default_rng(0), 2000, 0.02)
    assert blocks.shape == (2000, size)
    x = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType(type_id))
    assert x.shape == (2000, elements) and np.isfinite(x).all()
    # MXFP4 has powers of two only
    assert 0.7 < x.std() / 0.02 < 1.42 if name == "MXFP4" else 0.93 < x.std() / 0.02 < 1.07
    assert abs(x.mean()) < 0.05 * x.std()


def test_synthetic_mix():
    kinds = {name: kind for name, _, _, kind, _ in synthetic.tensors(synthetic.SHAPES["llama-1b"], "Q4_K_M")}
    assert kinds["token_embd.weight"] == "Q6_K" and "output.weight" not in kinds
    assert [i for i in range(16) if kinds[f"blk.{i}.ffn_down.weight"] == "Q6_K"] == [0, 1, 4, 7, 10, 13, 14, 15]
    factors = synthetic.rope_factors(synthetic.SHAPES["llama-1b"])
    assert factors[0] == 1 and factors[-1] == 32 and (np.diff(factors) >= 0).all()


def test_synthetic_file_runs(tmp_path, monkeypatch):
    from pyengine import Llama

    small = synthetic.Shape(256, 2, 4, 2, 64, 512, True, 32.0, n_vocab=400)
    monkeypatch.setitem(synthetic.SHAPES, "llama-1b", small)
    path = synthetic.write(tmp_path / "s.gguf", "llama-1b", "Q4_K_M")
    assert path.read_bytes() == synthetic.write(tmp_path / "t.gguf", "llama-1b", "Q4_K_M").read_bytes()
    with Llama(path, n_ctx=64) as model:
        logits = model.logits([1, 2, 3])
    assert np.isfinite(logits).all() and 2 < logits.std() < 4

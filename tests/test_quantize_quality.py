"""Our quantizers beside llama.cpp's, by what they cost a real model: KL to F32 of files of equal types per tensor.

A campaign, by hand: PYENGINE_LLAMA_CPP_PYTHON names a Python with llama-cpp-python, whose llama_model_quantize makes
the other files (without importance matrix); both are computed here.
"""

import os
import pathlib
import shutil
import subprocess

import numpy as np
import pytest

import pyengine
from pyengine import mixes
from pyengine.gguf import GGUF
from runner import Runner, log_softmax
from texts import PASSAGES

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(1800)]

N = 250     # positions of each passage
BOUND = 1.05
MAKE = """
import ctypes, sys
import llama_cpp.llama_cpp as c
c.llama_backend_init()
params = c.llama_model_quantize_default_params()
params.ftype, params.nthread = int(sys.argv[3]), 2
sys.exit(c.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), ctypes.byref(params)))
"""
TYPES = ["Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K", "Q4_0", "Q5_0", "IQ4_NL", "IQ4_XS"]


def passages(path):
    """Token ids: 1,000 positions of plain English, then 9,000 of this project's pages."""
    docs = "\n".join(p.read_text() for p in sorted((pathlib.Path(__file__).resolve().parents[1] / "docs").glob("*.md")))
    with pyengine.Llama(path, n_ctx=512) as m:
        plain = [m.tokenize(t.replace("\n", " "), add_bos=True)[:N] for t in PASSAGES]
        ids = m.tokenize(docs, add_bos=False)
    return plain + [plain[0][:1] + ids[i:i + N - 1] for i in range(0, 36 * (N - 1), N - 1)]


def ratio_of(source, ours, theirs):
    """Mean KL(source || ours), the same of theirs, the ratio's standard error, positions. As many passages as say on
    which side of BOUND the ratio is: nearly equal files differ by the rounding of activations alone, which made 1,000
    positions say 1.07 of two copies of gemma's Q4_K_M whose weights are the source's to 3e-4 (squared 6e-8 beside 1e-7)."""
    options = {"n_ctx": 512, "max_tokens": 64, "max_wanted": N}
    a, b = [], []
    with Runner(source, **options) as exact, Runner(ours, **options) as ours, Runner(theirs, **options) as theirs:
        for i, ids in enumerate(passages(source)):
            rows = zip(*(r.logits(ids, range(N)) for r in (exact, ours, theirs)), strict=True)
            for p, q, r in (map(log_softmax, three) for three in rows):
                e = np.exp(p)
                a.append(float((e * (p - q)).sum()))
                b.append(float((e * (p - r)).sum()))
            ratio, error = np.mean(a) / np.mean(b), np.std(np.subtract(a, BOUND * np.array(b))) / len(a) ** 0.5 / np.mean(b)
            if i >= len(PASSAGES) - 1 and abs(ratio - BOUND) > 3 * error:
                break
    return float(np.mean(a)), float(np.mean(b)), float(error), len(a)


@pytest.fixture
def folder(tmp_path):
    """Emptied after each test: a run's models are 10 GB."""
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize("model", ["smollm2", "gemma-3-270m"])
@pytest.mark.parametrize("name", TYPES, ids=str.lower)
def test_no_worse_than_llama_cpp(name, model, f32_copy, folder, record_property):
    python = os.environ.get("PYENGINE_LLAMA_CPP_PYTHON")
    if not python:
        pytest.skip("PYENGINE_LLAMA_CPP_PYTHON names no Python")
    source = f32_copy(model)
    kept = os.environ.get("PYENGINE_LLAMA_CPP_FILES")        # made before: quantizing IQ4 takes them minutes
    theirs = pathlib.Path(kept) / f"{model}.{name}.gguf" if kept else folder / "theirs.gguf"
    if not theirs.exists():
        subprocess.run([python, "-c", MAKE, str(source), str(theirs), str(mixes.MIXES[name].file_type)], check=True, capture_output=True)
    ours = folder / "ours.gguf"
    report = pyengine.quantize(source, ours, name)
    with GGUF(ours) as a, GGUF(theirs) as b:
        assert {n: t.type_name for n, t in a.tensors.items()} == {n: t.type_name for n, t in b.tensors.items()}
    kl_ours, kl_theirs, error, n = ratio_of(source, ours, theirs)
    figures = (f"{model} {name}: {report.bits_per_weight:.2f} bits, {n} positions, KL {kl_ours:.4f} beside {kl_theirs:.4f} "
               f"({kl_ours / kl_theirs:.3f} +- {error:.3f}), {report.seconds:.0f} s")
    record_property("figures", figures)
    print(figures)
    assert kl_ours <= BOUND * kl_theirs

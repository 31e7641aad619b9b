"""Our quantizers beside llama.cpp's, by what they cost a real model: KL to F32 of files of equal types per tensor.

A campaign, by hand: PYENGINE_LLAMA_CPP_PYTHON names a Python with llama-cpp-python, whose llama_model_quantize makes
the other files (without importance matrix); both are computed here.
"""

import os
import pathlib
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
MAKE = """
import ctypes, sys
import llama_cpp.llama_cpp as c
c.llama_backend_init()
params = c.llama_model_quantize_default_params()
params.ftype, params.nthread = int(sys.argv[3]), 2
sys.exit(c.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), ctypes.byref(params)))
"""
TYPES = ["Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K", "Q4_0", "Q5_0", "IQ4_NL", "IQ4_XS"]


@pytest.fixture(scope="module")
def truth(f32_copy):
    found = {}

    def of(model):
        if model not in found:
            with pyengine.Llama(f32_copy(model), n_ctx=512) as m:
                texts = [m.tokenize(t.replace("\n", " "), add_bos=True)[:N] for t in PASSAGES]
            found[model] = texts, rows(f32_copy(model), texts)
        return found[model]

    return of


def rows(path, texts):
    with Runner(path, n_ctx=512, max_tokens=64, max_wanted=N) as runner:
        return np.array([log_softmax(row) for ids in texts for row in runner.logits(ids, range(N))], np.float32)


def kl(truth, other):
    return float((np.exp(truth) * (truth - other)).sum(axis=-1).mean())


@pytest.mark.parametrize("model", ["smollm2", "gemma-3-270m"])
@pytest.mark.parametrize("name", TYPES, ids=str.lower)
def test_no_worse_than_llama_cpp(name, model, truth, f32_copy, tmp_path, record_property):
    python = os.environ.get("PYENGINE_LLAMA_CPP_PYTHON")
    if not python:
        pytest.skip("PYENGINE_LLAMA_CPP_PYTHON names no Python")
    source = f32_copy(model)
    kept = os.environ.get("PYENGINE_LLAMA_CPP_FILES")        # made before: quantizing IQ4 takes them minutes
    theirs = pathlib.Path(kept) / f"{model}.{name}.gguf" if kept else tmp_path / "theirs.gguf"
    if not theirs.exists():
        subprocess.run([python, "-c", MAKE, str(source), str(theirs), str(mixes.MIXES[name].file_type)], check=True, capture_output=True)
    ours = tmp_path / "ours.gguf"
    report = pyengine.quantize(source, ours, name)
    with GGUF(ours) as a, GGUF(theirs) as b:
        assert {n: t.type_name for n, t in a.tensors.items()} == {n: t.type_name for n, t in b.tensors.items()}
    texts, exact = truth(model)
    kl_ours, kl_theirs = kl(exact, rows(ours, texts)), kl(exact, rows(theirs, texts))
    figures = f"{model} {name}: {report.bits_per_weight:.2f} bits, KL {kl_ours:.4f} beside {kl_theirs:.4f} ({kl_ours / kl_theirs:.3f}), {report.seconds:.0f} s"
    record_property("figures", figures)
    print(figures)
    assert kl_ours <= 1.05 * kl_theirs

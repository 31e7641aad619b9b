"""SmolLM2 quantized to every type there is a quantizer for: computed here, its distributions are no farther from
the F32 model's than llama.cpp's are from the same file. A campaign, ten seconds a type (IQ1 and IQ2 take the
quantizer up to two minutes); run by hand:

    PYENGINE_LLAMA_CPP_PYTHON=/path/to/python pytest tests/test_oracle_types.py -m campaign -s -k "q4_k or iq4"

That Python has llama-cpp-python, which gives all logits of a passage at once: xllamacpp's server answers one position
a request, and the 80 positions that fit a minute said 0.88 to 1.18 where 1,000 say 0.96 to 1.04.
"""

import os
import shutil
import subprocess

import numpy as np
import pytest

import pyengine
from pyengine import mixes
from runner import Runner
from texts import PASSAGES

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(1800)]

N = 250     # positions of each of the four passages
LOGITS = """
import json, sys
import numpy as np
import llama_cpp
model = llama_cpp.Llama(sys.argv[1], n_ctx=512, n_batch=512, logits_all=True, n_threads=1, n_threads_batch=1, verbose=False)
rows = []
for ids in json.loads(sys.stdin.read()):
    model.reset()
    model.eval(ids)
    rows.append(np.array(model.scores[:len(ids)], np.float32))
np.save(sys.argv[2], np.concatenate(rows))
"""


def log_softmax(rows):
    x = rows.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def theirs(path, texts, folder):
    python = os.environ.get("PYENGINE_LLAMA_CPP_PYTHON")
    if not python:
        pytest.skip("PYENGINE_LLAMA_CPP_PYTHON names no Python")
    out = folder / "rows.npy"
    subprocess.run([python, "-c", LOGITS, str(path), str(out)], check=True, input=repr(texts), text=True, capture_output=True)
    return np.load(out)


def ours(path, texts):
    with Runner(path, n_ctx=512, max_tokens=64, max_wanted=N) as runner:
        return np.concatenate([np.array(runner.logits(ids, range(N))) for ids in texts])


@pytest.fixture(scope="module")
def truth(f32_copy, tmp_path_factory):
    """The passages, and llama.cpp's logits of them on the F32 file."""
    with pyengine.Llama(f32_copy("smollm2"), n_ctx=512) as m:
        texts = [m.tokenize(t.replace("\n", " "), add_bos=True)[:N] for t in PASSAGES]
    assert all(len(ids) == N for ids in texts)
    return texts, theirs(f32_copy("smollm2"), texts, tmp_path_factory.mktemp("truth"))


def measures(exact, rows):
    """Mean KL from the truth, and the share of equal best tokens."""
    kl = [(np.exp(p := log_softmax(a)) * (p - log_softmax(b))).sum() for a, b in zip(exact, rows, strict=True)]
    return float(np.mean(kl)), float((exact.argmax(axis=-1) == rows.argmax(axis=-1)).mean())


@pytest.fixture
def folder(tmp_path):
    """Emptied after each test: a run's models are 10 GB."""
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize("name", list(mixes.known()), ids=str.lower)
def test_as_near_as_llama_cpp(name, truth, f32_copy, folder, record_property):
    texts, exact = truth
    path = folder / "q.gguf"
    report = pyengine.quantize(f32_copy("smollm2"), path, name)
    kl_theirs, same_theirs = measures(exact, theirs(path, texts, folder))
    kl_ours, same_ours = measures(exact, ours(path, texts))
    figures = (f"{name}: {report.bits_per_weight:.2f} bits, KL {kl_ours:.3e} beside {kl_theirs:.3e} ({kl_ours / max(kl_theirs, 1e-12):.3f}), "
               f"same best {same_ours:.3f} beside {same_theirs:.3f}")
    record_property("figures", figures)
    print(figures)
    assert kl_ours <= 1.15 * kl_theirs + 1e-6      # F32: 6e-7, where llama.cpp is compared with itself
    assert same_ours >= same_theirs - 0.01

"""SmolLM2 quantized to every type there is a quantizer for: computed here, its distributions are no farther from
the F32 model's than llama.cpp's are from the same file. A campaign, about a minute a type; run by hand:

    pytest tests/test_oracle_types.py -m campaign -k "q4_k or iq4"

The F32 truth is llama.cpp's, as in test_oracle_real.py, whose measures these are; positions are every third of the
first 60 of four passages, so that llama.cpp, which answers one position per request, takes part of a minute.
"""

import pytest

pytest.importorskip("xllamacpp")
import numpy as np

import pyengine
from oracle import Oracle, kl_top
from pyengine import mixes
from runner import Runner, log_softmax
from texts import PASSAGES

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(1800)]

POSITIONS = range(2, 60, 3)
BEST, DEEP = 100, 2000     # best tokens of the truth, and of the quantized file, to hold them
NONE_OF_LLAMA_CPP = ("Q2_0",)   # llama.cpp of that version reads no such file


@pytest.fixture(scope="module")
def truth(f32_copy):
    with Oracle(f32_copy("smollm2")) as oracle:
        texts = [oracle.tokenize(t.replace("\n", " "), add_special=True)[:POSITIONS.stop] for t in PASSAGES]
        rows = theirs(oracle, texts, BEST)
    return texts, rows


def theirs(oracle, texts, n):
    return [oracle.top_logprobs(ids[: i + 1], n, cache_prompt=True) for ids in texts for i in POSITIONS]


def ours(path, texts):
    with Runner(path, n_ctx=256, max_tokens=64, max_wanted=64) as runner:
        return [log_softmax(row) for ids in texts for row in runner.logits(ids, POSITIONS)]


def measures(rows, others, best):
    """Mean KL over the truth's best tokens and the rest, and the number of equal best tokens."""
    return (sum(kl_top(row, other) for row, other in zip(rows, others, strict=True)) / len(rows),
            sum(row[0][0] == b for row, b in zip(rows, best, strict=True)))


@pytest.mark.parametrize("name", [n for n in mixes.known() if n not in NONE_OF_LLAMA_CPP], ids=str.lower)
def test_as_near_as_llama_cpp(name, truth, f32_copy, tmp_path, record_property):
    texts, rows = truth
    path = tmp_path / "q.gguf"
    report = pyengine.quantize(f32_copy("smollm2"), path, name)
    with Oracle(path) as oracle:
        deep = theirs(oracle, texts, DEEP)
    tables = [dict(row) for row in deep]
    lowest = [min(p for _, p in row) for row in deep]
    full = [{token: table.get(token, low) for token, _ in row} for table, low, row in zip(tables, lowest, rows)]
    mine = ours(path, texts)
    kl_theirs, same_theirs = measures(rows, full, [row[0][0] for row in deep])
    kl_ours, same_ours = measures(rows, mine, [int(np.argmax(row)) for row in mine])
    figures = (f"{name}: {report.bits_per_weight:.2f} bits, KL {kl_ours:.3e} beside {kl_theirs:.3e} ({kl_ours / max(kl_theirs, 1e-12):.3f}), "
               f"same best {same_ours} beside {same_theirs} of {len(rows)}")
    record_property("figures", figures)
    print(figures)
    assert kl_ours <= 1.15 * kl_theirs + 1e-4      # F16 and BF16: both are rounding
    assert same_ours >= same_theirs - max(1, len(rows) // 100)

"""The two real models beside llama.cpp: same tokens and distributions from the F32 copies, and from the
quantized files an error against F32 no larger than llama.cpp's own.

The whole of it (1,000 positions, 12 prompts of 48 tokens, both comparisons) takes some forty minutes and is run
by `make check-oracle`; its figures are in bench/LOG.md. The long run takes a sample of the F32 comparison.
PYENGINE_TEST_QUANTIZED names a folder with more quantizations of the two models, NAME.TYPE.gguf (who made them does
not matter), PYENGINE_TEST_POSITIONS takes fewer positions of each passage.

KL is over the 100 best tokens of llama.cpp on the F32 file and the rest as one class. llama.cpp evaluates
the positions of a passage one after the other with its prompt cache on (each request evaluates one token);
that this is what it answers without the cache is checked too.
"""

import math
import os
import pathlib

import pytest

pytest.importorskip("xllamacpp")
import numpy as np

from oracle import Oracle, kl_top  # noqa: E402
from runner import Runner, log_softmax  # noqa: E402
from texts import PASSAGES, PROMPTS  # noqa: E402

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

MODELS = ["smollm2", "gemma-3-270m"]
WHOLE = bool(os.environ.get("PYENGINE_CAMPAIGN"))
N_POSITIONS = int(os.environ.get("PYENGINE_TEST_POSITIONS", 250 if WHOLE else 20))  # of each passage; four passages
MORE = sorted(pathlib.Path(os.environ["PYENGINE_TEST_QUANTIZED"]).glob("*.gguf")) if "PYENGINE_TEST_QUANTIZED" in os.environ else []
N_GREEDY, N_PROMPTS = (48, 12) if WHOLE else (12, 4)
DEEP = 2000  # so many best tokens of a quantized file, to hold the 100 best of the F32 file


def passages(oracle):
    """Token ids of each passage, BOS first where the model wants one, one more than there are positions."""
    out = []
    for text in PASSAGES:
        ids = oracle.tokenize(text.replace("\n", " "), add_special=True)
        assert len(ids) > N_POSITIONS
        out.append(ids[: N_POSITIONS + 1])
    return out


def oracle_rows(oracle, texts, n):
    """[passage][position] -> [(id, logprob)]"""
    return [[oracle.top_logprobs(ids[: i + 1], n, cache_prompt=True) for i in range(N_POSITIONS)] for ids in texts]


@pytest.fixture(scope="module", params=MODELS)
def truth(request, real_model, f32_copy):
    """llama.cpp on the F32 copy: passages, their rows, prompts and greedy continuations."""
    with Oracle(f32_copy(request.param)) as oracle:
        texts = passages(oracle)
        prompts = [oracle.tokenize(text, add_special=True) for text in PROMPTS[:N_PROMPTS]]
        rows = oracle_rows(oracle, texts, 100)
        for passage, i in ((0, N_POSITIONS // 6), (1, N_POSITIONS - 1), (2, N_POSITIONS // 2), (3, 5)):
            fresh = oracle.top_logprobs(texts[passage][: i + 1], 100)
            assert kl_top(fresh, complete(rows[passage][i], fresh)) < 1e-5
        greedy = [oracle.greedy(ids, N_GREEDY) for ids in prompts]
    return {"name": request.param, "texts": texts, "rows": rows, "prompts": prompts, "greedy": greedy,
            "f32": f32_copy(request.param), "file": real_model(request.param)}  # fmt: skip


def complete(row, reference):
    """The row as a dict with an entry for every id of `reference`. An id beyond the row's end gets the row's
    lowest probability, which can only flatter its owner: the bound that follows gets tighter."""
    table, lowest = dict(row), min(logprob for _, logprob in row)
    return {token: table.get(token, lowest) for token, _ in reference}


def engine_rows(path, texts):
    """Of each passage, (log probabilities float64 [n_vocab], best token) per position; one prompt, many rows."""
    with Runner(path, n_ctx=320, max_tokens=64, max_wanted=64) as runner:
        for ids in texts:
            yield [(log_softmax(row), int(np.argmax(row))) for row in runner.logits(ids[:-1], range(N_POSITIONS))]


def compare(truth, others):
    """Against the truth's rows: mean KL, share of equal best tokens, ratio of perplexities (other / truth) over
    the positions whose next token is among the truth's best."""
    kl, same, log_ratio = [], 0, []
    for ids, rows, passage in zip(truth["texts"], truth["rows"], others, strict=True):
        for following, row, (other, best) in zip(ids[1:], rows, passage, strict=True):
            kl.append(kl_top(row, other))
            same += best == row[0][0]
            known = dict(row)
            if following in known:
                log_ratio.append(known[following] - other[following])
    assert len(kl) == len(PASSAGES) * N_POSITIONS
    return sum(kl) / len(kl), same / len(kl), math.exp(sum(log_ratio) / len(log_ratio))


def test_f32_distributions(truth, record_property):
    kl, same, ratio = compare(truth, engine_rows(truth["f32"], truth["texts"]))
    figures = f"{truth['name']}: KL {kl:.2e}, same best {same:.4f}, perplexity ratio {ratio:.6f}"
    record_property("figures", figures)
    print(figures)
    assert same >= 0.99
    assert kl <= 1e-4
    assert abs(ratio - 1) <= 1e-3


def test_f32_greedy(truth):
    with Runner(truth["f32"], n_ctx=256) as runner, Oracle(truth["f32"]) as oracle:
        for text, ids, theirs in zip(PROMPTS[:N_PROMPTS], truth["prompts"], truth["greedy"], strict=True):
            ours = runner.greedy(ids, len(theirs))
            if ours == theirs:
                continue
            at = next(i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b)
            row = oracle.top_logprobs(ids + theirs[:at])
            assert ours[at] in dict(row), f"{text!r}: token {at} is {ours[at]}, not among llama.cpp's 100 best"
            gap = dict(row)[theirs[at]] - dict(row)[ours[at]]
            assert abs(gap) <= 0.01, f"{text!r}: token {at}: {ours[at]} for {theirs[at]}, {gap:.4f} apart"


def check_quantized(truth, path, record_property):
    """KL to F32 and the share of equal best tokens, ours beside llama.cpp's on the same file."""
    with Oracle(path) as oracle:
        rows = oracle_rows(oracle, truth["texts"], DEEP)
    theirs = compare(
        truth, [[(complete(row, ref), row[0][0]) for row, ref in zip(a, b)] for a, b in zip(rows, truth["rows"])]
    )
    ours = compare(truth, engine_rows(path, truth["texts"]))
    figures = f"{path.name}: KL {ours[0]:.3e} beside {theirs[0]:.3e}, same best {ours[1]} beside {theirs[1]}"
    record_property("figures", figures)
    print(figures)
    assert ours[0] <= 1.15 * theirs[0]
    assert ours[1] >= theirs[1] - max(0.01, 2 / (len(PASSAGES) * N_POSITIONS))


@pytest.mark.campaign
def test_quantized_error(truth, record_property):
    check_quantized(truth, truth["file"], record_property)


@pytest.mark.campaign
@pytest.mark.parametrize("path", MORE, ids=lambda path: path.stem)
def test_error_of_more_quantizations(truth, path, record_property):
    if path.name.split(".")[0] != truth["file"].name.split(".")[0]:
        pytest.skip("of the other model")
    check_quantized(truth, path, record_property)

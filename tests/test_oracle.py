"""The oracle itself: a driver that misreads its source would prove anything."""

import math

import pytest

pytest.importorskip("xllamacpp")
import numpy as np

import split_gguf  # noqa: E402
import tiny_gguf  # noqa: E402
from oracle import Oracle, kl_top  # noqa: E402

IDS = [1, *range(262, 300)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_gguf.write(tmp_path_factory.mktemp("oracle") / "tiny.gguf", tiny_gguf.Spec())


def test_kl_by_hand():
    p = [(4, math.log(0.5)), (7, math.log(0.3))]
    q = {4: math.log(0.25), 7: math.log(0.35), 1: math.log(0.4)}
    by_hand = 0.5 * math.log(2) + 0.3 * math.log(0.3 / 0.35) + 0.2 * math.log(0.2 / 0.4)
    assert kl_top(p, q) == pytest.approx(by_hand, rel=1e-12)
    assert kl_top(p, dict(p)) == pytest.approx(0, abs=1e-12)


def test_distribution_is_whole_and_repeatable(tiny):
    with Oracle(tiny, n_ctx=128) as oracle:
        row = oracle.top_logprobs(IDS, 331)
        assert sorted(token for token, _ in row) == list(range(331))
        assert [logprob for _, logprob in row] == sorted((logprob for _, logprob in row), reverse=True)
        assert sum(math.exp(logprob) for _, logprob in row) == pytest.approx(1, abs=1e-4)
        assert oracle.top_logprobs(IDS, 331) == row
        # llama.cpp sums the softmax in the order of its partial sort, which depends on n
        assert [logprob for _, logprob in oracle.top_logprobs(IDS, 10)] == pytest.approx([logprob for _, logprob in row[:10]], abs=1e-5)
        # the plain piece that is forced must not be what comes first anyway
        assert row[0][0] != oracle._plain
        assert oracle.greedy(IDS, 1) == [row[0][0]]
    with Oracle(tiny, n_ctx=128) as again:
        assert again.top_logprobs(IDS, 331) == row


def test_greedy_is_the_best_of_each_position(tiny):
    with Oracle(tiny, n_ctx=128) as oracle:
        tokens = oracle.greedy(IDS, 8)
        assert len(tokens) == 8
        for n in range(8):
            row = dict(oracle.top_logprobs(IDS + tokens[:n], 331))
            assert row[tokens[n]] == pytest.approx(max(row.values()), abs=1e-3)


def test_prompt_cache_gives_the_plain_answer(tiny):
    with Oracle(tiny, n_ctx=128) as oracle:
        plain = [oracle.logits(IDS[: n + 1], 331) for n in range(len(IDS))]
        for n, expected in enumerate(plain):
            cached = dict(oracle.top_logprobs(IDS[: n + 1], 331, cache_prompt=True))
            found = np.array([cached[token] for token in range(331)])
            assert np.square(found - found.mean() - expected).sum() <= 1e-5 * np.square(expected).sum()


def test_bad_requests_say_why(tiny):
    with Oracle(tiny, n_ctx=128) as oracle, pytest.raises(RuntimeError, match="invalid tokens"):
        oracle.greedy([1, 331], 1)


def test_split_files_load(tiny, tmp_path):
    first, *_ = split_gguf.split(tiny, tmp_path / "split", 3)
    with Oracle(tiny, n_ctx=128) as whole, Oracle(first, n_ctx=128) as split:
        assert np.array_equal(whole.logits(IDS, 331), split.logits(IDS, 331))

"""One answer: the same bits for every tier, thread count, prompt cut and batch, on the real models.

Logits are compared as bytes (by digest), at positions of a 300-token prompt and over the 20 greedy tokens
that follow. The normal run takes a cross-section of the grid; the long run takes all of it, and with
PYENGINE_CAMPAIGN=1 at every position of the prompt.
The scalar tier follows the first tokens only: it is the meaning, not a way to run.
"""

import dataclasses
import hashlib
import itertools
import os

import pytest

import numpy as np

from runner import Runner  # noqa: E402

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif("PYENGINE_SANITIZED" in os.environ,
                       reason="tens of minutes there; tests/plan asks the same of tiny models"),
]

MODELS = ["smollm2", "gemma-3-270m"]
N_PROMPT, N_GREEDY = 300, 20
N_CTX = 640
# both sides of pages (64) and of attention chunks (256), and the ends
EDGES = (0, 1, 62, 63, 64, 65, 127, 128, 200, 254, 255, 256, 257, 298, 299)
WHOLE = bool(os.environ.get("PYENGINE_CAMPAIGN"))
EVERYWHERE = tuple(range(N_PROMPT)) if WHOLE else EDGES
OTHERS = (29, 17, 41)  # rows that the other sequences add to each step, where chunks are longer than one


@dataclasses.dataclass(frozen=True)
class Way:
    """A way to come to the same answer."""

    tier: str = "avx2"
    threads: int = 2
    chunk: int = N_PROMPT
    batch: bool = False
    kv_type: str = "f16"


def able(tier):
    from pyengine import native

    have = native.lib.pe_cpu_isa()
    return native.TIERS[tier] & have == native.TIERS[tier]


def other_tiers():
    """Tiers to hold against avx2: those with a kernel of their own in this build. Scalar has a test of its own."""
    from pyengine import native

    known, bits = native.TIERS, 0
    for row in native.rows():
        bits |= row.isa
    return [tier for tier in known if tier not in ("scalar", "avx2") and able(tier) and bits & known[tier] & ~known["avx2"]]


def prompt_ids(n, seed):
    """Any ids will do, if they are not all alike: neighbours differ, some repeat."""
    rng = np.random.default_rng(seed)
    return [int(token) for token in rng.zipf(1.3, size=4 * n) % 40000 + 3][:n]


def digest(row):
    assert np.isfinite(row).all()
    return hashlib.blake2b(row.tobytes(), digest_size=12).hexdigest()


def answer(path, way, positions, monkeypatch, n_prompt=N_PROMPT, n_greedy=N_GREEDY):
    """{position: digest of its logits} over the prompt's `positions` and the greedy tokens, and those tokens."""
    monkeypatch.setenv("PYENGINE_ISA", way.tier)
    ids, positions = prompt_ids(n_prompt, 1), set(positions)
    others = [prompt_ids(N_CTX, 2 + i) for i in range(3)] if way.batch else []
    done = [0] * len(others)
    digests, generated = {}, []
    with Runner(path, n_ctx=N_CTX, max_seqs=4, max_tokens=N_PROMPT + sum(OTHERS), max_wanted=max(len(positions), 4),
                n_threads=way.threads, kv_type=way.kv_type) as runner:  # fmt: skip
        at = 0
        while len(generated) < n_greedy:
            part = ids[at : at + way.chunk] if at < n_prompt else [generated[-1]]
            neighbours = []
            for i, other in enumerate(others):
                n = min(OTHERS[i] if way.chunk > 1 else 1, len(other) - done[i])
                if n:
                    neighbours.append((i + 1, done[i], other[done[i] : done[i] + n]))
                    done[i] += n
            # ours is neither first nor last in the step
            parts = neighbours[:1] + [(0, at, part)] + neighbours[1:]
            before = len(neighbours[0][2]) if neighbours else 0
            rows = [i for i in range(len(part)) if at + i in positions or at + i >= n_prompt - 1]
            logits = runner.step(parts, [before + i for i in rows])
            for i, row in zip(rows, logits, strict=True):
                digests[at + i] = digest(row)
            at += len(part)
            if at >= n_prompt:
                generated.append(int(np.argmax(logits[-1])))
    return digests, generated


def check(expected, found, way):
    (digests, tokens), (other_digests, other_tokens) = expected, found
    assert digests.keys() == other_digests.keys()
    wrong = [p for p in sorted(digests) if digests[p] != other_digests[p]]
    assert not wrong, f"{way}: logits differ at {len(wrong)} of {len(digests)} positions, first at {wrong[0]}"
    assert tokens == other_tokens


@pytest.mark.parametrize("model", MODELS)
def test_ways_cross_section(model, real_model, monkeypatch):
    """Case 98, and more: tiers, threads, cuts of the prompt and neighbours, one answer."""
    path, plain = real_model(model), Way("avx2" if able("avx2") else "scalar")
    expected = answer(path, plain, EDGES, monkeypatch)
    assert len(expected[0]) == len(EDGES) + N_GREEDY - 1
    assert len(set(expected[0].values())) == len(expected[0])
    ways = [Way(plain.tier, 1, 64, True), Way(plain.tier, 3, 7, True), Way(plain.tier, 5, 1, False)]
    ways += [Way(tier, 2, 64, True) for tier in other_tiers()]
    for way in ways:
        check(expected, answer(path, way, EDGES, monkeypatch), way)


@pytest.mark.parametrize("model, kv_type", [("smollm2", "q8_0"), ("gemma-3-270m", "q4_0"),
                                            pytest.param("gemma-3-270m", "q8_0", marks=pytest.mark.long), pytest.param("smollm2", "q4_0", marks=pytest.mark.long)])
def test_cache_in_blocks(model, kv_type, real_model, monkeypatch):
    """Another answer than with f16, and one of its own."""
    path, plain = real_model(model), Way("avx2" if able("avx2") else "scalar", kv_type=kv_type)
    edges = EDGES[:9]
    expected = answer(path, plain, edges, monkeypatch, 201, 3)
    other = answer(path, dataclasses.replace(plain, kv_type="f16"), edges, monkeypatch, 201, 3)
    assert all(expected[0][p] != other[0][p] for p in edges)
    for tier, threads, chunk, batch in ((plain.tier, 3, 7, True), *((tier, 2, 64, True) for tier in other_tiers())):
        way = Way(tier, threads, chunk, batch, kv_type)
        check(expected, answer(path, way, edges, monkeypatch, 201, 3), way)


@pytest.mark.parametrize("model", MODELS)
def test_scalar_beginning(model, real_model, monkeypatch):
    if not able("avx2"):
        pytest.skip("this CPU has the scalar tier only")
    found = {tier: answer(real_model(model), Way(tier, 2, 3), range(5), monkeypatch, 5, 2) for tier in ("avx2", "scalar")}
    check(found["avx2"], found["scalar"], "scalar")


@pytest.mark.long
@pytest.mark.parametrize("model", MODELS)
def test_case_98_ten_prompts_fifty_tokens_on_every_tier(model, real_model):
    """Greedy, ten prompts side by side: every tier's logits and tokens are those of the first."""
    prompts = [prompt_ids(5 + 6 * i, 100 + i) for i in range(10)]

    def tokens(tier):
        with Runner(real_model(model), n_ctx=128, max_seqs=10, max_tokens=320, max_wanted=10, isa=tier) as runner:
            found, digests, at, parts = [], [], [0] * 10, prompts
            while len(found) < 50:
                ends = list(itertools.accumulate(map(len, parts)))
                logits = runner.step([(i, at[i], part) for i, part in enumerate(parts)], [end - 1 for end in ends])
                at = [n + len(part) for n, part in zip(at, parts)]
                found.append([int(np.argmax(row)) for row in logits])
                digests.append(digest(logits))
                parts = [[token] for token in found[-1]]
            return found, digests

    tiers = (["avx2"] if able("avx2") else []) + other_tiers()
    if len(tiers) < 2:
        pytest.skip("this CPU has one tier only")
    expected = tokens(tiers[0])
    assert len({tuple(column) for column in zip(*expected[0])}) == 10
    for tier in tiers[1:]:
        assert tokens(tier) == expected, tier


@pytest.mark.long
@pytest.mark.parametrize("model", MODELS)
def test_whole_grid(model, real_model, monkeypatch):
    path, plain = real_model(model), Way("avx2" if able("avx2") else "scalar")
    expected = answer(path, plain, EVERYWHERE, monkeypatch)
    for tier, threads, chunk, batch in itertools.product(
        [plain.tier, *other_tiers()], (1, 2, 3, 5), (1, 7, 64, N_PROMPT), (False, True)
    ):
        way = Way(tier, threads, chunk, batch)
        # Which rows a thread takes is no matter of the tier's: 3 threads show it for the others, all counts by hand.
        if way != plain and (tier == plain.tier or threads == 3 or WHOLE):
            check(expected, answer(path, way, EVERYWHERE, monkeypatch), way)


@pytest.mark.long
@pytest.mark.parametrize("model", MODELS)
def test_scalar_first_sixty(model, real_model, monkeypatch):
    if not able("avx2"):
        pytest.skip("this CPU has the scalar tier only")
    path = real_model(model)
    expected = answer(path, Way(), range(60), monkeypatch, 60, 3)
    for way in (Way("scalar", 2, 60), Way("scalar", 1, 7, True)):
        check(expected, answer(path, way, range(60), monkeypatch, 60, 3), way)

"""The engine's step: pages, preemption, errors of a request and of a step. Tiny models, the real program."""
import os

import numpy as np
import pytest

import pyengine
from pyengine import fit, plan
from pyengine.engine import BATCH_ROWS, Engine, Request
from pyengine.gguf import GGUF
from pyengine.sequences import Chunk
from pyengine.sampling import Params, Sampler
from tiny_gguf import Spec, write

N_CTX = 256


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def path(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param) / "m.gguf"
    write(path, Spec(arch=request.param, seed=5, n_layer=2 if request.param == "llama" else 6))
    return path


def engine(gguf, *, pages=None, threads=None, **settings):
    settings = {"n_ctx": N_CTX, "max_seqs": 4, "max_tokens": 64, **settings}
    program = plan.compile(gguf, **settings)
    n_pages = [n * (pages or settings["max_seqs"]) for n in fit.one_sequence(program)]
    return Engine(program, n_pages=n_pages, **(threads or {"n_threads": 2}))


def request(prompt, n, *, temperature=0.0, seed=1, **more):
    params = Params(temperature=temperature, seed=seed).validated(331)
    return Request(prompt, sampler=Sampler(params, 331, seed), max_tokens=n, **more)


def run(engine, requests):
    for r in requests:
        engine.add(r)
    steps = 0
    while not engine.idle:
        engine.step()
        steps += 1
        assert steps < 5000
    return [r.tokens for r in requests]


PROMPTS = [[(7 * i + j) % 300 for j in range(n)] for i, n in enumerate((3, 70, 1, 150, 20, 64))]


def test_company_changes_nothing(path):
    """Alone or together, in large or small steps, with room for all or for one at a time: the same tokens."""
    with GGUF(path) as gguf:
        e = engine(gguf)
        alone = [run(e, [request(p, 30)])[0] for p in PROMPTS]
        assert run(e, [request(p, 30) for p in PROMPTS]) == alone
        e.close()
        for more in (dict(max_tokens=7), dict(max_tokens=64, max_wanted=1), dict(max_seqs=1)):
            e = engine(gguf, **more)
            assert run(e, [request(p, 30) for p in PROMPTS]) == alone, more
            e.close()


def test_preemption_changes_nothing(path):
    """A pool for one sequence, four that run: the youngest are computed again, the answers are the same."""
    with GGUF(path) as gguf:
        e = engine(gguf)
        prompts = [p[:40] for p in PROMPTS]
        expected = [run(e, [request(p, 120, temperature=0.9)])[0] for p in prompts]
        e.close()
        e = engine(gguf, pages=1)
        requests = [request(p, 120, temperature=0.9) for p in prompts]
        assert run(e, requests) == expected
        assert sum(r.seq.n_preempted for r in requests) > 0
        assert not any(e.cache.used)
        e.close()


def rows_of(e, prompt, wanted_from):
    """(a request that wants rows from there on, {position: row} of what it got)"""
    rows = {}
    return Request(prompt, on_row=lambda logits, i, position: rows.__setitem__(position, logits.numpy(i).copy()), wanted_from=wanted_from), rows


def test_logits_of_every_position(path):
    with GGUF(path) as gguf:
        e = engine(gguf, max_wanted=8)
        prompt = PROMPTS[1]
        company = request(PROMPTS[0], 50)
        r, rows = rows_of(e, prompt, 0)
        run(e, [company, r])
        assert r.error is None and r.finish_reason == "stop" and sorted(rows) == list(range(len(prompt)))
        for i in (0, 1, 63, 64, len(prompt) - 1):      # the same as of a prompt that ends there
            one, last = rows_of(e, prompt[:i + 1], i)
            run(e, [one])
            assert list(last) == [i] and (last[i] == rows[i]).all() and np.ptp(rows[i]) > 0
        e.close()


def test_threads_by_the_rows_of_a_step(path):
    """Prompts and batches take n_threads_batch, steps of few rows n_threads; the tokens stay."""
    with GGUF(path) as gguf:
        e = engine(gguf)
        want = run(e, [request(p, 8) for p in PROMPTS])
        e.close()
        e = engine(gguf, threads={"n_threads": 1, "n_threads_batch": 3})
        steps, real = [], e.program.run
        e.program.run = lambda step: steps.append((len(step.tokens), step.n_threads)) or real(step)
        assert run(e, [request(p, 8) for p in PROMPTS]) == want
        assert {n for rows, n in steps if rows < BATCH_ROWS} == {1}
        assert {n for rows, n in steps if rows >= BATCH_ROWS} == {3}
        e.close()


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity here")
def test_slow_cores_join_from_64_rows(path):
    here = sorted(os.sched_getaffinity(0))
    with GGUF(path) as gguf:
        e = engine(gguf, threads={"n_threads": 1, "n_threads_batch": 3, "cpus": [here] * 3})
        steps, real = [], e.program.run
        e.program.run = lambda step: steps.append((len(step.tokens), step.n_threads)) or real(step)
        run(e, [request([7] * 100, 2)])
        assert steps[:3] == [(64, 3), (36, 1), (1, 1)]
        e.close()


def test_a_quota_that_changes_between_steps(path):
    """Case 114 while running: each step takes what it may at that time, and the tokens stay."""
    with GGUF(path) as gguf:
        e = engine(gguf)
        want = run(e, [request(p, 8) for p in PROMPTS])
        e.close()
        allowed = iter([1, 4, 2, 3] * 50)
        e = engine(gguf, threads={"n_threads": 3, "n_threads_batch": 4, "limit": lambda: next(allowed)})
        steps, real = [], e.program.run
        e.program.run = lambda step: steps.append((len(step.tokens) < BATCH_ROWS, step.n_threads)) or real(step)
        assert run(e, [request(p, 8) for p in PROMPTS]) == want
        assert [n for _, n in steps] == [min(3 if few else 4, most) for (few, _), most in zip(steps, [1, 4, 2, 3] * 50)]
        e.close()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_threads_run_where_they_are_put(path):
    """The pool's threads and the one that steps; a CPU that does not exist changes nothing and ends nothing."""
    here = sorted(os.sched_getaffinity(0))
    try:
        with GGUF(path) as gguf:
            before = set(os.listdir("/proc/self/task"))
            e = engine(gguf, threads={"n_threads": 3, "cpus": [here, here[-1:], [1023]]})
            made = sorted(set(os.listdir("/proc/self/task")) - before, key=int)
            assert [sorted(os.sched_getaffinity(int(t))) for t in made] == [here[-1:], here]
            e.close()
            e = engine(gguf, threads={"n_threads": 1, "cpus": [here[:1]]})
            e.settle()
            assert sorted(os.sched_getaffinity(0)) == here[:1]
            assert len(run(e, [request(PROMPTS[0], 3)])[0]) == 3
            e.close()
    finally:
        os.sched_setaffinity(0, here)


@pytest.mark.parametrize("weights, row, most", [(0.004, 0.0005, 0.11), (0.03, 0.002, 0.11), (0.5, 0.01, 1.1), (0.08, 0.02, 0.34)])
def test_pieces_of_prompts_by_the_speed_of_steps(path, weights, row, most):
    """A small model, a slow one, one that reads half a second: beside decodes, a step with a piece of a prompt takes 0.1 s, or
    twice its time without one; and no less than half of that, or prompts would last for ever."""
    with GGUF(path) as gguf:
        e = engine(gguf)
        one, rows = [Chunk(None, 0, 1, 1, 0)], 512
        for _ in range(40):
            e._measure(one * 4, 4, weights + 4 * row)
            e._measure([*one, Chunk(None, 0, rows, 0, 0)], rows + 1, weights + row * (rows + 1))
            rows = e._prompt_rows()
        assert 0.4 * most < weights + row * rows < most and rows >= 8
        e.close()


def test_ends(path):
    with GGUF(path) as gguf:
        e = engine(gguf)
        nothing = request([1, 2], 0)
        full = request([3] * N_CTX, None)
        until = request([3] * (N_CTX - 10), None)
        run(e, [nothing, full, until])
        assert (nothing.tokens, nothing.finish_reason) == ([], "length")
        assert (full.tokens, full.finish_reason) == ([], "length")
        assert (len(until.tokens), until.finish_reason) == (10, "length")
        first = until.tokens[0]
        ended = request([3] * (N_CTX - 10), None, end_ids=frozenset([first]))
        run(e, [ended])
        assert (ended.tokens, ended.finish_reason) == ([], "stop")
        e.close()


def test_a_step_that_fails_ends_its_requests_only(path, tmp_path):
    """faults.md 137, 138: a file that changed ends its requests by name; the engine goes on saying so."""
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(path.read_bytes())
    with GGUF(copy) as gguf:
        e = engine(gguf)
        r = request([1, 2, 3], 50)
        e.add(r)
        e.step()
        assert r.error is None and len(r.tokens) == 1
        os.utime(copy, ns=(1, 1))
        e.step()
        assert isinstance(r.error, pyengine.FileChangedError) and r.finish_reason is None
        again = request([1], 5)
        run(e, [again])
        assert isinstance(again.error, pyengine.FileChangedError)
        assert e.idle and not any(e.cache.used)
        e.close()


def test_a_file_that_is_replaced_goes_on(path, tmp_path):
    """faults.md 139: a new file under the old name does not touch the one that is open."""
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(path.read_bytes())
    with GGUF(copy) as gguf:
        e = engine(gguf)
        expected = run(e, [request([1, 2, 3], 8)])
        (tmp_path / "other").write_bytes(b"nothing")
        os.replace(tmp_path / "other", copy)
        assert run(e, [request([1, 2, 3], 8)]) == expected
        copy.unlink()
        assert run(e, [request([1, 2, 3], 8)]) == expected
        e.close()


def test_a_stopped_step_commits_nothing(path):
    with GGUF(path) as gguf:
        e = engine(gguf)
        expected = run(e, [request(PROMPTS[3], 10)])
        r = request(PROMPTS[3], 10)
        e.add(r)
        e.program.stop()
        e.step()
        assert r.tokens == [] and r.seq.computed == r.cached == 149 and not r.done     # of the first, with a copy to make
        assert run(e, [request([1], 1)]) and [r.tokens] == expected
        e.close()


def test_cancelled_between_steps(path):
    with GGUF(path) as gguf:
        e = engine(gguf)
        a, b = request([1, 2], None), request([5], 20)
        e.add(a)
        e.add(b)
        for _ in range(5):
            e.step()
        e.cancel(a)
        e.cancel(a)
        run(e, [])
        assert a.done and a.finish_reason is None and len(b.tokens) == 20
        assert not any(e.cache.used)
        e.close()


@pytest.mark.parametrize("weight_type, n_embd, n_ff", [("Q8_0", 64, 96), ("Q4_K", 256, 768), ("F32", 48, 80)])
def test_feed_forwards_cut_by_tokens_too(tmp_path, weight_type, n_embd, n_ff):
    """One thread takes all tokens of a block of rows, several take pieces of at least 128 (exec_mm.c, ffn_piece): the same bits."""
    where = write(tmp_path / "m.gguf", Spec(seed=8, n_embd=n_embd, n_ff=(n_ff,), weight_type=weight_type, n_ctx_train=1024))
    tokens = [3 + 7 * i % 300 for i in range(700)]
    rows = []
    for threads, batch in ((1, 700), (2, 700), (5, 700), (5, 129), (3, 257)):
        with pyengine.Llama(where, n_threads=threads, n_batch=batch, n_ctx=1024) as llm:
            rows.append(llm.logits(tokens))
    assert np.ptp(rows[0]) > 0 and all(np.array_equal(rows[0], r) for r in rows[1:])

"""What server, session and asyncio stand on: jobs and their pieces, calls between steps, the queue's bound, choices."""
import threading

import pytest

import pyengine
from tiny_gguf import Spec, write

ENDLESS = dict(ignore_eos=True, temperature=0.0)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("tiny") / "model.gguf", Spec(n_vocab=331, seed=3))


@pytest.fixture(scope="module")
def model(path):
    with pyengine.Llama(path, n_ctx=512, n_threads=2, n_batch=64) as llm:
        yield llm


def test_pieces_are_the_answer(model):
    """Joined, the pieces' texts, tokens and log probabilities are the completion's, whenever they are taken."""
    news = threading.Event()
    job, = model.start([[5, 9, 30]], max_tokens=40, logprobs=2, stop="zzz", notify=lambda j: news.set(), **ENDLESS)
    pieces = []
    while not job.ended.is_set():
        assert news.wait(20)
        news.clear()
        pieces += job.take()
    pieces += job.take()
    c = job.result
    assert "".join(p.text for p in pieces) == c.text and [t for p in pieces for t in p.tokens] == c.tokens
    assert [e for p in pieces for e in p.logprobs] == c.logprobs and len(c.tokens) == 40
    assert [p.at for p in pieces] == sorted(p.at for p in pieces)
    assert job.take() == [] and job.error is None


def test_notified_once_until_taken(model):
    """Plus once for the end: a reader that sleeps costs nothing."""
    calls = []
    job, = model.start([[5]], max_tokens=30, notify=calls.append, **ENDLESS)
    assert job.ended.wait(20)
    model.call(lambda: None)             # the engine's thread is past telling
    assert calls == [job, job]
    assert sum(len(p.tokens) for p in job.take()) == 30


def test_a_listener_that_raises_is_its_own_problem(model):
    def broken(job):
        raise SystemExit("the loop is closed")

    a, b = model.start([[5], [6]], max_tokens=5, notify=broken, **ENDLESS)
    assert a.ended.wait(20) and b.ended.wait(20)
    assert len(a.result.tokens) == len(b.result.tokens) == 5 and model.healthy


def test_cancelled_jobs_keep_what_there_is(model):
    seen = threading.Event()
    job, = model.start([[5]], notify=lambda j: seen.set(), **ENDLESS)
    assert seen.wait(20)
    job.cancel()
    assert job.ended.wait(20) and job.error is None
    assert job.result.finish_reason is None and 0 < len(job.result.tokens) < 512


def test_stop_string_is_named(model):
    text = model.generate([5, 9], max_tokens=40, **ENDLESS).text
    stop = text[10:12]
    c = model.generate([5, 9], max_tokens=40, stop=["never there", stop], **ENDLESS)
    assert (c.stop, c.finish_reason) == (stop, "stop") and c.text == text[:text.index(stop)]
    assert model.generate([5, 9], max_tokens=3, **ENDLESS).stop is None


def test_calls_run_between_steps_on_the_engines_thread(model):
    names = []
    job, = model.start([[5]], notify=lambda j: names.append(threading.current_thread().name), max_tokens=3, **ENDLESS)
    assert model.call(lambda: threading.current_thread().name) == "pyengine"
    assert model.call(lambda: model.call(lambda: 3)) == 3
    with pytest.raises(ZeroDivisionError):
        model.call(lambda: 1 // 0)
    job.ended.wait(20)
    assert set(names) == {"pyengine"}


def test_the_queue_has_an_end(path):
    """All of a call's answers or none: a call that does not fit leaves nothing behind."""
    with pyengine.Llama(path, n_ctx=512, max_seqs=1, max_queue=2) as llm:
        jobs = llm.start([[5], [6], [7]], **ENDLESS)
        with pytest.raises(pyengine.QueueFullError) as e:
            llm.start([[8]], **ENDLESS)
        assert (e.value.n_waiting, e.value.limit) == (2, 2)
        jobs[1].cancel()
        assert jobs[1].ended.wait(20)
        with pytest.raises(pyengine.QueueFullError):
            llm.start([[8], [9]], **ENDLESS)
        more = llm.start([[8]], **ENDLESS)
        for job in jobs + more:
            job.cancel()
            assert job.ended.wait(20)
        stats = llm.stats()
        assert (stats["running"], stats["waiting"], stats["pages_used"]) == (0, 0, [0])


def test_choices_are_the_coins_of_their_index(model):
    """The first of n answers is the one alone; the others are theirs whatever n is, and come prompt by prompt."""
    settings = dict(max_tokens=20, temperature=1.5, seed=7, top_k=0, top_p=1.0, min_p=0.0, ignore_eos=True)
    prompts = [[5, 9, 30], [40] * 70]
    alone = [model.generate(p, **settings) for p in prompts]
    three = model.generate(prompts, n=3, **settings)
    assert [c.index for c in three] == [0, 1, 2] * 2
    assert [three[0].tokens, three[3].tokens] == [c.tokens for c in alone]
    assert len({tuple(c.tokens) for c in three}) == 6
    assert [c.tokens for c in model.generate(prompts[1], n=2, **settings)] == [c.tokens for c in three[3:5]]
    streams = model.generate(prompts[0], n=2, stream=True, **settings)
    assert ["".join(s) for s in streams] == [c.text for c in three[:2]]


@pytest.mark.parametrize("bad", [dict(n=0), dict(n=1.5), dict(priority=2), dict(key=3), dict(salt="x" * 999), dict(deadline=-1),
                                 dict(deadline="soon"), dict(deadline=float("nan"))], ids=repr)
def test_wrong_options(model, bad):
    with pytest.raises(pyengine.RequestError) as e:
        model.start([[5]], **bad)
    assert e.value.param == next(iter(bad))


def test_one_constraint_at_a_time(model):
    with pytest.raises(pyengine.RequestError, match="json_schema is given too"):
        model.generate("a", regex="a", json_schema={})


def test_health(path, tmp_path):
    copy = tmp_path / "m.gguf"
    copy.write_bytes(path.read_bytes())
    llm = pyengine.Llama(copy, n_ctx=128)
    assert llm.healthy
    llm.generate("a", max_tokens=2)
    assert llm.healthy
    with open(copy, "ab") as f:
        f.write(b"x")
    with pytest.raises(pyengine.FileChangedError):
        llm.generate("a", max_tokens=2)
    assert not llm.healthy
    llm.close()
    assert not llm.healthy


def test_a_stream_that_is_collected_on_the_engines_thread_is_cancelled(model):
    """The collector runs where it likes, also while the thread takes what was cancelled before."""
    thread = model.engine_thread
    dropped, other = model.start([[5], [6]], **ENDLESS)

    class Queue(type(thread._cancel)):
        """Cancels `dropped` at each place where the thread looks at it; a collection would do it once."""

        def __getattribute__(self, name):
            if name in ("clear", "popleft") and not dropped.ended.is_set():
                thread.cancel(dropped)
            return super().__getattribute__(name)

    model.call(lambda: setattr(thread, "_cancel", Queue()))
    other.cancel()
    assert other.ended.wait(20) and dropped.ended.wait(20)
    assert len(dropped.result.tokens) < 100
    model.call(lambda: setattr(thread, "_cancel", type(thread._new)()))


def test_cancelled_while_it_is_closed(path):
    """A step is stopped in a program that is there: close() waits for who is about to."""
    llm = pyengine.Llama(path, n_ctx=512, n_threads=1)
    program, run, stop = llm.program, llm.program.run, llm.program.stop
    running, go, seen = threading.Event(), threading.Event(), []

    def held(step):
        running.set()
        go.wait(20)
        return run(step)

    def late(on=True):
        if threading.current_thread() is threading.main_thread():
            closer.start()
            go.set()
            closer.join(0.3)
            seen.append(program.is_open)
        stop(on)

    program.run, program.stop = held, late
    closer = threading.Thread(target=llm.close)
    job, = llm.start([[5]], **ENDLESS)
    assert running.wait(20)
    job.cancel()
    closer.join(20)
    assert seen == [True] and not program.is_open and job.ended.is_set()


def test_a_thread_that_does_not_begin_takes_nothing_in(path, monkeypatch):
    """Where the system gives no more threads: an error, and the place in the queue is free again."""
    with pyengine.Llama(path, n_ctx=512, max_seqs=1, max_queue=0) as llm:
        def refuse(thread):
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as m:
            m.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="new thread"):
                llm.start([[5]], **ENDLESS)
        assert llm.generate([5], max_tokens=3, **ENDLESS).usage["completion_tokens"] == 3
        assert llm.stats()["waiting"] == 0

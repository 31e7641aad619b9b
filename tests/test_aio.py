"""AsyncLlama gives what Llama gives, holds up no event loop, and ends every request that nobody waits for any more."""
import asyncio
import contextlib
import gc
import threading

import pytest

import pyengine
from pyengine.aio import AsyncLlama, gather, merged
from tiny_gguf import CHATML, Spec, write

ENDLESS = dict(ignore_eos=True, max_tokens=None)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("tiny") / "model.gguf", Spec(n_vocab=331, seed=3, chat_template=CHATML))


@pytest.fixture(scope="module")
def model(path):
    with pyengine.Llama(path, n_ctx=512, n_threads=2, n_batch=64, max_seqs=4) as llm:
        yield llm


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 60))


async def idle(model):
    """Returns when no request is left and no page is held; a request that is never ended hangs here."""
    while True:
        stats = await asyncio.get_running_loop().run_in_executor(None, lambda: model.call(model.stats))
        if not stats["running"] and not stats["waiting"] and not any(stats["pages_used"]):
            return
        await asyncio.sleep(0.01)


class Gate:
    """A logits processor that lets the engine past only when it is told to: time stands still in between."""

    def __init__(self, free=0):
        self.let = threading.Semaphore(free)
        self.reached = threading.Event()

    def __call__(self, tokens, logits):
        self.reached.set()
        assert self.let.acquire(timeout=30)
        return logits


# ---- the same answers ----------------------------------------------------------------


@pytest.mark.parametrize("options", [dict(temperature=0.0), dict(temperature=0.8, seed=7), dict(temperature=0.8, seed=7, logprobs=2)])
def test_generate_gives_what_llama_gives(model, options):
    async def both():
        llm = AsyncLlama(model)
        whole = await llm.generate("hello there", max_tokens=30, **options)
        stream = llm.generate("hello there", stream=True, max_tokens=30, **options)
        return whole, "".join([piece async for piece in stream]), stream.result

    whole, text, result = run(both())
    want = model.generate("hello there", max_tokens=30, **options)
    assert whole.text == text == want.text and whole.tokens == result.tokens == want.tokens and want.tokens
    assert whole.logprobs == result.logprobs == want.logprobs
    assert whole.finish_reason == result.finish_reason == want.finish_reason


def test_chat_gives_what_llama_gives(model):
    messages = [{"role": "user", "content": "hi"}]

    async def both():
        llm = AsyncLlama(model)
        return (await llm.chat(messages, max_tokens=12, seed=1)).text, "".join([p async for p in llm.chat(messages, stream=True, max_tokens=12, seed=1)])

    assert run(both()) == (model.chat(messages, max_tokens=12, seed=1).text,) * 2


def test_several_prompts_and_choices_are_lists(model):
    async def answers():
        llm = AsyncLlama(model)
        return (await llm.generate(["a", "b"], max_tokens=5, seed=1), await llm.generate(["a"], max_tokens=5, seed=1),
                await llm.generate("a", n=2, max_tokens=5, seed=1))

    two, one, choices = run(answers())
    want = model.generate(["a", "b"], max_tokens=5, seed=1)
    assert [c.tokens for c in two] == [c.tokens for c in want] and len(one) == 1 and one[0].tokens == want[0].tokens
    assert [c.tokens for c in choices] == [c.tokens for c in model.generate("a", n=2, max_tokens=5, seed=1)]


def test_many_at_once_are_each_as_if_alone(model):
    async def all_of_them():
        llm = AsyncLlama(model)

        async def one(i):
            return "".join([p async for p in llm.generate(f"text {i}", stream=True, max_tokens=20 + i, seed=i)])

        return await asyncio.gather(*(one(i) for i in range(12)))

    assert run(all_of_them()) == [model.generate(f"text {i}", max_tokens=20 + i, seed=i).text for i in range(12)]


def test_merged_choices(model):
    async def all_pieces():
        llm = AsyncLlama(model)
        answers = await llm.start([[5, 6], [7]], n=2, max_tokens=15, seed=3, ignore_eos=True)
        texts, ended = [""] * 4, []
        async for i, piece in merged(answers):
            if piece is None:
                ended.append(i)
            else:
                texts[i] += piece.text
        return texts, ended, [(await a).text for a in answers]

    texts, ended, whole = run(all_pieces())
    assert texts == whole and sorted(ended) == [0, 1, 2, 3]
    assert whole == [c.text for c in model.generate([[5, 6], [7]], n=2, max_tokens=15, seed=3, ignore_eos=True)]


def test_merged_of_one_ends_when_it_is_left(model):
    async def leave():
        answers = await AsyncLlama(model).start([[5, 6]], max_tokens=15, seed=3, ignore_eos=True)
        out = [item async for item in merged(answers)]
        text = "".join(piece.text for _, piece in out[:-1])
        assert out[-1] == (0, None) and text == (await answers[0]).text
        left = merged(await AsyncLlama(model).start([[5, 6]], **ENDLESS))
        assert (await left.__anext__())[0] == 0
        await left.aclose()
        await idle(model)

    run(leave())


def test_text_and_tokens(model):
    async def both():
        llm = AsyncLlama(model)
        tokens = await llm.tokenize("hello")
        return tokens, await llm.detokenize(tokens), await llm.chat_tokens([{"role": "user", "content": "hi"}])

    tokens, text, chat = run(both())
    assert tokens == model.tokenize("hello") and text == model.detokenize(tokens)
    assert chat == model.chat_tokens([{"role": "user", "content": "hi"}])


# ---- errors --------------------------------------------------------------------------


def test_errors_are_raised_where_they_are_awaited(model):
    def bad(tokens, logits):
        raise LookupError("mine")

    async def errors():
        llm = AsyncLlama(model)
        out = []
        for call in (lambda: llm.generate("x", temperature=-1.0), lambda: llm.generate([1] * 600), lambda: llm.generate("x", processors=[bad]),
                     lambda: llm.generate("x", nonsense=1), lambda: llm.chat([])):
            try:
                await call()
            except Exception as e:
                out.append(type(e).__name__)
        try:
            async for _ in llm.generate("x", stream=True, processors=[bad]):
                pass
        except Exception as e:
            out.append(type(e).__name__)
        await idle(model)
        return out

    assert run(errors()) == ["RequestError", "ContextError", "LookupError", "TypeError", "RequestError", "LookupError"]


def test_one_error_of_several_ends_the_others(model):
    async def two():
        llm = AsyncLlama(model)
        (fine,) = await llm.start([[5]], **ENDLESS)
        (broken,) = await llm.start([[5]], processors=[lambda t, l: 1 / 0], **ENDLESS)
        with pytest.raises(ZeroDivisionError):
            await gather([broken, fine])
        (fine2,) = await llm.start([[5]], **ENDLESS)
        (broken2,) = await llm.start([[5]], processors=[lambda t, l: 1 / 0], **ENDLESS)
        with pytest.raises(ZeroDivisionError):
            async for _ in merged([fine2, broken2]):
                pass
        await idle(model)

    run(two())


def test_a_stream_that_failed_has_ended(model):
    async def failing():
        stream = AsyncLlama(model).generate([], stream=True)
        with pytest.raises(pyengine.RequestError):
            await stream.__anext__()
        with pytest.raises(StopAsyncIteration):
            await stream.__anext__()

    run(failing())


def test_a_stream_is_one_answer(model):
    async def several():
        with pytest.raises(TypeError, match="expected one"):
            async for _ in AsyncLlama(model).generate(["a", "b"], stream=True, max_tokens=3):
                pass
        await idle(model)

    run(several())


# ---- ends ----------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_cancelling_the_task_ends_the_request(model, stream):
    async def cancel():
        llm, gate = AsyncLlama(model), Gate(free=3)

        async def consume():
            if stream:
                async for _ in llm.generate("x", stream=True, processors=[gate], **ENDLESS):
                    pass
            else:
                await llm.generate("x", processors=[gate], **ENDLESS)

        task = asyncio.ensure_future(consume())
        await asyncio.get_running_loop().run_in_executor(None, gate.reached.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.let.release(1000)
        await idle(model)

    run(cancel())


def test_cancelled_in_its_prompt(model):
    """A long prompt is behind a step that stands still: when it goes on, the prompt's request has gone."""
    async def cancel():
        llm, gate = AsyncLlama(model), Gate()
        (first,) = await llm.start([[5]], processors=[gate], **ENDLESS)
        await asyncio.get_running_loop().run_in_executor(None, gate.reached.wait)
        task = asyncio.ensure_future(llm.generate([7] * 400, **ENDLESS))
        while len(asyncio.all_tasks()) < 2 or not model.stats()["waiting"] and not model._thread._new:
            await asyncio.sleep(0.005)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        first.cancel()
        gate.let.release(10)
        await idle(model)

    before = model.stats()["prompt_tokens"]
    run(cancel())
    assert model.stats()["prompt_tokens"] - before < 400


def test_cancelled_before_it_has_begun(model):
    """start() waits for a thread when the task is cancelled: what begins later ends at once."""
    async def cancel():
        llm, release = AsyncLlama(model), threading.Event()
        held = [asyncio.ensure_future(llm.work(release.wait)) for _ in range(4)]
        task = asyncio.ensure_future(llm.generate("x", **ENDLESS))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        release.set()
        await asyncio.gather(*held)
        await llm.work(int)          # the thread has come past what was cancelled
        await idle(model)

    run(cancel())


def test_a_dropped_iterator_ends_its_request(model):
    async def drop():
        llm = AsyncLlama(model)
        stream = llm.generate("x", stream=True, **ENDLESS)
        assert await stream.__anext__()
        del stream
        gc.collect()
        await idle(model)
        (answer,) = await llm.start([[5]], **ENDLESS)
        del answer
        gc.collect()
        await idle(model)

    run(drop())


def test_aclose_keeps_what_there_is(model):
    async def close():
        llm = AsyncLlama(model)
        async with llm.generate("x", stream=True, **ENDLESS) as stream:
            text = await stream.__anext__()
        assert stream.result.text.startswith(text) and stream.result.finish_reason is None
        assert [p async for p in stream] == []
        unused = llm.generate("x", stream=True)
        await unused.aclose()
        assert unused.result is None
        await idle(model)

    run(close())


def test_the_loop_is_free_while_a_prompt_is_prepared(model):
    """Four threads are busy with what takes long, and the loop turns."""
    async def turn():
        llm, release = AsyncLlama(model), threading.Event()
        held = [asyncio.ensure_future(llm.work(release.wait)) for _ in range(4)]
        task = asyncio.ensure_future(llm.generate("x", max_tokens=2))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not task.done()
        release.set()
        await asyncio.gather(*held)
        return await task

    assert run(turn()).usage["completion_tokens"] <= 2


def test_several_event_loops(model):
    llm, out = AsyncLlama(model), {}

    def loop(i):
        out[i] = run(llm.generate("several loops", max_tokens=20, seed=i)).tokens

    threads = [threading.Thread(target=loop, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert out == {i: model.generate("several loops", max_tokens=20, seed=i).tokens for i in range(3)}


def test_a_loop_that_has_closed_harms_nobody(model):
    async def leave():
        return (await AsyncLlama(model).start([[5]], **ENDLESS))[0].job

    job = run(leave())
    assert job.ended.wait(30)          # dropped with its loop
    assert model.healthy and model.generate([5], max_tokens=3, seed=1).usage["completion_tokens"] <= 3


def test_observed_once(model):
    async def observe():
        llm, seen = AsyncLlama(model), []
        llm.observe(seen.append)
        (answer,) = await llm.start([[5]], max_tokens=9, ignore_eos=True)
        async for _ in answer:
            pass
        await answer
        await answer
        return seen, answer

    seen, answer = run(observe())
    assert seen == [answer] and sum(n for _, n in answer.arrivals) == 9


# ---- opening and closing -----------------------------------------------------------------


def test_opens_and_closes_what_it_opened(path):
    async def whole():
        async with AsyncLlama(path, n_ctx=64) as llm:
            llama = llm.llama
            text = (await llm.generate("x", max_tokens=3, seed=1)).text
        with pytest.raises(pyengine.ClosedError):
            llama.generate("x")
        await llm.close()
        return text

    assert isinstance(run(whole()), str)


def test_many_first_calls_open_once(path):
    async def first():
        llm = AsyncLlama(path, n_ctx=64)
        a, b, c = await asyncio.gather(llm.tokenize("a"), llm.open(), llm.open())
        assert b is c is llm.llama
        await llm.close()

    run(first())


def test_first_calls_of_several_loops_open_once(path, monkeypatch):
    """Each loop waits for the same opening, though a future belongs to one loop."""
    from pyengine import aio

    opened, asked = [], threading.Barrier(3)

    class Slow(aio.Llama):
        def __init__(self, *args, **settings):
            opened.append(args)
            asked.wait(30)               # until every loop has asked
            super().__init__(*args, **settings)

    out = {}
    monkeypatch.setattr(aio, "Llama", Slow)
    llm = AsyncLlama(path, n_ctx=64)

    def ask(i):
        async def go():
            call = asyncio.ensure_future(llm.tokenize("one"))
            await asyncio.sleep(0)
            await asyncio.get_running_loop().run_in_executor(None, asked.wait, 30)
            return await call

        out[i] = run(go())

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    run(llm.close())
    assert len(opened) == 1 and len(out) == 2 and out[0] == out[1]


def test_a_model_that_does_not_open_is_tried_again(path, tmp_path):
    async def twice():
        late = tmp_path / "late.gguf"
        llm = AsyncLlama(late, n_ctx=64)
        with pytest.raises(OSError):
            await llm.open()
        with pytest.raises(RuntimeError, match="not open"):
            llm.llama
        late.write_bytes(path.read_bytes() if hasattr(path, "read_bytes") else open(path, "rb").read())
        assert (await llm.generate("x", max_tokens=2)).usage["completion_tokens"] <= 2
        await llm.close()

    run(twice())


def test_a_given_model_stays_open(model):
    async def use():
        async with AsyncLlama(model) as llm:
            await llm.generate("x", max_tokens=2)

    run(use())
    assert model.generate("x", max_tokens=2) is not None
    with pytest.raises(TypeError, match="n_ctx"):
        AsyncLlama(model, n_ctx=5)


def test_closing_ends_what_runs(path):
    async def close():
        llm = AsyncLlama(path, n_ctx=2048)
        (answer,) = await llm.start([[5]], **ENDLESS)
        task = asyncio.ensure_future(answer.result())
        await asyncio.sleep(0)
        await llm.close()
        with pytest.raises(pyengine.ClosedError):
            await task

    run(close())


def test_healthy_while_its_thread_begins(path, monkeypatch):
    """A server asks while the first request comes: a thread that is made and has not begun is no fault."""
    seen, real = [], threading.Thread.start

    def start(thread):
        if thread.name == "pyengine":
            seen.append(llm.healthy)
        real(thread)

    with pyengine.Llama(path, n_ctx=64) as llm:
        monkeypatch.setattr(threading.Thread, "start", start)
        llm.generate("x", max_tokens=2)
        assert seen == [True] and llm.healthy
    assert not llm.healthy


def test_a_fault_shows_before_anybody_is_told_of_it(path, tmp_path):
    import os

    copy = tmp_path / "model.gguf"
    copy.write_bytes(path.read_bytes())
    with pyengine.Llama(copy, n_ctx=64) as llm:
        os.utime(copy, ns=(1, 1))
        seen, told = [], threading.Event()

        def notify(job):
            seen.append(llm.healthy)
            told.set()

        (job,) = llm.start([[5]], notify=notify)
        assert told.wait(30) and isinstance(job.error, pyengine.FileChangedError) and seen[0] is False

"""The app without a socket: answers, errors, health, disconnects, the end. faults.md F 90-93, 106; G 112-119, 121; H 126, 130, 132."""
import asyncio
import json
import logging
import os
import threading

import pytest

import pyengine
from pyengine import errors
from pyengine.aio import AsyncLlama
from pyengine.serve import create_app as public_create_app
from pyengine.serve.app import as_http_error
from pyengine.serve.guard import Keys, new_key
from serving import ASGI, KEY, OTHER, PROCESSORS, Gate, app_of, client, idle, run
from tiny_gguf import CHATML, Spec, write

ENDLESS = dict(ignore_eos=True, prompt=[5, 6, 7])


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("tiny") / "model.gguf", Spec(n_vocab=331, seed=3, chat_template=CHATML))


@pytest.fixture(scope="module")
def model(path):
    with pyengine.Llama(path, n_ctx=512, n_threads=2, n_batch=64, max_seqs=4) as llm:
        yield llm


@pytest.fixture
def gate():
    """Time stands still in every request's first token until the test lets it go on."""
    gate = Gate()
    PROCESSORS.append(gate)
    yield gate
    PROCESSORS.clear()
    gate.let.release(100_000)


async def reached(gate):
    assert await asyncio.get_running_loop().run_in_executor(None, gate.reached.wait, 30)


# ---- answers ---------------------------------------------------------------------------


def test_an_answer_and_a_stream(model):
    async def go():
        async with client(app_of(model)) as c:
            whole = await c.post("/gen", json=dict(prompt="hello", max_tokens=20, seed=4))
            stream = await c.post("/gen", json=dict(prompt="hello", max_tokens=20, seed=4, stream=True))
            return whole, stream

    whole, stream = run(go())
    want = model.generate(model.tokenize("hello"), max_tokens=20, seed=4)
    assert whole.status_code == 200 and whole.json()["text"] == want.text and whole.headers["content-type"].startswith("application/json")
    events = [e[6:] for e in stream.text.split("\n\n") if e]
    assert events[-1] == "[DONE]" and "".join(json.loads(e)["text"] for e in events[:-1]) == want.text


def test_what_a_handler_is_told(model):
    keys = Keys([new_key(KEY, "t", "alice"), new_key(OTHER, "t", "bob", 1)])

    async def go():
        async with client(app_of(model, keys=keys)) as c, client(app_of(model, keys=keys, share_prefixes=True)) as shared, client(app_of(model)) as open_:
            alice, bob = {"X-Api-Key": KEY}, {"Authorization": f"Bearer {OTHER}"}
            return [r.json() for r in [
                await c.post("/show", json={"a": 1}, headers={**alice, "X-Request-Id": "mine"}), await c.get("/show/x%20y?q=1", headers=bob),
                await shared.post("/show", json={}, headers=alice), await open_.post("/show", json={})]]

    alice, bob, shared, nobody = run(go())
    assert alice["body"] == {"a": 1} and alice["key"] == "alice" and alice["priority"] == 0 and alice["request_id"] == "mine"
    assert bob["key"] == "bob" and bob["priority"] == 1 and bob["body"] == {} and bob["query"] == {"q": "1"} and bob["params"] == {"name": "x y"}
    assert bob["path"] == "/show/x y"
    assert alice["salt"] and bob["salt"] and alice["salt"] != bob["salt"]
    assert shared["salt"] == nobody["salt"] == "" and nobody["key"] == ""


def test_one_keys_cached_prompts_are_not_anothers(model):
    """Whether a prompt was asked by somebody else cannot be told from how much of it was cached."""
    keys = Keys([new_key(KEY, "t", "alice"), new_key(OTHER, "t", "bob")])

    async def go():
        async with client(app_of(model, keys=keys)) as c:
            out = []
            for key in (KEY, OTHER, KEY):
                r = await c.post("/gen", json=dict(prompt=list(range(5, 205)), max_tokens=1), headers={"X-Api-Key": key})
                out.append(r.json()["cached_tokens"])
            return out

    first, foreign, again = run(go())
    assert first == foreign == 0
    assert again > 0 or not hasattr(model._thread.engine.cache, "match")      # the cache answers its own key


def test_mounted_in_another_app(model):
    from starlette.applications import Starlette
    from starlette.routing import Mount

    outer = Starlette(routes=[Mount("/llm", app=app_of(model, keys=Keys([new_key(KEY, "t")])))])

    async def go():
        async with client(outer) as c:
            return [(await c.get(p, headers=h)).status_code for p, h in (("/llm/health", {}), ("/llm/metrics", {}), ("/llm/metrics", {"X-Api-Key": KEY}), ("/health", {}))]

    assert run(go()) == [200, 401, 200, 404]


def test_an_async_llama_or_a_function_may_be_given(model, path):
    async def go():
        async with client(app_of(AsyncLlama(model))) as c:
            assert (await c.get("/health")).status_code == 200
        with pytest.raises(errors.RequestError, match="llm: found int"):
            app_of(5)
        assert public_create_app(model).state.server.state == "ready"

    run(go())


# ---- errors ----------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b"1", b'"x"', b'{"a":NaN}', b'{"a":Infinity}', b'{"a":1e999}', b'{"a":1,"a":2}', b"\xef\xbb\xbf{}",
                                 '{"a":1}'.encode("utf-16"), b'{"a":"\xff"}', b'{"a":"\\ud800"}', b"[" * 100_000, b'{"a":' * 100_000, b"[]," * 400_000,
                                 b'{"a":' + b"9" * 5000 + b"}", b'{"a":1}x', b'{"stream":"true"'])
def test_bodies_that_are_not_json_objects_are_400(model, raw):
    async def go():
        async with client(app_of(model)) as c:
            return await c.post("/show", content=raw, headers={"Content-Type": "application/json"})

    r = run(go())
    assert r.status_code == 400 and r.json()["error"]["type"] == "invalid_request_error" and len(r.content) < 1000


def test_errors_of_the_model_have_their_status(model):
    async def go():
        async with client(app_of(model)) as c:
            return [await c.post("/gen", json=body) for body in (
                dict(prompt=[1] * 600), dict(temperature=-1), dict(prompt=[10 ** 9]))]

    context, range_, ids = run(go())
    e = context.json()["error"]
    assert context.status_code == 400 and e["code"] == "context_length_exceeded" and (e["n_prompt_tokens"], e["n_ctx"]) == (600, 512)
    assert range_.status_code == 400 and range_.json()["error"]["param"] == "temperature"
    assert ids.status_code == 400


def test_what_is_ours_to_repair_is_in_the_log_and_not_in_the_answer(model, caplog):
    async def go():
        async with client(app_of(model)) as c:
            r = await c.post("/boom", json={})
            assert (await c.get("/health")).status_code == 200
            return r

    r = run(go())
    assert r.status_code == 500 and "secret" not in r.text and "Lookup" not in r.text and r.headers["x-request-id"] in r.text
    assert "/secret/path" in caplog.text and r.headers["x-request-id"] in caplog.text


@pytest.mark.parametrize("e, status", [
    (errors.RequestError("x", param="p"), 400), (errors.ContextError("x", n_prompt=2, n_ctx=1), 400), (errors.GrammarError("x", param="regex"), 400),
    (errors.TokenizerError("x"), 400), (errors.TemplateError("x"), 400), (errors.QueueFullError("x", n_waiting=1, limit=1), 429), (errors.DeadlineError("x"), 408),
    (errors.ClosedError("x"), 503), (errors.FileChangedError("x"), 503), (errors.NonFiniteError("x"), 500), (MemoryError(), 500), (OSError("x"), 500)])
def test_exceptions_and_statuses(e, status):
    out = as_http_error(e, "id")
    assert out.status == status and (status < 500 or "x" not in out.message.split())
    assert ("Retry-After" in out.headers) == (status in (429, 503)) and ("X-Should-Retry" in out.headers) == (status == 408)


def test_routes_that_are_not_there(model):
    async def go():
        async with client(app_of(model)) as c:
            return [await c.get("/nowhere\u202e<script>"), await c.get("/gen"), await c.delete("/health"), await c.post("/v1/../../etc/passwd", json={})]

    for r, status in zip(run(go()), (404, 405, 405, 404)):
        assert r.status_code == status and r.json()["error"]["message"] and "\u202e" not in r.text and r.headers["x-request-id"]


# ---- the queue -------------------------------------------------------------------------


def test_too_many_requests_are_429_and_health_still_answers(model, gate):
    async def go():
        app = app_of(model, max_queue=3)
        first = [ASGI(app, "/gen", dict(ENDLESS, max_tokens=2)) for _ in range(7)]        # 4 run, 3 wait
        tasks = [r.start() for r in first]
        await reached(gate)
        async with client(app) as c:
            while app.state.server.queue.inside < 7:
                await asyncio.sleep(0.005)
            more = [await c.post("/gen", json=ENDLESS) for _ in range(5)]
            health = await c.get("/health")
        gate.let.release(1000)
        await asyncio.gather(*tasks)
        await idle(model)
        return more, health, [r.status for r in first]

    more, health, first = run(go())
    assert {r.status_code for r in more} == {429} and all(1 <= int(r.headers["retry-after"]) <= 60 for r in more)
    assert more[0].json()["error"]["code"] == "queue_full" and health.status_code == 200 and first == [200] * 7


# ---- clients that go ---------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_disconnect_in_the_middle_of_an_answer(model, gate, stream):
    async def go():
        app = app_of(model)
        r = ASGI(app, "/gen", dict(ENDLESS, stream=stream))
        task = r.start()
        gate.let.release(3)
        await reached(gate)
        if stream:
            await r.wrote.wait()
        r.gone.set()
        await task
        gate.let.release(100_000)
        await idle(model)
        assert app.state.server.queue.inside == 0
        return r

    r = run(go())
    assert r.status == (200 if stream else None) and not any(m.get("more_body") is False for m in r.sent)


def test_disconnect_in_the_queue(model, gate):
    """Five want four places: the fifth goes while it waits and is never computed."""
    async def go():
        app = app_of(model)
        running = [ASGI(app, "/gen", dict(ENDLESS, max_tokens=1)) for _ in range(4)]
        tasks = [r.start() for r in running]
        await reached(gate)
        waiting = ASGI(app, "/gen", dict(ENDLESS))
        task = waiting.start()
        for _ in range(50):
            await asyncio.sleep(0.002)
        waiting.gone.set()
        await task
        assert app.state.server.queue.inside == 4 and waiting.sent == []
        gate.let.release(100_000)
        await asyncio.gather(*tasks)
        await idle(model)

    run(go())


def test_disconnect_before_the_body_is_there(model):
    async def go():
        app = app_of(model)
        r = ASGI(app, "/gen", hold=True)
        task = r.start()
        await asyncio.sleep(0.01)
        r.gone.set()
        await task
        assert r.sent == [] and app.state.server.queue.inside == 0

    run(go())


@pytest.mark.parametrize("stream", [False, True])
def test_disconnect_in_the_middle_of_the_prompt(real_model, stream):
    """A prompt of many steps: its client goes after the first, and most of it is never computed."""
    with pyengine.Llama(real_model("smollm2"), n_ctx=4096, n_batch=32, max_seqs=2) as llm:
        async def go():
            app = app_of(llm)
            r = ASGI(app, "/gen", dict(prompt=list(range(1000, 4500)), ignore_eos=True, stream=stream))
            task = r.start()
            while llm.stats()["steps"] < 1:
                await asyncio.sleep(0.005)
            r.gone.set()
            await task
            await idle(llm)
            return r.sent, llm.stats()["steps"]

        sent, steps = run(go())
    assert sent == [] and 1 <= steps < 60            # all of it would be 110


@pytest.mark.long
def test_a_thousand_disconnects_at_random_points_leave_nothing(model):
    """Half of them streams; gone before the body, in the queue, in the prompt, in the answer, at its end."""
    import random

    import psutil

    me, rng = psutil.Process(), random.Random(5)

    async def one(app):
        r = ASGI(app, "/gen", dict(prompt=[5 + i % 300 for i in range(rng.choice((3, 60, 400)))], ignore_eos=True, max_tokens=rng.choice((1, 40, 400)),
                                   stream=rng.random() < 0.5), hold=rng.random() < 0.05)
        task = r.start()
        await asyncio.sleep(rng.choice((0, 0, 0.001, 0.01, 0.05, 0.2)) * rng.random())
        r.gone.set()
        await task

    async def go():
        app, memory = app_of(model), []
        for _ in range(10):
            for _ in range(10):
                await asyncio.gather(*(one(app) for _ in range(10)))
            await idle(model)
            assert app.state.server.queue.inside == 0 and len(asyncio.all_tasks()) <= 2
            memory.append((me.memory_info().rss, me.num_fds(), threading.active_count()))
        return memory

    memory = run(go())
    assert memory[-1][1] <= memory[1][1] and memory[-1][2] <= memory[1][2]
    assert memory[-1][0] - memory[2][0] < 4 << 20, [m[0] >> 10 for m in memory]


# ---- health, loading, the end --------------------------------------------------------------


async def lifespan(app):
    """(start, stop) of the app's lifespan, as a host calls them."""
    inbox, outbox = asyncio.Queue(), asyncio.Queue()
    task = asyncio.ensure_future(app({"type": "lifespan", "asgi": {"version": "3.0"}}, inbox.get, outbox.put))
    await inbox.put({"type": "lifespan.startup"})
    assert (await outbox.get())["type"] == "lifespan.startup.complete"

    async def stop():
        await inbox.put({"type": "lifespan.shutdown"})
        assert (await outbox.get())["type"] == "lifespan.shutdown.complete"
        await task

    return stop


def test_health_while_the_model_loads(path):
    release, opened = threading.Event(), []

    def open_model():
        assert release.wait(30)
        opened.append(pyengine.Llama(path, n_ctx=64))
        return opened[0]

    async def go():
        app = app_of(open_model)
        stop = await lifespan(app)
        async with client(app) as c:
            loading = [await c.get("/health"), await c.post("/gen", json={}), await c.get("/metrics")]
            release.set()
            while (await c.get("/health")).status_code != 200:
                await asyncio.sleep(0.01)
            ready = await c.post("/gen", json=dict(prompt=[5], max_tokens=2))
            await stop()
            after = [await c.get("/health"), await c.post("/gen", json={})]
        return loading, ready, after

    loading, ready, after = run(go())
    assert [r.status_code for r in loading] == [503, 503, 200] and loading[0].json() == {"status": "loading"}
    assert int(loading[1].headers["retry-after"]) > 0 and loading[1].json()["error"]["type"] == "unavailable_error"
    assert ready.status_code == 200
    assert [r.status_code for r in after] == [503, 503] and after[0].json() == {"status": "draining"}
    with pytest.raises(errors.ClosedError):
        opened[0].generate("x")              # what the app opened, it closed


def test_a_model_that_does_not_open(tmp_path, caplog):
    async def go():
        app = app_of(lambda: pyengine.Llama(tmp_path / "none.gguf"))
        stop = await lifespan(app)
        async with client(app) as c:
            while (health := await c.get("/health")).json()["status"] == "loading":
                await asyncio.sleep(0.01)
            r = await c.post("/gen", json={})
        await stop()
        return health, r, app.state.server.failure

    health, r, failure = run(go())
    assert health.status_code == r.status_code == 503 and health.json() == {"status": "failed"} and isinstance(failure, OSError)
    assert "none.gguf" in caplog.text and "none.gguf" not in r.text


def test_a_model_that_opens_after_the_end_is_closed(path):
    release, opened = threading.Event(), []

    def open_model():
        assert release.wait(30)
        opened.append(pyengine.Llama(path, n_ctx=64))
        return opened[0]

    async def go():
        app = app_of(open_model)
        stop = await lifespan(app)
        await stop()
        release.set()
        while not opened or opened[0].healthy:
            await asyncio.sleep(0.01)

    run(go())


def test_a_file_that_changes_under_the_server(path, tmp_path):
    """A real fault: the model's file is cut while it serves. The requests end with 503, and so does /health from then on."""
    copy = tmp_path / "model.gguf"
    copy.write_bytes(open(path, "rb").read())
    with pyengine.Llama(copy, n_ctx=256) as llm:
        async def go():
            async with client(app_of(llm)) as c:
                before = [await c.get("/health"), await c.post("/gen", json=dict(prompt=[5], max_tokens=2))]
                os.utime(copy, ns=(1, 1))
                after = [await c.post("/gen", json=dict(prompt=[5], max_tokens=2)), await c.get("/health"), await c.post("/gen", json=dict(prompt=[5], max_tokens=2))]
                return before, after

        before, after = run(go())
    assert [r.status_code for r in before] == [200, 200]
    assert [r.status_code for r in after] == [503, 503, 503] and after[1].json() == {"status": "fault"}
    assert str(tmp_path) not in after[0].text


def test_a_step_that_does_not_end_shows_in_health(model, gate):
    async def go():
        app = app_of(model, stall_seconds=0.05)
        r = ASGI(app, "/gen", dict(ENDLESS, max_tokens=1))
        task = r.start()
        await reached(gate)
        async with client(app) as c:
            first = (await c.get("/health")).json()["status"]
            await asyncio.sleep(0.1)
            stalled = await c.get("/health")
            gate.let.release(1000)
            await task
            await idle(model)
            return first, stalled, await c.get("/health")

    first, stalled, after = run(go())
    assert first == "ok" and stalled.status_code == 503 and stalled.json() == {"status": "stalled"} and after.status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_draining_finishes_what_runs_and_takes_nothing_new(model, gate, stream):
    async def go():
        app = app_of(model)
        r = ASGI(app, "/gen", dict(ENDLESS, max_tokens=5, stream=stream))
        task = r.start()
        await reached(gate)
        app.state.server.drain()
        async with client(app) as c:
            new, health = await c.post("/gen", json={}), await c.get("/health")
        gate.let.release(1000)
        await task
        return r, new, health

    r, new, health = run(go())
    assert r.status == 200 and r.sent[-1].get("more_body", False) is False and b"shutting" not in r.body
    assert new.status_code == health.status_code == 503 and health.json() == {"status": "draining"} and new.headers["retry-after"]


@pytest.mark.parametrize("stream", [False, True])
def test_what_runs_at_the_end_is_told_so(model, gate, stream):
    async def go():
        app = app_of(model)
        r = ASGI(app, "/gen", dict(ENDLESS, stream=stream))
        task = r.start()
        gate.let.release(2)
        await reached(gate)
        if stream:
            await r.wrote.wait()
        app.state.server.end()
        gate.let.release(100_000)
        await task
        await idle(model)
        return r

    r = run(go())
    assert r.status == (200 if stream else 503) and b"shutting down" in r.body and r.sent[-1].get("more_body", False) is False


# ---- logs ------------------------------------------------------------------------------


def test_logs_hold_no_prompt_unless_asked_for(model, caplog):
    async def go(**settings):
        async with client(app_of(model, **settings)) as c:
            await c.post("/gen?secret-query=1", json=dict(prompt="my secret", max_tokens=2, stream=True), headers={"X-Request-Id": "the-id"})
            await c.post("/gen", json=dict(prompt="my secret", max_tokens=-5))
            await c.post("/gen", content=b'{"my secret', headers={"Content-Type": "application/json"})

    with caplog.at_level(logging.DEBUG, logger="pyengine"):
        run(go())
        assert "secret" not in caplog.text and "the-id - POST '/gen' 200" in caplog.text
        run(go(log_prompts=True))
        assert "my secret" in caplog.text


def test_a_log_line_is_one_line(model, caplog):
    async def go():
        async with client(app_of(model)) as c:
            await c.get("/a%0Ab%1b[31m", headers={"X-Request-Id": "x y"})

    with caplog.at_level(logging.INFO, logger="pyengine"):
        run(go())
    assert all("\n" not in r.getMessage() and "\x1b" not in r.getMessage() for r in caplog.records)

"""Faults of the service that no other file shows, over the real dialects: faults.md 93, 101, 104, 108, 112, 117, 122, 132, 136; cases 67, 138.

In process over a tiny model, and as a process where descriptors and signals matter.
"""
import asyncio
import json
import logging
import os
import subprocess
import sys
import time

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")

import pyengine
from pyengine.serve import Settings, create_app
from pyengine.serve.guard import Keys, new_key
from serving import ASGI, KEY, ROOT, Raw, Serve, client, health, idle, run
from tiny_gguf import CHATML, Spec, write


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("tiny") / "model.gguf", Spec(vocabulary="bpe", n_embd=32, n_ff=(48,), n_head=2, n_head_kv=(1,), seed=3, chat_template=CHATML))


@pytest.fixture(scope="module")
def model(path):
    with pyengine.Llama(path, n_ctx=512, n_threads=2, n_batch=64, max_seqs=4) as llm:
        yield llm


def ask(model, *requests, **settings):
    """[(status, JSON or text)] of (path, body) in one app."""
    async def go():
        out = []
        async with client(create_app(model, Settings(model="tiny", **settings))) as c:
            for where, body, *headers in requests:
                r = await c.post(where, json=body, headers=headers[0] if headers else {}) if body is not None else await c.get(where, headers=headers[0] if headers else {})
                out.append((r.status_code, r.json() if r.headers["content-type"].startswith("application/json") else r.text))
        return out

    return run(go())


# ---- 93, 101, 104: much of everything ------------------------------------------------------------


@pytest.mark.parametrize("where, body, param", [
    ("/v1/completions", {"prompt": "a " * 4_000_000}, "prompt"), ("/v1/completions", {"prompt": "\n" * 4_000_000}, "prompt"),
    ("/v1/completions", {"prompt": [5] * 2_000_000}, "prompt"), ("/v1/completions", {"prompt": ["x", "y " * 2_000_000]}, "prompt"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a " * 2_000_000}]}, "messages"),
    ("/completion", {"prompt": "a " * 4_000_000}, "prompt"), ("/completion", {"prompt": [5, "a " * 4_000_000]}, "prompt")])
def test_f93_megabytes_of_prompt_are_a_400_with_the_counts(model, where, body, param):
    (status, answer), (after, _) = ask(model, (where, body), ("/v1/completions", {"prompt": "x", "max_tokens": 1}))
    error = answer["error"]
    assert status == 400 and after == 200 and error["n_ctx"] == 512 < error["n_prompt_tokens"]
    assert error.get("param", param) == param and len(error["message"]) < 300


def test_f93_the_loop_is_free_while_megabytes_become_tokens(model):
    """Whoever asks for tokens of a whole book holds nobody up: the loop turns meanwhile."""
    async def go():
        app = create_app(model, Settings())
        r = ASGI(app, "/tokenize", {"content": "The quick brown fox. " * 60_000})
        task, turns = r.start(), 0
        while not task.done():
            await asyncio.sleep(0.001)
            turns += 1
        return r, turns

    r, turns = run(go())
    assert r.status == 200 and len(json.loads(r.body)["tokens"]) > 300_000 and turns > 20


@pytest.mark.parametrize("body, param", [
    ({"stop": ["x"] * 200_000}, "stop"), ({"stop": "x" * 1_000_000}, "stop"), ({"stop": [str(i) for i in range(17)]}, "stop"),
    ({"logit_bias": {str(i): 1 for i in range(100_000)}}, "logit_bias"), ({"logit_bias": [[i, 1] for i in range(150_000)]}, "logit_bias"),
    ({"logit_bias": {"5": 10**400}}, None), ({"user": ["x"] * 100_000}, "user"), ({"x" * 1_000_000: 1}, None)])
def test_f101_f104_lists_without_end_are_refused_by_name(model, body, param):
    ((status, answer),) = ask(model, ("/v1/completions", {"prompt": "x", "max_tokens": 1, **body}))
    assert status == 400 and (param is None or answer["error"]["param"].startswith(param)) and len(answer["error"]["message"]) < 600


def test_138_a_body_of_50_megabytes_is_a_413(model):
    ((status, answer),) = ask(model, ("/v1/completions", {"prompt": "x" * 50_000_000}))
    assert status == 413 and set(answer["error"]) >= {"message", "type", "param", "code"}


@pytest.mark.parametrize("raw", ['{"prompt": "中文"}'.encode("gbk"), b'{"stream":"true","prompt":"x"}', b'{"prompt":"x"}\x00', b"\xff\xfe{\x00}\x00", b'{"prompt":"x","max_tokens":1e400}', b'"x"', b"0" * 5000])
def test_f90_bodies_that_ended_other_servers(model, raw):
    async def go():
        async with client(create_app(model, Settings())) as c:
            return [await c.post(p, content=raw, headers={"Content-Type": "application/json"}) for p in ("/v1/completions", "/v1/chat/completions", "/completion", "/tokenize", "/detokenize", "/apply-template")]

    for r in run(go()):
        assert r.status_code == 400 and r.json()["error"]["message"]


# ---- 108, 109: no request names a file -------------------------------------------------------------


@pytest.mark.parametrize("where", ["/slots/0?action=save", "/slots/0?action=restore", "/slots/0?action=erase", "/slots/0", "/slots?action=save", "/sessions", "/models/load", "/lora-adapters"])
def test_f108_no_request_reads_or_writes_a_state_file(model, where, tmp_path):
    """State files are the Python API's and the command line's; a client can name none."""
    before = sorted(os.listdir(tmp_path))
    ((status, answer),) = ask(model, (where, {"filename": str(tmp_path / "x")}))
    assert status in (404, 405) and "error" in answer and sorted(os.listdir(tmp_path)) == before


# ---- 112: clients that go, at twenty points --------------------------------------------------------


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("chat", [False, True])
def test_f112_a_disconnect_at_any_point_ends_all_of_a_request(path, n, stream, chat):
    """Before the first step, in a prompt of many steps, at its end, in the answers, and near their end; the steps that
    are made afterwards are bounded: what nobody reads is not computed."""
    text = "many words of a prompt " * 15
    body = {"n": n, "stream": stream, "max_tokens": 100, "ignore_eos": True, "temperature": 1, **({"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text})}
    with pyengine.Llama(path, n_ctx=512, n_threads=2, n_batch=16, max_seqs=2) as llm:
        async def go(point):
            app = create_app(llm, Settings())
            r = ASGI(app, "/v1/chat/completions" if chat else "/v1/completions", {**body, "seed": point})
            begun = llm.stats()["steps"]
            task = r.start()
            while llm.stats()["steps"] - begun < point and not task.done():
                await asyncio.sleep(0)
            r.gone.set()
            await task
            await idle(llm)
            assert app.state.server.queue.inside == 0 and (r.status in (None, 200))

        for point in (0, 1, 2, 5, 10, 20, 21, 22, 23, 24, 25, 26, 30, 40, 50, 60, 80, 100, 110, 119):
            run(go(point))
        llm._thread.engine.cache.clear()
        stats = llm.call(llm.stats)
        assert stats["pages_free"] == stats["pages_total"] and not llm._thread._live


# ---- 117, 122: the process ---------------------------------------------------------------------------


def test_f122_a_log_that_cannot_be_written_stops_no_answer(path):
    """The disk is full, or who read the log has gone: requests are answered all the same, and the end is 0."""
    code = f"import sys; from pyengine.cli import main; sys.exit(main(['serve', '-m', {str(path)!r}, '-c', '64', '--unix-socket', sys.argv[1]]))"
    for how in ("full", "closed"):
        sock = str(path.parent / how)
        read, write_ = os.pipe()
        with open("/dev/full", "wb") if how == "full" else os.fdopen(write_, "wb") as target:
            process = subprocess.Popen([sys.executable, "-c", code, sock], stderr=target, stdout=target, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
        if how == "full":
            os.close(write_)
        os.close(read)
        try:
            for _ in range(600):
                if os.path.exists(sock) and process.poll() is None:
                    try:
                        if health(sock) == 200:
                            break
                    except OSError:
                        pass
                assert process.poll() is None, f"{how}: ended with {process.returncode}"
                time.sleep(0.05)
            for _ in range(3):
                with Raw(sock) as c:
                    assert c.post("/v1/completions", {"prompt": "x", "max_tokens": 2}).status() == 200
            process.terminate()
            assert process.wait(30) == 0, how
        finally:
            process.kill()
            process.wait()


# ---- 132: keys ------------------------------------------------------------------------------------------


def test_f132_a_key_in_the_address_opens_nothing_and_is_not_logged(model, caplog):
    keys = Keys([new_key(KEY, "t", "alice")])
    body = {"prompt": "x", "max_tokens": 1}
    with caplog.at_level(logging.DEBUG):
        answers = ask(model, *[(f"/v1/completions?{name}={KEY}", body) for name in ("key", "api_key", "api-key", "token", "access_token")],
                      (f"/v1/models?key={KEY}", None), ("/v1/completions", body, {"Cookie": f"key={KEY}"}), ("/v1/completions", {**body, "api_key": KEY}), keys=keys)
    assert [status for status, _ in answers] == [401] * 8 and len({json.dumps(a) for _, a in answers}) == 1
    assert KEY not in "".join(r.getMessage() for r in caplog.records if r.name.startswith("pyengine"))


# ---- 67, 136: limits that are promised -------------------------------------------------------------------


def test_67_each_of_many_requests_may_use_the_context_that_is_named(path):
    """Eight at one time, a context of 256: each may have all of it."""
    with pyengine.Llama(path, n_ctx=256, max_seqs=8, cache_tokens=1) as llm:
        async def go():
            async with client(create_app(llm, Settings())) as c:
                assert (await c.get("/props")).json()["default_generation_settings"]["n_ctx"] == 256
                return await asyncio.gather(*[c.post("/v1/completions", json={"prompt": [5 + i] * 250, "max_tokens": -1, "ignore_eos": True}) for i in range(8)])

        for r in run(go()):
            assert r.status_code == 200 and r.json()["usage"]["total_tokens"] == 256


@pytest.mark.parametrize("schema", [
    {"type": "object", "properties": {"text": {"type": "string", "maxLength": 2000}, "more": {"type": "object", "properties": {"s": {"type": "string", "minLength": 1, "maxLength": 10_000}}, "required": ["s"]}},
     "required": ["text", "more"], "additionalProperties": False},
    {"type": "array", "items": {"type": "object", "properties": {"id": {"type": "integer", "minimum": 0, "maximum": 10**12}, "s": {"type": "string", "maxLength": 2000}}, "required": ["id"]}, "minItems": 500, "maxItems": 600},
    {"type": "array", "items": {"enum": [0, 1]}, "minItems": 500}])
def test_136_large_limits_of_length_in_schemas(model, schema):
    """They are taken as they are, and kept."""
    pytest.importorskip("llguidance")
    jsonschema = pytest.importorskip("jsonschema")
    ((status, answer),) = ask(model, ("/v1/completions", {"prompt": "x", "max_tokens": 400, "temperature": 1, "seed": 3, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}))
    assert status == 200, answer
    choice = answer["choices"][0]
    assert choice["text"][0] in "{[" and choice["finish_reason"] in ("stop", "length")
    if choice["finish_reason"] == "stop":
        jsonschema.validate(json.loads(choice["text"]), schema)

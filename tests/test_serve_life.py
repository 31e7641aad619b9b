"""The server on sockets: clients that are slow, broken or gone, and limits. faults.md F 91-95, 110, 111; G 112-114, 117; H 132, 133."""
import contextlib
import http.client
import json
import signal
import socket
import struct
import subprocess
import sys
import time

import pytest

import pyengine
from pyengine.serve import run as serve_run
from pyengine.serve.exchange import Events
from serving import DIALECT, KEY, Raw, app_of, health, serving, settled
from tiny_gguf import CHATML, Spec, write


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("tiny") / "model.gguf", Spec(n_vocab=331, seed=3, chat_template=CHATML))


@pytest.fixture(scope="module")
def model(path):
    with pyengine.Llama(path, n_ctx=2048, n_threads=2, n_batch=64, max_seqs=4) as llm:
        yield llm


@pytest.fixture
def quick(monkeypatch):
    """Time limits of fractions of seconds. The sweep that enforces them comes once a second."""
    for name in ("HEADER_SECONDS", "REST_SECONDS"):
        monkeypatch.setattr(serve_run, name, 0.2)


def wait_idle(model):
    for _ in range(3000):
        stats = settled(model)
        if not stats["running"] and not stats["waiting"] and not any(stats["pages_used"]):
            return
        time.sleep(0.01)
    raise AssertionError(f"a request has not been ended: {stats}")


ENDLESS = dict(prompt=[5, 6, 7], ignore_eos=True, stream=True)


# ---- what comes in ---------------------------------------------------------------------


@pytest.mark.parametrize("request_, status", [
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
    (b"GET /health HTTP/1.0\r\n\r\n", 200),
    (b"GET /health HTTP/1.1\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403),
    (b"nonsense\r\n\r\n", 400),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nbad header\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: \x00\r\n\r\n", 400),
    (b"POST /gen HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400),
    (b"POST /gen HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (b"POST /gen HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: -2\r\n\r\n{}", 400),
    (b"POST /gen HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
    (b"POST /show HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n", 400),
    (b"POST /show HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 200),
    (b"POST /show HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b", 415),
    (b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\n", 404),
])
def test_framing(model, request_, status):
    with serving(app_of(model)) as (address, _), Raw(address) as c:
        assert c.send(request_).status() == status
        assert health(address) == 200


def test_header_bombs(model):
    with serving(app_of(model)) as (address, _):
        with Raw(address) as c:
            with contextlib.suppress(OSError):         # it is refused before all of it is sent
                c.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * (1 << 20) + b"\r\n\r\n")
            assert b" 431 " in c.read()
        with Raw(address) as c:
            assert c.get("/health", "Host: localhost\r\n" + "".join(f"X-{i}: 1\r\n" for i in range(5000))).status() == 431
        for url in ("/" + "a" * 20_000, "/health?" + "a" * 20_000):
            with Raw(address) as c:
                assert c.get(url).status() == 414
        assert health(address) == 200


def test_keys_over_the_wire(model):
    from pyengine.serve.guard import Keys, new_key

    with serving(app_of(model, keys=Keys([new_key(KEY, "t")]))) as (address, _):
        for headers, status in (("", 401), (f"Authorization: Bearer {KEY}\r\n", 200), (f"X-Api-Key: {KEY}\r\n", 200), ("Authorization: Bearer x\r\n", 401)):
            with Raw(address) as c:
                assert c.post("/gen", dict(prompt=[5], max_tokens=1), headers).status() == status


def test_two_requests_on_one_connection_and_two_at_once(model):
    with serving(app_of(model)) as (address, _):
        c = http.client.HTTPConnection(*address, timeout=30)
        c.sock = socket.create_connection(address)
        for i in range(2):
            c.request("POST", "/show", json.dumps({"i": i}), {"Content-Type": "application/json", "Host": "localhost"})
            assert json.load(c.getresponse())["body"] == {"i": i}
        c.close()
        with Raw(address) as c:
            c.send(b"GET /show/a HTTP/1.1\r\nHost: localhost\r\n\r\nGET /show/b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            out = c.read()
        assert out.count(b"200 OK") == 2 and out.index(b'"name":"a"') < out.index(b'"name":"b"')


def test_a_long_body_is_refused_while_it_comes(model, quick):
    with serving(app_of(model, max_body=100_000)) as (address, _):
        with Raw(address) as c:          # chunked, without an end
            c.send(b"POST /gen HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(8):
                c.send(b"4000\r\n" + b" " * 0x4000 + b"\r\n")
            assert c.status() == 413
            with pytest.raises(OSError):       # the rest is dropped for a while, then the connection
                for _ in range(10_000):
                    c.send(b"4000\r\n" + b" " * 0x4000 + b"\r\n")
                    time.sleep(0.005)
        with Raw(address) as c:          # told beforehand; who asks first need not send it
            c.send(b"POST /gen HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000000000\r\nExpect: 100-continue\r\n\r\n")
            first = c.until(b"\r\n\r\n")
            assert b" 413 " in first and b"100 Continue" not in first
        with Raw(address) as c:          # a client that sends all of it before it reads gets its answer
            c.post("/gen", {"prompt": "x" * 200_000})
            assert c.status() == 413
        assert health(address) == 200


def test_slowloris(model, quick):
    """A hundred clients that begin a request and never end it, and as many that say nothing: all are closed, nobody else waits."""
    with serving(app_of(model)) as (address, server):
        slow = [Raw(address) for _ in range(100)]
        for c in slow[:50]:
            c.send(b"GET /health HTTP/1.1\r\nHost: loc")
        assert health(address) == 200
        told = [c.read() for c in slow]
        assert all(b" 408 " in t for t in told[:50]) and told[50:] == [b""] * 50
        for c in slow:
            c.close()
        assert health(address) == 200


def test_a_slow_body(model):
    with serving(app_of(model, body_seconds=0.2)) as (address, _), Raw(address) as c:
        c.send(b"POST /gen HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{")
        assert c.status() == 408


def test_too_many_connections(model, monkeypatch):
    monkeypatch.setattr(serve_run, "SPARE_CONNECTIONS", 2)
    with serving(app_of(model), max_connections=3) as (address, server):
        held = [Raw(address) for _ in range(3)]
        while len(server.server_state.connections) < 3:
            time.sleep(0.005)
        with Raw(address) as c:
            answer = c.post("/gen", dict(prompt=[5], max_tokens=1)).read()
            assert b" 503 " in answer and b"retry-after" in answer.lower()
        assert health(address) == 200                  # even now
        spare = [Raw(address) for _ in range(2)]
        while len(server.server_state.connections) < 5:
            time.sleep(0.005)
        with Raw(address) as c:
            with contextlib.suppress(OSError):
                c.get("/health")
            assert c.read() == b""                     # the door is shut
        for c in held + spare:
            c.close()
        while len(server.server_state.connections) > 0:
            time.sleep(0.005)
        with Raw(address) as c:
            assert c.post("/gen", dict(prompt=[5], max_tokens=1)).status() == 200


# ---- clients that go ---------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", ["close", "reset", "half"])
def test_a_client_that_goes_ends_its_request(model, how, stream):
    with serving(app_of(model)) as (address, server):
        c = Raw(address).post("/gen", dict(ENDLESS, stream=stream))
        if stream:
            c.until(b"data: ")
        else:
            while not settled(model)["running"]:
                pass
        if how == "reset":
            c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if how == "half":
            c.sock.shutdown(socket.SHUT_WR)
        else:
            c.close()
        wait_idle(model)
        c.close()
        assert health(address) == 200


def test_a_client_that_is_killed(model):
    """SIGKILL while it reads a stream."""
    with serving(app_of(model)) as (address, _):
        body = json.dumps(ENDLESS)
        code = (f"import socket; s = socket.create_connection({address!r}); s.sendall(b'POST /gen HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Type: application/json"
                f"\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n' + {body!r}.encode())\nwhile s.recv(100): print('x', flush=True)")
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as client:
            assert client.stdout.readline()
            client.send_signal(signal.SIGKILL)
        wait_idle(model)


async def _flood(server, ctx, body):
    """An answer that is large on the wire: 20 kB to a token."""
    (answer,) = await server.llm.start([[5, 6, 7]], ignore_eos=True)

    async def events():
        async for piece in answer:
            yield {"text": piece.text, "more": "x" * 20_000}

    return Events(events())


def test_a_reader_that_stalls_is_cut_and_nobody_else_waits(model, monkeypatch):
    monkeypatch.setattr(DIALECT, "ROUTES", [*DIALECT.ROUTES, ("POST", "/flood", _flood)])
    with serving(app_of(model, write_seconds=0.3, stream_buffer=200_000)) as (address, server):
        stalled = []
        for _ in range(3):
            c = Raw(address)
            c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stalled.append(c.post("/flood", {}))
        with Raw(address) as c:
            c.post("/gen", dict(prompt=[5], ignore_eos=True, max_tokens=200, stream=True, seed=1))
            assert b"[DONE]" in c.until(b"[DONE]")
        wait_idle(model)
        assert health(address) == 200
        while len(server.server_state.connections) > 0:       # cut, though their clients are still there
            time.sleep(0.01)
        for c in stalled:
            c.close()

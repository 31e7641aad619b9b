"""What the server's tests share: a small dialect, an app without a socket, a server on one, a client of raw bytes. Not a test."""
import asyncio
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import types

ROOT = pathlib.Path(__file__).resolve().parent.parent
KEY, OTHER = "key-of-alice-0001", "key-of-bob-000002"


async def generate(server, ctx, body):
    """prompt (ids or text) -> {"text"}, or with stream its pieces; with `processors` of the app's state."""
    prompt = body.get("prompt", "x")
    tokens = prompt if isinstance(prompt, list) else await server.llm.tokenize(prompt)
    options = {k: v for k, v in body.items() if k not in ("prompt", "stream")}
    answers = await server.llm.start([tokens], key=ctx.key, salt=ctx.salt, processors=PROCESSORS, **options)
    if not body.get("stream"):
        result = await answers[0]
        return {"text": result.text, "finish_reason": result.finish_reason, "cached_tokens": result.cached_tokens}
    from pyengine.serve.exchange import Events

    async def events():
        async for piece in answers[0]:
            yield {"text": piece.text}
        yield "[DONE]"

    return Events(events())


async def boom(server, ctx, body):
    raise LookupError("internals: /secret/path")


async def show(server, ctx, body):
    return {"body": body, "key": ctx.key, "salt": ctx.salt, "priority": ctx.priority, "params": ctx.params, "query": ctx.query,
            "request_id": ctx.request_id, "path": ctx.path}


PROCESSORS = []          # logits processors of every request: how a test holds time still
DIALECT = types.SimpleNamespace(ROUTES=[("POST", "/gen", generate), ("POST", "/boom", boom), ("POST", "/show", show), ("GET", "/show/{name}", show)])


def app_of(llm, **settings):
    from pyengine.serve.app import create_app
    from pyengine.serve.settings import Settings

    return create_app(llm, Settings(**settings), [DIALECT])


def client(app, **options):
    """An httpx client that calls the app without a socket."""
    import httpx

    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost", timeout=60, **options)


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 120))


async def idle(llm):
    """Returns when no request is left and no page is held; a request that is never ended hangs here."""
    while True:
        stats = await asyncio.get_running_loop().run_in_executor(None, settled, llm)
        if not stats["running"] and not stats["waiting"] and not any(stats["pages_used"]):
            return
        await asyncio.sleep(0.01)


def settled(llm):
    """Llama.stats() between two steps."""
    return llm.call(llm.stats)


class Gate:
    """A logits processor that lets the engine past only when it is told to."""

    def __init__(self, free=0):
        self.let = threading.Semaphore(free)
        self.reached = threading.Event()

    def __call__(self, tokens, logits):
        self.reached.set()
        assert self.let.acquire(timeout=60)
        return logits


class ASGI:
    """One request to an app, message by message, with a client that may go."""

    def __init__(self, app, path, body=None, *, method="POST", headers=(), hold=False):
        self.app, self.sent = app, []
        self.status = None
        self.gone = asyncio.Event()
        self.wrote = asyncio.Event()
        self.stalled = None          # an Event that send() waits for
        raw = b"" if body is None else json.dumps(body).encode()
        self._bodies = [] if hold else [raw]
        self.scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path, "raw_path": path.encode(),
                      "query_string": b"", "root_path": "", "scheme": "http", "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 9),
                      "headers": [(b"host", b"localhost"), (b"content-type", b"application/json"), *headers]}

    async def receive(self):
        if self._bodies:
            return {"type": "http.request", "body": self._bodies.pop(), "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        if self.stalled is not None and message["type"] == "http.response.body":
            await self.stalled.wait()
        self.sent.append(message)
        self.status = message.get("status", self.status)
        self.wrote.set()

    @property
    def body(self) -> bytes:
        return b"".join(m.get("body", b"") for m in self.sent)

    def start(self):
        return asyncio.ensure_future(self.app(self.scope, self.receive, self.send))


@contextlib.contextmanager
def serving(app, **options):
    """The app behind a real socket; yields (address, uvicorn server)."""
    from pyengine.serve import run as serve_run

    listener, url = serve_run.listen("127.0.0.1", 0)
    server = serve_run.new_server(app, **options)
    address = listener.getsockname()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield address, server
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive(), "the server does not end"


class Raw:
    """A TCP (or unix) client that sends bytes as they are."""

    def __init__(self, address, timeout=30):
        self.sock = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
        self.sock.settimeout(timeout)
        self.sock.connect(address)

    def send(self, data):
        self.sock.sendall(data)
        return self

    def post(self, path, body, headers=""):
        raw = json.dumps(body).encode()
        return self.send(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{headers}Content-Length: {len(raw)}\r\n\r\n".encode() + raw)

    def get(self, path, headers="Host: localhost\r\n"):
        return self.send(f"GET {path} HTTP/1.1\r\n{headers}\r\n".encode())

    def read(self) -> bytes:
        """What comes until the other side closes."""
        out = b""
        try:
            while part := self.sock.recv(65536):
                out += part
        except ConnectionResetError:
            pass
        return out

    def until(self, mark: bytes) -> bytes:
        out = b""
        while mark not in out:
            part = self.sock.recv(4096)
            assert part, f"closed after {out!r}"
            out += part
        return out

    def status(self) -> int:
        return int(self.until(b"\r\n\r\n").split()[1])

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


def health(address) -> int:
    with Raw(address) as c:
        return c.get("/health").status()


class Serve:
    """`pyengine-cli serve` as users run it."""

    def __init__(self, model, *options, env=None, limits="", command=None):
        command = command or [sys.executable, "-c", "import sys; from pyengine.cli import main; sys.exit(main(sys.argv[1:]))", "serve", "-m", str(model), "--port", "0", *options]
        if limits:
            command = ["bash", "-c", f'{limits}; exec "$@"', "bash", *command]
        self.process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", **(env or {})},
                                        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self.lines, self._news = [], threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()
        self.address = None

    def _read(self):
        for line in self.process.stderr:
            with self._news:
                self.lines.append(line)
                self._news.notify_all()

    @property
    def log(self):
        return "".join(self.lines)

    def wait_for(self, text, seconds=60):
        with self._news:
            assert self._news.wait_for(lambda: text in self.log or self.process.poll() is not None, seconds) and text in self.log, self.log
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.log)
        if found:
            self.address = ("127.0.0.1", int(found[1]))
        return self

    def end(self, number=signal.SIGTERM, seconds=60):
        self.process.send_signal(number)
        return self.process.wait(seconds)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

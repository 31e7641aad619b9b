"""The app on a socket, through uvicorn: connections and their time limits, signals, draining, exit codes.

Every connection has to be getting somewhere: headers, a refused body's rest, bytes that nobody takes, each has its
time. SIGTERM or SIGINT: the listener closes, what runs may finish for drain_seconds, what is left then is told
so and ended; exit code 0. A second signal ends the process at once. Not the app. Imported by cli/serve.
"""
import asyncio
import contextlib
import errno
import gc
import json
import os
import signal
import socket
import stat
import sys
import threading
from collections import deque

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..errors import RequestError
from .app import PUBLIC, create_app, model_name, send_error
from .exchange import HTTPError, openai_error
from .guard import MAX_HEADER_BYTES

HEADER_SECONDS = 10        # from the first byte, or from connecting, to the end of the headers
REST_SECONDS = 5           # an answer was sent before the body had come: the rest is read and dropped for so long
IDLE_SECONDS = 60          # between two requests of a connection
SPARE_CONNECTIONS = 64     # beyond max_connections: they get a 503, or an answer from /health; beyond these the door is shut
HEALTH = tuple(f"GET {path} ".encode() for path in PUBLIC)
BACKLOG = 2048             # connections that the system holds for us while the loop is busy ...
ACCEPT_AT_ONCE = 8         # ... and that the loop takes in one turn, before it knows that the door is shut
GC_THRESHOLD = (2000, 10, 10)
GRACE_SECONDS = 5          # to send the last words after drain_seconds


class Turnstile:
    """What came on connections enters the app in order, one for each turn of the event loop: five hundred requests that
    come together would be one turn of 0.3 s, in which /health and all streams stand still."""

    def __init__(self):
        self._waiting = deque()

    def add(self, connection) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._turn)
        self._waiting.append(connection)

    def _turn(self) -> None:
        self._waiting.popleft().enter()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._turn)


class Connection(H11Protocol):
    """One connection. uvicorn's, with an end to all waiting (overdue) and errors that say which."""

    _waits, _seconds = None, 0

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._held = []              # what has come and not entered
        app = self.app

        async def answer(scope, receive, send):
            scope["pyengine.abort"] = self.transport.abort
            if self._over and scope["type"] == "http" and scope["path"] not in PUBLIC:
                await send_error(send, HTTPError(503, "too many connections", headers={"Retry-After": "5", "Connection": "close"}))
                return
            await app(scope, receive, send)

        self.app = answer

    def connection_made(self, transport):
        limit = self.config.max_connections
        self._over = len(self.connections) >= limit
        super().connection_made(transport)
        if len(self.connections) > limit + SPARE_CONNECTIONS:
            transport.abort()

    def data_received(self, data):
        if self._held:
            self._held.append(data)
        elif data.startswith(HEALTH):
            super().data_received(data)      # past all others
        else:
            self._held.append(data)
            self.config.turnstile.add(self)
        if len(self._held) > 1:
            self.flow.pause_reading()        # a body of megabytes waits where it is

    def enter(self):
        data = b"".join(self._held)
        self._held.clear()
        if not self.transport.is_closing():
            self.flow.resume_reading()
            super().data_received(data)

    def overdue(self) -> None:
        """Called once a second: ends the connection if it has waited too long for the same thing. Seconds are counted by
        calls: where this process did not get to run, its clients are not late."""
        conn = self.conn
        if self._held:
            self._waits = None
            return                   # it is we who are late
        if self.transport.is_closing():
            what, limit = "a reader", self.config.write_seconds
        elif conn.their_state is h11.IDLE and (self.cycle is None or conn.trailing_data[0]):
            what, limit = "headers", HEADER_SECONDS
        elif conn.their_state is h11.SEND_BODY and self.cycle is not None and self.cycle.response_complete:
            what, limit = "the rest", REST_SECONDS
        else:
            self._waits = None
            return
        waits = (what, id(self.cycle))
        if waits != self._waits:
            self._waits, self._seconds = waits, 0
            return
        self._seconds += 1
        if self._seconds >= limit:
            if what == "headers" and conn.trailing_data[0]:
                self._refuse(408, f"the headers did not arrive within {HEADER_SECONDS} seconds")
                self.transport.close()
            else:
                self.transport.abort()

    def timeout_keep_alive_handler(self):
        if self.transport.get_write_buffer_size():       # an answer that nobody reads
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def send_400_response(self, msg):
        """Called where h11 refuses what came; it says with which status (400, 413, 431, 501)."""
        error = sys.exc_info()[1]
        self._refuse(getattr(error, "error_status_hint", 400), str(error or msg))
        self.transport.close()

    def _refuse(self, status, message):
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return                   # an answer is on its way already
        body = json.dumps(openai_error(HTTPError(status, message))).encode()
        headers = [(b"content-type", b"application/json; charset=utf-8"), (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
        with contextlib.suppress(h11.LocalProtocolError):
            for event in (h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event))


class Uvicorn(uvicorn.Server):
    """uvicorn's server loop with our signals: the exit code says whether we did what we were asked for."""

    def __init__(self, config, app_server, note):
        super().__init__(config)
        self.app_server, self.note = app_server, note
        self.on_start = lambda: None
        self.on_exit = lambda: None  # called before the process ends at once

    @contextlib.contextmanager
    def capture_signals(self):
        """Without raising the signal again when all is done: a drained server has ended well."""
        if threading.current_thread() is not threading.main_thread():
            yield                    # signals are not ours there
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, number, frame):
        if self.should_exit:
            self.on_exit()
            os._exit(128 + number)
        self.should_exit = True

    async def startup(self, sockets=None):
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)         # asyncio has set its own
        self.on_start()

    async def on_tick(self, counter):
        if counter % 10 == 0:
            for connection in list(self.server_state.connections):
                connection.overdue()
        return await super().on_tick(counter) or self.app_server.failure is not None

    async def shutdown(self, sockets=None):
        app, loop = self.app_server, asyncio.get_running_loop()
        seconds = app.settings.drain_seconds
        if app.queue.inside:
            self.note(f"{app.queue.inside} requests run: waiting up to {seconds:g} s for them; a second signal ends at once")
        app.drain()
        end = loop.call_later(seconds, app.end)
        try:
            await super().shutdown(sockets)
        finally:
            end.cancel()


def serve(open_model, settings, *, port=8080, unix_socket=None, socket_mode=0o600, max_connections=1024, note=lambda text: None) -> int:
    """Serves until a signal; returns the exit code. open_model() -> Llama, called in a thread once the port is open.
    What the model could not be opened for is raised."""
    listener, url = listen_unix(unix_socket, socket_mode) if unix_socket else listen(settings.host, port)
    ours = _identity(unix_socket) if unix_socket else None

    def ready(llm):
        # What is there now stays: no need to look through it again and again. And often, in small pieces: the pause
        # of a rare collection was 80 ms under load.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLD)
        note(f"{url} serves {settings.model or model_name(llm)}: n_ctx {llm.n_ctx}, {llm.program.max_seqs} requests at one time, "
             f"{llm.n_threads} threads ({llm.n_threads_batch} for batches)")

    try:
        app = create_app(open_model, settings)
        app.state.server.on_ready = ready
        server = new_server(app, max_connections=max_connections, note=note)
        server.on_start = lambda: note(f"listening on {url}, opening the model")
        if unix_socket:
            server.on_exit = lambda: _unlink(unix_socket, ours)
        server.run(sockets=[listener])
    finally:
        listener.close()
        if unix_socket:
            _unlink(unix_socket, ours)
    if app.state.server.failure is not None:
        raise app.state.server.failure
    note("ended")
    return 0


def new_server(app, *, max_connections=1024, note=lambda text: None) -> Uvicorn:
    """What runs create_app()'s app: .run(sockets=[...]) until .should_exit or a signal."""
    settings = app.state.server.settings
    config = uvicorn.Config(
        app, http=Connection, ws="none", lifespan="on", log_config=None, access_log=False, server_header=False, proxy_headers=False,
        timeout_keep_alive=IDLE_SECONDS, timeout_graceful_shutdown=settings.drain_seconds + GRACE_SECONDS,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES, backlog=ACCEPT_AT_ONCE)
    config.max_connections, config.write_seconds, config.turnstile = max_connections, settings.write_seconds, Turnstile()
    return Uvicorn(config, app.state.server, note)


def listen(host: str, port: int):
    """A listening TCP socket and its URL. Port 0: one that is free."""
    if not 0 <= port <= 65535:               # getaddrinfo() would take it modulo 65536
        raise RequestError(f"port: found {port}, expected 0 to 65535", param="port")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        # The protocol is named because asyncio switches Nagle's algorithm off only where it is: an event of a stream
        # would wait 40 ms for the acknowledgement of the one before.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as e:
        raise RequestError(f"host {host!r}, port {port}: {e.strerror or e}", param="host") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as e:
        listener.close()
        raise RequestError(f"host {host!r}, port {port}: {e.strerror or e}", param="port") from None
    name = f"[{host}]" if ":" in host else host
    return listener, f"http://{name}:{listener.getsockname()[1]}"


def listen_unix(path: str, mode: int):
    """A listening unix socket, its file with this mode from the first moment on. One that nobody listens to is replaced."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    umask = os.umask(0o777 & ~mode)
    try:
        try:
            listener.bind(path)
        except OSError as e:
            if e.errno != errno.EADDRINUSE or not _abandoned(path):
                raise
            os.unlink(path)
            listener.bind(path)
        listener.listen(BACKLOG)
    except OSError as e:
        listener.close()
        raise RequestError(f"unix socket {path!r}: {e.strerror or e}", param="unix_socket") from None
    finally:
        os.umask(umask)
    return listener, f"http+unix://{path}"


def _abandoned(path) -> bool:
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def _identity(path) -> tuple:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def _unlink(path, ours) -> None:
    """Removes our socket; while we drained, the next server may have put its own there."""
    with contextlib.suppress(OSError):
        if _identity(path) == ours:
            os.unlink(path)

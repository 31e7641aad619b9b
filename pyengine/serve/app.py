"""The ASGI app: routes to handlers, a request from its first byte to its last, errors to answers, health.

Not the checks at the door (guard.py), not the writing of streams (sse.py), not the meaning of a body (openai.py,
llama_server.py). A handler runs in a task beside a watch for the client's going: when it goes, the task is cancelled
and with it the request, queued, in the middle of its prompt or anywhere later. Imported by serve/__init__ and serve/run.
"""
import asyncio
import contextlib
import json
import logging
import os
import threading
import time

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route

from .. import errors
from ..aio import AsyncLlama
from ..llama import Llama
from .exchange import Context, Events, HTTPError, openai_error
from .fields import parse_json
from .guard import Guard, Queue, own_path, read_body
from .metrics import Metrics
from .settings import Settings
from .sse import send_events

PUBLIC = ("/health", "/v1/health")         # no key is asked for: they say nothing but a status
INLINE_BODY = 16 << 10                     # bytes of JSON that are parsed on the event loop; more goes to a thread

log = logging.getLogger("pyengine.serve")


class Server:
    """What all requests share: the model, the settings, what runs, what was counted."""

    def __init__(self, llm, settings: Settings):
        self.settings = settings
        self.created = int(time.time())
        self.state = "loading"       # ready, failed, draining
        self.failure = None          # the exception that opening the model ended with
        self.on_ready = lambda llama: None
        self._llm = None
        self._open = None            # opens the model, where that is ours to do
        self._loading = None
        self.metrics = Metrics(self.stats)
        self.queue = Queue(settings.max_queue)
        self._running = set()        # a future of each request, done when it has to end
        self._progress = (-1, 0.0)   # steps, and when they last grew
        if isinstance(llm, (Llama, AsyncLlama)):
            self._ready(llm)
        elif callable(llm):
            self._open = llm
        else:
            raise errors.RequestError(f"llm: found {type(llm).__name__}, expected a Llama, an AsyncLlama or a function that opens one", param="llm")

    # ---- the model -----------------------------------------------------------------

    @property
    def llm(self) -> AsyncLlama:
        """The model; HTTPError 503 while there is none."""
        if self._llm is None or self.state == "failed":
            raise self.unavailable()
        return self._llm

    @property
    def model(self) -> str:
        """The name that clients know the model by."""
        if self.settings.model is not None:
            return self.settings.model
        return model_name(self.llm.llama)

    def work(self, function, *args, **options):
        return self.llm.work(function, *args, **options)

    def load(self) -> None:
        """Begins to open the model, in a thread of its own: the port answers meanwhile. Idempotent."""
        if self._open is not None and self._loading is None:
            loop = asyncio.get_running_loop()
            # A daemon, so that a signal during a long load need not wait for it.
            self._loading = threading.Thread(target=self._load, args=(loop,), name="pyengine-load", daemon=True)
            self._loading.start()

    def _load(self, loop) -> None:
        try:
            done, value = self._ready, self._open()
        except BaseException as e:
            done, value = self._failed, e
        try:
            loop.call_soon_threadsafe(done, value)
        except RuntimeError:         # the app has ended meanwhile
            if done == self._ready:
                value.close()

    def _ready(self, llm) -> None:
        if self.state == "draining" and self._open is not None:
            threading.Thread(target=llm.close, daemon=True).start()
            return
        self._llm = llm if isinstance(llm, AsyncLlama) else AsyncLlama(llm)
        self._wrapped = self._llm is not llm
        self._llm.observe(self.metrics.answered)
        llama = self._llm.llama
        self.queue.running = self.settings.max_streams or llama.program.max_seqs
        self.state = "ready"
        self.on_ready(llama)

    def _failed(self, error) -> None:
        self.failure, self.state = error, "failed"
        log.error("the model could not be opened: %s", error)

    def stats(self) -> dict:
        return self._llm.llama.stats() if self._llm is not None else {}

    # ---- health and the end ----------------------------------------------------------

    def health(self) -> str:
        """ok, loading, draining, failed (the model did not open), fault (its engine cannot go on) or stalled."""
        if self.state != "ready":
            return self.state
        llama = self._llm.llama
        if not llama.healthy:
            return "fault"
        stats, now = llama.stats(), time.monotonic()
        if stats["steps"] != self._progress[0] or not stats["running"] + stats["waiting"]:
            self._progress = (stats["steps"], now)
        elif self.settings.stall_seconds and now - self._progress[1] > self.settings.stall_seconds:
            return "stalled"
        return "ok"

    def unavailable(self) -> HTTPError:
        """Why nothing can be answered, as a 503."""
        message = {"loading": "the model is being loaded", "draining": "the server is shutting down",
                   "failed": "the model could not be opened"}.get(self.state, "the engine has failed")
        return HTTPError(503, message, "unavailable_error", code=self.state, headers={"Retry-After": "5"})

    def drain(self) -> None:
        """From now on: what runs may finish, nothing begins."""
        self.state = "draining"

    def end(self) -> None:
        """Ends what still runs; each client is told."""
        self.drain()
        for ending in self._running:
            if not ending.done():
                ending.set_result(None)

    @contextlib.contextmanager
    def ending(self):
        """A future that is done when the server ends what runs."""
        ending = asyncio.get_running_loop().create_future()
        self._running.add(ending)
        try:
            yield ending
        finally:
            self._running.discard(ending)

    async def close(self) -> None:
        """The end of the app: what it opened is closed, what it was given is not."""
        self.end()
        if self._llm is None:
            return
        if self._wrapped or self._open is not None:
            await self._llm.close()
        if self._wrapped and self._open is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._llm.llama.close)


def model_name(llama) -> str:
    return os.path.basename(llama.model_path).removesuffix(".gguf")


def create_app(llm, settings=None, dialects=None):
    """dialects: modules as exchange.py describes them; None: all there are. Where two have the same route the first has it."""
    if dialects is None:
        from . import openapi

        dialects = (*openapi.DIALECTS, openapi)
    settings = settings if settings is not None else Settings()
    server = Server(llm, settings)

    @contextlib.asynccontextmanager
    async def lifespan(app):
        server.load()
        yield
        await server.close()

    routes, shapes = [], {}
    own = (("GET", "/health", health), ("GET", "/v1/health", health), ("GET", "/metrics", metrics))
    for method, path, endpoint in own:
        routes.append(Route(path, Endpoint(server, path, endpoint), methods=[method]))
    taken = {(method, path) for method, path, _ in own}
    for dialect in dialects:
        shape = getattr(dialect, "error_body", openai_error)
        for method, path, handler in dialect.ROUTES:
            shapes.setdefault(path, shape)
            if (method, path) not in taken:
                taken.add((method, path))
                # A {name} may have slashes, as models of a hub do.
                routes.append(Route(path.replace("}", ":path}"), Endpoint(server, path, answer, handler, shape), methods=[method]))

    async def no_route(request, e):
        """Starlette's own refusals (404, 405) in the form of the route's dialect."""
        from starlette.responses import JSONResponse

        message = {404: f"no route {errors.quoted(request.scope['path'])}",
                   405: f"{request.method} is not a method of {errors.quoted(request.scope['path'])}"}.get(e.status_code, e.detail)
        body = shapes.get(own_path(request.scope), openai_error)(HTTPError(e.status_code, message))
        return JSONResponse(body, e.status_code, e.headers)

    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: no_route})
    # A redirect of /v1/models/ would name the host and the scheme that came: http:// behind a proxy that does TLS.
    app.router.redirect_slashes = False
    app.add_middleware(Guard, server=server, public=PUBLIC, shapes=shapes)
    app.state.server = server
    return app


class Endpoint:
    """One route: an ASGI app that calls function(exchange, handler)."""

    def __init__(self, server, path, function, handler=None, shape=openai_error):
        self.server, self.path, self.function, self.handler, self.shape = server, path, function, handler, shape

    async def __call__(self, scope, receive, send):
        scope["pyengine"].route = self.path
        await self.function(self, scope, receive, send)


async def health(endpoint, scope, receive, send):
    endpoint.server.load()           # mounted without its lifespan: the first question begins it
    status = endpoint.server.health()
    await send_json(send, 200 if status == "ok" else 503, {"status": status}, {} if status == "ok" else {"retry-after": "5"})


async def metrics(endpoint, scope, receive, send):
    body, kind = endpoint.server.metrics.exposition()
    await send_body(send, 200, body, {"content-type": kind})


async def answer(endpoint, scope, receive, send):
    """A dialect's route, from the body to the last byte of the answer."""
    server, door, abort = endpoint.server, scope["pyengine"], scope.get("pyengine.abort")
    try:
        server.load()
        if server.state != "ready" or not server.llm.llama.healthy:
            raise server.unavailable()
        ctx = Context(method=scope["method"], path=own_path(scope), headers=door.headers, query=door.query, params=dict(scope.get("path_params") or {}),
                      request_id=door.request_id, key=door.key.name if door.key else "", priority=door.key.priority if door.key else 0,
                      salt=door.key.salt if door.key and not server.settings.share_prefixes else "", received=door.received)
        if scope["method"] == "POST":
            with server.queue, server.ending() as ending:       # 429 before the body is read
                await _answer(endpoint, ctx, receive, send, await body_of(server, door, receive), abort, ending)
        else:
            with server.ending() as ending:
                await _answer(endpoint, ctx, receive, send, {}, abort, ending)
    except Disconnected:
        door.status = 499            # nobody is there to be told
    except HTTPError as e:
        await send_error(send, e, endpoint.shape)
    except Exception as e:
        e = as_http_error(e, door.request_id)
        if e.status == 429:
            e.headers["Retry-After"] = str(server.queue.retry_after())
        await send_error(send, e, endpoint.shape)


class Disconnected(Exception):
    """The client has gone before its answer began."""


async def body_of(server, door, receive) -> dict:
    raw = await read_body(receive, door.headers, server.settings.max_body, server.settings.body_seconds)
    if raw is None:
        raise Disconnected
    if server.settings.log_prompts:
        log.info("%s body %s", door.request_id, errors.quoted(raw, 1 << 20))
    return parse_json(raw) if len(raw) <= INLINE_BODY else await server.work(parse_json, raw)


async def _answer(endpoint, ctx, receive, send, body, abort, ending):
    """Runs the handler and sends what it returns, while watching whether the client is still there."""
    server = endpoint.server
    gone = asyncio.ensure_future(_watch(receive, ctx.disconnected))
    handler = asyncio.ensure_future(endpoint.handler(server, ctx, body))
    try:
        await asyncio.wait((handler, gone, ending), return_when=asyncio.FIRST_COMPLETED)
        if not handler.done():
            if gone.done():
                raise Disconnected
            raise HTTPError(503, "the server is shutting down", code="draining")
        result = handler.result()
        if isinstance(result, Events):
            begun = await send_events(send, result, gone=gone, ending=ending, settings=server.settings, abort=abort,
                                      error=lambda e: endpoint.shape(as_http_error(e, ctx.request_id)))
            if not begun:
                raise Disconnected
        else:
            await send_json(send, 200, result)
    finally:
        for task in (handler, gone):
            task.cancel()
        # The handler must be over before the request counts as ended: it may hold an answer.
        await asyncio.wait((handler,))
        if not handler.cancelled():
            handler.exception()


async def _watch(receive, disconnected) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    disconnected.set()


# ---- errors ------------------------------------------------------------------------


def as_http_error(e: BaseException, request_id: str = "") -> HTTPError:
    """What a client is told about an exception."""
    if isinstance(e, HTTPError):
        return e
    if isinstance(e, errors.ContextError):
        return HTTPError(400, str(e), param=e.param, code="context_length_exceeded", extra={"n_prompt_tokens": e.n_prompt, "n_ctx": e.n_ctx})
    if isinstance(e, errors.RequestError):
        return HTTPError(400, str(e), param=e.param)
    if isinstance(e, (errors.TokenizerError, errors.TemplateError, errors.UnsupportedError)):
        return HTTPError(400, str(e))
    if isinstance(e, errors.QueueFullError):
        return HTTPError(429, str(e), code="queue_full", headers={"Retry-After": "5"})
    if isinstance(e, errors.DeadlineError):
        # OpenAI's client repeats a 408 twice, each with the whole deadline again, unless it is told not to.
        return HTTPError(408, str(e), code="deadline", headers={"X-Should-Retry": "false"})
    if isinstance(e, errors.ClosedError):
        return HTTPError(503, "the server is shutting down", code="draining", headers={"Retry-After": "5"})
    # What is ours to repair is in the log, not in the answer.
    log.error("request %s failed", request_id, exc_info=e)
    if isinstance(e, errors.FileChangedError):
        return HTTPError(503, "the engine has failed", code="fault", headers={"Retry-After": "30"})
    return HTTPError(500, f"internal error; the log has it under request id {request_id}")


async def send_error(send, e: HTTPError, shape=openai_error) -> None:
    await send_json(send, e.status, shape(e), e.headers)


async def send_json(send, status: int, value, headers=()) -> None:
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    await send_body(send, status, body, {"content-type": "application/json; charset=utf-8", **dict(headers)})


async def send_body(send, status: int, body: bytes, headers) -> None:
    raw = [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in headers.items()]
    raw.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})

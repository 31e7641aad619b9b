"""What passes between the app and a dialect: HTTPError, Events, Context. Nothing else.

A dialect (openai.py, llama_server.py) is a module with

    ROUTES = [("POST", "/v1/completions", handler), ...]
    async def handler(server, ctx, body: dict) -> dict | Events
    def error_body(error: HTTPError) -> dict        # optional; without it: openai_error below

body is the parsed JSON object of a POST, and {} otherwise. A dict is answered as JSON with 200, Events as an event
stream. What a handler raises becomes a status by app.as_http_error(); raise HTTPError for what has no exception of
pyengine's. server.llm is an AsyncLlama; await server.work(f, ...) runs what takes long (templates, many tokens)
outside the event loop. When the client goes, the handler's task is cancelled, and with it whatever it awaits.
Imports nothing of pyengine; imported by all of serve.
"""
import asyncio
import dataclasses

TYPES = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
         405: "invalid_request_error", 408: "timeout_error", 413: "invalid_request_error", 415: "invalid_request_error",
         429: "rate_limit_error", 431: "invalid_request_error", 500: "server_error", 501: "not_supported_error", 503: "unavailable_error"}


class HTTPError(Exception):
    """An answer that is an error. extra: further members of the error object; headers: of the response."""

    def __init__(self, status: int, message: str, type: "str | None" = None, param: "str | None" = None,
                 code: "str | None" = None, *, extra=None, headers=None):
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.type = type or TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
        self.extra, self.headers = dict(extra or {}), dict(headers or {})


def openai_error(error: HTTPError) -> dict:
    """The error body of the OpenAI API."""
    return {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code, **error.extra}}


class Events:
    """An event stream. items: an async iterator of dicts, written as `data: JSON`, or strings, written as
    `data: STRING` ("[DONE]"). Nothing is sent before the first item: what is raised until then is an
    ordinary error response; what is raised later is written as a last event with the dialect's error body.
    Items that are ready together may be sent together. When the client goes, the iterator is cancelled."""

    def __init__(self, items):
        self.items = items


@dataclasses.dataclass
class Context:
    """A request beside its body.

    method, path   as they came (path: without what the app is mounted under)
    headers        lower-case name -> value
    query          name -> value; params: the {names} of the route's path
    request_id     what X-Request-Id gives and the log says
    key            name of the API key, for fairness ("" where nobody is asked for one)
    salt           of the prefix cache: requests with other salts share nothing
    priority       the least that the key may have (0 interactive, 1 batch): max() with what the body asks for
    disconnected   asyncio.Event: the client has gone
    received       when it came, seconds of the monotonic clock
    """
    method: str
    path: str
    headers: dict
    query: dict
    params: dict
    request_id: str
    key: str = ""
    salt: str = ""
    priority: int = 0
    disconnected: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    received: float = 0.0

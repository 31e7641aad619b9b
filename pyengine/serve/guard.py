"""The door: who may ask, from where, how much, and how many at once. Checks that need no model.

The middleware Guard gives every request an id, holds Host and Origin against DNS rebinding, answers browsers' preflights,
asks for the key, and writes the access log. Queue is the limit of requests that run and wait; read_body the
limit of a body while it arrives. Not the parsing of a body and not routes. Imported by app, run and cli/serve.
"""
import asyncio
import hashlib
import hmac
import logging
import math
import re
import secrets
import time
from collections import deque
from urllib.parse import parse_qsl

from ..errors import RequestError, quoted
from .exchange import HTTPError, openai_error
from .settings import loopback

MAX_HEADERS = 100
MAX_HEADER_BYTES = 32 << 10
MAX_URL = 8 << 10
MAX_KEYS = 10_000
MIN_KEY, MAX_KEY = 8, 512           # characters of a key: shorter ones are guessed

access = logging.getLogger("pyengine.access")


# ---- keys --------------------------------------------------------------------------


class Key:
    """What a key stands for; the key itself is kept as a digest only."""

    __slots__ = ("digest", "name", "priority", "salt")

    def __init__(self, secret: str, name: "str | None" = None, priority: int = 0):
        self.digest = _digest(secret)
        self.name = name or f"key-{self.digest.hex()[:8]}"
        self.priority = priority
        # Keys of one name are one user. Who knows the name gains nothing: what a request may give is hashed with its own key's salt.
        self.salt = hashlib.sha256(b"salt" + (name.encode() if name else self.digest)).hexdigest()[:32]


class Keys:
    """The keys that open this server. An empty one opens for nobody."""

    def __init__(self, keys):
        self.keys = list(keys)
        seen = {}
        for key in self.keys:
            if seen.setdefault(key.digest, key) is not key:
                raise RequestError(f"api_key: {quoted(key.name)} and {quoted(seen[key.digest].name)} are the same key", param="api_key")

    def find(self, secret: str) -> "Key | None":
        """The key with this secret. Every key is compared, each in constant time: how long it takes tells nothing."""
        digest, found = _digest(secret), None
        for key in self.keys:
            if hmac.compare_digest(digest, key.digest):
                found = key
        return found


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def parse_keys(text: str, where: str) -> list:
    """Keys of a file: a line each, `KEY [NAME [PRIORITY]]`; empty lines and those that begin with # are none."""
    keys = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        at = f"{where}, line {number}"
        if len(words) > 3:
            raise RequestError(f"{at}: {len(words)} words, expected KEY [NAME [PRIORITY]]", param="api_key_file")
        if len(words) == 3 and words[2] not in ("0", "1", "interactive", "batch"):
            raise RequestError(f"{at}: priority {quoted(words[2])}, expected 0 (interactive) or 1 (batch)", param="api_key_file")
        priority = int(len(words) == 3 and words[2] in ("1", "batch"))
        keys.append(new_key(words[0], at, words[1] if len(words) > 1 else None, priority))
        if len(keys) > MAX_KEYS:
            raise RequestError(f"{where}: more than {MAX_KEYS} keys", param="api_key_file")
    if not keys:
        raise RequestError(f"{where}: no key in it", param="api_key_file")
    return keys


def new_key(secret: str, where: str, name=None, priority=0) -> Key:
    """A checked key. Messages never hold the secret."""
    if not MIN_KEY <= len(secret) <= MAX_KEY or not re.fullmatch(r"[!-~]+", secret):
        raise RequestError(f"{where}: a key of {len(secret)} characters, expected {MIN_KEY} to {MAX_KEY} visible ASCII characters without blanks",
                           param="api_key")
    if name is not None and not re.fullmatch(r"[A-Za-z0-9._@-]{1,64}", name):
        raise RequestError(f"{where}: name {quoted(name)}, expected 1 to 64 letters, digits or . _ @ -", param="api_key_file")
    return Key(secret, name, priority)


# ---- how many ----------------------------------------------------------------------


class Queue:
    """Requests from their first byte to their last: at most `running` + `limit` at one time, the next is a 429
    whose Retry-After follows from how fast requests have ended lately. A context manager around each."""

    RECENT = 64                      # ends that the rate is measured over

    def __init__(self, limit: int, running: int = 1):
        self.limit, self.running = limit, running
        self.inside = 0
        self._ends = deque(maxlen=self.RECENT)

    def __enter__(self):
        if self.inside >= self.running + self.limit:
            waiting = self.inside - self.running
            raise HTTPError(429, f"{waiting} requests wait already, and at most {self.limit} may", code="queue_full",
                            headers={"Retry-After": str(self.retry_after())})
        self.inside += 1

    def __exit__(self, *exc):
        self.inside -= 1
        self._ends.append(time.monotonic())

    def retry_after(self) -> int:
        """Whole seconds until the half of what waits will have ended, 1 to 60; 5 while nothing has ended yet."""
        if len(self._ends) < 2:
            return 5
        seconds = time.monotonic() - self._ends[0]
        rate = len(self._ends) / max(seconds, 1e-3)
        return max(1, min(60, math.ceil(0.5 * max(1, self.inside - self.running) / rate)))


# ---- how much ------------------------------------------------------------------------


async def read_body(receive, headers, limit: int, seconds: float) -> "bytes | None":
    """The body of a JSON request; None: the client went before it was complete. What is too long is refused as soon
    as that is known: from Content-Length before a byte is read, else with the first byte too many."""
    kind = headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json" and not re.fullmatch(r"application/[!-~]+\+json", kind):
        # A page of another site may send text/plain and forms without asking; it may not send this.
        raise HTTPError(415, f"Content-Type: {quoted(kind)}, expected application/json")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise HTTPError(415, f"Content-Encoding: {quoted(headers['content-encoding'])}, expected a body that is not compressed")
    length = headers.get("content-length", "")
    if length.isascii() and length.isdigit() and (len(length) > 15 or int(length) > limit):
        raise _too_large(limit)
    return await _read(receive, limit, seconds)


async def _read(receive, limit, seconds):
    parts, size, end = [], 0, time.monotonic() + seconds
    while True:
        try:
            message = await asyncio.wait_for(receive(), max(0.001, end - time.monotonic()))
        except asyncio.TimeoutError:
            raise HTTPError(408, f"the body did not arrive within {seconds:g} seconds", headers={"Connection": "close"}) from None
        if message["type"] == "http.disconnect":
            return None
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large(limit):
    return HTTPError(413, f"the body is larger than {limit} bytes")


# ---- the middleware --------------------------------------------------------------------


class Door:
    """What the middleware knows of a request; scope["pyengine"] for whoever comes behind."""

    __slots__ = ("headers", "query", "request_id", "received", "key", "route", "status")

    def __init__(self, scope):
        self.headers, self.query = {}, {}
        self.received = time.monotonic()
        self.key = None
        self.route = "other"         # of the few routes there are, never the path: it is a label of metrics
        self.status = 0
        for name, value in scope["headers"]:
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")
        self.request_id = request_id(self.headers.get("x-request-id"))


def request_id(given) -> str:
    """The client's, if it is plain and short, else a new one."""
    if given is not None and re.fullmatch(r"[A-Za-z0-9._:-]{1,64}", given):
        return given
    return "req-" + secrets.token_hex(12)


class Guard:
    def __init__(self, app, *, server, public, shapes):
        self.app, self.server, self.public, self.shapes = app, server, public, shapes
        self.settings = server.settings

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":          # websockets: none of ours
            await send({"type": "websocket.close", "code": 1008})
            return
        door = scope["pyengine"] = Door(scope)
        origin = door.headers.get("origin")
        allowed = origin is not None and self._cors(origin)

        async def sending(message):
            if message["type"] == "http.response.start":
                door.status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", door.request_id.encode()),
                                      *(self._cors_headers(origin) if allowed else ())]
            await send(message)

        try:
            path = own_path(scope)
            try:
                self._check(scope, door, path, origin, allowed)
            except HTTPError as e:
                from .app import send_error

                await send_error(sending, e, self.shapes.get(path, openai_error))
                return
            if scope["method"] == "OPTIONS" and allowed:
                await self._preflight(sending, door)
                return
            await self.app(scope, receive, sending)
        finally:
            seconds = time.monotonic() - door.received
            self.server.metrics.request(door.route, scope["method"], door.status or 499, seconds)
            access.info("%s %s %s %s %d %.3f", door.request_id, door.key.name if door.key else "-", scope["method"],
                        quoted(scope["path"], 100), door.status or 499, seconds)

    # ---- checks, cheapest first ------------------------------------------------------

    def _check(self, scope, door, path, origin, allowed) -> None:
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if len(scope["headers"]) > MAX_HEADERS or size > MAX_HEADER_BYTES:
            raise HTTPError(431, f"{len(scope['headers'])} headers of {size} bytes, at most {MAX_HEADERS} of {MAX_HEADER_BYTES}",
                            headers={"Connection": "close"})
        if len(scope["path"]) + len(scope.get("query_string", b"")) > MAX_URL:
            raise HTTPError(414, f"the URL is longer than {MAX_URL} bytes")
        headers = door.headers
        if "transfer-encoding" in headers and "content-length" in headers:
            raise HTTPError(400, "Transfer-Encoding and Content-Length: expected one of them", headers={"Connection": "close"})
        self._check_host(headers)
        if origin is not None and not allowed and not _same_origin(scope, origin, headers):
            raise HTTPError(403, f"Origin {quoted(origin)} is not allowed to call (--cors-origin)")
        door.query = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1")))
        if self.settings.keys is not None and path not in self.public and not (scope["method"] == "OPTIONS" and allowed):
            door.key = self._key(headers)

    def _check_host(self, headers) -> None:
        """A page of evil.example whose name was made to point here says so in its Host header."""
        hosts, host = self.settings.hosts, headers.get("host")
        if hosts is None or host is None:        # HTTP/1.0 without the header is no browser
            return
        name = hostname(host)
        if name not in hosts and not loopback(name):     # no page of another site has an address of this machine as its name
            raise HTTPError(403, f"Host {quoted(host)} is not a name of this server (--allowed-hosts)")

    def _key(self, headers):
        words = headers.get("authorization", "").split(None, 1)
        secret = words[1].strip() if len(words) == 2 and words[0].lower() == "bearer" else headers.get("x-api-key", "").strip()
        key = self.settings.keys.find(secret)
        if key is None:              # one answer for a wrong key, none, an empty one, another scheme
            raise HTTPError(401, "Invalid API Key", code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
        return key

    # ---- browsers ------------------------------------------------------------------

    def _cors(self, origin) -> bool:
        return "*" in self.settings.cors_origins or origin.lower() in self.settings.cors_origins

    def _cors_headers(self, origin):
        any_ = "*" in self.settings.cors_origins
        return [(b"access-control-allow-origin", b"*" if any_ else origin.encode("latin-1")),
                (b"access-control-expose-headers", b"x-request-id, retry-after"), (b"vary", b"origin")]

    async def _preflight(self, send, door) -> None:
        asked = door.headers.get("access-control-request-headers", "")
        if not re.fullmatch(r"[A-Za-z0-9_, -]{0,1024}", asked):
            asked = "authorization, content-type, x-api-key, x-request-id"
        headers = [(b"access-control-allow-methods", b"GET, POST, OPTIONS"), (b"access-control-allow-headers", asked.encode()),
                   (b"access-control-max-age", b"600"), (b"content-length", b"0")]
        door.route = "preflight"
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


def own_path(scope) -> str:
    """The path without what the app is mounted under."""
    path, root = scope["path"], scope.get("root_path", "")
    return path[len(root):] if root and path.startswith(root) else path


def hostname(host: str) -> str:
    """The name in a Host header: without port, brackets and a closing dot, in lower case."""
    found = re.fullmatch(r"\[([0-9A-Fa-f:.]+)\](?::\d*)?|([^:\[\]]*)(?::\d*)?", host.strip())
    name = "" if found is None else found[1] or found[2] or ""
    return name.lower().removesuffix(".")


def _same_origin(scope, origin: str, headers) -> bool:
    scheme, _, rest = origin.lower().partition("://")
    return scheme in ("http", "https") and rest != "" and rest == headers.get("host", "").strip().lower()

"""The door: keys, Host and Origin, CORS, sizes, the queue. faults.md F 91-95, 110, 111, 118; H 126, 130-136."""
import asyncio
import hmac
import logging
import types

import pytest

from pyengine.errors import RequestError
from pyengine.serve.exchange import HTTPError
from pyengine.serve.guard import Guard, Keys, Queue, hostname, new_key, parse_keys, read_body, request_id
from pyengine.serve.settings import Settings, loopback
from serving import ASGI, KEY, OTHER, run


class Counted:
    def __init__(self):
        self.seen = []

    def request(self, *what):
        self.seen.append(what)


async def inside(scope, receive, send):
    scope["pyengine"].route = scope["path"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"in"})


def door(method="GET", path="/v1/models", headers=(), host=b"localhost", **settings):
    """(status, headers, body) of a request to the guard alone."""
    counted = Counted()
    guard = Guard(inside, server=types.SimpleNamespace(settings=Settings(**settings), metrics=counted), public=("/health",), shapes={})
    request = ASGI(guard, path, method=method)
    request.scope["headers"] = [*([(b"host", host)] if host is not None else []), *((k.lower().encode(), v.encode("latin-1")) for k, v in dict(headers).items())]

    async def go():
        await request.start()

    run(go())
    assert len(counted.seen) == 1 and counted.seen[0][2] == request.status
    return request.status, {k.decode(): v.decode() for k, v in request.sent[0]["headers"]}, request.body


KEYS = Keys([new_key(KEY, "t", "alice"), new_key(OTHER, "t", "bob", 1)])


# ---- keys ----------------------------------------------------------------------------


@pytest.mark.parametrize("headers, status", [
    ({}, 401), ({"Authorization": f"Bearer {KEY}"}, 200), ({"Authorization": f"bearer  {OTHER} "}, 200), ({"X-Api-Key": KEY}, 200),
    ({"Authorization": KEY}, 401), ({"Authorization": f"Basic {KEY}"}, 401), ({"Authorization": "Bearer"}, 401), ({"Authorization": "Bearer "}, 401),
    ({"Authorization": f"Bearer {KEY.upper()}"}, 401), ({"Authorization": f"Bearer {KEY}x"}, 401), ({"Authorization": f"Bearer {KEY[:-1]}"}, 401),
    ({"X-Api-Key": ""}, 401), ({"X-Api-Key": "\xff\xfe"}, 401), ({"Authorization": "Bearer wrong", "X-Api-Key": KEY}, 401)])
def test_keys_open_the_door(headers, status):
    got, _, _ = door(headers=headers, keys=KEYS)
    assert got == status


def test_every_refusal_of_a_key_is_the_same():
    """Nothing tells a wrong key from none, or a near one from a far one."""
    answers = [door(headers=h, keys=KEYS)[2] for h in ({}, {"X-Api-Key": "nope"}, {"Authorization": f"Bearer {KEY[:-1]}"}, {"Authorization": "Basic x"})]
    assert len(set(answers)) == 1 and b"Invalid API Key" in answers[0]


def test_health_asks_for_no_key_and_everything_else_does():
    assert door(path="/health", keys=KEYS)[0] == 200
    for path in ("/metrics", "/v1/models", "/slots", "/nowhere", "/health/", "//health"):
        assert door(path=path, keys=KEYS)[0] == 401, path


def test_every_key_is_compared_in_constant_time(monkeypatch):
    """The key's place in the file, and how much of it is right, decide nothing of the time: digests of equal length
    through compare_digest, all of them, whichever is right."""
    calls, real = [], hmac.compare_digest

    def compare(a, b):
        calls.append((len(a), len(b)))
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    keys = Keys([new_key(f"key-number-{i:04}", "t") for i in range(20)])
    for secret in ("key-number-0000", "key-number-0019", "key-number-000", "", "k" * 10_000, "\xff"):
        calls.clear()
        keys.find(secret)
        assert calls == [(32, 32)] * 20
    assert keys.find("key-number-0007").name == keys.keys[7].name


def test_no_key_is_kept_or_logged(caplog):
    with caplog.at_level(logging.INFO):
        door(headers={"Authorization": f"Bearer {KEY}"}, keys=KEYS)
        door(headers={"Authorization": f"Bearer {KEY}x"}, keys=KEYS)
        door(path="/v1/models", headers={"X-Api-Key": OTHER}, keys=KEYS)
    assert "alice" in caplog.text and "bob" in caplog.text and "key-of" not in caplog.text
    assert not any(KEY in repr(getattr(k, name)) for k in KEYS.keys for name in k.__slots__)


def test_a_key_file():
    keys = parse_keys(f"# people\n\n{KEY} alice\n  {OTHER}\tbob batch \nthird-key-3\nfourth-key-4 d 0\n", "keys.txt")
    assert [(k.name, k.priority) for k in keys[:2]] == [("alice", 0), ("bob", 1)] and keys[2].name.startswith("key-") and len(keys) == 4
    assert len({k.salt for k in keys}) == 4


@pytest.mark.parametrize("text, what", [
    ("", "no key"), ("# only\n", "no key"), ("short\n", "line 1: a key of 5 characters"), (f"{KEY} a b c\n", "4 words"), (f"{KEY} a 7\n", "priority '7'"),
    (f"ok-key-0001\n{KEY} näme\n", "line 2: name"), ("key-with-ü-in-it\n", "visible ASCII"), ("x" * 513, "of 513 characters")])
def test_a_key_file_that_is_wrong_is_refused_by_line(text, what):
    with pytest.raises(RequestError, match=what) as e:
        parse_keys(text, "keys.txt")
    assert KEY not in str(e.value)


def test_the_same_key_twice_is_refused():
    with pytest.raises(RequestError, match="same key"):
        Keys([new_key(KEY, "t", "a"), new_key(KEY, "t", "b")])


# ---- where from ------------------------------------------------------------------------


@pytest.mark.parametrize("host, status", [
    (b"localhost", 200), (b"localhost:8080", 200), (b"127.0.0.1:1", 200), (b"[::1]:8080", 200), (b"[::1]", 200), (b"LOCALHOST.", 200),
    (b"evil.example", 403), (b"localhost.evil.example", 403), (b"127.0.0.1.evil.example", 403), (b"evil.example:8080", 403), (b"", 403),
    (b"127.0.0.2:80", 200), (b"[0:0:0:0:0:0:0:1]:80", 200), (b"127.0.0.1@evil.example", 403), (b"[::1]evil.example", 403), (b"127.0.0.1.", 200), (b"localhost@evil.example", 403), (b"169.254.169.254", 403), (b"0.0.0.0:8080", 403), (b"[::ffff:1.2.3.4]", 403), (b"a]b", 403), (None, 200)])
def test_dns_rebinding_is_refused_by_the_host_header(host, status):
    assert door(host=host)[0] == status


def test_allowed_hosts():
    assert door(host=b"llm.example:443", allowed_hosts=("llm.example",))[0] == 200
    assert door(host=b"[FE80::1]:443", allowed_hosts=("[fe80::1]",))[0] == 200 and door(host=b"llm.example", allowed_hosts=("LLM.example.",))[0] == 200
    assert door(host=b"other.example", allowed_hosts=("llm.example",))[0] == 403
    # Who watches from this machine says localhost, and a page of another site cannot.
    assert door(path="/health", host=b"localhost", allowed_hosts=("llm.example",))[0] == 200
    assert door(host=b"any.example", allowed_hosts=("*",))[0] == 200
    # Beyond this machine a key is demanded, which a page of another site does not have.
    assert Settings(host="0.0.0.0").hosts is None and Settings(host="::1").hosts and Settings(host="127.0.0.5").hosts


@pytest.mark.parametrize("host, is_loopback", [("localhost", True), ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("[::1]", True), ("0.0.0.0", False),
                                               ("::", False), ("192.168.1.2", False), ("example.org", False), ("", False)])
def test_loopback(host, is_loopback):
    assert loopback(host) is is_loopback


def test_hostname():
    assert [hostname(h) for h in ("A.b:80", "[FE80::1]:80", " x ", "a:b:c", "[::1", "x.")] == ["a.b", "fe80::1", "x", "", "", "x"]


@pytest.mark.parametrize("origin, status", [("https://evil.example", 403), ("null", 403), ("http://localhost:3000", 403), ("http://localhost", 200),
                                            ("chrome-extension://abc", 403), ("", 403), ("file://", 403), ("http://localhost.evil.example", 403)])
def test_foreign_origins_are_refused_and_get_no_cors_headers(origin, status):
    got, headers, _ = door("POST", headers={"Origin": origin})
    assert got == status and not [h for h in headers if h.startswith("access-control")]
    got, headers, _ = door("OPTIONS", headers={"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"})
    assert got == 403 and not [h for h in headers if h.startswith("access-control")]


def test_cors_for_one_origin():
    settings = dict(cors_origins=("https://app.example/",), keys=KEYS)
    asked = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, x-stainless-os"}
    status, headers, body = door("OPTIONS", headers=asked, **settings)     # no key: browsers send none with a preflight
    assert status == 204 and body == b"" and headers["access-control-allow-origin"] == "https://app.example"
    assert headers["access-control-allow-headers"] == "authorization, x-stainless-os" and "POST" in headers["access-control-allow-methods"]
    assert "access-control-allow-credentials" not in headers and headers["vary"] == "origin"
    status, headers, _ = door("POST", headers={"Origin": "https://app.example", "X-Api-Key": KEY}, **settings)
    assert status == 200 and headers["access-control-allow-origin"] == "https://app.example"
    status, headers, _ = door("POST", headers={"Origin": "https://app.example"}, **settings)
    assert status == 401 and headers["access-control-allow-origin"] == "https://app.example"     # so that the page can read why
    assert door("POST", headers={"Origin": "https://app.example.evil", "X-Api-Key": KEY}, **settings)[0] == 403
    assert door("OPTIONS", headers={**asked, "Access-Control-Request-Headers": "x\r\nset-cookie: a"}, **settings)[1]["access-control-allow-headers"].startswith("auth")


def test_an_origins_port_and_case():
    for given in ("https://App.example:443", "https://app.example/", "HTTPS://APP.EXAMPLE"):
        assert door("POST", headers={"Origin": "https://app.example"}, cors_origins=(given,))[0] == 200, given
    assert door("POST", headers={"Origin": "http://a:8080"}, cors_origins=("http://a:80",))[0] == 403
    assert Settings(cors_origins=("http://[::1]:3000", "chrome-extension://abc", "null", "*", "http://a:443", "http://a:80")).cors_origins[-2:] == ("http://a:443", "http://a")


def test_cors_for_any_origin():
    status, headers, _ = door("POST", headers={"Origin": "null"}, cors_origins=("*",))
    assert status == 200 and headers["access-control-allow-origin"] == "*" and "access-control-allow-credentials" not in headers


# ---- how much --------------------------------------------------------------------------


def test_header_bombs_are_431():
    assert door(headers={f"x-{i}": "1" for i in range(101)})[0] == 431
    assert door(headers={"x": "a" * 40_000})[0] == 431
    assert door(headers={f"x-{i}": "1" for i in range(90)})[0] == 200


def test_two_framings_are_refused():
    status, headers, _ = door("POST", headers={"Transfer-Encoding": "chunked", "Content-Length": "5"})
    assert status == 400 and headers["connection"] == "close"


class Body:
    """receive() of a body in parts; `taken` counts what was asked for."""

    def __init__(self, *parts, then=None):
        self.parts, self.then, self.taken = list(parts), then, 0

    async def __call__(self):
        self.taken += 1
        if not self.parts:
            await (self.then or asyncio.sleep(60))
        part = self.parts.pop(0)
        return part if isinstance(part, dict) else {"type": "http.request", "body": part, "more_body": bool(self.parts) or self.then is not None}


def body(receive, limit=100, seconds=10, **headers):
    headers = {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
    return run(read_body(receive, headers, limit, seconds))


def refused(receive, **options):
    with pytest.raises(HTTPError) as e:
        body(receive, **options)
    return e.value.status


def test_bodies():
    assert body(Body(b"{", b"}", b"")) == b"{}"
    assert body(Body(b"x" * 100)) == b"x" * 100
    assert body(Body(b"{", {"type": "http.disconnect"})) is None


def test_a_long_body_is_413_before_it_is_read():
    told, chunked = Body(b"x"), Body(*[b"x" * 60] * 1000)
    assert refused(told, content_length="101") == 413 and told.taken == 0
    assert refused(told, content_length="9" * 400) == 413 and told.taken == 0
    assert refused(chunked) == 413 and chunked.taken == 2
    lying = Body(*[b"x" * 60] * 1000)
    assert refused(lying, content_length="5") == 413 and lying.taken == 2


def test_a_slow_body_is_408():
    assert refused(Body(b"{", then=asyncio.sleep(30)), seconds=0.05) == 408


@pytest.mark.parametrize("kind, status", [("text/plain", 415), ("", 415), ("application/x-www-form-urlencoded", 415), ("multipart/form-data; boundary=x", 415),
                                          ("application/jsonx", 415), ("APPLICATION/JSON; charset=utf-8", None), ("application/ld+json", None)])
def test_pages_of_other_sites_cannot_post_what_is_read(kind, status):
    """A form or text/plain is sent across origins without asking; JSON is not."""
    if status is None:
        assert body(Body(b"{}"), content_type=kind) == b"{}"
    else:
        assert refused(Body(b"{}"), content_type=kind) == status


def test_compressed_bodies_are_415():
    assert refused(Body(b"{}"), content_encoding="gzip") == 415
    assert body(Body(b"{}"), content_encoding="identity") == b"{}"


@pytest.mark.parametrize("given, kept", [("abc-1.2:3_x", True), ("a" * 64, True), ("a" * 65, False), ("", False), ("a b", False), ("a\r\nSet-Cookie: x", False),
                                         ("ä", False), (None, False)])
def test_request_ids_are_plain(given, kept):
    assert (request_id(given) == given) is kept
    assert request_id(given) != request_id(given) or kept
    _, headers, _ = door(headers={"X-Request-Id": given} if given is not None and "\n" not in given else {})
    assert (headers["x-request-id"] == given) is kept


# ---- how many --------------------------------------------------------------------------


def test_the_queue_counts_what_is_inside():
    queue = Queue(limit=2, running=1)
    with queue, queue, queue:
        with pytest.raises(HTTPError) as e:
            with queue:
                pass
        assert e.value.status == 429 and 1 <= int(e.value.headers["Retry-After"]) <= 60 and queue.inside == 3
    assert queue.inside == 0
    with pytest.raises(LookupError):
        with queue:
            raise LookupError
    assert queue.inside == 0


def test_retry_after_follows_the_measured_rate(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("pyengine.serve.guard.time.monotonic", lambda: clock[0])
    queue = Queue(limit=100, running=1)
    assert queue.retry_after() == 5                     # nothing is known yet
    for _ in range(20):                                 # two a second
        with queue:
            clock[0] += 0.5
    queue.inside = 41                                   # 40 wait: half of them take 10 s
    assert queue.retry_after() in (9, 10)
    queue.inside = 5
    assert queue.retry_after() == 1
    clock[0] += 10_000                                  # nothing has ended for long
    assert queue.retry_after() == 60


# ---- settings --------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [dict(max_body=0), dict(max_body=True), dict(max_queue=-1), dict(body_seconds=0), dict(drain_seconds=float("nan")),
                                   dict(keepalive_seconds=-1), dict(cors_origins="https://x"), dict(allowed_hosts=("",)), dict(allowed_hosts=("a.example:80",)),
                                   dict(allowed_hosts=("https://a.example",)), dict(cors_origins=("a.example",)), dict(cors_origins=("https://a.example/path",)),
                                   dict(cors_origins=("",)), dict(model=""), dict(max_streams=0),
                                   dict(write_seconds=float("inf"))])
def test_settings_are_checked(wrong):
    with pytest.raises(RequestError, match=next(iter(wrong))):
        Settings(**wrong)

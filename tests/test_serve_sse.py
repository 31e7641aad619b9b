"""Event streams: framing, comments in silence, errors before and after the first event, clients that go or stall."""
import asyncio
import json

import pytest

from pyengine.serve.exchange import Events, HTTPError, openai_error
from pyengine.serve.settings import Settings
from pyengine.serve.sse import encode, send_events
from serving import run


class Client:
    """send() of a client that may stop reading."""

    def __init__(self):
        self.sent, self.reads, self.aborted = [], asyncio.Event(), False
        self.reads.set()

    async def __call__(self, message):
        await self.reads.wait()
        if not self.aborted:
            self.sent.append(message)

    def abort(self):
        self.aborted = True
        self.reads.set()

    @property
    def text(self):
        return b"".join(m.get("body", b"") for m in self.sent).decode()

    @property
    def complete(self):
        return bool(self.sent) and self.sent[-1].get("more_body") is False


def stream(items, act=None, **settings):
    """(client, what send_events returned or raised) of an iterator; act(client, gone, ending) runs beside it."""
    can_abort = settings.pop("can_abort", True)

    async def go():
        client, loop = Client(), asyncio.get_running_loop()
        gone, ending = loop.create_future(), loop.create_future()
        sending = asyncio.ensure_future(send_events(client, Events(items), gone=gone, ending=ending, settings=Settings(**settings), abort=client.abort if can_abort else None,
                                                    error=lambda e: openai_error(e if isinstance(e, HTTPError) else HTTPError(500, "failed"))))
        acting = asyncio.ensure_future(act(client, gone, ending)) if act else None
        try:
            out = await sending
        except Exception as e:
            out = e
        if acting:
            await acting
        return client, out

    return run(go())


async def some(*items, error=None, then=None, log=None):
    try:
        for item in items:
            yield item
            await asyncio.sleep(0)
        if then is not None:
            await then
        if error is not None:
            raise error
    finally:
        if log is not None:
            log.append("closed")


def test_framing():
    assert encode({"a": "ü\n"}) == 'data: {"a":"ü\\n"}\n\n'.encode()
    assert encode("[DONE]") == b"data: [DONE]\n\n"
    assert encode("two\nlines") == b"data: two\ndata: lines\n\n" and encode("") == b"data: \n\n"
    assert encode({"a": "\ud83d"}).decode()          # half a pair does not break the stream


def test_line_ends_of_unicode_do_not_cut_an_event():
    """httpx's iter_lines, and clients built on it, cut lines where Python's str.splitlines() does."""
    import json

    text = "".join(map(chr, range(0x20, 0x2100)))
    lines = encode({"a": "\n\r\x0b\x0c\x1c\x1d\x1e" + text}).decode().splitlines()
    assert len(lines) == 2 and lines[1] == "" and json.loads(lines[0].removeprefix("data: "))["a"].endswith(text)


def test_events_in_order_and_one_end():
    client, out = stream(some({"i": 0}, {"i": 1}, "[DONE]"))
    assert out is True and client.text == 'data: {"i":0}\n\ndata: {"i":1}\n\ndata: [DONE]\n\n' and client.complete and not client.aborted
    assert dict(client.sent[0]["headers"])[b"content-type"].startswith(b"text/event-stream") and client.sent[0]["status"] == 200
    assert sum(not m.get("more_body", True) for m in client.sent) == 1


def test_no_events_at_all():
    client, out = stream(some())
    assert out is True and client.text == "" and client.complete and client.sent[0]["status"] == 200


def test_an_error_before_the_first_event_is_an_ordinary_answer():
    client, out = stream(some(error=HTTPError(400, "no")))
    assert isinstance(out, HTTPError) and out.status == 400 and client.sent == []


def test_an_error_later_is_the_last_event():
    client, out = stream(some({"i": 0}, error=HTTPError(503, "broke")))
    events = [json.loads(e[6:]) for e in client.text.split("\n\n") if e]
    assert events[0] == {"i": 0} and events[1]["error"]["message"] == "broke" and client.complete and len(events) == 2


def test_silence_is_filled_with_comments():
    async def wait():
        await asyncio.sleep(0.25)

    client, out = stream(some({"i": 0}, then=wait()), keepalive_seconds=0.04)
    assert out is True and client.text.count(":\n\n") >= 2 and [e for e in client.text.split("\n\n") if e.startswith("data")] == ['data: {"i":0}']
    client, _ = stream(some({"i": 0}, then=wait()), keepalive_seconds=0)
    assert ":\n\n" not in client.text.replace('data: {"i":0}\n\n', "")


def test_comments_begin_before_the_first_event():
    """A long prompt: proxies and clients see that the server lives. From there on errors are events."""
    async def wait():
        await asyncio.sleep(0.15)

    client, out = stream(some(then=wait(), error=HTTPError(500, "late")), keepalive_seconds=0.04)
    assert out is True and client.text.startswith(":\n\n") and '"late"' in client.text and client.complete


def test_the_client_goes():
    log = []

    async def go(client, gone, ending):
        while not client.sent:
            await asyncio.sleep(0)
        gone.set_result(None)

    client, out = stream(some({"i": 0}, then=asyncio.sleep(30), log=log), go)
    assert out is True and log == ["closed"] and not client.complete and not client.aborted


def test_the_client_goes_before_the_first_event():
    log = []

    async def go(client, gone, ending):
        await asyncio.sleep(0.02)
        gone.set_result(None)

    client, out = stream(some(then=asyncio.sleep(30), log=log), go)
    assert out is False and log == ["closed"] and client.sent == []


def test_the_server_ends_what_runs_and_says_so():
    log = []

    async def end(client, gone, ending):
        while not client.sent:
            await asyncio.sleep(0)
        ending.set_result(None)

    client, out = stream(some({"i": 0}, then=asyncio.sleep(30), log=log), end)
    assert out is True and log == ["closed"] and "shutting down" in client.text and client.complete


@pytest.mark.parametrize("can_abort", [True, False])
def test_a_reader_that_stalls_is_cut(can_abort):
    log = []

    async def stall(client, gone, ending):
        while not client.sent:
            await asyncio.sleep(0)
        client.reads.clear()

    async def slowly():
        try:
            for i in range(1000):
                yield {"i": i}
                await asyncio.sleep(0.005)
        finally:
            log.append("closed")

    client, out = stream(slowly(), stall, write_seconds=0.1, can_abort=can_abort)
    assert out is True and client.aborted is can_abort and log == ["closed"] and not client.complete


def test_what_waits_for_a_reader_is_bounded():
    made, log = [], []

    async def flood():
        try:
            for i in range(100_000):
                made.append(i)
                yield {"text": "x" * 100}
                await asyncio.sleep(0)
        finally:
            log.append("closed")

    async def stall(client, gone, ending):
        client.reads.clear()
        while not log:
            await asyncio.sleep(0.005)
        client.reads.set()

    client, out = stream(flood(), stall, stream_buffer=10_000, write_seconds=5)
    assert client.aborted and log == ["closed"] and len(made) < 200 and not client.complete


def test_events_that_come_together_are_sent_together():
    client, _ = stream(some(*({"i": i} for i in range(50))))
    assert 2 <= len(client.sent) <= 52 and client.text.count("data: ") == 50


@pytest.mark.parametrize("n", [1, 1000])
def test_concatenated_events_are_what_was_made(n):
    client, _ = stream(some(*({"text": f"{i}é"} for i in range(n))))
    assert [json.loads(e[6:])["text"] for e in client.text.split("\n\n") if e] == [f"{i}é" for i in range(n)]

"""Event streams: `data: ...` as events come, a comment while nothing does, an end when the client has gone or stalls.

Two sides with a bounded buffer between them: one takes events from the dialect's iterator as the engine makes them,
the other writes. A client that takes nothing for write_seconds, or lets more than stream_buffer bytes of events
pile up, is cut and its request ended; the others' streams never notice. Not what events hold. Imported by app.
"""
import asyncio
import json

from .exchange import HTTPError

COMMENT = b":\n\n"
HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"),
           (b"x-accel-buffering", b"no")]       # nginx would collect events otherwise


# Line ends of Unicode's that are none of an event stream's: clients that cut lines as Python's str.splitlines() does
# (httpx's iter_lines, and what is built on it) would lose an event that has one. Others JSON escapes by itself.
LINE_ENDS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def encode(item) -> bytes:
    """One event. Line breaks inside a string item become lines of the same event."""
    if not isinstance(item, str):
        item = json.dumps(item, ensure_ascii=False, separators=(",", ":"))
        if "\u2028" in item or "\u2029" in item or "\x85" in item:
            item = item.translate(LINE_ENDS)
        return b"data: " + item.encode("utf-8", "replace") + b"\n\n"
    return "".join(f"data: {line}\n" for line in item.splitlines() or [""]).encode("utf-8", "replace") + b"\n"


class _Buffer:
    """Events from the iterator, encoded, until they are written."""

    def __init__(self, events, limit):
        self.parts, self.size = [], 0
        self.ended = self.overflow = False
        self.failure = None          # what the iterator raised
        self._wake = asyncio.Event()
        self._limit = limit
        self.task = asyncio.ensure_future(self._fill(events.items))

    def ring(self, _=None) -> None:
        self._wake.set()

    async def news(self, loop, seconds, *others) -> bool:
        """Waits until there is something to write, an end, or one of the others is done; false if `seconds` were silent."""
        silent = loop.call_later(seconds, self.ring) if seconds else None
        try:
            while True:
                self._wake.clear()
                if self.parts or self.ended or self.overflow or any(f.done() for f in others):
                    return True
                await self._wake.wait()
                if silent is not None and loop.time() >= silent.when():
                    return bool(self.parts or self.ended)
        finally:
            if silent is not None:
                silent.cancel()

    async def _fill(self, items):
        try:
            async for item in items:
                part = encode(item)
                self.parts.append(part)
                self.size += len(part)
                if self.size > self._limit:
                    self.overflow = True
                    return
                self._wake.set()
        except Exception as e:
            self.failure = e
        finally:
            # Closing the iterator ends its request; where it is cancelled, the cancellation did.
            if hasattr(items, "aclose"):
                await items.aclose()
            self.ended = True
            self._wake.set()

    def take(self) -> bytes:
        out = b"".join(self.parts)
        self.parts.clear()
        self.size = 0
        return out


async def send_events(send, events, *, gone, ending, settings, error, abort=None) -> bool:
    """Writes the stream. False: the client went before it began. error(e) -> the body that says what the iterator
    raised. gone, ending: futures that are done when the client has gone, or the server ends what runs.
    abort(): drops the connection with what it has not sent, and lets a send() that waits for it go on."""
    buffer = _Buffer(events, settings.stream_buffer)
    loop = asyncio.get_running_loop()
    for future in (gone, ending):
        future.add_done_callback(buffer.ring)
    begun = False
    try:
        while True:
            data = b""
            if not await buffer.news(loop, settings.keepalive_seconds, gone, ending):
                data = COMMENT
            if gone.done():
                return begun
            if buffer.overflow:
                raise _Cut
            data += buffer.take()
            last, failure = buffer.ended, buffer.failure
            if ending.done() and not last:
                failure, last = HTTPError(503, "the server is shutting down", code="draining"), True
            if failure is not None:
                if not begun and not data:
                    raise failure
                data += encode(error(failure))
            if not begun:
                await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
                begun = True
            await _write(send, {"type": "http.response.body", "body": data, "more_body": not last}, loop, settings.write_seconds, abort)
            if last:
                return True
    except _Cut:
        if abort is not None:
            abort()
        return begun
    finally:
        buffer.task.cancel()
        await asyncio.wait((buffer.task,))


async def _write(send, message, loop, seconds, abort) -> None:
    """send(message), or _Cut if the client does not take it in time. wait_for() would cost a task for every token."""
    if abort is None:
        try:
            await asyncio.wait_for(send(message), seconds)
        except asyncio.TimeoutError:
            raise _Cut from None
        return
    late = []

    def cut():
        late.append(True)
        abort()

    timer = loop.call_later(seconds, cut)
    try:
        await send(message)
    finally:
        timer.cancel()
    if late:
        raise _Cut


class _Cut(Exception):
    """The client does not take what it asked for."""

"""From the engine's tokens to the caller's text: the one engine thread, stop strings, iterators.

Requests come from any thread and are answered through jobs; only the engine
thread touches the engine. Not the engine (no steps, no sampling) and not the API
(no defaults, no validation: llama.py). Imported by llama and choose.
"""
import os
import threading
import time
import weakref
from collections import deque
from typing import NamedTuple

from .engine import Engine, Request
from .errors import ClosedError, FileChangedError, QueueFullError


class Completion:
    """What a prompt was answered with. str() is the text.

    text           the answer; what came after a stop string, and the string itself, is cut
    tokens         ids that were generated; the token that ended the turn is not among them
    finish_reason  "stop" (end of turn or a stop string), "length" (max_tokens or the context's
                   end), "deadline", None where the stream was closed before its end
    stop           the stop string that was met, or None
    usage          prompt_tokens, completion_tokens, total_tokens, cached_tokens
    timings        queued_ms, first_ms (from its arrival to the first token), prompt_n (computed, not
                   cached), prompt_ms, prompt_per_second, predicted_n, predicted_ms, predicted_per_second
    logprobs       per token, where asked for: id, token, bytes, logprob, top_logprobs; else None
    seed           the seed that was used: the same seed gives the same answer
    index          which of the answers to its prompt this is, from 0
    cached_tokens  positions of the prompt that were not computed again
    """

    __slots__ = ("text", "tokens", "finish_reason", "stop", "usage", "timings", "logprobs", "seed", "index", "cached_tokens")

    def __init__(self, text, tokens, finish_reason, usage, timings, logprobs, seed, cached_tokens, stop=None, index=0):
        self.text, self.tokens, self.finish_reason, self.stop = text, tokens, finish_reason, stop
        self.usage, self.timings, self.logprobs = usage, timings, logprobs
        self.seed, self.index, self.cached_tokens = seed, index, cached_tokens

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return (f"Completion(text={self.text!r}, finish_reason={self.finish_reason!r}, "
                f"completion_tokens={self.usage['completion_tokens']}, seed={self.seed})")

    def as_dict(self) -> dict:
        return {name: getattr(self, name) for name in self.__slots__}


class StopStrings:
    """Cuts a growing text at the first stop string and holds back what may become one."""

    def __init__(self, stops):
        self.stops = tuple(stops)
        self._longest = max(map(len, self.stops), default=0)
        self._held = ""
        self.met = None              # the stop string that ended the text

    def push(self, piece: str) -> str:
        """The text that is certain now."""
        if self.met or not self.stops:
            return "" if self.met else piece
        text = self._held + piece
        found = [(at, stop) for at, stop in ((text.find(stop), stop) for stop in self.stops) if at >= 0]
        if found:
            at, self.met = min(found, key=lambda x: (x[0], -len(x[1])))
            self._held = ""
            return text[:at]
        for n in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-n:]
            if any(stop.startswith(tail) for stop in self.stops):
                self._held = tail
                return text[:-n]
        self._held = ""
        return text

    def flush(self) -> str:
        """The end: what was held back was no stop string."""
        text, self._held = self._held, ""
        return text


class Piece(NamedTuple):
    """What an answer grew by."""

    text: str
    tokens: tuple                    # ids that came since the piece before
    logprobs: "list | None"          # their entries, where asked for
    at: float                        # seconds of the monotonic clock


class Job:
    """One request between its caller and the engine thread.

    take()    the pieces that came since the last call; any thread may
    ended     an event; then `result` is the Completion, or `error` what went wrong
    cancel()  ends the request within a step; `result` is what there is of the answer
    notify    notify(job) is called on the engine thread when there is something to take or the end, once
              until take() is called; it must not block. What it raises is dropped: the others' engine goes on.

    The engine thread holds jobs, never the iterators handed out, so that an abandoned iterator is
    collected and its request ends.
    """

    def __init__(self, prompt, *, tokenizer=None, stops=(), logprobs=False, notify=None, sampler=None, **request):
        self.tokenizer = tokenizer
        self.seed = None if sampler is None else sampler.seed
        self.ended = threading.Event()
        self.error = None
        self.result = None
        self.notify = notify
        self.thread = None               # set by submit()
        self._lock = threading.Lock()
        self._pieces, self._told = [], False
        self._text = []
        self._logprobs = [] if logprobs else None
        self._n_taken = 0                # tokens that are in pieces
        self._stops = StopStrings(stops)
        self._decoder = None
        if tokenizer is not None:
            # A blank that encoding puts before a text is dropped again only where the text begins here, and
            # never from what follows a grammar, which says whether there is one.
            self._decoder = tokenizer.decoder(continued=request.get("constraint") is not None or any(tokenizer.is_text(t) for t in prompt))
        self.request = Request(prompt, sampler=sampler, on_token=self._token if tokenizer is not None else None,
                               on_end=self._end, **request)

    def take(self) -> list:
        with self._lock:
            pieces, self._pieces, self._told = self._pieces, [], False
        return pieces

    def cancel(self) -> None:
        if self.thread is not None:
            self.thread.cancel(self)

    # on the engine thread

    def _token(self, sampled) -> bool:
        if self._logprobs is not None:
            self._logprobs.append(self._entry(sampled))
        text = self._stops.push(self._decoder.push(sampled.token))
        if text:
            self._emit(text)
        return self._stops.met is not None

    def _emit(self, text: str) -> None:
        """Tokens whose text is not certain yet come with the next that is."""
        n, self._n_taken = self._n_taken, len(self.request.tokens)
        self._text.append(text)
        piece = Piece(text, tuple(self.request.tokens[n:]), self._logprobs and self._logprobs[n:], time.monotonic())
        with self._lock:
            self._pieces.append(piece)
            told, self._told = self._told, True
        if not told:
            self._tell()

    def _tell(self) -> None:
        if self.notify is not None:
            try:
                self.notify(self)
            except BaseException:        # the event loop it speaks to is closed, say: nobody is left to be told
                pass

    def _entry(self, sampled) -> dict:
        entry = self._one(sampled.token, sampled.logprob)
        entry["top_logprobs"] = [self._one(token, logprob) for token, logprob in sampled.top]
        return entry

    def _one(self, token: int, logprob: float) -> dict:
        """`token` is always valid text; `bytes` are the token's own, which may be part of a character."""
        raw = bytes(self.tokenizer.piece(token))
        return {"id": token, "token": raw.decode("utf-8", "replace"), "bytes": list(raw), "logprob": logprob}

    def _end(self) -> None:
        request = self.request
        try:
            if self._decoder is not None:
                rest = ""
                if self._stops.met is None:
                    rest = self._stops.push(self._decoder.flush())
                    if self._stops.met is not None:
                        request.finish_reason = request.finish_reason and "stop"
                    rest += self._stops.flush()
                if rest or self._n_taken < len(request.tokens):
                    self._emit(rest)
            self.error = request.error
            self.result = self._completion()
        except Exception as e:
            self.error = self.error or e
        finally:
            if self.thread is not None:
                self.thread.leave()
            self.ended.set()
            self._tell()

    def _completion(self) -> Completion:
        request = self.request
        n_prompt, n, cached = len(request.prompt), len(request.tokens), request.cached
        end = request.ended
        started = request.started if request.started is not None else end
        prompted = request.prompted if request.prompted is not None else end
        added = request.added if request.added is not None else started
        prompt_s, predicted_s = prompted - started, end - prompted
        # The first token is chosen from the prompt's own logits; the others take a step each.
        timings = {
            "queued_ms": 1e3 * (started - added), "first_ms": 1e3 * (prompted - added), "cached_n": cached,
            "prompt_n": n_prompt - cached, "prompt_ms": 1e3 * prompt_s,
            "prompt_per_second": (n_prompt - cached) / prompt_s if prompt_s > 0 else 0.0,
            "predicted_n": n, "predicted_ms": 1e3 * predicted_s,
            "predicted_per_second": (n - 1) / predicted_s if predicted_s > 0 and n > 1 else 0.0,
        }
        usage = {"prompt_tokens": n_prompt, "completion_tokens": n, "total_tokens": n_prompt + n, "cached_tokens": cached}
        return Completion("".join(self._text), list(request.tokens), request.finish_reason, usage, timings,
                          self._logprobs, self.seed, cached, self._stops.met, request.sequence)


class EngineThread:
    """The one thread that steps an engine while there is work, and sleeps otherwise."""

    def __init__(self, engine: Engine, max_queue=None):
        self.engine, self.max_queue = engine, max_queue
        self.pid = os.getpid()
        self._wake = threading.Condition()
        self._new = deque()
        self._cancel = deque()
        self._calls = deque()
        self._live = set()
        self._n_open = 0             # jobs that were submitted and have not ended
        self._thread = None
        self._closing = False
        self._then = None            # what close() was given
        self._fault = None           # why nothing can be answered any more

    def check_process(self) -> None:
        if self.pid != os.getpid():
            raise ClosedError(f"this model was opened in process {self.pid} and threads do not survive fork(): "
                              f"open it again in process {os.getpid()} (the weights are shared through the page cache)")

    def check_open(self) -> None:
        self.check_process()
        if self._closing:
            raise ClosedError("this model has been closed")

    def submit(self, jobs) -> None:
        """All of them, or, where the queue has no room for all, none."""
        self._post(self._new, jobs)

    def _post(self, queue, items) -> None:
        self.check_open()
        with self._wake:
            if self._closing:
                raise ClosedError("this model has been closed")
            if queue is self._new and self.max_queue is not None:
                self._check_room(len(items))
            if self._thread is None:
                # A daemon, so that a forgotten close() cannot keep the interpreter from ending.
                thread = threading.Thread(target=self._run, name="pyengine", daemon=True)
                thread.start()               # may fail, and then nothing was taken in
                self._thread = thread        # from now on it is alive: `healthy` is read without the lock
            if queue is self._new:
                self._n_open += len(items)
                for job in items:
                    job.thread = self
            queue.extend(items)
            self._wake.notify()

    def _check_room(self, n: int) -> None:
        """As many run as there are seats; what is more waits."""
        seats = self.engine.program.max_seqs
        waiting = max(0, self._n_open - seats)
        if self._n_open + n > seats + self.max_queue:
            raise QueueFullError(f"{waiting} requests wait already and {n} more would be more than max_queue {self.max_queue}",
                                 n_waiting=waiting, limit=self.max_queue)

    def leave(self) -> None:
        """A job ends: there is room for another before anybody hears of it."""
        with self._wake:
            self._n_open -= 1

    def call(self, function):
        """function() run on the engine's thread between two steps; what it returns or raises."""
        if self._thread is threading.current_thread():
            return function()
        call = _Call(function)
        self._post(self._calls, [call])
        call.done.wait()
        if call.error is not None:
            raise call.error
        return call.result

    def cancel(self, job: Job) -> None:
        """Ends a request within a step; at once if the step that runs serves nobody else."""
        if job.ended.is_set() or self.pid != os.getpid():
            return
        with self._wake:                 # which the engine is closed under too: there is something to stop
            self._cancel.append(job)
            self._wake.notify()
            current = self.engine.current
            if len(current) == 1 and current[0] is job.request:
                self.engine.program.stop()

    @property
    def healthy(self) -> bool:
        # The engine's own word comes first: who was told of a fault and asks at once must not hear that all is well.
        return (self._fault is None and not isinstance(self.engine.fault, FileChangedError) and not self._closing and self.pid == os.getpid()
                and (self._thread is None or self._thread.is_alive()))

    def running(self) -> list:
        return list(self._live)

    def stats(self) -> dict:
        """As of the last step: integers that the engine's thread writes and anyone may read."""
        out = self.engine.stats()
        out["waiting"] += len(self._new)
        return out

    def close(self, then=None) -> None:
        """Ends what runs with ClosedError, then the thread, then the engine; then() gives back what the engine stood on.
        Idempotent. On the engine's own thread (from a callback, or by the collector) that is when its step has ended."""
        if self.pid != os.getpid():      # the threads to be joined live in the parent
            self._closing = True
            if then is not None:
                then()
            return
        with self._wake:
            first, self._closing = not self._closing, True
            if first:
                self._then = then
            thread = self._thread
            self._wake.notify()
            if first and self._live:
                self.engine.program.stop()
        if first and thread is None:
            self._finish()
            return
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _finish(self) -> None:
        with self._wake:                 # cancel() stops a step of an engine that is open
            self.engine.close()
        if self._then is not None:
            self._then()

    # ---- the thread ----------------------------------------------------------------

    def _run(self) -> None:
        engine = self.engine
        engine.settle()
        n_ended = 0
        while True:
            with self._wake:
                while not (self._new or self._cancel or self._calls or self._closing or not engine.idle):
                    self._wake.wait()
                # One by one: a stream that the collector finds on this very thread is cancelled in the middle of this.
                new, cancel, calls = ([queue.popleft() for _ in range(len(queue))] for queue in (self._new, self._cancel, self._calls))
            for job in new:
                self._live.add(job)
                engine.add(job.request)
            for job in cancel:
                engine.cancel(job.request)
            for call in calls:
                call.run()
            if self._closing:            # asked for last: a call may have closed it
                for job in list(self._live):
                    engine.cancel(job.request, ClosedError("the model was closed before the answer was complete"))
                self._finish()
                return
            try:
                engine.step()
            except Exception as e:       # a bug of ours: those who wait are told, and the thread goes on
                for job in list(self._live):
                    engine.cancel(job.request, e)
            if isinstance(engine.fault, FileChangedError):
                self._fault = engine.fault
            if engine.n_ended > n_ended:
                n_ended = engine.n_ended
                self._live = {job for job in self._live if not job.request.done}


class _Call:
    __slots__ = ("function", "done", "result", "error")

    def __init__(self, function):
        self.function, self.done = function, threading.Event()
        self.result = self.error = None

    def run(self) -> None:
        try:
            self.result = self.function()
        except BaseException as e:       # the caller's, whatever it is
            self.error = e
        finally:
            self.done.set()


class Stream:
    """The pieces of an answer as they come; `result` holds the Completion once they have ended.

    close(), leaving a with block, or dropping the last reference ends the request.
    """

    def __init__(self, thread: EngineThread, job: Job):
        self._thread, self._job = thread, job
        self._texts = deque()
        self._ready = ready = threading.Event()
        job.notify = lambda _: ready.set()       # no reference to this stream
        if job.ended.is_set() or job._told:      # it began before we listened
            ready.set()
        self._finished = False
        self._finalize = weakref.finalize(self, thread.cancel, job)
        self._finalize.atexit = False

    def __iter__(self):
        return self

    def __next__(self) -> str:
        while not self._finished:
            if self._texts:
                return self._texts.popleft()
            self._thread.check_process()
            self._ready.wait()
            self._ready.clear()
            ended = self._job.ended.is_set()     # before taking: what came until then is among the pieces
            self._texts.extend(piece.text for piece in self._job.take() if piece.text)
            if ended:
                self._ready.set()
                if not self._texts:
                    self._finished = True
                    if self._job.error is not None:
                        raise self._job.error
        raise StopIteration

    @property
    def result(self) -> "Completion | None":
        return self._job.result if self._job.ended.is_set() and self._job.error is None else None

    def close(self) -> None:
        """Ends the request and waits until it has ended; `result` is what there is of the answer."""
        self._finished = True
        self._finalize()
        if self._thread.pid == os.getpid():
            self._job.ended.wait()

    def __enter__(self):
        return self

    def __exit__(self, *exc) -> None:
        self.close()


def wait(thread: EngineThread, jobs) -> list:
    """Blocks until all jobs have ended; the first error ends the others and is raised."""
    try:
        for job in jobs:
            job.ended.wait()
            if job.error is not None:
                raise job.error
    except BaseException:
        for job in jobs:
            thread.cancel(job)
        raise
    return [job.result for job in jobs]

"""From the engine's tokens to the caller's text: the one engine thread, stop strings, iterators.

Requests come from any thread and are answered through queues; only the engine
thread touches the engine. Not the engine (no steps, no sampling) and not the API
(no defaults, no validation: llama.py). Imported by llama, serve and compat.
"""
import os
import queue
import threading
import weakref
from collections import deque

from .engine import Engine, Request
from .errors import ClosedError


class Completion:
    """What a prompt was answered with. str() is the text.

    text           the answer; what came after a stop string, and the string itself, is cut
    tokens         ids that were generated; the token that ended the turn is not among them
    finish_reason  "stop" (end of turn or a stop string), "length" (max_tokens or the context's
                   end), None where the stream was closed before its end
    usage          prompt_tokens, completion_tokens, total_tokens
    timings        prompt_n, prompt_ms, prompt_per_second, predicted_n, predicted_ms, predicted_per_second
    logprobs       per token, where asked for: id, token, bytes, logprob, top_logprobs; else None
    seed           the seed that was used: the same seed gives the same answer
    cached_tokens  positions of the prompt that were not computed again
    """

    __slots__ = ("text", "tokens", "finish_reason", "usage", "timings", "logprobs", "seed", "cached_tokens")

    def __init__(self, text, tokens, finish_reason, usage, timings, logprobs, seed, cached_tokens):
        self.text, self.tokens, self.finish_reason = text, tokens, finish_reason
        self.usage, self.timings, self.logprobs = usage, timings, logprobs
        self.seed, self.cached_tokens = seed, cached_tokens

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
        self.met = False

    def push(self, piece: str) -> str:
        """The text that is certain now."""
        if self.met or not self.stops:
            return "" if self.met else piece
        text = self._held + piece
        found = [at for at in (text.find(stop) for stop in self.stops) if at >= 0]
        if found:
            self.met, self._held = True, ""
            return text[:min(found)]
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


class Job:
    """One request between its caller and the engine thread. The engine thread holds jobs, never
    the iterators handed out, so that an abandoned iterator is collected and its request ends."""

    def __init__(self, prompt, *, tokenizer=None, stops=(), logprobs=False, seed=None, stream=False, **request):
        self.tokenizer = tokenizer
        self.seed = seed
        self.pieces = queue.SimpleQueue() if stream else None     # str ... then None
        self.ended = threading.Event()
        self.cancelled = False
        self.error = None
        self.result = None
        self._text = []
        self._logprobs = [] if logprobs else None
        self._stops = StopStrings(stops)
        self._decoder = None
        if tokenizer is not None:
            # A blank that encoding puts before a text is dropped again only where the text begins here.
            self._decoder = tokenizer.decoder(continued=any(tokenizer.is_text(t) for t in prompt))
        self.request = Request(prompt, on_token=self._token if tokenizer is not None else None,
                               on_end=self._end, **request)

    # on the engine thread

    def _token(self, sampled) -> bool:
        if self._logprobs is not None:
            self._logprobs.append(self._entry(sampled))
        self._emit(self._stops.push(self._decoder.push(sampled.token)))
        return self._stops.met

    def _emit(self, piece: str) -> None:
        if piece:
            self._text.append(piece)
            if self.pieces is not None:
                self.pieces.put(piece)

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
            if self._decoder is not None and not self._stops.met:
                self._emit(self._stops.push(self._decoder.flush()))
                if self._stops.met:
                    request.finish_reason = request.finish_reason and "stop"
                self._emit(self._stops.flush())
            self.error = request.error
            self.result = self._completion()
        except Exception as e:
            self.error = self.error or e
        finally:
            self.ended.set()
            if self.pieces is not None:
                self.pieces.put(None)

    def _completion(self) -> Completion:
        request = self.request
        n_prompt, n = len(request.prompt), len(request.tokens)
        end = request.ended
        started = request.started if request.started is not None else end
        prompted = request.prompted if request.prompted is not None else end
        prompt_s, predicted_s = prompted - started, end - prompted
        # The first token is chosen from the prompt's own logits; the others take a step each.
        timings = {
            "queued_ms": 1e3 * (started - (request.added if request.added is not None else started)),
            "prompt_n": n_prompt, "prompt_ms": 1e3 * prompt_s,
            "prompt_per_second": n_prompt / prompt_s if prompt_s > 0 else 0.0,
            "predicted_n": n, "predicted_ms": 1e3 * predicted_s,
            "predicted_per_second": (n - 1) / predicted_s if predicted_s > 0 and n > 1 else 0.0,
        }
        usage = {"prompt_tokens": n_prompt, "completion_tokens": n, "total_tokens": n_prompt + n}
        return Completion("".join(self._text), list(request.tokens), request.finish_reason, usage, timings,
                          self._logprobs, self.seed, 0)


class EngineThread:
    """The one thread that steps an engine while there is work, and sleeps otherwise."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self.pid = os.getpid()
        self._wake = threading.Condition()
        self._new = deque()
        self._cancel = deque()
        self._live = set()
        self._thread = None
        self._closing = False

    def check_process(self) -> None:
        if self.pid != os.getpid():
            raise ClosedError(f"this model was opened in process {self.pid} and threads do not survive fork(): "
                              f"open it again in process {os.getpid()} (the weights are shared through the page cache)")

    def check_open(self) -> None:
        self.check_process()
        if self._closing:
            raise ClosedError("this model has been closed")

    def submit(self, jobs) -> None:
        self.check_open()
        with self._wake:
            if self._closing:
                raise ClosedError("this model has been closed")
            self._new.extend(jobs)
            if self._thread is None:
                # A daemon, so that a forgotten close() cannot keep the interpreter from ending.
                self._thread = threading.Thread(target=self._run, name="pyengine", daemon=True)
                self._thread.start()
            self._wake.notify()

    def cancel(self, job: Job) -> None:
        """Ends a request within a step; at once if the step that runs serves nobody else."""
        if job.ended.is_set() or self.pid != os.getpid():
            return
        job.cancelled = True
        with self._wake:
            self._cancel.append(job)
            self._wake.notify()
        current = self.engine.current
        if len(current) == 1 and current[0] is job.request:
            self.engine.program.stop()

    def close(self) -> None:
        """Ends what runs with ClosedError, then the thread, then the engine. Idempotent."""
        if self.pid != os.getpid():      # the threads to be joined live in the parent
            self._closing = True
            return
        with self._wake:
            first, self._closing = not self._closing, True
            thread = self._thread
            self._wake.notify()
        if first and thread is None:
            self.engine.close()
            return
        if thread is not None and thread is not threading.current_thread():
            if first and self._live:
                self.engine.program.stop()
            thread.join()

    # ---- the thread ----------------------------------------------------------------

    def _run(self) -> None:
        engine = self.engine
        engine.settle()
        while True:
            with self._wake:
                while not (self._new or self._cancel or self._closing or not engine.idle):
                    self._wake.wait()
                new, cancel = list(self._new), list(self._cancel)
                self._new.clear()
                self._cancel.clear()
                closing = self._closing
            for job in new:
                self._live.add(job)
                engine.add(job.request)
            for job in cancel:
                engine.cancel(job.request)
            if closing:
                for job in list(self._live):
                    engine.cancel(job.request, ClosedError("the model was closed before the answer was complete"))
                engine.close()
                return
            try:
                engine.step()
            except Exception as e:       # a bug of ours: those who wait are told, and the thread goes on
                for job in list(self._live):
                    engine.cancel(job.request, e)
            self._live = {job for job in self._live if not job.request.done}


class Stream:
    """The pieces of an answer as they come; `result` holds the Completion once they have ended.

    close(), leaving a with block, or dropping the last reference ends the request.
    """

    def __init__(self, thread: EngineThread, job: Job):
        self._thread, self._job = thread, job
        self._finished = False
        self._finalize = weakref.finalize(self, thread.cancel, job)
        self._finalize.atexit = False

    def __iter__(self):
        return self

    def __next__(self) -> str:
        if self._finished:
            raise StopIteration
        self._thread.check_process()
        piece = self._job.pieces.get()
        if piece is not None:
            return piece
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

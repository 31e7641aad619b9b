"""The engine: a file, its program, the cache's pages and the scheduler; step() advances all requests by one step.

It knows token ids only: text, stop strings and threads are stream.py's. It is not
safe to call from several threads; stream.py calls it from one. Imported by stream
and llama.

What goes wrong in one request (a logit that is not finite, a logits processor that
raises) ends that request. What goes wrong in a step as a whole (the file changed)
ends the requests of that step. Neither ends the engine.
"""
import contextlib
import os
import time

from .cache import Cache
from .errors import StoppedError
from .plan import Seq, Step
from .schedule import DONE, Scheduler, Sequence

# While others decode or wait, prompts are cut so that a step takes about this long.
STEP_SECONDS = 0.1

# From so many rows on a step is bound by arithmetic, below by reading the weights.
BATCH_ROWS = 8

# Where cores differ, slow ones join from here on: parts of a matrix are 32 rows then (csrc/exec_mm.c), and below larger, so that
# the last one on a slow core costs more than it brought (an RK3588 would reach 0.8 of what its fast cores do alone).
UNEQUAL_ROWS = 64


class Request:
    """One sequence from its prompt to its end: what to compute, how to choose, and what came of it.

    sampler: chooses each next token; None: logits only, see rows.
    rows: a float32 array [len(prompt), n_vocab] that receives the logits of every position.
    on_token(sampled) -> bool: called for each token that is kept; true ends the request with "stop".
    on_end(): called once, when finish_reason or error is set.
    sequence: which of the answers to its prompt this is; parent: the request whose prompt it shares.
    priority, key: who goes first, see schedule.py. salt: the cache is shared under an equal one only.
    deadline: a moment of the monotonic clock. constraint: what the answer has to follow (grammar.py).
    """

    __slots__ = ("prompt", "tokens", "sampler", "max_tokens", "end_ids", "rows", "on_token", "on_end", "seq", "sequence", "salt",
                 "deadline", "constraint", "cached", "finish_reason", "error", "added", "started", "prompted", "ended")

    def __init__(self, prompt, *, sampler=None, max_tokens=None, end_ids=frozenset(), rows=None, on_token=None, on_end=None,
                 sequence=0, parent=None, priority=0, key="", salt="", deadline=None, constraint=None):
        self.prompt = list(prompt)
        self.tokens = []             # what was generated and kept; the token that ends a turn is not
        self.sampler = sampler
        self.max_tokens = max_tokens
        self.end_ids = end_ids
        self.rows = rows
        self.on_token, self.on_end = on_token, on_end
        self.sequence, self.salt, self.deadline, self.constraint = sequence, salt, deadline, constraint
        self.seq = Sequence(self.prompt, wanted_from=None if rows is None else 0, owner=self, priority=priority, key=key,
                            parent=None if parent is None else parent.seq)
        self.cached = 0              # positions of the prompt that were not computed
        self.finish_reason = None    # "stop", "length", "deadline"; None while it runs, after an error, and when cancelled
        self.error = None
        self.added = self.started = self.prompted = self.ended = None    # seconds of the monotonic clock

    @property
    def done(self) -> bool:
        return self.ended is not None


class Engine:
    def __init__(self, program, *, n_pages, n_threads, n_threads_batch=None, limit=None, cpus=None, profile=False):
        """Opens the program: makes its threads and its (untouched) memory. n_threads_batch: threads of steps
        of BATCH_ROWS (or UNEQUAL_ROWS) rows and more; None: n_threads. limit() is asked before each step for the most threads it may
        take (machine.CpuLimit); cpus: where each thread may run (machine.binding), the first the one that steps."""
        self.program = program
        self.n_ctx = program.n_ctx
        self.n_threads, self.n_threads_batch = n_threads, n_threads_batch or n_threads
        self._limit, self._cpus = limit, cpus
        program.open(pages=list(n_pages), n_threads=max(self.n_threads, self.n_threads_batch), profile=profile, cpus=cpus)
        self.cache = Cache([g.window or 0 for g in program.groups], n_pages)
        self.scheduler = Scheduler(self.cache, max_seqs=program.max_seqs, max_tokens=program.max_tokens,
                                   max_wanted=program.max_wanted)
        self.current = ()            # requests of the step that runs now
        self.fault = None            # what ended the last step, if it did not run
        self.n_live = 0              # requests that were added and have not ended
        self.counters = dict.fromkeys(("steps", "prompt_tokens", "cached_tokens", "generated_tokens", "preemptions", "proposed",
                                       "accepted"), 0)
        self._rows_per_second = None # of steps that held prompts

    @property
    def idle(self) -> bool:
        return self.scheduler.idle

    def settle(self) -> None:
        """Called by the thread that will step: it does a part of the work and belongs where its part belongs."""
        if self._cpus:
            with contextlib.suppress(OSError):     # as for the others: then the system chooses
                os.sched_setaffinity(0, self._cpus[0])

    def add(self, request: Request) -> None:
        assert 0 < len(request.prompt) <= self.n_ctx, "checked by whoever takes requests from outside"
        request.added = time.monotonic()
        self.n_live += 1
        self.scheduler.add(request.seq)

    def cancel(self, request: Request, error=None) -> None:
        """Ends a request between steps, with no finish_reason."""
        if not request.done:
            self._end(request, error=error)

    def stats(self) -> dict:
        """Integers: what runs and waits, pages per group, counters."""
        cache, scheduler = self.cache, self.scheduler
        free = cache.free
        return {"running": len(scheduler.running), "waiting": len(scheduler.waiting), "pages_total": list(cache.n_pages),
                "pages_used": [n - f for n, f in zip(cache.n_pages, free)], "pages_cached": [0] * len(free), "pages_free": list(free),
                **self.counters, "evictions": 0}

    def step(self) -> None:
        """Schedule, run, sample, commit."""
        chunks = self.scheduler.next_step(self._prompt_rows())
        if not chunks:
            return
        tokens, seqs, wanted = [], [], []
        for c in chunks:
            n = len(tokens) + c.count
            tokens += c.seq.tokens[c.start:c.start + c.count]
            wanted.extend(range(n - c.n_wanted, n))
            seqs.append(Seq(c.start, c.count, c.seq.table.pages))
        begin = time.monotonic()
        self.current = [c.seq.owner for c in chunks]
        for request in self.current:
            if request.started is None:
                request.started = begin
        try:
            few = len(tokens) < (UNEQUAL_ROWS if self._cpus else BATCH_ROWS)
            n_threads = self.n_threads if few else self.n_threads_batch
            if self._limit is not None:
                n_threads = min(n_threads, self._limit())
            logits = self.program.run(Step(tokens, seqs, wanted, n_threads=n_threads))
        except StoppedError:
            self.program.stop(False)
            return                   # nothing was committed; who is still wanted is planned again
        except Exception as e:
            self.fault = e
            for c in chunks:
                self._end(c.seq.owner, error=e)
            return
        finally:
            self.current = ()
        self.fault = None
        self.counters["steps"] += 1
        now = time.monotonic()
        if len(tokens) > len(chunks):
            rate = len(tokens) / max(now - begin, 1e-6)
            old = self._rows_per_second
            self._rows_per_second = rate if old is None else 0.5 * (old + rate)
        self.scheduler.commit(chunks)
        i = 0
        for c in chunks:
            request = c.seq.owner
            try:
                if request.rows is not None:
                    self._copy(request, c, logits, i)
                elif c.n_wanted:
                    self._choose(request, logits, i, now)
            except BaseException as e:     # also SystemExit from a processor: it must not end the others' engine
                self._end(request, error=e)
            i += c.n_wanted

    def close(self) -> None:
        """Ends every request that is left and gives back threads and memory."""
        self.program.close()

    # ---- how -------------------------------------------------------------------

    def _prompt_rows(self):
        if self._rows_per_second is None:
            return None
        return max(8, int(STEP_SECONDS * self._rows_per_second))

    def _copy(self, request: Request, chunk, logits, i: int) -> None:
        first = chunk.start + chunk.count - chunk.n_wanted
        for j in range(chunk.n_wanted):
            request.rows[first + j] = logits.numpy(i + j)
        if request.seq.computed == len(request.prompt):
            self._end(request, "stop")

    def _choose(self, request: Request, logits, i: int, now: float) -> None:
        seq = request.seq
        if request.prompted is None:
            request.prompted = now
        if request.max_tokens == 0 or len(seq.tokens) >= self.n_ctx:
            self._end(request, "length")
            return
        sampled = request.sampler.sample(logits.address(i), request.prompt, request.tokens, len(seq.tokens), request.sequence)
        if sampled.token in request.end_ids:
            self._end(request, "stop")
            return
        self.counters["generated_tokens"] += 1
        request.tokens.append(sampled.token)
        seq.tokens.append(sampled.token)
        if request.on_token is not None and request.on_token(sampled):
            self._end(request, "stop")
        elif len(request.tokens) == request.max_tokens or len(seq.tokens) >= self.n_ctx:
            self._end(request, "length")

    def _end(self, request: Request, finish_reason=None, error=None) -> None:
        if request.done:
            return
        request.finish_reason, request.error = finish_reason, error
        request.ended = time.monotonic()
        self.n_live -= request.added is not None
        if request.seq.state != DONE:
            self.scheduler.remove(request.seq)
        if request.on_end is not None:
            request.on_end()

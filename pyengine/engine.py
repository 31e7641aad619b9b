"""The engine: a file, its program, the cache's pages and the scheduler; step() advances all requests by one step.

It knows token ids only: text, stop strings and threads are stream.py's. It is not
safe to call from several threads; stream.py calls it from one. Imported by stream
and llama.

What goes wrong in one request (a logit that is not finite, a logits processor that
raises) ends that request. What goes wrong in a step as a whole (the file changed)
ends the requests of that step. Neither ends the engine.
"""
import contextlib
import heapq
import os
import time

from .answer import Request
from .cache import Cache
from .errors import DeadlineError, StoppedError
from .plan import Seq, Step
from .schedule import Scheduler
from .sequences import DONE

# While others decode or wait, prompts are cut so that a step takes about this long, or twice what a step without them takes:
# where reading the weights alone takes half a second, pieces of 8 rows would make a prompt of 1,000 tokens last a minute.
STEP_SECONDS = 0.1

# From so many rows on a step is bound by arithmetic, below by reading the weights.
BATCH_ROWS = 8

# Where cores differ, slow ones join from here on: parts of a matrix are 32 rows then (csrc/exec_mm.c), and below larger, so that
# the last one on a slow core costs more than it brought (an RK3588 would reach 0.8 of what its fast cores do alone).
UNEQUAL_ROWS = 64


class Engine:
    def __init__(self, program, *, n_pages, n_threads, n_threads_batch=None, limit=None, cpus=None, profile=False, reuse=True,
                 guesses=None):
        """Opens the program: makes its threads and its (untouched) memory. n_threads_batch: threads of steps
        of BATCH_ROWS (or UNEQUAL_ROWS) rows and more; None: n_threads. limit() is asked before each step for the most threads it may
        take (machine.CpuLimit); cpus: where each thread may run (machine.binding), the first the one that steps.
        reuse: keep what was computed for prompts that begin alike. guesses: what tries to know tokens before they are
        computed: propose(requests, room) sets their seq.draft, measured(rows, seconds) and verified(request, proposed,
        accepted) tell what came of it; close() ends it."""
        self.program = program
        self.n_ctx = program.n_ctx
        self.n_threads, self.n_threads_batch = n_threads, n_threads_batch or n_threads
        self._limit, self._cpus = limit, cpus
        program.open(pages=list(n_pages), n_threads=max(self.n_threads, self.n_threads_batch), profile=profile, cpus=cpus)
        # What a token is depends on what comes after it, where attention sees that: nothing is kept for another sequence.
        self.cache = Cache([g.window or 0 for g in program.groups], n_pages, n_slots=program.n_slots, reuse=reuse and not program.both)
        self.scheduler = Scheduler(self.cache, max_seqs=program.max_seqs, max_tokens=program.max_tokens,
                                   max_wanted=program.max_wanted, whole=program.both)
        self.current = ()            # requests of the step that runs now
        self.fault = None            # what ended the last step, if it did not run
        self.guesses = guesses
        self.n_ended = 0             # requests, so far
        self._deadlines = []         # (moment, number, request), a heap
        self._n_timed = 64           # requests in it when it was last cleared of those that had ended
        self.counters = dict.fromkeys(("steps", "prompt_tokens", "generated_tokens", "proposed", "accepted"), 0)
        self._decode_seconds = 0.0   # of a step without prompts, of late
        self._row_seconds = None     # that a row of a prompt adds

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
        try:
            request.begin(self.n_ctx)
        except BaseException as e:           # a grammar that breaks breaks its own request
            self._end(request, error=e)
            return
        self.scheduler.add(request.seq)
        if request.deadline is not None:
            heapq.heappush(self._deadlines, (request.deadline, request.seq.age, request))
            if len(self._deadlines) > 2 * self._n_timed:     # those that ended early are not kept until their time
                self._deadlines = [d for d in self._deadlines if not d[2].done]
                heapq.heapify(self._deadlines)
                self._n_timed = max(64, len(self._deadlines))

    def cancel(self, request: Request, error=None) -> None:
        """Ends a request between steps, with no finish_reason."""
        if not request.done:
            self._end(request, error=error)

    def stats(self) -> dict:
        """Integers: what runs and waits, pages per group, slots where the model has state, counters."""
        cache, scheduler = self.cache, self.scheduler
        slots = dict(zip(("slots_used", "slots_cached"), cache.slots), slots_total=cache.n_slots) if cache.n_slots else {}
        return {"running": len(scheduler.running), "waiting": scheduler.n_waiting, "pages_total": list(cache.n_pages),
                "pages_used": list(cache.used), "pages_cached": list(cache.cached), "pages_free": list(cache.free), **slots, **self.counters,
                "cached_tokens": scheduler.n_cached, "preemptions": scheduler.n_preempted, "evictions": cache.evictions}

    def step(self) -> None:
        """Schedule, run, sample, commit."""
        if self._deadlines:
            self._pass_deadlines()
        if self.guesses is not None:
            self._guess()
        chunks = self.scheduler.next_step(self._prompt_rows())
        if not chunks:
            return
        chunks.sort(key=lambda c: c.seq.owner.hidden)    # those whose rows go through the head come first
        tokens, seqs, wanted, n_hidden = [], [], [], 0
        for c in chunks:
            n_hidden += c.n_wanted if c.seq.owner.hidden else 0
            tokens += c.tokens()
            wanted.extend(range(len(tokens) - c.n_wanted, len(tokens)))
            table = c.seq.table
            saves = sorted(item for item in table.states.items() if item[0] > c.start) if table.states else ()
            seqs.append(Seq(c.start, c.count, table.pages, table.states.get(c.start, -1), saves))
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
            logits = self.program.run(Step(tokens, seqs, wanted, self.scheduler.copies, n_hidden=n_hidden, n_threads=n_threads))
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
        now = time.monotonic()
        self._measure(chunks, len(tokens), now - begin)
        self.scheduler.commit(chunks)
        i = 0
        for c in chunks:
            if c.n_wanted:
                request = c.seq.owner
                try:
                    if request.prompted is None:
                        request.prompted = now
                        self.counters["prompt_tokens"] += len(request.prompt)
                    if request.on_row is not None:
                        self._show(request, c, logits, i)
                    else:
                        self._answer(request, c, logits, i)
                except BaseException as e:     # also SystemExit from a processor: it must not end the others' engine
                    self._end(request, error=e)
                i += c.n_wanted

    def close(self) -> None:
        """Ends every request that is left and gives back threads and memory."""
        if self.guesses is not None:
            self.guesses.close()
        self.program.close()

    # ---- how -------------------------------------------------------------------

    def _prompt_rows(self):
        if self._row_seconds is None:
            return None
        room = max(STEP_SECONDS - self._decode_seconds, self._decode_seconds)
        return max(8, int(room / self._row_seconds))

    def _measure(self, chunks, rows: int, seconds: float) -> None:
        self.counters["steps"] += 1
        if any(c.count - c.n_draft > 1 for c in chunks):
            old = self._row_seconds
            if old is None or rows >= BATCH_ROWS:        # fewer say more about the weights than about rows
                each = max(seconds - self._decode_seconds, 0.1 * seconds, 1e-6) / rows
                self._row_seconds = each if old is None else 0.5 * (old + each)
            return
        self._decode_seconds += 0.2 * (seconds - self._decode_seconds)
        if self.guesses is not None:
            self.guesses.measured(rows, seconds)

    def _pass_deadlines(self) -> None:
        now = time.monotonic()
        while self._deadlines and self._deadlines[0][0] <= now:
            request = heapq.heappop(self._deadlines)[2]
            if request.done:
                continue
            if request.tokens:
                self._end(request, "deadline")
            else:
                self._end(request, error=DeadlineError(f"the deadline of {max(0.0, request.deadline - request.added):.3g} s passed before the first token"))

    def _guess(self) -> None:
        """Guesses for a step that only decodes; one that holds prompts has no time for them."""
        scheduler = self.scheduler
        running = scheduler.running
        if running and all(s.left == 1 for s in running):
            room = min(scheduler.max_tokens, scheduler.max_wanted) - len(running)
            if room > 0:
                for s in running:
                    s.draft = []     # of a step that did not run
                self.guesses.propose([s.owner for s in running if s.owner.sampler is not None], room)

    def _show(self, request: Request, chunk, logits, i: int) -> None:
        first = chunk.start + chunk.count - chunk.n_wanted
        for j in range(chunk.n_wanted):
            request.on_row(logits, i + j, first + j)
        if request.seq.computed == len(request.prompt):
            self._end(request, "stop")

    def _answer(self, request: Request, chunk, logits, i: int) -> None:
        """The rows of a request, in order, as long as the tokens they were computed from are the answer's."""
        seq, had = request.seq, len(request.tokens)
        draft, accepted = seq.draft if chunk.n_draft else (), 0
        position = chunk.start + chunk.count - chunk.n_wanted
        certain = chunk.start + chunk.count - chunk.n_draft - 1      # position of the last token that was no guess
        seq.draft = []
        try:
            while True:
                reason = request.row(logits.address(i), position)
                if reason is not None:
                    self._end(request, reason)
                    break
                position, i = position + 1, i + 1
                if position == chunk.start + chunk.count:
                    break
                if position > certain:
                    if draft[position - certain - 1] != seq.tokens[position]:
                        break
                    self.scheduler.accept(seq, 1)
                    accepted += 1
        finally:
            counters = self.counters
            counters["generated_tokens"] += len(request.tokens) - had
            if draft:
                counters["proposed"] += len(draft)
                counters["accepted"] += accepted
                self.guesses.verified(request, len(draft), accepted)

    def _end(self, request: Request, finish_reason=None, error=None) -> None:
        if request.done:
            return
        request.finish_reason, request.error = finish_reason, error
        request.ended = time.monotonic()
        self.n_ended += 1
        if request.seq.state != DONE:
            self.scheduler.remove(request.seq)
        if request.on_end is not None:
            request.on_end()

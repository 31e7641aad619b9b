"""AsyncLlama: a Llama for asyncio. The same engine thread, awaited instead of waited for.

    async with AsyncLlama("smollm2") as llm:
        print(await llm.chat(messages))
        async for piece in llm.generate("Once upon a time", stream=True):
            print(piece, end="")

Nothing that takes long runs on the event loop: opening a model, templates, tokenizing and compiling grammars go to
a few threads; tokens come from the engine thread with one call_soon_threadsafe. Whatever is cancelled or dropped
ends its request: the task that awaits an answer, an iterator that nobody holds any more. An answer belongs to the
event loop that asked for it; several loops may share one AsyncLlama, each with its own answers.

Not the scheduler and not a server. Imported by serve and by users as pyengine.AsyncLlama.
"""
import asyncio
import contextlib
import functools
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

from . import embed as embedding
from .llama import Llama

WORKERS = 4                # threads for what is not the model's own work; more would only share the same cores


class AsyncLlama:
    """model: a path or catalog name, opened by `async with` or the first call with the further arguments of
    Llama and closed by close(); or a Llama, which stays its owner's to close."""

    def __init__(self, model, **settings):
        self._given = model
        self._settings = settings
        self._llama = model if isinstance(model, Llama) else None
        self._own = self._llama is None
        self._opening = None         # a future of threads: one of asyncio's belongs to the loop that made it
        self._lock = threading.Lock()
        self._observe = None
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="pyengine-aio")
        if not self._own and settings:
            raise TypeError(f"AsyncLlama over an open Llama takes no settings, found {', '.join(sorted(settings))}")

    # ---- answers -----------------------------------------------------------------

    def generate(self, prompt=None, *, stream=False, **parameters):
        """As Llama.generate(). await it for the Completion (a list of them for several prompts or n > 1); with
        stream=True it is an asynchronous iterator of str pieces of one answer, with `result` at its end."""
        return self._answer(functools.partial(_generate, prompt), parameters, stream)

    def chat(self, messages, *, stream=False, tools=None, documents=None, chat_template=None, continue_final_message=False,
             template_variables=None, **parameters):
        """As Llama.chat(), awaited or iterated like generate()."""
        how = {"tools": tools, "documents": documents, "chat_template": chat_template, "continue_final_message": continue_final_message}
        return self._answer(functools.partial(_chat, messages, template_variables, how), parameters, stream)

    async def start(self, prompts, **parameters) -> list:
        """Starts what Llama.start() starts and returns an Answer for each of its jobs, prompt-major."""
        return (await self._start(lambda llama: (prompts, False), parameters))[0]

    async def tokenize(self, text, **options) -> list:
        return await self._call("tokenize", text, **options)

    async def detokenize(self, tokens, **options) -> str:
        return await self._call("detokenize", tokens, **options)

    async def prompt_logprobs(self, tokens, top=0, **parameters) -> list:
        """What Llama.start_prompt_logprobs() finds."""
        def begin(llama, notify):
            job, found = llama.start_prompt_logprobs(tokens, top, notify=notify, **parameters)
            return [job], found

        return (await self.run(begin))[1]

    async def embed(self, texts, *, normalize=True, dimensions=None, pooling=None, **parameters):
        """As Llama.embed(); all texts at one time."""
        llama = await self.open()
        dimensions, (texts, several) = embedding.check(llama.program, normalize, dimensions), embedding.listed(texts)
        _, pools = await self.run(lambda llama, notify: embedding.start(llama, texts, pooling, notify=notify, **parameters))
        vectors = await self.work(lambda: [pool.vector(normalize, dimensions) for pool in pools])
        return vectors if several else vectors[0]

    async def rerank(self, query, documents, *, top_n=None, **parameters) -> list:
        """As Llama.rerank(); all documents at one time."""
        _, pools = await self.run(lambda llama, notify: embedding.start_rank(llama, query, documents, notify=notify, **parameters))
        return embedding.ranked(pools, top_n)

    async def run(self, begin) -> tuple:
        """begin(llama, notify) -> (jobs, something), in a thread; returned when all jobs have ended, whose first error is raised."""
        llama = await self.open()
        bells = _Bells(asyncio.get_running_loop())
        jobs, found = await self._begun(lambda: begin(llama, bells.ring))
        answers = [Answer(job) for job in jobs]
        bells.hang(answers)
        await gather(answers)
        return jobs, found

    async def chat_tokens(self, messages, template_variables=None, add_generation_prompt=True, **how) -> list:
        return await self._call("chat_tokens", messages, template_variables, add_generation_prompt, **how)

    async def work(self, function, *args, **options):
        """function(*args, **options) in a thread: for what would hold up the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, functools.partial(function, *args, **options))

    # ---- facts and the end -----------------------------------------------------------

    @property
    def llama(self) -> Llama:
        """The model itself, once it is open."""
        if self._llama is None:
            raise RuntimeError("the model is not open yet: use `async with`, or await open()")
        return self._llama

    async def open(self) -> Llama:
        """The model, opened if it is not open yet. What fails is tried again by the next call."""
        while self._llama is None:
            with self._lock:
                if self._llama is not None:
                    break
                if self._opening is None:
                    self._opening = self._pool.submit(Llama, self._given, **self._settings)
                opening = self._opening
            try:
                # Whoever is cancelled leaves the others waiting for the same model.
                llama = await asyncio.shield(asyncio.wrap_future(opening))
            except BaseException:
                with self._lock:
                    if opening.done() and self._opening is opening:
                        self._opening = None
                raise
            with self._lock:
                self._llama, self._opening = llama, None
        return self._llama

    async def close(self) -> None:
        """Ends what runs and closes the model if it was opened here. Idempotent."""
        if self._opening is not None:
            with contextlib.suppress(Exception):
                await self.open()
        if self._own and self._llama is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._llama.close)
        self._pool.shutdown(wait=False)

    async def __aenter__(self):
        await self.open()
        return self

    async def __aexit__(self, *exc) -> None:
        await self.close()

    def observe(self, function) -> None:
        """function(answer) is called, on the event loop, whenever an Answer has been given to its end."""
        self._observe = function

    # ---- how ---------------------------------------------------------------------

    async def _call(self, name, *args, **options):
        llama = await self.open()
        return await self.work(getattr(llama, name), *args, **options)

    def _answer(self, prepare, parameters, stream):
        if stream:
            return AsyncStream(self._start(prepare, parameters))
        return self._complete(prepare, parameters)

    async def _complete(self, prepare, parameters):
        answers, several = await self._start(prepare, parameters)
        out = await gather(answers)
        return out if several or len(out) > 1 or parameters.get("n", 1) > 1 else out[0]

    async def _start(self, prepare, parameters):
        """prepare(llama) -> (prompts, several), in a thread together with Llama.start()."""
        llama = await self.open()
        loop = asyncio.get_running_loop()
        bells = _Bells(loop)

        def begin():
            prompts, several = prepare(llama)
            jobs = llama.start(prompts, notify=bells.ring, **parameters)
            return jobs, several

        jobs, several = await self._begun(begin)
        answers = [Answer(job, self._observe) for job in jobs]
        bells.hang(answers)
        return answers, several

    async def _begun(self, begin):
        """begin() -> (jobs, something), in a thread. Being cancelled ends what it starts."""
        begun = asyncio.get_running_loop().run_in_executor(self._pool, begin)
        try:
            return await asyncio.shield(begun)
        except asyncio.CancelledError:
            begun.add_done_callback(_cancel_all)       # it may be computing already
            raise


class _Bells:
    """Tells the answers of one call, on their event loop, that the engine thread has something for them."""

    def __init__(self, loop):
        self._loop = loop
        self._events = {}            # id of a job -> the event of its answer, which nothing here keeps alive
        self._early = set()          # ids of jobs that rang before their answers were made

    def hang(self, answers) -> None:
        for answer in answers:
            self._events[id(answer.job)] = answer._event
            if id(answer.job) in self._early:
                answer._event.set()

    def ring(self, job) -> None:
        """On the engine thread."""
        with contextlib.suppress(RuntimeError):        # the loop has been closed: nobody waits there any more
            self._loop.call_soon_threadsafe(self._wake, id(job))

    def _wake(self, job_id) -> None:
        event = self._events.get(job_id)
        if event is None:
            self._early.add(job_id)
        else:
            event.set()


def _cancel_all(begun) -> None:
    if not begun.cancelled() and begun.exception() is None:
        for job in begun.result()[0]:
            job.cancel()


class Answer:
    """One answer while it comes: `async for piece in answer` gives stream.Piece after stream.Piece, `await answer`
    its Completion. Either raises what went wrong, and both end the request when their task is cancelled."""

    def __init__(self, job, observe=None):
        self.job = job
        self.arrivals = []           # (monotonic seconds, tokens) of each piece, for metrics
        self._event = asyncio.Event()
        self._pieces = []            # taken and not yet given, the next one last
        self._observe = observe
        self._finalize = weakref.finalize(self, job.cancel)
        self._finalize.atexit = False

    def __aiter__(self):
        return self

    async def __anext__(self):
        while not self._pieces:
            if not await self._more():
                raise StopAsyncIteration
        return self._pieces.pop()

    def __await__(self):
        return self.result().__await__()

    async def result(self):
        # Nothing is taken before the end, so the engine's thread rings twice, not for every token.
        while not self.job.ended.is_set():
            self._event.clear()
            if not self.job.ended.is_set():
                await self._news()
        self._take()
        return self._end()

    def take(self) -> list:
        """The pieces that are there now, without waiting."""
        self._take()
        out = self._pieces[::-1]
        self._pieces.clear()
        return out

    def cancel(self) -> None:
        """Ends the request. What it has come to so far is still given."""
        self.job.cancel()

    async def _more(self) -> bool:
        """Waits for the next pieces; false at the end."""
        while True:
            self._event.clear()
            ended = self.job.ended.is_set()           # read before take(): what came until then is in it
            if self._take():
                return True
            if ended:
                self._end()
                return False
            await self._news()

    async def _news(self) -> None:
        try:
            await self._event.wait()
        except asyncio.CancelledError:
            self.job.cancel()
            self._finish()
            raise

    def _end(self):
        self._finish()
        if self.job.error is not None:
            raise self.job.error
        return self.job.result

    def _take(self) -> bool:
        new = self.job.take()
        if new:
            self._pieces[:0] = new[::-1]
            if self._observe is not None:
                self.arrivals += [(piece.at, len(piece.tokens)) for piece in new if piece.tokens]
        return bool(new)

    def _finish(self) -> None:
        self._finalize.detach()
        if self._observe is not None:
            observe, self._observe = self._observe, None
            observe(self)


class AsyncStream:
    """The text of one answer, piece by piece; `result` is its Completion after the last. aclose(), leaving an
    `async with`, cancelling the task or dropping the iterator ends the request."""

    def __init__(self, starting):
        self._starting = starting
        self._answer = None
        self._closed = False

    def __aiter__(self):
        return self

    async def __anext__(self) -> str:
        if self._closed:
            raise StopAsyncIteration
        if self._answer is None:
            starting, self._starting = self._starting, None
            if starting is None:         # it failed, which was raised
                raise StopAsyncIteration
            answers, _ = await starting
            if len(answers) != 1:
                for answer in answers:
                    answer.cancel()
                raise TypeError(f"stream=True: {len(answers)} answers at once, expected one: use start(), or one stream for each")
            self._answer = answers[0]
        while True:
            piece = await self._answer.__anext__()
            if piece.text:
                return piece.text

    @property
    def result(self):
        job = None if self._answer is None else self._answer.job
        return job.result if job is not None and job.ended.is_set() and job.error is None else None

    async def aclose(self) -> None:
        """Ends the request and waits until it has ended; `result` is what there is of the answer."""
        self._closed = True
        if self._starting is not None:
            self._starting.close()
            self._starting = None
        if self._answer is not None:
            self._answer.cancel()
            with contextlib.suppress(Exception):
                await self._answer.result()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exc) -> None:
        await self.aclose()

    def __del__(self):
        if self._starting is not None:
            self._starting.close()        # never begun


async def gather(answers) -> list:
    """All Completions in order; the first error, or being cancelled, ends the others."""
    try:
        return [await answer for answer in answers]
    except BaseException:
        for answer in answers:
            answer.cancel()
        raise


async def merged(answers):
    """(i, piece) of answers[i] as they come, and (i, None) when it has ended. An error ends the others."""
    if len(answers) == 1:            # no task for each piece
        try:
            async for piece in answers[0]:
                yield 0, piece
            yield 0, None
        finally:
            answers[0].cancel()      # of no effect at its end
        return
    tasks = {asyncio.ensure_future(answer._more()): i for i, answer in enumerate(answers)}
    try:
        while tasks:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=tasks.get):
                i = tasks[task]
                more = task.result()
                del tasks[task]
                for piece in answers[i].take():
                    yield i, piece
                if more:
                    tasks[asyncio.ensure_future(answers[i]._more())] = i
                else:
                    yield i, None
    finally:
        for task in tasks:
            task.cancel()
            if task.done() and not task.cancelled():
                task.exception()         # the first error was raised; the others are of the same end
        for answer in answers:
            if not answer.job.ended.is_set():
                answer.cancel()


def _generate(prompt, llama):
    return llama.prompts(prompt)


def _chat(messages, template_variables, how, llama):
    return [llama.chat_tokens(messages, template_variables, **how)], False

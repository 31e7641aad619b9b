"""Faults of requests that no other file shows, through Llama and the engine: faults.md 93, 104, 105, 112, 113, 115, 116, 119, 120, 124, 125, 129."""
import gc
import random
import threading
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyengine
from pyengine import fit, plan
from pyengine.engine import Engine, Request
from pyengine.gguf import GGUF
from pyengine.sampling import Params, Sampler
from pyengine.tokenizer.decode import Decoder
from tiny_gguf import CHATML, Spec, write

ENDLESS = dict(ignore_eos=True, temperature=0.0)
N_VOCAB = 331


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("tiny") / "model.gguf", Spec(n_vocab=N_VOCAB, seed=3, chat_template=CHATML))


@pytest.fixture(scope="module")
def model(path):
    with pyengine.Llama(path, n_ctx=512, n_threads=2, n_batch=64, max_seqs=4) as llm:
        yield llm


def settled(llm):
    stats = llm.call(llm.stats)
    return not stats["running"] and not stats["waiting"] and not any(stats["pages_used"])


# ---- 93: prompts far too long -----------------------------------------------------------


@pytest.mark.parametrize("text", ["a " * 4_000_000, "\n" * 8_000_000, "歪" * 2_600_000, "x" * 8_000_000])
def test_a_prompt_far_too_long_is_refused_without_its_tokens(model, text, monkeypatch):
    """8 MB took 100 s, in which nothing else ran: now nothing of it becomes a token."""
    monkeypatch.setattr(model.tokenizer, "encode", None)
    with pytest.raises(pyengine.ContextError) as e:
        model.generate(text)
    assert e.value.n_ctx == 512 < e.value.n_prompt and "at least" in str(e.value)
    with pytest.raises(pyengine.ContextError):
        model.chat([{"role": "user", "content": text[:2_000_000]}])


def test_no_text_that_fits_is_refused_unseen(real_model):
    """The bound is never more than what a text becomes, not even of the longest tokens there are."""
    for name in ("smollm2", "gemma-3-270m"):
        with GGUF(real_model(name)) as gguf:
            from pyengine import tokenizer

            t = tokenizer.load(gguf)
            longest = sorted(range(t.n_vocab), key=lambda i: len(t.piece(i, special=True)))[-200:]
            for text in [t.piece(i, special=True).decode("utf-8", "replace") * 3 for i in longest] + [" " * 5000, "the " * 999, "歪🦙" * 99, "\udcff\ud800" * 50]:
                n = len(t.encode(text, special=True, add_bos=False))
                assert t.at_least(text) <= n, text
            assert t.at_least("") == 0 and t.at_least("the " * 10_000) > 300
            t._rstrip = lambda text: True    # as phi-3 does: blanks behind its control tokens become nothing
            assert t.at_least(" \n" * 5000) == 0 < t.at_least(" a" * 5000)


# ---- 115: what can never run does not block the queue ---------------------------------------


def test_the_smallest_pool_runs_whatever_is_taken_and_the_rest_is_refused_at_once(path):
    with pyengine.Llama(path, n_ctx=256, max_seqs=4, cache_tokens=1) as llm:
        alone = llm.generate([7] * 250, max_tokens=6, **ENDLESS).tokens
        full = llm.start([[7] * 255, [8] * 255, [9] * 200], n=3, max_tokens=50, **ENDLESS)
        with pytest.raises(pyengine.ContextError):
            llm.start([[5] * 257])
        behind = llm.start([[7] * 250], max_tokens=6, **ENDLESS)
        assert all(job.ended.wait(60) and job.error is None for job in full + behind)
        assert behind[0].result.tokens == alone and [j.result.usage["total_tokens"] for j in full] == [256] * 6 + [250] * 3
        assert settled(llm)


# ---- 119: what breaks in one request is that request's -------------------------------------


class Fault(Exception):
    pass


def boom(*args, **more):
    raise Fault("injected")


class Free:
    """A constraint that allows everything."""

    complete = False

    def mask(self):
        return None

    def forced(self):
        return []

    def commit(self, token):
        pass

    def fork(self):
        return self


class Wrapped:
    """An object, but for one method."""

    def __init__(self, inner, name, method):
        self._inner = inner
        setattr(self, name, method)

    def __getattr__(self, name):
        return getattr(self._inner, name)


def break_in(where, after, job):
    """Gives a job that has not begun a fault of that name, in its `after`-th call and later ones."""
    def broken(real):
        calls = iter(range(10**9))
        return lambda *a, **k: boom() if next(calls) >= after else real(*a, **k)

    r = job.request
    if where == "sample":
        r.sampler = Wrapped(r.sampler, where, broken(r.sampler.sample))
    elif where == "on_token":
        r.on_token = broken(r.on_token)
    elif where == "decode":
        job._decoder = Wrapped(job._decoder, "push", broken(job._decoder.push))
    elif where in ("push", "flush"):
        job._stops = Wrapped(job._stops, where, broken(getattr(job._stops, where)))
    elif where == "notify":
        job.notify = broken(lambda job: None)
    elif where == "logprobs":
        job._entry = broken(job._entry)
    else:
        r.constraint = Free()
        setattr(r.constraint, where, broken(getattr(r.constraint, where)))


@pytest.mark.parametrize("where", ["sample", "on_token", "decode", "push", "flush", "notify", "logprobs", "mask", "forced", "commit"])
@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_fault_in_any_part_of_a_request_ends_that_request_only(model, monkeypatch, where, after):
    """Its company of the same steps is answered as ever, its choices and its prompt's other readers too."""
    prompts = [[5, 6, 7] * 20, [9, 8] * 40, [5, 6, 7] * 20]
    more = dict(max_tokens=12, temperature=0.9, seed=5, ignore_eos=True, logprobs=1)
    alone = [model.generate(p, **more).tokens for p in prompts]
    real = model._thread.submit

    def submit(jobs):
        break_in(where, after, jobs[0])
        real(jobs)

    company = model.start(prompts[1:2], **more)
    with monkeypatch.context() as m:
        m.setattr(model._thread, "submit", submit)
        broken, second = model.start(prompts[:1], n=2, **more)
    company += model.start(prompts[2:], **more)
    assert all(job.ended.wait(60) for job in (broken, second, *company))
    if where == "notify" or where == "flush" and after:       # nobody was told; flush is called once
        assert broken.error is None and broken.result.tokens == alone[0]
    else:
        assert isinstance(broken.error, Fault) and len(broken.request.tokens) <= after + 1 or where == "flush"
    assert [job.result.tokens for job in company] == alone[1:] and second.error is None and len(second.result.tokens) == 12
    assert model.healthy and settled(model) and model.generate(prompts[0], **more).tokens == alone[0]


@pytest.mark.parametrize("salt", ["", "\x00", "é" * 256, "../..", "None", "0", "\ud800"])
def test_any_salt_is_only_a_name(model, salt):
    """A salt is compared; it names no file and breaks nothing."""
    first = model.generate([4] * 100, max_tokens=3, salt=salt, **ENDLESS)
    again = model.generate([4] * 100, max_tokens=3, salt=salt, **ENDLESS)
    assert again.tokens == first.tokens and again.cached_tokens == 99


# ---- 112, 113: aborts -----------------------------------------------------------------------


def abort(model, rng, count):
    for _ in range(count):
        jobs = model.start([[rng.randrange(300)] * rng.choice((1, 70, 300))], n=rng.choice((1, 2, 3)), temperature=1.0, ignore_eos=True, logprobs=rng.choice((None, 1)))
        if rng.random() < 0.5:
            model.call(lambda: None)
        doomed = rng.sample(jobs, rng.randint(1, len(jobs)))
        for job in doomed:
            job.cancel()
        assert all(job.ended.wait(60) for job in doomed)
        for job in jobs:
            job.cancel()
        assert all(job.ended.wait(60) and job.error is None for job in jobs)
    assert settled(model) and not model._thread._live and model._thread._n_open == 0


def test_three_hundred_aborts_leave_nothing(model):
    """Of one answer and of several, in the queue, the prompt and the answer, the first choice before the others."""
    abort(model, random.Random(1), 300)


@pytest.mark.long
def test_ten_thousand_aborts_leave_nothing(model):
    import psutil

    me, rng, seen = psutil.Process(), random.Random(2), []
    for _ in range(10):
        abort(model, rng, 1000)
        gc.collect()
        seen.append(me.memory_info().rss)
    assert seen[-1] - seen[2] < 4 << 20, seen


def test_an_abandoned_stream_is_ended_though_the_collector_finds_it_late(model):
    """It may be found in the middle of anything, on the engine's own thread: also just when new requests are taken over."""
    thread = model._thread
    doomed = model.start([[5, 6]], **ENDLESS)[0]
    armed = []

    class New(deque):
        def extend(self, items):
            super().extend(items)
            armed.append(True)

    class Calls(deque):
        def __len__(self):
            if armed:
                armed.clear()
                thread.cancel(doomed)        # as the finalizer of a stream does
            return super().__len__()

    with thread._wake:
        real = thread._new, thread._calls
        thread._new, thread._calls = New(real[0]), Calls(real[1])
    try:
        other, = model.start([[7]], max_tokens=2, **ENDLESS)
        assert other.ended.wait(60) and doomed.ended.wait(60)
        assert doomed.result.finish_reason is None, "it ran to the context's end"
    finally:
        with thread._wake:
            thread._new, thread._calls = deque(thread._new), deque(thread._calls)


# ---- 120: a long prompt beside streams ---------------------------------------------------------


def test_a_long_prompt_takes_no_step_from_those_who_read(path):
    """While it is computed, every step gives each of the others its token."""
    with GGUF(path) as gguf:
        program = plan.compile(gguf, n_ctx=2048, max_seqs=5, max_tokens=64)
        e = Engine(program, n_pages=[5 * n for n in fit.one_sequence(program)], n_threads=2)
        sampler = Sampler(Params(temperature=0.7).validated(N_VOCAB), N_VOCAB, 1)
        readers = [Request([i + 5], sampler=sampler) for i in range(4)]
        for r in readers:
            e.add(r)
        for _ in range(4):
            e.step()
        long = Request([3 + i % 300 for i in range(2000)], sampler=sampler, max_tokens=1)
        e.add(long)
        before, steps = [len(r.tokens) for r in readers], 0
        while not long.done:
            e.step()
            steps += 1
        assert steps > 2000 / 64 and [len(r.tokens) - n for r, n in zip(readers, before)] == [steps] * 4
        for r in readers:
            e.cancel(r)
        e.close()


# ---- 124: closed while in use --------------------------------------------------------------------


@pytest.mark.parametrize("where", ["notify", "processor", "call", "threads", "collector", "collector on its thread"])
def test_closed_from_anywhere(path, where):
    """From the engine's own thread, from several threads at once, by the collector: those who wait are told, nothing is read
    that was given back."""
    llm = pyengine.Llama(path, n_ctx=2048, n_threads=2)
    others = llm.start([[5, 6, 7], [8] * 300], **ENDLESS)
    thread = llm._thread
    if where == "notify":
        others += llm.start([[9]], notify=lambda job: llm.close(), **ENDLESS)
    elif where == "processor":
        others += llm.start([[9]], processors=[lambda ids, logits: llm.close()], **ENDLESS)
    elif where == "call":
        llm.call(llm.close)
    elif where == "threads":
        threads = [threading.Thread(target=llm.close) for _ in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
            assert not t.is_alive()
    else:
        if "thread" in where:
            late = threading.Event()
            others += llm.start([[9]], processors=[lambda ids, logits: late.wait(60) and gc.collect() and None], **ENDLESS)
        ring = [llm]
        ring.append(ring)
        del ring, llm
        late.set() if "thread" in where else gc.collect()
    assert all(job.ended.wait(60) for job in others)
    assert all(isinstance(job.error, pyengine.ClosedError) for job in others)
    if "collector" in where:
        thread._thread.join(60)
        with pytest.raises(pyengine.ClosedError):
            thread.check_open()
        return
    llm.close()
    for use in (lambda: llm.generate([5]), lambda: llm.logits([5]), lambda: llm.call(lambda: None), llm.session, lambda: llm.tokenize("a")):
        with pytest.raises(pyengine.ClosedError):
            use()
    llm._thread._thread.join(60)
    assert not llm._thread._thread.is_alive()


def test_collected_in_the_middle_of_callbacks(model):
    """The collector runs in every callback, with abandoned streams in cycles for it to find."""
    want = model.generate([5, 6], max_tokens=10, **ENDLESS).tokens

    def collect(ids, logits):
        gc.collect()

    class Holder:
        pass

    for i in range(5):
        h = Holder()
        h.me, h.stream = h, model.generate([i + 10], stream=True, **ENDLESS)
        next(h.stream)
        del h
    assert model.generate([5, 6], max_tokens=10, processors=[collect], **ENDLESS).tokens == want
    gc.collect()
    model.call(lambda: None)
    assert all(job.ended.wait(60) for job in model._thread.running()) and settled(model)


# ---- 125, 129: nothing of others, nothing of before ------------------------------------------------


@pytest.mark.parametrize("arch, kv_type", [("llama", "f16"), ("gemma3", "f16"), ("llama", "q8_0"), ("llama", "q4_0")])
def test_what_a_page_held_before_is_never_seen(tmp_path, arch, kv_type):
    """Pages that nobody holds are filled with what would make every sum NaN, before the first step and between any two; some
    requests are cancelled and some given up for others."""
    heads = {} if kv_type == "f16" else dict(n_head=2, n_head_kv=1)
    with GGUF(write(tmp_path / "m.gguf", Spec(arch=arch, seed=5, n_layer=2 if arch == "llama" else 6, **heads))) as gguf:
        def run(poison):
            program = plan.compile(gguf, n_ctx=256, max_seqs=3, max_tokens=40, kv_type=kv_type)
            e = Engine(program, n_pages=[int(1.4 * n) + 1 for n in fit.one_sequence(program)], n_threads=2)
            params = Params(temperature=0.9, seed=2, logprobs=1).validated(N_VOCAB)
            kept, rng, n_poisoned = [], random.Random(4), 0
            for i in range(9):
                got = []
                r = Request([(i % 2) + 3] * rng.choice((5, 64, 90, 130)) + [i], sampler=Sampler(params, N_VOCAB, 2), max_tokens=rng.choice((20, 60)),
                            on_token=lambda s, got=got: got.append((s.token, s.logprob)))
                kept.append((r, got))
                e.add(r)
            doomed = Request([77] * 100, sampler=Sampler(params, N_VOCAB, 2))
            e.add(doomed)
            steps = 0
            while not e.idle:
                if poison:
                    n_poisoned += fill_free_pages(e)
                e.step()
                steps += 1
                if steps == 30:
                    e.cancel(doomed)
                assert steps < 3000
            assert all(r.error is None for r, _ in kept) and (n_poisoned > 100 or not poison)
            e.close()
            return [got for _, got in kept]

        assert run(True) == run(False)


def fill_free_pages(e):
    """0xFF in every byte of pages that no table and no cached prefix holds; how many."""
    n = 0
    for g, pages in enumerate(e.cache._free):
        for page in pages:
            with e.program.page(g, page) as views:
                for view in views:
                    view[:] = b"\xff" * len(view)
            n += 1
    return n


def test_125_nothing_of_one_key_reaches_another(path):
    """Markers of four keys, the same questions, a pool that keeps what was least used for a moment only, some cancelled: every answer, to the last log
    probability, is the one that an engine gives that keeps nothing."""
    keys, rng = ["", "alice", "bob", "x" * 256], random.Random(8)
    common = [11 + i % 90 for i in range(130)]
    prompts = [common[:n] + [200 + k] * 3 + common[:m] for k in range(4) for n in (0, 64, 130) for m in (1, 70)]
    more = dict(max_tokens=24, temperature=0.8, seed=6, ignore_eos=True, logprobs=1)
    with pyengine.Llama(path, n_ctx=256, n_threads=2, prefix_cache=False, speculate=None, max_seqs=1) as llm:
        want = [(c.tokens, c.text, c.logprobs) for c in (llm.generate(p, **more) for p in prompts)]
    with pyengine.Llama(path, n_ctx=256, n_threads=2, n_batch=48, max_seqs=4, cache_tokens=320) as llm:
        def ask(rng):
            for _ in range(60):
                i, k = rng.randrange(len(prompts)), rng.choice(keys)
                job, doomed = llm.start([prompts[i], prompts[rng.randrange(len(prompts))]], key=k, salt=k, **more)
                if rng.random() < 0.5:
                    doomed.cancel()
                assert job.ended.wait(60) and job.error is None
                got = job.result
                if (got.tokens, got.text, got.logprobs) != want[i]:
                    wrong.append((i, k, got))
                doomed.cancel()

        wrong = []
        threads = [threading.Thread(target=ask, args=(random.Random(rng.random()),)) for _ in range(5)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(120)
        stats = llm.call(llm.stats)
        assert not wrong and stats["evictions"] > 100 and stats["cached_tokens"] > 0, (wrong[:2], stats)


# ---- 116: a pool that is short all the time ---------------------------------------------------------


def test_a_pool_just_above_one_sequence_thrashes_nobody(path):
    """Six that each grow to the whole context: every step brings somebody forward, and the oldest is never given up."""
    with GGUF(path) as gguf:
        program = plan.compile(gguf, n_ctx=512, max_seqs=6, max_tokens=64)
        e = Engine(program, n_pages=[n + 1 for n in fit.one_sequence(program)], n_threads=2)
        sampler = Sampler(Params(temperature=0.7).validated(N_VOCAB), N_VOCAB, 1)
        requests = [Request([i + 5] * 60, sampler=sampler) for i in range(6)]
        for r in requests:
            e.add(r)
        computed, steps = 0, 0
        while not e.idle:
            oldest = next(r for r in requests if not r.done)
            before, given_up = oldest.seq.computed, oldest.seq.n_preempted
            e.step()
            steps += 1
            assert oldest.done or oldest.seq.computed > before and oldest.seq.n_preempted == given_up
            assert steps < 6 * 512
        assert [len(r.tokens) for r in requests] == [512 - 60] * 6 and e.stats()["preemptions"] > 0
        e.close()


# ---- 104, 105: characters and stop strings -----------------------------------------------------------


class Bytes:
    """A vocabulary whose tokens are any bytes."""

    def __init__(self, pieces):
        self.pieces = pieces

    def piece(self, i, special=False):
        return self.pieces[i]

    def is_text(self, i):
        return True


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=5), max_size=30) | st.text("aé歪🦙", max_size=12).map(lambda t: [bytes((b,)) for b in t.encode()]))
def test_f105_no_more_is_held_back_than_the_beginning_of_a_character(pieces):
    """At most 3 bytes; a whole character never waits, and bytes that are none become U+FFFD where they are."""
    d, sent, raw = Decoder(Bytes(pieces), False, False), "", b""
    for i, piece in enumerate(pieces):
        sent += d.push(i)
        raw += piece
        whole = raw.decode("utf-8", "replace")
        assert whole.startswith(sent) and whole[len(sent):] in ("", "\ufffd", "\ufffd" * 2, "\ufffd" * 3)
        assert sent == whole or raw[-1] >= 0x80
    assert sent + d.flush() == raw.decode("utf-8", "replace")


@pytest.mark.parametrize("stop, text", [("歪", ","), (",歪", ""), ("歪,", ","), ("x歪", ",歪,"), ("\ufffd", ",歪,")])
def test_f104_a_stop_string_of_characters_that_are_halves_of_tokens(real_model, stop, text):
    """28 is a comma, 34978 and 120 the halves of 歪: the stop string begins, ends and lies within what no token is."""
    ids = [28, 34978, 120, 28]
    with pyengine.Llama(real_model("smollm2"), n_ctx=64) as llm:
        def only(seen, logits):
            logits[:] = -float("inf")
            logits[ids[len(seen) - 1]] = 0.0

        more = dict(max_tokens=4, stop=stop, processors=[only])
        whole = llm.generate([1], **more)
        pieces = list(llm.generate([1], stream=True, **more))
        assert whole.text == "".join(pieces) == text and (whole.stop == stop) == (text != ",歪,")

"""Stop strings, the engine thread, iterators."""
import gc
import os
import signal
import threading
import time

import pytest
from hypothesis import given, settings, strategies as st

import pyengine
from pyengine.stream import StopStrings
from tiny_gguf import Spec, write


# ---- stop strings --------------------------------------------------------------------

@given(text=st.text("ab\u00e9 ", max_size=30), stops=st.lists(st.text("ab\u00e9", min_size=1, max_size=5), max_size=4),
       cuts=st.lists(st.integers(0, 30), max_size=8))
@settings(max_examples=500, deadline=None)
def test_pieces_do_not_matter(text, stops, cuts):
    """Case 42: whatever the pieces, the text ends before the first stop string and nothing of it is sent."""
    cuts = [0, *sorted(min(c, len(text)) for c in cuts), len(text)]
    filter_ = StopStrings(stops)
    out = []
    for a, b in zip(cuts, cuts[1:]):
        out.append(filter_.push(text[a:b]))
    out.append(filter_.flush())
    found = [i for i in (text.find(s) for s in stops) if i >= 0]
    if not found:
        assert "".join(out) == text and not filter_.met
    else:
        # A stop string that is complete earlier wins, even if another began before it.
        ends = [(text.find(s) + len(s), text.find(s)) for s in stops if s in text]
        assert filter_.met
        assert len("".join(out)) in {at for _, at in ends}
        assert text.startswith("".join(out))


def test_what_is_held_back_comes_at_the_end():
    s = StopStrings(["xyz"])
    assert [s.push("axy"), s.push("xy"), s.flush()] == ["a", "xy", "xy"]
    assert not s.met


def test_nothing_comes_after_a_stop_string():
    s = StopStrings(["xy"])
    assert [s.push("ax"), s.push("yb"), s.push("c"), s.flush()] == ["a", "", "", ""]
    assert s.met


# ---- the engine thread -----------------------------------------------------------------

@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny") / "model.gguf"
    write(path, Spec(n_vocab=331, seed=3))
    with pyengine.Llama(path, n_ctx=2048, n_threads=2, n_batch=64) as llm:
        yield llm


def idle(model, seconds=20):
    end = time.monotonic() + seconds
    while not (model._thread.engine.idle and not model._thread._live):
        assert time.monotonic() < end, "a request goes on that nobody waits for"
        time.sleep(0.01)
    return True


ENDLESS = dict(ignore_eos=True, temperature=0.0)


def test_stream_equals_answer(model):
    for prompt in (None, "ab", [5, 9, 30]):
        whole = model.generate(prompt, max_tokens=40, **ENDLESS)
        stream = model.generate(prompt, max_tokens=40, stream=True, **ENDLESS)
        assert stream.result is None or "".join([]) == ""
        pieces = list(stream)
        assert "".join(pieces) == whole.text == stream.result.text
        assert stream.result.tokens == whole.tokens and len(whole.tokens) == 40
        assert next(stream, "end") == "end"


def test_dropped_iterator_ends_its_request(model):
    stream = model.generate("ab", stream=True, **ENDLESS)
    next(stream)
    del stream
    gc.collect()
    assert idle(model)


def test_closed_stream_keeps_what_there_is(model):
    with model.generate("ab", stream=True, **ENDLESS) as stream:
        first = next(stream)
        stream.close()
        stream.close()
    assert stream.result.text.startswith(first) and stream.result.finish_reason is None
    assert list(stream) == []
    assert idle(model)


def test_many_threads_get_what_one_would(model):
    prompts = [[5 + i, 40 + i, 7] * (1 + 3 * i) for i in range(7)]
    alone = [model.generate(p, max_tokens=30, **ENDLESS).tokens for p in prompts]
    got = {}

    def ask(i):
        got[i] = model.generate(prompts[i], max_tokens=30, **ENDLESS).tokens

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(7)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert [got[i] for i in range(7)] == alone
    assert [c.tokens for c in model.generate(prompts, max_tokens=30, **ENDLESS)] == alone


def test_one_request_fails_alone(model):
    """A logits processor that raises ends its own request: others of the same steps do not notice."""
    expected = model.generate("ab", max_tokens=60, **ENDLESS).tokens
    stream = model.generate("ab", max_tokens=60, stream=True, **ENDLESS)
    next(stream)

    def broken(ids, logits):
        if len(ids) > 6:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        model.generate([5, 6], processors=[broken], **ENDLESS)

    def leaves(ids, logits):
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        model.generate([5, 6], processors=[leaves], **ENDLESS)
    list(stream)
    assert stream.result.tokens == expected


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_ctrl_c_ends_the_request(model):
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        while True:
            model.generate(["ab"] * 4, **ENDLESS)
    assert idle(model)


def test_streams_of_a_list(model):
    streams = model.generate([[5, 6], [7, 8]], max_tokens=10, stream=True, **ENDLESS)
    texts = ["".join(s) for s in streams]
    assert texts == [c.text for c in model.generate([[5, 6], [7, 8]], max_tokens=10, **ENDLESS)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_is_told(model):
    model.generate("ab", max_tokens=2, **ENDLESS)       # the thread and the pool exist
    stream = model.generate("ab", stream=True, **ENDLESS)
    next(stream)
    read, write_ = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = []
        for attempt in (lambda: model.generate("ab"), lambda: list(stream), lambda: model.tokenize("ab")):
            try:
                attempt()
                said.append("nothing")
            except pyengine.ClosedError as e:
                said.append("told" if "fork" in str(e) else str(e))
            except BaseException as e:
                said.append(repr(e))
        stream.close()
        model.close()
        os.write(write_, ",".join(said).encode())
        os._exit(0)
    os.close(write_)
    with os.fdopen(read) as f:
        assert f.read() == "told,told,told"
    assert os.waitpid(pid, 0)[1] == 0
    stream.close()
    assert model.generate("ab", max_tokens=2, **ENDLESS).usage["completion_tokens"] == 2


def test_close_ends_what_runs(tmp_path):
    """Case 119: idempotent; use afterwards is an exception."""
    write(tmp_path / "m.gguf", Spec())
    before = threading.active_count()
    llm = pyengine.Llama(tmp_path / "m.gguf", n_ctx=2048)
    stream = llm.generate("ab", stream=True, **ENDLESS)
    next(stream)
    llm.close()
    llm.close()
    with pytest.raises(pyengine.ClosedError):
        for _ in stream:
            pass
    for use in (llm.generate, lambda: llm.tokenize("a"), lambda: llm.logits([1]), lambda: llm.detokenize([1])):
        with pytest.raises(pyengine.ClosedError):
            use()
    assert threading.active_count() == before

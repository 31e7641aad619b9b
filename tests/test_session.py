"""Sessions and their files: the bytes of one who computed everything, and refusal of whatever is not whole and ours."""
import json
import os
import struct
import threading
import warnings

import pytest

from pyengine import Llama, RequestError, SessionError
from pyengine import statefile
from pyengine.cache import PAGE
from serve_process import Server
from tiny_gguf import Spec, write

SAMPLED = dict(temperature=0.8, seed=7, max_tokens=12)
KINDS = {"llama": dict(), "gemma3": dict(arch="gemma3", n_layer=6, window=70)}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, spec in KINDS.items():
        write(folder / f"{name}.gguf", Spec(seed=3, n_ctx_train=1024, head_dim=32, **spec))
    write(folder / "other.gguf", Spec(seed=4, n_ctx_train=1024, head_dim=32))
    return lambda name: folder / f"{name}.gguf"


def prompt(n, first=0):
    return [3 + (first + i * i) % 40 for i in range(n)]


def alone(path, tokens, **options):
    with Llama(path, prefix_cache=False, n_ctx=1024) as llm:
        return llm.generate(tokens, **{**SAMPLED, **options}).tokens


# ---- in memory ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_a_session_answers_as_if_it_were_computed_from_nothing(models, name):
    with Llama(models(name), n_ctx=1024) as llm:
        s = llm.session(prompt(200))
        first = s.generate(**SAMPLED)
        s.append(prompt(70, 5))
        before = s.tokens
        second = s.generate(**SAMPLED)
        assert second.cached_tokens >= 200, "only what is new is computed"
        a, b = s.fork(2)
        a.append([9])
        b.rewind(150).append([11] * 30)
        third, fourth = a.generate(**SAMPLED), b.generate(**SAMPLED)
        assert fourth.cached_tokens == 150
        assert s.tokens == before + second.tokens and a.tokens == s.tokens + [9] + third.tokens
        assert b.tokens == prompt(150) + [11] * 30 + fourth.tokens
    assert first.tokens == alone(models(name), prompt(200))
    assert second.tokens == alone(models(name), before)
    assert third.tokens == alone(models(name), before + second.tokens + [9])
    assert fourth.tokens == alone(models(name), prompt(150) + [11] * 30)


def test_streams_are_appended_when_they_end(models):
    with Llama(models("llama"), n_ctx=512) as llm:
        s = llm.session(prompt(20))
        whole = s.fork()[0].generate(**SAMPLED)
        with s.generate(stream=True, **SAMPLED) as answer:
            next(answer, None)
            with pytest.raises(RequestError, match="has not ended"):
                s.append([1])
            text = "".join(answer)
        assert whole.text.endswith(text) and s.tokens == prompt(20) + whole.tokens == prompt(20) + answer.result.tokens
        abandoned = s.generate(stream=True, **SAMPLED)
        del abandoned
        assert s.tokens == prompt(20) + whole.tokens
        s.append([1])


def test_who_waited_for_a_call_finds_the_answer_it_began(models):
    with Llama(models("llama"), n_ctx=512) as llm:
        s, generate = llm.session(prompt(20)), llm.generate
        inside, go, refused = threading.Event(), threading.Event(), []

        def held(*args, **options):
            inside.set()
            go.wait(20)
            return generate(*args, **options)

        def append():
            try:
                s.append([1])
            except RequestError as e:
                refused.append(e)

        llm.generate, answers = held, []
        first, second = threading.Thread(target=lambda: answers.append(s.generate(stream=True, **SAMPLED))), threading.Thread(target=append)
        first.start()
        assert inside.wait(20)
        second.start()
        second.join(0.1)                 # it stands at the lock
        go.set()
        first.join(20)
        second.join(20)
        assert len(refused) == 1 and s.tokens == prompt(20)
        "".join(answers[0])
        assert s.tokens == prompt(20) + answers[0].result.tokens
        llm.generate = generate


def test_what_a_session_refuses(models):
    with Llama(models("llama"), n_ctx=512) as llm:
        s = llm.session()
        for call in (lambda: s.append(5), lambda: s.append([-1]), lambda: s.append([10**9]), lambda: s.rewind(1), lambda: s.rewind(-1),
                     lambda: s.rewind(True), lambda: s.generate(n=2), lambda: s.fork(0), lambda: s.fork("2"), lambda: s.generate(salt="x"), lambda: llm.session(salt=3)):
            with pytest.raises(RequestError):
                call()
        assert len(s) == 0
        with pytest.raises(TypeError):
            s.generate(max_token=3)
        bos = llm.session().generate(**SAMPLED)
        assert s.generate(**SAMPLED).tokens == bos.tokens and len(s) == 1 + len(bos.tokens)


def test_salts_share_nothing(models):
    with Llama(models("llama"), n_ctx=512) as llm:
        llm.session(prompt(200), salt="a").generate(**SAMPLED)
        assert llm.session(prompt(200), salt="b").generate(**SAMPLED).cached_tokens == 0
        assert llm.session(prompt(200), salt="a").generate(**SAMPLED).cached_tokens == 199


# ---- on disk -----------------------------------------------------------------------------


@pytest.fixture
def saved(models, tmp_path):
    """A file of a session of 200 tokens and its answer, and the tokens."""
    path = tmp_path / "s.kv"
    with Llama(models("llama"), n_ctx=512) as llm:
        s = llm.session(prompt(200), key="me", salt="mine")
        s.generate(**SAMPLED)
        assert s.save(path) == os.path.getsize(path)
    return path, s.tokens


@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("name", KINDS)
def test_a_session_goes_on_in_another_process(models, name, kv_type, tmp_path):
    path = tmp_path / "s.kv"
    with Llama(models(name), n_ctx=1024, kv_type=kv_type) as llm:
        s = llm.session(prompt(300))
        s.generate(**SAMPLED)
        s.save(path)
        want = s.generate(**SAMPLED)
    with Llama(models(name), n_ctx=700, kv_type=kv_type, n_threads=1, isa="scalar") as llm:      # no part of what is compared
        s = llm.load_session(path)
        assert llm.stats()["pages_used"] == [0] * len(llm.program.groups)
        got = s.generate(**SAMPLED)
        assert (got.tokens, got.cached_tokens) == (want.tokens, len(s) - len(got.tokens) - 1)


def test_saving_computes_what_is_not_there(models, tmp_path):
    with Llama(models("llama"), n_ctx=512) as llm:
        llm.session(prompt(300)).save(tmp_path / "s.kv")
    with Llama(models("llama"), n_ctx=512) as llm:
        assert llm.load_session(tmp_path / "s.kv").generate(**SAMPLED).cached_tokens == 299


def test_long_and_short_in_any_order(models, tmp_path):
    """Case 78."""
    with Llama(models("llama"), n_ctx=512) as llm:
        for n in (300, 20):
            llm.session(prompt(n, n)).save(tmp_path / f"{n}.kv")
    for order in ((300, 20), (20, 300)):
        with Llama(models("llama"), n_ctx=512) as llm:
            sessions = [llm.load_session(tmp_path / f"{n}.kv") for n in order]
            for n, s in zip(order, sessions):
                assert s.generate(**SAMPLED).tokens == alone(models("llama"), prompt(n, n))


def test_a_file_of_another_model_or_setting_is_refused(models, saved):
    """Case 80: an exception that says what, nothing loaded, and the model is as good as before."""
    path, tokens = saved
    for name, options, what in (("other", {}, "another model.*model.tensors"), ("gemma3", {}, "another model"),
                                ("llama", dict(kv_type="q8_0"), "other settings.*settings.kv_type is 'f16', expected 'q8_0'")):
        with Llama(models(name), n_ctx=512, **options) as llm:
            with pytest.raises(SessionError, match=what):
                llm.load_session(path)
            assert sum(llm.stats()["pages_cached"]) == 0
            assert len(llm.generate(prompt(10), **SAMPLED).tokens) > 0


def test_no_byte_may_be_damaged_or_missing(models, saved, tmp_path):
    path, tokens = saved
    good = path.read_bytes()
    bad = tmp_path / "bad.kv"
    n = len(good)
    places = sorted({*range(0, 40), *range(40, n, n // 60 + 1), *range(n - 40, n)})
    with Llama(models("llama"), n_ctx=512) as llm:
        for i in places:
            bad.write_bytes(good[:i] + bytes([good[i] ^ (1 << i % 8)]) + good[i + 1:])
            with pytest.raises(SessionError):
                llm.load_session(bad)
            bad.write_bytes(good[:i])
            with pytest.raises(SessionError):
                llm.load_session(bad)
        for more in (good + b"\0", good + good, b"", b"GGUF" + good[4:]):
            bad.write_bytes(more)
            with pytest.raises(SessionError):
                llm.load_session(bad)
        assert sum(llm.stats()["pages_cached"]) == 0
        with pytest.raises(SessionError, match="regular file"):
            llm.load_session("/dev/null")
        with pytest.raises(FileNotFoundError):
            llm.load_session(tmp_path / "none.kv")
        assert llm.load_session(path).tokens == tokens


def forged(good, change):
    """The file with another header, its checksum right."""
    import hashlib

    length = struct.unpack("<Q", good[8:16])[0]
    header = json.loads(good[16:16 + length])
    header = change(header) or header
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    body = good[:8] + struct.pack("<Q", len(text)) + text + good[16 + length:-statefile.DIGEST]
    return body + hashlib.blake2b(body, digest_size=statefile.DIGEST).digest()


def test_a_header_that_was_made_to_harm_is_refused(models, saved, tmp_path):
    """The checksum is right, so only what it says can be wrong."""
    path, tokens = saved
    good, bad = path.read_bytes(), tmp_path / "bad.kv"
    assert forged(good, lambda h: None) != good      # other blanks, still right

    def record(i, place, value):
        def change(header):
            header["records"][i][place] = value
        return change

    changes = [record(0, 0, 0), record(1, 0, 1), record(1, 0, 2), record(1, 0, -2), record(0, 0, 10**30), record(0, 0, "0"), record(0, 0, True),
               record(0, 1, 1), record(0, 1, -1), record(0, 2, []), record(0, 2, [1] * 65), record(0, 2, [-1]), record(0, 2, [10**9]),
               record(0, 2, [1.5]), record(0, 2, "ab"), record(0, 2, None), record(0, 2, [1]), record(0, 3, []), record(0, 3, [False]),
               record(0, 3, [1]), record(0, 3, [True, True]), record(0, 3, None), record(0, 4, 1), lambda h: h["records"].append([]),
               lambda h: h["records"].append(h["records"][0]), lambda h: h["records"].pop() and None, lambda h: h.update(records={}),
               lambda h: h.update(keys=["a"]), lambda h: h.update(keys=[["mine"]]), lambda h: h.update(keys=None), lambda h: h.update(tokens=None),
               lambda h: h.update(tokens=[10**9]), lambda h: h.update(tokens=["a"]), lambda h: h.update(salt=5), lambda h: h.update(salt="other"),
               lambda h: h.update(key=None), lambda h: h.update(kind="prefix cache"), lambda h: h.update(model=[]), lambda h: h.pop("settings") and None,
               lambda h: [1], lambda h: b"[" * 100_000, lambda h: b"\xff", lambda h: b" "]
    with Llama(models("llama"), n_ctx=512) as llm:
        for change in changes:
            bad.write_bytes(forged(good, change))
            with pytest.raises(SessionError):
                llm.load_session(bad)
        assert sum(llm.stats()["pages_cached"]) == 0
        bad.write_bytes(forged(good, lambda h: None))
        assert llm.load_session(bad).tokens == tokens


def test_a_file_that_is_cut_while_it_is_read_leaves_nothing_behind(models, saved, monkeypatch):
    path, tokens = saved
    real = statefile.State.fill

    def fill(self, number, group, views):
        if number == 2:
            os.truncate(path, 1000)
        real(self, number, group, views)

    monkeypatch.setattr(statefile.State, "fill", fill)
    with Llama(models("llama"), n_ctx=512) as llm:
        with pytest.raises(SessionError, match="cut while"):
            llm.load_session(path)
        assert sum(llm.stats()["pages_cached"]) == sum(llm.stats()["pages_used"]) == 0
        assert llm.generate(tokens, salt="mine", **SAMPLED).cached_tokens == 0


def test_a_file_is_whole_or_not_there(models, tmp_path, monkeypatch):
    with Llama(models("llama"), n_ctx=512) as llm:
        s = llm.session(prompt(100))
        s.save(tmp_path / "s.kv")
        before = (tmp_path / "s.kv").read_bytes()
        s.append(prompt(50))

        def full(fd):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            s.save(tmp_path / "s.kv")
        assert (tmp_path / "s.kv").read_bytes() == before and os.listdir(tmp_path) == ["s.kv"]
        assert os.stat(tmp_path / "s.kv").st_mode & 0o077 == 0, "conversations are their owner's"
        with pytest.raises(FileNotFoundError):
            s.save(tmp_path / "no" / "s.kv")


def test_a_small_pool_takes_what_it_can(models, saved):
    path, tokens = saved
    with Llama(models("llama"), n_ctx=128, max_seqs=1) as llm:
        s = llm.load_session(path)
        assert sum(llm.stats()["pages_cached"]) == 128 // PAGE
        assert s.rewind(100).generate(max_tokens=5).cached_tokens == 99


# ---- the prefix cache in a file ---------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_a_system_prompt_survives_a_restart(models, name, tmp_path):
    path = tmp_path / "prefix.kv"
    system = prompt(330)
    with Llama(models(name), n_ctx=1024, prefix_file=path) as llm:       # none yet
        for i in range(3):
            llm.generate(system + [5 + i] * 20, **SAMPLED)
        llm.generate(prompt(100, 9), salt="other", **SAMPLED)
    with Llama(models(name), n_ctx=1024, prefix_file=path) as llm:
        got = llm.generate(system + [20] * 10, **SAMPLED)
        assert got.cached_tokens == 330
        assert llm.generate(prompt(100, 9), **SAMPLED).cached_tokens == 0
        assert llm.generate(prompt(100, 9), salt="other", **SAMPLED).cached_tokens == 99
        llm.close()
        llm.close()
    assert got.tokens == alone(models(name), system + [20] * 10)


def test_a_bad_prefix_file_is_left_aside_with_a_warning(models, saved, tmp_path):
    path, _ = saved
    for content, what in ((path.read_bytes(), "kind is 'session'"), (b"x" * 100, "no state file"), (b"", "no state file")):
        (tmp_path / "p.kv").write_bytes(content)
        with pytest.warns(UserWarning, match=f"prefix_file could not be read.*{what}"):
            llm = Llama(models("llama"), n_ctx=512, prefix_file=tmp_path / "p.kv")
        assert len(llm.generate(prompt(100), **SAMPLED).tokens) == 12
        llm.close()                  # and is replaced
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with Llama(models("llama"), n_ctx=512, prefix_file=tmp_path / "p.kv") as llm:
                assert llm.generate(prompt(100), **SAMPLED).cached_tokens == 99
    with pytest.warns(UserWarning, match="prefix_file could not be written"):
        Llama(models("llama"), n_ctx=512, prefix_file=tmp_path / "no" / "p.kv").close()
    with pytest.raises(RequestError, match="prefix_cache"):
        Llama(models("llama"), prefix_cache=False, prefix_file=path)


def test_a_server_begins_where_it_ended(models, tmp_path):
    body = {"prompt": prompt(330), "max_tokens": 5, "temperature": 0}
    texts = []
    for known in (0, 329):
        with Server(models("gemma3"), "--prefix-file", tmp_path / "prefix.kv") as server:
            status, answer = server.post("/v1/completions", body)
            assert (status, answer["usage"]["prompt_tokens_details"]["cached_tokens"]) == (200, known)
            texts.append(answer["choices"][0]["text"])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("name", ["smollm2", "gemma-3-270m"])
def test_real_models_go_on_from_a_file(real_model, name, tmp_path):
    text = "The old lighthouse keeper wrote in his journal every evening. " * 60
    with Llama(real_model(name), n_ctx=1024) as llm:
        s = llm.session(text)
        want = s.fork()[0].generate(temperature=0, max_tokens=16)
        s.save(tmp_path / "s.kv")
    with Llama(real_model(name), n_ctx=1024) as llm:
        s = llm.load_session(tmp_path / "s.kv")
        got = s.generate(temperature=0, max_tokens=16)
        assert got.tokens == want.tokens and got.cached_tokens == len(llm.tokenize(text)) - 1


def test_saved_while_others_are_answered(models, tmp_path):
    """Pages are copied between steps: a file is of one moment, and the others' answers stay what they are."""
    prompts = [prompt(60 + 40 * i, i) for i in range(6)]
    want = [alone(models("gemma3"), p, max_tokens=150) for p in prompts]
    with Llama(models("gemma3"), n_ctx=1024, max_seqs=3) as llm:
        jobs = llm.start(prompts[:1], **{**SAMPLED, "max_tokens": 150})
        for p in prompts[1:]:
            jobs += llm.start([p], **{**SAMPLED, "max_tokens": 150})
            s = llm.session(prompt(200))
            s.generate(**SAMPLED)
            s.save(tmp_path / "s.kv")
            llm.load_session(tmp_path / "s.kv")
        for job in jobs:
            assert job.ended.wait(60)
        assert [job.result.tokens for job in jobs] == want
        after = s.generate(**SAMPLED).tokens
    with Llama(models("gemma3"), n_ctx=1024) as llm:
        assert llm.load_session(tmp_path / "s.kv").generate(**SAMPLED).tokens == after


@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("name", KINDS)
def test_a_file_holds_nothing_of_others(models, tmp_path, name, kv_type):
    """Pages are taken from whoever had them: what is left behind the last token is another's, and stays out of the file."""
    files = []
    for before in (0, 7):                # the same session, in pages that other sequences filled with other things
        with Llama(models(name), n_ctx=512, max_seqs=1, kv_type=kv_type) as llm:
            for i in range(12):
                llm.generate(prompt(480, before + 13 * i * (before > 0)), salt=f"other {i}", max_tokens=0)
            llm.call(lambda: [llm.engine_thread.engine.cache.clear()])
            llm.session(prompt(100)).save(tmp_path / f"{before}")
        files.append((tmp_path / f"{before}").read_bytes())
    assert files[0] == files[1]

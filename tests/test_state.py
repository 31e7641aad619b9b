"""State beside pages, in slots: what a short convolution remembers is never another sequence's, never that of a step that did
not run or of a guess that was wrong. That company changes no answer is test_company.py's, over the same model; here are the
places where there is a state and where there is none, files, and what is refused."""
import numpy as np
import pytest

import pyengine
from pyengine import fit, plan
from pyengine.cache import PAGE
from pyengine.engine import Engine, Request
from pyengine.errors import RequestError, StoppedError
from pyengine.gguf import GGUF
from pyengine.plan import Seq, Step
from pyengine.sampling import Params, Sampler
from tiny_gguf import Spec, write

SAMPLED = dict(temperature=0.8, seed=7, max_tokens=12, logprobs=2, ignore_eos=True)
N_VOCAB = 331


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("lfm2") / "m.gguf"
    write(path, Spec(arch="lfm2", seed=3, n_layer=3, taps=4, head_dim=32, n_ctx_train=1024))
    return path


def prompt(n, first=0):
    return [3 + (first + i * i) % 40 for i in range(n)]


def same(a, b):
    return (a.tokens, a.logprobs) == (b.tokens, b.logprobs)


def alone(path, tokens, **options):
    with pyengine.Llama(path, prefix_cache=False, n_ctx=1024, speculate=None) as llm:
        return llm.generate(tokens, **{**SAMPLED, **options})


def engine(path, **settings):
    program = plan.compile(GGUF(path), **{"n_ctx": 512, "max_seqs": 3, "max_tokens": 96, **settings})
    return Engine(program, n_pages=[4 * n for n in fit.one_sequence(program)], n_threads=2)


def finished(e, *requests):
    for r in requests:
        e.add(r)
    while not e.idle:
        e.step()
    assert all(r.error is None for r in requests)


def rows(e, tokens):
    """The logits of every position from the first that is computed on: {position: bits}."""
    out = {}
    r = Request(tokens, wanted_from=0, on_row=lambda logits, i, position: out.__setitem__(position, logits.numpy(i).tobytes()))
    finished(e, r)
    return r.cached, out


def test_a_prompt_goes_on_where_a_state_was_kept(path):
    """At ends of pages, and exactly where a turn ended; to the bit as if it were computed from nothing."""
    with pyengine.Llama(path, n_ctx=1024, max_seqs=2) as llm:
        first = llm.generate(prompt(200), **SAMPLED)
        again = llm.generate(prompt(200), **SAMPLED)
        parted = llm.generate(prompt(150) + [9] * 30, **SAMPLED)
        turn = prompt(200) + first.tokens + prompt(40, 5)
        more = llm.generate(turn, **SAMPLED)
    assert (first.cached_tokens, again.cached_tokens, parted.cached_tokens) == (0, 3 * PAGE, 2 * PAGE)
    assert more.cached_tokens == 200 + len(first.tokens) - 1, "the last token of an answer is not computed"
    assert same(first, again) and same(first, alone(path, prompt(200)))
    assert same(parted, alone(path, prompt(150) + [9] * 30)) and same(more, alone(path, turn))


def test_every_logit_has_its_bits(path):
    e, ids = engine(path), prompt(230)
    e.cache.reuse = False
    _, cold = rows(e, ids)
    e.cache.reuse = True
    finished(e, Request(ids[:150], sampler=Sampler(Params(temperature=0).validated(N_VOCAB), N_VOCAB, 1), max_tokens=1))
    for end in (129, 150, 152, 230):
        got = {}
        r = Request(ids[:end], wanted_from=end - 1, on_row=lambda logits, i, position: got.__setitem__(position, logits.numpy(i).tobytes()))
        finished(e, r)
        assert r.cached == {129: 128, 150: 128, 152: 150, 230: 152}[end] and got == {end - 1: cold[end - 1]}
    e.close()


def test_a_step_that_did_not_run_leaves_no_trace(path, monkeypatch):
    """It had written all of its pages and slots; what is planned instead may be another step."""
    params = Params(temperature=0.8, logprobs=0).validated(N_VOCAB)
    answers = []
    for interrupt in (False, True):
        e, n = engine(path), 0
        real = e.program.run

        def run(step):
            nonlocal n
            logits, n = real(step), n + 1
            if interrupt and n % 2:
                raise StoppedError("the step was stopped; nothing was committed")
            return logits

        monkeypatch.setattr(e.program, "run", run)
        got = [[], []]
        finished(e, *(Request(prompt(150, i), sampler=Sampler(params, N_VOCAB, 5), max_tokens=20,
                              on_token=lambda s, i=i: got[i].append((s.token, s.logprob))) for i in (0, 1)))
        answers.append(got)
        assert e.cache.slots[0] == 0
        e.close()
    assert answers[0] == answers[1] and len(answers[0][0]) == 20


def test_choices_begin_with_the_prompt_s_state(path):
    e = engine(path)
    sampler = Sampler(Params(temperature=0.9).validated(N_VOCAB), N_VOCAB, 4)
    parent = Request(prompt(101), sampler=sampler, max_tokens=9)
    children = [Request(prompt(101), sampler=sampler, max_tokens=9, sequence=i, parent=parent) for i in (1, 2)]
    finished(e, parent, *children)
    assert [c.cached for c in children] == [100, 100], "nothing but the last row is computed again"
    for i, c in enumerate([parent, *children]):
        fresh = Request(prompt(101), sampler=sampler, max_tokens=9, sequence=i)
        e.cache.clear()
        finished(e, fresh)
        assert fresh.tokens == c.tokens
    e.close()


def test_more_prompts_than_slots_keep_what_is_come_back_to(path):
    """A beginning that others went on from outlasts the ends of pages that nobody came back to."""
    begin = prompt(2 * PAGE)
    with pyengine.Llama(path, n_ctx=256, max_seqs=1, cache_tokens=PAGE * 400) as llm:
        assert llm.generate(begin + [9], max_tokens=1).cached_tokens == 0
        for i in range(60):
            assert llm.generate(begin + [10 + i % 3, i], max_tokens=1).cached_tokens == 2 * PAGE
            llm.generate(prompt(250, 7 * i + 1), max_tokens=1)
        stats = llm.stats()
        assert (stats["slots_used"], stats["slots_total"]) == (0, llm.program.n_slots) and 2 < stats["slots_cached"] <= llm.program.n_slots


def test_sessions_and_their_files_carry_the_state(path, tmp_path):
    with pyengine.Llama(path, n_ctx=1024) as llm:
        s = llm.session(prompt(200))
        s.generate(**SAMPLED)
        s.save(tmp_path / "s.kv")
        tokens = s.tokens
    with pyengine.Llama(path, n_ctx=1024) as llm:
        s = llm.load_session(tmp_path / "s.kv").append([9, 10])
        assert s.tokens == tokens + [9, 10]
        a, b = s.fork(2)
        more, rewound = a.generate(**SAMPLED), b.rewind(150).append([11]).generate(**SAMPLED)
    assert more.cached_tokens >= 200 and rewound.cached_tokens == 2 * PAGE
    assert same(more, alone(path, tokens + [9, 10])) and same(rewound, alone(path, tokens[:150] + [11]))


def test_a_prefix_file_carries_the_state(path, tmp_path):
    with pyengine.Llama(path, n_ctx=1024, prefix_file=tmp_path / "p.kv") as llm:
        first = llm.generate(prompt(200), **SAMPLED)
    with pyengine.Llama(path, n_ctx=1024, prefix_file=tmp_path / "p.kv") as llm:
        again = llm.generate(prompt(200), **SAMPLED)
    assert again.cached_tokens == 3 * PAGE and same(first, again)


def test_a_draft_with_state_is_refused_by_name(path, tmp_path):
    write(tmp_path / "big.gguf", Spec(seed=5))
    with pytest.raises(RequestError, match="the draft model m.gguf is lfm2, which keeps a state"):
        pyengine.Llama(tmp_path / "big.gguf", n_ctx=256, speculate=path).generate([5], max_tokens=1)


def test_slots_of_a_step_are_checked(path):
    with GGUF(path) as gguf:
        program = plan.compile(gguf, n_ctx=256, max_seqs=2)
        program.open([4] * len(program.groups), 1)
        tables = ((0, 1, 2, 3),) * len(program.groups)
        for start, slot, saves, field in ((3, -1, (), "slots"), (3, program.n_slots, (), "slots"), (3, 1, ((5, 1),), "saves"),
                                          (3, 1, ((4, 2), (6, 3)), "saves"), (3, 1, ((5, 2), (4, 3)), "saves"), (3, 1, ((3, 2),), "saves"),
                                          (0, 9, ((1, program.n_slots),), "saves"), (0, 9, ((1, -1),), "saves")):
            with pytest.raises(RequestError, match=f"step refused: {field}"):
                program.run(Step([5, 6], [Seq(start, 2, tables, slot, saves)], [1]))
        good = program.run(Step([5, 6], [Seq(0, 2, tables, -1, ((1, 3), (2, 4)))], [1])).numpy(0)
        assert np.array_equal(program.run(Step([6], [Seq(1, 1, tables, 3, ())], [0])).numpy(0), good)
        program.close()


def test_state_is_counted_and_shown(path):
    with GGUF(path) as gguf:
        few, many = (fit.decide(gguf, n_ctx=256, max_seqs=n) for n in (1, 33))
        assert few.program.slot_bytes == 2 * 3 * 64 * 4      # two of three layers, four taps, 64 channels
        assert many.program.state_bytes - few.program.state_bytes == 64 * few.program.slot_bytes
        assert many.other - few.other >= 64 * few.program.slot_bytes
        assert any(f"state: 2 layers, {few.program.slot_bytes:,} B a slot" in line for line in few.program.explain())

"""The scheduler keeps its bounds, loses nobody, and always advances."""
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pyengine.cache import Cache, PAGE, pages_for
from pyengine.schedule import DONE, RUNNING, WAITING, Scheduler, Sequence


def scheduler(*, windows=(0,), n_pages=(64,), max_seqs=4, max_tokens=512, max_wanted=32):
    return Scheduler(Cache(windows, n_pages), max_seqs=max_seqs, max_tokens=max_tokens, max_wanted=max_wanted)


def shape(chunks):
    return [(c.seq.age, c.start, c.count, c.n_wanted) for c in chunks]


def test_a_prompt_alone_runs_in_whole_steps():
    s = scheduler(max_tokens=512)
    s.add(Sequence(range(1200)))
    seen = []
    while True:
        chunks = s.next_step(prompt_rows=7)      # alone: the bound does not apply
        seen += shape(chunks)
        s.commit(chunks)
        if chunks[-1].n_wanted:
            break
    assert seen == [(0, 0, 512, 0), (0, 512, 512, 0), (0, 1024, 176, 1)]


def test_decodes_and_prompts_share_a_step():
    s = scheduler(max_tokens=100)
    a, b = Sequence([1, 2]), Sequence(range(500))
    s.add(a)
    s.commit(s.next_step())
    a.tokens.append(7)
    s.add(b)
    assert shape(s.next_step()) == [(0, 2, 1, 1), (1, 0, 99, 0)]
    assert shape(s.next_step(prompt_rows=16)) == [(0, 2, 1, 1), (1, 0, 16, 0)]


def test_no_prompt_waits_behind_a_longer_one():
    s = scheduler(max_tokens=100)
    s.add(Sequence(range(3000)))
    s.add(Sequence(range(20)))
    assert sorted(shape(s.next_step())) == [(0, 0, 80, 0), (1, 0, 20, 1)]


def test_rows_that_want_logits_are_bounded():
    """logits() of a long text goes in blocks of max_wanted rows."""
    s = scheduler(max_wanted=8)
    seq = Sequence(range(20), wanted_from=0)
    s.add(seq)
    seen = []
    while seq.left:
        chunks = s.next_step()
        seen += shape(chunks)
        s.commit(chunks)
    assert seen == [(0, 0, 8, 8), (0, 8, 8, 8), (0, 16, 4, 4)]


def test_turns_go_round():
    s = scheduler(max_tokens=2, max_seqs=3)
    seqs = [Sequence([1]) for _ in range(3)]
    for q in seqs:
        s.add(q)
    served = [0, 0, 0]
    for _ in range(30):
        chunks = s.next_step()
        assert sum(c.count for c in chunks) == 2
        s.commit(chunks)
        for c in chunks:
            served[c.seq.age] += 1
            c.seq.tokens.append(0)
    assert served == [20, 20, 20]


def test_the_youngest_gives_way_and_comes_back():
    s = scheduler(n_pages=(4,), max_seqs=2)
    a, b = Sequence(range(PAGE)), Sequence(range(PAGE))
    s.add(a)
    s.add(b)
    given = {a: 0, b: 0}
    while not s.idle:
        chunks = s.next_step()
        s.commit(chunks)
        for c in chunks:
            if c.n_wanted:
                given[c.seq] += 1
                c.seq.tokens.append(0)
                if len(c.seq.tokens) == 4 * PAGE:
                    s.remove(c.seq)
    assert a.n_preempted == 0 and b.n_preempted >= 1
    assert given == {a: 3 * PAGE, b: 3 * PAGE}
    assert s.cache.free == (4,)


def test_a_step_that_did_not_run_is_planned_again():
    s = scheduler()
    s.add(Sequence(range(10)))
    first = shape(s.next_step())
    assert shape(s.next_step()) == first == [(0, 0, 10, 1)]


def test_removing_frees_at_once():
    s = scheduler(max_seqs=1)
    a, b = Sequence(range(100)), Sequence(range(10))
    s.add(a)
    s.add(b)
    s.next_step()
    assert (a.state, b.state) == (RUNNING, WAITING)
    s.remove(b)
    s.remove(a)
    s.remove(a)
    assert s.idle and s.cache.free == (64,) and (a.state, b.state) == (DONE, DONE)


class SchedulerMachine(RuleBasedStateMachine):
    """Requests of every shape come and go over a small pool; a model of each one
    checks that it is given its logits once each, in order, and comes to its end."""

    @initialize(max_seqs=st.integers(1, 5), max_tokens=st.integers(1, 90), max_wanted=st.integers(1, 6),
                window=st.sampled_from([0, 1, 64, 100]), spare=st.integers(0, 4))
    def build(self, max_seqs, max_tokens, max_wanted, window, spare):
        self.n_ctx = 4 * PAGE
        self.limits = (max_seqs, max_tokens, max_wanted)
        windows = (0, window) if window else (0,)
        n_pages = [pages_for(w, self.n_ctx, max_tokens) + spare for w in windows]
        self.s = scheduler(windows=windows, n_pages=n_pages, max_seqs=max_seqs, max_tokens=max_tokens,
                           max_wanted=max_wanted)
        self.n_pages = n_pages
        self.live = {}               # sequence -> [next position to be given logits, total tokens at its end]

    @rule(n=st.integers(1, 4 * PAGE), more=st.integers(0, 100), every=st.booleans())
    def add(self, n, more, every):
        if len(self.live) >= 8:
            return
        seq = Sequence(range(n), wanted_from=0 if every else None)
        self.s.add(seq)
        self.live[seq] = [0 if every else n - 1, n if every else min(n + more, self.n_ctx)]

    @rule(i=st.integers(0, 7))
    def cancel(self, i):
        if self.live:
            seq = list(self.live)[i % len(self.live)]
            self.s.remove(seq)
            del self.live[seq]

    @rule(n=st.integers(1, 60), prompt_rows=st.one_of(st.none(), st.integers(1, 20)))
    def run(self, n, prompt_rows):
        for _ in range(n):
            if not self.step(prompt_rows):
                break

    def step(self, prompt_rows):
        chunks = self.s.next_step(prompt_rows)
        assert bool(chunks) == bool(self.live)
        max_seqs, max_tokens, max_wanted = self.limits
        assert len(chunks) <= max_seqs
        assert sum(c.count for c in chunks) <= max_tokens
        assert sum(c.n_wanted for c in chunks) <= max_wanted
        assert [c.seq.age for c in chunks] == sorted({c.seq.age for c in chunks})
        for c in chunks:
            assert c.count > 0 and c.start == c.seq.computed and c.start + c.count <= len(c.seq.tokens)
            for g, w in enumerate(self.s.cache.windows):
                first = max(0, c.start - w + 1) if w else 0
                for p in range(first // PAGE, (c.start + c.count - 1) // PAGE + 1):
                    assert c.seq.table.pages[g][p] >= 0
        self.s.commit(chunks)
        for c in chunks:
            model = self.live[c.seq]
            for p in range(c.start + c.count - c.n_wanted, c.start + c.count):
                assert p == model[0], "logits given twice, out of order or not at all"
                model[0] += 1
            if model[0] == len(c.seq.tokens) and c.n_wanted:
                if len(c.seq.tokens) < model[1]:
                    c.seq.tokens.append(0)
                else:
                    self.s.remove(c.seq)
                    del self.live[c.seq]
        return bool(chunks)

    @invariant()
    def pages_add_up(self):
        if hasattr(self, "s"):
            for g, n in enumerate(self.n_pages):
                held = [p for q in self.s.running for p in q.table.pages[g] if p >= 0]
                assert len(set(held)) == len(held) == n - self.s.cache.free[g]

    @invariant()
    def oldest_runs(self):
        if hasattr(self, "s") and self.s.running and self.s.waiting:
            assert self.s.running[-1].age < self.s.waiting[0].age

    def teardown(self):
        if not hasattr(self, "s"):
            return
        todo = sum(end + len(q.tokens) for q, (_, end) in self.live.items())
        for _ in range(60 * todo + 60):
            if not self.step(None):
                break
        assert not self.live and self.s.idle
        assert list(self.s.cache.free) == self.n_pages


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)

"""The scheduler keeps its bounds, its order and its promises; the state machine that says so at length is test_schedule_machine.py."""
import pytest

from pyengine.cache import Cache, PAGE
from pyengine.schedule import Scheduler
from pyengine.sequences import DONE, RUNNING, WAITING, Sequence


def scheduler(*, windows=(0,), n_pages=(64,), max_seqs=4, max_tokens=512, max_wanted=32, reuse=True, **more):
    return Scheduler(Cache(windows, n_pages, reuse=reuse), max_seqs=max_seqs, max_tokens=max_tokens, max_wanted=max_wanted, **more)


def step(s, rows=None):
    """One step of an engine that computes nothing: everybody whose last row was computed is given a token."""
    chunks = s.next_step(rows)
    s.commit(chunks)
    for c in chunks:
        if c.n_wanted and c.seq.left == 0:
            c.seq.tokens.append(1000)
    return {c.seq: c.count for c in chunks}


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


@pytest.mark.parametrize("seed", range(5))
def test_whole_sequences_are_never_split(seed):
    """All rows of each in one step, whatever the steps' bounds, with no more pages than a step's rows fill; nothing stays."""
    import random

    rng = random.Random(seed)
    s = scheduler(n_pages=(4 + 5,), max_seqs=5, max_tokens=256, max_wanted=256, reuse=False, whole=True)
    todo = [Sequence(range(rng.choice((1, 2, 63, 64, 65, 200, 256))), wanted_from=0, priority=rng.randrange(2), key=str(rng.randrange(3))) for _ in range(60)]
    done = []
    for seq in todo:
        s.add(seq)
    while not s.idle:
        chunks = s.next_step(prompt_rows=8)
        assert chunks and sum(c.count for c in chunks) <= 256
        for c in chunks:
            assert (c.start, c.count, c.n_wanted) == (0, len(c.seq.tokens), len(c.seq.tokens))
        s.commit(chunks)
        for c in chunks:
            done.append(c.seq)
            s.remove(c.seq)
        if rng.random() < 0.2 and s.running:
            done.append(s.running[-1])
            s.remove(s.running[-1])        # cancelled
    assert sorted(seq.age for seq in done) == list(range(60)) and s.cache.free == s.cache.n_pages


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
    a, b = Sequence(range(PAGE)), Sequence(range(1, PAGE + 1))
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
    assert s.cache.used == (0,)


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
    assert s.idle and s.cache.used == (0,) and (a.state, b.state) == (DONE, DONE)



# ---- who goes first ------------------------------------------------------------------


def test_people_before_batch():
    """Seats, pages and prompt rows; what is left goes to batch work."""
    s = scheduler(max_seqs=2, max_tokens=100)
    batch = [Sequence(range(i, i + 150), priority=1) for i in (0, 200)]
    for q in batch:
        s.add(q)
    assert step(s) == {batch[0]: 100}
    person = Sequence(range(400, 480))
    s.add(person)
    assert step(s) == {person: 80, batch[0]: 20}       # the younger lost its seat
    assert batch[1].state == WAITING and batch[1].n_preempted == 1
    assert step(s) == {person: 1, batch[0]: 30}
    s.remove(person)
    assert step(s) == {batch[0]: 1, batch[1]: 99}


def test_a_way_that_does_not_help_is_not_made():
    """Batch work keeps its pages where even all of them would not seat who waits."""
    s = scheduler(n_pages=(6,), max_seqs=3, reuse=False)
    person, batch = Sequence(range(3 * PAGE)), Sequence(range(PAGE - 1), priority=1)
    s.add(person)
    s.add(batch)
    step(s)
    big = Sequence(range(4 * PAGE))
    s.add(big)
    for _ in range(5):
        assert batch in step(s)
    assert big.state == WAITING and batch.n_preempted == 0


def test_batch_does_not_starve():
    """Whatever comes with priority 0: the oldest batch request is promoted, one at a time."""
    s = scheduler(max_seqs=2, max_tokens=64, patience=20)
    batch = [Sequence([7] * 30, priority=1) for _ in range(3)]
    for q in batch:
        s.add(q)
    ended = []
    for n in range(400):
        while s._queues[0].head() is None:
            s.add(Sequence(range(100, 140)))
        for seq in step(s):
            if len(seq.tokens) - seq.n_prompt == 10:
                s.remove(seq)
                if seq.priority:
                    ended.append((n, seq))
    assert [q for _, q in ended] == batch
    assert all(later - earlier >= 20 for (earlier, _), (later, _) in zip(ended, ended[1:]))


def test_keys_take_turns():
    """Being seated: first come first served in each key, keys in turn."""
    s = scheduler(max_seqs=1)
    seqs = [Sequence([i + 1], key=key) for i, key in enumerate("aaaabbc")]
    for q in seqs:
        s.add(q)
    order = []
    while not s.idle:
        (seq,) = step(s)
        order.append(seq.key + str(seq.age))
        s.remove(seq)
    assert order == ["a0", "b4", "c6", "a1", "b5", "a2", "a3"]


def test_prompt_rows_are_shared_by_key():
    """One client's many prompts are not more than another's one; what does not divide evens out over steps."""
    s = scheduler(n_pages=(300,), max_seqs=4, max_tokens=101, reuse=False)
    many = [Sequence(range(3000), key="many") for _ in range(3)]
    one = Sequence(range(3000), key="one")
    for q in (*many, one):
        s.add(q)
    for _ in range(10):
        assert sum(step(s).values()) == 101
    assert abs(one.computed - sum(q.computed for q in many)) <= 1


def test_equal_prompts_end_one_after_the_other():
    """Each as early as it can, the oldest first; a long one that is the oldest has half the rows, whatever else comes."""
    s = scheduler(n_pages=(300,), max_seqs=5, max_tokens=64, reuse=False)
    equal = [Sequence(range(i, i + 128)) for i in range(4)]
    for q in equal:
        s.add(q)
    ended = [(n, q.age) for n in range(9) for q in step(s) if len(q.tokens) == 129]
    assert {age: n for n, age in reversed(ended)} == {0: 1, 1: 4, 2: 6, 3: 8}
    long = Sequence(range(5000, 6000))
    for q in equal:
        s.remove(q)
    s.add(long)
    for i in range(15):
        s.add(Sequence(range(i, i + 128)))
        step(s)
    assert long.computed >= 15 * 30         # decodes take a row each


# ---- what was computed before ----------------------------------------------------------


def test_what_is_cached_is_not_computed():
    s = scheduler()
    a = Sequence(range(150))
    s.add(a)
    step(s)
    s.remove(a)
    b, c, d = Sequence(range(150)), Sequence([*range(140), 7, 8]), Sequence(range(150), space="another")
    for q in (b, c, d):
        s.add(q)
    assert step(s) == {b: 1, c: 2, d: 150}
    assert (b.n_cached, c.n_cached, d.n_cached, s.n_cached) == (149, 140, 0, 289)


def test_logits_that_are_wanted_are_computed():
    s = scheduler(max_wanted=512)
    a = Sequence(range(150))
    s.add(a)
    step(s)
    for first, cached in ((0, 0), (70, 70), (148, 148)):
        b = Sequence(range(150), wanted_from=first)
        s.add(b)
        step(s)
        assert b.n_cached == cached
        s.remove(b)


@pytest.mark.parametrize("reuse", [True, False])
def test_children_share_the_prompt(reuse):
    """They wait for it, then compute one row each; copies of the page that is not full come first."""
    s = scheduler(max_seqs=4, reuse=reuse)
    a = Sequence(range(100))
    kids = [Sequence(range(100), parent=a) for _ in range(2)]
    other = Sequence(range(200, 210))
    for q in (a, *kids, other):
        s.add(q)
    assert step(s) == {a: 100, other: 10} and s.n_waiting == 2
    chunks = s.next_step()
    assert {c.seq: (c.start, c.count) for c in chunks} == {a: (100, 1), kids[0]: (99, 1), kids[1]: (99, 1), other: (10, 1)}
    assert len({target for _, _, target in s.copies}) == len(s.copies) == 3
    s.commit(chunks)
    assert len({q.table.pages[0][0] for q in (a, *kids)}) == 1 and len({q.table.pages[0][1] for q in (a, *kids)}) == 3
    for q in (a, *kids, other):
        s.remove(q)
    assert s.cache.used == (0,) and s.idle


def test_children_of_nobody():
    """The parent ends, or gives way, before its prompt is computed: they go their own way."""
    s = scheduler(max_tokens=50, reuse=False)
    a, b = Sequence(range(100)), Sequence(range(100, 200), priority=1)
    kids = [Sequence(q.tokens, parent=q, priority=q.priority) for q in (a, b)]
    for q in (a, b, *kids):
        s.add(q)
    step(s)
    s.remove(a)
    s._preempt(b)
    assert s.n_waiting == 3 and all(k.parent is None for k in kids)
    step(s)
    assert kids[0].computed == 50 and kids[0].state == RUNNING
    late = Sequence(range(100), parent=a)
    s.add(late)
    s.remove(late)
    for q in (b, *kids):
        s.remove(q)
    assert s.idle and s.cache.used == (0,)


def test_who_waits_with_shared_pages_gives_them_up_first():
    s = scheduler(n_pages=(3,), max_seqs=1, reuse=False)
    a = Sequence(range(PAGE + 10))
    kid = Sequence(range(PAGE + 10), parent=a)
    s.add(a)
    s.add(kid)
    while len(a.tokens) < 3 * PAGE:
        step(s)
    assert kid.state == WAITING and a.n_preempted == 0
    s.remove(a)
    assert step(s) == {kid: PAGE + 10}


# ---- guesses -----------------------------------------------------------------------------


def test_guesses_count_only_when_they_come_true():
    s = scheduler(max_wanted=5)
    a, b = Sequence([1, 2]), Sequence([5, 6])
    for q in (a, b):
        s.add(q)
    step(s)
    s._turn = (0, 0)
    a.draft, b.draft = [10, 11], [20, 21, 22]
    chunks = s.next_step()
    assert shape(chunks) == [(0, 2, 3, 3), (1, 2, 2, 2)] and [c.tokens() for c in chunks] == [[1000, 10, 11], [1000, 20]]
    s.commit(chunks)
    assert (a.computed, b.computed) == (3, 3)
    s.accept(a, 1)
    assert a.computed == 4


def test_guesses_are_the_first_to_go():
    """Beside a prompt, and where there are no pages for them."""
    s = scheduler(n_pages=(3,), max_seqs=2, reuse=False)
    a, b = Sequence(range(PAGE - 1)), Sequence(range(PAGE - 1))
    s.add(a)
    s.add(b)
    step(s)
    a.draft = [5, 6, 7]
    b.draft = [5]
    assert shape(s.next_step()) == [(0, PAGE - 1, 1, 1), (1, PAGE - 1, 1, 1)] and a.n_preempted == b.n_preempted == 0
    s.remove(b)
    a.draft = [5]
    s.add(Sequence([1, 2]))
    assert sum(step(s).values()) == 3 and a.draft == []

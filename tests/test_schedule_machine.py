"""Scheduler and cache at length, over an engine that computes nothing but knows what each slot of each page holds.

What a position's keys and values are is a function of the tokens up to it; here they are a number for that prefix.
Every step makes its copies and writes its positions into a model of the pages, and every position that a row can
see has to hold the number of its own sequence's prefix: a page that is shared, copied, evicted, forked or guessed
into wrongly shows at once. So does a state that is not that of the prefix before the row. Answers are a function of prefix, choice and position, so each must come out as it would alone.
"""
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pyengine.cache import PAGE, Cache, pages_for
from pyengine.schedule import Scheduler
from pyengine.sequences import RUNNING, WAITING, Sequence

N_CTX = 4 * PAGE


def token(prefix, choice) -> int:
    """The token after a prefix: one of three, so that answers meet and part."""
    return 5000 + hash((prefix, choice // 2)) % 3


def extended(prefix, token):
    return hash((prefix, token))


class Model:
    """What one request should be given."""

    def __init__(self, seq, choice, total, every):
        self.choice, self.total, self.every = choice, total, every
        self.next = seq.wanted_from          # position whose logits come next
        self.prefixes = [0]                  # [n]: of the first n tokens of the sequence
        self.at = 0                          # most that was computed
        self.idle = 0                        # steps since it was

    def prefix(self, tokens, n):
        while len(self.prefixes) <= n:
            self.prefixes.append(extended(self.prefixes[-1], tokens[len(self.prefixes) - 1]))
        return self.prefixes[n]


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(max_seqs=st.integers(1, 5), max_tokens=st.integers(1, 90), max_wanted=st.integers(1, 6),
                window=st.sampled_from([0, 1, 64, 100]), spare=st.integers(0, 6), reuse=st.booleans(), slots=st.sampled_from([None, None, 0, 3, 40]))
    def build(self, max_seqs, max_tokens, max_wanted, window, spare, reuse, slots):
        self.limits = (max_seqs, max_tokens, max_wanted)
        windows = (0, window) if window else (0,)
        n_pages = [pages_for(w, N_CTX, max_tokens) + spare for w in windows]
        n_slots = 0 if slots is None else 2 * max_seqs + slots
        self.cache = Cache(windows, n_pages, n_slots=n_slots, reuse=reuse)
        self.slots = [None] * n_slots
        self.s = Scheduler(self.cache, max_seqs=max_seqs, max_tokens=max_tokens, max_wanted=max_wanted, patience=30)
        self.pages = [[[None] * PAGE for _ in range(n)] for n in n_pages]
        self.live = {}               # by age

    # ---- what happens -----------------------------------------------------------------

    @rule(text=st.integers(0, 2), n=st.integers(1, N_CTX), differs=st.integers(0, 300), more=st.integers(0, 100), every=st.booleans(),
          priority=st.integers(0, 1), key=st.sampled_from("ab"), space=st.sampled_from(["", "", "", "x"]), choices=st.integers(1, 3))
    def add(self, text, n, differs, more, every, priority, key, space, choices):
        """Prompts that begin alike, the same prompt again, several answers to one."""
        if len(self.live) >= 9:
            return
        tokens = [1000 * text + i for i in range(n)]
        if differs < n:
            tokens[differs] = 9
        every, parent = every and choices == 1, None
        for choice in range(choices):
            seq = Sequence(tokens, wanted_from=0 if every else None, priority=priority, key=key, space=space, parent=parent)
            self.s.add(seq)
            self.live[seq] = Model(seq, choice, n if every else min(n + more, N_CTX), every)
            parent = parent or seq

    @rule(i=st.integers(0, 8))
    def cancel(self, i):
        if self.live:
            seq = list(self.live)[i % len(self.live)]
            self.s.remove(seq)
            del self.live[seq]

    @rule(key=st.sampled_from(["", "x", None]))
    def clear(self, key):
        self.cache.clear(key)

    @rule(prompt_rows=st.one_of(st.none(), st.integers(1, 20)), times=st.integers(1, 2))
    def stopped(self, prompt_rows, times):
        """Planned, and not run; its copies may have been made or not."""
        for _ in range(times):
            chunks = self.s.next_step(prompt_rows)
            self.check_plan(chunks)
            if times > 1:
                self.copy()

    @rule(n=st.integers(1, 60), prompt_rows=st.one_of(st.none(), st.integers(1, 20)), guesses=st.integers(0, 4), right=st.integers(0, 4))
    def run(self, n, prompt_rows, guesses, right):
        for _ in range(n):
            if not self.step(prompt_rows, guesses, right):
                break

    # ---- an engine ----------------------------------------------------------------------

    def step(self, prompt_rows, guesses=0, right=0):
        for seq in self.s.running:
            seq.draft = []
            if guesses and seq.left == 1:
                self.guess(seq, guesses, right)
        before = list(self.s.running)
        chunks = self.s.next_step(prompt_rows)
        self.check_plan(chunks)
        self.check_order(before)
        self.copy()
        for c in chunks:
            self.write(c)
        for c in chunks:
            self.see(c)
        self.s.commit(chunks)
        assert not self.s.copies
        for c in chunks:
            self.answer(c)
        self.check_progress()
        return bool(chunks)

    def guess(self, seq, n, right):
        model, prefix = self.live[seq], self.live[seq].prefix(seq.tokens, len(seq.tokens))
        for i in range(min(n, N_CTX - len(seq.tokens))):
            guess = token(prefix, model.choice) if i < right else 7
            seq.draft.append(guess)
            prefix = extended(prefix, guess)

    def copy(self):
        for g, source, target in self.s.copies:
            assert source != target
            self.pages[g][target] = list(self.pages[g][source])

    def write(self, c):
        """All rows of a step are written before any looks."""
        model, tokens = self.live[c.seq], c.tokens()
        prefix = model.prefix(c.seq.tokens, c.start)
        for p, t in enumerate(tokens, c.start):
            prefix = extended(prefix, t)
            if self.slots and p + 1 in c.seq.table.states:
                self.slots[c.seq.table.states[p + 1]] = prefix
            for pages, table in zip(self.pages, c.seq.table.pages):
                pages[table[p // PAGE]][p % PAGE] = prefix

    def see(self, c):
        """What the first row sees of earlier steps, and its own. No slot that is read in a step is written in it."""
        model = self.live[c.seq]
        if self.slots and c.start:
            assert self.slots[c.seq.table.states[c.start]] == model.prefix(c.seq.tokens, c.start), f"the state at {c.start} is not this sequence's"
        for window, pages, table in zip(self.cache.windows, self.pages, c.seq.table.pages):
            for p in range(max(0, c.start - window + 1) if window else 0, c.start + 1):
                assert pages[table[p // PAGE]][p % PAGE] == model.prefix(c.seq.tokens, p + 1), f"position {p} is not this sequence's"

    def answer(self, c):
        seq, model = c.seq, self.live[c.seq]
        draft, seq.draft = seq.draft if c.n_draft else [], []
        for i, p in enumerate(range(c.start + c.count - c.n_wanted, c.start + c.count)):
            assert p == model.next, "logits given twice, out of order or not at all"
            model.next += 1
            if model.every:
                if model.next == model.total:
                    break
                continue
            if len(seq.tokens) == model.total:
                break
            seq.tokens.append(token(model.prefix(seq.tokens, p + 1), model.choice))
            if i == len(draft) or draft[i] != seq.tokens[-1]:
                return
            self.s.accept(seq, 1)
        else:
            return
        self.s.remove(seq)
        del self.live[seq]

    # ---- what holds -----------------------------------------------------------------------

    def check_plan(self, chunks):
        assert bool(chunks) == bool(self.live)
        max_seqs, max_tokens, max_wanted = self.limits
        assert len(chunks) <= len(self.s.running) <= max_seqs
        assert sum(c.count for c in chunks) <= max_tokens
        assert sum(c.n_wanted for c in chunks) <= max_wanted
        assert [c.seq.rank for c in chunks] == sorted({c.seq.rank for c in chunks})
        for c in chunks:
            assert c.seq.state == RUNNING and c.count > 0 and c.start == c.seq.computed
            assert c.start + c.count - c.n_draft <= len(c.seq.tokens) and c.start + c.count <= N_CTX
            for g, window in enumerate(self.cache.windows):
                first = max(0, c.start - window + 1) if window else 0
                held = c.seq.table.pages[g][first // PAGE:(c.start + c.count - 1) // PAGE + 1]
                assert len(held) == (c.start + c.count - 1) // PAGE + 1 - first // PAGE and min(held) >= 0
        written = [(g, c.seq.table.pages[g][p]) for c in chunks for g in range(len(self.pages))
                   for p in range(c.start // PAGE, (c.start + c.count - 1) // PAGE + 1)]
        assert len(set(written)) == len(written), "two sequences write one page"
        if self.slots:
            for c in chunks:
                end = c.start + c.count
                assert set(range(end - c.n_draft, end + 1)) <= set(c.seq.table.states), "the state behind the step is not kept"
            slots = [slot for c in chunks for n, slot in c.seq.table.states.items() if n > c.start]
            read = {c.seq.table.states[c.start] for c in chunks if c.start}
            assert len(set(slots)) == len(slots) and not read & set(slots), "a slot is written twice, or read as well"

    def check_order(self, before):
        """People before batch: who waits with priority 0 finds no seat that batch work has."""
        s = self.s
        waiting = [q for q in self.live if q.state == WAITING and q.rank[0] == 0 and q.parent is None]
        if waiting and len(s.running) == self.limits[0]:
            assert all(q.rank[0] == 0 for q in s.running)
        assert s.running == sorted(s.running, key=lambda q: q.rank)
        if before and s.running and before[0].state != RUNNING:      # gave way: to somebody of a better rank
            assert s.running[0].rank < before[0].rank

    def check_progress(self):
        """The oldest advances. Others ahead of it by promotion or turn have so many rows at most."""
        for seq, model in self.live.items():
            if seq.computed > model.at:
                model.at, model.idle = seq.computed, 0
        if self.live:
            model = next(iter(self.live.values()))
            model.idle += 1
            assert model.idle < 2 * self.s.patience + 3 * N_CTX * self.limits[0], "the oldest does not advance"

    @invariant()
    def pages_add_up(self):
        if not hasattr(self, "s"):
            return
        tables = [q.table for q in self.live if q.table is not None]
        assert set(self.s.running) <= set(self.live)
        for g, n in enumerate(self.cache.n_pages):
            held = {p for t in tables for p in t.pages[g] if p >= 0} | {c[1] for t in tables for c in t.copies if c[0] == g}
            assert len(held) == self.cache.used[g]
            assert self.cache.used[g] + self.cache.cached[g] + self.cache.free[g] == n
        assert len({slot for t in tables for slot in t.states.values()}) == self.cache.slots[0]
        waiting = [q for q in self.live if q.state == WAITING]
        assert len(waiting) == self.s.n_waiting and len(self.s.running) + len(waiting) == len(self.live)

    def teardown(self):
        if not hasattr(self, "s"):
            return
        todo = sum(m.total + len(q.tokens) for q, m in self.live.items())
        for _ in range(60 * todo + 60):
            if not self.step(None):
                break
        assert not self.live and self.s.idle and not any(self.cache.used) and not self.cache.slots[0]
        self.cache.clear()
        assert self.cache.free == self.cache.n_pages


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=50, stateful_step_count=25, deadline=None)


@pytest.mark.long
class TestAtLength(SchedulerMachine.TestCase):
    """50,000 steps of the machine, each of which may be 60 of the scheduler."""
    settings = settings(max_examples=1000, stateful_step_count=50, deadline=None)

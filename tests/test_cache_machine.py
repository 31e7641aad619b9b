"""Many random sequences over small pools, beside a model that knows what was written in every page.

The model writes (tokens up to there) into each position of each page that a step
would write, copies pages when the cache says so, and reads everything a position
can see before it believes it. Of a slot it knows behind which history it was written.
"""
import random

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from pyengine.cache import GONE, PAGE, Cache

N_CTX = 7 * PAGE
VOCABULARY = (1, 257, 65793)         # which begin with equal bytes
KEYS = ("", "a", ("adapter", "salt"))
GROUPS = [((0,), (16,)), ((0, 1, 150), (14, 9, 10)), ((0, 0, 64), (12, 12, 9)), ((100,), (9,)), ((0, 150), (40, 7)), ((0,), (7,))]
SLOTS = (0, 0, 0, 12, 16, 40)


def chain(h, tokens):
    """Per position a number that stands for the namespace and all tokens up to there."""
    out = []
    for token in tokens:
        h = hash((h, token))
        out.append(h)
    return out


class Sequence:
    def __init__(self, key, tokens):
        self.key = key
        self.set(tokens)
        self.table, self.computed = None, 0

    def set(self, tokens):
        self.tokens, self.histories = tokens, chain(self.key, tokens)


class CacheMachine(RuleBasedStateMachine):
    @initialize(groups=st.sampled_from(GROUPS), reuse=st.sampled_from([True, True, True, False]), n_slots=st.sampled_from(SLOTS), seed=st.integers(0, 1 << 30))
    def build(self, groups, reuse, n_slots, seed):
        self.windows, self.n_pages = groups
        self.cache = Cache(self.windows, self.n_pages, n_slots=n_slots, reuse=reuse)
        self.slots = [None] * n_slots    # what each was written behind
        # What each position of each page was written with.
        self.bytes = [[[None] * PAGE for _ in range(n)] for n in self.n_pages]
        self.live = []
        self.random = random.Random(seed)
        self.stems = []              # histories to come back to

    # ---- the model ---------------------------------------------------------------

    def check_sees(self, seq, n):
        """Position n of the sequence finds in its pages what its own tokens would have put there."""
        for g, window in enumerate(self.windows):
            for p in range(max(0, n - window + 1) if window else 0, n):
                page = seq.table.pages[g][p // PAGE]
                assert page != GONE, f"position {p} is gone, {n} sees it"
                assert self.bytes[g][page][p % PAGE] == seq.histories[p], f"group {g}, position {p} of {n}"
        if self.slots and n:
            assert self.slots[seq.table.states[n]] == seq.histories[n - 1], f"the state at {n}"

    def write(self, seq, start, end):
        for g in range(len(self.windows)):
            for p in range(start, end):
                page = seq.table.pages[g][p // PAGE]
                assert self.cache._refs[g][page] == 1, "written while others refer to it"
                self.bytes[g][page][p % PAGE] = seq.histories[p]
        for n, slot in seq.table.states.items():
            if n > start:
                assert self.cache._refs[len(self.windows)][slot] == 1, "written while others refer to it"
                self.slots[slot] = seq.histories[n - 1]

    def tokens(self, n):
        """Begins like something that was there before, goes on with few different tokens."""
        out = list(self.random.choice(self.stems)) if self.stems and self.random.random() < 0.8 else []
        out = out[:self.random.randint(0, len(out))] if self.random.random() < 0.7 else out
        while len(out) < n:
            out += [self.random.choice(VOCABULARY)] * self.random.choice((1, 7, 64))
        return out[:n]

    # ---- what happens --------------------------------------------------------------

    @rule(key=st.sampled_from(KEYS), n=st.integers(1, N_CTX), limit=st.integers(0, N_CTX))
    def open(self, key, n, limit):
        if len(self.live) >= 5:
            return
        seq = Sequence(key, self.tokens(n))
        seq.table = self.cache.table()
        seq.computed = self.cache.match(seq.table, seq.tokens, min(limit, n), key)
        assert 0 <= seq.computed <= min(limit, n)
        if not self.cache.reuse:
            assert seq.computed == 0
        self.check_sees(seq, seq.computed)
        for g, window in enumerate(self.windows):     # and holds no more than that
            first = max(0, seq.computed - window + 1) // PAGE if window else 0
            assert [p != GONE for p in seq.table.pages[g]] == [j >= first for j in range(-(-seq.computed // PAGE))]
        self.live.append(seq)
        self.stems = (self.stems + [seq.tokens])[-6:]

    @precondition(lambda self: self.live)
    @rule(i=st.integers(0, 4), count=st.integers(1, 200), ran=st.sampled_from([True, True, True, False]), draft=st.integers(0, 9))
    def step(self, i, count, ran, draft):
        """A chunk, or a decode with a draft of which part is refused."""
        seq = self.live[i % len(self.live)]
        start = seq.computed
        end = min(start + count, N_CTX)
        if end == start:
            return
        self.cache.settle(seq.table, start)
        kept = max(start + 1, end - min(draft, end - start - 1))
        saves = range(kept, end + 1)
        before = self.cache.free, self.cache.cached, self.cache.slots, [list(p) for p in seq.table.pages], dict(seq.table.states)
        room = self.cache.room(seq.table, start)
        assert room >= start
        slots = len(self.slots) - self.cache.slots[0] >= len(saves) or not self.slots
        copies = self.cache.extend(seq.table, start, end, saves)
        assert (copies is not None) == (end <= room and slots)
        if copies is None:
            assert before == (self.cache.free, self.cache.cached, self.cache.slots, [list(p) for p in seq.table.pages], seq.table.states)
            return
        self.cache.save(seq.table, range(start - start % PAGE + PAGE, kept, PAGE))
        if not ran:
            again = self.cache.extend(seq.table, start, end, saves)
            assert again == copies
            return
        for g, source, target in copies:
            self.bytes[g][target] = list(self.bytes[g][source])
        seq.set(seq.tokens + [self.random.choice(VOCABULARY) for _ in range(end - len(seq.tokens))])
        self.check_sees(seq, start)
        self.write(seq, start, end)
        self.cache.copied(copies)
        if kept < end:               # refused: other tokens come there
            seq.set(seq.tokens[:kept] + [3])
        seq.computed = kept
        self.check_sees(seq, kept)
        self.cache.publish(seq.table, seq.tokens, kept, seq.key)
        self.check_sees(seq, kept)
        self.cache.forget(seq.table, kept)
        self.check_sees(seq, kept)

    @precondition(lambda self: self.live)
    @rule(i=st.integers(0, 4), how=st.sampled_from(["publish", "publish", "drop", "again"]))
    def close(self, i, how):
        seq = self.live.pop(i % len(self.live))
        self.stems = (self.stems + [seq.tokens[:max(1, seq.computed)]])[-6:]
        if how == "drop":
            self.cache.release(seq.table)
        else:
            self.cache.release(seq.table, seq.tokens, seq.computed, seq.key)
        if how == "again":           # what was just computed is found again, unless it is more than is kept
            table = self.cache.table()
            n = self.cache.match(table, seq.tokens, seq.computed, seq.key)
            if not any(self.windows) and not self.slots:
                assert n == (seq.computed if self.cache.reuse else 0)
            seq.table, computed, seq.computed = table, seq.computed, n
            self.check_sees(seq, n)
            self.live.append(seq)
        assert how == "again" or (not any(seq.table.pages) and not seq.table.copies)

    @precondition(lambda self: self.live)
    @rule(i=st.integers(0, 4), back=st.integers(0, 70))
    def fork(self, i, back):
        seq = self.live[i % len(self.live)]
        if len(self.live) >= 5 or seq.table.copies:
            return
        n = max(0, seq.computed - back)
        for g, window in enumerate(self.windows):
            if window and seq.table.first[g] > max(0, n - window + 1) // PAGE:
                return
        child = Sequence(seq.key, seq.tokens[:n] + [self.random.choice(VOCABULARY)])
        child.table, child.computed = self.cache.fork(seq.table, n), n
        assert (child.table is None) == bool(self.slots and n and n not in seq.table.states)
        if child.table is None:
            return
        self.check_sees(child, n)
        self.live.append(child)

    @rule(path=st.booleans(), lose=st.integers(0, 3), drop=st.booleans())
    def save_and_load(self, path, lose, drop):
        """All of the index, or the way to one history, into a file and back into this cache."""
        if self.random.random() < 0.7:
            return
        cache = self.cache
        if path and self.stems:
            records = list(cache.entries(self.random.choice(KEYS), self.random.choice(self.stems)))
        else:
            records = list(cache.entries())
        bytes_ = [*self.bytes, self.slots]
        saved = [[None if page == GONE else bytes_[g][page] if g == len(self.bytes) else list(bytes_[g][page])
                  for g, page in enumerate(r[3])] for r in records]
        for _ in range(lose):        # window pages and slots that were gone when it was saved
            if records and (any(self.windows) or self.slots):
                i = self.random.randrange(len(records))
                g = self.random.choice([g for g, w in enumerate((*self.windows, -1) if self.slots else self.windows) if w])
                records[i] = records[i][:3] + (tuple(GONE if k == g else p for k, p in enumerate(records[i][3])), True)
        if drop:
            cache.clear()

        def fill(i, g, page):
            assert cache._refs[g][page] == 2 and saved[i][g] is not None
            bytes_[g][page] = saved[i][g] if g == len(self.bytes) else list(saved[i][g])

        n = cache.adopt(records, fill)
        assert n <= sum(len(r[2]) for r in records)
        if not drop and not lose and not path:
            assert n == sum(len(r[2]) for r in records)

    @rule(key=st.sampled_from((None,) + KEYS))
    def clear(self, key):
        if self.random.random() < 0.1:
            self.cache.clear(key)
            if key is None:
                assert not any(self.cache.cached)

    # ---- what holds ------------------------------------------------------------------

    @invariant()
    def counts_are_what_is_referred_to(self):
        if not hasattr(self, "cache"):
            return
        cache = self.cache
        for g, n in enumerate(self.n_pages):
            refs = [0] * n
            for seq in self.live:
                for page in seq.table.pages[g]:
                    if page != GONE:
                        refs[page] += 1
                for copy in seq.table.copies:
                    if copy[0] == g:
                        refs[copy[1]] += 1
            used = sum(map(bool, refs))
            cached = 0
            for page, node in enumerate(cache._entry[g]):
                if node is not None:
                    assert node.alive and node.pages[g] == page
                    cached += not refs[page]
                    refs[page] += 1
            assert refs == cache._refs[g]
            assert sorted(cache._free[g]) == [page for page in range(n) if not refs[page]]
            assert (cache.free[g], cache.cached[g], cache.used[g]) == (n - used - cached, cached, used)
        if self.slots:
            held, known = {s for seq in self.live for s in seq.table.states.values()}, set()
            for slot, node in enumerate(cache._entry[len(self.windows)]):
                if node is not None:
                    assert node.alive and node.pages[-1] == slot
                    known.add(slot)
            assert cache.slots == (len(held), len(known - held))
            assert sorted(cache._free[-1]) == sorted(set(range(len(self.slots))) - held - known)

    @invariant()
    def the_tree_is_whole(self):
        if not hasattr(self, "cache"):
            return
        index = self.cache._index
        full = [g for g, w in enumerate(self.windows) if not w]
        seen, total = {}, 0
        for key, root in index._roots.items():
            assert root.alive and root.key == key and root.children
            stack, nodes = [(root, key)], 0
            cached = [0] * (len(self.windows) + bool(self.slots))
            while stack:
                node, h = stack.pop()
                assert node.alive and node.root is root
                if node is not root:
                    nodes += 1
                    histories = chain(h, memoryview(node.edge).cast("i"))
                    assert node.end == node.parent.end + len(histories)
                    h = histories[-1]
                    assert all(node.pages[g] != GONE for g in full)
                    assert node.children or any(p != GONE for p in node.pages), "a leaf that holds nothing"
                    for g, page in enumerate(node.pages):
                        if page != GONE:
                            assert seen.setdefault((g, page), node) is node and self.cache._entry[g][page] is node
                            cached[g] += self.cache._refs[g][page] == 1
                            if g == len(self.windows):
                                assert self.slots[page] == h, "the index knows a state that is not behind its node"
                                continue
                            assert self.bytes[g][page][:len(histories)] == histories, "the index says what is not there"
                if node.children:
                    assert node is root or node.end % PAGE == 0, "behind a partial page"
                    assert sorted(node.children) == node.edges
                    for a, b in zip(node.edges, node.edges[1:]):
                        assert not b.startswith(a), "one page too many"
                    stack += [(child, h) for child in node.children.values()]
            assert (root.cached, root.n_nodes) == (cached, nodes)
            total += nodes
        assert index.n_nodes == total
        assert sum(len(e) - e.count(None) for e in self.cache._entry) == len(seen)

    @invariant()
    def windows_hold_little(self):
        for seq in getattr(self, "live", ()):
            for g, window in enumerate(self.windows):
                if window and seq.computed and not seq.table.copies and len(seq.table.pages[g]) * PAGE < seq.computed + PAGE:
                    assert sum(p != GONE for p in seq.table.pages[g]) <= -(-window // PAGE) + 1

    def teardown(self):
        if not hasattr(self, "cache"):
            return
        while self.live:
            self.close(0, "publish")
        assert not any(self.cache.used) and not self.cache.slots[0]
        # Everything that is cached can be had by one who needs it.
        table = self.cache.table()
        room = self.cache.room(table, 0)
        assert room == PAGE * min(self.n_pages) and self.cache.extend(table, 0, room) == []
        self.cache.release(table)
        self.cache.clear()
        assert self.cache.free == self.n_pages and not any(self.cache.cached) and self.cache.slots == (0, 0)
        assert not self.cache._index._roots and not self.cache._copying


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)


@pytest.mark.long
def test_fifty_thousand_steps():
    steps = 0

    class Counted(CacheMachine):
        @invariant()
        def count(self):
            nonlocal steps
            steps += 1

    run_state_machine_as_test(Counted, settings=settings(max_examples=600, stateful_step_count=100, deadline=None))
    assert steps >= 50_000

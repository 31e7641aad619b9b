"""Page accounting: nothing lost, nothing shared, nothing visible given back."""
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pyengine.cache import GONE, PAGE, Cache, pages_for


def test_pages_come_as_positions_are_used():
    cache = Cache([0], [4])
    table = cache.table()
    assert cache.free == (4,)
    assert cache.extend(table, 1) and cache.free == (3,)
    assert cache.extend(table, PAGE) and cache.free == (3,)
    assert cache.extend(table, PAGE + 1) and cache.free == (2,)
    assert len(set(table.pages[0])) == 2


def test_a_short_pool_gives_nothing():
    cache = Cache([0, 0], [4, 2])
    table = cache.table()
    assert not cache.extend(table, 3 * PAGE)
    assert cache.free == (4, 2) and table.pages == ([], [])
    assert cache.room(table) == 2 * PAGE


def test_a_window_gives_back_what_nobody_sees():
    cache = Cache([PAGE], [3])
    table = cache.table()
    assert cache.extend(table, 2 * PAGE)
    cache.forget(table, 2 * PAGE - 2)          # sees from PAGE-1 on
    assert GONE not in table.pages[0]
    cache.forget(table, 2 * PAGE - 1)          # sees from PAGE on
    assert table.pages[0][0] == GONE and table.pages[0][1] != GONE
    assert cache.free == (2,)
    cache.release(table)
    assert cache.free == (3,)


@given(st.integers(1, 300), st.integers(1, 1000), st.lists(st.integers(1, 70), min_size=1, max_size=40))
@settings(max_examples=200, deadline=None)
def test_pages_for_is_enough_and_reached_by_no_more(window, n_ctx, counts):
    """A pool of pages_for() pages never runs short for one sequence."""
    n_batch = max(counts)
    cache = Cache([window], [pages_for(window, n_ctx, n_batch)])
    table = cache.table()
    start = 0
    for count in counts:
        end = min(start + count, n_ctx)
        if end == start:
            break
        assert cache.extend(table, end)
        start = end
        cache.forget(table, start)


class CacheMachine(RuleBasedStateMachine):
    """Sequences come, grow by ragged steps and go, over a full and two window groups."""

    windows = (0, 1, 150)
    n_pages = (12, 9, 10)

    def __init__(self):
        super().__init__()
        self.cache = Cache(self.windows, self.n_pages)
        self.live = []               # [table, positions used]

    @rule()
    def open(self):
        if len(self.live) < 5:
            self.live.append([self.cache.table(), 0])

    @precondition(lambda self: self.live)
    @rule(i=st.integers(0, 4), count=st.integers(1, 200))
    def step(self, i, count):
        item = self.live[i % len(self.live)]
        table, used = item
        before = self.cache.free
        room = self.cache.room(table)
        ok = self.cache.extend(table, used + count)
        assert ok == (used + count <= room)
        if not ok:
            assert self.cache.free == before
            return
        for g, window in enumerate(self.windows):
            first = max(0, used - window + 1) if window else 0
            for p in range(first // PAGE, -(-(used + count) // PAGE)):
                assert table.pages[g][p] >= 0, "a visible page is gone"
        item[1] += count
        self.cache.forget(table, item[1])

    @precondition(lambda self: self.live)
    @rule(i=st.integers(0, 4))
    def close(self, i):
        table, _ = self.live.pop(i % len(self.live))
        self.cache.release(table)

    @invariant()
    def every_page_has_one_place(self):
        for g, n in enumerate(self.n_pages):
            held = [p for table, _ in self.live for p in table.pages[g] if p != GONE]
            assert len(held) + self.cache.free[g] == n
            assert sorted(held + self.cache._free[g]) == list(range(n))

    @invariant()
    def windows_hold_little(self):
        for table, used in self.live:
            for g, window in enumerate(self.windows):
                if window:
                    held = sum(p != GONE for p in table.pages[g])
                    assert held <= -(-window // PAGE) + 1


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("window, n_ctx, n_batch, pages", [
    (0, 8192, 512, 128),
    (0, 1, 512, 1),
    (512, 32768, 512, 17),
    (512, 64, 512, 1),
])
def test_pages_for(window, n_ctx, n_batch, pages):
    assert pages_for(window, n_ctx, n_batch) == pages

"""Page accounting: nothing lost, nothing shared, nothing visible given back."""
import pytest
from hypothesis import given, settings, strategies as st

from pyengine.cache import GONE, PAGE, Cache, pages_for


def test_pages_come_as_positions_are_used():
    cache = Cache([0], [4])
    table = cache.table()
    assert cache.free == (4,)
    assert cache.extend(table, 0, 1) == [] and cache.free == (3,)
    assert cache.extend(table, 1, PAGE) == [] and cache.free == (3,)
    assert cache.extend(table, PAGE, PAGE + 1) == [] and cache.free == (2,)
    assert len(set(table.pages[0])) == 2


def test_a_short_pool_gives_nothing():
    cache = Cache([0, 0], [4, 2])
    table = cache.table()
    assert cache.extend(table, 0, 3 * PAGE) is None
    assert cache.free == (4, 2) and table.pages == ([], [])
    assert cache.room(table, 0) == 2 * PAGE


def test_a_window_gives_back_what_nobody_sees():
    cache = Cache([PAGE], [3])
    table = cache.table()
    assert cache.extend(table, 0, 2 * PAGE) == []
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
        assert cache.extend(table, start, end) == []
        start = end
        cache.forget(table, start)


@pytest.mark.parametrize("window, n_ctx, n_batch, pages", [
    (0, 8192, 512, 128),
    (0, 1, 512, 1),
    (512, 32768, 512, 17),
    (512, 64, 512, 1),
])
def test_pages_for(window, n_ctx, n_batch, pages):
    assert pages_for(window, n_ctx, n_batch) == pages

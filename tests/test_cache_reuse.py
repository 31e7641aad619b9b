"""Prefix reuse piece by piece: what is found, what is copied, what goes first, what never meets."""
import heapq

import pytest

from pyengine.cache import GONE, PAGE, Cache


def compute(cache, tokens, key="", cut=512):
    """A sequence whose tokens are all computed: its table, and how many were found."""
    table = cache.table()
    start = found = cache.match(table, tokens, len(tokens) - 1, key)
    while start < len(tokens):
        end = min(start + cut, len(tokens))
        cache.copied(cache.extend(table, start, end))
        cache.publish(table, tokens, end, key)
        cache.forget(table, end)
        start = end
    return table, found


def serve(cache, tokens, key="", cut=512):
    """From beginning to end; how many positions were found."""
    table, found = compute(cache, tokens, key, cut)
    cache.release(table, tokens, len(tokens), key)
    return found


def known(cache, tokens, key=""):
    """Positions that the index has, without touching anything."""
    return sum(len(r[2]) for r in cache.entries(key, tokens))


def ids(n, first=0):
    return list(range(first, first + n))


@pytest.mark.parametrize("windows", [(0,), (0, 150), (150,)])
def test_the_longest_prefix_is_found_to_the_token(windows):
    cache = Cache(windows, [64] * len(windows))
    assert serve(cache, ids(1000)) == 0
    assert serve(cache, ids(1000)) == 999                        # the last is computed for its logits
    assert serve(cache, ids(1000) + [7] * 30) == 1000            # a partly filled page, used to its end
    assert serve(cache, ids(990) + [7] * 30) == 990              # ... or in part
    assert serve(cache, ids(1000) + [7] * 20 + [8]) == 1020
    assert serve(cache, [5] + ids(999, 1)) == 0
    assert not any(cache.used)


def test_a_page_that_fills_replaces_the_part_it_was():
    cache = Cache([0], [64])
    serve(cache, ids(10))
    serve(cache, ids(20))
    serve(cache, ids(15))
    assert cache.cached == (1,)
    serve(cache, ids(64))
    assert cache.cached == (1,)
    serve(cache, ids(40))
    assert cache.cached == (1,)
    serve(cache, ids(40) + [0])
    assert cache.cached == (2,)


def test_equal_histories_computed_side_by_side_end_in_one_page():
    cache = Cache([0], [64])
    tables = [cache.table() for _ in range(3)]
    for table in tables:
        assert cache.match(table, ids(130), 129, "") == 0
        assert cache.extend(table, 0, 130) == []
    assert cache.used == (9,)
    for table in tables:
        cache.publish(table, ids(130), 130, "")
    assert cache.used == (5,) and len({tuple(t.pages[0][:2]) for t in tables}) == 1
    for table in tables:
        cache.release(table, ids(130), 130, "")
    assert cache.cached == (3,) and cache.used == (0,)


def test_who_writes_into_a_shared_page_gets_a_copy():
    cache = Cache([0], [8])
    table, _ = compute(cache, ids(100))
    a, b = cache.fork(table, 99), cache.fork(table, 99)
    assert cache.used == (2,)
    shared = table.pages[0][1]
    [(g, source, target)] = cache.extend(a, 99, 100)
    assert (g, source) == (0, shared) and a.pages[0][1] == target != shared
    assert cache.extend(a, 99, 100) == [(0, shared, target)], "a step that did not run makes its copy later"
    cache.release(table)
    cache.release(b)
    assert cache.used == (3,), "the source is kept until it is copied"
    cache.copied([(0, shared, target)])
    assert cache.used == (2,) and cache.free == (6,), "two pages of a's, the first is the index's as well"
    assert cache.extend(a, 99, 130) == [] and len(a.pages[0]) == 3
    cache.release(a)
    assert cache.cached == (1,)


def test_the_last_to_hold_a_page_writes_it_without_a_copy():
    cache = Cache([0], [8], reuse=False)
    table, _ = compute(cache, ids(100))
    child = cache.fork(table, 100)
    cache.release(table)
    assert cache.extend(child, 100, 110) == []


def test_a_pool_of_one_sequence_holds_it_even_where_it_goes_on_from_the_cache():
    """No page is left for the copy: the index gives up its entry."""
    cache = Cache([0], [2])
    serve(cache, ids(100))
    table = cache.table()
    assert cache.match(table, ids(100) + [1] * 28, 127, "") == 100
    assert cache.free == (0,) and cache.room(table, 100) == 128
    assert cache.extend(table, 100, 128) == []
    assert cache.used == (2,) and cache.cached == (0,)
    cache.release(table, ids(100) + [1] * 28, 128, "")
    assert cache.cached == (2,)


def test_a_copy_that_was_never_made_is_not_published():
    cache = Cache([0], [8])
    serve(cache, ids(100))
    table = cache.table()
    assert cache.match(table, ids(90) + [1] * 10, 99, "") == 90
    source = table.pages[0][1]
    [(_, _, target)] = cache.extend(table, 90, 100)
    cache.release(table, ids(90), 90, "")
    assert target in cache._free[0] and cache._entry[0][source] is not None and cache.cached == (2,)


def test_namespaces_never_meet():
    cache = Cache([0], [64])
    serve(cache, ids(200), "a")
    for key in ("b", "", ("a",), ("adapter", "a")):
        assert serve(cache, ids(200), key) == 0
    assert serve(cache, ids(200), "a") == 199


def test_a_hash_alone_finds_nothing():
    """Tokens whose hashes as Python's tuples are equal (-1 and -2 are) do not find each other."""
    cache = Cache([0], [64])
    assert hash((-1,) * 64) == hash((-2,) * 64)
    serve(cache, [-1] * 200)
    assert serve(cache, [-2] * 200) == 0


def test_without_reuse_nothing_is_kept():
    cache = Cache([0], [8], reuse=False)
    serve(cache, ids(200))
    assert cache.free == (8,)
    assert serve(cache, ids(200)) == 0


def test_clear_forgets_one_key_or_all_but_what_is_in_use():
    cache = Cache([0], [32])
    serve(cache, ids(200), "a")
    serve(cache, ids(200), "b")
    table, _ = compute(cache, ids(200, 1000), "a")
    cache.clear("a")
    assert cache.cached == (4,) and cache.used == (4,)
    more = ids(200, 1000) + [0] * 60
    assert cache.extend(table, 200, 260) == []
    cache.release(table, more, 260, "a")             # what a sequence still held enters again
    assert cache.cached == (9,)
    assert serve(cache, more, "a") == 259
    cache.clear()
    assert cache.free == (32,)


# ---- windows ---------------------------------------------------------------------------


def test_unseen_pages_stay_for_others_while_nobody_needs_them():
    cache = Cache([0, 100], [32, 32])
    table, _ = compute(cache, ids(640), cut=64)
    assert cache.used == (10, 2) and cache.cached == (0, 8)      # 541 and up are in sight: pages 8 and 9
    cache.release(table, ids(640), 640, "")
    assert serve(cache, ids(300) + [0] * 10) == 300              # branches off in the middle of it
    table = cache.table()
    assert cache.match(table, ids(640), 640, "") == 640
    assert table.pages[1][:8] == [GONE] * 8 and GONE not in table.pages[1][8:]
    cache.release(table)


def test_where_a_window_has_lost_pages_a_shorter_prefix_is_found():
    cache = Cache([0, 100], [32, 32])
    serve(cache, ids(640))
    node = cache._index.path("", ids(640))[4][0]        # positions 256..319
    dropped = []
    cache._index._let_go(node, 1, dropped)
    cache._drop_all(dropped)
    for want, n in ((256, 256), (300, 256), (418, 256), (419, 419), (640, 640)):
        table = cache.table()
        assert cache.match(table, ids(640), want, "") == n       # 419 sees 320 and up
        cache.release(table)
    serve(cache, ids(384))                           # computes it again, and puts it where it was missing
    table = cache.table()
    assert cache.match(table, ids(640), 418, "") == 418
    cache.release(table)


def test_a_small_window_pool_gives_up_what_was_passed_before_where_turns_ended():
    cache = Cache([0, 100], [64, 7])
    serve(cache, ids(200), "")                       # ends in sight of pages 1..3 of the window group
    serve(cache, ids(1000, 5000), cut=64)                    # passes through 14 pages, all but two unseen at its end
    assert serve(cache, ids(200) + [0]) == 200
    assert serve(cache, ids(1000, 5000) + [0]) == 1000


# ---- who goes first --------------------------------------------------------------------------


def test_the_oldest_goes_first_from_its_end():
    cache = Cache([0], [10])
    serve(cache, ids(256))
    serve(cache, ids(256, 1000))
    assert cache.free == (2,)
    serve(cache, ids(256, 2000))
    assert [known(cache, ids(256, first)) for first in (0, 1000, 2000)] == [128, 256, 256]
    assert cache.evictions == 2
    serve(cache, ids(130))                           # used again, it is the youngest, but two positions cost little
    serve(cache, ids(256, 3000))
    assert [known(cache, ids(256, first)) for first in (0, 1000, 2000, 3000)] == [128, 0, 256, 256]


def test_a_prefix_that_is_used_outlives_prompts_that_come_once():
    """A plain order by age would lose it: sixty pages pass between two uses, over a pool of forty."""
    cache = Cache([0], [40])
    stem = ids(320)
    for i in range(3):
        serve(cache, stem + [i])
    for round_ in range(20):
        for i in range(30):
            serve(cache, ids(128, 10_000 + 1000 * round_ + i))
        assert serve(cache, stem + [100 + round_]) >= 256
    # ... and is given up at last when nobody asks for it any more.
    for i in range(3000):
        serve(cache, ids(128, 100_000 + 200 * i))
    assert serve(cache, stem) == 0


def test_only_who_goes_on_from_a_prefix_counts():
    cache = Cache([0], [40])
    serve(cache, ids(200))
    hits = lambda: [node.hits for node, _ in cache._index.path("", ids(200))]
    for _ in range(5):
        table = cache.table()
        assert cache.match(table, ids(200) + [0], 200, "") == 200
        cache.release(table)             # no seat was free
    assert hits() == [0] * 4
    assert serve(cache, ids(128) + [0]) == 128
    assert hits() == [1, 1, 0, 0]


def test_a_flood_under_one_key_pays_with_its_own():
    cache = Cache([0], [100])
    theirs = [ids(128, 1000 * i) for i in range(20)]     # 40 pages
    for tokens in theirs:
        serve(cache, tokens, "quiet")
    for i in range(10_000):
        serve(cache, ids(100, 50_000 + i), "flood")
    assert [known(cache, tokens, "quiet") for tokens in theirs] == [128] * 20


def test_an_idle_key_gives_room_to_the_others():
    """Nobody is promised what nobody uses: three keys that work share what a fourth left behind."""
    cache = Cache([0], [100])
    for i in range(45):
        serve(cache, ids(128, 1000 * i), "gone")
    for i in range(3000):
        serve(cache, ids(128, 1000 * i), ("x", "y", "z")[i % 3])
    assert cache.cached == (100,)
    assert known(cache, ids(128), "gone") == 0


def test_eviction_looks_at_no_more_than_a_few_entries(monkeypatch):
    """The queue's head is the victim, but for entries that were used or have gone since, each met once."""
    from pyengine import prefix

    pops = []
    monkeypatch.setattr(prefix, "heappop", lambda heap: pops.append(0) or heapq.heappop(heap))
    cache = Cache([0], [500])
    for i in range(2500):
        serve(cache, ids(64, 100 * i), key=i % 3)
        serve(cache, ids(64, 100 * (i - i % 7)), key=i % 3)
    assert 2000 <= cache.evictions and len(pops) <= 4 * cache.evictions
    for queue in (cache._index._queues[0], *(root.queues[0] for root in cache._index.roots())):
        assert len(queue.heap) <= 2 * 500 + 16


def test_memory_of_names_and_entries_is_given_back():
    cache = Cache([0], [10])
    for i in range(1000):
        table = cache.table()
        cache.match(table, ids(70), 69, f"nobody {i}")
        cache.release(table)
        serve(cache, ids(70), f"key {i}")
    assert len(cache._index._roots) <= 10
    assert len(cache._index._queues[0].heap) <= 2 * 10 + 17


# ---- files -----------------------------------------------------------------------------------


def test_entries_are_adopted_with_their_pages():
    old, new = Cache([0, 100], [32, 32]), Cache([0, 100], [64, 64])
    serve(old, ids(640))
    serve(old, ids(300) + [0] * 10)
    records = list(old.entries())
    assert len(records) == 10 + 1
    filled = []
    assert new.adopt(records, lambda *where: filled.append(where)) == 640 + 54
    assert [(i, g) for i, g, _ in filled] == [(i, g) for i in range(11) for g in range(2)]
    assert len({(g, page) for _, g, page in filled}) == 22 and new.cached == (11, 11)
    assert serve(new, ids(640) + [1]) == 640
    assert serve(new, ids(300) + [0] * 10 + [1]) == 310


def test_what_finds_no_page_is_left_out():
    old, new = Cache([0], [32]), Cache([0], [6])
    serve(old, ids(640))
    serve(new, [9] * 64)
    table, _ = compute(new, [8] * 128)
    assert new.adopt(list(old.entries()), lambda *where: None) == 256
    assert new.used == (2,) and new.cached == (4,)
    assert serve(new, ids(200)) == 199
    new.release(table)


def test_the_way_to_one_history():
    cache = Cache([0], [32])
    serve(cache, ids(300), "a")
    serve(cache, ids(128) + [0] * 100, "a")
    assert [len(r[2]) for r in cache.entries("a", ids(310))] == [64, 64, 64, 64, 44]
    assert [len(r[2]) for r in cache.entries("a", ids(128) + [0] * 3)] == [64, 64, 3]
    assert list(cache.entries("b", ids(300))) == []

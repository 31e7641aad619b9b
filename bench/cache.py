"""What page accounting costs: microseconds per call of pyengine/cache.py, medians. No model, no bytes.

    python bench/cache.py

Not beside a peer: the figures are to be held against a step (milliseconds), and against each other
as the pool grows, where none may grow faster than its logarithm.
"""
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from pyengine.cache import PAGE, Cache, pages_for  # noqa: E402

LONG = 100_000


def timed(f, *args):
    begin = time.perf_counter()
    out = f(*args)
    return 1e6 * (time.perf_counter() - begin), out


def tokens(n, seed):
    return [seed % 49152, seed // 49152] + [(seed * 7919 + i * i * 31) % 49152 for i in range(n - 2)]


def run(cache, ids, key="", cut=512):
    """A prompt in steps of `cut`; its end publishes it."""
    table = cache.table()
    start = cache.match(table, ids, len(ids) - 1, key)
    while start < len(ids):
        end = min(start + cut, len(ids))
        cache.copied(cache.extend(table, start, end))
        cache.publish(table, ids, end, key)
        cache.forget(table, end)
        start = end
    return table


def row(what, values):
    print(f"{what:58} {statistics.median(values):10.2f} us   (worst {max(values):.1f})")


def long_prompt(windows, name):
    cache = Cache(windows, [pages_for(w, LONG, 512) + 100 for w in windows])
    ids = tokens(LONG, 1)
    whole, table = timed(run, cache, ids)
    row(f"{name}: {LONG} positions in steps of 512, per step", [whole / (LONG / 512)])
    row(f"{name}: release of {LONG} positions", [timed(cache.release, table, ids, LONG, "")[0]])
    out = []
    for _ in range(5):
        table = cache.table()
        us, n = timed(cache.match, table, ids, LONG, "")
        assert n == LONG
        out.append(us)
        cache.release(table)
    row(f"{name}: match of {LONG} positions", out)


def decode(windows, name):
    cache = Cache(windows, [1000 for _ in windows])
    ids = tokens(8000, 2)
    table = run(cache, ids[:2000])
    parts = {"extend": [], "publish": [], "forget": []}
    for n in range(2000, 8000):
        parts["extend"].append(timed(cache.extend, table, n, n + 1)[0])
        parts["publish"].append(timed(cache.publish, table, ids, n + 1, "")[0])
        parts["forget"].append(timed(cache.forget, table, n + 1)[0])
    for what, values in parts.items():
        row(f"{name}: {what} of one decode", values)


def full_pool(n_pages):
    """Every prompt of 100 tokens is new and finds no free page: what eviction costs as the pool grows."""
    cache = Cache((0,), (n_pages,))
    for i in range(n_pages):
        ids = tokens(100, i)
        cache.release(run(cache, ids), ids, 100, "")
    assert cache.free[0] <= 1
    out = []
    for i in range(n_pages, n_pages + 3000):
        ids = tokens(100, i)
        table = cache.table()
        cache.match(table, ids, 99, "")
        us, copies = timed(cache.extend, table, 0, 100)
        assert copies == []
        out.append(us)
        cache.publish(table, ids, 100, "")
        cache.release(table, ids, 100, "")
    row(f"extend by two pages in a full pool of {n_pages}, with eviction", out)


def siblings(n):
    """A system prompt of 1000 tokens continued in n ways within its last page."""
    cache = Cache((0,), (2 * n + 100,))
    stem = tokens(1000, 3)
    for i in range(n):
        ids = stem + tokens(10, i)
        cache.release(run(cache, ids), ids, len(ids), "")
    out = []
    for i in range(1000):
        table = cache.table()
        us, length = timed(cache.match, table, stem + tokens(10, n + i), 1009, "")
        assert length >= 1000
        out.append(us)
        cache.release(table)
    row(f"match of 1000 positions with {n} continuations", out)


if __name__ == "__main__":
    for shape, label in (((0,), "one full group"), ((0, 512), "full and window 512")):
        long_prompt(shape, label)
        decode(shape, label)
    for size in (300, 3_000, 30_000):
        full_pool(size)
    for size in (10, 10_000):
        siblings(size)

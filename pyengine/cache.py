"""Which page holds which positions of which sequence: integers only, no bytes.

The bytes of the KV cache belong to the bound program; this file only says who
uses them. A cache group is the layers with equal window and KV shape; each
group has its own pool of pages, and a page holds PAGE consecutive positions of
one sequence for all layers of its group. Pages are taken when positions are
about to be written and given back when the sequence ends, or, in a group with
a window, as soon as no later position can see them. Nothing is reserved for a
worst case: that many sequences share a pool is the scheduler's to arrange.

Imported by schedule and engine. Imports nothing.
"""

PAGE = 64          # positions per page; PE_PAGE in csrc/pyengine.h
GONE = -1          # table entry of a page that no later position can see


class Table:
    """The pages of one sequence. pages[g][j] is the page of group g that holds
    positions PAGE*j .. PAGE*j + PAGE-1, or GONE."""

    __slots__ = ("pages", "first")

    def __init__(self, n_groups: int):
        self.pages = tuple([] for _ in range(n_groups))
        self.first = [0] * n_groups      # entries below this index are GONE


class Cache:
    def __init__(self, windows, n_pages):
        """windows[g]: how many positions a position of group g sees, itself
        included; 0 where it sees all. n_pages[g]: pages in the pool of group g."""
        assert len(windows) == len(n_pages) and all(n > 0 for n in n_pages)
        self.windows = tuple(windows)
        self.n_pages = tuple(n_pages)
        # Taken from the end, so low ids come first and a page given back is
        # reused at once: only pages that were needed at one time are ever touched.
        self._free = [list(range(n - 1, -1, -1)) for n in n_pages]

    def table(self) -> Table:
        return Table(len(self.windows))

    @property
    def free(self) -> tuple:
        return tuple(len(f) for f in self._free)

    def missing(self, table: Table, end: int) -> list:
        """Pages per group that `table` lacks to hold positions below `end`."""
        n = -(-end // PAGE)
        return [max(0, n - len(pages)) for pages in table.pages]

    def room(self, table: Table) -> int:
        """The first position that cannot be held with the pages that are free now."""
        return PAGE * min(len(pages) + len(free) for pages, free in zip(table.pages, self._free))

    def extend(self, table: Table, end: int) -> bool:
        """Takes pages until positions below `end` are held; all of them or, where a pool is short, none."""
        missing = self.missing(table, end)
        if any(m > len(free) for m, free in zip(missing, self._free)):
            return False
        for m, pages, free in zip(missing, table.pages, self._free):
            for _ in range(m):
                pages.append(free.pop())
        return True

    def forget(self, table: Table, start: int) -> None:
        """Gives back pages that no position from `start` on can see."""
        for g, window in enumerate(self.windows):
            if not window:
                continue
            # Page j ends at PAGE*j + PAGE-1; position p sees positions above p - window.
            pages, free = table.pages[g], self._free[g]
            last = min(max(0, (start - window + 1) // PAGE), len(pages))
            for j in range(last - 1, table.first[g] - 1, -1):
                free.append(pages[j])
                pages[j] = GONE
            table.first[g] = max(table.first[g], last)

    def release(self, table: Table) -> None:
        """Gives back every page; the table is empty afterwards and may be used again."""
        for g, pages in enumerate(table.pages):
            free = self._free[g]
            for j in range(len(pages) - 1, table.first[g] - 1, -1):
                free.append(pages[j])
            pages.clear()
            table.first[g] = 0


def pages_for(window: int, n_ctx: int, n_batch: int) -> int:
    """Most pages of a group that one sequence of n_ctx positions can hold at one
    time when steps take at most n_batch of them.

    In a window group, before a step of n_batch positions from `start`, the first
    page kept holds start - window + 1 and the last one start + n_batch - 1: a span
    of window + n_batch - 1 positions, which touches at most one page more than it fills.
    """
    full = -(-n_ctx // PAGE)
    if not window:
        return full
    return min(full, -(-(window + n_batch - 1) // PAGE) + 1)

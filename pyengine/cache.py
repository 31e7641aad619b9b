"""Which page holds which positions of which sequence: integers only, no bytes.

The bytes of the KV cache belong to the bound program; this file only says who
uses them. A cache group is the layers with equal window and KV shape; each
group has its own pool of pages, and a page holds PAGE consecutive positions of
one sequence for all layers of its group. Pages are taken when positions are
about to be written and given back when the sequence ends, or, in a group with
a window, as soon as no later position can see them. Nothing is reserved for a
worst case: that many sequences share a pool is the scheduler's to arrange.

Pages are counted, not owned: a table holds one reference to each of its pages
and the prefix index (prefix.py) one to each page it knows, so a page may serve
many sequences with one history. What a position's keys and values are depends
on nothing but the tokens up to it and the adapter, to the bit, so sharing
changes no answer. A page is written only by a table that alone refers to it;
extend() puts a copy in the place of any other.

A page is free (no reference), cached (only the index refers to it) or used.
Cached pages are as good as free: extend() evicts them when it needs room.

A model with state beside its pages has slots as well: a slot is the state of one
history behind one of its positions. It is written once and never changed: a step
reads one and writes others, so a fork is a reference, and what a step that was
stopped or a guess that was wrong has written is a slot nobody looks at. They are
counted like pages, as one more group of the index, behind those of the pages.

Not the scheduler: it decides neither who runs nor when. Imported by schedule,
engine, draft and fit. Imports prefix.
"""
from .prefix import GONE, PAGE, STATE, Index


class Table:
    """The pages of one sequence. pages[g][j] is the page of group g that holds
    positions PAGE*j .. PAGE*j + PAGE-1, or GONE where no later position can see it."""

    __slots__ = ("pages", "first", "states", "copies", "node", "root", "matched")

    def __init__(self, n_groups: int):
        self.pages = tuple([] for _ in range(n_groups))
        self.first = [0] * n_groups      # entries below this index are GONE
        self.states = {}                 # n -> slot with the state behind the first n positions; held, or to be written by the next step
        self.copies = []                 # (group, source, target) that no step has made yet
        self.matched = ()                # the index's entries that match() gave, until they are put to use
        self.node = self.root = None     # the index's entry of the last full page published or matched, and its namespace


class Cache:
    def __init__(self, windows, n_pages, *, n_slots=0, reuse=True):
        """windows[g]: how many positions a position of group g sees, itself
        included; 0 where it sees all. n_pages[g]: pages in the pool of group g. n_slots: of state; 0: the model has none.
        reuse=False: nothing enters the prefix index and match() finds nothing."""
        assert len(windows) == len(n_pages) and all(n > 0 for n in n_pages)
        self.windows = tuple(windows)
        self.n_pages = tuple(n_pages)
        self.n_slots, self.reuse = n_slots, reuse
        self._state = len(n_pages)       # the group of the slots
        if n_slots:
            windows, n_pages = (*windows, STATE), (*n_pages, n_slots)
        # Taken from the end, so low ids come first and a page given back is
        # reused at once: only pages that were needed at one time are ever touched.
        self._free = [list(range(n - 1, -1, -1)) for n in n_pages]
        self._refs = [[0] * n for n in n_pages]
        self._copying = {}               # copy -> its table, until it is made
        self._index = Index(tuple(windows), self._refs)
        self._entry = self._index.entry  # [g][page]: the index's node that holds it, or None

    def table(self) -> Table:
        return Table(len(self.windows))

    # ---- counts ------------------------------------------------------------------

    @property
    def free(self) -> tuple:
        """Pages per group that nobody refers to."""
        return tuple(len(f) for f in self._free[:self._state])

    @property
    def cached(self) -> tuple:
        """Pages per group that only the index refers to."""
        return tuple(self._index.cached[:self._state])

    @property
    def used(self) -> tuple:
        """Pages per group that tables refer to."""
        return tuple(n - len(f) - c for n, f, c in zip(self.n_pages, self._free, self._index.cached))

    @property
    def available(self) -> tuple:
        """Pages per group that extend() can take: free and cached."""
        return tuple(self._room(g) for g in range(self._state))

    @property
    def slots(self) -> tuple:
        """Slots that tables refer to, and that only the index refers to."""
        cached = self._index.cached[self._state] if self.n_slots else 0
        return (self.n_slots - len(self._free[self._state]) - cached if self.n_slots else 0), cached

    @property
    def evictions(self) -> int:
        """Pages taken from the index for somebody who needed them, so far."""
        return self._index.evictions

    def missing(self, table: Table, start: int, end: int) -> list:
        """Pages per group that extend(table, start, end) has to take."""
        n = -(-end // PAGE)
        shared = self._shared(table, start)
        return [max(0, n - len(pages)) + (g in shared) for g, pages in enumerate(table.pages)]

    def room(self, table: Table, start: int) -> int:
        """The first position from `start` on that cannot be held with the pages that are available now."""
        if self.n_slots and not self._room(self._state):
            return start
        shared = self._shared(table, start)
        available = self.available
        if shared and self._only_the_index(table, start, shared):
            shared = ()
        if any(not available[g] for g in shared):
            return start
        return PAGE * min(len(pages) + a - (g in shared) for g, (pages, a) in enumerate(zip(table.pages, available)))

    # ---- pages for positions ---------------------------------------------------------

    def extend(self, table: Table, start: int, end: int, saves=()):
        """Pages for writing positions start .. end-1, and slots for the states behind the first n positions, n of saves;
        None, and nothing has changed, where a pool is short.

        Returns the copies (group, source page, target page) that the step has to make
        before it writes: of the page that holds `start`, where others refer to it too.
        The source stays referenced until copied(). A step that was planned and did
        not run is planned again: the copies that are still to be made are returned again.
        """
        if self.n_slots and sum(n not in table.states for n in saves) > self._room(self._state):
            return None
        missing = self.missing(table, start, end)
        if any(m > a for m, a in zip(missing, self.available)):
            # A pool that holds just one sequence has no page for a copy of what it shares
            # with the index alone: the entry is given up and the page is the table's.
            shared = self._shared(table, start)
            if not shared or not self._only_the_index(table, start, shared):
                return None
            if any(m - (g in shared) > a for g, (m, a) in enumerate(zip(missing, self.available))):
                return None
            self._give_up(table, start // PAGE, shared)
            missing = self.missing(table, start, end)
        for node in table.matched:       # a hit is one that somebody goes on from, not each look at the queue's head
            node.hits += 1
        table.matched = ()
        shared = self._shared(table, start)
        for g, m in enumerate(missing):
            if not m:
                continue
            pages = table.pages[g]
            if g in shared:
                j, target = start // PAGE, self._page(g, table.root)
                table.copies.append((g, pages[j], target))
                self._copying[table.copies[-1]] = table
                pages[j] = target
                m -= 1
            for _ in range(m):
                pages.append(self._page(g, table.root))
        self.save(table, saves)
        return list(table.copies)

    def save(self, table: Table, places) -> None:
        """Slots for the states behind the first n positions, n of places, which the next step writes; as far as there are any."""
        for n in places if self.n_slots else ():
            if n not in table.states and self._room(self._state):
                table.states[n] = self._page(self._state, table.root)

    def settle(self, table: Table, n: int) -> None:
        """The table goes on from n: of the states it holds only the one there is needed."""
        for at in [at for at in table.states if at != n]:
            self._drop(self._state, table.states.pop(at))

    def copied(self, copies) -> None:
        """The step with these copies ran: their sources lose the reference they were kept by.
        Not called for a step that did not run; copies of tables that ended since are over already."""
        for copy in copies:
            table = self._copying.pop(copy, None)
            if table is not None:
                table.copies.remove(copy)
                self._drop(copy[0], copy[1])

    def forget(self, table: Table, start: int) -> None:
        """Gives back pages that no position from `start` on can see."""
        for g, window in enumerate(self.windows):
            if not window:
                continue
            # Page j ends at PAGE*j + PAGE-1; position p sees positions above p - window.
            pages = table.pages[g]
            last = min(max(0, (start - window + 1) // PAGE), len(pages))
            for j in range(last - 1, table.first[g] - 1, -1):
                self._drop(g, pages[j])
                pages[j] = GONE
            table.first[g] = max(table.first[g], last)

    def release(self, table: Table, tokens=None, n=0, key=None) -> None:
        """Ends the table: every page loses its reference. It is empty afterwards and may be used again.

        With tokens, of which the first n are computed, the index learns all of their
        pages first, also the last one, which may be partly filled."""
        for copy in table.copies:        # never made: what there is to read is still in the source
            g, source, target = copy
            del self._copying[copy]
            pages = table.pages[g]
            pages[pages.index(target, table.first[g])] = source
            self._drop(g, target)
        table.copies = []
        if tokens is not None and self.reuse and n:
            self.publish(table, tokens, n, key)
            if n % PAGE:
                node = table.node if n >= PAGE else self._index.root(key)
                self._enter(table, node, tokens, n - n % PAGE, n % PAGE)
        for g, pages in enumerate(table.pages):
            window = self.windows[g]
            for j in range(len(pages) - 1, table.first[g] - 1, -1):
                page = pages[j]
                if window and self._entry[g][page] is not None:
                    self._entry[g][page].seen = True      # a sequence ended in sight of it: the place where the next turn begins
                self._drop(g, page)
            pages.clear()
            table.first[g] = 0
        for at, slot in table.states.items():
            if at == n and self._entry[self._state][slot] is not None:
                self._entry[self._state][slot].seen = True
            self._drop(self._state, slot)
        table.states = {}
        table.node = table.root = None
        table.matched = ()

    def fork(self, table: Table, n: int) -> "Table | None":
        """A table that shares the pages of the positions below n that position n can see; None where the state there is not kept."""
        assert not table.copies, "forked between a plan and its step"
        if self.n_slots and n and n not in table.states:
            return None
        new = self.table()
        end = -(-n // PAGE)
        for g, window in enumerate(self.windows):
            first = min(max(0, n - window + 1) // PAGE, end) if window else 0
            assert table.first[g] <= first and end <= len(table.pages[g]), "forked where its pages are gone"
            new.pages[g].extend([GONE] * first)
            new.first[g] = first
            for page in table.pages[g][first:end]:
                self._take(g, page)
                new.pages[g].append(page)
        if self.n_slots and n:
            new.states[n] = table.states[n]
            self._take(self._state, table.states[n])
        new.root, new.node = table.root, table.node
        if new.node is not None:
            while new.node.end > n:
                new.node = new.node.parent
        return new

    # ---- reuse -------------------------------------------------------------------

    def match(self, table: Table, tokens, limit: int, key) -> int:
        """Gives an empty table the pages of the longest prefix of tokens[:limit] that is
        cached for `key` (adapter, salt), and returns its length: so many positions need
        not be computed. In a window group only what position `length` sees is held."""
        assert not table.copies and not any(table.pages) and not table.states
        if not self.reuse or limit <= 0:
            return 0
        n, path = self._index.match(key, tokens, limit)
        table.root = self._index.known_root(key)
        if n:
            for g, window in enumerate(self.windows):
                first = min(max(0, n - window + 1) // PAGE, len(path)) if window else 0
                table.pages[g].extend([GONE] * first)
                table.first[g] = first
                for node in path[first:]:
                    self._take(g, node.pages[g])
                    table.pages[g].append(node.pages[g])
                    if window:
                        node.seen = True
            if self.n_slots:
                table.states[n] = path[-1].pages[self._state]
                self._take(self._state, table.states[n])
                path[-1].seen = True
            table.matched = path
            table.node = path[n // PAGE - 1] if n >= PAGE else table.root
        return n

    def publish(self, table: Table, tokens, n: int, key) -> None:
        """The first n tokens are computed: their full pages enter the index. Where it knows
        the same history already, the table goes over to its pages and gives back its own."""
        if not self.reuse:
            return
        node = table.node
        if node is not None and node.alive:
            if n - node.end < PAGE:      # every step of a decode but one in PAGE ends here
                return
        elif n < PAGE:
            return
        else:                            # the first time, or the entries were dropped in the meantime
            table.root = node = self._index.root(key)
        for start in range(node.end, n - PAGE + 1, PAGE):
            node = self._enter(table, node, tokens, start, PAGE)
        table.node = node

    def clear(self, key=None) -> None:
        """Drops what the index knows: of one key, or all of it. Pages in use stay with their tables."""
        for root in self._index.roots(key):
            self._drop_all(self._index.remove(root))

    # ---- files -------------------------------------------------------------------

    def entries(self, key=None, tokens=None):
        """What the index knows, the worthiest first: (number of the parent or -1, key, tokens of the page, its
        page of each group or GONE, its slot where there are any, seen), numbered from 0, parents before children. With tokens: of `key`
        what lies on the way to them."""
        nodes = self._index.walk() if tokens is None else self._index.path(key, tokens)
        numbers = {}
        for node, n in nodes:
            pages = list(node.pages)
            if self.n_slots and n < node.end - node.parent.end:
                pages[self._state] = GONE    # it lies behind all of the node's tokens
            yield numbers.get(node.parent, -1), node.root.key, node.tokens()[:n], tuple(pages), node.seen
            numbers[node] = len(numbers)

    def adopt(self, records, fill) -> int:
        """Makes entries of records as entries() gives them, each page of a group being there or GONE, and calls
        fill(number, group, page) for each page whose bytes are to be put there before this returns. What finds
        no page, or no parent, is left out. Returns how many positions are there afterwards."""
        nodes, held, n = [], [], 0
        try:
            for i, (parent, key, tokens, present, seen) in enumerate(records):
                node = None
                if parent < 0 or nodes[parent] is not None:
                    node = self._adopt(nodes[parent] if parent >= 0 else None, key, tokens, present, seen, held,
                                       lambda g, page, i=i: fill(i, g, page))
                nodes.append(node)
                n += len(tokens) if node is not None else 0
        except BaseException:            # a page that was not filled must not be found
            for g, page in held:
                if self._entry[g][page] is not None:
                    self._drop_all(self._index.remove(self._entry[g][page]))
            raise
        finally:
            for g, page in held:
                self._drop(g, page)
        return n

    def _adopt(self, parent, key, tokens, present, seen, held, fill):
        """The node, with a reference to each of its pages in `held`: what comes next evicts none of them."""
        index = self._index
        if parent is None:
            parent = index.known_root(key)
        node = index.find(parent, tokens, 0, len(tokens)) if parent is not None else None
        if node is None:
            if any(present[g] == GONE or not a for g, (w, a) in enumerate(zip(self.windows, self.available)) if not w):
                return None
            if not any(p != GONE and a for p, a in zip(present, self.available)):
                return None
            if parent is None:
                parent = index.root(key)
            node, dropped = index.add(parent, tokens, 0, len(tokens))
            node.seen = seen
            self._drop_all(dropped)
        elif node.end - parent.end > len(tokens):
            present = [GONE] * len(present)          # a part of a page does not stand for all of it
        for g, page in enumerate(node.pages):
            if page == GONE and present[g] != GONE and self._room(g):
                page = self._page(g, node.root)
                self._lend(g, node, page)
                held.append((g, page))
                fill(g, page)
            elif page != GONE:
                self._take(g, page)
                held.append((g, page))
        return node

    # ---- how ---------------------------------------------------------------------

    def _room(self, g: int) -> int:
        """Pages of group g, or slots, that can be had."""
        return len(self._free[g]) + self._index.cached[g]

    def _page(self, g: int, root) -> int:
        """A page of group g with one reference, the caller's; there is one."""
        free = self._free[g]
        while not free:
            self._drop_all(self._index.evict(g, root))
        page = free.pop()
        self._refs[g][page] = 1
        return page

    def _take(self, g: int, page: int) -> None:
        refs = self._refs[g]
        refs[page] += 1
        if refs[page] == 2 and self._entry[g][page] is not None:
            self._index.busy(g, self._entry[g][page])

    def _drop(self, g: int, page: int) -> None:
        refs = self._refs[g]
        refs[page] -= 1
        if not refs[page]:
            self._free[g].append(page)
        elif refs[page] == 1 and self._entry[g][page] is not None:
            self._index.idle(g, self._entry[g][page])
        assert refs[page] >= 0

    def _drop_all(self, pages) -> None:
        """The index gave up these (group, page)."""
        for g, page in pages:
            self._drop(g, page)

    def _shared(self, table: Table, start: int):
        """Groups whose page that holds `start` is there already and somebody else's too."""
        j = start // PAGE
        return [g for g, pages in enumerate(table.pages)
                if j < len(pages) and pages[j] != GONE and self._refs[g][pages[j]] > 1] if start % PAGE else ()

    def _only_the_index(self, table: Table, start: int, shared) -> bool:
        j = start // PAGE
        return all(self._refs[g][table.pages[g][j]] == 2 and self._entry[g][table.pages[g][j]] is not None for g in shared)

    def _give_up(self, table: Table, j: int, shared) -> None:
        for g in shared:
            node = self._entry[g][table.pages[g][j]]
            if node is not None:
                self._drop_all(self._index.remove(node))

    def _enter(self, table: Table, parent, tokens, start: int, count: int):
        """The index's node for tokens[start:start+count] behind `parent`, made from the table's pages where there is none."""
        j = start // PAGE
        node = self._index.find(parent, tokens, start, count)
        if node is None:
            node, dropped = self._index.add(parent, tokens, start, count)
            for g, pages in enumerate(table.pages):
                self._lend(g, node, pages[j])
            self._lend_state(table, node, start + count)
            self._drop_all(dropped)
            return node
        self._lend_state(table, node, start + count)
        for g, pages in enumerate(table.pages):
            mine, known = pages[j], node.pages[g]
            if mine == known or mine == GONE:
                continue
            if known == GONE:
                if node.end == start + count:        # a part of a page does not stand for all of it
                    self._lend(g, node, mine)
            else:
                self._take(g, known)
                pages[j] = known
                self._drop(g, mine)
        return node

    def _lend_state(self, table: Table, node, end: int) -> None:
        if end in table.states and node.end == end and node.pages[self._state] == GONE:
            self._lend(self._state, node, table.states[end])

    def _lend(self, g: int, node, page: int) -> None:
        """The index takes a reference to a table's page."""
        if page != GONE:
            assert self._entry[g][page] is None
            node.pages[g] = page
            self._entry[g][page] = node
            self._refs[g][page] += 1


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

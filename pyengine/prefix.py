"""The prefix index: which cached page continues which history of tokens, and which page to give up first.

A tree per namespace (adapter, cache salt). A node is one page of positions: its
edge is the page's tokens, its children continue it. A node holds its page of
every group; in a group with a window the page may be GONE by itself, for it
serves only those who still see it. A page that its sequence filled in part is a
leaf with fewer tokens.

A model with state beside its pages (short convolutions, recurrences) has one more
group, whose window is STATE and whose "page" is a slot: the state behind the last
position of the node. A sequence can go on only behind a node that has it, behind
all of its tokens. Slots are given up one by one, as pages of a window are.

Tokens are compared, never trusted to a hash: an edge is its ids as bytes, found
in a dict (whose hash of bytes is salted by the interpreter, and equality
decides) or, for a part of a page, as the neighbour in the sorted list of edges,
with which it shares most. Namespaces never meet.

What is given up first, in each pool: the entry of least worth, where

    worth = clock + cost * (1 + hits)         (GreedyDual with frequency)

is set when the last sequence lets go of the page, and clock is the worth of
what was given up last: age counts in what others were worth. cost is the
positions that have to be computed again: for full groups the tokens of the
page, and only leaves are given up, so that what is left is reachable; for a
window the end of the page, if a match or a sequence ended in sight of it (to go
on from there all of what is in sight is needed, or everything is computed
again), else 1: nobody has stopped there yet. hits counts matches, at most MAX_HITS. A namespace that
holds more than half of what can be given up pays with its own: a flood of
unique prompts under one key does not empty the others' cache.

Does not count references (cache.py does, and lends its counts) and allocates no
page. Imported by cache. Imports nothing.
"""
from array import array
from bisect import bisect_left
from heapq import heapify, heappop, heappush

PAGE = 64          # positions per page; PE_PAGE in csrc/pyengine.h
GONE = -1          # table entry of a page that no later position can see
STATE = -1         # the "window" of a group of slots: position n sees what lies behind position n - 1, and nothing before
MAX_HITS = 15


def edge(tokens, start: int, count: int) -> bytes:
    return array("i", tokens[start:start + count]).tobytes()


WIDTH = array("i").itemsize        # bytes of a token in an edge


class Node:
    """The pages of positions end - len(edge) .. end-1 of one history."""

    __slots__ = ("root", "parent", "edge", "end", "pages", "children", "edges", "alive", "hits", "seen", "worth")

    def __init__(self, root, parent, edge_: bytes, n_groups: int):
        self.root, self.parent, self.edge = root or self, parent, edge_
        self.end = parent.end + len(edge_) // WIDTH if parent else 0
        self.pages = [GONE] * n_groups
        self.children = None         # edge -> Node
        self.edges = None            # the children's edges, sorted
        self.alive = True
        self.hits = 0                # matches that took it
        self.seen = False            # a match or a sequence ended in sight of it
        self.worth = [(0, 0)] * n_groups     # and a count of such moments, when the last sequence let go of it


    def tokens(self) -> list:
        return array("i", self.edge).tolist()


class Root(Node):
    """Position 0 of a namespace."""

    __slots__ = ("key", "cached", "queues", "n_nodes")

    def __init__(self, key, n_groups: int):
        super().__init__(None, None, b"", n_groups)
        self.key = key
        self.cached = [0] * n_groups
        self.queues = [Queue() for _ in range(n_groups)]
        self.n_nodes = 0


class Queue:
    """Nodes by worth, least first. A node stands here once, with the worth it had then, which never
    grows less; whether it may go is asked when it comes to the head."""

    __slots__ = ("heap", "inside")

    def __init__(self):
        self.heap, self.inside = [], set()

    def push(self, node: Node, g: int) -> None:
        if node not in self.inside:
            self.inside.add(node)
            heappush(self.heap, (node.worth[g], node))     # of equal worth, who was let go first; no two are equal

    def tidy(self, most: int) -> None:
        """Forgets nodes that have left the tree, once they may be half of the queue."""
        if len(self.heap) > 2 * most + 16:
            self.heap = [item for item in self.heap if item[1].alive]
            heapify(self.heap)
            self.inside = {item[1] for item in self.heap}


class Index:
    def __init__(self, windows, refs):
        """refs[g][page]: the cache's reference counts; one of them is the index's where entry[g][page] is a node."""
        self.windows = windows
        self.refs = refs
        self.entry = [[None] * len(r) for r in refs]
        self.cached = [0] * len(windows)
        self.evictions = 0
        self.n_nodes = 0
        self._full = [g for g, w in enumerate(windows) if not w]
        # Full groups hold the same nodes, each with a page of its own, so one queue serves all of them.
        self._queue = [self._full[0] if not w else g for g, w in enumerate(windows)]
        self._queues = [Queue() for _ in windows]
        self._clock = [0] * len(windows)
        self._moment = 0
        self._roots = {}

    # ---- finding -----------------------------------------------------------------

    def root(self, key) -> Root:
        root = self._roots.get(key)
        if root is None:
            root = self._roots[key] = Root(key, len(self.windows))
        return root

    def roots(self, key=None) -> list:
        return list(self._roots.values()) if key is None else [r for r in [self._roots.get(key)] if r]

    def known_root(self, key):
        return self._roots.get(key)

    def walk(self) -> list:
        """Every node: the worthiest leaf first, each behind its ancestors."""
        leaves, out = [], {}
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            if node.children:
                stack.extend(node.children.values())
            else:
                leaves.append(node)
        for leaf in sorted(leaves, key=lambda node: max(node.worth), reverse=True):
            way = []
            while leaf.parent is not None and leaf not in out:
                way.append(leaf)
                leaf = leaf.parent
            out.update((node, None) for node in reversed(way))
        return [(node, node.end - node.parent.end) for node in out]

    def path(self, key, tokens) -> list:
        """(node, how many of its tokens) on the way of these tokens; the last node may go another way behind them."""
        node, out, n = self._roots.get(key), [], PAGE
        while node is not None and n == PAGE and node.end < len(tokens):
            part = edge(tokens, node.end, PAGE)
            child = node.children.get(part) if node.children else None
            common = [(_common(c.edge, part) // WIDTH, c) for c in ([child] if child else self._neighbours(node, part))]
            n, node = max(common, key=lambda c: c[0], default=(0, None))
            if n:
                out.append((node, n))
        return out

    def match(self, key, tokens, limit: int):
        """(length, nodes) of the longest prefix of tokens[:limit] that is cached with all that position `length` sees."""
        node = self._roots.get(key)
        if node is None:
            return 0, []
        path = []
        best = 0
        windows = [(g, w) for g, w in enumerate(self.windows) if w > 0]
        states = [g for g, w in enumerate(self.windows) if w == STATE]
        since = [0] * len(windows)   # in group i of these, pages from since[i] on are there

        def whole(n, last):
            """Is all there that position n sees, which is in or behind the node `last`?"""
            return all(last.pages[g] != GONE and n == last.end for g in states) and all(since[i] <= max(0, n - w + 1) // PAGE for i, (g, w) in enumerate(windows))

        while True:
            part = edge(tokens, node.end, min(PAGE, limit - node.end))
            child = node.children.get(part) if node.children and len(part) == PAGE * WIDTH else None
            if child is None:
                break
            path.append(child)
            for i, (g, _) in enumerate(windows):
                if child.pages[g] == GONE:
                    since[i] = len(path)
            node = child
            if whole(len(path) * PAGE, node):
                best = len(path) * PAGE
        # The rest of a page: who shares most of it stands beside it.
        rest = None
        for child in self._neighbours(node, part):
            n = len(path) * PAGE + _common(child.edge, part) // WIDTH
            if n > best and all(child.pages[g] != GONE for g, _ in windows) and whole(n, child):
                best, rest = n, child
        return best, path[:best // PAGE] + ([rest] if best % PAGE else [])

    def find(self, parent: Node, tokens, start: int, count: int):
        """The child of `parent` whose page begins with tokens[start:start+count], or None."""
        part = edge(tokens, start, count)
        if not parent.children:
            return None
        child = parent.children.get(part)
        if child is None and count < PAGE:
            i = bisect_left(parent.edges, part)
            if i < len(parent.edges) and parent.edges[i].startswith(part):
                child = parent.children[parent.edges[i]]
        return child

    @staticmethod
    def _neighbours(node: Node, part: bytes) -> list:
        if not part or not node.children:
            return []
        i = bisect_left(node.edges, part)
        return [node.children[e] for e in node.edges[max(0, i - 1):i + 1]]

    # ---- growing and shrinking ----------------------------------------------------------

    def add(self, parent: Node, tokens, start: int, count: int):
        """A new child, without pages, and the (group, page) it makes superfluous: those of a leaf whose tokens it begins with."""
        node = Node(parent.root, parent, edge(tokens, start, count), len(self.windows))
        dropped = []
        if parent.children is None:
            parent.children, parent.edges = {}, []
        i = bisect_left(parent.edges, node.edge)
        parent.children[node.edge] = node
        parent.edges.insert(i, node.edge)
        if i and node.edge.startswith(parent.edges[i - 1]):
            part = parent.children[parent.edges[i - 1]]
            node.hits, node.seen = part.hits, part.seen
            dropped = self.remove(part)
        node.root.n_nodes += 1
        self.n_nodes += 1
        return node, dropped

    def remove(self, node: Node) -> list:
        """Takes a node and all that continues it out of the tree: (group, page) that are no longer the index's."""
        dropped = []
        parent, stack = node.parent, [node]
        while stack:
            gone = stack.pop()
            if gone.children:
                stack.extend(gone.children.values())
            for g in range(len(self.windows)):
                self._let_go(gone, g, dropped)
            gone.alive, gone.children, gone.edges = False, None, None
            if gone.parent is not None:
                gone.root.n_nodes -= 1
                self.n_nodes -= 1
        if parent is None:
            del self._roots[node.key]
        else:
            del parent.children[node.edge]
            del parent.edges[bisect_left(parent.edges, node.edge)]
            if not parent.children:
                self._is_leaf(parent, dropped)
            node.parent = None
        return dropped

    def _is_leaf(self, node: Node, dropped) -> None:
        """The last child has gone: the node may be next, or, where nothing is left of it, goes too."""
        if node.parent is None:
            del self._roots[node.key]
            node.alive = False
        elif all(page == GONE for page in node.pages):
            dropped.extend(self.remove(node))
        elif self._full and self._may_go(node, self._full[0]):
            self._enqueue(node, self._full[0])

    def _let_go(self, node: Node, g: int, dropped) -> None:
        page = node.pages[g]
        if page != GONE:
            if self.refs[g][page] == 1:
                self.cached[g] -= 1
                node.root.cached[g] -= 1
            node.pages[g] = GONE
            self.entry[g][page] = None
            dropped.append((g, page))

    # ---- who goes first ---------------------------------------------------------------------

    def busy(self, g: int, node: Node) -> None:
        """A sequence took the page that only the index held."""
        self.cached[g] -= 1
        node.root.cached[g] -= 1

    def idle(self, g: int, node: Node) -> None:
        """The last sequence let go of the page: it may be given up."""
        self.cached[g] += 1
        node.root.cached[g] += 1
        q = self._queue[g]
        if q != g:
            return
        if self.windows[g]:
            cost = node.end if node.seen else 1
        else:
            cost = node.end - node.parent.end
        self._moment += 1
        node.worth[q] = self._clock[q] + cost * (1 + min(node.hits, MAX_HITS)), self._moment
        if self._may_go(node, q):
            self._enqueue(node, q)

    def evict(self, g: int, root) -> list:
        """Gives up the least worthy entry of group g: (group, page) that are no longer the index's.
        root: the namespace it is done for."""
        q = self._queue[g]
        own = root is not None and root.alive and 2 * root.cached[g] > self.cached[g]
        node = own and self._least(root.queues[q], q) or self._least(self._queues[q], q) or self._stranded(q)
        self._clock[q] = max(self._clock[q], node.worth[q][0])
        self.evictions += 1
        if not self.windows[q]:
            return self.remove(node)
        dropped = []
        self._let_go(node, q, dropped)
        if not node.children and all(page == GONE for page in node.pages):
            dropped.extend(self.remove(node))
        return dropped

    def _may_go(self, node: Node, q: int) -> bool:
        page = node.pages[q]
        return (node.alive and page != GONE and self.refs[q][page] == 1
                and (bool(self.windows[q]) or not node.children))

    def _enqueue(self, node: Node, q: int) -> None:
        for queue, most in ((self._queues[q], self.n_nodes), (node.root.queues[q], node.root.n_nodes)):
            queue.push(node, q)
            queue.tidy(most)

    def _least(self, queue: Queue, q: int) -> "Node | None":
        while queue.heap:
            worth, node = heappop(queue.heap)
            queue.inside.discard(node)
            if self._may_go(node, q):
                if worth >= node.worth[q]:
                    return node
                queue.push(node, q)          # it was used since it came here
        return None

    def _stranded(self, q: int) -> Node:
        """A node that nobody uses, before one that somebody does: after clear(), tables that were forked before may
        hold equal histories in different pages, and enter the rest of them behind each other's."""
        return next(node for page, node in enumerate(self.entry[q]) if node is not None and self.refs[q][page] == 1)


def _common(a: bytes, b: bytes) -> int:
    """Bytes that two edges have in common from their beginning."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    low, high = 0, n                     # a[:low] == b[:low], a[:high] != b[:high]
    while high - low > 1:
        mid = (low + high) // 2
        if a[low:mid] == b[low:mid]:
            low = mid
        else:
            high = mid
    return low

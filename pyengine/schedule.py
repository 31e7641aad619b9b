"""Who runs in the next step: sequences, their order and their pages. Integers only.

A step is a ragged list of chunks (sequence, start, count): a decode is one row and
what is guessed behind it, a piece of a prompt is more, and nothing else distinguishes
them. Since every logit has one bit pattern however a prompt is cut and whoever shares
the step, nothing decided here can change an answer; it decides only who waits.

  * Sequences have a rank: priority 0 before 1, then by age. Rank decides who is
    seated, who gets the rows that prompts share, and, from its other end, who gives
    up all of its pages when a pool runs out and is computed again later.
  * Every seated sequence that only needs its next token gets one row, in turn if
    there are more of them than a step has rows.
  * What is left of the step's rows is shared equally among the keys that have
    prompts, so that many of one client do not keep another's waiting; what does not
    divide goes to the key that has had least. In a key half goes to the oldest prompt
    and the rest to the shortest. Keys take turns in being seated, too.
  * Whoever waits with priority 0 takes the seat or the pages of a sequence of
    priority 1. So that those do not starve, the oldest of them is promoted to
    priority 0 when it has not advanced for PATIENCE steps; one at a time, so that a
    heap of old batch work does not come before people.
  * The first in rank is never short of pages, so with work waiting some sequence
    always advances; and the oldest request becomes the first in rank.
  * A sequence with a parent waits until the parent's prompt is computed, and then
    shares its pages (n answers to one prompt); if the parent ends or gives way
    before, it goes its own way.

This is not the engine: it runs nothing, samples nothing and knows no text.
Imported by engine. Imports cache and sequences.
"""
from bisect import insort

from .cache import PAGE, Cache, pages_for
from .sequences import DONE, RUNNING, WAITING, Chunk, Queue, Sequence

PATIENCE = 256               # steps; half a minute at the 100 ms of a step that computes prompts


class Scheduler:
    def __init__(self, cache: Cache, *, max_seqs: int, max_tokens: int, max_wanted: int, patience: int = PATIENCE, whole: bool = False):
        """At most max_seqs sequences run at one time; a step has at most
        max_tokens rows, of which at most max_wanted want logits. whole: a sequence is never split over
        steps; each has at most max_tokens, and nothing to wait for afterwards."""
        assert max_seqs > 0 and max_tokens > 0 and max_wanted > 0
        assert not whole or max_wanted == max_tokens
        self.cache, self.whole = cache, whole
        self.max_seqs, self.max_tokens, self.max_wanted = max_seqs, max_tokens, max_wanted
        self.running = []            # by rank
        self.copies = []             # (group, source, target) that the planned step has to make first
        self.n_preempted = self.n_cached = 0
        self._queues = (Queue(), Queue())
        self._n_held = 0             # those that wait for a parent
        self._batch = {}             # live sequences of priority 1, oldest first; those promoted are not among them
        self.patience = self._left = patience        # steps that are left until the oldest of them is promoted
        self._served = {}            # key -> rows its prompts have had, of keys that have prompts
        self._age = 0
        self._turn = (0, 0)          # the next step begins with the first sequence of at least this rank

    @property
    def n_waiting(self) -> int:
        return len(self._queues[0]) + len(self._queues[1]) + self._n_held

    @property
    def idle(self) -> bool:
        return not self.running and not self.n_waiting

    def add(self, seq: Sequence) -> None:
        assert seq.state == WAITING and seq.age < 0
        seq.age = self._age
        self._age += 1
        seq.rank = (seq.priority, seq.age)
        if seq.priority:
            self._batch[seq] = None
        parent = seq.parent
        if parent is not None and parent.state != DONE and not parent.n_preempted and parent.computed < parent.n_prompt:
            parent.children = (*parent.children, seq)
            self._n_held += 1
        else:
            seq.parent = None
            self._queues[seq.priority].push(seq)

    def remove(self, seq: Sequence) -> None:
        """Ends a sequence wherever it stands, between steps. Its pages are free at once, or cached."""
        if seq.state == RUNNING:
            self.running.remove(seq)
        elif seq.state == WAITING and seq.age >= 0:
            if seq.parent is not None:
                seq.parent.children = tuple(c for c in seq.parent.children if c is not seq)
                self._n_held -= 1
            else:
                self._queues[seq.rank[0]].remove(seq)
        if seq.table is not None:
            self._release(seq)
        seq.state = DONE
        self._batch.pop(seq, None)
        self._let_go(seq)

    def next_step(self, prompt_rows=None) -> list:
        """The chunks of the next step, in the order of their rank; empty only when idle. `copies` come before.

        prompt_rows: how many rows prompts may take beside decodes or other
        waiting work, to keep steps short; None: as many as there are. They get
        at least one. What a step plans is not counted until commit().
        """
        self.copies = []
        if self.cache.n_slots:
            for seq in self.running:     # what guesses that were wrong and steps that did not run have left
                self.cache.settle(seq.table, seq.computed)
        self._promote()
        self._admit()
        # A turn may fall to sequences that find no page and are too low in rank to take
        # another's; the first can always run, and its turn comes within a round.
        for _ in range(len(self.running)):
            chunks = self._take_pages(self._deal(prompt_rows))
            if chunks:
                return chunks
        assert self.idle, "no sequence can run: a pool holds less than one whole sequence"
        return []

    def commit(self, chunks) -> None:
        """The step ran: its positions, but for the guesses, are in the cache."""
        cache = self.cache
        if self.copies:
            cache.copied(self.copies)
            self.copies = []
        self._left -= 1
        for c in chunks:
            seq = c.seq
            assert seq.state == RUNNING and seq.computed == c.start
            if seq.left > 1:
                self._served[seq.key] = self._served.get(seq.key, 0) + c.count
            self.accept(seq, c.count - c.n_draft)
            if seq.children and seq.computed >= seq.n_prompt:
                self._share_prompt(seq)
            if seq.computed // PAGE > seq._published:
                seq._published = seq.computed // PAGE
                cache.publish(seq.table, seq.tokens, seq.computed, seq.space)
            cache.forget(seq.table, seq.computed)    # known before: others may begin where this one no longer sees

    def accept(self, seq: Sequence, n: int) -> None:
        """n more positions are computed: of a step, or guesses that came true."""
        seq.computed += n
        if seq.computed > seq._reached:
            seq._reached = seq.computed
            if self._batch and seq is next(iter(self._batch)):
                self._left = self.patience

    # ---- who is seated ---------------------------------------------------------------

    def _admit(self) -> None:
        """From the head of the queues while there is a seat and, unless nothing runs,
        there are pages for all its tokens and one more page for everybody who runs:
        a sequence that would be preempted at once is better left waiting."""
        while True:
            queue = self._queues[0] or self._queues[1]
            if not queue:
                return
            seq = queue.head()
            short = self._shortage(seq) if len(self.running) < self.max_seqs else None
            if short is None or short:
                if not self._make_way(seq, short):
                    return
                continue
            queue.pop()
            seq.state = RUNNING
            self._seat(seq)
            if seq.n_cached is None:
                seq.n_cached = seq.computed
                self.n_cached += seq.computed

    def _seat(self, seq: Sequence) -> None:
        insort(self.running, seq, key=_rank)

    def _shortage(self, seq: Sequence) -> list:
        """Empty: it can be seated, and what is cached of it is its own from now on.
        Else the pages per group that are missing for it."""
        cache = self.cache
        fresh = seq.computed == 0
        if fresh:
            seq.table = cache.table()
            seq.computed = cache.match(seq.table, seq.tokens, min(len(seq.tokens) - 1, seq.wanted_from), seq.space)
        if not self.running:
            return []
        # Pages of prompts that are seated but not computed yet are spoken for.
        need = [n + len(self.running) for n in self._will_need(seq)]
        for other in self.running:
            if other.left > 1:
                need = [a + b for a, b in zip(need, self._will_need(other))]
        short = [n - a for n, a in zip(need, cache.available)]
        if max(short) <= 0:
            return []
        if fresh:
            cache.release(seq.table)
            seq.table, seq.computed = None, 0
        return short

    def _will_need(self, seq: Sequence) -> list:
        """Pages per group that a sequence still has to take for the tokens it has now."""
        missing = self.cache.missing(seq.table, seq.computed, len(seq.tokens))
        for g, window in enumerate(self.cache.windows):
            if window:               # the pool holds what one sequence can use at one time
                missing[g] = min(missing[g], pages_for(window, len(seq.tokens), self.max_tokens))
        return missing

    def _make_way(self, seq: Sequence, short) -> bool:
        """Takes the seat, or the pages if that helps, of the last in rank whose priority is below that of `seq`."""
        below = [s for s in self.running if s.rank[0] > seq.rank[0]]
        if not below:
            return False
        if short is not None:
            held = [sum(len(s.table.pages[g]) - s.table.first[g] for s in below) for g in range(len(short))]
            if any(n > h for n, h in zip(short, held)):
                return False
        self._preempt(below[-1])
        return True

    def _promote(self) -> None:
        if not self._batch:
            self._left = self.patience
        elif self._left <= 0:
            self._left = self.patience
            seq = next(iter(self._batch))
            del self._batch[seq]
            if seq.state == RUNNING:
                self.running.remove(seq)
                seq.rank = (0, seq.age)
                self._seat(seq)
            elif seq.parent is None:
                self._queues[1].remove(seq)
                seq.rank = (0, seq.age)
                self._queues[0].push_back(seq)

    # ---- rows ------------------------------------------------------------------------

    def _deal(self, prompt_rows) -> dict:
        """Rows of this step per sequence, beginning with whoever's turn it is."""
        running = self.running
        i = next((i for i, s in enumerate(running) if s.rank >= self._turn), 0)
        order = running[i:] + running[:i] if i else running
        self._turn = (order[0].rank[0], order[0].rank[1] + 1)
        if self.whole:
            return self._deal_whole(order)
        prompts = [s for s in order if s.left > 1]
        rows, wanted = self.max_tokens, self.max_wanted
        # Decodes leave a row to prompts, and one that may want logits; where there
        # is only one, the turn decides.
        first = bool(prompts) and order[0] is prompts[0]
        keep_row = 1 if prompts and (rows > 1 or first) else 0
        keep_wanted = 1 if prompts and (wanted > 1 or first) else 0
        counts = {}
        for seq in order:
            if seq.left == 1 and rows > keep_row and wanted > keep_wanted:
                counts[seq] = 1
                rows -= 1
                wanted -= 1
        if not prompts:
            # A guess takes no page that somebody's next token may need.
            plenty = min(self.cache.available) >= 2 * len(running)
            for seq in counts:
                if seq.draft:
                    n = min(len(seq.draft), rows, wanted)
                    if not plenty:
                        n = min(n, -len(seq.tokens) % PAGE)
                    del seq.draft[n:]
                    counts[seq] += n
                    rows -= n
                    wanted -= n
            return counts
        for seq in counts:           # a step with a prompt is bound by arithmetic: guesses would cost what they save
            seq.draft = []
        if prompt_rows is not None and (counts or len(prompts) > 1 or self.n_waiting):
            rows = min(rows, max(1, prompt_rows))
        served = self._served
        floor = min((served[s.key] for s in prompts if s.key in served), default=0)
        self._served = {s.key: served.get(s.key, floor) for s in prompts}
        for priority in (0, 1):
            some = [s for s in prompts if s.rank[0] == priority]
            if some and rows > 0:
                rows, wanted = self._share(some, rows, wanted, counts)
        return counts

    def _deal_whole(self, order) -> dict:
        """All of its rows to each sequence that they are left for; to the first in any case."""
        counts, rows = {}, self.max_tokens
        for seq in order:
            if seq.left <= rows:
                counts[seq] = seq.left
                rows -= seq.left
        return counts

    @staticmethod
    def _wanted(seq: Sequence, count: int) -> int:
        """Rows that want logits among the next `count` positions. A sequence that is
        computed again after preemption wants only what it has not been given yet."""
        end = seq.computed + count
        first = max(seq.wanted_from, seq.computed)
        return max(0, end - first)

    def _share(self, prompts, rows: int, wanted: int, counts) -> tuple:
        """Deals the rows out in equal shares among keys; what one leaves goes to the others. In a key the oldest prompt has half,
        so that it advances, and what is left goes to those that need least: of 16 equal prompts the first is answered after
        a sixteenth of the time, where equal shares would answer all at its end."""
        keys = {}
        for seq in prompts:
            keys.setdefault(seq.key, []).append(seq)

        def give(seq, most):
            nonlocal wanted
            have = counts.get(seq, 0)
            # Rows that want logits are bounded too: cut where the bound is met.
            free = max(0, seq.wanted_from - (seq.computed + have))
            n = min(most, seq.left - have, free + wanted)
            if n > 0:
                wanted -= max(0, n - free)
                counts[seq] = have + n
            return max(n, 0)

        while keys and rows > 0:
            of_key = max(1, rows // len(keys))
            for key in sorted(keys, key=self._served.get):
                mine = min(of_key, rows)
                rows -= mine
                mine -= give(min(keys[key], key=_rank), -(-mine // 2))
                for seq in sorted(keys[key], key=lambda s: (s.left, s.age)):
                    if not mine:
                        break
                    mine -= give(seq, mine)
                rows += mine
                if mine:
                    keys[key] = None
            keys = {key: some for key, some in keys.items() if some}
        return rows, wanted

    # ---- pages -----------------------------------------------------------------------

    def _take_pages(self, counts) -> list:
        """Pages for the rows, first in rank first. Where a pool is short, guesses go first, then pages that are
        kept for who is not seated, then the last in rank gives way; if that is the one that asks, it takes what there is."""
        chunks, cache = [], self.cache
        for seq in list(self.running):
            count = counts.get(seq, 0)
            if not count or seq.state != RUNNING:
                continue
            n_draft = count - 1 if seq.left == 1 else 0
            while True:
                end = seq.computed + count
                copies = cache.extend(seq.table, seq.computed, end, range(end - n_draft, end + 1))
                if copies is not None:
                    break
                if n_draft:
                    count, n_draft = 1, 0
                    seq.draft = []
                elif not self._drop_shared():
                    victim = self.running[-1]
                    if victim is not seq:
                        self._preempt(victim)
                        continue
                    count = 0 if self.whole else min(count - 1, cache.room(seq.table, seq.computed) - seq.computed)
                    if count <= 0:
                        break
            if count > 0:
                self.copies += copies
                chunks.append(Chunk(seq, seq.computed, count, self._wanted(seq, count), n_draft))
        if cache.n_slots:
            self._save_more(chunks)
        return chunks

    def _save_more(self, chunks) -> None:
        """States that the next step need not have: where choices of this prompt begin, and at the ends of pages, where other
        prompts may."""
        for c in chunks:
            first, end = c.seq.n_prompt - 1, c.start + c.count
            if c.seq.children and c.start < first <= end:
                self.cache.save(c.seq.table, (first,))
        for c in chunks if self.cache.reuse else ():
            self.cache.save(c.seq.table, range(c.start - c.start % PAGE + PAGE, c.start + c.count - c.n_draft, PAGE))

    def _drop_shared(self) -> bool:
        """Somebody who waits with pages of its parent's prompt gives them up."""
        for queue in self._queues:
            for seq in queue:
                if seq.table is not None and seq.computed:
                    self.cache.release(seq.table)
                    seq.table, seq.computed = None, 0
                    return True
        return False

    def _preempt(self, seq: Sequence) -> None:
        self.running.remove(seq)
        seq.wanted_from = max(seq.wanted_from, seq.computed)   # logits below are delivered
        self._release(seq)
        seq.n_preempted += 1
        self.n_preempted += 1
        seq.state = WAITING
        self._queues[seq.rank[0]].push_back(seq)
        self._let_go(seq)

    def _release(self, seq: Sequence) -> None:
        """Its pages stay cached while there is room, but for a copy that no step has made."""
        n = seq.computed - seq.computed % PAGE if seq.table.copies else seq.computed
        self.cache.release(seq.table, seq.tokens, n, seq.space)
        seq.table, seq.draft = None, []
        seq.computed = seq._published = 0

    def _share_prompt(self, seq: Sequence) -> None:
        """The prompt is computed: each child begins with its pages and computes the last row itself."""
        n = seq.n_prompt - 1
        for child in seq.children:
            if n and min(n, child.wanted_from) == n:
                child.table = self.cache.fork(seq.table, n)
                child.computed = n if child.table is not None else 0
        self._let_go(seq)

    def _let_go(self, seq: Sequence) -> None:
        """Its children wait like everybody else from now on."""
        for child in seq.children:
            child.parent = None
            self._n_held -= 1
            child.rank = (child.rank[0] if child in self._batch else 0, child.age)
            self._queues[child.rank[0]].push_back(child)
        seq.children = ()


def _rank(seq: Sequence) -> tuple:
    return seq.rank

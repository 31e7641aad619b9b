"""Who runs in the next step: sequences, their order and their pages. Integers only.

A step is a ragged list of chunks (sequence, start, count): a decode is count 1,
a piece of a prompt is more, and nothing else distinguishes them. Since every
logit has one bit pattern however a prompt is cut and whoever shares the step,
nothing decided here can change an answer; it decides only who waits.

  * Every sequence that only needs its next token gets one row, in turn if
    there are more of them than a step has rows.
  * What is left of the step's rows is shared equally among the prompts; the
    remainder goes round, so that no prompt waits behind a longer one.
  * When a pool runs out of pages, the youngest running sequence gives up all
    of its pages and is computed again later. The oldest never does, so with work
    waiting some sequence always advances.

This is not the engine: it runs nothing, samples nothing and knows no text.
Imported by engine. Imports cache.
"""
from collections import deque

from .cache import Cache, pages_for

WAITING, RUNNING, DONE = "waiting", "running", "done"


class Sequence:
    """Tokens to compute, in order. `tokens` starts as the prompt and grows by what was sampled."""

    __slots__ = ("tokens", "n_prompt", "wanted_from", "computed", "table", "state", "age", "owner", "n_preempted",
                 "priority", "key", "parent", "draft")

    def __init__(self, tokens, *, wanted_from=None, owner=None, priority=0, key="", parent=None):
        """wanted_from: the first position whose logits are wanted; None: the last one of the prompt."""
        assert len(tokens) > 0
        self.tokens = list(tokens)
        self.n_prompt = len(self.tokens)
        self.wanted_from = self.n_prompt - 1 if wanted_from is None else wanted_from
        self.computed = 0            # positions below this are in the cache
        self.table = None
        self.state = WAITING
        self.age = -1
        self.owner = owner
        self.n_preempted = 0
        self.priority, self.key, self.parent = priority, key, parent
        self.draft = []              # what the next tokens may be: computed along with the last one, counted only if right

    @property
    def left(self) -> int:
        return len(self.tokens) - self.computed


class Chunk:
    """Positions start .. start+count-1 of a sequence; the last n_wanted of them want logits."""

    __slots__ = ("seq", "start", "count", "n_wanted")

    def __init__(self, seq: Sequence, start: int, count: int, n_wanted: int):
        self.seq, self.start, self.count, self.n_wanted = seq, start, count, n_wanted


class Scheduler:
    def __init__(self, cache: Cache, *, max_seqs: int, max_tokens: int, max_wanted: int):
        """At most max_seqs sequences run at one time; a step has at most
        max_tokens rows, of which at most max_wanted want logits."""
        assert max_seqs > 0 and max_tokens > 0 and max_wanted > 0
        self.cache = cache
        self.max_seqs, self.max_tokens, self.max_wanted = max_seqs, max_tokens, max_wanted
        self.waiting = deque()       # oldest first
        self.running = []            # oldest first
        self._age = 0
        self._turn = 0               # the next step begins with the first sequence of at least this age

    def add(self, seq: Sequence) -> None:
        assert seq.state == WAITING and seq.age < 0
        seq.age = self._age
        self._age += 1
        self.waiting.append(seq)

    def remove(self, seq: Sequence) -> None:
        """Ends a sequence wherever it stands, between steps. Its pages are free at once."""
        if seq.state == RUNNING:
            self.running.remove(seq)
            self.cache.release(seq.table)
        elif seq.state == WAITING and seq.age >= 0:
            self.waiting.remove(seq)
        seq.state = DONE

    @property
    def idle(self) -> bool:
        return not self.running and not self.waiting

    def next_step(self, prompt_rows=None) -> list:
        """The chunks of the next step, in the order of their age; empty only when idle.

        prompt_rows: how many rows prompts may take beside decodes or other
        waiting work, to keep steps short; None: as many as there are. They get
        at least one. What a step plans is not counted until commit().
        """
        self._admit()
        # A turn may fall to sequences that find no page and are too young to take
        # another's; the oldest can always run, and its turn comes within a round.
        for _ in range(len(self.running)):
            chunks = self._take_pages(self._deal(prompt_rows))
            if chunks:
                return chunks
        assert self.idle, "no sequence can run: a pool holds less than one whole sequence"
        return []

    def commit(self, chunks) -> None:
        """The step ran: its positions are in the cache."""
        for c in chunks:
            seq = c.seq
            assert seq.state == RUNNING and seq.computed == c.start
            seq.computed += c.count
            self.cache.forget(seq.table, seq.computed)

    # ---- how -------------------------------------------------------------------

    def _admit(self) -> None:
        """From the queue's head while there is a seat and, unless nothing runs,
        there are pages for all its tokens and one more page for everybody who runs:
        a sequence that would be preempted at once is better left waiting."""
        while self.waiting and len(self.running) < self.max_seqs:
            seq = self.waiting[0]
            if self.running:
                # Pages of prompts that are admitted but not computed yet are spoken for.
                spoken = [0] * len(self.cache.windows)
                for other in self.running:
                    for g, n in enumerate(self._will_need(other)):
                        spoken[g] += n
                need = self._will_need(seq)
                if any(n + s + len(self.running) > f for n, s, f in zip(need, spoken, self.cache.available)):
                    return
            self.waiting.popleft()
            if seq.table is None:
                seq.table = self.cache.table()
            seq.state = RUNNING
            self.running.append(seq)

    def _will_need(self, seq: Sequence) -> list:
        """Pages per group that a sequence still has to take for the tokens it has now."""
        if seq.table is None:
            seq.table = self.cache.table()
        missing = self.cache.missing(seq.table, seq.computed, len(seq.tokens))
        out = []
        for g, window in enumerate(self.cache.windows):
            most = missing[g]
            if window:               # the pool holds what one sequence can use at one time
                most = min(most, pages_for(window, len(seq.tokens), self.max_tokens))
            out.append(most)
        return out

    def _deal(self, prompt_rows) -> dict:
        """Rows of this step per sequence, beginning with whoever's turn it is."""
        i = next((i for i, s in enumerate(self.running) if s.age >= self._turn), 0)
        order = self.running[i:] + self.running[:i]
        self._turn = order[0].age + 1
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
        if prompt_rows is not None and (counts or len(prompts) > 1 or self.waiting):
            rows = min(rows, max(1, prompt_rows))
        self._share(prompts, rows, wanted, counts)
        return counts

    @staticmethod
    def _wanted(seq: Sequence, count: int) -> int:
        """Rows that want logits among the next `count` positions. A sequence that is
        computed again after preemption wants only what it has not been given yet."""
        end = seq.computed + count
        first = max(seq.wanted_from, seq.computed)
        return max(0, end - first)

    @staticmethod
    def _share(prompts, rows: int, wanted: int, counts) -> None:
        """Deals the rows out in equal shares; what a short prompt leaves goes to the others."""
        open_ = list(prompts)
        while open_ and rows > 0:
            share = max(1, rows // len(open_))
            still = []
            for seq in open_:
                have = counts.get(seq, 0)
                give = min(share, rows, seq.left - have)
                # Rows that want logits are bounded too: cut where the bound is met.
                free = max(0, max(seq.wanted_from, seq.computed + have) - (seq.computed + have))
                give = min(give, free + wanted)
                if give <= 0:
                    continue
                wanted -= max(0, give - free)
                counts[seq] = have + give
                rows -= give
                if counts[seq] < seq.left and give == share:
                    still.append(seq)
            open_ = still

    def _take_pages(self, counts) -> list:
        """Pages for the rows, oldest sequence first. Where a pool is short the youngest
        running sequence gives way; if that is the one that asks, it takes what there is."""
        chunks = []
        for seq in list(self.running):
            count = counts.get(seq, 0)
            if not count or seq.state != RUNNING:
                continue
            while self.cache.extend(seq.table, seq.computed, seq.computed + count) is None:
                victim = self.running[-1]
                if victim is seq:
                    count = min(count, self.cache.room(seq.table, seq.computed) - seq.computed)
                    if count > 0:
                        continue
                    count = 0
                    break
                self._preempt(victim)
            if count:
                chunks.append(Chunk(seq, seq.computed, count, self._wanted(seq, count)))
        return chunks

    def _preempt(self, seq: Sequence) -> None:
        assert self.running[-1] is seq
        self.running.pop()
        self.cache.release(seq.table)
        seq.wanted_from = max(seq.wanted_from, seq.computed)   # logits below are delivered
        seq.computed = 0
        seq.n_preempted += 1
        seq.state = WAITING
        self.waiting.appendleft(seq)

"""What the scheduler arranges: sequences, the chunks of them that a step computes, and the line of those that wait.

Not who is next (schedule.py). Imported by schedule, engine and answer. Imports nothing.
"""
from bisect import insort
from collections import deque

WAITING, RUNNING, DONE = "waiting", "running", "done"


class Sequence:
    """Tokens to compute, in order. `tokens` starts as the prompt and grows by what was sampled."""

    __slots__ = ("tokens", "n_prompt", "wanted_from", "computed", "table", "state", "age", "owner", "n_preempted", "rank",
                 "priority", "key", "space", "parent", "children", "draft", "n_cached", "_reached", "_published")

    def __init__(self, tokens, *, wanted_from=None, owner=None, priority=0, key="", space=None, parent=None):
        """wanted_from: the first position whose logits are wanted; None: the last one of the prompt.
        space: sequences share what is cached only within one (adapter, salt)."""
        assert len(tokens) > 0 and priority in (0, 1)
        self.tokens = list(tokens)
        self.n_prompt = len(self.tokens)
        self.wanted_from = self.n_prompt - 1 if wanted_from is None else wanted_from
        self.computed = 0            # positions below this are in the cache
        self.table = None
        self.state = WAITING
        self.age = -1
        self.owner = owner
        self.n_preempted = 0
        self.priority, self.key, self.space = priority, key, space
        self.parent, self.children = parent, ()      # children: those that wait for this prompt
        self.draft = []              # what the next tokens may be: computed along with the last one, counted only if right
        self.n_cached = None         # positions that were there when it was first seated
        self.rank = None
        self._reached = 0            # most of `computed` so far: what is computed again is no advance
        self._published = 0          # full pages that the prefix index was told of

    @property
    def left(self) -> int:
        return len(self.tokens) - self.computed


class Chunk:
    """Positions start .. start+count-1 of a sequence; the last n_wanted of them want logits, the last n_draft are guesses."""

    __slots__ = ("seq", "start", "count", "n_wanted", "n_draft")

    def __init__(self, seq: Sequence, start: int, count: int, n_wanted: int, n_draft: int):
        self.seq, self.start, self.count, self.n_wanted, self.n_draft = seq, start, count, n_wanted, n_draft

    def tokens(self) -> list:
        seq = self.seq
        if self.n_draft:
            return seq.tokens[self.start:] + seq.draft
        return seq.tokens[self.start:self.start + self.count]


class Queue:
    """Those of one priority that wait: first who ran before, by age, then the keys in turn, each by age."""

    def __init__(self):
        self._back = []              # (age, sequence)
        self._keys = {}              # key -> its sequences; the first key is the next
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def __iter__(self):
        yield from (seq for _, seq in self._back)
        for line in self._keys.values():
            yield from line

    def push(self, seq) -> None:
        self._keys.setdefault(seq.key, deque()).append(seq)
        self._n += 1

    def push_back(self, seq) -> None:
        insort(self._back, (seq.age, seq))
        self._n += 1

    def head(self):
        if self._back:
            return self._back[0][1]
        return next(iter(self._keys.values()))[0] if self._keys else None

    def pop(self) -> None:
        """Takes the head away; its key is the last now."""
        self._n -= 1
        if self._back:
            del self._back[0]
            return
        key = next(iter(self._keys))
        line = self._keys.pop(key)
        line.popleft()
        if line:
            self._keys[key] = line

    def remove(self, seq) -> None:
        self._n -= 1
        if (seq.age, seq) in self._back:
            self._back.remove((seq.age, seq))
            return
        line = self._keys[seq.key]
        line.remove(seq)
        if not line:
            del self._keys[seq.key]

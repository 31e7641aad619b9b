"""Tokens guessed before they are computed: which, and how many of them pay.

A decode step reads all weights for one row; a few rows more cost little (a Llama 1B
takes 29 ms for one row and 40 ms for four). So a sequence may bring guesses for
its next tokens along, as further rows. The engine samples the rows in order, each as if it
were the only one, and keeps what it sampled as long as the guess before was the same:
what comes out is what would have come without guesses, and only the time differs. Hence
a guess may be anything, and how many are made may depend on clocks.

Lookup guesses that a text goes on as it did the last time it came to these words.
Width chooses how many guesses the sequences of a step bring along. Lookups is the two put
together, as the engine asks for it; draft.py is another one.

Not the engine: nothing is computed or sampled here. Imported by draft and llama. Imports nothing.
"""
import bisect
import heapq
import math

LIMIT = 16                 # guesses per sequence and step, at most


# ---- how likely a guess is right ------------------------------------------------------------------


class Odds:
    """How often the next guess came true, by the length of the match behind it, of late.

    A sequence has its own, which begin as those of all sequences (`prior`); those begin as measured on
    chats and code of a 135M model, at 0.8: 0.4 after two equal tokens, 0.8 after sixteen.
    """

    __slots__ = ("_prior", "_hits", "_seen", "_chance")

    LONGEST = 16
    _BUCKET = (0, 0, 0, 1, 2, 2, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 6)      # of a match of 0 .. LONGEST tokens
    _START = (0.4, 0.45, 0.55, 0.6, 0.7, 0.75, 0.8)
    _WEIGHT = 6.0          # guesses that the prior counts for
    _MEMORY = 64.0         # guesses after which old ones count half
    _LEAST = 0.05          # a chance that is not worth a row

    def __init__(self, prior: "Odds | None" = None):
        self._prior = prior
        self._hits = [0.0] * len(self._START)
        self._seen = [0.0] * len(self._START)
        self._chance = list(self._START if prior is None else prior._chance)

    def saw(self, length: int, hit: bool) -> None:
        b = self._BUCKET[min(length, self.LONGEST)]
        if self._seen[b] >= self._MEMORY:
            self._seen[b] /= 2
            self._hits[b] /= 2
        self._seen[b] += 1
        self._hits[b] += hit
        prior = self._prior
        if prior is not None:
            prior.saw(length, hit)
        start = self._START[b] if prior is None else prior._chance[b]
        self._chance[b] = (self._hits[b] + self._WEIGHT * start) / (self._seen[b] + self._WEIGHT)

    def of(self, length: int) -> float:
        return self._chance[self._BUCKET[min(length, self.LONGEST)]]

    def chances(self, length: int, n: int) -> list:
        """That the first guess comes true, the first two, ...: each one lengthens the match of the next.
        Up to n of them, as far as they are worth a row."""
        out, chance = [], 1.0
        for i in range(length, length + n):
            chance *= self._chance[self._BUCKET[min(i, self.LONGEST)]]
            if chance < self._LEAST:
                break
            out.append(chance)
        return out


# ---- prompt lookup ----------------------------------------------------------------------------------


class Lookup:
    """Guesses for one sequence from its own tokens, the prompt's and the answer's.

    The last 8, 4 or 2 tokens are looked up, the longest first, in an index of where each
    run of so many tokens came last; what followed there is the guess. A copy of 8 tokens and more is followed
    where it is, without a look at the index, until it goes wrong. Every token of the answer is read once, guessed at or
    not, and tells whether its guess would have been right: the odds cost nothing to learn.
    """

    __slots__ = ("odds", "length", "_n_prompt", "_at", "_read", "_last")

    RUNS = (8, 4, 2)
    MEMORY = 1 << 16       # tokens the index goes back; about 300 bytes each, where their KV takes 10,000 and more
    AT_ONCE = 8192         # tokens of a prompt that are read in one call, 5 ms: a long one takes several steps

    def __init__(self, n_prompt: int, odds: "Odds | None" = None):
        self.odds = Odds() if odds is None else odds
        self._n_prompt = n_prompt
        self._read = 0               # tokens below this are in the index
        self._at = -1                # position of the guess for token number _read; -1: none
        self.length = 0              # tokens before it that are equal to the last ones
        self._last = {}              # hash of a run -> the position behind where it came last

    def propose(self, tokens, most: int) -> list:
        """`most` tokens that may follow `tokens`, which begin as in the last call, or none."""
        self.read(tokens)
        return self.guess(tokens, most) if self.known(tokens) else []

    def known(self, tokens) -> bool:
        """Is there a guess for what follows `tokens`, all of them read?"""
        return self._at >= 0 and self._read == len(tokens)

    def guess(self, tokens, most: int) -> list:
        guess = tokens[self._at:self._at + most]
        gap = len(tokens) - self._at           # a copy may run into what it makes, as in "ha ha ha"
        while len(guess) < most:
            guess.append(guess[-gap])
        return guess

    def read(self, tokens) -> None:
        if self._read + 1 < self._n_prompt:
            self._read_prompt(tokens)
            if self._read + 1 < self._n_prompt:
                return
        last, longest = self._last, self.RUNS[0]
        for end in range(self._read + 1, len(tokens) + 1):
            at, right = self._at, False
            if at >= 0:
                right = tokens[at] == tokens[end - 1]
                self.odds.saw(self.length, right)
            found = -1
            for n in self.RUNS:
                if n <= end:
                    key = hash(tuple(tokens[end - n:end]))
                    if found < 0:
                        found = last.get(key, -1)
                    last[key] = end
            if end > self.MEMORY:
                self._drop(tokens, end - self.MEMORY)
            if right and self.length >= longest:
                self._at = at + 1
                self.length += 1
            elif found < 0:
                self._at, self.length = -1, 0
            else:
                self._match(tokens, found, end)
        self._read = len(tokens)

    def _match(self, tokens, at: int, end: int) -> None:
        """Counts how far the tokens before two places are equal: hashes may be, where runs are not."""
        length, most = 0, min(at, Odds.LONGEST)
        while length < most and tokens[at - 1 - length] == tokens[end - 1 - length]:
            length += 1
        self._at, self.length = (at, length) if length >= self.RUNS[-1] else (-1, 0)

    def _read_prompt(self, tokens) -> None:
        """The index alone, of all but the prompt's last token: 0.8 us a token."""
        begin = max(self._read, self._n_prompt - 1 - self.MEMORY)
        end = self._read = min(begin + self.AT_ONCE, self._n_prompt - 1, len(tokens))
        for n in self.RUNS:
            first = max(begin - n + 1, 0)
            some = tokens[first:end]
            self._last.update(zip(map(hash, zip(*(some[i:] for i in range(n)))), range(first + n, end + 1)))

    def _drop(self, tokens, end: int) -> None:
        """Runs that came last at `end` leave the index."""
        for n in self.RUNS:
            if n <= end:
                key = hash(tuple(tokens[end - n:end]))
                if self._last.get(key) == end:
                    del self._last[key]


# ---- how many guesses pay -----------------------------------------------------------------------------


class Width:
    """How many guesses a step of decodes takes along, for most tokens per second: of the one sequence, or of several the geometric
    mean. Most tokens in all would be had by slowing down three that do not guess for a fourth that copies.

    The cost of a step by its rows is measured as steps run; what was not measured is taken from
    what was, at a typical slope. Where guesses do not pay none are taken, except for a
    probe now and then, ever more rarely, since costs change with context, clock and neighbours.
    """

    _SLOPE = 0.2           # of a step of one row, per further row: 0.15 to 0.25 measured from 2 to 16 rows, quantized 135M and 1B on AVX-512
    _SMOOTH = 0.2          # weight of the newest measurement ...
    _STALE = 64            # ... unless the one before is more steps ago
    _MARGIN = 1.05         # the gain below which guesses are left out: estimates err
    _FIRST, _RAREST = 32, 2048      # opportunities passed before a probe, at first and at last; it costs no more than a hundredth of them
    _REST = 64             # tokens that a sequence is expected to go on for

    def __init__(self):
        self._rows, self._cost = [], []        # ascending both: a step of more rows is never taken for a cheaper one
        self._when, self._steps = [], 0        # the step that measured each
        self._passed, self._interval = 0, self._FIRST

    def measured(self, rows: int, seconds: float) -> None:
        """A step of decodes, of so many rows in all, took so long."""
        self._steps += 1
        at, cost = self._rows, self._cost
        old = self.seconds(rows)
        i = bisect.bisect_left(at, rows)
        new = i == len(at) or at[i] != rows
        if new:
            at.insert(i, rows)
            cost.insert(i, seconds)
            self._when.insert(i, self._steps)
        stale = new or self._steps - self._when[i] > self._STALE
        self._when[i] = self._steps
        if old is not None:
            if seconds < old:                  # nothing runs faster than it can; what was known may be of another time
                part = 1.0 if stale else self._SMOOTH
            else:                              # a stall says no more than twice
                part, seconds = (0.5 if stale else self._SMOOTH), min(seconds, 2 * old)
            cost[i] = old + part * (seconds - old)
        if stale:                              # one measurement is no match for those that are kept up
            fresh = [cost[j] for j in range(i) if self._steps - self._when[j] <= self._STALE]
            cost[i] = max([cost[i], *fresh])
            fresh = [cost[j] for j in range(i + 1, len(cost)) if self._steps - self._when[j] <= self._STALE]
            cost[i] = min([cost[i], *fresh])
        for j in range(i - 1, -1, -1):         # where two disagree the newest is right
            if cost[j] <= cost[i]:
                break
            cost[j] = cost[i]
        for j in range(i + 1, len(cost)):
            if cost[j] >= cost[i]:
                break
            cost[j] = cost[i]

    def seconds(self, rows: int) -> "float | None":
        """What a step of so many rows takes; None before anything was measured."""
        at, cost = self._rows, self._cost
        if not at:
            return None
        i = bisect.bisect_left(at, rows)
        if i < len(at) and at[i] == rows:
            return cost[i]
        if 0 < i < len(at):
            part = (rows - at[i - 1]) / (at[i] - at[i - 1])
            return cost[i - 1] + part * (cost[i] - cost[i - 1])
        known = 0 if i == 0 else -1
        return cost[known] * (1 + self._SLOPE * (rows - 1)) / (1 + self._SLOPE * (at[known] - 1))

    def share(self, chances, room: int, each: float = 0.0, reading: float = 0.0) -> list:
        """How many guesses each sequence of a step brings along, at most `room` in all.

        chances[i]: that the first guess of sequence i comes true, the first two, ...
        each: seconds that one more guess per sequence takes to be made (a draft model's step); reading: seconds before
        the first can be made (a draft model has to read what was said so far).
        """
        n = len(chances)
        counts = [0] * n
        alone = self.seconds(n) if any(chances) else None
        if alone is None:
            return counts
        room = min(room, 2 * self._rows[-1] - n)     # a step far larger than any before may cost more than it can ever bring
        if room <= 0:
            return counts
        # What a guess adds to the logarithm of its sequence's rate falls along the sequence, so the best of all are the first of each.
        order = []
        for i, of in enumerate(chances):
            expected = 1.0
            for chance in of[:LIMIT]:
                order.append((math.log1p(chance / expected), -i))
                expected += chance
        order = heapq.nlargest(room, order)
        best, take, gain = n * math.log(self._MARGIN), 0, 0.0
        depth, deepest = [0] * n, 0
        for k, (more, i) in enumerate(order, 1):
            gain += more
            depth[-i] += 1
            deepest = max(deepest, depth[-i])
            better = gain - n * math.log((self.seconds(n + k) + deepest * each + reading / self._REST) / alone)
            if better > best:
                best, take = better, k
        if take:
            self._passed, self._interval = 0, max(self._FIRST, self._interval // 2)
        elif each or order[0][0] >= 0.2:     # what the odds are of a draft model only a probe can tell
            most = min(len(order), 2)
            take = self._probe(most, (self.seconds(n + most) - alone + most * each + reading) / alone)
        for _, i in order[:take]:
            counts[-i] += 1
        return counts

    def _probe(self, most: int, steps: float) -> int:
        """`most` guesses, which cost as much as so many steps, if it is time for them."""
        self._passed += 1
        if self._passed < self._interval or self._passed < 100 * steps:
            return 0
        self._passed, self._interval = 0, min(2 * self._interval, self._RAREST)
        return most


# ---- what the engine asks ---------------------------------------------------------------------------------


class Lookups:
    """Guesses by lookup for all requests of an engine: propose() sets seq.draft, the rest says what came of it.
    Used by the engine thread."""

    _MANY = 8              # sequences of a step

    def __init__(self):
        self.width, self.odds = Width(), Odds()

    def propose(self, requests, room: int) -> None:
        """For a step in which each of `requests` decodes, at most `room` guesses in all."""
        chances, some = [], False
        for request in requests:
            lookup, tokens = request.guesser, request.seq.tokens
            if lookup is None:
                lookup = request.guesser = Lookup(len(request.prompt), Odds(self.odds))
            # In large steps little is won: where nothing matched, tokens are read by fours (1 % of a step of 16).
            if len(requests) < self._MANY or lookup.length or len(tokens) % 4 == 0:
                lookup.read(tokens)
            if lookup.known(tokens):
                chances.append(lookup.odds.chances(lookup.length, useful(request)))
                some = True
            else:
                chances.append(())
        if some:
            for request, n in zip(requests, self.width.share(chances, room)):
                if n:
                    request.seq.draft = request.guesser.guess(request.seq.tokens, n)

    def measured(self, rows: int, seconds: float) -> None:
        self.width.measured(rows, seconds)

    def verified(self, request, proposed: int, accepted: int) -> None:
        """Nothing to learn: a Lookup reads what came."""

    def close(self) -> None:
        """Holds nothing."""


def useful(request) -> int:
    """Guesses a request can use: the token after the last of them is the last it may have."""
    return max(0, min(LIMIT, request.most - len(request.seq.tokens) - 1))

"""One request from its prompt to its end: rows of logits in, tokens out.

Knows token ids only, and one request: who runs when is schedule.py's, text is stream.py's.
What comes out is a function of the prompt and the parameters: a row of logits is used only
where the tokens before it are the answer's own, so guesses and cuts leave no trace.
Imported by engine.
"""
from .native import ffi
from .sampling import Params, Sampled, Sampler
from .sequences import Sequence


class Request:
    """What to compute, how to choose, and what came of it.

    sampler: chooses each next token; None: logits only, see on_row.
    on_row(logits, i, position): called with row i of the logits for every position of the prompt from wanted_from on.
    hidden: its rows end before the head: on_row finds logits.hidden(i), and no logits.
    on_token(sampled) -> bool: called for each token that is kept; true ends the request with "stop".
    on_end(): called once, when finish_reason or error is set.
    sequence: which of the answers to its prompt this is; parent: the request whose prompt it shares.
    priority, key: who goes first, see schedule.py. salt: the cache is shared under an equal one only.
    deadline: a moment of the monotonic clock. constraint: what the answer has to follow (grammar.py).
    """

    __slots__ = ("prompt", "tokens", "sampler", "max_tokens", "end_ids", "on_row", "on_token", "on_end", "seq", "sequence", "deadline",
                 "constraint", "guesser", "most", "hidden", "complete", "_reader", "_only", "finish_reason", "error", "added", "started", "prompted", "ended")

    def __init__(self, prompt, *, sampler=None, max_tokens=None, end_ids=frozenset(), on_row=None, wanted_from=None, on_token=None, on_end=None,
                 sequence=0, parent=None, priority=0, key="", salt="", deadline=None, constraint=None, hidden=False):
        self.prompt = list(prompt)
        self.hidden = hidden
        self.tokens = []             # what was generated and kept; the token that ends a turn is not
        self.sampler = sampler
        self.max_tokens = max_tokens
        self.end_ids = end_ids
        self.on_row = on_row
        self.on_token, self.on_end = on_token, on_end
        self.sequence, self.deadline, self.constraint = sequence, deadline, constraint
        self.seq = Sequence(self.prompt, wanted_from=wanted_from, owner=self, priority=priority, key=key,
                            space=salt, parent=None if parent is None else parent.seq)
        self.guesser = None          # speculate.Lookup
        self.most = None             # tokens of prompt and answer together
        self.complete = False        # the constraint allows no further token
        self._reader = self._only = None
        self.finish_reason = None    # "stop", "length", "deadline"; None while it runs, after an error, and when cancelled
        self.error = None
        self.added = self.started = self.prompted = self.ended = None    # seconds of the monotonic clock

    @property
    def done(self) -> bool:
        return self.ended is not None

    @property
    def cached(self) -> int:
        """Positions of the prompt that were not computed."""
        return min(self.seq.n_cached or 0, len(self.prompt))

    def begin(self, n_ctx: int) -> None:
        """What a constraint says must come first is computed along with the prompt, and kept with the first row."""
        self.most = n_ctx if self.max_tokens is None else min(n_ctx, len(self.prompt) + self.max_tokens)
        if self.constraint is not None:
            self._force()

    def row(self, address: int, position: int):
        """The logits of a position; returns why the answer ends, or None.

        A token that must come is not sampled: it is in seq.tokens already, and its row says
        how probable it was, where that was asked for."""
        seq, known = self.seq, self._known()
        if known is not None:
            logprobs = self._wants_logprobs()
            while known is not None and (known <= position + 1 or not logprobs):
                token = seq.tokens[known]
                reason = self._keep(self._read(address, token) if logprobs and known == position + 1 else Sampled(token, None, []))
                if reason is not None:
                    return reason
                known = self._known()
        if len(seq.tokens) > position + 1:
            return None
        if len(seq.tokens) >= self.most:
            return "stop" if self.complete else "length"
        if self.complete:            # of the empty text, say
            return "stop"
        if self.constraint is None:
            sampled = self.sampler.sample(address, self.prompt, self.tokens, position + 1, self.sequence)
        else:
            sampled = self.sampler.sample(address, self.prompt, self.tokens, position + 1, self.sequence, mask=self.constraint.mask())
        if sampled.token in self.end_ids:
            return "stop"
        seq.tokens.append(sampled.token)
        if self.constraint is None:
            return self._keep(sampled)
        self.constraint.commit(sampled.token)
        self._force()
        reason = self._keep(sampled)
        while reason is None and not self._wants_logprobs() and self._known() is not None:
            reason = self._keep(Sampled(seq.tokens[self._known()], None, []))
        return reason

    # ---- how -------------------------------------------------------------------

    def _known(self):
        """Position of the first token that is in seq.tokens and not kept yet, or None."""
        n = len(self.prompt) + len(self.tokens)
        return n if n < len(self.seq.tokens) else None

    def _keep(self, sampled):
        """One more token of the answer; returns why it was the last, or None."""
        self.tokens.append(sampled.token)
        if self.on_token is not None and self.on_token(sampled):
            return "stop"
        if self.complete and self._known() is None:
            return "stop"
        return "length" if len(self.prompt) + len(self.tokens) >= self.most else None

    def _force(self) -> None:
        """Appends what the constraint says must come. Rows are wanted only where somebody reads them."""
        seq, constraint = self.seq, self.constraint
        for token in list(constraint.forced()):
            if len(seq.tokens) >= self.most:
                break
            if token in self.end_ids:
                self.complete = True
                break
            seq.tokens.append(token)
            constraint.commit(token)
        self.complete = self.complete or constraint.complete
        if not self._wants_logprobs():
            seq.wanted_from = max(seq.wanted_from, len(seq.tokens) - 1)

    def _wants_logprobs(self) -> bool:
        return self.sampler.params.logprobs is not None

    def _read(self, address: int, token: int):
        """A token that was not sampled, with its log probability and the best others."""
        sampler = self.sampler
        if self._reader is None:
            params = Params(temperature=0, logprobs=sampler.params.logprobs)
            self._reader = Sampler(params.validated(sampler.n_vocab), sampler.n_vocab, 0, sampler.allowed)
            self._only = ffi.new("uint32_t[]", -(-sampler.n_vocab // 32))
        self._only[token // 32] = 1 << token % 32
        try:
            return self._reader.sample(address, self.prompt, self.tokens, len(self.prompt) + len(self.tokens), mask=self._only)
        finally:
            self._only[token // 32] = 0

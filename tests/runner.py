"""Runs programs by hand: token ids in, logits out, with every freedom a step has. Not a test.

Between the tests and the engine there is deliberately nothing here: no scheduler, no cache policy. Pages
of the sequences are dealt out in scattered order, so that a table that is not followed shows.
"""


class Runner:
    """One program over one file. Sequences are slots 0..max_seqs-1; a context manager."""

    def __init__(self, path, *, n_ctx=512, max_seqs=1, max_tokens=512, max_wanted=32, n_threads=2, **compile_options):
        from pyengine import plan
        from pyengine.gguf import GGUF

        self.gguf = GGUF(path)
        self.program = None
        try:
            self.program = plan.compile(
                self.gguf, n_ctx=n_ctx, max_seqs=max_seqs, max_tokens=max_tokens, max_wanted=max_wanted, **compile_options
            )
            self.n_pages = -(-n_ctx // 64)
            total = self.n_pages * max_seqs
            self.program.open([total] * len(self.program.groups), n_threads)
        except BaseException:
            self.close()
            raise
        # slot s, entry p -> a page of its own; 7 is coprime to most totals, so neighbours lie apart
        order = sorted(range(total), key=lambda page: (page * 7 % 5, page))
        # Sequence s keeps its state in slots 2s and 2s + 1 in turn: {position: slot}, of the last step's beginning and end.
        self.states = [{0: 2 * slot} for slot in range(max_seqs)]
        self.tables = [tuple(order[slot :: max_seqs]) for slot in range(max_seqs)]

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def close(self):
        if self.program is not None:
            self.program.close()
        self.gguf.close()

    @property
    def n_vocab(self):
        return self.program.n_vocab

    def step(self, parts, wanted=()):
        """parts: [(slot, start, ids)]; wanted: row numbers into all ids. Returns float32 [len(wanted), n_vocab]."""
        import numpy as np
        from pyengine.plan import Seq, Step

        tokens, seqs = [], []
        for slot, start, ids in parts:
            used = -(-(start + len(ids)) // 64)
            tables = (self.tables[slot][:used],) * len(self.program.groups)
            if self.program.states:
                known, end = self.states[slot], start + len(ids)
                before = known[start] if start else 2 * slot
                seqs.append(Seq(start, len(ids), tables, before, ((end, before ^ 1),)))
                self.states[slot] = {start: before, end: before ^ 1}
            else:
                seqs.append(Seq(start, len(ids), tables))
            tokens.extend(ids)
        logits = self.program.run(Step(tokens=tokens, seqs=seqs, wanted=list(wanted)))
        return np.array([logits.numpy(i) for i in range(len(wanted))], dtype=np.float32).reshape(-1, self.n_vocab)

    def logits(self, ids, positions=None, *, slot=0, chunk=None):
        """Logits after ids[:p+1] for every p in positions (default: the last one), prompt cut into chunks."""
        import numpy as np

        positions = [len(ids) - 1] if positions is None else list(positions)
        chunk = min(chunk or self.program.max_tokens, self.program.max_tokens)
        rows = []
        for start in range(0, len(ids), chunk):
            part = ids[start : start + chunk]
            wanted = [p - start for p in positions if start <= p < start + len(part)]
            # all but the last block of wanted rows may recompute the chunk: positions keep their pages
            for first in range(0, max(len(wanted), 1), self.program.max_wanted):
                rows.append(self.step([(slot, start, part)], wanted[first : first + self.program.max_wanted]))
        return np.concatenate(rows)

    def greedy(self, ids, n, *, slot=0, chunk=None):
        """n ids, ties to the lowest id."""
        import numpy as np

        out, row = [], self.logits(ids, slot=slot, chunk=chunk)[0]
        while True:
            out.append(token := int(np.argmax(row)))
            if len(out) == n:
                return out
            row = self.step([(slot, len(ids) + len(out) - 1, [token])], [0])[0]


def log_softmax(logits):
    """float64 log probabilities of one row."""
    import numpy as np

    x = logits.astype(np.float64)
    x -= x.max()
    return x - np.log(np.exp(x).sum())

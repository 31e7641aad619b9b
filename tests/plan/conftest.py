"""Tiny models, and a runner that feeds a program by hand: pages, chunks, batches."""

import os
import sys
from array import array

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "tools"))


class Runner:
    """A program over one page pool per group; sequences own disjoint runs of pages."""

    def __init__(self, gguf, *, n_ctx=512, max_seqs=4, threads=2, max_tokens=512, **options):
        from pyengine import plan

        self.plan, self.n_ctx = plan, n_ctx
        self.program = plan.compile(gguf, n_ctx=n_ctx, max_seqs=max_seqs, max_tokens=max_tokens, max_wanted=64, **options)
        self.per_seq = -(-n_ctx // 64)
        self.program.open([self.per_seq * max_seqs] * len(self.program.groups), threads)

    def table(self, seq):
        """Pages in descending order, so that neighbours in a sequence are not neighbours in memory."""
        pages = array("i", reversed(range(seq * self.per_seq, (seq + 1) * self.per_seq)))
        return (pages,) * len(self.program.groups)

    def step(self, parts):
        """parts: [(sequence, start, tokens)]; returns float32 [rows, n_vocab] of every row."""
        import numpy

        tokens = [t for _, _, ts in parts for t in ts]
        seqs = [self.plan.Seq(start, len(ts), self.table(s)) for s, start, ts in parts]
        logits = self.program.run(self.plan.Step(tokens, seqs, range(len(tokens))))
        return numpy.stack([logits.numpy(i) for i in range(len(tokens))])

    def all(self, tokens, chunk=64, seq=0):
        """Logits after every token of one sequence, fed in chunks."""
        import numpy

        return numpy.concatenate([self.step([(seq, i, tokens[i : i + chunk])]) for i in range(0, len(tokens), chunk)])

    def close(self):
        self.program.close()


@pytest.fixture
def tiny(tmp_path):
    """tiny(arch="llama", weight_type="Q4_K", ...) -> an open GGUF."""
    import tiny_gguf

    from pyengine.gguf import GGUF

    opened = []

    def make(wrong=None, keys=None, tensors=None, **spec):
        path = tmp_path / f"tiny{len(opened)}.gguf"
        tiny_gguf.write(path, tiny_gguf.Spec(**spec), wrong=wrong, keys=keys, tensors=tensors)
        opened.append(GGUF(path))
        return opened[-1]

    yield make
    for g in opened:
        g.close()


@pytest.fixture
def runner():
    made = []

    def make(gguf, **options):
        made.append(Runner(gguf, **options))
        return made[-1]

    yield make
    for r in made:
        r.close()

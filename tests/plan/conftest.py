"""Tiny models, and the runner of tests/runner.py with every row wanted."""

import pytest
import runner as by_hand


class Runner(by_hand.Runner):
    def __init__(self, gguf, *, n_ctx=512, max_seqs=4, threads=2, **options):
        super().__init__(gguf.path, n_ctx=n_ctx, max_seqs=max_seqs, n_threads=threads, max_wanted=64, **options)

    def table(self, seq):
        return (self.tables[seq],) * len(self.program.groups)

    def step(self, parts, wanted=None):
        return super().step(parts, range(sum(len(ids) for _, _, ids in parts)) if wanted is None else wanted)

    def all(self, tokens, chunk=64):
        """Logits after every token of sequence 0, fed in chunks."""
        return self.logits(tokens, range(len(tokens)), chunk=chunk)


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

"""Faults that show only beyond the header: at compile, or while a model runs (fault list B 38 to 47), and the
whole road from file to logits over flipped bits.

The header by itself is test_faults_header.py's, hyper-parameters are test_faults_hparams.py's.
"""

import os
import random

import pytest

import numpy as np

import tiny_gguf  # noqa: E402
from runner import Runner  # noqa: E402
from tiny_gguf import Spec  # noqa: E402

import pyengine  # noqa: E402
from pyengine import plan  # noqa: E402
from pyengine.errors import GGUFError, MemoryBudgetError, UnsupportedError  # noqa: E402
from pyengine.gguf import GGUF  # noqa: E402

SMALL = Spec(n_embd=32, n_head=2, n_head_kv=(1,), n_ff=(32,), n_vocab=331, n_layer=1, weight_type="Q8_0")


def logits(path, tokens=(5, 6, 7)):
    with Runner(path, n_ctx=64) as r:
        return r.logits(list(tokens), range(len(tokens)))


@pytest.mark.parametrize("type_name", ["Q4_0", "Q8_0", "I8"])
def test_row_38_a_norm_of_an_illegal_type(tmp_path, type_name):
    """A quantized norm is refused at load, by name; llama.cpp aborts."""
    path = tiny_gguf.write(tmp_path / "n.gguf", SMALL)
    raw = bytearray(path.read_bytes() if hasattr(path, "read_bytes") else open(path, "rb").read())
    at = raw.index(b"output_norm.weight") + len(b"output_norm.weight") + 4 + 8      # n_dims, one dimension
    ids = {"Q4_0": 2, "Q8_0": 8, "I8": 24}
    assert raw[at : at + 4] == (0).to_bytes(4, "little")
    raw[at : at + 4] = ids[type_name].to_bytes(4, "little")
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(raw)
    with pytest.raises(GGUFError, match=rf"output_norm.weight.*{type_name}.*expected") as e, GGUF(bad) as g:
        plan.compile(g, n_ctx=64)
    assert e.value.key == "output_norm.weight"


@pytest.mark.parametrize("bits, finite", [(0x7C00, False), (0x7E00, False), (0xFC00, False), (0x0000, True), (0x0001, True),
                                          (0x8000, True)])
def test_rows_41_and_43_scales(tmp_path, bits, finite):
    """A scale of one block that is infinite or NaN reaches the logits, and a request ends with an error; zero,
    subnormal and minus zero have their plain meaning."""
    path = tiny_gguf.write(tmp_path / "s.gguf", SMALL)
    with GGUF(path) as g:
        t = g.tensors["blk.0.ffn_down.weight"]
        assert t.type_name == "Q8_0"
    with open(path, "r+b") as f:
        for row in range(t.n_rows):
            f.seek(t.offset + row * t.row_bytes)
            f.write(bits.to_bytes(2, "little"))
    assert np.isfinite(logits(path)).all() == finite
    with pyengine.Llama(str(path), n_ctx=64, n_threads=1) as llm:
        if finite:
            assert llm.generate([5, 6], max_tokens=2, ignore_eos=True).usage["completion_tokens"] == 2
        else:
            with pytest.raises(pyengine.NonFiniteError):
                llm.generate([5, 6], max_tokens=2)


def test_row_42_an_overflow_ends_one_request_only(tmp_path):
    """A token whose embedding has overflowed to infinity spoils its own sequence; its neighbour in the batch gets the bits it
    gets alone."""
    spec = Spec(weight_type="F32")
    embd = tiny_gguf.weights(spec)["token_embd.weight"].copy()
    embd[9, 3] = np.inf
    path = tiny_gguf.write(tmp_path / "o.gguf", spec, tensors={"token_embd.weight": embd})
    with Runner(path, n_ctx=64, max_seqs=2) as r:
        both = r.step([(0, 0, [9, 5]), (1, 0, [6, 7])], [1, 3])
    assert not np.isfinite(both[0]).all()
    assert np.array_equal(both[1], logits(path, (6, 7))[1])


def test_row_43_an_all_zero_model(tmp_path):
    """Zero weights have a defined result: every logit is 0, the lowest id wins."""
    spec = Spec(weight_type="F32")
    zero = {n: np.zeros_like(w) for n, w in tiny_gguf.weights(spec).items()}
    path = tiny_gguf.write(tmp_path / "z.gguf", spec, tensors=zero)
    assert not logits(path).any()
    with pyengine.Llama(str(path), n_ctx=64, n_threads=1) as llm:
        assert llm.generate([5], max_tokens=1, temperature=0, ignore_eos=True).tokens == [0]


def test_row_44_no_epsilon_and_a_zero_row(tmp_path):
    """eps 0 is legal; a zero row under it is 0/0, which is NaN and ends the request, not the process."""
    spec = Spec(weight_type="F32")
    embd = tiny_gguf.weights(spec)["token_embd.weight"].copy()
    embd[9] = 0
    path = tiny_gguf.write(tmp_path / "e.gguf", spec, tensors={"token_embd.weight": embd},
                           keys={"llama.attention.layer_norm_rms_epsilon": 0.0})
    assert np.isfinite(logits(path, (5, 6))).all()
    with pyengine.Llama(str(path), n_ctx=64, n_threads=1) as llm, pytest.raises(pyengine.NonFiniteError):
        llm.generate([9], max_tokens=1)


def test_row_47_cache_larger_than_the_machine(tmp_path):
    """Sizes are computed before anything is allocated: asking for too much names what would fit."""
    spec = Spec(n_ctx_train=2**31 - 1)
    path = tiny_gguf.write(tmp_path / "c.gguf", spec)
    with pytest.raises(MemoryBudgetError, match="n_ctx"):
        pyengine.Llama(str(path), n_ctx=2**31 - 1)


# ---- flipped bits, from file to logits -------------------------------------------------------------


def run_if_it_loads(path):
    """True where the file loads and runs a step; False where it is refused. Anything else fails the test."""
    try:
        with GGUF(path) as g:
            program = plan.compile(g, n_ctx=64, max_tokens=8, max_wanted=1, max_seqs=1)
            if program.arena_bytes > 1 << 28 or program.logits_bytes > 1 << 28 or sum(x.page_bytes for x in program.groups) > 1 << 28:
                return True         # a legal model of another size: bigger than this test wants to touch
            program.open([1] * len(program.groups), 1)
            try:
                table = ((0,),) * len(program.groups)
                program.run(plan.Step([5, 6], [plan.Seq(0, 2, table)], [1])).numpy(0)
            finally:
                program.close()
    except (GGUFError, UnsupportedError):
        return False
    return True


def flips(tmp_path, choose):
    path = tiny_gguf.write(tmp_path / "flip.gguf", SMALL)
    size = os.path.getsize(path)
    with GGUF(path) as g:
        header = min(t.offset for t in g.tensors.values())
    outcomes = [0, 0]
    fd = os.open(path, os.O_RDWR)
    for bit in choose(8 * header, 8 * size):
        byte = bit // 8
        old = os.pread(fd, 1, byte)
        os.pwrite(fd, bytes([old[0] ^ 1 << bit % 8]), byte)
        outcomes[run_if_it_loads(path)] += 1
        os.pwrite(fd, old, byte)
    os.close(fd)
    return outcomes


def test_flipped_bits_load_or_are_refused(tmp_path):
    rng = random.Random(2)
    refused, loaded = flips(tmp_path, lambda header, size: rng.sample(range(header), 1200) + rng.sample(range(header, size), 100))
    assert refused > 100 and loaded > 100


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_every_flipped_bit_loads_or_is_refused(tmp_path):
    refused, loaded = flips(tmp_path, lambda header, size: range(size))
    print(f"{refused} refused, {loaded} loaded and ran")
    assert refused > 1000 and loaded > 1000


def test_cut_anywhere_is_refused(tmp_path):
    """Every length of the file short of the last tensor's end is refused."""
    path = tiny_gguf.write(tmp_path / "cut.gguf", SMALL)
    with GGUF(path) as g:
        end = max(t.offset + t.nbytes for t in g.tensors.values())
    rng = random.Random(3)
    for n in sorted({*rng.sample(range(end), 300), end - 1, end - 33}, reverse=True):
        os.truncate(path, n)
        assert not run_if_it_loads(path), n

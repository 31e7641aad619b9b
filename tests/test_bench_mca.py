"""bench/mca.py cuts the right loop out of a disassembly; llvm is not needed for that."""

import pathlib
import sys

import pytest

BENCH = str(pathlib.Path(__file__).resolve().parent.parent / "bench")
sys.path.insert(0, BENCH)
import mca  # noqa: E402

sys.path.remove(BENCH)  # bench/kernels.py would hide tests/kernels

# A loop over blocks (0x10 to 0x28) with a rare part that is jumped over, in a loop over rows (0x8 to 0x2c).
LISTING = """
  8: mov x9, x1
  10: ldr q0, [x2], #18
  14: cbz x3, 0x1c <one_q4_0_group+0x1c>
  18: prfm pldl1keep, [x2, #512]
  1c: sdot v4.4s, v0.16b, v2.16b
  20: smull v5.8h, v0.8b, v2.8b
  24: fmla v1.4s, v2.4s, v3.4s
  28: b.ne 0x10 <one_q4_0_group+0x10>
  2c: b 0x8 <one_q4_0_group+0x8>
"""
CODE = [(int(line.split(":")[0], 16), line.split(": ")[1]) for line in LISTING.strip().splitlines()]


def test_the_row_loop_is_the_smallest_with_products_and_an_accumulation():
    size, first, last, macs = mca.row_loop(CODE)
    assert (CODE[first][0], CODE[last][0]) == (0x10, 0x28)
    assert macs == 16 + 8
    assert mca.inner_loops(CODE, first, last) == []


def test_an_inner_loop_is_seen():
    code = [*CODE[:5], (0x1E, "b.ne 0x10 <x>"), *CODE[5:]]
    _, first, last, _ = mca.row_loop(code)
    assert len(mca.inner_loops(code, first, last)) == 1


def test_no_loop_without_products():
    assert mca.row_loop([c for c in CODE if not c[1].startswith(("sdot", "smull"))]) is None


@pytest.mark.parametrize("mix, tokens", [("Q4_0", 18 / 32), ("Q8_0", 34 / 32)])
def test_bytes_of_a_model_are_its_matrices(mix, tokens):
    s = mca.MODELS["TinyLlama 1.1B"]
    per_layer = s.n_embd * (2 * s.n_head * s.d_head + 2 * s.n_head_kv * s.d_head + 3 * s.n_ff)
    read = mca.read_per_token(s, mix)
    head = s.n_vocab * s.n_embd * (210 / 256 if mix == "Q4_0" else tokens)
    assert sum(read.values()) == s.n_layer * per_layer * tokens + head


def test_rows_that_are_no_multiple_of_256_fall_back():
    assert set(mca.read_per_token(mca.MODELS["Qwen2.5 0.5B"], "Q4_K_M")) == {"Q5_0", "Q8_0", "Q4_K", "Q6_K"}

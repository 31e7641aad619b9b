"""Tensor tables with one thing wrong, and split models that do not fit together: refused before any weight is used."""
import random
import struct

import pytest
from faults_gguf import F32, I32, KEYS, STRING, TENSORS, U16, gguf, info, kv, with_tensors
from test_faults_header import refused
from test_gguf import split

from pyengine.errors import GGUFError
from pyengine.gguf import GGUF, TENSOR_TYPES
from pyengine.native import ffi, lib

ARCH = kv("general.architecture", STRING, "llama")


def table(*infos, data=bytes(256)):
    return gguf([ARCH], list(infos), data)


def at(i, *infos):
    """Byte offset of entry i."""
    return 24 + len(ARCH) + sum(map(len, infos[:i]))


# ---- 25-28: dimensions -----------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 5, 6, 2**31, 2**32 - 1])
def test_number_of_dimensions(tmp_path, n):
    text = refused(tmp_path, table(info("w", [4] * min(n, 6), 0, 0, n_dims=n)))
    assert f"tensor 'w' at byte {at(0) + 9}: found {n} dimensions, expected 1..4" in text


@pytest.mark.parametrize("dims", [(0,), (32, 0), (32, 1, 1, 0), (-1,), (32, -1), (2**31 + 1,), (2**62, 4), (2**64 - 1,)])
def test_dimension_out_of_range(tmp_path, dims):
    bad = next(i for i, d in enumerate(dims) if not 1 <= d <= 2**31)
    text = refused(tmp_path, table(info("w", dims, 0, 0)))
    assert f"found dimension {bad} of {dims[bad] % 2**64}, expected 1..2147483648" in text


# ---- 29-32: products, padding, what the file holds ---------------------------------------


@pytest.mark.parametrize("dims, kind", [((2**31, 2**31, 4), 0), ((2**31,) * 4, 0), ((2**31, 2**31, 2), 0),
                                        ((2**31, 2**31, 2), 24), ((2**31, 2**31, 2), 8), ((2**31, 2**31, 2**31, 2), 1)])
def test_size_overflows(tmp_path, dims, kind):
    """Products that wrap, also those that wrap to 0, to a small number, or below 2^64 but not below 2^63."""
    assert "found a shape of 2^63 bytes or more" in refused(tmp_path, table(info("w", dims, kind, 0)))


def test_size_that_wraps_when_padded(tmp_path):
    """2^64 - 16 bytes, which rounding up to the alignment would turn into 0."""
    assert "found a shape of 2^63 bytes or more" in refused(tmp_path, table(info("w", (4, 2**30 - 1, 2**30 + 1), 0, 0)))


@pytest.mark.parametrize("dims", [(41, 1), (40, 10), (2**20, 2**20), (2**31, 2**29)])
def test_tensor_larger_than_the_file(tmp_path, dims):
    raw = table(info("w", dims, 0, 0), data=bytes(160))
    need = len(raw) - 160 + 4 * dims[0] * dims[1]
    text = refused(tmp_path, raw)
    assert f"tensor 'w' at byte {at(0)}: file is shorter than its tensors need (have {len(raw)}, need {need} bytes)" in text


def test_the_need_is_that_of_the_tensor_which_ends_last(tmp_path):
    infos = [info("a", (8,), 0, 0), info("c", (8,), 0, 96), info("b", (8,), 0, 32)]
    raw = table(*infos, data=bytes(64))
    assert f"tensor 'c' at byte {at(1, *infos)}: file is shorter than its tensors need " \
           f"(have {len(raw)}, need {len(raw) - 64 + 128} bytes)" in refused(tmp_path, raw)


# ---- 33: offsets -------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [1, 16, 31, 33])
def test_offset_not_aligned(tmp_path, offset):
    assert f"found data offset {offset}, expected a multiple of 32" in refused(tmp_path, table(info("w", (4,), 0, offset)))


@pytest.mark.parametrize("offset", [2**64 - 32, 2**63, 2**63 - 32])
def test_offset_that_overflows(tmp_path, offset):
    assert f"found data offset {offset}, expected one inside the file" in refused(tmp_path, table(info("w", (4,), 0, offset)))


@pytest.mark.parametrize("offset", [256, 2**40])
def test_offset_behind_the_end(tmp_path, offset):
    assert "file is shorter than its tensors need" in refused(tmp_path, table(info("w", (4,), 0, offset)))


@pytest.mark.parametrize("second", [0, 32, 64])
def test_overlap(tmp_path, second):
    infos = [info("first", (24,), 0, 0), info("second", (8,), 0, second)]  # first: 96 bytes
    text = refused(tmp_path, table(*infos))
    assert "found data that overlaps that of '" in text and "'first'" in text and "'second'" in text
    (tmp_path / "ok.gguf").write_bytes(table(infos[0], info("second", (8,), 0, 96)))
    GGUF(tmp_path / "ok.gguf").close()


# ---- 34-37: names, types, blocks ------------------------------------------------------------


def test_duplicate_name(tmp_path):
    infos = [info("w", (8,), 0, 0), info("v", (8,), 0, 64), info("w", (8,), 0, 32)]
    text = refused(tmp_path, table(*infos))
    assert f"tensor 'w' at byte {at(2, *infos)}: found twice, first at byte {at(0)}, expected once" in text


@pytest.mark.parametrize("name", [b"", b"w" * 64, b"w" * 2**21])
def test_name_length(tmp_path, name):
    assert f"tensor 0 at byte {at(0)}: found a name of {len(name)} bytes, expected 1..63" in refused(
        tmp_path, table(info(name, (8,), 0, 0)))
    (tmp_path / "ok.gguf").write_bytes(table(info(b"w" * 63, (8,), 0, 0)))
    GGUF(tmp_path / "ok.gguf").close()


@pytest.mark.parametrize("name", [b"a\0b", b"\xff", b"a\nb", b"\x1b[2J"])
def test_name_that_is_not_printable_ascii(tmp_path, name):
    text = refused(tmp_path, table(info(name, (8,), 0, 0)))
    assert "in the name, expected printable ASCII" in text


@pytest.mark.parametrize("kind", [4, 5, 31, 32, 33, 36, 37, 38, 43, 999, -1, -(2**31), 2**31 - 1])
def test_unknown_type(tmp_path, kind):
    assert f"tensor 'w' at byte {at(0) + 9 + 4 + 8}: found tensor type {kind}, expected" in refused(
        tmp_path, table(info("w", (256,), kind, 0), data=bytes(4096)))


@pytest.mark.parametrize("kind, name, instead", [(4, "Q4_2", "Q4_0"), (5, "Q4_3", "Q4_0"), (31, "Q4_0_4_4", "Q4_0"), (32, "Q4_0_4_8", "Q4_0"),
                                                 (33, "Q4_0_8_8", "Q4_0"), (36, "IQ4_NL_4_4", "IQ4_NL"), (37, "IQ4_NL_4_8", "IQ4_NL"),
                                                 (38, "IQ4_NL_8_8", "IQ4_NL")])
def test_removed_types_say_what_to_do(tmp_path, kind, name, instead):
    text = refused(tmp_path, table(info("w", (256,), kind, 0), data=bytes(4096)))
    assert "tensor 'w'" in text and f"it is {name}, which was removed: quantize the model again, as {instead}" in text and "\n" not in text
    assert "newer than this version" in refused(tmp_path, table(info("w", (256,), 142, 0), data=bytes(4096)))


def test_a_fork_s_q2_0_is_explained(tmp_path):
    """34 bytes per 128 elements, under the number of 18 per 64: tensors seem to overlap."""
    infos = [info("first", (2048,), 42, 0), info("second", (2048,), 42, 544)]
    assert "a fork stores 34 per 128 under the same number" in refused(tmp_path, table(*infos, data=bytes(1152)))


@pytest.mark.parametrize("kind", sorted(k for k, (_, block, _) in TENSOR_TYPES.items() if block > 1))
def test_row_that_is_no_multiple_of_the_block(tmp_path, kind):
    block = TENSOR_TYPES[kind][1]
    for n in (1, block - 1, block + block // 2):
        assert f"found rows of {n} elements, expected a multiple of {block}" in refused(
            tmp_path, table(info("w", (n, block), kind, 0), data=bytes(300 * block)))


@pytest.mark.parametrize("kind", sorted(TENSOR_TYPES))
def test_every_type_at_its_exact_size(tmp_path, kind):
    """A file with the last byte present opens; one byte less is too short."""
    _, block, size = TENSOR_TYPES[kind]
    path = tmp_path / "m.gguf"
    raw = table(info("w", (2 * block, 3), kind, 0), data=bytes(6 * size))
    path.write_bytes(raw)
    with GGUF(path) as g:
        assert g.tensors["w"].nbytes == 6 * size and g.tensors["w"].row_bytes == 2 * size
    assert f"(have {len(raw) - 1}, need {len(raw)} bytes)" in refused(tmp_path, raw[:-1])


def test_many_tensors_in_reverse_order(tmp_path):
    """65,536 tensors, the most there may be, stored backwards: sorted, not compared in pairs."""
    n = 65536
    raw = gguf([], [info(f"t{i}", (1,), 0, 32 * (n - 1 - i)) for i in range(n)], bytes(32 * n))
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    with GGUF(path) as g:
        assert len(g.tensors) == n and g.tensors["t0"].offset == len(raw) - 32


# ---- 41, 45: the bytes of the weights ---------------------------------------------------------


@pytest.mark.parametrize("kind", [0, 1, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 30])
def test_any_bytes_dequantize(kind):
    """Quantized bytes are a stranger's: all-ones, zeros and random blocks stay inside their tables."""
    _, block, size = TENSOR_TYPES[kind]
    n = 64
    y = ffi.new("float[]", n * block)
    for raw in (bytes(n * size), b"\xff" * (n * size), random.Random(kind).randbytes(n * size)):
        exact = ffi.new("uint8_t[]", raw)
        assert lib.pe_dequant(kind, exact, y, n * block) == lib.PE_OK
        first = lib.pe_first_nonfinite(kind, exact, n * block)
        values = list(y)
        finite = [v - v == 0 for v in values]
        assert first == (finite.index(False) if False in finite else -1)


def test_first_nonfinite_on_every_f16_scale():
    """A Q8_0 block whose scale takes each of the 65,536 halves: infinite or NaN exactly where the exponent is full."""
    raw = ffi.new("uint8_t[]", b"".join(struct.pack("<H", h) + b"\x01" * 32 for h in range(65536)))
    for h in [0, 1, 0x3FF, 0x400, 0x7BFF, 0x7C00, 0x7C01, 0x7FFF, 0x8000, 0xFBFF, 0xFC00, 0xFFFF]:
        bad = h >> 10 & 31 == 31
        assert lib.pe_first_nonfinite(8, raw + 34 * h, 32) == (0 if bad else -1)
    assert lib.pe_first_nonfinite(8, raw, 65536 * 32) == 0x7C00 * 32
    assert lib.pe_first_nonfinite(8, raw + 34 * 0x8000, 0x7C00 * 32) == -1
    assert lib.pe_first_nonfinite(8, raw, 31) == -2 and lib.pe_first_nonfinite(4, raw, 32) == -2


# ---- 48: split models -----------------------------------------------------------------------------


def test_missing_part(tmp_path):
    path = split(tmp_path)
    (tmp_path / "model-00002-of-00003.gguf").unlink()
    with pytest.raises(GGUFError, match="found 3 parts, but part 2 is missing: expected .*model-00002-of-00003.gguf"):
        GGUF(path)


@pytest.mark.parametrize("wrong, text", [
    ({"count": {0: 4}}, "expected a file name that ends in '-00001-of-00004.gguf'"),
    ({"count": {0: 65535}}, "expected a file name that ends in '-00001-of-65535.gguf'"),
    ({"no": {0: 1}}, "found part 2 of 3, expected the first: open that"),
    ({"no": {0: 3}}, "key 'split.no' at byte 24: found u16 3, expected"),
    ({"no": {2: 1}}, "00003-of-00003.gguf: key 'split.no' at byte 24: found u16 1, expected 2"),
    ({"count": {1: 2}}, "00002-of-00003.gguf: key 'split.count' at byte 46: found u16 2, expected"),
    ({"total": {0: 5}}, "key 'split.tensors.count' at byte"),
    ({"total": {2: 5}}, "found i32 5, expected i32 20 as in the first part"),
    ({"keys": {1: [kv("general.architecture", STRING, "gemma3")]}},
     "found string 'gemma3', expected string 'llama' as in the first part"),
    ({"tensors": {1: TENSORS[:1]}}, "tensor 'token_embd.weight' at byte"),
])
def test_parts_that_do_not_fit(tmp_path, wrong, text):
    with pytest.raises(GGUFError) as caught:
        GGUF(split(tmp_path, **wrong))
    assert text in str(caught.value)


def test_part_cut_or_no_gguf(tmp_path):
    path = split(tmp_path)
    second = tmp_path / "model-00002-of-00003.gguf"
    raw = second.read_bytes()
    second.write_bytes(raw[:-200])
    with pytest.raises(GGUFError, match="00002-of-00003.gguf: tensor .*: file is shorter than its tensors need"):
        GGUF(path)
    second.write_bytes(b"<html>")
    with pytest.raises(GGUFError, match="00002-of-00003.gguf: is not a GGUF file: found a web page"):
        GGUF(path)
    second.unlink()
    second.mkdir()
    with pytest.raises(GGUFError, match="is a directory"):
        GGUF(path)


def test_opening_a_later_part(tmp_path):
    split(tmp_path)
    with pytest.raises(GGUFError, match="found part 2 of 3, expected the first: open that"):
        GGUF(tmp_path / "model-00002-of-00003.gguf")


def test_part_names_come_from_the_given_folder_only(tmp_path):
    """Nothing in the file makes a path: only the name that was asked for does."""
    (tmp_path / "in").mkdir()
    path = split(tmp_path, stem="x")
    inside = tmp_path / "in" / path.name
    inside.write_bytes(path.read_bytes())
    with pytest.raises(GGUFError, match="part 2 is missing: expected .*/in/x-00002-of-00003.gguf"):
        GGUF(inside)
    renamed = tmp_path / "renamed.gguf"
    renamed.write_bytes(path.read_bytes())
    with pytest.raises(GGUFError, match="expected a file name that ends in '-00001-of-00003.gguf'"):
        GGUF(renamed)


@pytest.mark.parametrize("entry, text", [(kv("split.count", I32, -1), "found i32 -1, expected 0..99999"),
                                         (kv("split.count", F32, 2.0), "found f32 2.0, expected an integer, 0..99999"),
                                         (kv("split.count", U16, 2), "key 'split.no': missing")])
def test_split_keys_of_wrong_type(tmp_path, entry, text):
    assert text in refused(tmp_path, with_tensors(KEYS + [entry], TENSORS), "m-00001-of-00002.gguf")

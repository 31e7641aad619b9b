"""Headers with one thing wrong: each is refused by name, at once, in little memory, and the process lives."""
import errno
import os
import random
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from faults_gguf import (ARRAY, BOOL, F32, I32, KEYS, STRING, TENSORS, U8, U16, U32, U64, gguf, info, kv, kv_array, string,
                         tiny, with_tensors)

from pyengine.errors import GGUFError, MemoryBudgetError
from pyengine.gguf import GGUF
from pyengine.metadata import Metadata

ROOT = Path(__file__).parent.parent
ARCH = kv("general.architecture", STRING, "llama")


def refused(tmp_path, raw, name="m.gguf"):
    """The error text of a file that must not open."""
    path = tmp_path / name
    path.write_bytes(raw)
    with pytest.raises(GGUFError) as caught:
        GGUF(path).close()
    text = str(caught.value)
    assert text.startswith(str(path)) and len(text) < 1000 and text.isprintable()
    return text


# ---- 1, case 101: not a GGUF at all -----------------------------------------------------


@pytest.mark.parametrize("raw, text", [
    (b"FUGG" + bytes(40), "a GGUF magic with its bytes swapped"),
    (b"<!DOCTYPE html><html><body>404</body></html>", "a web page (HTML)"),
    (b"\n  <html lang=en>", "a web page (HTML)"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "a git-lfs pointer"),
    (struct.pack("<Q", 30) + b'{"__metadata__":{}}' + bytes(30), "a safetensors file"),
    (b"PK\x03\x04" + bytes(40), "a zip archive"),
    (b"\x1f\x8b\x08" + bytes(40), "gzip data"),
    (b"lmgg" + bytes(40), "a ggml file from before GGUF"),
    (b"fmgg" + bytes(40), "a ggmf file from before GGUF"),
    (b"tjgg" + bytes(40), "a ggjt file from before GGUF"),
    (b"\x80\x02}q", "a Python pickle"),
    (b'{"a": 1}', "JSON"),
    (bytes(100), "found the bytes 00 00 00 00 00 00 00 00, expected 47 47 55 46"),
    (b"G", "found the bytes 47, expected"),
    (b"GGU", "found the bytes 47 47 55, expected"),
    (b"\x1b[31mred" + bytes(20), "found the bytes 1b 5b 33 31"),
])
def test_what_it_looks_like(tmp_path, raw, text):
    assert text in refused(tmp_path, raw)


# ---- 2: versions, byte order ---------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 4, 2**31, 2**32 - 1])
def test_version(tmp_path, version):
    assert f"byte 4: found GGUF version {version}, expected 2 or 3" in refused(tmp_path, gguf([ARCH], version=version))


@pytest.mark.parametrize("version", [2, 3])
def test_big_endian_is_named(tmp_path, version):
    text = refused(tmp_path, b"GGUF" + struct.pack(">IQQ", version, 1, 1) + bytes(100))
    assert f"is a big-endian GGUF (version {version}), expected a little-endian one" in text


# ---- 3-5: counts -----------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2**64 - 1, 2**63, 2**40, 100])
def test_count_of_keys(tmp_path, n):
    assert f"byte 16: found a count of {n} keys, expected at most" in refused(tmp_path, gguf([ARCH], n_keys=n))


@pytest.mark.parametrize("n", [2**64 - 1, 2**62, 2**40, 65537])
def test_count_of_tensors(tmp_path, n):
    raw = with_tensors([ARCH], [("w", (2**20,), 0)], n_tensors=n)
    assert f"byte 8: found a count of {n} tensors, expected at most" in refused(tmp_path, raw)


def test_one_key_or_tensor_too_many(tmp_path):
    """What follows the last entry is read as one more, and is none."""
    refused(tmp_path, with_tensors(KEYS, TENSORS, n_keys=len(KEYS) + 1))
    refused(tmp_path, with_tensors(KEYS, TENSORS, n_tensors=len(TENSORS) + 1))


def test_no_keys_and_no_tensors(tmp_path):
    """Counts of 0 on a full file leave nothing to run: what is asked for is missing, by name."""
    path = tmp_path / "m.gguf"
    path.write_bytes(with_tensors(KEYS, TENSORS, n_keys=0, n_tensors=0))
    with GGUF(path) as g:
        assert g.tensors == {} and g.keys() == []
        with pytest.raises(GGUFError, match="key 'general.architecture': missing, expected a string"):
            g.arch


# ---- 6-9: strings, keys ------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2**64 - 1, 2**63, 2**40, "file+1"])
def test_string_longer_than_the_file(tmp_path, n):
    size = len(gguf([ARCH])) + 20
    n = size + 1 if n == "file+1" else n
    text = refused(tmp_path, gguf([ARCH, string("k") + struct.pack("<IQ", STRING, n)]))
    assert f"key 'k' at byte {len(gguf([ARCH])) + 13}: found a string of {n} bytes, expected at most the 0 left" in text


def test_key_length(tmp_path):
    assert "key 0 at byte 24: found a key of 0 bytes, expected 1..65535" in refused(
        tmp_path, gguf([kv("", U8, 1)]))
    assert "key 1 at byte" in refused(tmp_path, gguf([ARCH, kv("k" * 65536, U8, 1)]))
    assert "found a key of 18446744073709551615 bytes" in refused(
        tmp_path, gguf([struct.pack("<Q", 2**64 - 1) + b"k" + bytes(20)]))
    path = tmp_path / "long.gguf"
    path.write_bytes(gguf([kv("k" * 65535, U8, 1)]))
    with GGUF(path) as g:
        assert g.get_int("k" * 65535) == 1


@pytest.mark.parametrize("key", [b"a\0b", b"\xff\xfe", "schl\u00fcssel".encode(), b"a\nb", b"a\x1b[2J", b"a\x7f"])
def test_key_that_is_not_printable_ascii(tmp_path, key):
    text = refused(tmp_path, gguf([ARCH, kv(key, U8, 1)]))
    bad = next(b for b in key if not 0x20 <= b <= 0x7E)
    assert f"found byte {bad:#04x} in the key, expected printable ASCII" in text


def test_duplicate_key(tmp_path):
    at = 24 + len(ARCH)
    text = refused(tmp_path, gguf([ARCH, kv("general.architecture", STRING, "gemma")]))
    assert f"key 'general.architecture' at byte {at}: found twice, first at byte 24, expected once" in text


# ---- 10-12, case 106: value types, arrays ---------------------------------------------------------


@pytest.mark.parametrize("kind", [13, 2**31, 2**32 - 1])
def test_value_type(tmp_path, kind):
    text = refused(tmp_path, gguf([ARCH, string("k") + struct.pack("<I", kind) + bytes(64)]))
    assert f"found value type {kind}, expected 0..12" in text


@pytest.mark.parametrize("kind", [13, 255, 2**32 - 1])
def test_element_type(tmp_path, kind):
    text = refused(tmp_path, gguf([ARCH, string("k") + struct.pack("<IIQ", ARRAY, kind, 2**40) + bytes(64)]))
    assert f"found array element type {kind}, expected 0..12" in text


@pytest.mark.parametrize("elem, n", [(U8, 2**61), (U64, 2**61 + 1), (STRING, 2**29), (U8, 2**64 - 1), (STRING, 2**61 + 1),
                                     (U64, 9), (BOOL, 65)])
def test_array_longer_than_the_file(tmp_path, elem, n):
    text = refused(tmp_path, gguf([ARCH, kv_array("k", elem, [], n) + bytes(64)]))
    assert f"found an array of {n} elements, expected at most" in text


def test_string_array_whose_last_string_is_cut(tmp_path):
    raw = string("k") + struct.pack("<IIQ", ARRAY, STRING, 2) + string("ok") + struct.pack("<Q", 5) + b"four"
    assert "found a string of 5 bytes, expected at most the 4 left" in refused(tmp_path, gguf([raw]))


@pytest.mark.parametrize("depth", [1, 5000])
def test_nested_arrays(tmp_path, depth):
    raw = string("k") + struct.pack("<I", ARRAY) + struct.pack("<IQ", ARRAY, 1) * depth + struct.pack("<IQB", U8, 1, 7)
    assert "key 'k' at byte 37: found an array of arrays" in refused(tmp_path, gguf([raw]))


def test_bool_byte(tmp_path):
    assert "found bool byte 2, expected 0 or 1" in refused(tmp_path, gguf([kv("k", BOOL, 2)]))
    assert "found bool byte 255, expected 0 or 1" in refused(tmp_path, gguf([kv_array("k", BOOL, [0, 1, 255])]))


# ---- 13: memory -------------------------------------------------------------------------------------


def test_memory_follows_the_file(tmp_path):
    """Peak memory at most 4 times the file and 64 MB more, over files that claim far more than they hold."""
    many = gguf([kv(f"k{i}", U8, 1) for i in range(300_000)])
    files = {
        "array": gguf([kv_array("k", U8, [], 2**32)]),
        "strings": gguf([kv_array("k", STRING, [], 2**32)]),
        "keys": gguf([ARCH], n_keys=2**32),
        "tensors": gguf([ARCH], n_tensors=2**32),
        "string": gguf([string("k") + struct.pack("<IQ", STRING, 2**32)]),
        "many": many,
    }
    code = ("import resource, sys\nfrom pyengine.gguf import GGUF\nfrom pyengine.errors import GGUFError\n"
            "rss = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024\n"
            "before = rss()\n"
            "try: g = GGUF(sys.argv[1])\n"
            "except GGUFError: pass\n"
            "print(rss() - before)")
    for name, raw in files.items():
        path = tmp_path / name
        path.write_bytes(raw)
        done = subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) <= 4 * len(raw) + 64 * 2**20, name


def test_a_sparse_file_does_not_make_a_huge_header(tmp_path):
    path = tmp_path / "sparse.gguf"
    path.write_bytes(gguf([string("k") + struct.pack("<IQ", STRING, 2**39)]))
    os.truncate(path, 2**40)
    with pytest.raises(GGUFError, match="found a header of more than 268435456 bytes"):
        GGUF(path)


@pytest.mark.timeout(120)
def test_a_million_keys(tmp_path):
    """0.3 s, most of it reading; a search among all former keys would take 5 * 10^11 comparisons and the time-out."""
    path = tmp_path / "many.gguf"
    path.write_bytes(gguf([kv(f"k{i}", U8, 1) for i in range(1_000_000)]))
    with GGUF(path) as g:
        assert g.get_int("k999999") == 1 and "k1000000" not in g


# ---- 14-17, case 107: alignment ------------------------------------------------------------------------


@pytest.mark.parametrize("align", [0, 1, 2, 3, 4, 13, 2**17, 2**30, 2**31, 2**32 - 1])
def test_alignment(tmp_path, align):
    text = refused(tmp_path, with_tensors([kv("general.alignment", U32, align)], [("w", (4,), 0)]))
    assert "key 'general.alignment' at byte" in text
    assert f"found u32 {align}, expected a power of two in 8..65536" in text


@pytest.mark.parametrize("entry, kind", [(kv("general.alignment", I32, 32), "i32"), (kv("general.alignment", U16, 32), "u16"),
                                         (kv("general.alignment", STRING, "32"), "string"),
                                         (kv_array("general.alignment", U32, [32]), "array")])
def test_alignment_of_another_type(tmp_path, entry, kind):
    assert f"found type {kind}, expected u32" in refused(tmp_path, gguf([entry]))


# ---- 18-20: typed reads ---------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [kv("llama.block_count", STRING, "2"), kv("llama.block_count", I32, -1),
                                   kv("llama.block_count", F32, 2.0), kv_array("llama.block_count", U32, [2])])
def test_known_key_of_wrong_type(tmp_path, entry):
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf([ARCH, entry]))
    with GGUF(path) as g, pytest.raises(GGUFError, match="key 'llama.block_count' at byte .*expected an integer, 1..1024"
                                                        "|expected 1..1024"):
        g.get_int("llama.block_count", lo=1, hi=1024)


@pytest.mark.parametrize("keys, text", [
    ([], "missing, expected a string"),
    ([kv("general.architecture", U32, 7)], "found u32 7, expected a string"),
    ([kv("general.architecture", STRING, b"\xff")], "expected UTF-8"),
])
def test_architecture(tmp_path, keys, text):
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(keys))
    with GGUF(path) as g, pytest.raises(GGUFError, match=text):
        g.arch


def test_foreign_text_is_escaped_and_cut_in_errors(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf([kv("k", STRING, "\x1b[31m\n" + "z" * 2**20)]))
    with GGUF(path) as g:
        text = str(g.error("k", "found " + g.describe("k")))
        assert r"\x1b[31m\n" in text and text.isprintable() and len(text) < len(str(path)) + 320


# ---- 21, case 100: cut files ----------------------------------------------------------------------------------


def cut_lengths(raw, every):
    header = raw.index(b"blk.1.ffn_down.weight") + 60
    return [*range(0, header, every), *range(header, len(raw), 7 * every)]


def open_and_read(path):
    """Open; if it opens, all that it offers must lie inside the file and be readable. True if it opened."""
    try:
        g = GGUF(path)
    except GGUFError:
        return False
    with g:
        size = g.files[0].size
        for t in g.tensors.values():
            assert 0 < t.nbytes == t.n_rows * t.row_bytes and t.offset + t.nbytes <= size and t.offset % g.alignment == 0
        for key in g.keys():
            v = g.value(key)
            if not isinstance(v, (int, float, str, bytes)):
                list(v)
    return True


def check_cuts(tmp_path, lengths):
    raw = tiny()
    last = max(i for i in range(len(raw)) if raw[i])  # the tail's padding may be missing
    path = tmp_path / "cut.gguf"
    opened = 0
    path.write_bytes(raw)
    for n in sorted(lengths, reverse=True):
        os.truncate(path, n)
        if open_and_read(path):
            opened += 1
            assert n > last
    return opened


def test_cut_anywhere(tmp_path):
    assert check_cuts(tmp_path, cut_lengths(tiny(), 3)) == 0


@pytest.mark.long
def test_cut_at_every_byte(tmp_path):
    check_cuts(tmp_path, range(len(tiny())))


def check_flips(tmp_path, bits):
    raw = tiny()
    path = tmp_path / "flip.gguf"
    path.write_bytes(raw)
    fd = os.open(path, os.O_WRONLY)
    outcomes = {True: 0, False: 0}
    for bit in bits:
        byte = bit // 8
        os.pwrite(fd, bytes([raw[byte] ^ 1 << bit % 8]), byte)
        outcomes[open_and_read(path)] += 1
        os.pwrite(fd, raw[byte : byte + 1], byte)
    os.close(fd)
    return outcomes


def test_flipped_bits(tmp_path):
    n = 8 * len(tiny())
    outcomes = check_flips(tmp_path, random.Random(1).sample(range(n), 2500) + list(range(0, 24 * 8)))
    assert outcomes[True] > 100 and outcomes[False] > 100


@pytest.mark.long
def test_every_flipped_bit(tmp_path):
    n = 8 * len(tiny())
    outcomes = check_flips(tmp_path, range(n))
    assert sum(outcomes.values()) == n and n > 150_000


@pytest.mark.parametrize("share", [0.5, 0.05, "one byte", "piece"])
def test_cut_real_size(tmp_path, share):
    """A cut download says how much there is and how much its tensors need."""
    raw = with_tensors([ARCH], [("a", (256, 64), 0), ("b", (256, 64), 12)], tail=False)
    n = {"one byte": len(raw) - 1, "piece": 2048}.get(share) or int(len(raw) * share)
    text = refused(tmp_path, raw[:n])
    assert f"file is shorter than its tensors need (have {n}, need {len(raw)} bytes)" in text


def test_cut_while_the_header_is_read(tmp_path):
    """The size is taken first: a file cut between fstat and read is a short one, not a crash."""
    path = tmp_path / "m.gguf"
    path.write_bytes(tiny()[:100])
    fd = os.open(path, os.O_RDONLY)
    with pytest.raises(GGUFError, match="the file ends inside the header"):
        Metadata(str(path), fd, len(tiny()))
    os.close(fd)


# ---- 23: what is no file ------------------------------------------------------------------------------------------


def test_special_files(tmp_path):
    fifo, sock = tmp_path / "pipe.gguf", tmp_path / "sock.gguf"
    os.mkfifo(fifo)
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(sock))
        for path, what in [(fifo, "a named pipe"), (tmp_path, "a directory"), ("/dev/null", "a character device"),
                           ("/dev/zero", "a character device"), (sock, "a socket")]:
            with pytest.raises(GGUFError, match=f"is {what}, expected a GGUF file"):
                GGUF(path)


@pytest.mark.parametrize("path", ["/proc/self/maps", "/proc/cpuinfo"])
def test_proc_files(path):
    with pytest.raises(GGUFError, match="is empty"):
        GGUF(path)


def test_empty_missing_and_unnameable(tmp_path):
    assert "is empty (0 bytes), expected a GGUF file" in refused(tmp_path, b"")
    with pytest.raises(FileNotFoundError):
        GGUF(tmp_path / "none.gguf")
    with pytest.raises(GGUFError, match="null"):
        GGUF("a\0b.gguf")


# ---- 24: sizes beyond 32 bits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2**32 + 1, 2**40, 2**63 - 1])
@pytest.mark.parametrize("use_mmap", [True, False])
def test_huge_sparse_file(tmp_path, size, use_mmap):
    """Opens, or is refused for memory; offsets beyond 32 bits hold."""
    if not use_mmap and size < 2**50:
        pytest.skip("would really read it")
    path = tmp_path / "huge.gguf"
    far = min(size, 2**40) - 64
    header = gguf([ARCH], [info("near", (4,), 0, 0), info("far", (8,), 0, 0)], b"")
    data_at = len(header)
    path.write_bytes(gguf([ARCH], [info("near", (4,), 0, 0), info("far", (8,), 0, (far - data_at) // 32 * 32)], bytes(32)))
    try:
        os.truncate(path, size)
    except OSError as e:
        assert e.errno in (errno.EFBIG, errno.EINVAL, errno.ENOSPC)
        pytest.skip("this file system has no files of that size")
    try:
        g = GGUF(path, mmap=use_mmap)
    except MemoryBudgetError as e:
        assert str(size) in str(e)
        return
    with g:
        t = g.tensors["far"]
        assert t.offset > 2**32 - 128
        assert g.files[0].buffer[t.offset : t.offset + t.nbytes] == bytes(32)

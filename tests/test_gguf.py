"""GGUF files that are right: every type read back, mapping, split models, alignment, closing."""
import os
import subprocess
import sys
from pathlib import Path

import pytest
from faults_gguf import (F32, F64, FORMATS, I32, KEYS, STRING, TENSORS, U16, U32, gguf, info, kv,
                         kv_array, nbytes, tiny, with_tensors)

from pyengine.errors import ClosedError, GGUFError, MemoryBudgetError, quoted
from pyengine.gguf import GGUF, TENSOR_TYPES

ROOT = Path(__file__).parent.parent
VOCAB = ROOT.parent / "shared" / "data" / "vocab"


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny())
    with GGUF(path) as g:
        yield g


def write(tmp_path, raw, name="m.gguf"):
    path = tmp_path / name
    path.write_bytes(raw)
    return path


# ---- metadata -----------------------------------------------------------------------


def test_typed_reads(model):
    assert model.version == 3 and model.alignment == 32 and model.arch == "llama"
    assert model.get_str("general.name") == "tiny"
    assert [model.get_int(f"misc.{t}") for t in ("u8", "i8", "u16", "i16", "i32", "u64", "i64")] == [
        200, -5, 60000, -300, -70000, 2**63 + 1, -(2**40)]
    assert model.get_float("misc.f64") == 0.1
    assert model.get_float("llama.rope.freq_base", lo=1.0) == 10000.0
    assert model.get_bool("tokenizer.ggml.add_bos_token") is True
    assert model.get_bools("misc.bools") == [False, True, True]
    assert model.get_ints("misc.u8s", n=3) == [1, 2, 3]
    assert model.get_floats("tokenizer.ggml.scores", n=43)[42] == -42.0
    assert model.get_per_layer("llama.attention.head_count", 2) == [2, 2]
    assert model.get_per_layer("llama.attention.head_count_kv", 2) == [2, 1]
    assert model.get_per_layer("misc.bools", 3) == [0, 1, 1]


def test_keys_in_file_order_and_membership(model):
    keys = model.keys()
    assert len(keys) == len(KEYS) and keys[0] == "general.architecture" and keys[-1] == "misc.u8s"
    assert all(k in model for k in keys)
    assert "general.architectur" not in model and "" not in model and 7 not in model and "\udc80" not in model


def test_values_for_display(model):
    assert model.value("misc.bools") == [False, True, True]
    assert model.value("misc.f64") == 0.1
    assert model.value("tokenizer.ggml.add_bos_token") is True
    assert list(model.value("misc.empty")) == []
    assert model.describe("tokenizer.ggml.tokens") == "array of 43 string"
    assert model.describe("misc.i8") == "i8 -5"
    assert model.describe("general.name") == "string 'tiny'"


def test_string_array_is_lazy_and_points_into_the_file(model):
    tokens = model.get_strings("tokenizer.ggml.tokens")
    assert len(tokens) == 43 and tokens[0] == b"<0x00>" and tokens[40] == b"" and tokens[-1] == b"\xff\xfe"
    assert tokens[41:] == ["\u2581a".encode(), b"\xff\xfe"]
    assert list(tokens) == [tokens[i] for i in range(43)]
    with pytest.raises(IndexError):
        tokens[43]
    raw = model.files[0].buffer
    assert all(raw[o : o + n] == t for o, n, t in zip(tokens.offsets, tokens.lengths, tokens))


def test_defaults_answer_only_missing_keys(model):
    assert model.get_int("no.such", default=None) is None
    assert model.get_str("no.such", default="x") == "x"
    assert model.get_strings("no.such", default=None) is None
    assert model.get_per_layer("no.such", 2, default=[1, 1]) == [1, 1]
    with pytest.raises(GGUFError, match="found string 'tiny', expected an integer"):
        model.get_int("general.name", default=3)


@pytest.mark.parametrize("read, text", [
    (lambda g: g.get_int("a.b"), "key 'a.b': missing, expected an integer"),
    (lambda g: g.get_int("llama.block_count", lo=3, hi=9), "found u32 2, expected 3..9"),
    (lambda g: g.get_int("llama.block_count", lo=5), "found u32 2, expected at least 5"),
    (lambda g: g.get_int("llama.block_count", hi=1), "found u32 2, expected at most 1"),
    (lambda g: g.get_int("llama.rope.freq_base"), "found f32 10000.0, expected an integer"),
    (lambda g: g.get_int("tokenizer.ggml.add_bos_token"), "found bool True, expected an integer"),
    (lambda g: g.get_float("llama.block_count"), "found u32 2, expected a float"),
    (lambda g: g.get_bool("misc.u8"), "found u8 200, expected a bool"),
    (lambda g: g.get_str("misc.u8s"), "found array of 3 u8, expected a string"),
    (lambda g: g.get_ints("misc.u8s", n=4), "found array of 3 u8, expected an array of 4 integers"),
    (lambda g: g.get_ints("misc.u8"), "found u8 200, expected an array of integers"),
    (lambda g: g.get_ints("misc.bools"), "found array of 3 bool, expected an array of integers"),
    (lambda g: g.get_ints("misc.u8s", hi=2), "found element 2 u8 3, expected at most 2"),
    (lambda g: g.get_floats("misc.u8s"), "found array of 3 u8, expected an array of floats"),
    (lambda g: g.get_strings("misc.u8s"), "found array of 3 u8, expected an array of strings"),
    (lambda g: g.get_per_layer("llama.attention.head_count_kv", 3), "found array of 2 i32, expected an array of 3"),
    (lambda g: g.get_per_layer("general.name", 3), "found string 'tiny', expected an integer or an array of 3"),
    (lambda g: g.value("a.b"), "key 'a.b': missing"),
])
def test_wrong_reads_name_key_offset_found_and_expected(model, read, text):
    with pytest.raises(GGUFError) as caught:
        read(model)
    e = caught.value
    assert text in str(e) and str(model.path) in str(e)
    if "missing" not in text:
        assert f"key '{e.key}' at byte {e.offset}: " in str(e)
        raw = Path(model.path).read_bytes()
        assert raw[e.offset + 8 : e.offset + 8 + len(e.key)] == e.key.encode()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("kind", [F32, F64])
def test_non_finite_floats_are_refused(tmp_path, kind, value):
    path = write(tmp_path, gguf([kv("x", kind, value), kv_array("y", kind, [1.0, value])]))
    with GGUF(path) as g:
        with pytest.raises(GGUFError, match="expected a finite number"):
            g.get_float("x")
        with pytest.raises(GGUFError, match="element 1 f.. .*expected a finite number"):
            g.get_floats("y")
        assert len(g.value("y")) == 2  # still shown by inspect


def test_extra_keys_of_every_type_are_kept_and_readable(tmp_path):
    """Case 109: unknown keys of every type, arrays of them, a megabyte of text."""
    values = {k: [1, 0, 1] for k in FORMATS}
    keys = [kv(f"x.{k}", k, 1) for k in FORMATS] + [kv_array(f"y.{k}", k, v) for k, v in values.items()]
    keys += [kv("x.text", STRING, "é" * 2**19), kv_array("y.text", STRING, ["a", "b" * 2**20]), kv("x.raw", STRING, b"\xff")]
    with GGUF(write(tmp_path, gguf(keys))) as g:
        assert all(g.value(f"x.{k}") == 1 and g.value(f"y.{k}") == [1, 0, 1] for k in FORMATS)
        assert g.get_str("x.text") == "é" * 2**19
        assert [len(s) for s in g.get_strings("y.text")] == [1, 2**20]
        assert g.value("x.raw") == b"\xff"
        with pytest.raises(GGUFError, match=r"found string '\\xff', expected UTF-8"):
            g.get_str("x.raw")


# ---- tensors -------------------------------------------------------------------------


def test_tensors_lie_where_they_say(model):
    assert list(model.tensors) == [name for name, _, _ in TENSORS]
    raw = tiny()
    for name, dims, kind in TENSORS:
        t = model.tensors[name]
        assert (t.name, t.shape, t.type, t.file) == (name, dims, kind, 0)
        assert t.nbytes == nbytes(dims, kind) == t.n_rows * t.row_bytes
        assert t.offset % 32 == 0
        assert model.files[0].buffer[t.offset : t.offset + t.nbytes] == raw[t.offset : t.offset + t.nbytes]
    assert model.tensors["blk.0.attn_q.weight"].type_name == "Q4_0"


@pytest.mark.parametrize("use_mmap", [True, False])
def test_address_and_buffer_are_the_same_bytes(tmp_path, use_mmap):
    from pyengine.native import ffi

    path = write(tmp_path, tiny())
    with GGUF(path, mmap=use_mmap) as g:
        f = g.files[0]
        assert f.size == len(tiny()) and bytes(ffi.buffer(ffi.cast("char *", f.address), f.size)) == tiny()
        assert f.buffer == tiny() and f.buffer.readonly and f.address % 64 == 0


def test_tensor_types_agree_with_the_gguf_package():
    constants = pytest.importorskip("gguf.constants")
    theirs = {int(t): (t.name, *size) for t, size in constants.GGML_QUANT_SIZES.items()
              if isinstance(t, constants.GGMLQuantizationType)}  # tools/tiny_gguf.py adds numbers the package lacks
    theirs[9] = ("Q8_1", 32, 36)  # the package counts its two halves as floats
    assert {k: TENSOR_TYPES[k] for k in theirs} == theirs
    assert not {4, 5, 31, 32, 33, 36, 37, 38} & set(TENSOR_TYPES)


@pytest.mark.parametrize("align", [8, 16, 64, 4096, 65536])
@pytest.mark.parametrize("tail", [True, False])
def test_alignment_and_missing_tail_padding(tmp_path, align, tail):
    """Case 107: powers of two move the data; the padding behind the last tensor may be missing."""
    tensors = [("a", (3,), 0), ("b", (32, 3), 8), ("c", (5,), 1)]
    raw = with_tensors([kv("general.alignment", U32, align)], tensors, align=align, tail=tail)
    same = with_tensors([], tensors)
    with GGUF(write(tmp_path, raw)) as g, GGUF(write(tmp_path, same, "same.gguf")) as h:
        assert g.alignment == align
        for name in "abc":
            t, u = g.tensors[name], h.tensors[name]
            assert t.offset % align == 0
            assert g.files[0].buffer[t.offset : t.offset + t.nbytes] == h.files[0].buffer[u.offset : u.offset + u.nbytes]


def test_holes_between_tensors_and_any_order_are_fine(tmp_path):
    raw = gguf([], [info("b", (4,), 0, 128), info("a", (4,), 0, 0)], bytes(144))
    with GGUF(write(tmp_path, raw)) as g:
        assert g.tensors["b"].offset - g.tensors["a"].offset == 128


def test_version_2(tmp_path):
    with GGUF(write(tmp_path, with_tensors(KEYS, TENSORS, version=2))) as g:
        assert g.version == 2 and len(g.tensors) == len(TENSORS)


def test_reads_what_the_gguf_package_writes(tmp_path):
    package = pytest.importorskip("gguf")
    import numpy as np

    path = tmp_path / "theirs.gguf"
    w = package.GGUFWriter(str(path), "llama")
    w.add_block_count(3)
    w.add_float32("x.f", 0.5)
    w.add_bool("x.b", False)
    w.add_array("x.ints", [1, -2, 3])
    w.add_token_list([b"a", "ü".encode()])
    data = np.arange(96, dtype=np.float32).reshape(3, 32)
    w.add_tensor("a.weight", data)
    w.add_tensor("b.weight", data.astype(np.float16))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    with GGUF(path) as g:
        assert g.arch == "llama" and g.get_int("llama.block_count") == 3 and g.get_float("x.f") == 0.5
        assert g.get_bool("x.b") is False and g.get_ints("x.ints") == [1, -2, 3]
        assert list(g.get_strings("tokenizer.ggml.tokens")) == [b"a", "ü".encode()]
        t = g.tensors["a.weight"]
        assert t.shape == (32, 3) and t.n_rows == 3 and t.row_bytes == 128
        raw = g.files[0].buffer[t.offset : t.offset + t.nbytes]
        assert (np.frombuffer(raw, np.float32) == data.ravel()).all()
        raw.release()


# ---- split models ----------------------------------------------------------------------


def split(folder, parts=3, stem="model", **wrong):
    """TENSORS over `parts` files; wrong={"count": {2: 9}} lies in part 2."""
    for i in range(parts):
        keys = [kv("split.no", U16, wrong.get("no", {}).get(i, i)),
                kv("split.count", U16, wrong.get("count", {}).get(i, parts)),
                kv("split.tensors.count", I32, wrong.get("total", {}).get(i, len(TENSORS)))]
        keys += KEYS if i == 0 else wrong.get("keys", {}).get(i, [])
        (folder / f"{stem}-{i + 1:05d}-of-{parts:05d}.gguf").write_bytes(
            with_tensors(keys, wrong.get("tensors", {}).get(i, TENSORS[i::parts]), seed=i))
    return folder / f"{stem}-00001-of-{parts:05d}.gguf"


def test_split_model_is_the_single_file(tmp_path, monkeypatch):
    """Case 102: all parts; relative path, symlink, blanks in the path."""
    folder = tmp_path / "my models"
    folder.mkdir()
    path = split(folder)
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(folder)
    for way in (path, path.name, str(path), tmp_path / "link" / path.name):
        with GGUF(way) as g:
            assert len(g.files) == 3 and set(g.tensors) == {name for name, _, _ in TENSORS}
            assert {t.file for t in g.tensors.values()} == {0, 1, 2}
            for name, dims, kind in TENSORS:
                t = g.tensors[name]
                assert (t.shape, t.type) == (dims, kind) and t.offset + t.nbytes <= g.files[t.file].size
            assert g.arch == "llama"


def test_split_count_one_needs_no_name(tmp_path):
    with GGUF(write(tmp_path, with_tensors([kv("split.count", U16, 1)], TENSORS))) as g:
        assert len(g.files) == 1


# ---- closing, cost ------------------------------------------------------------------------


def test_use_after_close_is_an_error_and_close_twice_is_not(tmp_path):
    g = GGUF(write(tmp_path, tiny()))
    tokens, file = g.get_strings("tokenizer.ggml.tokens"), g.files[0]
    g.close()
    g.close()
    for use in (lambda: g.arch, g.keys, lambda: g.value("x"), lambda: file.address, lambda: file.buffer,
                lambda: "x" in g):
        with pytest.raises(ClosedError, match="is closed"):
            use()
    assert tokens[0] == b"<0x00>"  # keeps the header it points into


def test_a_view_outlives_close(tmp_path):
    numpy = pytest.importorskip("numpy")
    g = GGUF(write(tmp_path, tiny()))
    t = g.tensors["output_norm.weight"]
    view = numpy.frombuffer(g.files[0].buffer, numpy.uint8, t.nbytes, t.offset)
    g.close()
    assert view.tobytes() == tiny()[t.offset : t.offset + t.nbytes]


def test_open_and_close_leave_nothing_open(tmp_path):
    path = write(tmp_path, tiny())
    bad = write(tmp_path, tiny()[:-5000], "bad.gguf")
    before = len(os.listdir("/proc/self/fd"))
    for i in range(50):
        GGUF(path, mmap=i % 2 == 0).close()
        with pytest.raises(GGUFError):
            GGUF(bad)
        with pytest.raises(GGUFError):
            GGUF(split(tmp_path, 2, tensors={1: TENSORS}))
    assert len(os.listdir("/proc/self/fd")) == before
    assert str(tmp_path) not in open("/proc/self/maps").read()


@pytest.mark.skipif(not VOCAB.exists(), reason="the vocabulary files are not here")
def test_real_vocabularies():
    paths = sorted(VOCAB.glob("*.gguf"))
    assert paths
    for path in paths:
        with GGUF(path) as g:
            tokens = g.get_strings("tokenizer.ggml.tokens")
            assert len(tokens) > 1000 and g.arch and not g.tensors
            assert len(g.get_ints("tokenizer.ggml.token_type", n=len(tokens))) == len(tokens)


@pytest.mark.parametrize("name, arch, n", [("smollm2", "llama", 272), ("gemma-3-270m", "gemma3", 236)])
def test_real_models(real_model, name, arch, n):
    with GGUF(real_model(name)) as g:
        assert g.arch == arch and len(g.tensors) == n
        end = max(t.offset + t.nbytes for t in g.tensors.values())
        assert 0 <= g.files[0].size - end < g.alignment


def test_import_is_light():
    code = "import sys, pyengine.gguf; print([m for m in ('numpy', 'jinja2', 'sentencepiece', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_quoted_escapes_and_cuts():
    assert quoted("a\n\x1b[31m\u202e") == r"'a\n\x1b[31m\u202e'"
    assert quoted(b"\xff" * 1000) == "'" + r"\xff" * 50 + "...'"
    assert quoted("x" * 200) == "'" + "x" * 200 + "'" and quoted("x" * 201) == "'" + "x" * 200 + "...'"
    assert quoted("\udc80") == r"'\udc80'"


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="this system cannot say what is in memory")
def test_read_ahead_fetches_a_cold_file(tmp_path):
    path = tmp_path / "m.gguf"
    raw = gguf(data=os.urandom(1 << 24))
    path.write_bytes(raw)
    with GGUF(path) as g, open(path, "rb") as f:
        os.fsync(f.fileno())
        file = g.files[0]
        assert file.read_ahead() is None       # written just now: in memory
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if file.in_memory() is not False:
            pytest.skip("this file system keeps its files in memory")
        thread = file.read_ahead()
        thread.join()
        assert file.buffer[-1] == raw[-1]
        os.pread(f.fileno(), file.size, 0)     # whatever is still on its way
        assert file.read_ahead() is None
    with GGUF(path, mmap=False) as g:
        assert g.files[0].read_ahead() is None  # in private memory already


@pytest.mark.parametrize("use_mmap", [True, False])
def test_a_file_larger_than_32_bits_address(tmp_path, use_mmap):
    """Five gigabytes, nearly all of them a hole: mapped by a 64-bit process, refused with the reason by another."""
    n = 5 << 28
    path = write(tmp_path, gguf([kv("general.architecture", STRING, "llama")], [info("big", [n], 0, 0)]))
    os.truncate(path, path.stat().st_size + 4 * n)
    if sys.maxsize > 2**32:
        if not use_mmap:
            pytest.skip("would take five gigabytes of memory")
        with GGUF(path) as g:
            assert g.files[0].size == path.stat().st_size > 4 * n and g.tensors["big"].nbytes == 4 * n
    else:
        with pytest.raises(MemoryBudgetError, match=f"a 32-bit process can map at most {sys.maxsize} bytes"):
            GGUF(path, mmap=use_mmap)

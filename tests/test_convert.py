"""pyengine.quantize and `pyengine-cli quantize`: whole files in, whole files out; keys untouched; nothing
written over, nothing left behind."""

import os
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

gguf = pytest.importorskip("gguf")
import numpy as np

import pyengine
import split_gguf
from pyengine import convert, mixes
from pyengine.cli import main
from pyengine.errors import GGUFError, PyengineError, RequestError
from pyengine.gguf import GGUF
from tiny_gguf import Spec, write

SPEC = Spec(n_embd=256, n_ff=(512,), n_vocab=600, n_layer=3, vocabulary="bpe", chat_template="{{ messages }}")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write(tmp_path_factory.mktemp("convert") / "tiny.gguf", SPEC)


def listing(folder):
    return sorted(os.listdir(folder))


def test_what_is_written(source, tmp_path):
    """Keys byte for byte and in order, the two about quantization set; another reader agrees on types and weights."""
    report = pyengine.quantize(source, tmp_path / "q.gguf", "q4_k_m", threads=2)
    assert listing(tmp_path) == ["q.gguf"]
    with GGUF(source) as a, GGUF(tmp_path / "q.gguf") as b:
        before, after = dict(a.raw_keys()), dict(b.raw_keys())
        assert list(after) == [*before, "general.quantization_version", "general.file_type"]
        assert all(after[key] == before[key] for key in before)
        assert b.value("general.file_type") == 15 and b.value("general.quantization_version") == 2
        assert list(a.tensors) == list(b.tensors)
    theirs = {t.name: t for t in gguf.GGUFReader(tmp_path / "q.gguf").tensors}
    exact = {t.name: t for t in gguf.GGUFReader(source).tensors}
    for t in report.tensors:
        got = theirs[t.name]
        assert got.tensor_type.name == t.after and got.n_bytes == t.nbytes_after
        y = gguf.quants.dequantize(got.data, got.tensor_type)
        x = exact[t.name].data
        assert np.sqrt(np.mean((y - x) ** 2)) < 0.1 * np.std(x) + 1e-9
    assert report.counts["Q4_K"] >= 10 and report.bytes_after < report.bytes_before / 5
    assert report.bits_per_weight == 8 * report.bytes_after / sum(np.prod(t.shape) for t in report.tensors)


def test_it_runs(source, tmp_path):
    pyengine.quantize(source, tmp_path / "q.gguf", "Q8_0")
    with pyengine.Llama(source) as a, pyengine.Llama(tmp_path / "q.gguf") as b:
        assert a.generate("a b", max_tokens=4, temperature=0).text is not None
        assert b.generate("a b", max_tokens=4, temperature=0).text == a.generate("a b", max_tokens=4, temperature=0).text


def test_no_byte_depends_on_threads(source, tmp_path, monkeypatch):
    monkeypatch.setattr(convert, "_PIECE", 2048)        # many pieces, so that an order that is not kept shows
    for n in (1, 3):
        convert.quantize(source, tmp_path / f"{n}.gguf", "Q3_K_M", threads=n)
    monkeypatch.undo()
    convert.quantize(source, tmp_path / "whole.gguf", "Q3_K_M", threads=2)
    assert (tmp_path / "1.gguf").read_bytes() == (tmp_path / "3.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()


@pytest.mark.parametrize("half", ["F16", "BF16"])
def test_halves_in_and_out(source, tmp_path, half):
    convert.quantize(source, tmp_path / "h.gguf", half)
    convert.quantize(tmp_path / "h.gguf", tmp_path / "q.gguf", "Q6_K")
    convert.quantize(tmp_path / "h.gguf", tmp_path / "f.gguf", "F32")
    with GGUF(tmp_path / "f.gguf") as g:
        assert {t.type_name for t in g.tensors.values()} == {"F32"} and g.value("general.file_type") == 0


def test_twice_only_when_asked(source, tmp_path):
    convert.quantize(source, tmp_path / "q8.gguf", "Q8_0")
    with pytest.raises(GGUFError, match="'token_embd.weight'.*found Q8_0, expected F32, F16 or BF16.*--requantize"):
        convert.quantize(tmp_path / "q8.gguf", tmp_path / "q4.gguf", "Q4_0")
    assert listing(tmp_path) == ["q8.gguf"]
    convert.quantize(tmp_path / "q8.gguf", tmp_path / "same.gguf", "Q8_0")         # nothing would be lost
    report = convert.quantize(tmp_path / "q8.gguf", tmp_path / "q4.gguf", "Q4_0", requantize=True)
    assert report.counts["Q4_0"] >= 20


def test_split_files(source, tmp_path):
    whole = tmp_path / "whole.gguf"
    convert.quantize(source, whole, "Q5_K_M")
    shards = split_gguf.split(source, tmp_path / "in", 3)
    assert convert.quantize(shards[0], tmp_path / "one.gguf", "Q5_K_M").paths == (str(tmp_path / "one.gguf"),)
    assert (tmp_path / "one.gguf").read_bytes() == whole.read_bytes()
    kept = convert.quantize(shards[0], tmp_path / "kept.gguf", "Q5_K_M", keep_split=True)
    assert [os.path.basename(p) for p in kept.paths] == [f"kept-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    most = 200_000
    cut = convert.quantize(source, tmp_path / "cut.gguf", "Q5_K_M", split_max_size=most)
    assert len(cut.paths) > 1 and all(os.path.getsize(p) <= most for p in cut.paths)
    with GGUF(whole) as a, GGUF(kept.paths[0]) as b, GGUF(cut.paths[0]) as c:
        for other in (b, c):
            assert list(other.tensors) == list(a.tensors)
            for name, t in a.tensors.items():
                u = other.tensors[name]
                assert a.files[t.file].buffer[t.offset:t.offset + t.nbytes] == other.files[u.file].buffer[u.offset:u.offset + u.nbytes]


def test_overrides_by_name(source, tmp_path):
    report = convert.quantize(source, tmp_path / "q.gguf", "Q4_K_M", tensor_types=[(r"blk\.1\.ffn_up", "q8_0")], pure=True,
                              token_embedding_type="Q6_K", dry_run=True)
    kinds = {t.name: t.after for t in report.tensors}
    assert kinds["blk.1.ffn_up.weight"] == "Q8_0" and kinds["blk.2.ffn_up.weight"] == "Q4_K" and kinds["token_embd.weight"] == "Q6_K"
    assert listing(tmp_path) == []
    with pytest.raises(RequestError, match="tensor_types: 'nothing_like_it' is found in no tensor"):
        convert.quantize(source, tmp_path / "q.gguf", "Q4_0", tensor_types=[("nothing_like_it", "Q8_0")])
    with pytest.raises(RequestError, match=r"tensor_types: '\(' is no regular expression"):
        convert.quantize(source, tmp_path / "q.gguf", "Q4_0", tensor_types=[("(", "Q8_0")])
    with pytest.raises(RequestError, match="output_tensor_type: found 'Q4_K_M', expected one of F32, F16, Q4_0"):
        convert.quantize(source, tmp_path / "q.gguf", "Q4_0", output_tensor_type="Q4_K_M")


@pytest.mark.parametrize("param", ["tensor_types", "output_tensor_type", "token_embedding_type"])
def test_a_type_asked_for_by_name_has_no_stand_in(param):
    matrix = SimpleNamespace(shape=(96, 8))
    tensors = [SimpleNamespace(name=n, **vars(matrix)) for n in ("token_embd.weight", "blk.0.ffn_up.weight", "output.weight")]
    facts = mixes.Facts("llama", 1, 1, 0, False)
    assert mixes.choose(tensors, "Q6_K", facts, pure=True) == dict.fromkeys((t.name for t in tensors), "Q8_0")   # a mix has one
    given = {"tensor_types": {"overrides": [(re.compile("ffn_up"), "Q6_K")]}, "output_tensor_type": {"output": "Q6_K"},
             "token_embedding_type": {"embedding": "Q6_K"}}[param]
    with pytest.raises(RequestError, match=f"{param}: Q6_K for tensor .*96 elements; expected a multiple of 256.*Q8_0 fits"):
        mixes.choose(tensors, "Q4_0", facts, **given)


@pytest.mark.parametrize("settings, says", [
    ({"threads": "x"}, "threads: found 'x', expected a whole number 1..1024"), ({"threads": 0}, "threads: found 0"),
    ({"split_max_size": 1.5}, "split_max_size: found 1.5"), ({"tensor_types": ["ffn=Q4_0"]}, "tensor_types: found 'ffn=Q4_0', expected pairs")])
def test_parameters_are_named(source, tmp_path, settings, says):
    with pytest.raises(RequestError, match=says):
        convert.quantize(source, tmp_path / "q.gguf", "Q8_0", **settings)
    with pytest.raises(RequestError, match="out: found ''"):
        convert.quantize(source, "", "Q8_0")


def test_nothing_is_written_over(source, tmp_path):
    out = tmp_path / "q.gguf"
    out.write_bytes(b"mine")
    with pytest.raises(RequestError, match="exists; force=True"):
        convert.quantize(source, out, "Q4_0")
    assert out.read_bytes() == b"mine"
    convert.quantize(source, out, "Q4_0", force=True)
    link = tmp_path / "link.gguf"
    os.link(out, link)
    with pytest.raises(RequestError, match="is the input"):
        convert.quantize(out, link, "Q8_0", force=True, requantize=True)
    with pytest.raises(RequestError, match="is a directory"):
        convert.quantize(source, tmp_path, "Q8_0", force=True)
    with pytest.raises(FileNotFoundError):
        convert.quantize(source, tmp_path / "none" / "q.gguf", "Q8_0")
    assert listing(tmp_path) == ["link.gguf", "q.gguf"]


@pytest.mark.parametrize("name, shown", [("blk.1.ffn_up.weight", "blk.1.ffn_up.weight"), ("blk.0.attn_norm.weight", "blk.0.attn_norm.weight")])
def test_weights_that_are_no_numbers(tmp_path, name, shown):
    from tiny_gguf import weights

    array = weights(SPEC)[name].copy()
    array.reshape(-1)[200] = np.nan
    path = write(tmp_path / "nan.gguf", SPEC, tensors={name: array})
    with pytest.raises(GGUFError, match=rf"'{shown}'.*element 200 is n[oa].*expected finite weights"):
        convert.quantize(path, tmp_path / "q.gguf", "Q4_K_M")
    assert listing(tmp_path) == ["nan.gguf"]


def test_weights_too_large(tmp_path):
    from tiny_gguf import weights

    array = weights(SPEC)["blk.1.ffn_up.weight"].copy()
    array[3, 7] = 1e38
    path = write(tmp_path / "huge.gguf", SPEC, tensors={"blk.1.ffn_up.weight": array})
    with pytest.raises(GGUFError, match=r"'blk.1.ffn_up.weight'.*element 775 is 1e[+]38, expected at most .*Q8_0 holds no larger one"):
        convert.quantize(path, tmp_path / "q.gguf", "Q8_0")
    assert convert.quantize(path, tmp_path / "b.gguf", "BF16").counts["BF16"] > 20


def test_disk_is_full(source, tmp_path, monkeypatch):
    import shutil

    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10**9, 10**9 - 1000, 1000))
    with pytest.raises(PyengineError, match="out: needs .* MB under .*, which has 0 MB free"):
        convert.quantize(source, tmp_path / "q.gguf", "Q8_0")


def imatrix(path, columns, n=10, leave_out=()):
    writer = gguf.GGUFWriter(str(path), "imatrix")
    for name, k in columns.items():
        sums = np.ones((1, k), np.float32) * n
        sums[:, ::16] = 400 * n
        writer.add_tensor(f"{name}.in_sum2", sums)
        if name not in leave_out:
            writer.add_tensor(f"{name}.counts", np.full((1, 1), n, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_importance_matrix(source, tmp_path):
    name = "blk.1.ffn_up.weight"
    matrix = imatrix(tmp_path / "m.gguf", {name: 256, "blk.99.ffn_up.weight": 8})
    convert.quantize(source, tmp_path / "plain.gguf", "Q3_K_S")
    convert.quantize(source, tmp_path / "with.gguf", "Q3_K_S", imatrix=matrix)
    x = next(t for t in gguf.GGUFReader(source).tensors if t.name == name).data

    def error(file):
        t = next(t for t in gguf.GGUFReader(tmp_path / file).tensors if t.name == name)
        return np.sqrt(np.mean((gguf.quants.dequantize(t.data, t.tensor_type) - x)[:, ::16] ** 2))

    assert error("with.gguf") < 0.9 * error("plain.gguf")
    for file, pattern in ((imatrix(tmp_path / "w.gguf", {name: 128}), "found 256 columns and 1 matrices, expected 128"),
                          (imatrix(tmp_path / "c.gguf", {name: 256}, leave_out=[name]), "expected a tensor 'blk.1.ffn_up.weight.counts'"),
                          (source, "holds no tensor named"), (__file__, "expected an importance matrix in GGUF form")):
        with pytest.raises(GGUFError, match=pattern):
            convert.quantize(source, tmp_path / "q.gguf", "Q4_0", imatrix=file)


def test_command_line(source, tmp_path, capsys):
    out = tmp_path / "q.gguf"
    assert main(["quantize", str(source), str(out), "Q4_K_M", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "blk.0.ffn_down.weight" in said and "bits per weight" in said and not out.exists()
    assert main(["quantize", str(source), str(out), "q4_k_m", "-t", "2", "--tensor-type", "ffn_down=Q8_0"]) == 0
    said = capsys.readouterr().out
    assert "Q8_0         3 tensors" in said and said.rstrip().endswith("q.gguf")
    assert main(["quantize", str(source), str(out), "q4_k_m"]) == 1
    assert "exists" in capsys.readouterr().err
    assert main(["quantize", str(source), str(out), "Q17"]) == 1
    assert "expected one of F32, F16" in capsys.readouterr().err
    assert main(["quantize", str(source), str(out), "Q4_0", "--split-max-size", "1X"]) == 2


@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
def test_interrupted(tmp_path):
    """Ctrl-C in the middle: exit code 130, and the folder is as it was."""
    spec = Spec(n_embd=1024, n_ff=(2048,), n_head=16, n_vocab=4000, n_layer=2, vocabulary="bpe")
    source = write(tmp_path / "big.gguf", spec)
    p = subprocess.Popen([sys.executable, "-c", "import sys; from pyengine.cli import main; sys.exit(main(sys.argv[1:]))",
                          "quantize", str(source), str(tmp_path / "q.gguf"), "Q2_K", "-t", "1"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    end = time.monotonic() + 60
    while not any(name.endswith(".partial") for name in listing(tmp_path)):
        assert p.poll() is None and time.monotonic() < end
        time.sleep(0.01)
    p.send_signal(signal.SIGINT)
    _, err = p.communicate(timeout=60)
    assert p.returncode == 130 and b"Traceback" not in err
    assert listing(tmp_path) == ["big.gguf"]


@pytest.mark.long
def test_smollm2_quantized_generates(f32_copy, tmp_path):
    """The real model in four bits still talks sense."""
    report = pyengine.quantize(f32_copy("smollm2"), tmp_path / "q.gguf", "Q4_K_M")
    assert report.bits_per_weight < 6.5
    with pyengine.Llama(tmp_path / "q.gguf", n_ctx=256) as m:
        text = m.generate("The capital of France is", max_tokens=8, temperature=0).text
    assert "Paris" in text

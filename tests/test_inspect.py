"""The report of a GGUF file: every key and tensor in it, values short, nothing a terminal would obey."""
import math
import struct

import pytest
from faults_gguf import F32, KEYS, STRING, TENSORS, gguf, info, kv, tiny, with_tensors
from test_gguf import split

from pyengine.cli import main
from pyengine.cli.inspect import check, report, short
from pyengine.gguf import GGUF


@pytest.fixture
def path(tmp_path):
    p = tmp_path / "m.gguf"
    p.write_bytes(tiny())
    return p


def test_report_names_everything(path):
    with GGUF(path) as g:
        lines = list(report(g))
        text = "\n".join(lines)
        assert f"GGUF version 3, llama, {len(tiny()):,} bytes, {len(KEYS)} keys, {len(TENSORS)} tensors, alignment 32" in lines[0]
        assert all(any(line.startswith(k + " ") for line in lines) for k in g.keys())
        assert all(any(line.startswith(name + " ") for line in lines) for name, _, _ in TENSORS)
    assert "string[43]" in text and "['<0x00>', '<0x01>', " in text
    assert "32 x 43" in text and "Q8_0" in text
    total = next(line for line in lines if line.startswith("all ")).split()
    weights = sum(math.prod(dims) for _, dims, _ in TENSORS)
    assert total[1] == str(len(TENSORS)) and total[2] == f"{weights:,}"


def test_command_line(path, capsys):
    assert main(["inspect", str(path)]) == 1             # it is no whole model (test_verdict.py)
    assert "llama.block_count" in capsys.readouterr().out
    assert main(["inspect", str(path), "--key", "general.name"]) == 0
    assert capsys.readouterr().out == "tiny\n"
    assert main(["inspect", str(path), "--key", "no.such"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and "key 'no.such': missing" in err and err.count("\n") == 1


def test_what_is_no_gguf_is_one_line_and_exit_1(tmp_path, capsys):
    page = tmp_path / "page.gguf"
    page.write_bytes(b"<!doctype html>")
    for name in (page, tmp_path):
        assert main(["inspect", str(name)]) == 1
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1 and "Traceback" not in err
    assert "is a directory" in err


def test_values_are_escaped_and_short(tmp_path, capsys):
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf([kv("x", STRING, "\x1b[31m\n" + "z" * 10**5), kv("y" * 60000, F32, 0.1)]))
    assert main(["inspect", str(path)]) == 1
    out = capsys.readouterr().out
    assert "\x1b" not in out and r"\x1b[31m\n" in out and len(out) < 2000
    assert main(["inspect", str(path), "--key", "x"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and out.count("z") == 10**5
    assert short([1.5, True, b"\xff"]) == r"[1.5, true, '\xff']" and short([]) == "[]"


def test_split_model_lists_its_parts(tmp_path):
    with GGUF(split(tmp_path)) as g:
        text = "\n".join(report(g))
    assert text.count("\n  part ") == 3 and "model-00003-of-00003.gguf" in text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_check_finds_the_weight(tmp_path, capsys, value):
    raw = bytearray(with_tensors([], [("a", (32, 3), 0), ("b", (32, 2), 8)]))
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    with GGUF(path) as g:
        a, b = g.tensors["a"], g.tensors["b"]
    raw[a.offset : a.offset + a.nbytes] = struct.pack("<96f", *range(96))
    raw[b.offset : b.offset + 68] = (struct.pack("<e", 0.5) + b"\x01" * 32) * 2
    path.write_bytes(raw)
    main(["inspect", "--check", str(path)])
    assert "2 tensors checked, 0 with NaN or infinity" in capsys.readouterr().out
    struct.pack_into("<f", raw, a.offset + 4 * 70, value)
    struct.pack_into("<e", raw, b.offset + 34, value)
    path.write_bytes(raw)
    assert main(["inspect", "--check", str(path)]) == 1
    out = capsys.readouterr().out
    assert "tensor 'a' at byte 24: found NaN or infinity at row 2, column 6" in out
    assert "tensor 'b' at byte" in out and "found NaN or infinity at row 1, column 0" in out


def test_check_says_what_it_cannot_read(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf([], [info("q", (256,), 15, 0), info("i", (4,), 24, 320)], bytes(352)))
    with GGUF(path) as g:
        lines = [line for line, _ in check(g)]
    assert lines == ["1 tensors checked, 0 with NaN or infinity",
                     "1 tensors of type Q8_K not checked: this build cannot read it"]

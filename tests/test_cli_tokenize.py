"""pyengine-cli tokenize on a real file."""
import ast
import io
import sys

import pytest

from pyengine import cli


@pytest.fixture
def run(real_model, capsys):
    path = str(real_model("smollm2"))

    def run(*args):
        code = cli.main(["tokenize", "-m", path, *args])
        return code, *capsys.readouterr()

    return run


def test_ids(run):
    code, out, _ = run("-p", "This is 🦙.cpp", "--ids")
    assert code == 0 and ast.literal_eval(out) == [1348, 314, 15107, 116, 243, 30, 35392]
    assert ast.literal_eval(run("-p", "<|im_end|>", "--ids")[1]) == [44, 108, 306, 79, 486, 108, 46]
    assert ast.literal_eval(run("-p", "<|im_end|>", "--ids", "--special")[1]) == [2]


def test_pieces(run):
    code, out, _ = run("-p", "歪<|im_end|>\n", "--special", "--show-count")
    lines = [line.split(maxsplit=2) for line in out.splitlines()]
    assert code == 0 and lines[:2] == [["34978", "'\\xe6\\xad'"], ["120", "'\\xaa'"]]
    assert lines[2] == ["2", "control", "'<|im_end|>'"] and lines[3:] == [["198", "'\\n'"], ["4", "tokens"]]


def test_bos(real_model, capsys):
    path = str(real_model("gemma-3-270m"))
    for options, ids in (((), [2, 9259]), (("--no-bos",), [9259])):
        assert cli.main(["tokenize", "-m", path, "-p", "Hello", "--ids", *options]) == 0
        assert ast.literal_eval(capsys.readouterr().out) == ids


def test_a_prompt_is_not_unescaped(run):  # case 15
    assert 198 not in ast.literal_eval(run("-p", "\\n", "--ids")[1])
    assert ast.literal_eval(run("-p", "\n", "--ids")[1]) == [198]


def test_file_and_stdin_are_bytes(run, tmp_path, monkeypatch):
    (tmp_path / "f").write_bytes(b"\xe6\xad\r\n")
    code, out, _ = run("-f", str(tmp_path / "f"), "--ids")
    assert code == 0 and ast.literal_eval(out)[:2] == [24211, 24211]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Hello")))
    assert ast.literal_eval(run("--ids")[1]) == [19556]


def test_decode(run):
    assert run("--decode", "[34978, 120, 2]")[1] == "歪\n"
    assert run("--decode", "34978,120,2", "--special")[1] == "歪<|im_end|>\n"
    for bad in ("x", "49152", "-1"):
        code, out, err = run("--decode=" + bad)
        assert code == 1 and out == "" and err.count("\n") == 1 and "49151" in err


def test_errors_are_one_line(capsys, tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"nothing")
    for path in (tmp_path / "x.gguf", tmp_path / "absent.gguf"):
        assert cli.main(["tokenize", "-m", str(path), "-p", "x"]) == 1
        err = capsys.readouterr().err
        assert err.startswith("pyengine-cli: ") and err.count("\n") == 1

"""The command line: what goes to stdout and stderr, and exit codes."""
import io
import json
import os
import select
import signal
import subprocess
import sys
import time

import pytest

from pyengine import cli
from pyengine.cli import arguments
from tiny_gguf import CHATML, Spec, write

COMMAND = [sys.executable, "-c", "import sys; from pyengine.cli import main; sys.exit(main())"]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    path = tmp_path_factory.mktemp("base") / "base model.gguf"
    write(path, Spec(seed=2))
    return str(path)


@pytest.fixture(scope="module")
def talker(tmp_path_factory):
    path = tmp_path_factory.mktemp("talker") / "chat.gguf"
    write(path, Spec(seed=2, vocabulary="bpe", chat_template=CHATML, n_vocab=400))
    return str(path)


@pytest.fixture
def run(capsys, monkeypatch):
    """run(arguments ..., stdin=None) -> (exit code, stdout, stderr)"""
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    def call(*argv, stdin=None):
        if stdin is None:
            monkeypatch.setattr(sys, "stdin", Terminal())
        else:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = cli.main([str(a) for a in argv])
        return (code, *capsys.readouterr())

    return call


def test_raw_and_chat(run, base, talker):
    code, out, err = run("-m", base, "-p", "ab", "-n", 5, "-s", 1, "--ignore-eos")
    assert code == 0 and out.endswith("\n") and "completing the text" in err and "generated 5 tokens" in err
    code, _, err = run("-m", talker, "-p", "ab", "-n", 5)
    assert code == 0 and "one user turn" in err
    assert "completing" in run("-m", talker, "-p", "ab", "-n", 5, "--raw")[2]
    assert "completing" in run("-m", talker, "-p", "ab", "-n", 5, "-no-cnv")[2]
    code, out, err = run("-m", base, "-p", "ab", "-n", 5, "-q")
    assert (code, err) == (0, "")


def test_variables_of_the_template(run, tmp_path):
    write(tmp_path / "m.gguf", Spec(seed=2, vocabulary="bpe", chat_template="{{ 'yes' if enable_thinking else 'n' }}", n_vocab=400))
    model = ["-m", tmp_path / "m.gguf", "-p", "x", "-n", 1]
    short, long = (run(*model, *more)[2] for more in ([], ["--chat-template-kwargs", '{"enable_thinking": true}']))
    assert "prompt 1 tokens" in short and "prompt 3 tokens" in long
    for value, says in (("{", "--chat-template-kwargs: found '{', expected a JSON object"), ("1", "expected a JSON object"), ('{"other": 1}', "does not read it")):
        code, _, err = run(*model, "--chat-template-kwargs", value)
        assert code and says in err


def test_prompt_sources(run, talker, tmp_path):
    """-p, -f, - and stdin are the same prompt."""
    (tmp_path / "p.txt").write_text("ab cd")
    same = ["-m", talker, "--raw", "-n", 6, "-s", 1, "--json", "-q"]
    outs = [run(*same, "-p", "ab cd"), run(*same, "-f", tmp_path / "p.txt"), run(*same, "-f", "-", stdin=b"ab cd"),
            run(*same, stdin=b"ab cd")]
    answers = [json.loads(out) for code, out, err in outs if code == 0]
    assert len(answers) == 4 and len({json.dumps((a["tokens"], a["prompt"])) for a in answers}) == 1


def test_escapes(run, talker, tmp_path):
    """Case 15: -p replaces escapes unless told not to; files and stdin are taken as they are."""
    same = ["-m", talker, "--raw", "-n", 1, "--json", "-q"]
    assert json.loads(run(*same, "-p", r"a\nb")[1])["prompt"] == "a\nb"
    assert json.loads(run(*same, "-p", r"a\nb", "--no-escape")[1])["prompt"] == r"a\nb"
    assert json.loads(run(*same, stdin=rb"a\nb")[1])["prompt"] == r"a\nb"
    assert arguments.unescape(r"\t\\n\x41\xe6\xad\xaa\q\'") == "\t\\nA歪\\q'"


def test_json(run, talker):
    code, out, err = run("-m", talker, "-p", "ab", "-n", 4, "--temp", 0, "--ignore-eos", "--json")
    answer = json.loads(out)
    assert code == 0 and out.count("\n") == 1
    assert answer["usage"]["completion_tokens"] == len(answer["tokens"]) == 4
    assert answer["mode"] == "chat" and answer["finish_reason"] == "length" and answer["timings"]["predicted_n"] == 4


def test_sampling_options_reach_the_sampler(run, talker):
    def tokens(*more):
        return json.loads(run("-m", talker, "--raw", "-p", "ab", "-n", 8, "--ignore-eos", "--json", "-q", *more)[1])["tokens"]

    greedy = tokens("--temp", 0)
    assert tokens("--top-k", 1) == tokens("--top-p", 1e-6) == greedy
    assert tokens("--temp", 0, "-l", f"{greedy[0]}-inf")[0] != greedy[0]
    assert tokens("-l", "7+100", "-l", "8-5") == [7] * 8
    assert tokens("--temp", 0, "--repeat-penalty", 5, "--repeat-last-n", -1) != greedy or len(set(greedy)) == 8
    assert tokens("-s", 5, "--temp", 3) == tokens("--seed", 5, "--temperature", 3) != tokens("-s", 6, "--temp", 3)


@pytest.mark.parametrize("argv, says", [
    (["-m", "/no/such.gguf", "-p", "x"], "/no/such.gguf: No such file"),
    (["-m", "no-such-model", "-p", "x"], "no-such-model"),
    (["frobnicate"], "unknown command 'frobnicate'"),
    (["-m", "BASE", "-p", "x", "--top-p", "3"], "top_p"),
    (["-m", "BASE", "-p", "x", "-n", "-5"], "max_tokens"),
    (["-m", "BASE", "-p", "x", "-l", "abc"], "-l 'abc'"),
    (["-m", "BASE", "-p", "x", "-l", "99999+1"], "99999"),
    (["-m", "BASE", "-p", "x", "-f", "y"], "expected one"),
    (["-m", "BASE", "-sys", "x", "-p", "y"], "no chat template"),
    (["-m", "BASE", "-sys", "x", "-p", "y", "--raw"], "-sys"),
    (["-m", "BASE", "-p", "y", "--chat-template-kwargs", "{}"], "no chat template"),
    (["-m", "BASE", "-f", "/no/such.txt"], "/no/such.txt: No such file"),
    (["-m", "BASE", "-c", "8", "-p", "x " * 50], "n_ctx is 8"),
    (["-m", "BASE", "-ctk", "q3_z", "-p", "x"], "kv_type"),
    (["-m", "BASE", "-ctk", "q8_0", "-ctv", "f16", "-p", "x"], "-ctv is f16"),
    (["chat", "-m", "BASE"], "no chat template"),
    (["explain", "/no/such.gguf"], "/no/such.gguf: No such file"),
    (["bench", "-m", "BASE", "-p", "x"], "-p 'x'"),
])
def test_errors_are_one_line(run, base, argv, says):
    """Exit code 1, one line that names what is wrong, no traceback, nothing on stdout."""
    code, out, err = run(*[base if a == "BASE" else a for a in argv])
    lines = [line for line in err.splitlines() if not line.startswith("[")]
    assert code == 1 and out == "" and len(lines) == 1 and lines[0].startswith("pyengine-cli: ") and says in lines[0], err


@pytest.mark.parametrize("content, says", [
    (b"", "empty"), (b"<!DOCTYPE html><html>", "HTML"), (b"version https://git-lfs.github.com/spec/v1\noid", "LFS"),
    (b"lmgg" + bytes(60), "GGML"), (b"PK\x03\x04" + bytes(60), "zip"),
])
def test_what_is_no_model(run, tmp_path, content, says):
    """Case 101: one line that says what the file looks like, exit code 1."""
    (tmp_path / "x.gguf").write_bytes(content)
    code, out, err = run("-m", tmp_path / "x.gguf", "-p", "hi")
    assert code == 1 and out == "" and err.count("\n") == 1 and says.lower() in err.lower(), err
    code, out, err = run("-m", str(tmp_path) + os.sep, "-p", "hi")
    assert code == 1 and "directory" in err and err.count("\n") == 1


def test_usage_errors_are_argparse_s(run):
    assert run("--no-such-flag")[0] == 2
    assert run("--help")[0] == 0
    code, out, _ = run("--version")
    assert code == 0 and out.startswith("pyengine ")


def test_explain(run, base):
    code, out, _ = run("explain", base)
    assert code == 0 and "token_embd.weight" in out and "arena" in out and "mm_f32" in out
    assert run("explain", "-m", base, "--isa", "scalar")[1].count("scalar") > 0
    assert len(run("explain", base, "--no-fuse")[1].splitlines()) >= len(out.splitlines())


def test_bench(run, base):
    code, out, _ = run("bench", "-m", base, "-p", "16,32", "-n", "4", "-r", "2")
    assert code == 0 and [line.split("|")[6].strip() for line in out.splitlines()[2:]] == ["pp16", "pp32", "tg4"]
    code, out, _ = run("bench", "-m", base, "-p", "0", "-n", "4", "-r", "2", "-o", "json")
    rows = json.loads(out)
    assert len(rows) == 1 and len(rows[0]["samples"]) == 2 and rows[0]["tokens_per_second"] > 0


def test_profile(run, base):
    err = run("-m", base, "-p", "ab", "-n", "3", "--profile", "--ignore-eos")[2]
    rows = [line.split() for line in err.splitlines() if "%" in line]
    assert len(rows) > 10 and 95 < sum(float(r[3].rstrip("%")) for r in rows) < 105




def test_chat_turns(run, talker, monkeypatch):
    """Turns, several lines, commands and the end of input, from a script."""
    lines = iter(["ab", "one \\", "two", '"""three', 'four"""', "/regen", "/clear", "/nonsense", "/help", ""])

    def typed(prompt):
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", typed)
    seen = []
    from pyengine.llama import Llama

    chat = Llama.chat
    monkeypatch.setattr(Llama, "chat", lambda self, messages, **more: seen.append([m["content"] for m in messages])
                        or chat(self, messages, **more))
    code, out, err = run("chat", "-m", talker, "-n", 3, "-sys", "be", "--ignore-eos", "--temp", 0)
    assert code == 0
    assert [s[0] for s in seen] == ["be"] * 4
    assert [s[-1] for s in seen] == ["ab", "one \ntwo", "three\nfour", "three\nfour"]
    assert [len(s) for s in seen] == [2, 4, 6, 6] and seen[2] == seen[3]
    assert "unknown command /nonsense" in err and "/regen" in out


def test_broken_pipe(base):
    """Who reads has gone: no traceback."""
    p = subprocess.Popen([*COMMAND, "-m", base, "-p", "ab", "-n", "2000", "-c", "2048", "--ignore-eos", "-q"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdout.read(1)
    p.stdout.close()
    err = p.stderr.read()
    assert p.wait(60) == 1 and b"Traceback" not in err and b"Exception" not in err


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo terminal")
def test_ctrl_c_stops_the_reply(talker):
    """In a chat Ctrl-C ends the answer and the next turn is answered; Ctrl-D ends the program."""
    pty = pytest.importorskip("pty")
    out = b""
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [*COMMAND, "chat", "-m", talker, "--ignore-eos", "-c", "2048", "-t", "1"])

    def until(wanted, seconds=20):
        nonlocal out
        end = time.monotonic() + seconds
        while not wanted():
            assert time.monotonic() < end, out[-2000:]
            if select.select([fd], [], [], 0.1)[0]:
                try:
                    out += os.read(fd, 65536)
                except OSError:
                    return

    def prompted():
        return out.replace(b"\x1b[?2004h", b"").endswith(b"> ")

    until(prompted)
    for turn in range(2):
        seen = len(out)
        os.write(fd, b"hello\n")
        until(lambda: len(out) > seen + 40)          # the reply goes on to the context's end if it is let
        os.write(fd, b"\x03")
        until(lambda: out.count(b"; seed ") == turn + 1 and prompted())
    assert out.count(b"interrupted") == 2, out[-2000:]
    os.write(fd, b"\x04")
    until(lambda: False)                             # up to the end of the terminal
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(fd)


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_ctrl_c_ends_a_run(base):
    p = subprocess.Popen([*COMMAND, "-m", base, "-p", "ab", "-c", "2048", "--ignore-eos", "-t", "1"], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE)
    p.stdout.read(1)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=60)
    assert b"Traceback" not in err
    assert p.returncode == 130 and b"interrupted" in err or b"length reached" in err


def test_import_costs_little():
    """A command pays only for itself: --help imports no engine."""
    code = ("import sys; from pyengine.cli import main; main(['--help']); "
            "print([m for m in sys.modules if m in ('numpy', 'rich', 'pyengine.llama', 'pyengine._native')], file=sys.stderr)")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr.strip() == "[]"

"""`pyengine-cli serve` as a process: what it says, signals and exit codes, sockets, descriptors, refusals, load. faults.md G 113, 117, 121, 122; H 136."""
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time

import pytest

import pyengine
from pyengine.serve import run as serve_run
from serving import ROOT, Raw, Serve, health
from tiny_gguf import CHATML, Spec, write


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("tiny") / "model.gguf", Spec(n_vocab=331, seed=3, chat_template=CHATML))


def completion(**body):
    return dict(dict(prompt="Once upon a time", max_tokens=5, temperature=0), **body)


def test_serve_says_what_it_serves_and_ends_with_0(path):
    with Serve(path, "-c", "256", "-np", "3", "-t", "2") as s:
        s.wait_for("serves")
        assert re.search(r"http://127\.0\.0\.1:\d+ serves model: n_ctx 256, 3 requests at one time, 2 threads", s.log)
        with Raw(s.address) as c:
            answer = c.post("/v1/completions", completion(), "X-Request-Id: one\r\nConnection: close\r\n").read()
        assert b" 200 " in answer and b'"text"' in answer
        s.wait_for("one - POST '/v1/completions' 200")
        assert "Once upon" not in s.log
        assert s.end() == 0
        assert "ended" in s.log and "Traceback" not in s.log


def test_interrupt_ends_with_0(path):
    with Serve(path, "-c", "64") as s:
        s.wait_for("serves")
        assert s.end(signal.SIGINT) == 0


def test_a_signal_while_the_model_loads():
    """The load stands still; the server answers, and need not wait for it to end."""
    code = ("import sys, time; from pyengine.serve import Settings; from pyengine.serve.run import serve\n"
            "sys.exit(serve(lambda: time.sleep(1000), Settings(), port=0, note=lambda t: print(t, file=sys.stderr, flush=True)))")
    with Serve(None, command=[sys.executable, "-c", code]) as s:
        s.wait_for("listening on")
        assert health(s.address) == 503
        assert s.end(seconds=5) == 0


def test_sigterm_lets_a_running_stream_finish(real_model):
    with Serve(real_model("smollm2"), "-c", "1024") as s:
        s.wait_for("serves")
        with Raw(s.address, timeout=120) as c:
            c.post("/v1/completions", completion(max_tokens=100, stream=True, ignore_eos=True, stream_options={"include_usage": True}))
            first = c.until(b"data: ")
            s.process.send_signal(signal.SIGTERM)
            s.wait_for("waiting up to")
            with pytest.raises(OSError):
                Raw(s.address).get("/health").until(b"\r\n")       # nothing new is accepted
            rest = c.read()
        assert s.process.wait(60) == 0
        events = re.findall(rb"data: (.*)", first + rest)
        assert events[-1].strip() == b"[DONE]" and b'"completion_tokens":100' in first + rest and b"error" not in first + rest
        assert "Traceback" not in s.log


def test_sigterm_ends_what_does_not_finish_in_time(real_model):
    with Serve(real_model("smollm2"), "-c", "8192", "--drain-seconds", "0.3") as s:
        s.wait_for("serves")
        with Raw(s.address) as c, Raw(s.address) as d:
            c.post("/v1/completions", completion(max_tokens=-1, stream=True, ignore_eos=True))
            d.post("/v1/completions", completion(max_tokens=-1, ignore_eos=True))
            c.until(b"data: ")
            s.process.send_signal(signal.SIGTERM)
            streamed, whole = c.read(), d.read()
        assert s.process.wait(30) == 0
        assert b"shutting down" in streamed and streamed.endswith(b"0\r\n\r\n") and b"[DONE]" not in streamed
        assert b" 503 " in whole and b"shutting down" in whole


def test_a_second_signal_ends_at_once(real_model):
    with Serve(real_model("smollm2"), "-c", "8192") as s:
        s.wait_for("serves")
        with Raw(s.address) as c:
            c.post("/v1/completions", completion(max_tokens=-1, stream=True, ignore_eos=True)).until(b"data: ")
            s.process.send_signal(signal.SIGTERM)
            s.wait_for("waiting up to")
            assert s.end(seconds=5) == 128 + signal.SIGTERM


def test_a_model_that_does_not_open_is_exit_code_1(tmp_path):
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    with Serve(tmp_path / "broken.gguf") as s:
        assert s.process.wait(60) == 1
        time.sleep(0.1)
        assert "broken.gguf" in s.lines[-1] or "pyengine-cli:" in s.lines[-1]
        assert "Traceback" not in s.log


def test_a_file_replaced_under_the_process(path, tmp_path):
    """A real engine fault over the wire: from then on /health is 503, so that whoever watches restarts it."""
    copy = tmp_path / "model.gguf"
    copy.write_bytes(pathlib.Path(path).read_bytes())
    with Serve(copy, "-c", "64") as s:
        s.wait_for("serves")
        assert health(s.address) == 200
        os.utime(copy, ns=(1, 1))
        with Raw(s.address) as c:
            assert c.post("/v1/completions", completion()).status() == 503
        assert health(s.address) == 503
        assert s.end() == 0


def test_unix_socket(path, tmp_path):
    sock = str(tmp_path / "s")
    with Serve(path, "-c", "64", "--unix-socket", sock) as s:
        s.wait_for("serves")
        assert stat.S_IMODE(os.stat(sock).st_mode) == 0o600
        assert health(sock) == 200
        with Serve(path, "-c", "64", "--unix-socket", sock) as second:
            assert second.process.wait(60) == 1        # somebody listens there
        assert health(sock) == 200
        s.process.kill()
        s.process.wait()
    with Serve(path, "-c", "64", "--unix-socket", sock, "--socket-mode", "660") as s:      # what a killed one left is replaced
        s.wait_for("serves")
        assert stat.S_IMODE(os.stat(sock).st_mode) == 0o660 and health(sock) == 200
        assert s.end() == 0 and not os.path.exists(sock)


def test_the_socket_of_the_next_server_is_kept(path, tmp_path):
    """A server that drains has closed its listener; who starts the next one meanwhile takes the path over."""
    sock = str(tmp_path / "s")
    with Serve(path, "-c", "8192", "--unix-socket", sock, "--drain-seconds", "60") as old:
        old.wait_for("serves")
        with Raw(sock) as c:
            c.post("/v1/completions", completion(prompt=[5] * 7000, max_tokens=-1, stream=True, ignore_eos=True))
            old.wait_for("serves")
            c.until(b"data: ")
            old.process.send_signal(signal.SIGTERM)
            old.wait_for("waiting up to")
            with contextlib.suppress(OSError):
                while True:
                    Raw(sock).close()                # until the old one listens no more
            with Serve(path, "-c", "64", "--unix-socket", sock) as new:
                new.wait_for("serves")
                c.close()                            # the old one has nothing left to do
                assert old.process.wait(30) == 0
                assert health(sock) == 200
                assert new.end() == 0 and not os.path.exists(sock)


def test_a_file_that_is_no_socket_is_kept(tmp_path):
    (tmp_path / "s").write_text("mine")
    with pytest.raises(pyengine.RequestError, match="unix socket"):
        serve_run.listen_unix(str(tmp_path / "s"), 0o600)
    assert (tmp_path / "s").read_text() == "mine"


def test_few_file_descriptors(path):
    """More clients than descriptors: what is too much is shut out, and when they have gone all is as before."""
    with Serve(path, "-c", "64", limits="ulimit -n 160") as s:
        s.wait_for("serves")
        many = [Raw(s.address) for _ in range(300)]
        assert any(c.read() == b"" for c in many[-50:])
        for c in many:
            c.close()
        while True:
            with contextlib.suppress(OSError), Raw(s.address) as c:
                if c.get("/health").status() == 200:
                    break
        assert s.end() == 0 and "out of system resource" not in s.log
    with Serve(path, "-c", "64", limits="ulimit -n 64") as s:
        assert s.process.wait(60) == 1
        s.wait_for("64 file descriptors")


@pytest.mark.parametrize("options, env, what", [
    (["--host", "0.0.0.0"], {}, "no key is asked for"), (["--host", "::"], {}, "no key is asked for"), (["--api-key", "short"], {}, "a key of 5 characters"),
    ([], {"PYENGINE_API_KEY": ""}, "a key of 0 characters"), (["--api-key-file", "/nonexistent"], {}, "No such file"), (["--max-body", "0"], {}, "max_body"),
    (["--no-key", "--host", "no such host."], {}, "host 'no such host.'"), (["--port", "99999"], {}, "port: found 99999, expected 0 to 65535"),
    (["--port", "-1"], {}, "port: found -1"), (["--cors-origin", "app.example"], {}, "'app.example', expected origins as https://"),
    (["--allowed-hosts", "a.example:80"], {}, "'a.example:80', expected names without port"), (["--alias", ""], {}, "model: found ''"),
    (["--prefix-file", "/nonexistent/x.kv"], {}, "--prefix-file /nonexistent/x.kv: /nonexistent is no folder")])
def test_what_is_wrong_is_said_before_the_model_is_opened(path, options, env, what, capsys, monkeypatch):
    from pyengine.cli import main

    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert main(["serve", "-q", "-m", str(path), "--port", "0", *options]) == 1
    assert what in capsys.readouterr().err


@pytest.mark.parametrize("options, what", [(["--unix-socket", "s", "--socket-mode", "999"], "argument --socket-mode: found '999', expected an octal number"),
                                           (["--socket-mode", "7777"], "from 0 to 777"), (["--socket-mode", "-1"], "from 0 to 777"), (["--profile"], "--profile")])
def test_options_that_are_wrong_are_named(options, what, capsys):
    """--profile is the other commands': a server has no end at which it would be printed."""
    from pyengine.cli import main

    assert main(["serve", "-m", "x.gguf", *options]) == 2
    assert what in capsys.readouterr().err


def test_a_name_of_the_catalog_is_the_models_name(path, tmp_path, monkeypatch):
    from pyengine import catalog
    from pyengine.cli import serve

    monkeypatch.chdir(tmp_path)

    def name(*options):
        return serve.alias(serve.parser().parse_args([*options]))

    assert name("-m", "smollm2") == "smollm2" and name() == catalog.default() and name("-m", "smollm2", "-a", "x") == "x"
    assert name("-m", str(path)) is None and name("-hf", "a/b") is None
    (tmp_path / "smollm2").write_bytes(b"")
    assert name("-m", "smollm2") is None                 # a file that exists wins there, too


def test_help_names_every_command(capsys):
    from pyengine.cli import COMMANDS, main

    assert main(["--help"]) == 0
    others = capsys.readouterr().out.partition("Other commands: ")[2].replace(",", " ").split()
    assert set(COMMANDS) - {"run"} <= set(others)


def test_a_warning_is_a_line_of_the_log(path, tmp_path):
    (tmp_path / "x.kv").write_bytes(b"damaged")
    with Serve(path, "-c", "64", "--prefix-file", str(tmp_path / "x.kv"), env={"PYTHONWARNINGS": "default"}) as s:
        s.wait_for("serves")
        (line,) = [line for line in s.lines if "could not be read" in line]
        assert re.match(r"[-0-9]+ [:,0-9]+ W prefix_file", line), s.log
        assert s.end() == 0


def test_without_the_extra_an_import_says_what_to_install(tmp_path):
    code = "import sys; sys.modules['starlette'] = None; from pyengine.serve import create_app\ntry: create_app(None)\nexcept ImportError as e: print(e)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT, check=True)
    assert "pip install 'pyengine-gguf[server]'" in out.stdout


def test_without_the_extra_the_message_says_what_to_install(monkeypatch, capsys):
    import importlib.util

    from pyengine.cli import main

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "uvicorn" else real(name, *a))
    assert main(["serve", "-m", "x.gguf"]) == 1
    assert "pip install 'pyengine-gguf[server]'" in capsys.readouterr().err


def gauges(address):
    with Raw(address) as c:
        text = c.get("/metrics", "Host: localhost\r\nConnection: close\r\n").read().decode()
    return {name: float(value) for name, value in re.findall(r"^pyengine_(num_requests_running|num_requests_waiting|kv_cache_usage_perc) (\S+)$", text, re.M)}


@pytest.mark.long
def test_a_thousand_disconnects_leak_nothing(path):
    """Over sockets, against the process that users run: clients leave in their headers, in their body, in the queue, in the
    prompt, in the answer or at its end, with and without a reset, half of them streams. Pages, descriptors and memory are
    afterwards what they were, and there are no threads but those of the start, the engine and its workers."""
    import random

    import psutil

    from pyengine.aio import WORKERS

    rng = random.Random(11)

    def leave(address):
        body = json.dumps(dict(prompt=[5 + i % 300 for i in range(rng.choice((3, 60, 900)))], ignore_eos=True, max_tokens=rng.choice((1, 40, 900)),
                               stream=rng.random() < 0.5, n=rng.choice((1, 1, 2)))).encode()
        raw = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        with Raw(address) as c:
            c.send(raw[:rng.randrange(len(raw))] if rng.random() < 0.1 else raw)
            if rng.random() < 0.5:
                c.sock.settimeout(rng.choice((0.001, 0.01, 0.05)))
                with contextlib.suppress(OSError):
                    c.sock.recv(rng.choice((1, 1000, 100_000)))
            if rng.random() < 0.3:
                c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def leave_some(address, n):
        for _ in range(n):
            leave(address)

    with Serve(path, "-c", "1024", "-np", "4", "--no-access-log") as s:
        s.wait_for("serves")
        process, seen = psutil.Process(s.process.pid), []
        threads = process.num_threads() + 1 + WORKERS    # the engine's thread starts with the first request, a worker when none is idle
        for _ in range(10):
            clients = [threading.Thread(target=leave_some, args=(s.address, 25)) for _ in range(4)]
            for t in clients:
                t.start()
            for t in clients:
                t.join()
            while any(gauges(s.address).values()) or process.num_fds() > 40:
                time.sleep(0.05)
            seen.append((process.num_fds(), process.num_threads(), process.memory_info().rss))
        assert seen[-1][0] <= seen[1][0] and max(n for _, n, _ in seen) <= threads, (threads, seen)
        assert seen[-1][2] - seen[4][2] < 4 << 20, seen
        assert s.end() == 0 and "Traceback" not in s.log, s.log[-3000:]


@pytest.mark.long
def test_five_hundred_connections(path):
    """5,000 requests over 500 connections: answered, or refused with 429 or 503, each of them; /health answers meanwhile."""
    with Serve(path, "-c", "64", "--max-queue", "100", "--no-access-log") as s:
        s.wait_for("serves")
        out = subprocess.run([sys.executable, str(ROOT / "bench/serve_load.py"), "--url", "http://%s:%d" % s.address, "--connections", "500", "--requests", "5000",
                              "--max-tokens", "2", "--json"], capture_output=True, text=True, timeout=280, check=True, cwd=ROOT)
        result = json.loads(out.stdout)
        assert set(result["statuses"]) <= {"200", "429", "503"} and sum(result["statuses"].values()) == 5000 and result["statuses"]["200"] > 0
        assert set(result["health"]["statuses"]) == {"200"}
        assert s.end() == 0 and "Traceback" not in s.log

"""A server process for tests: `pyengine-cli serve` on a free port of the loopback, and a plain way to ask it."""
import contextlib
import json
import os
import pathlib
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMMAND = "import sys; from pyengine.cli import main; sys.exit(main(sys.argv[1:]))"


class Server:
    """with Server(model, *options) as server: server.url; ends by SIGTERM, and says so if it did not end well."""

    def __init__(self, model, *options):
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PYENGINE_TUNE": "0"}
        self.process = subprocess.Popen([sys.executable, "-c", COMMAND, "serve", "-m", str(model), "--port", "0", *map(str, options)],
                                        stderr=subprocess.PIPE, text=True, env=env, cwd=ROOT)
        self.lines, found = [], queue.SimpleQueue()
        threading.Thread(target=self._read, args=(found,), daemon=True).start()
        try:
            self.url = found.get(timeout=60)
            assert self.url, "".join(self.lines)
            for _ in range(600):
                with contextlib.suppress(urllib.error.URLError):     # bound, and not listened to yet
                    if self.get("/health")[0] == 200:
                        return
                time.sleep(0.1)
            raise AssertionError("".join(self.lines))
        except BaseException:
            self.process.kill()
            raise

    def _read(self, found):
        for line in self.process.stderr:
            self.lines.append(line)
            if url := re.search(r"listening on (http://\S+?),", line):
                found.put(url[1])
        found.put("")

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.process.send_signal(signal.SIGTERM)
        try:
            assert self.process.wait(60) == 0, "".join(self.lines[-20:])
        finally:
            self.process.kill()

    def get(self, path):
        return self._ask(urllib.request.Request(self.url + path))

    def post(self, path, body, **headers):
        """(status, JSON); body: what becomes JSON, or bytes."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._ask(urllib.request.Request(self.url + path, raw, {"Content-Type": "application/json", **headers}))

    def events(self, path, body):
        """The data of each event of a stream; JSON where it is JSON. Comments are left out."""
        raw = json.dumps({"stream": True, **body}).encode()
        out = []
        with urllib.request.urlopen(urllib.request.Request(self.url + path, raw, {"Content-Type": "application/json"}), timeout=120) as answer:
            assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            for event in answer.read().decode("utf-8").split("\n\n"):
                if event.startswith("data: "):
                    data = event.removeprefix("data: ")
                    out.append(json.loads(data) if data[0] in "{[" and data != "[DONE]" else data)
        return out

    @staticmethod
    def _ask(request):
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                raw, status = answer.read(), answer.status
        except urllib.error.HTTPError as e:
            raw, status = e.read(), e.code
        return status, json.loads(raw) if raw[:1] in b"{[" else raw.decode()

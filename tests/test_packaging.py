"""Building and installing as users do: messages when tools are missing, sdist, wheel, what is inside."""
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SHIPPED = ["setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "Makefile", "csrc", "models", "pyengine"]


def run(*command, cwd, ok=True, **env):
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "LD_PRELOAD")}
    done = subprocess.run([str(c) for c in command], cwd=cwd, env={**clean, **env}, timeout=600, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert not ok or done.returncode == 0, done.stdout[-4000:]
    return done


@pytest.fixture
def tree(tmp_path):
    """A copy of the source tree in a folder with blanks and an umlaut in its name."""
    copy = tmp_path / "my süd dir"
    copy.mkdir()
    for name in SHIPPED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.so", "_native.c"))
        elif source.exists():
            shutil.copy(source, copy / name)
    return copy


def test_missing_compiler_says_what_to_install(tree):
    done = run(sys.executable, "setup.py", "-q", "build_ext", "--build-lib", "b", "--build-temp", "t",
               cwd=tree, ok=False, CC="no-such-compiler")
    assert done.returncode != 0
    assert "no-such-compiler" in done.stdout and "apt-get install gcc" in done.stdout
    assert "Traceback" not in done.stdout and len(done.stdout) < 2000


def test_old_python_is_named(tree, tmp_path):
    """make with an interpreter that says it is older, and with one that is not there."""
    old = tmp_path / "old-python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    for python in (old, tmp_path / "none"):
        done = run("make", "run", f"PYTHON={python}", cwd=tree, ok=False)
        assert done.returncode != 0 and "needs Python 3.10 or newer" in done.stdout
        assert not (tree / ".venv").exists()


def test_python_without_ensurepip_is_named(tree, tmp_path):
    """Debian's python3 without python3-venv: the version is right, importing ensurepip fails."""
    bare = tmp_path / "bare-python"
    bare.write_text('#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; esac\nexit 0\n')
    bare.chmod(0o755)
    done = run("make", "test", f"PYTHON={bare}", cwd=tree, ok=False)
    assert done.returncode != 0 and "apt-get install python3-venv" in done.stdout


@pytest.mark.long
@pytest.mark.timeout(900)  # builds everything anew, 75 s on two free cores
def test_sdist_wheel_and_fresh_environments(tree, tmp_path):
    """source tree -> sdist -> wheel -> a fresh environment -> the package works from there."""
    backend = "import sys, setuptools.build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"
    out = tmp_path / "out put"
    out.mkdir()
    run(sys.executable, "-c", backend, "build_sdist", out, cwd=tree)
    (sdist,) = out.glob("pyengine_gguf-*.tar.gz")
    with tarfile.open(sdist) as t:
        t.extractall(tmp_path / "from sdist", filter="data")
    (source,) = (tmp_path / "from sdist").iterdir()
    for name in ("csrc/pyengine.h", "csrc/kernel.h", "models/catalog.toml", "setup.py", "LICENSE"):
        assert (source / name).exists(), f"{name} is not in the sdist"
    assert not list(source.rglob("*.so"))

    run(sys.executable, "-c", backend, "build_wheel", out, cwd=source)
    (wheel,) = out.glob("pyengine_gguf-*.whl")
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        assert "-cp310-abi3-" in wheel.name
    with zipfile.ZipFile(wheel) as z:
        names = z.namelist()
    assert "pyengine/_models/catalog.toml" in names and "pyengine/catalog.py" in names
    assert [n for n in names if n.startswith("pyengine/_native")]
    assert not [n for n in names if n.endswith((".c", ".h")) or n.startswith(("csrc", "tests", "models"))]
    assert wheel.stat().st_size < 3_000_000

    home = tmp_path / "env"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", wheel, cwd=tmp_path)
    script = ("import pyengine, pyengine.native, pyengine.catalog as c, sys; "
              "assert sys.prefix in pyengine.__file__, pyengine.__file__; "
              "print(c.default(), c._read.__module__, pyengine.native.lib.pe_cpu_isa() >= 0)")
    assert run(python, "-c", script, cwd=tmp_path).stdout.split() == ["smollm2", "pyengine.catalog", "True"]
    shown = run(home / "bin" / "pyengine-cli", "pull", "--list", cwd=tmp_path)
    assert "gemma-3-270m" in shown.stdout

    # editable: the catalog and the extension are those of the tree
    run(python, "-m", "pip", "uninstall", "-q", "-y", "pyengine-gguf", cwd=tmp_path)
    run(python, "-m", "pip", "install", "-q", "-e", tree, cwd=tmp_path)
    script = "import pyengine.native, pyengine.catalog as c; print(c.default(), pyengine.native.lib.pe_cpu_isa() >= 0, c.__file__)"
    shown = run(python, "-c", script, cwd=tmp_path).stdout
    assert shown.startswith("smollm2 True") and str(tree) in shown

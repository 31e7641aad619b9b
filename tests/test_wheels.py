"""tools/wheels.py: what it refuses to ship, and the wheel of this machine in an environment without a compiler."""
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import wheels

from pyengine import catalog

ROOT = Path(__file__).parent.parent
TARGET = wheels.TARGETS["manylinux-x86_64"]
NAME = f"pyengine_gguf-0.1.0-cp310-abi3-{TARGET.tag}.whl"


def test_every_platform_has_a_target():
    assert [t.tag for t in wheels.TARGETS.values()] == [
        "manylinux_2_17_x86_64", "manylinux_2_17_aarch64", "musllinux_1_2_x86_64", "musllinux_1_2_aarch64",
        "manylinux_2_17_armv7l", "macosx_11_0_arm64", "macosx_11_0_x86_64", "win_amd64"]
    # 32-bit ARM's NEON flushes subnormals: no compiler may use it for floats
    assert wheels.TARGETS["linux-armv7l"].cc.endswith("-neon")


def test_unknown_target_is_refused(capsys):
    with pytest.raises(SystemExit):
        wheels.main(["linux-sparc"])
    shown = capsys.readouterr().err
    assert "linux-sparc" in shown and "windows-x86_64" in shown


@pytest.mark.parametrize(("name", "members", "said"), [
    (NAME.replace("abi3", "cp310"), {"pyengine/_native.abi3.so": b""}, "expected the tags cp310-abi3"),
    (NAME.replace("_2_17_", "_2_28_"), {"pyengine/_native.abi3.so": b""}, "expected the tags cp310-abi3"),
    (NAME, {"pyengine/__init__.py": b""}, "expected only pyengine/_native.abi3.so"),
    (NAME, {"pyengine/_native.abi3.so": b"", "pyengine_gguf.libs/libgomp.so": b""}, "expected only pyengine/_native.abi3.so"),
    (NAME, {"pyengine/_native.abi3.so": b"x" * wheels.LIMIT}, "expected less than 5000000"),
    (NAME, {"pyengine/_native.abi3.so": b"assert at " + os.fsencode(ROOT) + b"/csrc"}, "contains the path"),
])
def test_a_wheel_that_is_not_what_it_says_is_refused(tmp_path, name, members, said):
    with zipfile.ZipFile(tmp_path / name, "w") as z:
        for member, data in members.items():
            z.writestr(member, data)
    with pytest.raises(wheels.WheelError, match=said):
        wheels.check(tmp_path / name, TARGET, ".abi3.so")


def test_the_configuration_suits_this_machine(tmp_path):
    """The made-up pyconfig.h gives Python.h the sizes that the real one of this Python has."""
    import sysconfig

    compiler = shutil.which(os.environ.get("CC", "cc").split()[0])
    assert compiler, "the tests' own extension was built by a compiler"
    include = wheels.headers(tmp_path)
    real = {k: v for k, v in sysconfig.get_config_vars().items() if k.startswith("SIZEOF_") and f"{k} " in wheels.PYCONFIG}
    assert len(real) >= 10
    checks = "".join(f'_Static_assert({k} == {v}, "{k}");\n' for k, v in real.items())
    (tmp_path / "sizes.c").write_text(f'#define Py_LIMITED_API 0x030a0000\n#include <Python.h>\n{checks}')
    done = subprocess.run([compiler, f"-I{include}", "-c", str(tmp_path / "sizes.c"), "-o", str(tmp_path / "sizes.o")],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.skipif(platform.machine() != "x86_64" or sys.platform != "linux", reason="runs the wheel of x86-64 Linux")
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed: make wheels")
def test_the_wheel_works_without_a_compiler(tmp_path, real_model):
    """Built by zig, installed into a fresh environment, run with nothing but that on PATH: the answer is the tree's."""
    model = real_model("smollm2")
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "LD_PRELOAD", "CC", "CFLAGS", "LDFLAGS")}
    tool = [sys.executable, str(ROOT / "tools" / "wheels.py"), "--out", str(tmp_path / "dist"), "manylinux-x86_64"]
    built = subprocess.run(tool, env=clean, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (wheel,) = (tmp_path / "dist").iterdir()
    assert wheel.name in built.stdout and f"{wheel.stat().st_size:,} bytes" in built.stdout

    home = tmp_path / "env"
    venv.create(home, with_pip=True)
    installed = subprocess.run([home / "bin" / "python", "-m", "pip", "install", "-q", wheel], env=clean, cwd=tmp_path,
                               capture_output=True, text=True)
    assert installed.returncode == 0, installed.stderr
    bare = {**clean, "PATH": str(home / "bin")}
    assert not any(shutil.which(c, path=bare["PATH"]) for c in ("cc", "gcc", "clang", "zig"))
    prompt = ["-m", str(model), "-p", "The capital of France is", "-n", "16", "--temp", "0"]
    there = subprocess.run([home / "bin" / "pyengine-cli", *prompt], env=bare, cwd=tmp_path, capture_output=True)
    assert there.returncode == 0, there.stderr
    here = subprocess.run([sys.executable, "-c", "import sys; from pyengine.cli import main; sys.exit(main(sys.argv[1:]))", *prompt],
                          env={**clean, "PYTHONPATH": str(ROOT)}, cwd=ROOT, capture_output=True)
    assert here.returncode == 0, here.stderr
    assert there.stdout == here.stdout and len(there.stdout) > 20

    # the service of docs/raspberry-pi.md: its own command, the prompt by stdin
    unit = (ROOT / "docs" / "systemd" / "pyengine@.service").read_text()
    (start,) = re.findall(r"^ExecStart=/opt/pyengine/bin/pyengine-cli (.*)$", unit, re.M)
    (name,) = re.findall(r"^Environment=.*MODEL=(\w+)$", unit, re.M)
    assert name in catalog.models()
    command = [home / "bin" / "pyengine-cli", *start.replace("${MODEL}", str(model)).split()]
    served = subprocess.run(command, input=b"Why is the sky blue?", env={"PATH": "/usr/bin:/bin"}, cwd="/", capture_output=True)
    assert served.returncode == 0 and served.stderr == b"" and len(served.stdout) > 20

    where = subprocess.run([home / "bin" / "python", "-c", "import pyengine; print(pyengine.__file__)"], env=bare, cwd=tmp_path,
                           capture_output=True, text=True)
    assert str(home) in where.stdout


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed: make wheels")
def test_two_builds_give_the_same_bytes(tmp_path):
    """The smallest of them, 32-bit ARM's, twice."""
    digests = set()
    for n in "12":
        done = subprocess.run([sys.executable, str(ROOT / "tools" / "wheels.py"), "--out", str(tmp_path / n), "linux-armv7l"],
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        (wheel,) = (tmp_path / n).iterdir()
        digests.add(hashlib.sha256(wheel.read_bytes()).hexdigest())
    assert len(digests) == 1

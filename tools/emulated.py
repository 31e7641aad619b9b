"""Environments of other machines under qemu-user: a Debian root of some twenty packages and PyPI's wheels,
made once in the user's cache. No binfmt, no chroot, no container, and root only to install qemu itself.

What is tested in them is not here: tools/emulate.py, which imports this, has the tests. Linux only; needs
apt-get and dpkg (Debian, Ubuntu), the network for the first time, and a Python with pip.
"""

import contextlib
import dataclasses
import fcntl
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUITE, PYTHON = "bookworm", "3.11"
KEYRING = pathlib.Path("/usr/share/keyrings/debian-archive-keyring.gpg")

INTERPRETER = (
    "python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libc6 libgcc-s1 libstdc++6 zlib1g libexpat1 libssl3 "
    "libffi8 libbz2-1.0 liblzma5 libcrypt1 libuuid1 libsqlite3-0 libpython3.11-dev"  # -dev: Python.h for --cc
).split()
# numpy from Debian where PyPI has none (armv7) or one for newer processors only (x86-64: SSE4.2 since 2.4)
NUMPY = "python3-numpy libblas3 liblapack3 libgfortran5".split()
PURE = "jinja2 rich markdown-it-py mdurl pygments pytest pytest-timeout iniconfig packaging pluggy mpmath gguf tqdm requests".split()
COMPILED = "tokenizers hypothesis sortedcontainers markupsafe".split()


@dataclasses.dataclass(frozen=True)
class Machine:
    """What `uname -m` would say, and where Debian, PyPI and the compilers keep its things."""

    name: str
    debian: str
    triplet: str
    qemu: str
    platforms: tuple  # pip's, best first
    debs: tuple
    wheels: tuple


MACHINES = {m.name: m for m in (
    Machine("aarch64", "arm64", "aarch64-linux-gnu", "qemu-aarch64", ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64"),
            (), (*PURE, *COMPILED, "cffi", "numpy", "pyyaml", "sentencepiece")),
    Machine("armv7l", "armhf", "arm-linux-gnueabihf", "qemu-arm", ("manylinux_2_31_armv7l", "manylinux_2_17_armv7l"),
            (*NUMPY, "python3-cffi-backend", "python3-yaml", "libyaml-0-2"), (*PURE, *COMPILED)),
    Machine("x86_64", "amd64", "x86_64-linux-gnu", "qemu-x86_64", ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64"),
            (*NUMPY, "libquadmath0"), (*PURE, *COMPILED, "cffi", "pyyaml", "sentencepiece")),
)}  # fmt: skip


def fail(text):
    sys.exit(f"tools/emulate.py: {text}")


def tell(text):
    print(text, file=sys.stderr, flush=True)


def command(*args, **how):
    """Runs quietly and returns the output; what a failing command said is shown."""
    how = {"stderr": subprocess.STDOUT, **how}
    done = subprocess.run([str(a) for a in args], stdout=subprocess.PIPE, text=True, **how)
    if done.returncode:
        fail(f"{' '.join(str(a) for a in args)[:300]}\nended with {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout


def cache():
    home = os.environ.get("PYENGINE_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "pyengine")
    return pathlib.Path(home) / "emulated"


@contextlib.contextmanager
def alone(path):
    """Held by one process at a time, freed by the kernel whatever happens to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def need(programs):
    """programs: {name: Debian package}. Installed where we are root, asked for elsewhere."""
    missing = sorted({package for name, package in programs.items() if not (shutil.which(name) or os.path.exists(name))})
    if not missing:
        return
    if not shutil.which("apt-get"):
        fail(f"needs {', '.join(missing)}, and the emulated environments are made of Debian packages: "
             "run this on Debian or Ubuntu (a container will do)")
    if os.geteuid() != 0:
        fail(f"needs packages that only root can install: sudo apt-get install {' '.join(missing)}")
    with alone(cache() / "apt.lock"):
        tell(f"installing {' '.join(missing)}")
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        # one of the host's sources that cannot be reached need not be the one that has them
        subprocess.run(["apt-get", "-q", "update"], env=quiet, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        command("apt-get", "-q", "-y", "--no-install-recommends", "install", *missing, env=quiet)


def mirror():
    """Debian's archive: PYENGINE_DEBIAN, else where this machine's own apt has Debian from."""
    if given := os.environ.get("PYENGINE_DEBIAN"):
        return given
    for line in command("apt-get", "indextargets", "--format", "$(SITE) $(RELEASE) $(COMPONENT)", "Created-By: Packages").splitlines():
        if line.split()[1:] == [SUITE, "main"]:
            return line.split()[0]
    fail(f"apt has no source of Debian {SUITE} here: name a mirror of it, PYENGINE_DEBIAN=http://.../debian")


class Environment:
    """One machine's root file system and site-packages; `ready()` makes them unless they are there."""

    def __init__(self, machine):
        self.machine = machine
        self.home = cache() / machine.name
        self.root, self.site = self.home / "root", self.home / "site"

    def ready(self):
        m = self.machine
        need({m.qemu: "qemu-user", "dpkg": "dpkg", str(KEYRING): "debian-archive-keyring"})
        recipe = repr((SUITE, INTERPRETER, m))
        stamp = self.home / "made"
        with alone(cache() / f"{m.name}.lock"):
            if not stamp.exists() or stamp.read_text() != recipe:
                shutil.rmtree(self.home, ignore_errors=True)
                self.home.mkdir(parents=True)
                tell(f"{m.name}: making its environment in {self.home}")
                self._debian()
                self._wheels()
                stamp.write_text(recipe)
        return self

    def _debian(self):
        """The foreign architecture's package lists live in a folder of their own; the host's apt never sees them."""
        at, m = self.home / "apt", self.machine
        for folder in ("lists/partial", "cache/archives/partial", "parts", "debs"):
            (at / folder).mkdir(parents=True)
        (at / "status").touch()
        (at / "sources.list").write_text(f"deb [arch={m.debian} signed-by={KEYRING}] {mirror()} {SUITE} main\n")
        (at / "apt.conf").write_text(
            f'APT::Architecture "{m.debian}";\nAPT::Architectures {{ "{m.debian}"; }};\nAPT::Sandbox::User "";\n'
            f'Dir::State::lists "{at}/lists";\nDir::State::status "{at}/status";\nDir::Cache "{at}/cache";\n'
            f'Dir::Etc::sourcelist "{at}/sources.list";\nDir::Etc::sourceparts "{at}/parts";\nAcquire::Languages "none";\n')
        env = {**os.environ, "APT_CONFIG": str(at / "apt.conf")}
        command("apt-get", "-q", "update", env=env)
        command("apt-get", "-q", "download", *INTERPRETER, *m.debs, env=env, cwd=at / "debs")
        for deb in sorted((at / "debs").glob("*.deb")):
            command("dpkg", "-x", deb, self.root)
        libraries = self.root / "usr/lib" / m.triplet
        for name, folder in (("libblas.so.3", "blas"), ("liblapack.so.3", "lapack")):  # Debian's alternatives, made at install
            if (libraries / folder / name).exists():
                (libraries / name).symlink_to(f"{folder}/{name}")
        shutil.rmtree(at)

    def _wheels(self):
        """--no-deps: the lists above are whole, and some dependencies come from Debian."""
        m, at = self.machine, self.home / "wheels"
        platforms = [f"--platform={p}" for p in m.platforms]
        command(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", at, "--only-binary=:all:", *platforms,
                f"--python-version={PYTHON}", "--implementation=cp", f"--abi=cp{PYTHON.replace('.', '')}", "--abi=abi3",
                "--abi=none", *m.wheels)
        for wheel in sorted(at.glob("*.whl")):
            install(wheel, self.site)
        shutil.rmtree(at)

    def python(self, cpu, arguments, packages, **env):
        """The command line of the emulated Python; `packages` is where pyengine lies. qemu hands the environment on;
        what is set here is for the guest alone."""
        path = [packages, self.site, self.root / "usr/lib/python3/dist-packages"]
        env = {"PYTHONPATH": ":".join(map(str, path)), "PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1", **env}
        given = [word for name, value in env.items() for word in ("-E", f"{name}={value}")]
        return [self.machine.qemu, "-cpu", cpu, "-L", str(self.root), *given, str(self.root / f"usr/bin/python{PYTHON}"), *arguments]


def install(wheel, folder):
    """A wheel is a zip file of what lies in site-packages."""
    with zipfile.ZipFile(wheel) as z:
        z.extractall(folder)

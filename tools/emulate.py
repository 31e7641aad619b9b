#!/usr/bin/env python3
"""pyengine on processors that are not here, by qemu-user.

    python tools/emulate.py run --cpu cortex-a76 -- -m pytest tests/kernels -k q4_0
    python tools/emulate.py test [--short] [--only smollm2]      make test-arm

`test` builds the wheels, unpacks them beside emulated Pythons and runs there the kernel tests of every NEON tier,
tiny models and (not --short) the real models, whose logits must have the bits that they have here. `run` gives the emulated Python the command line behind `--`, with the working tree's pyengine compiled for that
machine (by Debian's cross compilers, changed files only) or with the wheel that --wheel names. An instruction
that the named CPU has not dies of SIGILL, so detection is tested for real; of speed, emulation says nothing.
Processes that a test starts by sys.executable do not work here.
"""

import argparse
import concurrent.futures
import contextlib
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time
from typing import NamedTuple

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from emulated import MACHINES, ROOT, Environment, alone, command, fail, install, need, tell  # noqa: E402

# CPU -> machine and the best tier that it can run
CPUS = {
    "cortex-a53": ("aarch64", "neon"), "cortex-a72": ("aarch64", "neon"),
    "cortex-a76": ("aarch64", "dotprod"), "neoverse-n1": ("aarch64", "dotprod"), "max": ("aarch64", "i8mm"),
    "cortex-a7": ("armv7l", "scalar"), "cortex-a15": ("armv7l", "scalar"),
    "core2duo": ("x86_64", "scalar"), "SandyBridge": ("x86_64", "scalar"), "Haswell": ("x86_64", "avx2"),
}  # fmt: skip


def working_tree(env, cc):
    """A folder with the working tree's Python and its C compiled for that machine; objects are kept."""
    at = ROOT / "build" / "emulated" / f"{env.machine.name}-{os.path.basename(cc)}"
    package = at / "packages" / "pyengine"
    with alone(at / "lock"):
        package.mkdir(parents=True, exist_ok=True)
        for old in package.iterdir():
            if old.is_symlink():
                old.unlink()
        for entry in (ROOT / "pyengine").iterdir():
            if not entry.name.startswith(("_native", "__pycache__")):
                (package / entry.name).symlink_to(entry)
        (package / "_models").symlink_to(ROOT / "models")
        compile_extension(env, shlex.split(cc), at / "objects", package / "_native.abi3.so")
    return at / "packages"


def compile_extension(env, cc, objects, target):
    """What setup.py's build_ext does, for another machine, and only what has changed since the last time."""
    sys.path.insert(0, str(ROOT))
    os.chdir(ROOT)
    import setup

    objects.mkdir(exist_ok=True)
    with contextlib.redirect_stdout(None):
        extension = setup.ffi.distutils_extension(str(objects / "generated"))
    include = env.root / "usr/include"
    flags = [*extension.extra_compile_args, "-fPIC", "-DNDEBUG", f"-I{include}", f"-I{include}/python3.11",
             *(f"-I{folder}" for folder in extension.include_dirs)]
    stamp = objects / "flags"
    if not stamp.exists() or stamp.read_text() != repr((cc, flags)):
        for old in objects.glob("*.d"):
            old.unlink()
        stamp.write_text(repr((cc, flags)))

    def one(source):
        out = objects / (pathlib.Path(source).stem + ".o")
        rule = out.with_suffix(".d")
        if rule.exists() and out.exists():
            parts = rule.read_text().replace("\\\n", " ").split()[1:]
            if all(os.path.exists(p) and os.path.getmtime(p) <= out.stat().st_mtime for p in parts):
                return out, False
        command(*cc, *flags, "-MD", "-c", source, "-o", out)
        return out, True

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        made = list(pool.map(one, extension.sources))
    if any(new for _, new in made) or not target.exists():
        tell(f"compiled {sum(new for _, new in made)} files for {env.machine.name}")
        command(*cc, "-shared", "-pthread", *(out for out, _ in made), "-o", target)


def by_cross_gcc(env, cc):
    """`cc` or Debian's cross compiler for that machine; installed if need be."""
    machine = env.machine
    cc = cc or f"{machine.triplet}-gcc"
    need({shlex.split(cc)[0]: f"gcc-{machine.triplet.replace('_', '-')}"})
    return working_tree(env, cc)


WHEELS = {"aarch64": "manylinux-aarch64", "armv7l": "linux-armv7l", "x86_64": "manylinux-x86_64"}  # names of tools/wheels.py


def built_wheel(machine):
    """tools/wheels.py's, of the working tree."""
    out = ROOT / "build" / "emulated" / "wheels" / machine
    shutil.rmtree(out, ignore_errors=True)
    tell(f"{machine}: building its wheel")
    command(sys.executable, ROOT / "tools/wheels.py", "--out", out, WHEELS[machine], cwd=ROOT)
    (wheel,) = out.glob("*.whl")
    return wheel


def unpacked(env, wheel):
    """The wheel as pip would install it, in a folder of its own: others may be running what they unpacked."""
    digest = hashlib.sha256(pathlib.Path(wheel).read_bytes()).hexdigest()[:12]
    folder = ROOT / "build" / "emulated" / f"{env.machine.name}-wheel-{digest}"
    with alone(folder.with_suffix(".lock")):
        if not folder.exists():
            install(wheel, folder.with_suffix(".part"))
            folder.with_suffix(".part").rename(folder)
    return folder


def run(options):
    machine = MACHINES[CPUS[options.cpu][0]]
    env = Environment(machine).ready()
    packages = unpacked(env, options.wheel) if options.wheel else by_cross_gcc(env, options.cc)
    return subprocess.call(env.python(options.cpu, options.arguments, packages))


# ---- what is tested ------------------------------------------------------------------------


class Job(NamedTuple):
    """A process on an emulated CPU. It has to end well and, where `expected` is given, to print what that says."""

    name: str
    cpu: str
    arguments: list
    expected: "dict | None" = None
    passed: int = 0  # pytest: at least so many tests, so that a selection that selects nothing is seen


def here(*arguments):
    """answers.py on this processor."""
    done = command(sys.executable, ROOT / "tests/answers.py", *arguments, cwd=ROOT, stderr=None, env={**os.environ, "PYTHONPATH": str(ROOT)})
    return json.loads(done.splitlines()[-1])


def answers(*arguments):
    return [str(ROOT / "tests/answers.py"), *map(str, arguments)]


def tiny_models(folder):
    """Small files with every weight type that has a packer, both architectures and both vocabularies."""
    import tiny_gguf

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    wide = dict(n_embd=256, n_ff=256, n_head=4)
    for i, weight_type in enumerate(tiny_gguf.WEIGHT_TYPES):
        arch = ("llama", "gemma3")[i % 2]
        cache = ("_q8", "", "_q4")[i % 3]
        tiny_gguf.write(folder / f"{weight_type}_{arch}{cache}.gguf", tiny_gguf.Spec(
            arch=arch, weight_type=weight_type, n_layer=2, vocabulary="bpe" if weight_type == "Q4_1" else "spm", **wide))
    odd = dict(n_embd=90, n_head=5, head_dim=18, n_head_kv=1, n_ff=77, n_vocab=333)
    for arch in ("llama", "gemma3"):
        tiny_gguf.write(folder / f"odd_{arch}.gguf", tiny_gguf.Spec(arch=arch, n_layer=2, **odd))


def tables(env, packages, cpu):
    """The tiers, rows and ops that run on that CPU, or what went wrong."""
    done = subprocess.run(env.python(cpu, answers("cpu"), packages), text=True, stdout=subprocess.PIPE, cwd=ROOT)
    return what_died(done.returncode) if done.returncode else json.loads(done.stdout.splitlines()[-1])


def faults_of(found, tier, is_arm):
    """The CPU must find the tier that it is known to have and no better one. A NEON tier must have rows of its own,
    named so (pytest selects them by name): the first, `neon`, for every type and every number of tokens."""
    if isinstance(found, str):
        return [f"pyengine cannot be imported: {found}"]
    if found["tiers"][-1] != tier:
        return [f"found the tiers {found['tiers']}, expected {tier} to be the best of them"]
    if not is_arm:
        return []
    wrong, own = [], rows_of(found, tier)
    if not own:
        wrong.append(f"no row of the tier {tier} in the kernel tables")
    wrong += [f"the name of the row {row[1]} does not say its tier" for row in found["rows"] if (tier in row[1]) != (row in own)]
    if tier == "neon":
        if "neon" not in found["ops"]:
            wrong.append(f"the sixteen-lane ops have no neon table, only {', '.join(found['ops'])}")
        for wtype in sorted({row[2] for row in found["rows"]}):
            covered = sorted(row[5:] for row in own if row[2] == wtype)
            bounds = [0, *(n for row in covered for n in row), 2**31]
            if any(bounds[i] + 1 != bounds[i + 1] for i in range(0, len(bounds), 2)):
                wrong.append(f"the rows of weight type {wtype} take the token counts {covered}, expected all from 1, each once")
    return wrong


def rows_of(found, tier):
    return [row for row in found["rows"] if row[4] == found["bits"][tier]]


def what_died(code):
    return {-4: "SIGILL: an instruction that this CPU has not", -11: "SIGSEGV"}.get(code, f"ended with {code}")


def pytest(*arguments):
    return ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "timeout=3000", *arguments]


def jobs(options, found):
    """The longest first."""
    work, kernels = [], "tests/kernels/"
    tiny = ROOT / "build" / "emulated" / "tiny"
    tiny_models(tiny)
    small = here("tiny", tiny, "scalar")
    neon = [("cortex-a53", "neon"), ("cortex-a76", "dotprod"), ("max", "i8mm")]
    for model in () if options.short else ("smollm2", "gemma-3-270m"):
        path = model_path(model)
        for kv_type, chunk, n_prompt, n_greedy in (("f16", 64, 258, 3), ("q8_0", 300, 66, 2), ("q4_0", 41, 66, 2)):
            expected = here("logits", path, "", kv_type, chunk, n_prompt, n_greedy)
            for cpu, tier in neon:
                work.append(Job(f"{model}, {kv_type} cache, {n_prompt} tokens", cpu,
                                answers("logits", path, tier, kv_type, chunk, n_prompt, n_greedy), expected))
    for cpu, tier in neon:  # four tests walk the rows
        work.append(Job("kernels", cpu, pytest(kernels + "test_mm.py", "-k", tier), passed=4 * len(rows_of(found[cpu], tier)) or 1))
        if tier in found[cpu]["ops"]:
            work.append(Job("ops and attention", cpu, pytest(kernels + "test_ops.py", kernels + "test_attn.py", "-k", tier), passed=20))
    some = ("cortex-a53", "cortex-a76", "max", "cortex-a7", "core2duo") if options.short else CPUS
    work += [Job("tiny models", cpu, answers("tiny", tiny, CPUS[cpu][1]), small) for cpu in some]
    if not options.short:
        path, question, words = model_path("smollm2"), ("What is the capital of France?", 8), ("The capital of France is", 3)
        said, written, begun = here("chat", path, *question), here("text", path, *words), here("logits", path, "", "f16", 3, 5, 2)
        work += [Job("smollm2 answers", cpu, answers("chat", path, *question), said) for cpu, _ in neon]
        work += [Job("smollm2 writes", cpu, answers("text", path, *words), written)
                 for cpu, (machine, _) in CPUS.items() if machine != "aarch64"]
        work += [Job("smollm2, first tokens", cpu, answers("logits", path, tier, "f16", 3, 5, 2), begun)
                 for cpu, (machine, tier) in CPUS.items() if machine != "aarch64"]
        work += [Job("scalar kernels, files", "cortex-a7", pytest(
                     kernels + "test_scalar.py", kernels + "test_softfloat.py", "tests/test_gguf.py",
                     "-k", "not import_is_light"), passed=200),  # which starts a Python
                 Job("softfloat", "core2duo", pytest(kernels + "test_softfloat.py"))]
    return work


def model_path(name):
    from pyengine import catalog

    return catalog.cached(name) or fail(f"{name} has not been fetched: make models")


def perform(job, environments, logs):
    """None, or what is wrong."""
    env, packages = environments[CPUS[job.cpu][0]]
    log = logs / f"{job.cpu} {job.name}.txt".replace(" ", "_")
    with open(log, "w") as out:
        code = subprocess.call(env.python(job.cpu, job.arguments, packages), stdout=out, stderr=subprocess.STDOUT, cwd=ROOT)
    said = log.read_text(errors="replace")
    if code:
        return f"{what_died(code)}; see {log}\n{said[-3000:]}"
    if job.passed:
        n = int((re.findall(r"(\d+) passed", said) or ["0"])[-1])
        return None if n >= job.passed else f"{n} tests passed, expected {job.passed} or more; see {log}"
    if job.expected is not None:
        return difference(job.expected, json.loads([line for line in said.splitlines() if line.startswith("{")][-1]), "")
    return None


def difference(expected, found, where):
    """None if equal, else the first place where they are not."""
    if isinstance(expected, dict) and isinstance(found, dict) and expected.keys() == found.keys():
        pairs = [(expected[k], found[k], f"{where}[{k}]") for k in expected]
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = [(a, b, f"{where}[{i}]") for i, (a, b) in enumerate(zip(expected, found))]
    else:
        return None if expected == found else f"other bits than here at {where}: {found!r}, expected {expected!r}"
    return next((wrong for pair in pairs if (wrong := difference(*pair))), None)


def test(options):
    started = time.monotonic()
    if options.short:
        os.environ["PYENGINE_TEST_SHORT"] = "1"  # tests/kernels/test_mm.py
    sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
    environments = {}
    for name, machine in MACHINES.items():
        env = Environment(machine).ready()
        environments[name] = env, by_cross_gcc(env, None) if options.gcc else unpacked(env, built_wheel(name))
    logs = ROOT / "build" / "emulated" / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        looks = {cpu: pool.submit(tables, *environments[machine], cpu) for cpu, (machine, _) in CPUS.items()}
        found = {cpu: look.result() for cpu, look in looks.items()}
        wrong = [f"{cpu}: {fault}" for cpu, (machine, tier) in CPUS.items() for fault in faults_of(found[cpu], tier, machine == "aarch64")]
        for fault in wrong:
            print(fault, flush=True)
        if any(isinstance(look, str) for look in found.values()):
            return 1
        work = [job for job in jobs(options, found) if not options.only or re.search(options.only, f"{job.cpu} {job.name}")]
        if not work:
            fail(f"--only {options.only!r} leaves no job")
        tell(f"{len(work)} jobs after {time.monotonic() - started:.0f} s")

        def one(job):
            begun = time.monotonic()
            wrong = perform(job, environments, logs)
            machine, tier = CPUS[job.cpu]
            print(f"{machine:8} {job.cpu:12} {tier:8} {job.name:36} {'FAILED' if wrong else 'ok':7} {time.monotonic() - begun:5.0f} s", flush=True)
            return wrong and f"{job.cpu}, {job.name}: {wrong}"

        failed = [text for text in pool.map(one, work) if text]
    for text in failed:
        print(f"\n{text}")
    print(f"{len(work) - len(failed)} of {len(work)} emulated jobs passed in {time.monotonic() - started:.0f} s"
          + f"; {len(wrong)} faults of the tables, above" * bool(wrong))
    return 1 if wrong or failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    p = commands.add_parser("run", help="run a Python command line on an emulated CPU")
    p.add_argument("--cpu", choices=CPUS, default="cortex-a76")
    p.add_argument("--cc", help="the cross compiler and its options (default: Debian's gcc for that machine)")
    p.add_argument("--wheel", help="a built wheel instead of the working tree")
    p.add_argument("arguments", nargs="+", help="behind --: -m pytest tests/kernels, -c '...', a script")
    p.set_defaults(work=run)
    p = commands.add_parser("test", help="the wheels on every CPU of the list: kernels, tiny models, real models")
    p.add_argument("--short", action="store_true", help="kernels of the NEON tiers and tiny models only")
    p.add_argument("--only", metavar="REGEX", help="jobs whose 'CPU NAME' it finds: 'a53 kernels', 'smollm2'")
    p.add_argument("--gcc", action="store_true", help="what Debian's cross gcc makes of the tree instead of wheels")
    p.set_defaults(work=test)
    options = parser.parse_args()
    if sys.platform != "linux":
        fail("qemu-user runs Linux programs on Linux only")
    return options.work(options)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""pyengine beside llama.cpp (the prebuilt xllamacpp), in one run on one machine.

    python bench/compare.py [--models smollm2 gemma-3-270m] [--rounds 5] [--threads 2] [--json FILE] [--markdown]

Every measurement is a process of its own, A B A B ..., so that a busy neighbour hits both; the table shows
medians, and ratios that are above 1 where pyengine is better: of the medians, and of the best samples, which
a neighbour disturbs least. Interleaving does not make a busy machine fair, though: threads of llama.cpp spin
while they wait for one that was descheduled, so with both cores contended it loses far more than its share.
The load at the start is printed; above 0.5, believe --threads 1 or nothing. Clocks stand outside both engines:

    prompt      tokens/s over a prompt of 512 ids and one token more, second call of the process
    generation  tokens/s over 64 greedy tokens after one id, second call of the process
    cold start  seconds from the start of the process to its first byte of answer: pyengine-cli beside the
                shortest xllamacpp script, with warm-up and fitting to memory off; files in the page cache
    CPU         user and system seconds of that same process, to its end
    peak RSS    MB of the process that did prompt and generation, mapped weights included

Not a benchmark of native builds: xllamacpp's wheel uses AVX2 and no more.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODELS = ("smollm2", "gemma-3-270m")
ENGINES = ("pyengine", "xllamacpp")
N_PROMPT, N_GENERATE, N_CTX = 512, 64, 1024

# The cold start scripts get the model's path and the number of threads.
COLD = {
    "pyengine": """
import sys
from pyengine.cli import main
sys.exit(main(["-m", sys.argv[1], "-t", sys.argv[2], "-p", "Hello", "-n", "1", "--raw", "--temp", "0"]))
""",
    "xllamacpp": """
import sys, xllamacpp
p = xllamacpp.CommonParams()
p.model.path, p.cpuparams.n_threads, p.verbosity = sys.argv[1], int(sys.argv[2]), -1
p.warmup = p.fit_params = False
s = xllamacpp.Server(p)
print(s.handle_completions({"prompt": "Hello", "max_tokens": 1, "temperature": 0})["choices"][0]["text"], flush=True)
""",
}


# --- in the measured process -------------------------------------------------------------------------------


def ids(n, seed):
    """Token ids that both vocabularies have; a small generator of our own keeps numpy out of the process."""
    out, state = [], seed * 2654435761 % 2**32
    for _ in range(n):
        state = (1664525 * state + 1013904223) % 2**32
        out.append(1000 + (state >> 8) % 20000)
    return out


def load_pyengine(path, threads):
    from pyengine import Llama

    model = Llama(path, n_ctx=N_CTX, max_seqs=1, n_threads=threads)

    def complete(prompt, n):
        return model.generate(prompt, max_tokens=n, temperature=0, ignore_eos=True).usage["completion_tokens"]

    return complete


def load_xllamacpp(path, threads):
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel = path, N_CTX, 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.warmup = params.fit_params = params.cache_prompt = False
    params.verbosity = -1
    server = xllamacpp.Server(params)

    def complete(prompt, n):
        body = {"prompt": prompt, "max_tokens": n, "temperature": 0, "cache_prompt": False, "ignore_eos": True}
        return server.handle_completions(body)["usage"]["completion_tokens"]

    return complete


def worker(engine, path, threads):
    complete = {"pyengine": load_pyengine, "xllamacpp": load_xllamacpp}[engine](path, threads)

    def rate(n_prompt, n_generate, counted):
        complete(ids(n_prompt, 1), n_generate)
        start = time.perf_counter()
        made = complete(ids(n_prompt, 2), n_generate)
        seconds = time.perf_counter() - start
        if made != n_generate:
            raise SystemExit(f"{engine} made {made} tokens, expected {n_generate}")
        return counted / seconds

    print(json.dumps({"prompt": rate(N_PROMPT, 1, N_PROMPT), "generation": rate(1, N_GENERATE, N_GENERATE)}), flush=True)


# --- in the parent -----------------------------------------------------------------------------------------


def run(command):
    """(output, seconds to the first byte of it, CPU seconds, peak RSS in MB) of a process of its own."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    # stderr of either engine is a few lines: far from filling a pipe while stdout is read
    output = process.stdout.read(1)
    first = time.perf_counter() - start
    output += process.stdout.read()
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or not output:
        sys.stderr.write(errors.decode(errors="replace"))
        raise SystemExit(f"{command[:4]} ended with {process.returncode}, {len(output)} bytes of output")
    unit = 1 if sys.platform == "darwin" else 1024
    return output, first, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit / 1e6


def measure(path, threads, rounds, say):
    """{figure: {engine: [samples]}}"""
    figures = {name: {engine: [] for engine in ENGINES} for name in ("prompt", "generation", "cold start", "CPU", "peak RSS")}
    with open(path, "rb") as file:
        while file.read(1 << 24):
            pass  # into the page cache, for both alike
    for number in range(rounds):
        for engine in ENGINES:
            say(f"round {number + 1} of {rounds}: {engine}")
            _, first, cpu, _ = run([sys.executable, "-c", COLD[engine], str(path), str(threads)])
            figures["cold start"][engine].append(first)
            figures["CPU"][engine].append(cpu)
            output, _, _, rss = run([sys.executable, __file__, "--worker", engine, str(path), "--threads", str(threads)])
            rates = json.loads(output)
            figures["peak RSS"][engine].append(rss)
            for name in ("prompt", "generation"):
                figures[name][engine].append(rates[name])
    return figures


UNITS = {"prompt": "tokens/s", "generation": "tokens/s", "cold start": "s", "CPU": "s", "peak RSS": "MB"}
MORE_IS_BETTER = ("prompt", "generation")
TITLES = {"prompt": f"prompt of {N_PROMPT}", "generation": f"generation of {N_GENERATE}", "cold start": "cold start to first token",
          "CPU": "CPU of that start", "peak RSS": "peak RSS"}  # fmt: skip


def summary(figures):
    """[(figure, median of pyengine, of xllamacpp, ratio, ratio of the best)]; above 1 is better for pyengine."""
    rows = []
    for name, samples in figures.items():
        more = name in MORE_IS_BETTER
        medians, best = ([f(samples[engine]) for engine in ENGINES] for f in (statistics.median, max if more else min))
        ratios = [ours / theirs if more else theirs / ours for ours, theirs in (medians, best)]
        rows.append((name, *medians, *ratios))
    return rows


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def cpu_name():
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith(("model name", "Model")):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def commit():
    def git(*args):
        return subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + ("-dirty" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def find(name):
    if os.path.exists(name):
        return pathlib.Path(name)
    from pyengine import catalog

    path = catalog.cached(name)
    if path is None:
        raise SystemExit(f"{name} has not been fetched: pyengine-cli pull {name}")
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=MODELS, metavar="NAME", help="names of the catalog or files")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", metavar="FILE", help="write all samples; - is stdout, instead of the table")
    parser.add_argument("--markdown", action="store_true", help="print the table for README.md")
    parser.add_argument("--worker", nargs=2, metavar=("ENGINE", "PATH"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(*args.worker, args.threads)
        return
    sys.path.insert(0, str(ROOT))
    import importlib.metadata

    record = {
        "date": datetime.date.today().isoformat(), "cpu": cpu_name(), "threads": args.threads, "rounds": args.rounds,
        "commit": commit(), "xllamacpp": importlib.metadata.version("xllamacpp"), "load": os.getloadavg()[0], "models": {},
    }  # fmt: skip

    def say(text):
        if sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    for name in args.models:
        title = pathlib.Path(name).stem if os.path.exists(name) else name
        record["models"][title] = measure(find(name), args.threads, args.rounds, lambda text: say(f"{title}: {text}"))
    say("")
    if record["load"] > 0.5:
        print(f"The load was {record['load']:.1f} at the start: this machine was busy, see the beginning of {__file__}.", file=sys.stderr)
    if args.json:
        text = json.dumps(record, indent=1)
        if args.json == "-":
            print(text)
            return
        pathlib.Path(args.json).write_text(text + "\n")
    print_table(record, args.markdown)


def print_table(record, markdown):
    head = ("model", "figure", "pyengine", "llama.cpp", "ratio", "of the best")
    rows = [
        (name, TITLES[figure], f"{number(ours)} {UNITS[figure]}", f"{number(theirs)} {UNITS[figure]}", f"{ratio:.2f}", f"{best:.2f}")
        for name, figures in record["models"].items()
        for figure, ours, theirs, ratio, best in summary(figures)
    ]
    note = (f"{record['cpu']}, {record['threads']} threads, medians of {record['rounds']}, {record['date']}, "
            f"commit {record['commit']}, xllamacpp {record['xllamacpp']}, load at start {record['load']:.1f}")  # fmt: skip
    if markdown:
        print("| " + " | ".join(head) + " |\n|---|---|---:|---:|---:|---:|")
        for row in rows:
            print("| " + " | ".join(row) + " |")
        print(f"\n{note}.")
        return
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows]:
        print("  ".join(cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))))
    print(note)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""What a busy neighbour costs: generation with a process busy on one core, pyengine beside llama.cpp (the prebuilt xllamacpp).

    python bench/neighbour.py [--model smollm2] [--threads 2] [--rounds 5] [--tokens 200] [--json FILE]

Each engine sits in a process of its own, loaded once, and generates the same number of tokens in turn: alone,
beside a loop that is bound to the last core, and beside a loop that the system may move. A round has all six;
the table shows medians over rounds and what each engine keeps. With n threads on n cores the fair share beside
one busy loop is n - 1 cores and half of the last: (n - 1/2) / n, three quarters for two.

The loop runs at the priority and in the session of this program: where the system groups processes by session
(sched_autogroup_enabled), a loop in another session would get more than half a core. Needs a quiet machine;
the load at the start is printed. Not a benchmark of speed (bench/compare.py): both engines are compared with
themselves.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
ENGINES = ("pyengine", "xllamacpp")
N_CTX = 1024
PLACES = ("alone", "bound", "free")
LOOP = "import os, sys\nif sys.argv[1] != 'free': os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass\n"


def load_pyengine(path, threads):
    from pyengine import Llama

    model = Llama(path, n_ctx=N_CTX, max_seqs=1, n_threads=threads, prefix_cache=False, speculate=None)
    return lambda prompt, n: model.generate(prompt, max_tokens=n, temperature=0, ignore_eos=True).usage["completion_tokens"]


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
    """In the measured process: a number of tokens per line of input, seconds per line of output."""
    complete = {"pyengine": load_pyengine, "xllamacpp": load_xllamacpp}[engine](path, threads)
    print("ready", flush=True)
    for line in sys.stdin:
        n = int(line)
        start = time.perf_counter()
        made = complete([1000], n)
        seconds = time.perf_counter() - start
        if made != n:
            raise SystemExit(f"{engine} made {made} tokens, expected {n}")
        print(seconds, flush=True)


class Engine:
    def __init__(self, name, path, threads):
        self.name = name
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
        self.process = subprocess.Popen([sys.executable, __file__, "--worker", name, path, str(threads)], env=env, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.answer()

    def answer(self):
        line = self.process.stdout.readline().strip()
        if not line:
            raise SystemExit(f"{self.name} ended with {self.process.wait()}")
        return line

    def seconds(self, n):
        print(n, file=self.process.stdin, flush=True)
        return float(self.answer())


def beside(place, cores):
    """The neighbour, busy by the time this returns; None for "alone"."""
    if place == "alone":
        return None
    loop = subprocess.Popen([sys.executable, "-c", LOOP, place if place == "free" else str(cores[-1])])
    time.sleep(0.2)
    return loop


def measure(path, threads, rounds, n, cores, say):
    """{engine: {place: [tokens per second]}}"""
    engines = [Engine(name, path, threads) for name in ENGINES]
    rates = {e.name: {place: [] for place in PLACES} for e in engines}
    try:
        for e in engines:
            e.seconds(n)             # the first call warms up
        for number in range(rounds):
            for place in PLACES:
                for e in engines:
                    loop = beside(place, cores)
                    try:
                        rates[e.name][place].append(n / e.seconds(n))
                    finally:
                        if loop:
                            loop.kill()
                            loop.wait()
            say(f"round {number + 1} of {rounds}: " + ", ".join(
                f"{e.name} " + " ".join(f"{place} {rates[e.name][place][-1]:.0f}" for place in PLACES) for e in engines))
    finally:
        for e in engines:
            e.process.kill()
            e.process.wait()
    return rates


def table(rates, threads):
    median = {engine: {place: statistics.median(v) for place, v in places.items()} for engine, places in rates.items()}
    fair = (threads - 0.5) / threads
    yield f"{'engine':<10} {'neighbour':<9} {'tokens/s':>9} {'kept':>6} {'of the fair share':>18}"
    for engine, places in median.items():
        for place, rate in places.items():
            kept = rate / places["alone"]
            yield f"{engine:<10} {place:<9} {rate:>9.1f} {kept:>6.2f} {'' if place == 'alone' else format(kept / fair, '.2f'):>18}"
    for place in PLACES[1:]:
        ours, theirs = (median[e][place] / median[e]["alone"] for e in ENGINES)
        yield f"neighbour {place}: pyengine keeps {ours / theirs:.2f}x of what llama.cpp keeps"


def main():
    if sys.argv[1:2] == ["--worker"]:
        return worker(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="a GGUF file or a name of the catalog")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--json", metavar="FILE", help="every sample")
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from pyengine.llama import find

    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < args.threads:
        raise SystemExit(f"--threads {args.threads}, but this process may use {len(cores)} cores")
    print(f"{os.path.basename(find(args.model))}, {args.threads} threads on cores {cores}, {args.tokens} tokens a sample, "
          f"load {os.getloadavg()[0]:.1f}, {time.strftime('%Y-%m-%d')}")
    rates = measure(find(args.model), args.threads, args.rounds, args.tokens, cores, lambda text: print(text, file=sys.stderr, flush=True))
    print(*table(rates, args.threads), sep="\n")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(rates, file)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""pyengine beside llama.cpp, in one run on one machine: prompts, generation, batches, cold start, memory.

    python bench/compare.py --models DIR... [--native-python PY] [--ik-python PY] [--xllamacpp-python PY]
                            [--goal 1 2 ...] [--only 'llama-1b.Q4_K_M/tg*/native' ...] [--quick] [--resume] [--list]

Peers: llama-cpp-python compiled on this machine, beside our best tier; xllamacpp and ik-llama-cpp-python, whose
wheels use AVX2, beside us held to AVX2; llama-cpp-python as it comes, beside us as we come, for cold start and memory.
tools/bench_peers.sh makes their environments and tools/bench_models.py the models. Environment variables
PYENGINE_BENCH_NATIVE, _IK, _XLLAMACPP and _MODELS stand for the options; a peer without an interpreter is left out.

How: every engine is a process of its own (bench/worker.py) that stays loaded, and rounds go A B A B over all of them,
so that a busy neighbour hits all alike. A peer's settings (weights repacked or not, flash attention or not) are each
tried once, which warms them up; the best two within 15 % of each other (with less than five rounds: the best) are
measured in every round and the better median counts. Where a prompt or context is longer than 1024, they are tried at 1024 and the best is measured. Ours
has one setting and is warmed up likewise. Generation goes on from round to round: a context is filled once. KV is f16,
steps are at most 512 ids. Ratios are of medians, above 1 where pyengine is better. "of read": bytes of weights that a
token reads times tokens/s, over what a plain linear loop per thread reads of the same file, between the same rounds.

Cells are written to the result file (bench/results/DATE-CPU.json) one by one and replace the same cell of earlier
runs, so a table may be put together from several; each cell carries its own run, both sides measured together. With
them come a Markdown table and a chart. "busy": cores that neighbours kept from us while the cell was measured;
above 0.2 believe nothing. A cell that fails says why, and the others go on.
"""

import argparse
import datetime
import json
import os
import pathlib
import select
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import alone  # noqa: E402
import cells  # noqa: E402
import machine_facts  # noqa: E402
import report  # noqa: E402

WORTH, MOST = 1.15, 2  # settings slower than this times the best in the trial, or more than so many, are not measured further
FLASH = "+fa"  # at the end of a setting's name: with flash attention
SETTINGS = ("repack", "plain", "repack" + FLASH, "plain" + FLASH)
TIMEOUT = 900


class Worker:
    """A bench/worker.py process; ask() is one command and its answer."""

    def __init__(self, python, engine, path, threads, setting, isa=None):
        env = {**os.environ, **({"PYENGINE_ISA": isa} if isa else {})}
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen([python, str(HERE / "worker.py"), engine, str(path), str(threads), setting], env=env,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, bufsize=1)  # fmt: skip
        self.facts = self._answer()

    def ask(self, do, **arguments):
        try:
            self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it has ended, and _answer says how
        return self._answer()

    def _answer(self):
        ready, _, _ = select.select([self.process.stdout], [], [], TIMEOUT)
        line = self.process.stdout.readline() if ready else ""
        if not line:
            self.process.kill()
            code = self.process.wait()
            self.errors.seek(0)
            tail = self.errors.read()[-300:].decode(errors="replace").strip().replace("\n", " | ")
            raise RuntimeError(f"no answer in {TIMEOUT} s" if not ready else f"ended with {code}: {tail}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["value"]

    def close(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.errors.close()


class Bench:
    def __init__(self, args, record, say):
        self.args, self.record, self.say = args, record, say
        self.workers = {}  # (side, setting) -> Worker; of one model and group at a time
        self.loaded = None

    def sides(self, group):
        """[(side, engine, python, settings, isa)], ours first."""
        ours = ("pyengine", "pyengine", sys.executable, ("plain",), "avx2" if group == "avx2" else None)
        peers = {
            "native": (("native", "llama_cpp", self.args.native_python),),
            "default": (("native", "llama_cpp", self.args.native_python),),
            "avx2": (("ik", "ik_llama_cpp", self.args.ik_python), ("xllamacpp", "xllamacpp", self.args.xllamacpp_python)),
        }[group]
        # the server of xllamacpp chooses flash attention itself
        return [ours] + [(*peer, SETTINGS[:2] if peer[0] == "xllamacpp" else SETTINGS, None) for peer in peers if peer[2]]

    def close(self):
        for worker in self.workers.values():
            worker.close()
        self.workers, self.loaded = {}, None

    def worker(self, side, engine, python, setting, isa, path):
        key = (side, setting)
        if key not in self.workers:
            self.say(f"loading {side} {setting}")
            worker = Worker(python, engine, path, self.args.threads, setting, isa)
            self.workers[key] = worker
            self.record["sides"][f"{side}{' ' + isa if isa else ''}"] = {k: v for k, v in worker.facts.items() if k != "weight_bytes"}
        return self.workers[key]

    def measure(self, model, path, cell, rounds):
        """The cell's entry for the result file."""
        if self.loaded != (model, cell.group):
            self.close()
            self.loaded = (model, cell.group)
            with open(path, "rb") as file:  # into the page cache, for all alike
                while file.read(1 << 24):
                    pass
        entry = {"model": model, "cell": cell.name, "group": cell.group, "unit": cell.unit, "rounds": rounds,
                 "threads": self.args.threads, "date": datetime.datetime.now().isoformat(timespec="seconds"), "tried": {}, "sides": {}, "errors": {}}  # fmt: skip
        busy = machine_facts.Busy(self._pids())
        if cell.group == "default":
            self._alone(path, cell, rounds, entry)
        else:
            self._loaded(path, cell, rounds, entry)
        entry["busy"] = round(busy.others(self._pids()), 2)
        return entry

    def _pids(self):
        return [worker.process.pid for worker in self.workers.values()]

    def _alone(self, path, cell, rounds, entry):
        for number in range(rounds + 1):  # the first warms up
            for side, engine, python, _, _ in self.sides(cell.group):
                if side in entry["errors"]:
                    continue
                self.say(f"round {number}/{rounds} {side}")
                try:
                    value = alone.run(python, engine, cell.kind, path, TIMEOUT)
                except (RuntimeError, OSError) as e:
                    entry["errors"][side] = str(e)
                    continue
                if number:
                    entry["sides"].setdefault(side, {}).setdefault("default", []).append(value)

    def _loaded(self, path, cell, rounds, entry):
        running = []  # (side, setting, worker)
        for side, engine, python, settings, isa in self.sides(cell.group):
            tried = {}
            for setting in settings:
                self.say(f"trying {side} {setting}")
                try:
                    worker = self.worker(side, engine, python, setting.removesuffix(FLASH), isa, path)
                    worker.ask("open", n_ctx=cell.n_ctx, batch=cell.batch, flash=setting.endswith(FLASH))
                    tried[setting] = self._trial(worker, setting, cell)
                except (RuntimeError, OSError) as e:
                    self._failed(entry, side, setting, e)
            fast = sorted((s, setting) for setting, s in tried.items() if s <= WORTH * min(tried.values()))
            entry["tried"][side] = tried
            most = 1 if cell.long or rounds < cells.ROUNDS else MOST
            running += [(side, setting, self.workers[side, setting.removesuffix(FLASH)]) for _, setting in fast[:most]]
        for number in range(rounds):
            for side, setting, worker in list(running):
                self.say(f"round {number + 1}/{rounds} {side} {setting}")
                try:
                    if side == "pyengine" and cell.kind == "generate" and cell.batch == 1:
                        entry.setdefault("read", []).append(worker.ask("read"))
                        entry["weight_bytes"] = worker.facts["weight_bytes"]
                    value = self._once(worker, setting, cell, number)
                except (RuntimeError, OSError) as e:
                    self._failed(entry, side, setting, e)
                    running.remove((side, setting, worker))
                    continue
                entry["sides"].setdefault(side, {}).setdefault(setting, []).append(value)

    def _failed(self, entry, side, setting, error):
        entry["errors"][f"{side} {setting}"] = str(error)
        key = side, setting.removesuffix(FLASH)
        if key in self.workers and self.workers[key].process.poll() is not None:
            del self.workers[key]  # it has ended; the next cell makes another

    def _trial(self, worker, setting, cell):
        flash = setting.endswith(FLASH)
        if cell.kind == "prompt":
            return worker.ask("start", n=cells.TRIAL if cell.long else min(cell.n, 256), batch=1, flash=flash)
        worker.ask("start", n=min(cell.ctx, cells.TRIAL), batch=cell.batch, flash=flash)
        return worker.ask("generate", n=max(2, cell.n // 4), flash=flash)

    def _once(self, worker, setting, cell, number):
        flash = setting.endswith(FLASH)
        if cell.kind == "prompt":
            return cell.n / worker.ask("start", n=cell.n, batch=1, flash=flash)
        if cell.ctx == 1 or (cell.long and number == 0):
            worker.ask("start", n=cell.ctx, batch=cell.batch, flash=flash)
        return cell.n * cell.batch / worker.ask("generate", n=cell.n, flash=flash)


def find(model, folders):
    """The model's file: in the folders, else in the catalog's cache; None if nowhere."""
    name, file, _ = cells.MODELS[model]
    for folder in folders:
        if (pathlib.Path(folder) / file).exists():
            return pathlib.Path(folder) / file
    from pyengine import catalog

    return catalog.cached(name) if name else None


def options():
    env = os.environ.get
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--models", nargs="+", metavar="DIR", default=(env("PYENGINE_BENCH_MODELS") or "").split(os.pathsep))
    p.add_argument("--native-python", metavar="PY", default=env("PYENGINE_BENCH_NATIVE"), help="interpreter with llama-cpp-python")
    p.add_argument("--ik-python", metavar="PY", default=env("PYENGINE_BENCH_IK"), help="interpreter with ik-llama-cpp-python")
    p.add_argument("--xllamacpp-python", metavar="PY", default=env("PYENGINE_BENCH_XLLAMACPP"),
                   help="interpreter with xllamacpp; default: this one, if it has it")  # fmt: skip
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, help="default 5; 3 for the 8B shapes and with --quick")
    p.add_argument("--only", nargs="+", default=[], metavar="MODEL[/CELL[/GROUP]]", help="cells to measure; wildcards")
    p.add_argument("--goal", nargs="+", type=int, default=[], metavar="N", help="cells of these goals (bench/cells.py)")
    p.add_argument("--quick", action="store_true", help="the goals' cells of the small and 1B models, medians of 3, one setting of each peer")
    p.add_argument("--resume", action="store_true", help="skip what the result file has")
    p.add_argument("--list", action="store_true", help="print the cells, measure nothing")
    p.add_argument("--render", action="store_true", help="write table and chart of the result file, measure nothing")
    p.add_argument("--out", type=pathlib.Path, help="the result file, .json")
    args = p.parse_args()
    args.models = [folder for folder in args.models if folder]
    if args.xllamacpp_python is None:
        import importlib.util

        args.xllamacpp_python = sys.executable if importlib.util.find_spec("xllamacpp") else None
    for name in ("native_python", "ik_python", "xllamacpp_python"):
        python = getattr(args, name)
        if python and not os.access(python, os.X_OK):
            p.error(f"--{name.replace('_', '-')}: {python} is not an interpreter")
    args.out = args.out or HERE / "results" / f"{datetime.date.today()}-{machine_facts.slug()}.json"
    return args


def main():
    args = options()
    table = cells.chosen(args.only, args.goal or (range(1, 6) if args.quick else ()))
    if args.quick and not args.only:
        table = [(model, cell) for model, cell in table if not model.startswith("llama-8b") and not (cell.long and model.startswith("smollm2"))]
    if args.list:
        print("\n".join(f"{model}/{cell.name}/{cell.group}" for model, cell in table))
        return
    result = report.read(args.out)
    if args.render:
        report.write(result, args.out)
        print(report.text(result))
        return
    if args.resume:
        table = [(model, cell) for model, cell in table if not report.has(result, model, cell)]
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"This machine is busy (load {load:.1f}): figures will be wrong, see the head of bench/compare.py.", file=sys.stderr)
    run = {**machine_facts.facts(HERE.parent), "load": load, "sides": {}}
    result["runs"].append(run)
    measure_all(args, table, result, run)
    report.write(result, args.out)
    print(report.text(result))
    print(f"\n{args.out} and beside it .md and .png")


def measure_all(args, table, result, run):
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(table))
        name = ""
        bench = Bench(args, run, lambda text: progress.update(task, description=f"{name}: {text}"))
        try:
            for model, cell in table:
                name = f"{model} {cell.name} {cell.group}"
                path = find(model, args.models)
                if path is None:
                    console.print(f"{name}: no {cells.MODELS[model][1]} in --models, left out", highlight=False)
                    progress.advance(task)
                    continue
                rounds = args.rounds or cells.rounds(model, cell, args.quick)
                begin = time.monotonic()
                entry = bench.measure(model, path, cell, rounds)
                entry.update(run=len(result["runs"]) - 1, seconds=round(time.monotonic() - begin, 1))
                report.add(result, entry)
                report.save(result, args.out)
                console.print(report.line(entry), highlight=False, soft_wrap=True)
                progress.advance(task)
        finally:
            bench.close()


if __name__ == "__main__":
    main()

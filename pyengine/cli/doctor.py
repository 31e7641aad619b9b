"""pyengine-cli doctor: what this machine gives, what pyengine uses of it, and the limit that sets for a model.

facts() gathers (also for --json), lines() says it in words. Measuring is yardstick.py's. Needs no rights and no /sys.
Imported by the command line only.
"""
import contextlib
import os
import platform
import sys

from . import arguments

# Tier, its bit, the architecture it belongs to.
TIERS = (
    ("avx2", "PE_ISA_AVX2", "x86-64"), ("avxvnni", "PE_ISA_AVXVNNI", "x86-64"), ("avx512", "PE_ISA_AVX512", "x86-64"),
    ("amx", "PE_ISA_AMX", "x86-64"), ("neon", "PE_ISA_NEON", "ARM"), ("dotprod", "PE_ISA_DOTPROD", "ARM"), ("i8mm", "PE_ISA_I8MM", "ARM"),
)
N_PROMPT, N_GENERATED = 512, 64      # what --run measures


def parser():
    p = arguments.parser("doctor", "Say what this machine gives, what is used of it, and the limit that sets for a model.")
    p.add_argument("path", nargs="?", metavar="MODEL", help="a GGUF file or a name of the catalog: also its predicted limits")
    p.add_argument("-m", "--model", metavar="MODEL")
    p.add_argument("--run", action="store_true", help="run the model and say which share of its limits it reaches")
    p.add_argument("-t", "--threads", type=int, default=-1, metavar="N", help="threads; -1: as docs/threads.md says")
    p.add_argument("--quick", action="store_true", help="measure nothing")
    p.add_argument("--json", action="store_true", help="one JSON object")
    return p


def main(argv) -> int:
    args = parser().parse_args(argv)
    name = args.path or args.model
    if args.run and (name is None or args.quick):
        raise SystemExit("--run measures a model against the machine: expected MODEL, and no --quick")
    report = facts()
    with note() as say:
        if not args.quick:
            from .. import machine
            from ..native import isa_mask

            most = args.threads if args.threads > 0 else max(machine.threads())
            report["measured"] = measured(sorted({1, most}), isa_mask(), say)
        if name is not None:
            report["model"] = limits(name, args, report, say)
    if args.json:
        import json

        print(json.dumps(report, indent=1))
    else:
        show(lines(report))
    return 0


@contextlib.contextmanager
def note():
    """Yields say(what): a line on stderr that shows what is measured, if that is a terminal."""
    if not (sys.stderr and sys.stderr.isatty()):
        yield lambda what: None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield lambda what: status.update(what)


# ---- gathering --------------------------------------------------------------------------------

def facts(root="/") -> dict:
    from .. import __version__, catalog, machine, thermal, tune
    from ..native import ffi, lib

    brand = ffi.string(lib.pe_cpu_name()).decode("utf-8", "replace").strip()
    tuned = tune.load()
    quota, threads = machine.quota(root), machine.threads(root)
    out = {
        "pyengine": {"version": __version__, "python": platform.python_version(), "platform": f"{sys.platform} {platform.machine()}"},
        "cpu": {"name": brand or machine.cpu_name(root), "forced": os.environ.get("PYENGINE_ISA") or None, "tiers": tiers(),
                "cache": machine.cache_bytes(root) or None},
        "cores": dict(machine.cores(root), quota=quota, threads=threads.decode, threads_batch=threads.prompt),
        "frequency": machine.frequency(root),
        "heat": thermal.report(root),
        "memory": {"total": machine.memory_total(root), "available": machine.memory_available(root), "limit": machine.memory_limit(root),
                   "huge_pages": machine.huge_pages(root), "mlock": mlock()},
        "tune": {"file": str(tuned.path) if tuned.path else None, "reason": tuned.reason, "shapes": len(tuned.shapes), "models": len(tuned.models)},
        "cache": {"folder": str(catalog.cache_dir()),
                  "models": {name: {"fetched": catalog.cached(name) is not None, "bytes": m.size} for name, m in catalog.models().items()}},
    }
    return out


def tiers() -> dict:
    """{tier: {"usable", "kernels" in this build, "why" it is off}}; the scalar tier is always there."""
    from ..errors import UnsupportedError
    from ..native import ffi, isa_mask, lib, rows

    kernels = [r.isa for r in rows()]
    has = lib.pe_cpu_isa()
    try:
        used = isa_mask()
    except UnsupportedError:
        used = has                   # said by "forced"
    out = {"scalar": {"usable": True, "kernels": kernels.count(0), "why": None}}
    mine = "ARM" if arm() else "x86-64"
    for name, constant, architecture in TIERS:
        bit = getattr(lib, constant)
        built = sum(isa & bit != 0 for isa in kernels)
        lacks = ffi.string(lib.pe_cpu_lacks(bit)).decode()
        why = (f"not compiled for this architecture but for {architecture}" if architecture != mine
               else f"missing: {lacks or 'detected by nothing on this system'}" if not has & bit
               else "this CPU has it, and this build has no kernels for it" if not built
               else f"held back by PYENGINE_ISA={os.environ.get('PYENGINE_ISA')}" if not used & bit else None)
        out[name] = {"usable": why is None, "kernels": built, "why": why}
    return out


def arm() -> bool:
    return platform.machine().lower().startswith(("arm", "aarch"))


def mlock():
    """Bytes that may be locked; -1: any number; None: unknown."""
    try:
        import resource

        soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        return -1 if soft == resource.RLIM_INFINITY else soft
    except (ImportError, OSError):
        return None


def measured(threads: list, isa: int, say) -> dict:
    from .. import yardstick

    say("reading memory, one stream and several")
    read = yardstick.read_rates(threads)
    say("integer peak")
    return {"threads": threads, "read": read, "peak": yardstick.peak_rates(threads, isa)}


def limits(name: str, args, report: dict, say) -> dict:
    """Bytes and multiply-adds a token costs, what the measured rates make of them, and with --run the share reached."""
    from ..gguf import GGUF
    from ..llama import find
    from ..native import isa_mask
    from .. import plan, thermal, tune

    say("planning the model")
    path = find(name)
    with GGUF(path) as gguf:
        program = plan.compile(gguf, n_ctx=64, max_tokens=64)
        size = macs = head = 0
        for i in program.instrs:
            size += tune.token_bytes(program, i)
            for w in tune.matrices(i):
                if i.count in ("wanted", "logits"):
                    head += w.width * w.rows
                else:
                    macs += w.width * w.rows * program.graph.per_token(i.count)
    out = {"path": str(path), "arch": program.arch, "bytes_per_token": size, "macs_per_token": macs, "macs_of_head": head}
    if args.run:
        out.update(reached(path, args, say))
        report["heat_after"] = thermal.report()
        # neighbours and clocks change: the yardsticks hold for this run if they are laid on before and after it
        again = measured(report["measured"]["threads"], isa_mask(), say)
        for kind in ("read", "peak"):
            for what, rates in report["measured"][kind].items():
                for t in rates:
                    rates[t] = max(rates[t], again[kind][what][t])
    if "measured" in report:
        t = report["measured"]["threads"][-1]
        linear, streams = (report["measured"]["read"][kind][t] for kind in ("linear", "streams"))
        out["generation_limit"] = max(linear, streams) / size
        peaks = [rates[t] for rates in report["measured"]["peak"].values()]
        out["prompt_limit"] = max(peaks) / (macs + head / N_PROMPT) if peaks else None
        if args.run:
            out["generation_share"] = out["generation"] / out["generation_limit"]
            out["linear_share"] = out["generation"] * size / linear
            out["prompt_share"] = out["prompt"] / out["prompt_limit"] if peaks else None
    return out


def reached(path, args, say) -> dict:
    """Tokens per second of a prompt and of generation behind one token, medians of three."""
    from ..evaluate import rate
    from ..llama import Llama

    threads = args.threads if args.threads > 0 else None
    with Llama(path, n_ctx=N_PROMPT + N_GENERATED, n_threads=threads, prefix_cache=False, speculate=None) as model:
        n = min(N_PROMPT, model.n_ctx - 1)
        out = {}
        for what, prompt, generated in (("generation", 1, min(N_GENERATED, model.n_ctx - 2)), ("prompt", n, 0)):
            say(f"running the model: {what}")
            rates = [rate(model, prompt, generated, seed) for seed in range(4)]
            out[what] = sorted(rates[1:])[1]             # the first warms up
        return dict(out, threads=model.n_threads, tuned=model.tuned.reason is None)


# ---- saying -------------------------------------------------------------------------------------

def lines(report: dict):
    """(name, text) pairs."""
    from .. import thermal

    r = report["pyengine"]
    yield "pyengine", f"{r['version']}, Python {r['python']}, {r['platform']}"
    yield "CPU", report["cpu"]["name"] + (f", {report['cpu']['cache'] / 2**20:.0f} MB of cache" if report["cpu"]["cache"] else "")
    if report["cpu"]["forced"]:
        yield "PYENGINE_ISA", f"{report['cpu']['forced'][:80]!r}: tiers are held to it"
    foreign = []
    for name, tier in report["cpu"]["tiers"].items():
        if tier["why"] and tier["why"].startswith("not compiled"):
            foreign.append((name, tier["why"]))
            continue
        yield name, f"usable, {tier['kernels']} kernels" if tier["usable"] else f"off: {tier['why']}"
    if foreign:
        yield "", f"{', '.join(name for name, _ in foreign)}: {foreign[0][1]}"
    c = report["cores"]
    yield "cores", (f"{c['physical']} with {c['cpus']} hardware threads in the system; affinity allows {len(c['allowed'])}: "
                    f"{len(c['performance'])} performance cores" + (f", {c['efficiency']} efficiency cores" if c["efficiency"] else ""))
    yield "quota", "none" if c["quota"] is None else f"{c['quota']:g} CPUs by cgroup"
    yield "threads", f"by default {c['threads']} for generation (-t), {c['threads_batch']} for prompts (-tb)"
    f = report["frequency"]
    yield "frequency", "not shown by this system" if f is None else (
        f"governor {', '.join(f['governors']) or 'unknown'}" + (f", {f['min_mhz']} to {f['max_mhz']} MHz" if f["max_mhz"] else ""))
    yield from thermal.lines(report["heat"], report.get("heat_after"))
    m = report["memory"]
    parts = [f"{m[key] / 1e9:.2f} GB {word}" for key, word in (("total", "in all"), ("available", "available"), ("limit", "allowed by cgroup")) if m[key] is not None]
    yield "memory", ", ".join(parts) or "unknown"
    yield "huge pages", m["huge_pages"] or "none"
    if m["mlock"] is not None:
        yield "mlock", "unlimited" if m["mlock"] < 0 else f"up to {m['mlock'] / 1e6:.2f} MB (ulimit -l)"
    t = report["tune"]
    yield "tune", t["reason"] or f"{t['shapes']} matrix shapes and {t['models']} models in {t['file']}"
    yield "models", report["cache"]["folder"]
    for name, model in report["cache"]["models"].items():
        yield "", f"{name}: {'fetched' if model['fetched'] else 'not fetched (%.0f MB)' % (model['bytes'] / 1e6)}"
    if "measured" in report:
        yield from measured_lines(report["measured"])
    if "model" in report:
        yield from model_lines(report["model"])


def measured_lines(m: dict):
    def by_threads(rates, unit):
        return ", ".join(f"{rate / 1e9:.1f} {unit} with {t} thread{'s' * (t > 1)}" for t, rate in rates.items())

    yield "reads", f"one stream a thread: {by_threads(m['read']['linear'], 'GB/s')}"
    yield "", f"several streams a thread: {by_threads(m['read']['streams'], 'GB/s')}"
    for n, (name, rates) in enumerate(m["peak"].items()):
        yield "" if n else "multiplies", f"{name}: {by_threads(rates, 'G int8 multiply-adds/s')}"


def model_lines(m: dict):
    yield "model", f"{m['path']} ({m['arch']})"
    yield "a token", (f"{m['bytes_per_token'] / 1e6:.1f} MB of weights, {m['macs_per_token'] / 1e6:.1f} M multiply-adds "
                      f"and {m['macs_of_head'] / 1e6:.1f} M in the head where logits are wanted")
    if "generation_limit" in m:
        prompt = m["prompt_limit"]
        yield "limit", (f"{m['generation_limit']:.1f} tokens/s generation at context 0 (memory), "
                        + (f"{prompt:.0f} tokens/s prompt of {N_PROMPT} (integer peak)" if prompt else "prompt: no integer loop for this CPU"))
    if "generation" in m:
        yield "reached", (f"{m['generation']:.1f} tokens/s generation: {100 * m['generation_share']:.0f} % of the limit, "
                          f"{100 * m['linear_share']:.0f} % of one linear stream; {m['threads']} threads, {'tuned' if m['tuned'] else 'not tuned'}")
        share = "" if m["prompt_share"] is None else f": {100 * m['prompt_share']:.0f} % of the limit"
        yield "", f"{m['prompt']:.0f} tokens/s prompt of {N_PROMPT}{share}"


def show(pairs) -> None:
    """A rich grid on a terminal, plain lines elsewhere."""
    if not sys.stdout.isatty():
        for name, text in pairs:
            print(f"{name:12} {text}")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column(overflow="fold")
    for name, text in pairs:
        style = "green" if text.startswith("usable") else "dim" if text.startswith("off:") else ""
        grid.add_row(name, Text(text, style=style))
    Console().print(grid)

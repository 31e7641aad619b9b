"""pyengine-cli tune: measures kernels, switch points and thread counts for a model on this machine, and remembers them.

The measuring is pyengine/tune.py's; here is a bar and a table. Imported by the command line only.
"""
import contextlib
import os
import sys

from . import arguments


def parser():
    p = arguments.parser("tune", "Measure which kernels and thread counts are fastest here, in under 20 seconds. Used silently afterwards; "
                                 "never changes an answer. PYENGINE_TUNE=0 or --no-tune ignores what is remembered.")
    p.add_argument("path", nargs="?", metavar="MODEL", help="a GGUF file or a name of the catalog")
    p.add_argument("-m", "--model", metavar="MODEL")
    p.add_argument("-t", "--threads", type=int, default=-1, metavar="N", help="threads for the kernels; -1: performance cores within the quota")
    p.add_argument("--seconds", type=float, default=17.0, metavar="S", help="time to spend (default 17)")
    p.add_argument("--dry-run", action="store_true", help="measure and print, remember nothing")
    p.add_argument("--forget", action="store_true", help="remove what is remembered of this machine, and measure nothing")
    return p


def main(argv) -> int:
    args = parser().parse_args(argv)
    if not 1 <= args.seconds <= 600:
        raise SystemExit(f"--seconds: found {args.seconds:g}, expected 1 to 600")
    from .. import tune

    if args.forget:
        path = tune.folder() / tune.file_name(tune.this_machine())
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        print(f"forgotten: {path}")
        return 0
    from ..gguf import GGUF
    from ..llama import find

    usual = args.threads if args.threads > 0 else None
    with GGUF(find(args.path or args.model or arguments.default_model())) as gguf, progress() as update:
        tuned, figures = tune.measure(gguf, seconds=args.seconds, n_threads=usual, progress=update)
    show(tuned, figures, usual)
    busy = neighbours()
    if busy:
        print(busy)
    if args.dry_run:
        print("not remembered (--dry-run)")
    else:
        print(f"remembered in {tune.save(tuned)}")
    return 0


def neighbours():
    """A warning if other processes kept this machine busy, as far as the system says."""
    try:
        load = os.getloadavg()[0]
    except (OSError, AttributeError):
        return None
    from .. import machine

    cpus = len(machine.allowed_cpus())
    # the last minute holds at most some 20 s of our own, on every CPU
    return f"the machine was busy (load {load:.1f} on {cpus} CPUs): better measured again when it is quiet" if load > 0.75 * cpus + 1 else None


@contextlib.contextmanager
def progress():
    """Yields update(share done, what): a bar on stderr if it is a terminal, silence otherwise."""
    if not (sys.stderr and sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(TextColumn("{task.description:24}"), BarColumn(), TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda share, what: bar.update(task, completed=share, description=what)


def show(tuned, figures, usual) -> None:
    """The choices by shape, with the gain over the static order at each count, and the thread counts."""
    from .. import machine

    usual = (usual, usual) if usual else machine.threads()
    header = ("matrix", "1 token", "few, from", "many, from", "gain over the static order")
    lines = []
    for (kind, k, rows), c in sorted(tuned.shapes.items()):
        gains = ", ".join(f"{1 / r:.2f}x at {n}" for n, r in sorted(c.ratios.items()) if abs(r - 1) >= 0.03)
        few = f"{c.rows[1]}, {c.few}" if c.few < c.many else "-"
        many = f"{c.rows[2]}, {c.many}" if c.many < 1 << 20 else "-"
        lines.append((f"{kind} {k} x {rows}", c.rows[0], few, many, gains or "none"))
    table(header, lines)
    for n, name, before in ((1, "generation", usual[0]), (max(figures), "prompts", usual[1])):
        times = figures[n]
        chosen = dict(zip((1, max(figures)), next(iter(tuned.models.values()))))[n]
        tried = ", ".join(f"{t}: {n / s:.1f} tokens/s" for t, s in sorted(times.items()))
        print(f"threads for {name}: {chosen}{'' if chosen == before else f' instead of {before}'} ({tried}, of the layers measured)")


def table(header, lines) -> None:
    """A rich table on a terminal, aligned columns elsewhere."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        shown = Table(*header)
        for line in lines:
            shown.add_row(*line)
        Console().print(shown)
        return
    widths = [max(len(line[i]) for line in [header, *lines]) for i in range(len(header))]
    for line in [header, *lines]:
        print("  ".join(cell.ljust(w) for cell, w in zip(line, widths)).rstrip())

"""pyengine-cli compare: quantizations of a model side by side on the user's own text, as a table, JSON and a plot.

The computing is pyengine/evaluate.py's. Imported by the command line only; matplotlib only for --plot.
"""
import os

from ..errors import PyengineError
from . import arguments
from .perplexity import progress, text_of, window

EPILOG = """\
KL is how far the distribution of the next token moves from the first file's, in nats, over the second half of every
window of -c tokens; "same best" is how often both find the same token likeliest. Take a text like those the model will
read and write, of 5,000 tokens or more: what a quantization loses on prose, code and another language differs.
"""
PLOT_KINDS = (".png", ".svg", ".pdf")


def parser():
    p = arguments.parser("compare", "Say what files of one model lose against the first, and what they gain in size and speed.", epilog=EPILOG)
    p.add_argument("reference", metavar="REFERENCE", help="the file the others are held against, usually F16, BF16 or F32")
    p.add_argument("others", nargs="+", metavar="MODEL", help="other files of the same model, or names of the catalog")
    p.add_argument("-f", "--file", metavar="TEXT", help="a text file; - is stdin (default)")
    p.add_argument("-c", "--ctx-size", type=int, default=512, metavar="N", help="tokens of a window (default 512)")
    p.add_argument("--chunks", type=int, metavar="N", help="windows to take at most (default: all)")
    p.add_argument("-t", "--threads", type=int, default=-1, metavar="N", help="threads that generate; -1: as each model's default")
    p.add_argument("-tb", "--threads-batch", type=int, default=-1, metavar="N", help="threads for windows and prompts")
    p.add_argument("-ctk", "--cache-type-k", default="f16", metavar="TYPE", help="type of the KV cache: f16 (default), q8_0 or q4_0")
    p.add_argument("--no-speed", action="store_true", help="do not measure tokens per second")
    p.add_argument("--plot", metavar="FILE", help="draw KL against size, coloured by speed: .png, .svg or .pdf (needs matplotlib)")
    p.add_argument("--json", action="store_true", help="one JSON object")
    p.add_argument("-q", "--quiet", action="store_true", help="no progress")
    return p


def main(argv) -> int:
    args = parser().parse_args(argv)
    if args.plot is not None:
        check_plot(args.plot)                # before minutes of computing, not after
    from ..evaluate import compare

    with progress(args.quiet) as update:
        found = compare(args.reference, args.others, text_of(args.file), n_ctx=window(args.ctx_size), chunks=args.chunks, speed=not args.no_speed,
                        progress=update, n_threads=None if args.threads < 0 else args.threads,
                        n_threads_batch=None if args.threads_batch < 0 else args.threads_batch, kv_type=args.cache_type_k)
    if args.plot is not None:
        plot(found, args.plot)
    if args.json:
        import json

        print(json.dumps(found.as_dict()))
    else:
        from .tune import table

        table(HEADER, [row(m, m is found.reference) for m in found.models])
        print(f"{found.scored} tokens scored: the second half of {found.windows} windows of {found.n_ctx}; KL in nats against {found.reference.name}"
              + (f"; {found.unused} of the text's {found.tokens} tokens are in no window" if found.unused else ""))
    return 0


HEADER = ("model", "MB", "bits/weight", "perplexity", "KL mean", "KL 99 %", "KL max", "same best", "generation t/s", "prompt t/s")


def row(m, reference: bool) -> tuple:
    def speed(rate):
        return "-" if rate is None else f"{rate:.1f}" if rate < 100 else f"{rate:.0f}"

    kl = ("-",) * 3 if reference else (f"{m.kl:.5f} ± {m.kl_error:.5f}", f"{m.kl_99:.4f}", f"{m.kl_max:.3f}")
    return (m.name, f"{m.size / 1e6:.1f}", f"{m.bits_per_weight:.2f}", f"{m.perplexity:.3f} ± {m.error:.3f}", *kl,
            "-" if reference else f"{100 * m.same_best:.2f} %", speed(m.generation), speed(m.prompt))


# ---- the plot ---------------------------------------------------------------------------


def check_plot(path: str) -> None:
    """One line before anything is computed if the plot could not be drawn afterwards."""
    if not path.lower().endswith(PLOT_KINDS):
        raise SystemExit(f"--plot: found {path!r}, expected a name that ends in {', '.join(PLOT_KINDS)}")
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise SystemExit(f"--plot: there is no folder {folder!r}")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise PyengineError("--plot needs matplotlib: pip install 'pyengine-gguf[plot]'") from None


def plot(found, path: str) -> None:
    """Mean KL against size, both as they are read: further left is smaller, further down is closer to the reference."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    models = found.models[1:]
    names = shortened([m.name for m in found.models])[1:]
    with pyplot.rc_context({"svg.hashsalt": "pyengine", "svg.fonttype": "none", "font.size": 9}):
        figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
        rates = [m.generation for m in models]
        timed = all(rate is not None for rate in rates)
        colours = dict(c=rates, cmap="viridis") if timed else {}
        dots = axes.scatter([m.size / 1e6 for m in models], [m.kl for m in models], s=45, zorder=3, **colours)
        away = [m.kl for m in models if m.kl > 0]
        if len(away) == len(models):
            axes.set_yscale("log")
        elif away:                           # a file of the same weights lies at 0
            axes.set_yscale("symlog", linthresh=min(away))
        axes.margins(x=0.12, y=0.1)
        axes.set_xlabel("size, MB")
        axes.set_ylabel(f"mean KL to {found.reference.name}, nats")
        axes.grid(alpha=0.3)
        if timed:
            figure.colorbar(dots, label="generation, tokens/s")
        figure.canvas.draw()                 # the layout is known from here on
        spots = axes.transData.transform([(m.size / 1e6, m.kl) for m in models])
        for i, (m, name, (x, y)) in enumerate(zip(models, names, spots)):
            crowded = any((0, i) < (other - x, j) and other - x < 60 and abs(at - y) < 25 for j, (other, at) in enumerate(spots) if j != i)
            axes.annotate(name, (m.size / 1e6, m.kl), xytext=(-5 if crowded else 5, 4), textcoords="offset points", ha="right" if crowded else "left")
        figure.savefig(path, metadata={"Date": None} if path.lower().endswith(".svg") else None, dpi=150)
        pyplot.close(figure)


def shortened(names: list) -> list:
    """Without what all names begin with, up to the last sign that parts words: what is left is the quantization."""
    common = os.path.commonprefix(names)
    cut = max((common.rfind(sign) for sign in ".-"), default=-1) + 1
    return [name[cut:] or name for name in names]

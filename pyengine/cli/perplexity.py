"""pyengine-cli perplexity: how well a model foretells a text. The computing is pyengine/evaluate.py's.

Imported by the command line only.
"""
import contextlib
import sys

from . import arguments

EPILOG = """\
The text is -f FILE, or what comes by stdin, taken byte for byte. It is cut into windows of -c tokens and the second half
of each is scored, as llama.cpp's tool does: compare figures only where text and window are the same.
"""


def parser():
    p = arguments.parser("perplexity", "Measure how well a model foretells a text: lower is better, the size of the vocabulary is chance.", epilog=EPILOG)
    p.add_argument("-f", "--file", metavar="TEXT", help="a text file; - is stdin (default)")
    p.add_argument("--chunks", type=int, metavar="N", help="windows to take at most (default: all)")
    p.add_argument("--stride", type=int, metavar="N", help="windows begin N tokens apart and the last N tokens of each are scored")
    p.add_argument("--json", action="store_true", help="one JSON object")
    arguments.add_model(p, profile=False)
    p.set_defaults(ctx_size=512, profile=False)
    return p


def main(argv) -> int:
    args = parser().parse_args(argv)
    from ..evaluate import perplexity

    with progress(args.quiet) as update:
        found = perplexity(arguments.model_path(args), text_of(args.file), n_ctx=window(args.ctx_size), stride=args.stride, chunks=args.chunks,
                           progress=None if update is None else lambda done, n, value, error: update(done, n, estimate(value, error)),
                           **settings(args))
    if args.json:
        import json

        print(json.dumps(found.as_dict()))
        return 0
    scored = f"the last {found.stride}" if found.stride else "the second half"
    print(f"perplexity {estimate(found.perplexity, found.error)} over {found.scored} tokens: {scored} of {found.windows} windows of {found.n_ctx}"
          + (f"; {found.unused} of the text's {found.tokens} tokens are in none" if found.unused else ""))
    return 0


def estimate(value: float, error: float) -> str:
    return f"{value:.4f} ± {error:.4f}"


def window(n_ctx) -> int:
    if not isinstance(n_ctx, int) or n_ctx < 4:
        raise SystemExit(f"-c: found {n_ctx}, expected the number of tokens of a window, at least 4")
    return n_ctx


def settings(args) -> dict:
    """Options of the model as arguments of Llama."""
    more = arguments.llama_settings(args)
    del more["n_ctx"], more["profile"]
    return more


def text_of(path) -> bytes:
    if path in (None, "-"):
        if sys.stdin is None or sys.stdin.isatty():
            raise SystemExit("-f: no text was given: expected a file, or a text by stdin")
        return sys.stdin.buffer.read()
    with open(path, "rb") as f:
        return f.read()


@contextlib.contextmanager
def progress(quiet: bool = False):
    """Yields update(done, of, text): a bar on stderr if it is a terminal; None otherwise."""
    if quiet or not (sys.stderr and sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"), TimeRemainingColumn(), TextColumn("{task.description}"),
                  console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("opening", total=1)
        yield lambda done, n, text: bar.update(task, completed=done, total=n, description=text)

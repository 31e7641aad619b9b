"""pyengine-cli quantize: writes a model in another type, with a bar, and a table of what came of it.

Words options and results; pyengine/convert.py does the work. Imported by the command line only.
"""
import argparse
import re
import sys

from .. import mixes
from ..convert import Report, quantize
from . import arguments


def parser():
    p = arguments.parser("quantize", "Write a model in another weight type.",
                         epilog="types: " + ", ".join(mixes.known()) + "\ndocs/quantize.md says which one to take.")
    p.add_argument("input", metavar="IN", help="a GGUF file in F32, F16 or BF16 (the first part of a split one)")
    p.add_argument("output", metavar="OUT", help="the file to write; with a split, its name without -00001-of-0000N.gguf")
    p.add_argument("type", metavar="TYPE", help="Q4_K_M, Q8_0, ... in any case; see below")
    g = p.add_argument_group("types")
    g.add_argument("--pure", action="store_true", help="one type for all matrices, without the mix's exceptions")
    g.add_argument("--output-tensor-type", metavar="TYPE", help="of output.weight, or of the embeddings that stand in for it")
    g.add_argument("--token-embedding-type", metavar="TYPE", help="of token_embd.weight")
    g.add_argument("--tensor-type", action="append", default=[], metavar="REGEX=TYPE",
                   help="of the tensors in whose name the expression is found; the first that is found counts; may be repeated")
    g.add_argument("--imatrix", metavar="FILE", help="an importance matrix of llama-imatrix, in its GGUF form")
    g.add_argument("--requantize", "--allow-requantize", action="store_true", help="take an input that is quantized already")
    g = p.add_argument_group("files")
    g.add_argument("--keep-split", action="store_true", help="as many files as the input has")
    g.add_argument("--split-max-size", type=_size, metavar="N(K|M|G)", help="several files of at most this size, in units of 1000 (a tensor is never cut)")
    g.add_argument("--force", action="store_true", help="replace files that are there")
    g.add_argument("--dry-run", action="store_true", help="say what would be made, tensor by tensor, and write nothing")
    p.add_argument("-t", "--threads", type=int, metavar="N", help="-1 (default): all cores within the quota; no byte depends on it")
    p.add_argument("-q", "--quiet", action="store_true", help="no bar and no table")
    return p


def _size(text: str) -> int:
    found = re.fullmatch(r"(\d{1,12})([KMG]?)", text.upper())
    if not found:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected bytes as 500M or 4G")
    return int(found[1]) * {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3}[found[2]]


def main(argv) -> int:
    args = parser().parse_args(argv)
    pairs = []
    for text in args.tensor_type:
        pattern, found, kind = text.rpartition("=")
        if not found:
            raise SystemExit(f"--tensor-type {text!r}: expected REGEX=TYPE, as in ffn_down=Q6_K")
        pairs.append((pattern, kind))
    show = _Bar(args.quiet or args.dry_run)
    with show:
        report = quantize(args.input, args.output, args.type, requantize=args.requantize, pure=args.pure,
                          output_tensor_type=args.output_tensor_type, token_embedding_type=args.token_embedding_type,
                          tensor_types=pairs, imatrix=args.imatrix, keep_split=args.keep_split,
                          split_max_size=args.split_max_size, threads=None if args.threads == -1 else args.threads, force=args.force,
                          dry_run=args.dry_run, progress=show)
    if not args.quiet:
        for line in (tensors(report) if args.dry_run else ()):
            print(line)
        for line in table(report, args.dry_run):
            print(line)
    return 0


class _Bar:
    """A bar where stderr is a terminal, a line per tenth where it is a log."""

    def __init__(self, quiet: bool):
        self.quiet, self.bar, self.update, self.tenth = quiet, None, None, 0

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self.bar is not None:
            self.bar.__exit__(*exc)

    def __call__(self, done: int, total: int) -> None:
        if self.quiet or sys.stderr is None:
            return
        if sys.stderr.isatty():
            if self.bar is None:
                from ..catalog import bar

                self.bar = bar("quantizing", total)
                self.update = self.bar.__enter__()
            self.update(done)
        elif done * 10 // total > self.tenth:
            self.tenth = done * 10 // total
            print(f"quantize: {done / 1e6:.0f} of {total / 1e6:.0f} MB", file=sys.stderr, flush=True)


def tensors(report: Report):
    wide = max((len(t.name) for t in report.tensors), default=0)
    for t in report.tensors:
        yield (f"{t.name:{wide}}  {'x'.join(map(str, t.shape)):>14}  {t.before:>6} -> {t.after:6}  "
               f"{t.nbytes_before / 1e6:9.2f} -> {t.nbytes_after / 1e6:8.2f} MB")


def table(report: Report, dry_run: bool = False):
    for kind, n in report.counts.items():
        size = sum(t.nbytes_after for t in report.tensors if t.after == kind)
        yield f"{kind:8} {n:5} tensors {size / 1e6:10.2f} MB"
    yield (f"{report.type}: {report.bytes_before / 1e6:.1f} MB of weights -> {report.bytes_after / 1e6:.1f} MB, "
           f"{report.bits_per_weight:.2f} bits per weight" + ("" if dry_run else f", {report.seconds:.1f} s"))
    for path in report.paths:
        yield path

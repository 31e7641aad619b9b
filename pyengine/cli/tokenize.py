"""pyengine-cli tokenize: text to token ids and pieces, and back. Reads a file's header only.

Imported by the command line only.
"""
import sys

from . import arguments

EPILOG = """\
The text is -p, or -f FILE, or what comes by stdin, taken byte for byte: no escapes, no byte-order mark or final
newline removed. Each line of the output is an id, the kind of token where it is not normal, and its bytes.
"""


def parser():
    p = arguments.parser("tokenize", "Show the tokens of a text.", epilog=EPILOG)
    p.add_argument("-m", "--model", metavar="MODEL", help="a GGUF file or a name of the catalog (default: the catalog's default)")
    p.add_argument("-p", "--prompt", metavar="TEXT")
    p.add_argument("-f", "--file", metavar="FILE", help="- is stdin")
    p.add_argument("--ids", action="store_true", help="print the ids only, as [1, 2, 3]")
    p.add_argument("--show-count", action="store_true", help="print the number of tokens at the end")
    p.add_argument("--no-bos", action="store_true", help="without a beginning-of-sequence token, whatever the file says")
    p.add_argument("--special", action="store_true", help="texts of control tokens become those tokens")
    p.add_argument("--decode", metavar="IDS", help="print the text of these ids instead: 1,2,3 or [1, 2, 3]")
    return p


def main(argv) -> int:
    args = parser().parse_args(argv)
    if sum(v is not None for v in (args.prompt, args.file, args.decode)) > 1:
        raise SystemExit("-p, -f and --decode: expected one of them")
    from .. import catalog, tokenizer
    from ..gguf import GGUF

    with GGUF(catalog.resolve(args.model or catalog.default())) as g:
        t = tokenizer.load(g)
        if args.decode is not None:
            _write(t.decode(_ids(args.decode, t.n_vocab), special=args.special) + "\n")
            return 0
        ids = t.encode(_read(args), special=args.special, add_bos=False if args.no_bos else None)
        if args.ids:
            print(ids)
        else:
            for i in ids:
                kind = t.kind(i)
                print(f"{i:>8}  {'' if kind == 'normal' else kind:12}  {_shown(t.piece(i, special=True))}")
        if args.show_count:
            print(f"{len(ids)} tokens")
    return 0


def _read(args):
    if args.prompt is not None:
        return args.prompt  # bytes of the command line that are no UTF-8 are surrogates here, and taken as such
    if args.file is not None and args.file != "-":
        with open(args.file, "rb") as f:
            return f.read()
    return sys.stdin.buffer.read()


def _ids(text, n_vocab):
    try:
        return [int(item) for item in text.strip().strip("[]").replace(",", " ").split()]
    except ValueError:
        raise SystemExit(f"--decode: found {text[:60]!r}, expected ids from 0 to {n_vocab - 1}") from None


def _shown(piece):
    """Bytes as a person reads them: quoted, with escapes for what does not print or is half a character."""
    try:
        return repr(piece.decode("utf-8"))
    except UnicodeDecodeError:
        return repr(piece)[1:]


def _write(text):
    sys.stdout.write(text)

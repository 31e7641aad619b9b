"""pyengine-cli embed: texts to vectors, a line each; or, with --rerank, documents by how well they answer a query.

Imported by the command line only.
"""
import json
import sys

from . import arguments

EPILOG = """\
A text is -p, which may be repeated, or a line of -f FILE or of stdin. Each vector is a line of JSON; with -o all of them are
written as a NumPy array. With --rerank QUERY the texts are documents, and each line of the output is a score, the place of the
document among the texts (from 0) and its text, best first.
"""


def parser():
    p = arguments.parser("embed", "Make vectors of texts, or rank documents.", epilog=EPILOG)
    arguments.add_model(p)
    p.add_argument("-p", "--prompt", action="append", default=[], metavar="TEXT", help="a text; may be repeated")
    p.add_argument("-f", "--file", metavar="FILE", help="a text in each line; - is stdin")
    p.add_argument("-o", "--output", metavar="FILE.npy", help="write float32 [texts, dimensions] here instead")
    p.add_argument("--pooling", choices=("mean", "cls", "last"), help="default: what the file says")
    p.add_argument("--dimensions", type=int, metavar="N", help="only the first so many, for models trained for that")
    p.add_argument("--no-normalize", action="store_true", help="leave the vectors' lengths as they are")
    p.add_argument("--rerank", metavar="QUERY", help="rank the texts, with a reranker")
    p.add_argument("--top-n", type=int, metavar="N", help="with --rerank: the best so many")
    return p


def main(argv) -> int:
    args = parser().parse_args(argv)
    given = [name for name, value in (("-o", args.output), ("--pooling", args.pooling), ("--dimensions", args.dimensions),
                                      ("--no-normalize", args.no_normalize)) if value]
    if args.rerank is not None and given:
        raise SystemExit(f"{given[0]}: goes with vectors, and --rerank gives scores")
    if args.rerank is None and args.top_n is not None:
        raise SystemExit("--top-n: goes with --rerank")
    texts = _texts(args)
    with arguments.load(args) as llm:
        if args.rerank is not None:
            for index, score in llm.rerank(args.rerank, texts, top_n=args.top_n):
                print(f"{score:10.6f}  {index:>6}  {texts[index]}")
            return 0
        vectors = llm.embed(texts, normalize=not args.no_normalize, dimensions=args.dimensions, pooling=args.pooling)
    if args.output is not None:
        import numpy

        with open(args.output, "wb") as f:
            numpy.save(f, vectors)
        return 0
    for vector in vectors:
        print(json.dumps(vector.tolist()))
    return 0


def _texts(args) -> list:
    if args.prompt and args.file is not None:
        raise SystemExit("-p and -f: expected one of them")
    if args.prompt:
        return args.prompt
    if args.file is not None and args.file != "-":
        with open(args.file, "rb") as f:
            raw = f.read()
    else:
        raw = sys.stdin.buffer.read()
    try:
        texts = raw.decode("utf-8").split("\n")
    except UnicodeDecodeError as e:
        raise SystemExit(f"{args.file or 'stdin'}: byte {raw[e.start]:#04x} at {e.start} is not UTF-8") from None
    texts = [t.removesuffix("\r") for t in texts[:-1] + ([texts[-1]] if texts[-1] else [])]
    if not texts:
        raise SystemExit("no text: expected -p TEXT, or lines in -f FILE or stdin")
    return texts

"""pyengine-cli explain: prints the program a model compiles to. Opens the header only; runs nothing.

Imported by the command line only.
"""
from . import arguments


def parser():
    p = arguments.parser("explain", "Print the compiled program: op, tensors, types, shapes, kernel, arena offset, bytes.")
    p.add_argument("path", nargs="?", metavar="MODEL", help="a GGUF file or a name of the catalog")
    p.add_argument("-m", "--model", metavar="MODEL")
    p.add_argument("-c", "--ctx-size", type=int, default=0, metavar="N", help="context per sequence; 0: the model's own")
    p.add_argument("-b", "--batch-size", type=int, default=512, metavar="N")
    p.add_argument("--no-fuse", action="store_true", help="the program before fusion")
    p.add_argument("--isa", metavar="NAME", help="plan for a tier: scalar, avx2, avx512 ...")
    p.add_argument("--no-tune", action="store_true", help="ignore what `tune` remembers of this machine")
    return p


def main(argv) -> int:
    args = parser().parse_args(argv)
    from ..gguf import GGUF
    from ..llama import find
    from .. import plan, tune

    tuned = tune.Tuned(reason="switched off by --no-tune") if args.no_tune else tune.load(args.isa)
    with GGUF(find(args.path or args.model or arguments.default_model())) as gguf:
        n_ctx = args.ctx_size or gguf.get_int(f"{gguf.arch}.context_length", default=1, lo=1)
        program = plan.compile(gguf, n_ctx=n_ctx, max_tokens=args.batch_size, fuse=not args.no_fuse, isa=args.isa, tuned=tuned)
        for line in program.explain():
            print(line)
        for line in kernels(program, tuned):
            print(line)
    return 0


def kernels(program, tuned):
    """For each matrix shape the rows that were chosen, and why."""
    from .. import tune

    if tuned.reason:
        yield f"tune: {tuned.reason}"
    else:
        threads = tuned.threads(program.gguf)
        yield f"tune: {tuned.path}" + (f"; threads {threads[0]} for generation, {threads[1]} for prompts" if threads else "; this model's threads are not among it")
    seen = {}
    for i in program.instrs:
        if i.kernels:
            seen.setdefault(tune.shape_of(i), i.kernels)
    for (kind, k, rows), c in sorted(seen.items()):
        yield f"kernels of {kind} {k} x {rows}: {' | '.join(c.names)}, few from {c.few}, many from {c.many}: {c.why}"

"""pyengine-cli fit: the memory a model needs, whether it is there, and what to change if not. Reads the header only.

facts() counts (also for --json), lines() says it. The counting itself, and every load's, is pyengine/fit.py's.
Exit code 1: it does not fit. Imported by the command line only.
"""
import re

from ..errors import MemoryBudgetError, RequestError
from . import arguments

CONTEXTS = (2048, 8192, 32768, 131072)       # shown with their KV cache, up to the model's own


def parser():
    p = arguments.parser("fit", "Say what memory a model needs, whether it is there, and what to change if not. Loads nothing.")
    p.add_argument("path", nargs="?", metavar="MODEL", help="a GGUF file or a name of the catalog")
    p.add_argument("-m", "--model", metavar="MODEL")
    p.add_argument("--memory", type=memory, metavar="SIZE", help="as if so much were available: 1G, 900M (default: what is available now)")
    p.add_argument("-c", "--ctx-size", type=arguments.context, default=0, metavar="N", help="context per sequence; 0 or auto: the longest that fits")
    p.add_argument("-b", "--batch-size", type=int, default=512, metavar="N", help="most tokens of a step (default 512)")
    p.add_argument("-np", "--parallel", type=int, default=4, metavar="N", help="sequences at one time (default 4, as Llama's max_seqs)")
    p.add_argument("--cache-tokens", type=int, metavar="N", help="positions of the KV cache for all sequences together (default: the context of each)")
    p.add_argument("-t", "--threads", type=int, default=-1, metavar="N", help="threads; -1: those that would be made here")
    p.add_argument("-ctk", "--cache-type-k", default="f16", metavar="TYPE", help="type of the KV cache: f16 (default), q8_0 or q4_0")
    p.add_argument("--no-mmap", action="store_true", help="weights in private memory")
    p.add_argument("--json", action="store_true", help="one JSON object")
    return p


def memory(text: str) -> int:
    """Bytes of "1G", "1.5GiB", "900M", "123456"; units are of 1024."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip(), re.IGNORECASE)
    if not found:
        raise ValueError(text)               # argparse words it
    return int(float(found[1]) * 1024 ** " kmgt".index(found[2].lower() or " "))


def main(argv) -> int:
    args = parser().parse_args(argv)
    for option, value in (("-b", args.batch_size), ("-np", args.parallel), ("--cache-tokens", args.cache_tokens)):
        if value is not None and value < 1:
            raise SystemExit(f"{option}: found {value}, expected at least 1")
    from ..gguf import GGUF
    from ..llama import find

    with GGUF(find(args.path or args.model or arguments.default_model())) as gguf:
        report = facts(gguf, args)
    if args.json:
        import json

        print(json.dumps(report, indent=1))
    else:
        from .doctor import show

        show(lines(report))
    return 0 if report["fits"] else 1


def facts(gguf, args) -> dict:
    from .. import fit, machine

    free = args.memory if args.memory is not None else fit.free()
    made = args.threads if args.threads > 0 else max(machine.room_to_grow(machine.threads()))
    n_ctx = args.ctx_size if args.ctx_size != "auto" else 0
    settings = dict(n_threads=made, private=args.no_mmap, kv_type=args.cache_type_k, max_seqs=args.parallel, max_tokens=args.batch_size,
                    max_wanted=max(32, args.parallel))
    trained = fit.trained(gguf)
    asked = n_ctx or trained
    out = {"path": str(gguf.path), "arch": gguf.arch, "trained": trained, "asked": n_ctx or None, "kv_type": args.cache_type_k,
           "available": free, "usable": None if free is None else fit.usable(free), "sequences": args.parallel, "n_batch": args.batch_size}
    try:
        found, out["reason"] = fit.decide(gguf, n_ctx=n_ctx or None, free=free, cache_tokens=args.cache_tokens, **settings), None
    except MemoryBudgetError as e:
        found, out["reason"] = None, str(e)
    out["fits"] = found is not None
    program = found.program if found else fit.plan.compile(gguf, n_ctx=asked, **{k: v for k, v in settings.items() if k not in ("n_threads", "private")})
    if found is None:
        found = fit.count(program, fit.one_sequence(program), n_threads=made, private=args.no_mmap, free=free)
    out.update(n_ctx=program.n_ctx, resident=found.resident, threads=made,
               bytes={"weights": found.weights, "private": found.private, "sequence": found.sequence, "cache": found.cache,
                      "arena": found.arena, "thread": found.scratch, "other": found.other, "own": found.own, "least": found.least})
    out["contexts"] = [{"n_ctx": n, "kv_type": kv, "least": c.least, "fits": free is None or c.least <= fit.usable(free),
                        "resident": c.resident} for n, kv, c in _contexts(gguf, trained, settings, free)]
    out["instead"] = [] if free is None or out["fits"] and found.resident else fit.contexts(
        gguf, asked, fit.BESIDE_WEIGHTS if out["fits"] else fit.ALL, free=free, **settings)
    rest = None if free is None else fit.usable(free) - found.least + (found.weights if found.private else 0)
    out["quantizations"] = [] if found.resident and out["fits"] else [
        {"type": name, "bytes": size, "fits": rest is None or size <= rest} for name, size in fit.quantizations(gguf)]
    return out


def _contexts(gguf, trained, settings, free):
    from .. import fit

    settings = dict(settings)
    made, private = settings.pop("n_threads"), settings.pop("private")
    for n in sorted({min(n, trained) for n in CONTEXTS} | {trained if trained < 1 << 20 else 1 << 20}):
        for kv in fit.plan.KV_TYPES:
            try:
                program = fit.plan.compile(gguf, n_ctx=n, **{**settings, "kv_type": kv})
            except RequestError:             # head sizes that blocks do not fit
                continue
            yield n, kv, fit.count(program, fit.one_sequence(program), n_threads=made, private=private, free=free)


def lines(r: dict):
    """(name, text) pairs."""
    from ..fit import size

    b = r["bytes"]
    yield "model", f"{r['path']} ({r['arch']}), trained for {r['trained']} positions"
    yield "weights", size(b["weights"]) + (" in private memory" if b["private"] else " mapped from the file; shared, given back when memory is short")
    yield "KV cache", (f"{size(b['sequence'])} of {r['kv_type']} for a sequence of {r['n_ctx']} positions"
                       + (f", {size(b['cache'])} in all for up to {r['sequences']}" if b["cache"] > b["sequence"] else ""))
    yield "arena", f"{size(b['arena'])} for steps of up to {r['n_batch']} tokens"
    yield "threads", f"{r['threads']} with {size(b['thread'])} each"
    yield "other", f"{size(b['other'])}: header, logits, tables, state"
    yield "its own", f"{size(b['own'])} that must be free" + (f", at least {size(b['least'])}" if b["own"] > b["least"] else "")
    if r["available"] is not None:
        yield "available", f"{size(r['available'])}, of which {size(r['usable'])} may be used"
    if not r["fits"]:
        yield "verdict", f"does not fit: {r['reason']}"
    elif r["resident"]:
        yield "verdict", f"fits, weights and all, with n_ctx {r['n_ctx']}" + ("" if r["asked"] or r["n_ctx"] == r["trained"] else ", the longest that does")
    else:
        yield "verdict", (f"runs with n_ctx {r['n_ctx']}, but not all weights stay in memory: "
                          f"parts of the file are read again for every token, at the speed of the disk")
    for n, way in enumerate(r["instead"]):
        yield "" if n else "context", (f"up to {way['n_ctx']}{way['with']}: {size(way['own'])} of its own"
                                       + (", and the weights stay in memory" if r["fits"] else ""))
    for n, q in enumerate(r["quantizations"]):
        yield "" if n else "quantized", f"{q['type']} about {size(q['bytes'])}: {'fits' if q['fits'] else 'does not fit'}"
    for n, c in enumerate(r["contexts"]):
        state = "does not fit" if not c["fits"] else "fits" if c["resident"] else "fits without the weights"
        yield "" if n else "if n_ctx is", f"{c['n_ctx']:>7} {c['kv_type']:5} {size(c['least']):>9} of its own: {state}"

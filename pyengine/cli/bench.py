"""pyengine-cli bench: tokens per second of prompt processing and generation, as a table llama-bench users know.

Against other engines: bench/compare.py. Imported by the command line only.
"""
from ..evaluate import rate
from . import arguments
from .run import print_profile


def parser():
    p = arguments.parser("bench", "Measure prompt processing (pp) and generation (tg).")
    p.add_argument("-p", "--n-prompt", default="512", metavar="N,...", help="prompt lengths (default 512; 0: none)")
    p.add_argument("-n", "--n-gen", default="64", metavar="N,...", help="tokens to generate (default 64; 0: none)")
    p.add_argument("-r", "--repetitions", type=int, default=5, metavar="N")
    p.add_argument("-o", "--output", choices=("md", "json"), default="md")
    arguments.add_model(p)
    return p


def main(argv) -> int:
    args = parser().parse_args(argv)
    prompts, gens = _numbers("-p", args.n_prompt), _numbers("-n", args.n_gen)
    if args.repetitions < 1:
        raise SystemExit(f"-r: found {args.repetitions}, expected at least 1")
    with arguments.load(args, prefix_cache=False, speculate=None) as model:
        facts = _facts(model)
        if args.output == "md":
            print("| model | size | params | backend | threads | test | t/s |\n| --- | ---: | ---: | --- | ---: | --- | ---: |")
        rows = []
        for name, n_prompt, n_gen in [(f"pp{n}", n, 0) for n in prompts] + [(f"tg{n}", 1, n) for n in gens]:
            rates = [rate(model, n_prompt, n_gen, seed) for seed in range(args.repetitions + 1)][1:]    # the first warms up
            mean = sum(rates) / len(rates)
            spread = (sum((r - mean) ** 2 for r in rates) / max(1, len(rates) - 1)) ** 0.5
            facts["threads"] = model.n_threads if n_gen else model.n_threads_batch
            rows.append(dict(facts, test=name, tokens_per_second=mean, stddev=spread, samples=rates))
            if args.output == "md":
                print(f"| {facts['model']} | {facts['size'] / (1 << 20):.2f} MiB | {facts['params'] / 1e6:.2f} M | CPU "
                      f"| {facts['threads']} | {name} | {mean:.2f} ± {spread:.2f} |", flush=True)
        if args.output == "json":
            import json

            print(json.dumps(rows))
        if args.profile:
            print_profile(model)
    return 0


def _facts(model) -> dict:
    gguf = model.gguf
    params = size = 0
    kinds = {}
    for t in gguf.tensors.values():
        size += t.nbytes
        n = t.shape[0] * t.n_rows
        params += n
        kinds[t.type_name] = kinds.get(t.type_name, 0) + n
    main_type = max(kinds, key=kinds.get) if kinds else "?"
    name = gguf.get_str("general.name", default=None) or gguf.arch
    return {"model": f"{name.replace('|', ' ')} {main_type}", "size": size, "params": params, "threads": model.n_threads}


def _numbers(option: str, text: str) -> list:
    try:
        numbers = [int(part) for part in text.split(",") if part]
    except ValueError:
        numbers = [-1]
    if any(n < 0 for n in numbers):
        raise SystemExit(f"{option} {text!r}: expected whole numbers with commas between them")
    return [n for n in numbers if n]

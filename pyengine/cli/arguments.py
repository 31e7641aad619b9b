"""Options that run, chat and bench share, under llama.cpp's names where the meaning is the same.

Knows options and how they become arguments of Llama and generate(); runs nothing.
Imported by the subcommands only.
"""
import argparse
import re


def parser(command: str, description: str, **more) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(prog=f"pyengine-cli {command}".strip(), description=description, allow_abbrev=False,
                                   formatter_class=argparse.RawDescriptionHelpFormatter, **more)


def context(text: str):
    """-c: a number or "auto"."""
    return text if text == "auto" else int(text)


def add_model(p: argparse.ArgumentParser, profile: bool = True) -> None:
    g = p.add_argument_group("model")
    g.add_argument("-m", "--model", metavar="MODEL", help="a GGUF file or a name of the catalog (default: the catalog's default)")
    g.add_argument("-hf", "--hf-repo", metavar="USER/REPO[:QUANT]", help="a model of the Hugging Face hub")
    g.add_argument("-c", "--ctx-size", type=context, default=0, metavar="N", help="context per sequence; 0: the model's own; auto: as much of it as fits into memory")
    g.add_argument("-t", "--threads", type=int, default=-1, metavar="N", help="threads that generate; -1: what was tuned, else performance cores within the quota")
    g.add_argument("-tb", "--threads-batch", type=int, default=-1, metavar="N", help="threads for prompts and batches; -1: as --threads if given, else all cores within the quota")
    g.add_argument("-b", "--batch-size", type=int, default=512, metavar="N", help="most tokens of a step (default 512)")
    g.add_argument("-ctk", "--cache-type-k", default="f16", metavar="TYPE", help="type of the KV cache: f16 (default), q8_0 or q4_0")
    g.add_argument("-ctv", "--cache-type-v", metavar="TYPE", help="must be the same (default: that of K)")
    g.add_argument("--no-mmap", action="store_true", help="read the weights into private memory")
    g.add_argument("--mlock", action="store_true", help="keep the weights from being swapped out")
    g.add_argument("--no-tune", action="store_true", help="ignore what `tune` remembers of this machine")
    if profile:
        g.add_argument("--profile", action="store_true", help="time every instruction; printed at the end")
    g.add_argument("-v", "--verbose", action="store_true", help="say what was loaded and chosen")
    g.add_argument("-q", "--quiet", action="store_true", help="nothing on stderr but errors")


def add_sampling(p: argparse.ArgumentParser) -> None:
    g = p.add_argument_group("generation")
    g.add_argument("-n", "--predict", "--n-predict", type=int, default=-1, metavar="N",
                   help="most tokens to generate; -1: to the end of the turn or the context")
    g.add_argument("-s", "--seed", type=int, default=-1, metavar="N", help="-1: drawn")
    g.add_argument("--temp", "--temperature", dest="temp", type=float, default=0.8, metavar="T", help="0: greedy (default 0.8)")
    g.add_argument("--top-k", type=int, default=40, metavar="N", help="0: off (default 40)")
    g.add_argument("--top-p", type=float, default=0.95, metavar="P", help="1: off (default 0.95)")
    g.add_argument("--min-p", type=float, default=0.05, metavar="P", help="0: off (default 0.05)")
    g.add_argument("--typical-p", "--typical", dest="typical_p", type=float, default=1.0, metavar="P", help="1: off (default 1)")
    g.add_argument("--repeat-last-n", type=int, default=64, metavar="N",
                   help="tokens the repeat penalty looks at; 0: off, -1: all (default 64)")
    g.add_argument("--repeat-penalty", type=float, default=1.0, metavar="X", help="1: off (default 1)")
    g.add_argument("--presence-penalty", type=float, default=0.0, metavar="X")
    g.add_argument("--frequency-penalty", type=float, default=0.0, metavar="X")
    g.add_argument("-l", "--logit-bias", action="append", default=[], metavar="TOKEN(+|-)BIAS",
                   help="add to the logit of a token id: 15043+1, 15043-inf; may be repeated")
    g.add_argument("-r", "--reverse-prompt", action="append", default=[], metavar="TEXT", help="stop at this text; may be repeated")
    g.add_argument("--ignore-eos", action="store_true", help="go on after the end of the turn")


def load(args, **more):
    """The model that the options name; more: further arguments of Llama."""
    from ..llama import Llama

    return Llama(model_path(args), **llama_settings(args), **more)


def model_path(args) -> str:
    """What -m, -hf or the catalog's default name; fetched if it has to be."""
    if args.hf_repo is None:
        return default_model() if args.model is None else args.model
    if args.model is not None:
        raise SystemExit("-m and -hf name two models: expected one")
    from .. import catalog

    return catalog.hub(args.hf_repo)


def llama_settings(args) -> dict:
    """The options of add_model() as arguments of Llama."""
    if args.cache_type_v not in (None, args.cache_type_k):
        raise SystemExit(f"-ctk is {args.cache_type_k} and -ctv is {args.cache_type_v}: expected one kv_type for both")
    return dict(n_ctx=args.ctx_size, n_threads=None if args.threads < 0 else args.threads,
                n_threads_batch=None if args.threads_batch < 0 else args.threads_batch, n_batch=args.batch_size,
                kv_type=args.cache_type_k, mmap=not args.no_mmap, mlock=args.mlock, verbose=args.verbose,
                profile=args.profile, tune=not args.no_tune)


def default_model() -> str:
    from .. import catalog

    return catalog.default()


def sampling(args) -> dict:
    """Keyword arguments of generate() and chat()."""
    return dict(
        max_tokens=None if args.predict == -1 else args.predict, seed=None if args.seed == -1 else args.seed,
        temperature=args.temp, top_k=args.top_k, top_p=args.top_p, min_p=args.min_p, typical_p=args.typical_p,
        repeat_penalty=args.repeat_penalty, repeat_last_n=args.repeat_last_n, presence_penalty=args.presence_penalty,
        frequency_penalty=args.frequency_penalty, logit_bias=_bias(args.logit_bias), stop=args.reverse_prompt or None,
        ignore_eos=args.ignore_eos)


def json_object(text: str) -> dict:
    """--chat-template-kwargs."""
    import json

    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise argparse.ArgumentTypeError(f"found {text[:60]!r}, expected a JSON object: {e}") from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"found {text[:60]!r}, expected a JSON object")
    return found


def _bias(options) -> "dict | None":
    out = {}
    for text in options:
        found = re.fullmatch(r"(\d+)([+-].+)", text)
        try:
            bias = float(found[2]) if found else None
        except ValueError:
            bias = None
        if bias is None:
            raise SystemExit(f"-l {text!r}: expected TOKEN+BIAS or TOKEN-BIAS, as in 15043+1")
        out[int(found[1])] = False if bias == float("-inf") else bias     # False bans
    return out or None


_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}


def unescape(text: str) -> str:
    r"""\n, \r, \t, \', \", \\ and \xHH (bytes of UTF-8) of a command line; other backslashes stay."""
    def one(found) -> str:
        code = found[0]
        if code[1] != "x":
            return _ESCAPES[code[1]]
        raw = bytes.fromhex(code.replace("\\x", ""))
        return raw.decode("utf-8", "surrogateescape")     # the tokenizer takes such characters as the bytes they stand for

    return re.sub(r"(?:\\x[0-9a-fA-F]{2})+|\\[nrt'\"\\]", one, text)

"""pyengine-cli serve: answers requests over HTTP until it is told to end.

Options become serve.Settings and arguments of Llama; nothing is decided here but what a wrong combination of
options is. Needs the extra [server]. Imported by the command line only.
"""
import contextlib
import logging
import os
import sys
import warnings

from ..errors import RequestError
from . import arguments

EPILOG = """\
OpenAI's routes under /v1 and llama-server's (/completion, /tokenize, ...), /health, and /metrics for Prometheus.
Keys: --api-key, the variable PYENGINE_API_KEY, and --api-key-file with a line `KEY [NAME [PRIORITY]]` each; the file
is what other users of this machine cannot read. SIGTERM: what runs may finish, then exit code 0; twice: at once.
docs/serving.md says what the limits are for.
"""
NAMES = ("starlette", "uvicorn", "prometheus_client")


def parser():
    p = arguments.parser("serve", "Serve a GGUF model over HTTP.", epilog=EPILOG)
    arguments.add_model(p, profile=False)
    p.set_defaults(profile=False)
    g = p.add_argument_group("requests")
    g.add_argument("-a", "--alias", metavar="NAME", help="name that clients know the model by (default: the catalog's where -m is one of its names, else the file's)")
    g.add_argument("-np", "--parallel", "--max-seqs", type=int, default=16, metavar="N", help="requests that run at one time (default 16)")
    g.add_argument("--cache-tokens", type=int, metavar="N", help="positions of the KV cache for all requests together (default: what fits, at most a whole context for each request that runs)")
    g.add_argument("--no-prefix-cache", action="store_true", help="compute every prompt from its beginning")
    g.add_argument("--prefix-file", metavar="FILE", help="read cached prompts from FILE at the start, write them there at the end: a system prompt survives a restart")
    g.add_argument("--share-prefixes", action="store_true", help="let all keys share cached prompts; how soon an answer comes then tells what others asked")
    g.add_argument("--speculate", default="lookup", metavar="HOW", help="lookup (default), off, or the path of a small model of the same vocabulary")
    g.add_argument("--max-queue", type=int, default=256, metavar="N", help="requests that may wait; the next is a 429 (default 256)")
    g.add_argument("--max-body", type=int, default=8 << 20, metavar="BYTES", help="of a request (default 8388608)")
    g = p.add_argument_group("who may ask")
    g.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1: this machine only)")
    g.add_argument("--port", type=int, default=8080, help="0: one that is free (default 8080)")
    g.add_argument("--unix-socket", metavar="PATH", help="listen there instead")
    g.add_argument("--socket-mode", type=octal, default=0o600, metavar="OCTAL", help="of the unix socket (default 600)")
    g.add_argument("--api-key", action="append", default=[], metavar="KEY", help="may be repeated; `ps` shows it to other users, a file does not")
    g.add_argument("--api-key-file", metavar="FILE", help="a line KEY [NAME [PRIORITY]] each, priority 0 interactive or 1 batch")
    g.add_argument("--no-key", action="store_true", help="listen beyond this machine without asking for a key")
    g.add_argument("--allowed-hosts", metavar="NAMES", help="names in Host headers beside loopback ones, by commas; *: any (default: none where --host is loopback, else any)")
    g.add_argument("--cors-origin", action="append", default=[], metavar="ORIGIN", help="a web origin whose pages may call; *: any; may be repeated (default: none)")
    g = p.add_argument_group("time and connections")
    g.add_argument("--max-connections", type=int, default=1024, metavar="N", help="more get a 503 (default 1024)")
    g.add_argument("--keepalive-seconds", type=float, default=15, metavar="S", help="a silent event stream sends a comment; 0: never (default 15)")
    g.add_argument("--write-seconds", type=float, default=30, metavar="S", help="a client that reads nothing for so long is cut (default 30)")
    g.add_argument("--drain-seconds", type=float, default=30, metavar="S", help="what runs may take so long to finish after SIGTERM (default 30)")
    g.add_argument("--stall-seconds", type=float, default=300, metavar="S", help="/health is 503 when a step takes longer; 0: never (default 300)")
    g.add_argument("--log-prompts", action="store_true", help="write requests into the log; without it no text of a user is there")
    g.add_argument("--no-access-log", action="store_true", help="no line per request")
    return p


def main(argv) -> int:
    args = parser().parse_args(argv)
    check_installed()
    from ..serve import Settings
    from ..serve.run import serve

    settings = Settings(
        model=alias(args), host=args.host, keys=keys(args), allowed_hosts=hosts(args), cors_origins=tuple(args.cors_origin),
        share_prefixes=args.share_prefixes, max_body=args.max_body, max_queue=args.max_queue, keepalive_seconds=args.keepalive_seconds,
        write_seconds=args.write_seconds, drain_seconds=args.drain_seconds, stall_seconds=args.stall_seconds, log_prompts=args.log_prompts)
    check_reach(args, settings)
    check_prefix_file(args.prefix_file)
    log(args)

    def open_model():
        return arguments.load(args, max_seqs=args.parallel, cache_tokens=args.cache_tokens, prefix_cache=not args.no_prefix_cache, prefix_file=args.prefix_file,
                              speculate=None if args.speculate == "off" else args.speculate, max_queue=args.max_queue)

    return serve(open_model, settings, port=args.port, unix_socket=args.unix_socket, socket_mode=args.socket_mode,
                 max_connections=connections(args.max_connections), note=logging.getLogger("pyengine.serve").info)


def octal(text: str) -> int:
    mode = int(text, 8) if text.isascii() and text.isdigit() and not set(text) & {"8", "9"} else -1
    if not 0 <= mode <= 0o777:
        import argparse

        raise argparse.ArgumentTypeError(f"found {text!r}, expected an octal number from 0 to 777")
    return mode


def alias(args) -> "str | None":
    """The name clients know the model by; None: the file's. Who says -m smollm2 expects to ask for smollm2."""
    from .. import catalog

    if args.alias is not None or args.hf_repo is not None:
        return args.alias
    if args.model is None:
        return catalog.default()
    return args.model if args.model in catalog.models() and not os.path.isfile(args.model) else None


def check_installed() -> None:
    from importlib.util import find_spec

    missing = [name for name in NAMES if find_spec(name) is None]
    if missing:
        raise SystemExit(f"serve needs {', '.join(missing).replace('_', '-')}: pip install 'pyengine-gguf[server]'")


def keys(args):
    from ..serve.guard import Keys, new_key, parse_keys

    found = [new_key(secret, "--api-key") for secret in args.api_key]
    if "PYENGINE_API_KEY" in os.environ:         # set and empty is a mistake, not an open door
        found.append(new_key(os.environ["PYENGINE_API_KEY"], "PYENGINE_API_KEY"))
    if args.api_key_file is not None:
        with open(args.api_key_file, encoding="utf-8", errors="surrogateescape") as f:
            found += parse_keys(f.read(), args.api_key_file)
    return Keys(found) if found else None


def hosts(args):
    if args.allowed_hosts is not None:
        return tuple(name.strip() for name in args.allowed_hosts.split(","))
    return ("*",) if args.unix_socket else None          # no browser reaches a unix socket


def check_reach(args, settings) -> None:
    from ..serve.settings import loopback

    if not args.unix_socket and not loopback(args.host) and settings.keys is None and not args.no_key:
        raise RequestError(f"--host {args.host} is reached from other machines and no key is asked for: give --api-key-file, "
                           f"or --no-key if everybody who reaches it may use it", param="host")


def check_prefix_file(path) -> None:
    """It is written at the end, when nothing can be mended."""
    folder = os.path.dirname(os.path.abspath(path)) if path is not None else None
    if folder is not None and not (os.path.isdir(folder) and os.access(folder, os.W_OK)):
        raise RequestError(f"--prefix-file {path}: {folder} is no folder that can be written to", param="prefix_file")


def connections(asked: int) -> int:
    """As many as file descriptors allow: without one asyncio can neither accept nor refuse. The soft limit is raised."""
    import resource

    from ..serve.run import SPARE_CONNECTIONS

    if asked < 1:
        raise RequestError(f"--max-connections: found {asked}, expected at least 1", param="max_connections")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    own = SPARE_CONNECTIONS + 64                 # the model, the engine and the log have theirs
    if soft != resource.RLIM_INFINITY and soft < asked + own:
        most = asked + own if hard == resource.RLIM_INFINITY else min(asked + own, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
        asked = min(asked, soft - own)
        if asked < 8:
            raise RequestError(f"{soft} file descriptors (ulimit -n) are too few, expected at least {own + 8}", param="max_connections")
    return asked


def log(args) -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.ERROR if args.quiet else logging.INFO, format="%(asctime)s %(levelname).1s %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    # Lines of the log like others, without the file and line of ours that Python names.
    warnings.showwarning = lambda message, *_, **__: logging.getLogger("pyengine.serve").warning("%s", message)
    if args.no_access_log:
        logging.getLogger("pyengine.access").setLevel(logging.ERROR)

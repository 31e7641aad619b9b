"""pyengine-cli: finds the subcommand and runs it; without one, `run`.

Each subcommand is a module here with main(argv) -> exit code, imported when it is
called for, so that a command pays only for itself. Errors are one line on stderr
and exit code 1, never a traceback. Imported by the console script only.
"""
import sys

COMMANDS = {
    "run": "answer a prompt (the default)",
    "chat": "talk",
    "serve": "answer over HTTP",
    "pull": "fetch a model",
    "inspect": "show what a GGUF file holds, and say whether and how well it will run here",
    "quantize": "write a model in another weight type",
    "embed": "texts to vectors, and documents by how well they answer a query",
    "tokenize": "text to token ids and back",
    "explain": "print the compiled program of a model",
    "fit": "say what memory a model needs, and what to change if it is not there",
    "tune": "measure what is fastest on this machine, and remember it",
    "perplexity": "say how well a model foretells a text",
    "compare": "say what quantizations of a model lose on a text, and what they gain in size and speed",
    "bench": "measure prompt processing and generation",
    "doctor": "say what this machine gives and what is used of it",
}


def main(argv=None) -> int:
    argv = list(sys.argv[1:] if argv is None else argv)
    command = argv.pop(0) if argv and argv[0] in COMMANDS else "run"
    if argv and command == "run" and argv[0] == "help":
        argv[0] = "--help"
    if command == "run" and argv and not argv[0].startswith("-"):
        return fail(f"unknown command {argv[0]!r}: expected one of {', '.join(COMMANDS)}, or options of run "
                    f"(-m MODEL -p TEXT; pyengine-cli --help lists them)")
    import gc
    from importlib import import_module

    from ..errors import PyengineError

    usual = gc.get_threshold()
    gc.set_threshold(100_000, 20, 20)             # imports and plans make no garbage: looking for it took 20 ms of a start

    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):        # a terminal that lacks a character shows ? and goes on
            stream.reconfigure(errors="replace")
    try:
        return import_module(f".{command}", __name__).main(argv)
    except SystemExit as e:                       # argparse: --help is 0, a usage error is 2
        return e.code if isinstance(e.code, int) else 0 if e.code is None else fail(str(e.code))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _drop_stdout()
        return 1
    except (PyengineError, OSError, MemoryError) as e:
        return fail(describe(e))
    finally:
        gc.set_threshold(*usual)                  # whoever called main() goes on living


def fail(message: str) -> int:
    if sys.stderr is not None:
        print(f"pyengine-cli: {one_line(message)}", file=sys.stderr)
    return 1


def describe(e: BaseException) -> str:
    """An OSError of the system's by its file and reason; ours by its message."""
    if isinstance(e, OSError) and e.strerror:
        return f"{e.filename}: {e.strerror}" if e.filename else e.strerror
    return str(e) or type(e).__name__


def one_line(text: str) -> str:
    return " ".join(text.split())


def _drop_stdout() -> None:
    """Who read our output has gone; the interpreter must not complain of it when it flushes at exit."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

"""pyengine-cli pull: fetches models of the catalog, or from the hub, and prints their paths.

Not imported by anything but the command line.
"""
import argparse
import sys

from .. import catalog
from ..errors import PyengineError


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="pyengine-cli pull", description="Fetch models into the cache and print their paths.")
    p.add_argument("names", nargs="*", metavar="NAME", help=f"a model of the catalog (default: {catalog.default()})")
    p.add_argument("-hf", "--hf-repo", metavar="USER/REPO[:QUANT]", help="a GGUF file from the Hugging Face hub")
    p.add_argument("--list", action="store_true", help="show the catalog")
    p.add_argument("-q", "--quiet", action="store_true", help="no progress")
    return p


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    if args.list:
        for model in catalog.models().values():
            here = catalog.cached(model.name)
            print(f"{model.name:16} {model.size / 1e6:6.0f} MB  {model.title}; {model.licence}"
                  f"{'; default' if model.name == catalog.default() else ''}{f'; {here}' if here else ''}")
        return 0
    names = args.names or ([] if args.hf_repo else [catalog.default()])
    try:
        for name in names:
            print(catalog.pull(name, _quiet if args.quiet else _Lines.of(name)))
        if args.hf_repo:
            print(catalog.hub(args.hf_repo))
    except PyengineError as e:
        print(f"pyengine-cli pull: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("pyengine-cli pull: interrupted; what is verified is kept, so the next pull goes on from there",
              file=sys.stderr)
        return 130
    return 0


def _quiet(model, done: int) -> None:
    pass


class _Lines:
    """Progress where no bar can be drawn (a log file): a line per tenth."""

    @classmethod
    def of(cls, name: str):
        """None where stderr is a terminal: the catalog draws its bar there."""
        return None if sys.stderr.isatty() else cls(name)

    def __init__(self, name: str):
        self.name, self.tenth = name, -1

    def __call__(self, model, done: int) -> None:
        tenth = done * 10 // model.size
        if tenth > self.tenth:
            self.tenth = tenth
            print(f"{self.name}: {done / 1e6:.0f} of {model.size / 1e6:.0f} MB", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""docs/models.md's table of architectures, from the code: what runs, what is planned, what is not and why.

    python tools/arch_table.py            writes it into docs/models.md                     make table
    python tools/arch_table.py --check    fails where the page is not as the code says

Imported by a test.
"""

import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from pyengine.arch import ARCHITECTURES, known  # noqa: E402

ALIASES = {name: module for name, module in ARCHITECTURES.items() if module != name.replace("-", "_")}
DOC = ROOT / "docs" / "models.md"
MARK = re.compile(r"<!-- architectures -->\n.*?<!-- end of architectures -->", re.DOTALL)


def models(name: str) -> str:
    """What a family's file says of itself, up to its first colon, parenthesis or full stop: "Llama 1 to 3, SmolLM 1 and 2"."""
    text = (ROOT / "pyengine" / "arch" / f"{ARCHITECTURES[name]}.py").read_text(encoding="utf-8")
    doc = " ".join(ast.get_docstring(ast.parse(text)).split())
    return re.split(r"[(:]|\. ", doc.split(": ", 1)[1])[0].strip().rstrip(".")


def table() -> str:
    lines = ["| runs | models |", "|---|---|"]
    lines += [f"| `{name}` | {models(name) if name not in ALIASES else f'as `{ALIASES[name]}`'} |" for name in sorted(ARCHITECTURES)]
    lines += ["", "| planned | what it needs first | nearest that runs |", "|---|---|---|"]
    for word, what in sorted(known.WORDS.items(), key=lambda item: item[1]):
        near = {}
        for name, (missing, nearest) in sorted(known.PLANNED.items()):
            if missing == word:
                near.setdefault(nearest, []).append(f"`{name}`")
        lines += [f"| {', '.join(names)} | {what} | `{nearest}` |" for nearest, names in sorted(near.items())]
    lines += ["", "| not | why | nearest that runs |", "|---|---|---|"]
    lines += [f"| `{name}` | {why} | {f'`{nearest}`' if nearest else ''} |" for name, (why, nearest) in sorted(known.NOT.items())]
    return "\n".join(lines)


def filled(doc: str) -> str:
    return MARK.sub(lambda _: f"<!-- architectures -->\n{table()}\n<!-- end of architectures -->", doc)


def main() -> int:
    doc = DOC.read_text(encoding="utf-8")
    if not MARK.search(doc):
        raise SystemExit("docs/models.md has no place for the table: <!-- architectures --> ... <!-- end of architectures -->")
    if "--check" in sys.argv:
        if filled(doc) != doc:
            raise SystemExit("docs/models.md is not as the code says: python tools/arch_table.py")
    else:
        DOC.write_text(filled(doc), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""docs/api.md's tables of fields, from the tables that the server checks requests with.

    python tools/api_tables.py          writes them into docs/api.md
    python tools/api_tables.py --check  says whether they are as written

Not for users. tests/test_serve_fields.py runs the check.
"""
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from pyengine.serve import llama_server, openai, vectors

DOC = ROOT / "docs" / "api.md"
TABLES = {"completions": openai.COMPLETION, "chat": openai.CHAT, "message": openai.MESSAGE, "completion": llama_server.COMPLETION,
          "tokenize": llama_server.TOKENIZE, "detokenize": llama_server.DETOKENIZE, "apply-template": llama_server.APPLY_TEMPLATE,
          "embeddings": vectors.EMBEDDING, "rerank": vectors.RERANK}
MARK = re.compile(r"<!-- fields: ([\w-]+) -->\n(.*?)<!-- end -->", re.DOTALL)


def cell(text) -> str:
    return str(text).replace("|", "\\|")


def table(t) -> str:
    done = [f for f in t.fields.values() if not (f.refused or f.ignored)]
    out = ["| field | what it takes | default |", "|---|---|---|"]
    for f in done:
        note = f.kind.says if f.kind.says != "anything" else ""
        note += ("; " if note and f.about else "") + f.about
        other = t.fields.get(f.target, f)
        same = f" (the same as `{other.name}`)" if other is not f and other.target == f.target and not f.turn else ""
        default = "required" if f.required else f"`{json.dumps(f.default)}`" if f.default is not None else ""
        out.append(f"| `{f.name}`{same} | {cell(note)} | {default} |")
    text = "\n".join(out) + "\n"
    for title, kept in (("Accepted and of no effect", [f for f in t.fields.values() if f.ignored]), ("Refused", [f for f in t.fields.values() if f.refused])):
        if kept:
            by_reason: dict = {}
            for f in kept:
                passes = " or ".join(f"`{json.dumps(v)}`" for v in f.off) if f.refused else ""
                by_reason.setdefault(f.refused or f.ignored, []).append(f"`{f.name}`" + (f" (but {passes})" if passes else ""))
            text += f"\n{title}: " + "; ".join(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items()) + ".\n"
    return text


def filled(doc: str) -> str:
    return MARK.sub(lambda m: f"<!-- fields: {m[1]} -->\n{table(TABLES[m[1]])}<!-- end -->", doc)


def main() -> int:
    doc = DOC.read_text(encoding="utf-8")
    missing = set(TABLES) - {m[1] for m in MARK.finditer(doc)}
    if missing:
        raise SystemExit(f"docs/api.md has no place for {', '.join(sorted(missing))}")
    if "--check" in sys.argv:
        if filled(doc) != doc:
            raise SystemExit("docs/api.md is not as the tables say: python tools/api_tables.py")
    else:
        DOC.write_text(filled(doc), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

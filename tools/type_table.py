#!/usr/bin/env python3
"""docs/models.md's table of tensor types: which kernels each has on each instruction set, and how fast it is beside Q4_0.

    python tools/type_table.py            writes it into docs/models.md                     make table
    python tools/type_table.py --check    says whether it is as written
    python tools/type_table.py --measure [Q1_0,Q2_0]  measures the speeds here, on a quiet machine, of these types or
                                                      of all, and writes both                       make table-speeds

The kernels of all architectures are had from the source by the C preprocessor alone: csrc/kernels.c names the tables,
and what is between their braces, with every macro expanded, names the rows. So the table needs no ARM machine,
compiler or emulator, and tests/test_type_table.py holds it to the rows that the library lists here. Speeds lie in
bench/results/types.json. Not for users.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from pyengine.native import TIERS  # noqa: E402
from pyengine.quants import TYPES  # noqa: E402

DOC, SPEEDS, CSRC = ROOT / "docs" / "models.md", ROOT / "bench" / "results" / "types.json", ROOT / "csrc"
MARK = re.compile(r"(<!-- types -->\n).*?(<!-- end -->)", re.DOTALL)
COLUMNS = {"x86_64": ("scalar", "avx2", "avxvnni", "avx512"), "aarch64": ("neon", "dotprod", "i8mm")}
COUNTS = ("one", "few", "many")
MEASURED = ("avx2", "avx512")         # tiers whose speeds the table shows


def preprocessed(machine: str) -> str:
    """Every kernel file of csrc for that machine, after the preprocessor. System headers are taken as empty: a
    table's rows consist of our own macros, strings and enumerators."""
    sources = [p for p in sorted(CSRC.glob("*.c")) if p.name == "kernels.c" or p.name.startswith("mm_") and not p.name.endswith(".inl.c")]
    headers = {h for p in CSRC.iterdir() for h in re.findall(r"^\s*#include <([^>]+)>", p.read_text(encoding="utf-8"), re.MULTILINE)}
    others = ("__x86_64__", "_M_X64", "__aarch64__", "__arm__", "__FAST_MATH__")
    with tempfile.TemporaryDirectory() as stubs:
        for header in headers:
            path = pathlib.Path(stubs, header)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        cc = os.environ.get("CC", "cc").split()
        command = [*cc, "-E", "-P", "-nostdinc", *(f"-U{m}" for m in others), f"-D__{machine}__", f"-I{CSRC}", "-isystem", stubs]
        return "\n".join(subprocess.run([*command, str(p)], capture_output=True, text=True, check=True).stdout for p in sources)


def rows(machine: str) -> set:
    """(type, tier, "one" | "few" | "many") of every row that csrc/kernels.c lists on that machine; scalar rows are all three."""
    text = preprocessed(machine)
    listed = re.search(r"row_tables\[\] = \{(.*?)\};", text, re.DOTALL)[1]
    found = set()
    for table in re.findall(r"pe_rows_\w+", listed):
        body = re.search(rf"const pe_row {table}\[\] = \{{(.*?)\}};", text, re.DOTALL)[1]
        for strings, wtype in re.findall(r'\{\s*((?:"[^"]*"\s*)+),\s*PE_(\w+)', body):
            name = "".join(re.findall(r'"([^"]*)"', strings))
            tier, count = re.fullmatch(rf"mm_{wtype.lower()}_(scalar|[a-z0-9]+)(?:_(one|few|many))?", name).groups()
            found |= {(wtype, tier, c) for c in ((count,) if count else COUNTS)}
    return found


def table() -> str:
    have = set().union(*(rows(machine) for machine in COLUMNS))
    tiers = [tier for names in COLUMNS.values() for tier in names]
    speeds = json.loads(SPEEDS.read_text(encoding="utf-8")) if SPEEDS.exists() else {"tiers": {}}
    shown = [tier for tier in MEASURED if tier in speeds["tiers"]]
    out = ["| type | bits per weight | " + " | ".join(tiers) + "".join(f" | {tier}, {n}" for tier in shown for n in ("1 token", "512 tokens")) + " |"]
    out.append("|---" * (2 + len(tiers) + 2 * len(shown)) + "|")
    for t in sorted((t for t in TYPES.values() if t.act is not None), key=lambda t: -t.bytes / t.block):
        cells = [" ".join(c if (t.name, tier, c) in have else "-" for c in COUNTS) for tier in tiers]
        cells = ["" if set(cell) <= {"-", " "} else "all" if "-" not in cell else cell.replace("- ", "") for cell in cells]
        for tier in shown:
            cells += [f"{x:.2f}" if x else "" for x in speeds["tiers"][tier].get(t.name, (None, None))]
        out.append(f"| {t.name} | {t.bytes * 8 / t.block:g} | " + " | ".join(cells) + " |")
    text = "\n".join(out) + "\n"
    if shown:
        text += f"\nSpeeds: {speeds['machine']}, {speeds['threads']} thread{'s' * (speeds['threads'] > 1)}, k = {speeds['k']}, {speeds['date']}.\n"
    return text


def filled(doc: str) -> str:
    return MARK.sub(lambda m: m[1] + table() + m[2], doc)


def measure(types: str | None) -> None:
    """bench/kernels.py's figures of the tiers that are shown, of those that this machine has, into SPEEDS. Single types
    replace theirs in what another run on this machine has left."""
    made = json.loads(SPEEDS.read_text(encoding="utf-8")) if types and SPEEDS.exists() else None
    for tier in MEASURED:
        command = [sys.executable, str(ROOT / "bench" / "kernels.py"), "--isa", tier, "--tokens", "1,512", "--json"]
        command += ["--types", types] if types else []
        out = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)}).stdout)
        if made and made["machine"] != out["machine"]:
            raise SystemExit(f"{SPEEDS} is of {made['machine']}: measure all types, to replace it")
        made = made or {"machine": out["machine"], "date": out["date"], "threads": out["threads"], "k": 2048, "tiers": {}}
        speeds: dict = {}
        for row in out["rows"]:
            assert row["isa"] == TIERS[tier] & row["isa"] and row["of_q4_0"], row
            speeds.setdefault(row["type"], [None, None])[row["tokens"] > 1] = round(row["of_q4_0"], 3)
        if speeds:
            made["tiers"].setdefault(tier, {}).update(speeds)
    lines = json.dumps(made, indent=1)
    SPEEDS.write_text(re.sub(r"\[\s+([\d.]+),\s+([\d.]+)\s+\]", r"[\1, \2]", lines) + "\n", encoding="utf-8")


def main() -> int:
    if "--measure" in sys.argv:
        types = sys.argv[sys.argv.index("--measure") + 1:]
        measure(types[0] if types else None)
    doc = DOC.read_text(encoding="utf-8")
    if not MARK.search(doc):
        raise SystemExit("docs/models.md has no place for the table: <!-- types --> ... <!-- end -->")
    if "--check" in sys.argv:
        if filled(doc) != doc:
            raise SystemExit("docs/models.md is not as the code says: python tools/type_table.py")
    else:
        DOC.write_text(filled(doc), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""pyengine-cli inspect: what a GGUF file holds (header, keys, tensors, totals), and whether and how well it will run here.

`report`, `check` and `verdict_lines` yield and print nothing, so tests and notebooks can have
them. The verdict is pyengine/verdict.py's. Imported by the command line only.
"""
import os
import sys
from collections.abc import Iterator

from ..errors import escaped, quoted
from ..gguf import GGUF
from ..mapped import shown
from ..metadata import StringArray
from ..native import ffi, lib
from . import arguments

_WIDTH = 60  # characters of a value in the table


EPILOG = """\
Exit code 0: the file runs here; 1: it does not, for the reasons listed as "no". A file of which only the beginning was
fetched, keys and all, is judged as the whole file would be. The speed is measured with made-up weights of the file's
shapes, in about a second.
"""


def parser():
    p = arguments.parser("inspect", "Show what a GGUF file holds, and whether and how well it will run here.", epilog=EPILOG)
    p.add_argument("path", nargs="?", metavar="FILE", help="a GGUF file (the first part of a split one) or a name of the catalog")
    p.add_argument("-m", "--model", metavar="FILE")
    p.add_argument("--key", metavar="KEY", help="print this key's whole value and nothing else")
    p.add_argument("--verdict", action="store_true", help="only whether and how well it will run")
    p.add_argument("--quick", action="store_true", help="do not measure how fast")
    p.add_argument("--json", action="store_true", help="the verdict as one JSON object")
    p.add_argument("--check", action="store_true", help="look for NaN and infinity in all weights too; exit code 1 if there are any")
    return p


def main(argv) -> int:
    args = parser().parse_args(argv)
    with GGUF(_find(args.path or args.model or arguments.default_model()), cut=True) as g:
        if args.key is not None:
            for line in whole(g, args.key):
                print(line)
            return 0
        from ..verdict import judge

        if not (args.verdict or args.json):
            for line in report(g):
                print(line)
            print(flush=True)
        verdict = judge(g, measure=not args.quick)
        if args.json:
            import json

            print(json.dumps(verdict.as_dict()))
        else:
            for line in verdict_lines(verdict):
                print(line)
        if not args.check or g.missing:
            return 0 if verdict.runs else 1
        bad = 0
        for line, is_bad in check(g):
            bad += is_bad
            print(line, file=sys.stderr if args.json else sys.stdout)
        return 1 if bad or not verdict.runs else 0


def _find(name: str) -> str:
    """Whatever exists under that name is opened, so that a folder or a pipe is refused as what it is."""
    if os.path.lexists(name):
        return name
    from .. import catalog

    return os.fspath(catalog.resolve(name))


# ---- the report ---------------------------------------------------------------------


def report(g: GGUF) -> Iterator[str]:
    """The whole report, line by line."""
    size = sum(f.size for f in g.files)
    arch = g.value("general.architecture") if "general.architecture" in g else "no architecture"
    yield (f"{shown(g.path)}: GGUF version {g.version}, {escaped(str(arch))[:_WIDTH]}, {size:,} bytes, "
           f"{len(g.keys())} keys, {len(g.tensors)} tensors, alignment {g.alignment}")
    if len(g.files) > 1:
        for i, f in enumerate(g.files):
            yield f"  part {i + 1}: {shown(f.path)}, {f.size:,} bytes"
    yield ""
    yield from _table([("key", "type", "value"), *((_cut(k), type_text(g, k), short(g.value(k))) for k in g.keys())])
    if not g.tensors:
        return
    yield ""
    yield from _table([("tensor", "type", "shape", "bytes", "part", "offset"), *(
        (t.name, t.type_name, " x ".join(map(str, t.shape)), f"{t.nbytes:,}", str(t.file + 1), str(t.offset))
        for t in g.tensors.values())], right=(3, 4, 5), drop=() if len(g.files) > 1 else (4,))
    yield ""
    yield from _table([("type", "tensors", "weights", "bytes", "bits per weight"), *totals(g)], right=(1, 2, 3, 4))


def verdict_lines(v) -> Iterator[str]:
    """What was found, a line each, and the verdict."""
    yield from _table([(f.what, {"ok": ""}.get(f.state, f.state), f.text) for f in v.findings])
    speed = f", at about {v.generation:.2g} tokens/s" if v.generation is not None and v.generation < 10 else (
        f", at about {v.generation:.0f} tokens/s" if v.generation is not None else "")
    if not v.runs:
        yield "verdict: does not run here: " + "; ".join(dict.fromkeys(f.what for f in v.findings if f.state == "no"))
    else:
        yield "verdict: runs here" + ("" if v.well else ", but slowly") + speed


def totals(g: GGUF) -> list[tuple[str, str, str, str, str]]:
    """A row per tensor type, largest first, and their sum."""
    sums: dict[str, list[int]] = {}
    for t in g.tensors.values():
        row = sums.setdefault(t.type_name, [0, 0, 0])
        row[0] += 1
        row[1] += t.n_rows * t.shape[0]
        row[2] += t.nbytes
    rows = sorted(sums.items(), key=lambda item: -item[1][2])
    rows.append(("all", [sum(column) for column in zip(*sums.values())]))
    return [(name, f"{n:,}", f"{weights:,}", f"{size:,}", f"{8 * size / weights:.3f}") for name, (n, weights, size) in rows]


def type_text(g: GGUF, key: str) -> str:
    """"u32", "string", "string[49152]"."""
    words = g.describe(key).split(" ", 4)
    return f"{words[3]}[{words[2]}]" if words[0] == "array" else words[0]


def short(value: object) -> str:
    """A value in one line of at most about _WIDTH characters."""
    if isinstance(value, (list, StringArray)):
        text = ""
        for i in range(len(value)):
            item = quoted(value[i], 24) if isinstance(value[i], bytes) else _number(value[i])
            if len(text) + len(item) > _WIDTH - 6:
                return f"[{text}, ...]"
            text += (", " if i else "") + item
        return f"[{text}]"
    return quoted(value, _WIDTH) if isinstance(value, (str, bytes)) else _number(value)


def _cut(key: str) -> str:
    return key if len(key) <= 80 else key[:77] + "..."


def _number(value: object) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value).lower()


def whole(g: GGUF, key: str) -> Iterator[str]:
    """The value in full: text as it is, but for control characters that a terminal would obey."""
    value = g.value(key)
    items = value if isinstance(value, (list, StringArray)) else [value]
    for item in items:
        if isinstance(item, bytes):
            item = item.decode("utf-8", "backslashreplace")
        yield "".join(c if c in "\n\t" else escaped(c) for c in item) if isinstance(item, str) else _number(item)


def _table(rows: list, right: tuple = (), drop: tuple = ()) -> Iterator[str]:
    """Columns padded to their widest cell; the first row is the head."""
    keep = [i for i in range(len(rows[0])) if i not in drop]
    width = {i: max(len(row[i]) for row in rows) for i in keep}
    for row in rows:
        yield "  ".join(row[i].rjust(width[i]) if i in right else row[i].ljust(width[i]) for i in keep).rstrip()


# ---- the weights -----------------------------------------------------------------------

_ALWAYS_FINITE = {24, 25, 26, 27}  # I8 to I64


def check(g: GGUF) -> Iterator[tuple[str, bool]]:
    """(line, whether it reports a fault): every tensor with NaN or infinity, by its first one; then a summary."""
    checked = bad = 0
    skipped: dict[str, int] = {}
    for t in g.tensors.values():
        g.check_unchanged()
        found = -1
        if t.type not in _ALWAYS_FINITE:
            start = ffi.cast("char *", g.files[t.file].address + t.offset)
            found = lib.pe_first_nonfinite(t.type, start, t.n_rows * t.shape[0])
        if found == -2:
            skipped[t.type_name] = skipped.get(t.type_name, 0) + 1
            continue
        checked += 1
        if found >= 0:
            bad += 1
            row, column = divmod(found, t.shape[0])
            yield str(g.tensor_error(t.name, f"found NaN or infinity at row {row}, column {column}, "
                                             f"expected finite weights")), True
    yield f"{checked} tensors checked, {bad} with NaN or infinity", False
    for name, n in skipped.items():
        yield f"{n} tensors of type {name} not checked: this build cannot read it", False

#!/usr/bin/env python3
"""Speed on paper: cycles of the ARM kernels' row loops from their machine code, and what they mean on boards.

    make wheels WHEELS=manylinux-aarch64
    python bench/mca.py [build/wheels/manylinux-aarch64] [--write bench/ARM.md] [--show Q4_0/dotprod/neoverse-n1]

Reads the objects that tools/wheels.py linked into the wheel (the library itself has no symbols), cuts out
each kernel's loop over blocks (scales, reductions, epilogue and addresses included; a jump inside the loop is taken
as not taken, so rare work such as a prefetch per line counts every time), and asks llvm-mca how many cycles an
iteration takes on a core. llvm-mca knows no caches: these are the cycles that a core needs when memory keeps up, which
is the question where memory is the limit. From them, the boards' published bandwidth and the shapes of real models
follow tokens per second; nothing here was run on a board.

Needs llvm-objdump and llvm-mca, both 19 (older ones lack neoverse-n1, which stands for the A76: llvm has the A57's
model for the cortex-a76). Debian: apt-get install llvm-19. Not a benchmark of this machine: bench/kernels.py is.
"""

import argparse
import dataclasses
import os
import pathlib
import re
import subprocess
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "tools"))

from synthetic import SHAPES, Shape, tensors  # noqa: E402

ITERATIONS = 200
ELEMENTS = {"Q4_0": 32, "Q4_1": 32, "Q5_0": 32, "Q5_1": 32, "Q8_0": 32, "IQ4_NL": 32, "MXFP4": 32}  # others: 256
BYTES = {  # of a block
    "Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34, "IQ4_NL": 18, "MXFP4": 17, "Q2_K": 84, "Q3_K": 110,
    "Q4_K": 144, "Q5_K": 176, "Q6_K": 210, "IQ4_XS": 136}  # fmt: skip
CORES = {  # llvm's name -> (what it stands for, the tier that runs there)
    "cortex-a53": ("A53: Pi 3, Zero 2", "neon"),
    "cortex-a72": ("A72: Pi 4", "neon"),
    "neoverse-n1": ("A76 as N1: Pi 5", "dotprod"),
    "neoverse-v1": ("V1: Graviton 3", "dotprod"),
    "apple-m1": ("M1 (an indication)", "dotprod"),
}


@dataclasses.dataclass(frozen=True)
class Board:
    name: str
    core: str
    ghz: float
    cores: int
    bus: float  # GB/s that a linear read reaches
    at: int  # with so many cores reading
    source: str


BOARDS = (
    Board("Raspberry Pi 4", "cortex-a72", 1.8, 4, 5.5, 4, "STREAM, published for the board at 1.8 GHz"),
    Board("Raspberry Pi 5", "neoverse-n1", 2.4, 4, 13.2, 2, "a read-only loop with two threads, published; one gets 9.3, four 11.6"),
)


# ---- machine code -----------------------------------------------------------------------------------------


def functions(args, elf):
    """{(source file, name): [(address, mnemonic and operands)]}: static functions have one name in several files."""
    text = subprocess.run([args.readelf, "-sW", elf], check=True, capture_output=True, text=True).stdout
    starts, file = {}, None
    for line in text.splitlines():
        m = re.match(r"\s*\d+: ([0-9a-f]+) .* (FUNC|FILE) .* (\S+)$", line)
        if m and m[2] == "FILE":
            file = os.path.basename(m[3])
        elif m and file:
            starts[int(m[1], 16)] = (file, m[3])
    if not starts:
        raise SystemExit(f"{elf} has no symbols of functions")
    text = subprocess.run([args.objdump, "-d", "--no-show-raw-insn", elf], check=True, capture_output=True, text=True).stdout
    out, body = {}, []
    for line in text.splitlines():
        if m := re.match(r"([0-9a-f]+) <\S+>:", line):
            body = out.setdefault(starts.get(int(m[1], 16)), [])
        elif m := re.match(r"\s*([0-9a-f]+):\s+(\S.*)", line):
            body.append((int(m[1], 16), re.sub(r"\s+", " ", m[2]).strip()))
    return out


def loops(code):
    """[(first, last)] index ranges closed by a jump back."""
    at = {address: i for i, (address, _) in enumerate(code)}
    out = []
    for i, (_, text) in enumerate(code):
        if m := re.match(r"(?:b|b\.\w+|cbn?z|tbn?z)\b.*?\b0x([0-9a-f]+)", text):
            target = at.get(int(m[1], 16))
            if target is not None and target <= i:
                out.append((target, i))
    return out


def products(text):
    """Multiply-adds of weights in one instruction: int8 products, or float ones of weights that are floats."""
    op = text.split()[0]
    if op in ("sdot", "usdot", "udot") and ".4s" in text:
        return 16
    if op in ("smmla", "usmmla"):
        return 32
    if op in ("smull", "smlal", "smull2", "smlal2") and ".8h" in text.split(",")[0]:
        return 8
    return 0


def row_loop(code):
    """The loop over blocks: the smallest one with both products and a float accumulation. (first, last, multiply-adds)."""
    found = []
    for first, last in loops(code):
        body = [text for _, text in code[first : last + 1]]
        n = sum(map(products, body))
        if n and any(re.match(r"(fmla|fmls|fmadd|fmsub)\b", text) for text in body):
            found.append((last - first, first, last, n))
    return min(found, default=None)


def inner_loops(code, first, last):
    return [(a, b) for a, b in loops(code) if first <= a and b <= last and (a, b) != (first, last)]


def report(mca, core, code, first, last):
    """What llvm-mca says of the loop on this core."""
    lines = ["loop:"]
    for _, text in code[first : last + 1]:
        jump = re.match(r"(b|b\.\w+|cbn?z|tbn?z)\b", text)
        lines.append(re.sub(r"\b0x[0-9a-f]+( <.*>)?$", "loop", text) if jump else re.sub(r"( //.*| <.*>)$", "", text))
    done = subprocess.run([mca, "-mtriple=aarch64-linux-gnu", f"-mcpu={core}", "-mattr=+dotprod,+i8mm,+fullfp16", f"-iterations={ITERATIONS}"],
                          input="\n".join(lines) + "\n", capture_output=True, text=True)  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{mca}: {done.stderr.strip()[-500:]}")
    return done.stdout


def cycles(mca, core, code, first, last):
    """Cycles per iteration of the loop."""
    return int(re.search(r"Total Cycles:\s+(\d+)", report(mca, core, code, first, last))[1]) / ITERATIONS


# ---- models -----------------------------------------------------------------------------------------------


MODELS = {
    "TinyLlama 1.1B": Shape(2048, 22, 32, 4, 64, 5632, False, 1.0, 32000),
    "Llama 3.2 1B": SHAPES["llama-1b"],
    "Qwen2.5 0.5B": Shape(896, 24, 14, 2, 64, 4864, True, 1.0, 151936),
    "Gemma 3 1B": Shape(1152, 26, 4, 1, 256, 6912, True, 1.0, 262144),
}
FALLBACK = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}  # llama.cpp's, where a row is not a multiple of 256


def read_per_token(shape, mix):
    """{type: bytes} of the weights that one token reads: every matrix but an embedding that is not the head too."""
    out = {}
    for name, rows, columns, wtype, _ in tensors(shape, mix):
        if wtype == "F32" or (name == "token_embd.weight" and not shape.tied):
            continue
        if columns % ELEMENTS.get(wtype, 256):
            wtype = FALLBACK[wtype]
        out[wtype] = out.get(wtype, 0) + rows * (columns // ELEMENTS.get(wtype, 256)) * BYTES[wtype]
    return out


def prediction(board, read, rates):
    """(tokens/s, share of the bus's limit): each type at the slower of the bus and the kernel on the cores that saturate it."""
    kernel = {t: rates[t, board.core] * board.ghz * board.at for t in read}  # GB/s
    seconds = sum(n / 1e9 / min(board.bus, kernel[t]) for t, n in read.items())
    return 1 / seconds, sum(read.values()) / 1e9 / board.bus / seconds


# ---- the document -----------------------------------------------------------------------------------------


def group_of(found, count, wtype, tier):
    """(the function that computes a group of rows of this kernel, its code)."""
    file = f"mm_{'block32' if wtype in ELEMENTS else 'kquant'}_{tier}.c"
    for name in ((file, f"{count}_{wtype.lower()}_group"), (file, f"{count}_{wtype.lower()}")):
        if name in found:
            return name, found[name]
    raise SystemExit(f"no function {name[1]} or {name[1]}_group of {file}")


def many_tokens(found, wtype, tier):
    """(code, first, last, multiply-adds) of the innermost loop with the most products: over a panel and a tile of tokens."""
    name, code = group_of(found, "many", wtype, tier)
    inner = [(sum(products(text) for _, text in code[a : b + 1]), a, b) for a, b in loops(code) if not inner_loops(code, a, b)]
    macs, first, last = max(inner, default=(0, 0, 0))
    if not macs:
        raise SystemExit(f"{name[1]} of {name[0]} has no loop with products")
    return code, first, last, macs


def one_token(found, wtype, tier):
    """(code, first, last, multiply-adds) of the row loop of this tier's kernel for one token."""
    name, code = group_of(found, "one", wtype, tier)
    loop = row_loop(code)
    if loop is None:
        raise SystemExit(f"{name[1]} of {name[0]} has no loop with products and a float accumulation")
    _, first, last, macs = loop
    if inside := inner_loops(code, first, last):
        raise SystemExit(f"{name[1]} of {name[0]}: the loop over blocks contains {len(inside)} more; their turns are not known here")
    return code, first, last, macs


def measure(args, found):
    """{(type, core): bytes per cycle}, the first table's rows, and {(type, core): multiply-adds per cycle} of many tokens."""
    rates, rows, macs_of = {}, [], {}
    for wtype in BYTES:
        row = []
        for core, (_, tier) in CORES.items():
            code, first, last, macs = one_token(found, wtype, tier)
            blocks = macs / ELEMENTS.get(wtype, 256)
            c = cycles(args.mca, core, code, first, last)
            rates[wtype, core] = blocks * BYTES[wtype] / c
            row.append((c / blocks, rates[wtype, core]))
            code, first, last, macs = many_tokens(found, wtype, tier)
            macs_of[wtype, core] = macs / cycles(args.mca, core, code, first, last)
        rows.append((wtype, row))
    return rates, rows, macs_of


def document(args, rates, rows, macs_of):
    version = re.search(r"version (\S+)", subprocess.run([args.mca, "--version"], capture_output=True, text=True).stdout)[1]
    out = [
        "# The ARM kernels on paper", "",
        "    make wheels WHEELS=manylinux-aarch64 && python bench/mca.py --write bench/ARM.md", "",
        f"writes this page from the objects that are linked into the wheel (llvm-mca {version}). **Nothing here was measured on a",
        "board.** What a kernel needs is computed from the instructions that ship, with their scales, reductions, epilogue and",
        "addresses; caches are taken to keep up. On a board, `python bench/kernels.py` and `pyengine-cli bench` measure it.", "",
        "## One token: cycles per block of one row, and bytes of weights per cycle", "",
        "| type | " + " | ".join(f"{what} ({tier})" for what, tier in CORES.values()) + " |",
        "|---|" + "---|" * len(CORES),
    ]  # fmt: skip
    for wtype, row in rows:
        out.append(f"| {wtype} | " + " | ".join(f"{c:.1f} / {rate:.2f}" for c, rate in row) + " |")
    out += ["", "## Many tokens: multiply-adds per cycle of the inner loop", "",
            "The A72 can do 8 a cycle (smull and smlal on one pipe, and sadalp), the A76 and N1 32 (sdot). Unpacking, and for blocks",
            "of 256 the epilogue, are outside of this loop.", "",
            "| type | " + " | ".join(f"{what} ({tier})" for what, tier in CORES.values()) + " |", "|---|" + "---|" * len(CORES)]  # fmt: skip
    for wtype, _ in rows:
        out.append(f"| {wtype} | " + " | ".join(f"{macs_of[wtype, core]:.1f}" for core in CORES) + " |")
    for board in BOARDS:
        need = board.bus / board.ghz / board.at
        out += ["", f"## {board.name}: {board.cores} x {CORES[board.core][0].split(':')[0]} at {board.ghz} GHz", "",
                f"The bus gives {board.bus} GB/s: {board.source}.",
                f"{board.at} cores take it all if a kernel reads {need:.2f} bytes a cycle; below that the kernel is the limit (marked).", "",
                f"| type | GB/s of {board.at} cores | of the bus |", "|---|---|---|"]  # fmt: skip
        for wtype, _ in rows:
            gb = rates[wtype, board.core] * board.ghz * board.at
            out.append(f"| {wtype} | {gb:.1f} | {gb / board.bus:.2f}{' **kernel**' if gb < board.bus else ''} |")
        out += ["", "Predicted generation, tokens/s, context near 0 (in brackets: share of what the bus would allow):", "",
                "| model | Q4_0 | Q4_K_M | Q8_0 |", "|---|---|---|---|"]  # fmt: skip
        for name, shape in MODELS.items():
            cells = []
            for mix in ("Q4_0", "Q4_K_M", "Q8_0"):
                rate, share = prediction(board, read_per_token(shape, mix), rates)
                cells.append(f"{rate:.1f} ({share:.2f})")
            out.append(f"| {name} | " + " | ".join(cells) + " |")
    out += ["", "Rows that are no multiple of 256 (Qwen2.5 0.5B, Gemma 3 1B) have Q5_0 and Q8_0 where the mix says Q4_K and Q6_K.",
            "Attention, norms and barriers are not in the predictions; at short contexts they are a few per cent. Q2_K and Q3_K need a",
            "third core of a Pi 5 to keep up with its bus; no model above uses them."]  # fmt: skip
    return "\n".join(out) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("objects", nargs="?", type=pathlib.Path, default=pathlib.Path("build/wheels/manylinux-aarch64"))
    p.add_argument("--mca", default="llvm-mca-19")
    p.add_argument("--objdump", default="llvm-objdump-19")
    p.add_argument("--write", metavar="FILE")
    p.add_argument("--readelf", default="llvm-readelf-19")
    p.add_argument("--show", metavar="TYPE/TIER/CORE", help="llvm-mca's whole report of one loop, for example Q4_0/dotprod/neoverse-n1")
    args = p.parse_args()
    objects = [path for tier in ("neon", "dotprod") for path in args.objects.rglob(f"mm_*_{tier}.o")]
    if not objects:
        raise SystemExit(f"{args.objects} holds no mm_*_neon.o: make wheels WHEELS=manylinux-aarch64 makes them")
    found = {}
    for path in objects:
        found.update(functions(args, path))
    if args.show:
        wtype, tier, core = args.show.split("/")
        code, first, last, _ = one_token(found, wtype, tier)
        print(report(args.mca, core, code, first, last))
        return
    rates, rows, macs_of = measure(args, found)
    text = document(args, rates, rows, macs_of)
    if args.write:
        with open(args.write, "w", encoding="utf-8") as f:
            f.write(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()

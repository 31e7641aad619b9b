#!/usr/bin/env python3
"""Writes csrc/unicode.h: the general categories of Unicode 15.1, in runs, as the pre-tokenizers of BPE ask for them.

    python3.13 tools/unicode_tables.py          or with the unicodedata2 package, version 15.1.0

15.1 because llama.cpp's tables are of that version (checked code point by code point: no difference), so that text
becomes the same ids. Ours would otherwise change with the Python that runs it. Not imported by anything.
"""
import pathlib
import sys

try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

VERSION = "15.1.0"
CLASSES = "CLMNPSZ"  # the first letter of a category; C also where nothing is assigned

HEAD = """/* unicode.h: the general categories of Unicode {version}, written by tools/unicode_tables.py. Included by split.c only.
 *
 * Runs of one class each: the first code point << 3 | class, ascending; a run ends before the next one. */
#ifndef PE_UNICODE_H
#define PE_UNICODE_H

#include <stdint.h>

enum {{ PE_CLASS_C, PE_CLASS_L, PE_CLASS_M, PE_CLASS_N, PE_CLASS_P, PE_CLASS_S, PE_CLASS_Z }};

static const uint32_t pe_unicode_runs[{n}] = {{
"""


def main():
    if unicodedata.unidata_version != VERSION:
        sys.exit(f"found tables of Unicode {unicodedata.unidata_version}, expected {VERSION}: run it with Python 3.13, or "
                 f"with unicodedata2=={VERSION}")
    runs, last = [], None
    for cp in range(0x110000):
        found = CLASSES.index(unicodedata.category(chr(cp))[0])
        if found != last:
            runs.append(cp << 3 | found)
            last = found
    lines, line = [], "   "
    for run in runs:
        item = f" {run:#x},"
        if len(line) + len(item) > 128:
            lines.append(line)
            line = "   "
        line += item
    text = HEAD.format(version=VERSION, n=len(runs)) + "\n".join([*lines, line]) + "\n};\n\n#endif\n"
    path = pathlib.Path(__file__).resolve().parents[1] / "csrc" / "unicode.h"
    path.write_text(text)
    print(f"{path}: {len(runs)} runs")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Dequantizes a GGUF file to float32, metadata unchanged: the ground truth that quantized files are held against.

    python tools/f32_copy.py MODEL.gguf OUT.gguf

Streams: a tensor is converted some rows at a time, so memory stays near 100 MB whatever the model's size.
Written under a temporary name and renamed when whole. Dequantizes with the gguf package, not with ours:
what is compared with this copy should not share our mistakes.
"""

import dataclasses
import os
import pathlib
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

ELEMENTS_AT_ONCE = 1 << 22  # 16 MB of float32
F32 = 0
UINT32 = 4


def copy(source, target, progress=None):
    """Writes `target`; progress(bytes so far, bytes in all) after every part."""
    import gguf
    import gguf_raw
    import numpy as np

    raw = gguf_raw.read(source)
    if "split.count" in raw.offset_of:
        raise ValueError(f"{source} is one file of a split model: join it first")
    at = raw.offset_of.get("general.file_type")
    if at is not None and struct.unpack_from("<I", raw.keys, at) == (UINT32,):
        struct.pack_into("<I", raw.keys, at + 4, 0)  # "all F32"
    out_entries = []
    for entry in raw.entries:
        count = 1
        for n in entry.shape:
            count *= n
        out_entries.append(dataclasses.replace(entry, type=F32, nbytes=4 * count))
    total = sum(entry.nbytes for entry in out_entries)
    done, target = 0, pathlib.Path(target)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as out:
            gguf_raw.write_header(out, raw.n_keys, raw.keys, out_entries)
            for entry, written in zip(raw.entries, out_entries):
                rows = entry.data.reshape(-1, entry.data.shape[-1])
                step = max(1, ELEMENTS_AT_ONCE // entry.shape[0])
                for first in range(0, len(rows), step):
                    part = gguf.quants.dequantize(rows[first : first + step], gguf.GGMLQuantizationType(entry.type))
                    part = np.ascontiguousarray(part, dtype="<f4")
                    out.write(part)
                    done += part.nbytes
                    if progress:
                        progress(done, total)
                out.write(bytes(gguf_raw.pad(written.nbytes)))
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def main(argv=None):
    import argparse

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source")
    parser.add_argument("target")
    args = parser.parse_args(argv)

    def progress(done, total):
        if sys.stderr.isatty():
            print(f"\r{done >> 20} of {total >> 20} MB", end="", file=sys.stderr, flush=True)

    copy(args.source, args.target, progress)
    if sys.stderr.isatty():
        print(file=sys.stderr)


if __name__ == "__main__":
    main()

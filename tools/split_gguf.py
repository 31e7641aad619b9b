#!/usr/bin/env python3
"""Splits a GGUF file into shards as llama.cpp names and numbers them: PREFIX-00001-of-00003.gguf.

    python tools/split_gguf.py MODEL.gguf PREFIX 3

The first shard carries all metadata; the others only split.no, split.count and split.tensors.count.
Tensors are dealt in file order, about equally many bytes to each shard.
"""

import os
import pathlib
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

UINT16, INT32 = 2, 5


def _split_keys(number, count, n_tensors):
    out = b""
    for key, kind, form, value in (
        ("split.no", UINT16, "<H", number),
        ("split.count", UINT16, "<H", count),
        ("split.tensors.count", INT32, "<i", n_tensors),
    ):
        out += struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + struct.pack(form, value)
    return out


def shard_path(prefix, number, count):
    return pathlib.Path(f"{prefix}-{number + 1:05d}-of-{count:05d}.gguf")


def split(source, prefix, count):
    """Writes `count` shards and returns their paths, the first first."""
    import gguf_raw

    raw = gguf_raw.read(source)
    if "split.count" in raw.offset_of:
        raise ValueError(f"{source} is split already")
    if not 2 <= count <= len(raw.entries):
        raise ValueError(f"count: {count}, expected 2 to {len(raw.entries)} (the number of tensors)")
    total, done, shards = sum(entry.nbytes for entry in raw.entries), 0, [[] for _ in range(count)]
    number = 0
    for index, entry in enumerate(raw.entries):
        shards[number].append(entry)
        done += entry.nbytes
        left = len(raw.entries) - index - 1
        # on to the next shard when this one has its share, or when each one left needs a tensor
        if number < count - 1 and (done * count >= total * (number + 1) or left == count - number - 1):
            number += 1
    paths = []
    for number, entries in enumerate(shards):
        keys = _split_keys(number, count, len(raw.entries))
        path = shard_path(prefix, number, count)
        with open(path, "wb") as out:
            if number == 0:
                gguf_raw.write_header(out, raw.n_keys + 3, raw.keys + keys, entries)
            else:
                gguf_raw.write_header(out, 3, keys, entries)
            for entry in entries:
                out.write(entry.data.tobytes())
                out.write(bytes(gguf_raw.pad(entry.nbytes)))
        paths.append(path)
    return paths


def main(argv=None):
    import argparse

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source")
    parser.add_argument("prefix")
    parser.add_argument("count", type=int)
    args = parser.parse_args(argv)
    for path in split(args.source, args.prefix, args.count):
        print(path)


if __name__ == "__main__":
    main()

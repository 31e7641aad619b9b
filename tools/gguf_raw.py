"""A GGUF file taken apart without interpreting its metadata: bytes of the keys, and the tensor table.

For tools that rewrite trusted files (f32_copy, split_gguf): metadata is carried over byte for byte.
Reads through the gguf package, which believes what a file says; never used on files of strangers.
"""

import dataclasses
import struct

ALIGNMENT = 32


@dataclasses.dataclass
class Entry:
    name: str
    shape: tuple  # ggml order: shape[0] is the row length
    type: int  # ggml type id
    nbytes: int
    data: object  # numpy array over the mapped file


@dataclasses.dataclass
class Raw:
    n_keys: int
    keys: bytearray
    entries: list
    offset_of: dict  # key -> offset of its value's type word within `keys`


def read(path):
    import gguf

    reader = gguf.GGUFReader(str(path))
    if reader.alignment != ALIGNMENT:
        raise ValueError(f"{path}: alignment {reader.alignment}, this tool writes {ALIGNMENT}")
    fields = {n: f for n, f in reader.fields.items() if not n.startswith("GGUF.")}
    start = min(field.offset for field in fields.values())
    end = min((t.field.offset for t in reader.tensors), default=reader.data_offset)
    keys = bytearray(reader.data[start:end].tobytes())
    offset_of = {n: f.offset - start + 8 + len(n.encode()) for n, f in fields.items()}
    entries = [
        Entry(t.name, tuple(int(n) for n in t.shape), int(t.tensor_type), int(t.n_bytes), t.data) for t in reader.tensors
    ]
    return Raw(len(fields), keys, entries, offset_of)


def pad(n):
    return -n % ALIGNMENT


def write_header(out, n_keys, keys, entries):
    """Writes magic, keys and the tensor table of `entries` (data to follow in their order, each padded)."""
    table, offset = bytearray(), 0
    for entry in entries:
        name = entry.name.encode()
        table += struct.pack("<Q", len(name)) + name
        table += struct.pack(f"<I{len(entry.shape)}QIQ", len(entry.shape), *entry.shape, entry.type, offset)
        offset += entry.nbytes + pad(entry.nbytes)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(entries), n_keys) + keys + table
    out.write(head + bytes(pad(len(head))))

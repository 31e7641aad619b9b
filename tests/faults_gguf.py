"""GGUF files written byte by byte, so that each can have one thing wrong. For tests and the fuzzer's seeds.

Not a general writer: it checks nothing, on purpose. Needs only struct.

    python tests/faults_gguf.py FOLDER     writes the fuzzer's seed corpus
"""
import random
import struct
import sys
from pathlib import Path

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMATS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}

BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84),
          11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 30: (1, 2)}


def string(text):
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def payload(kind, value):
    return string(value) if kind == STRING else struct.pack("<" + FORMATS[kind], value)


def kv(key, kind, value):
    """One key: kv("a.b", U32, 7)."""
    return string(key) + struct.pack("<I", kind) + payload(kind, value)


def kv_array(key, elem, values, count=None):
    """One array; count lies about the number of values."""
    body = b"".join(payload(elem, v) for v in values)
    return string(key) + struct.pack("<IIQ", ARRAY, elem, len(values) if count is None else count) + body


def info(name, dims, kind, offset, n_dims=None):
    """One tensor entry."""
    return (string(name) + struct.pack("<I", len(dims) if n_dims is None else n_dims)
            + b"".join(struct.pack("<Q", d % 2**64) for d in dims) + struct.pack("<IQ", kind % 2**32, offset))


def nbytes(dims, kind):
    block, size = BLOCKS[kind]
    n = 1
    for d in dims:
        n *= d
    return n // block * size


def gguf(keys=(), infos=(), data=b"", *, magic=b"GGUF", version=3, n_keys=None, n_tensors=None, align=32):
    """The file of ready-made entries; counts follow them unless they are given."""
    head = magic + struct.pack("<IQQ", version, len(infos) if n_tensors is None else n_tensors,
                               len(keys) if n_keys is None else n_keys)
    head += b"".join(keys) + b"".join(infos)
    if infos or data:
        head += bytes(-len(head) % align)
    return head + data


def with_tensors(keys, tensors, *, align=32, tail=True, seed=0, **more):
    """The file of tensors given as (name, dims, type), laid out one after the other, filled with random bytes."""
    rng = random.Random(seed)
    infos, data = [], b""
    for name, dims, kind in tensors:
        data += bytes(-len(data) % align)
        infos.append(info(name, dims, kind, len(data)))
        data += rng.randbytes(nbytes(dims, kind))
    if tail:
        data += bytes(-len(data) % align)
    return gguf(keys, infos, data, align=align, **more)


KEYS = [
    kv("general.architecture", STRING, "llama"),
    kv("general.name", STRING, "tiny"),
    kv("llama.block_count", U32, 2),
    kv("llama.context_length", U32, 64),
    kv("llama.embedding_length", U32, 32),
    kv("llama.feed_forward_length", U32, 64),
    kv("llama.attention.head_count", U32, 2),
    kv_array("llama.attention.head_count_kv", I32, [2, 1]),
    kv("llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
    kv("llama.rope.freq_base", F32, 10000.0),
    kv("tokenizer.ggml.model", STRING, "llama"),
    kv_array("tokenizer.ggml.tokens", STRING, [f"<0x{i:02X}>" for i in range(40)] + ["", "\u2581a", b"\xff\xfe"]),
    kv_array("tokenizer.ggml.scores", F32, [-float(i) for i in range(43)]),
    kv_array("tokenizer.ggml.token_type", I32, [6] * 43),
    kv("tokenizer.ggml.add_bos_token", BOOL, 1),
    kv("misc.u8", U8, 200), kv("misc.i8", I8, -5), kv("misc.u16", U16, 60000), kv("misc.i16", I16, -300),
    kv("misc.i32", I32, -70000), kv("misc.u64", U64, 2**63 + 1), kv("misc.i64", I64, -(2**40)), kv("misc.f64", F64, 0.1),
    kv_array("misc.bools", BOOL, [0, 1, 1]), kv_array("misc.empty", STRING, []), kv_array("misc.u8s", U8, [1, 2, 3]),
]

TENSORS = [("token_embd.weight", (32, 43), 8), ("output_norm.weight", (32,), 0)] + [
    (f"blk.{i}.{name}.weight", dims, kind)
    for i in range(2)
    for name, dims, kind in [
        ("attn_norm", (32,), 0), ("attn_q", (32, 32), 2), ("attn_k", (32, 32), 3), ("attn_v", (32, 32), 6),
        ("attn_output", (32, 32), 7), ("ffn_norm", (32,), 0), ("ffn_gate", (32, 64), 1), ("ffn_up", (32, 64), 30),
        ("ffn_down", (64, 32), 8)]
]


def tiny():
    """About 20 KB: keys of every type, tensors of eight types."""
    return with_tensors(KEYS, TENSORS)


def seeds():
    """(name, bytes) of the fuzzer's corpus: well-formed files, and one of each fault the scanner knows."""
    a = [kv("general.architecture", STRING, "llama")]
    f32 = [("w", (4, 2), 0)]
    yield "tiny", with_tensors(KEYS, TENSORS[:3])
    yield "keys", gguf(KEYS)
    yield "v2", with_tensors(a, f32, version=2)
    yield "empty", gguf()
    yield "align64", with_tensors([kv("general.alignment", U32, 64)], f32 + [("v", (3,), 0)], align=64)
    yield "split", gguf([kv("split.no", U16, 0), kv("split.count", U16, 2), kv("split.tensors.count", I32, 1)])
    for kind, (block, _) in BLOCKS.items():
        yield f"type{kind}", with_tensors(a, [("w", (block, 2), kind)])
    yield "dup", gguf(a + a)
    yield "nested", gguf([kv_array("x", ARRAY, [], 1)])
    yield "bool2", gguf([kv("x", BOOL, 2)])
    yield "align3", gguf([kv("general.alignment", U32, 3)])
    yield "long", gguf([string("x") + struct.pack("<IQ", STRING, 2**64 - 1)])
    yield "array", gguf([kv_array("x", U64, [1], 2**61 + 1)])
    yield "dims5", gguf(a, [info("w", (1,) * 5, 0, 0)], bytes(32))
    yield "wrap", gguf(a, [info("w", (2**31,) * 4, 0, 0)], bytes(32))
    yield "overlap", gguf(a, [info("w", (16,), 0, 0), info("v", (16,), 0, 32)], bytes(96))
    yield "far", gguf(a, [info("w", (4,), 0, 2**64 - 32)], bytes(32))
    yield "bigendian", b"GGUF" + struct.pack(">IQQ", 3, 0, 0)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, raw in seeds():
        (folder / name).write_bytes(raw)

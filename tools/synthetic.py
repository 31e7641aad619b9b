#!/usr/bin/env python3
"""Random-weight GGUF files with the shapes of real models, for benches: what is measured depends on shapes and types only.

    python tools/synthetic.py llama-1b Q4_K_M OUT.gguf [--vocab FILE.gguf] [--layers 4]

Shapes: llama-1b (Llama-3.2-1B), llama-8b (Llama-3.1-8B) and moe-8x1b (no real model's: eight experts, two for each token). Types: the mixes Q4_K_M, Q4_0 and Q8_0 with the
per-tensor choices of llama.cpp's quantizer, and IQ4_NL, IQ4_XS, MXFP4, IQ3_XXS and IQ2_XS with a Q6_K head. Quants are random bits
under scales that keep activations near 1 and logits at a standard deviation of 3; the embedding is small beside what
the layers add, so that a tied head does not just repeat its input. A file is a function of shape, type, layers and
vocabulary; it is streamed to disk, so memory stays below 200 MB. --vocab copies the tokenizer's keys of any file with
as many tokens; without it a made-up byte-level vocabulary is used.

Not for tests of correctness (tiny_gguf.py is) and not a language model. Needs numpy and the gguf package.
"""

import argparse
import dataclasses
import math
import os
import pathlib
import struct
import sys
import zlib

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import gguf_raw  # noqa: E402

BLOCKS_AT_ONCE = 1 << 18
LOGIT_STD = 3.0


@dataclasses.dataclass(frozen=True)
class Shape:
    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    d_head: int
    n_ff: int
    tied: bool
    rope_factor: float  # llama3 scaling of long wavelengths, from 8192 trained positions
    n_vocab: int = 128256
    n_ctx: int = 131072
    rope_base: float = 500000.0
    n_expert: int = 0  # a token takes two


SHAPES = {
    "llama-1b": Shape(2048, 16, 32, 8, 64, 8192, True, 32.0),
    "llama-8b": Shape(4096, 32, 32, 8, 128, 14336, False, 8.0),
    "moe-8x1b": Shape(2048, 16, 32, 8, 64, 4096, False, 8.0, n_vocab=32000, n_expert=8),
}


# --- which tensor has which type -------------------------------------------------------------------------


def use_more_bits(i, n):
    """The layers whose attn_v and ffn_down get Q6_K in a Q4_K_M file: the first and last eighth and every third between."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


def type_of(mix, name, layer, shape):
    if mix == "Q8_0":
        return mix
    if name == "output.weight" or (name == "token_embd.weight" and shape.tied):
        return "Q6_K"
    if mix != "Q4_K_M":
        return mix
    more = name.endswith(("attn_v.weight", "ffn_down.weight", "ffn_down_exps.weight")) and use_more_bits(layer, shape.n_layer)
    return "Q6_K" if more else "Q4_K"


def tensors(shape, mix):
    """(name, rows, row length, type, standard deviation of a weight), in the order of real files."""
    s, head = shape, LOGIT_STD / math.sqrt(shape.n_embd)

    def matrix(name, rows, columns, layer=-1, std=None, gain=1.0):
        return name, rows, columns, type_of(mix, name, layer, s), std or gain / math.sqrt(columns)

    yield matrix("token_embd.weight", s.n_vocab, s.n_embd, std=head)
    yield "output_norm.weight", 1, s.n_embd, "F32", 0.1
    if not s.tied:
        yield matrix("output.weight", s.n_vocab, s.n_embd, std=head)
    yield "rope_freqs.weight", 1, s.d_head // 2, "F32", None
    for i in range(s.n_layer):
        blk = f"blk.{i}."
        yield blk + "attn_norm.weight", 1, s.n_embd, "F32", 0.1
        yield matrix(blk + "attn_q.weight", s.n_head * s.d_head, s.n_embd, i)
        yield matrix(blk + "attn_k.weight", s.n_head_kv * s.d_head, s.n_embd, i)
        yield matrix(blk + "attn_v.weight", s.n_head_kv * s.d_head, s.n_embd, i)
        yield matrix(blk + "attn_output.weight", s.n_embd, s.n_head * s.d_head, i, gain=1.5)
        yield blk + "ffn_norm.weight", 1, s.n_embd, "F32", 0.1
        if s.n_expert:
            yield blk + "ffn_gate_inp.weight", s.n_expert, s.n_embd, "F32", 1 / math.sqrt(s.n_embd)
        many, end = s.n_expert or 1, "_exps.weight" if s.n_expert else ".weight"
        yield matrix(blk + "ffn_gate" + end, s.n_ff * many, s.n_embd, i)
        yield matrix(blk + "ffn_up" + end, s.n_ff * many, s.n_embd, i)
        yield matrix(blk + "ffn_down" + end, s.n_embd * many, s.n_ff, i, gain=1.5)


# --- random blocks ------------------------------------------------------------------------------------------


def f16(values):
    import numpy as np

    return values.astype("<f2").reshape(-1, 1).view(np.uint8)


def scales(rng, n, rms, std):
    """One f16 scale per block of quants with the given rms, of random sign: quants are not centred, weights are."""
    return f16(std / rms * rng.uniform(0.9, 1.1, n) * rng.choice((-1.0, 1.0), n))


def q4_0(rng, n, std):
    import numpy as np

    return np.concatenate([scales(rng, n, 4.64, std), rng.integers(0, 256, (n, 16), np.uint8)], 1)


def q8_0(rng, n, std):
    import numpy as np

    return np.concatenate([scales(rng, n, 73.3, std), rng.integers(-127, 128, (n, 32), np.int8).view(np.uint8)], 1)


def scales_6bit(sc, m):
    """Eight 6-bit scales and minima in twelve bytes (q4_K and q5_K)."""
    import numpy as np

    out = np.zeros((len(sc), 12), np.uint8)
    out[:, 0:4] = sc[:, :4] | (sc[:, 4:] >> 4) << 6
    out[:, 4:8] = m[:, :4] | (m[:, 4:] >> 4) << 6
    out[:, 8:12] = sc[:, 4:] & 15 | (m[:, 4:] & 15) << 4
    return out


def q4_k(rng, n, std):
    """Equal 6-bit scales and minima, dmin = 7.5 d: every group of 32 is centred."""
    import numpy as np

    sc = rng.integers(32, 64, (n, 8), np.uint8)
    d = std / (4.61 * 48.4) * rng.uniform(0.9, 1.1, n)
    return np.concatenate([f16(d), f16(7.5 * d), scales_6bit(sc, sc), rng.integers(0, 256, (n, 128), np.uint8)], 1)


def q6_k(rng, n, std):
    import numpy as np

    sc = rng.integers(64, 128, (n, 16), np.int8) * rng.choice(np.array([-1, 1], np.int8), (n, 16))
    d = std / (18.5 * 97.3) * rng.uniform(0.9, 1.1, n)
    return np.concatenate([rng.integers(0, 256, (n, 192), np.uint8), sc.view(np.uint8), f16(d)], 1)


def iq4_nl(rng, n, std):
    import numpy as np

    return np.concatenate([scales(rng, n, 69.7, std), rng.integers(0, 256, (n, 16), np.uint8)], 1)


def iq4_xs(rng, n, std):
    """Sub-scales are six bits less 32, all random."""
    import numpy as np

    return np.concatenate([scales(rng, n, 69.7 * 18.5, std), rng.integers(0, 256, (n, 134), np.uint8)], 1)


def mxfp4(rng, n, std):
    """A power of two for 32 values of rms 2.93, stored with a bias of 127."""
    import numpy as np

    e = np.full((n, 1), round(math.log2(std / 2.93)) + 127, np.uint8)
    return np.concatenate([e, rng.integers(0, 256, (n, 16), np.uint8)], 1)


def iq2_xs(rng, n, std):
    """Eighths: entries of rms 24.2 times odd numbers up to 31, of rms 18.5."""
    import numpy as np

    return np.concatenate([scales(rng, n, 24.2 * 18.47 / 8, std), rng.integers(0, 256, (n, 72), np.uint8)], 1)


def iq3_xxs(rng, n, std):
    """Quarters, of entries of rms 30.8."""
    import numpy as np

    return np.concatenate([scales(rng, n, 30.8 * 18.47 / 4, std), rng.integers(0, 256, (n, 96), np.uint8)], 1)


BLOCKS = {  # type -> ggml id, elements, bytes, maker
    "Q4_0": (2, 32, 18, q4_0),
    "Q8_0": (8, 32, 34, q8_0),
    "Q4_K": (12, 256, 144, q4_k),
    "Q6_K": (14, 256, 210, q6_k),
    "IQ4_NL": (20, 32, 18, iq4_nl),
    "IQ4_XS": (23, 256, 136, iq4_xs),
    "MXFP4": (39, 32, 17, mxfp4),
    "IQ2_XS": (17, 256, 74, iq2_xs),
    "IQ3_XXS": (18, 256, 98, iq3_xxs),
}
MIXES = {"Q4_K_M": 15, "Q4_0": 2, "Q8_0": 7, "IQ4_NL": 25, "IQ4_XS": 30, "MXFP4": 38, "IQ2_XS": 20, "IQ3_XXS": 23}  # general.file_type


def rope_factors(shape):
    """What llama3 scaling divides each frequency by: 1 for short waves, the factor for long ones, between them a ramp."""
    import numpy as np

    low, high, trained = 1.0, 4.0, 8192
    out = []
    for i in range(shape.d_head // 2):
        wave = 2 * math.pi * shape.rope_base ** (2 * i / shape.d_head)
        if wave < trained / high:
            out.append(1.0)
        elif wave > trained / low:
            out.append(shape.rope_factor)
        else:
            smooth = (trained / wave - low) / (high - low)
            out.append(1 / ((1 - smooth) / shape.rope_factor + smooth))
    return np.array(out, np.float32)


def parts(shape, name, rows, columns, type_name, std):
    """The tensor's bytes, some blocks at a time."""
    import numpy as np

    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if type_name == "F32":
        if rows > 1:    # a router
            yield (std * rng.standard_normal((rows, columns))).astype(np.float32)
        else:
            yield rope_factors(shape) if std is None else (1 + std * rng.standard_normal(columns)).astype(np.float32)
        return
    _, elements, size, make = BLOCKS[type_name]
    left = rows * columns // elements
    while left:
        n = min(left, BLOCKS_AT_ONCE)
        part = make(rng, n, std)
        assert part.shape == (n, size) and part.dtype == np.uint8
        yield np.ascontiguousarray(part)
        left -= n


# --- metadata -----------------------------------------------------------------------------------------------

STRING, ARRAY, UINT32, INT32, FLOAT32, BOOL = 8, 9, 4, 5, 6, 7
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def text(s):
    return struct.pack("<Q", len(s.encode())) + s.encode()


def key(name, value):
    """A key with a str, bool, int (uint32), float, list of str or list of int."""
    if isinstance(value, list):
        kind = STRING if isinstance(value[0], str) else INT32
        items = b"".join(map(text, value)) if kind == STRING else struct.pack(f"<{len(value)}i", *value)
        return text(name) + struct.pack("<IIQ", ARRAY, kind, len(value)) + items
    for types, kind, form in ((bool, BOOL, "<?"), (int, UINT32, "<I"), (float, FLOAT32, "<f")):
        if isinstance(value, types):
            return text(name) + struct.pack("<I", kind) + struct.pack(form, value)
    return text(name) + struct.pack("<I", STRING) + text(value)


def copied_keys(path):
    """(number of keys, their bytes, number of tokens): every tokenizer.* key of a trusted file, as it lies there."""
    data = pathlib.Path(path).read_bytes()
    (n_keys,), at = struct.unpack_from("<Q", data, 16), 24
    count, out, n_tokens = 0, bytearray(), 0

    def skip(kind, at):
        if kind == STRING:
            return at + 8 + struct.unpack_from("<Q", data, at)[0]
        return at + SIZES[kind]

    for _ in range(n_keys):
        start, (n,) = at, struct.unpack_from("<Q", data, at)
        name = data[at + 8 : at + 8 + n].decode()
        (kind,) = struct.unpack_from("<I", data, at + 8 + n)
        at += 12 + n
        if kind == ARRAY:
            kind, items = struct.unpack_from("<IQ", data, at)
            at += 12
            if name == "tokenizer.ggml.tokens":
                n_tokens = items
            if kind == STRING:
                for _ in range(items):
                    at = skip(STRING, at)
            else:
                at += SIZES[kind] * items
        else:
            at = skip(kind, at)
        if name.startswith("tokenizer."):
            out += data[start:at]
            count += 1
    return count, out, n_tokens


def made_up_keys(n_vocab):
    import tiny_gguf

    tokens, merges = tiny_gguf.bpe_vocabulary(n_vocab)
    values = {
        "model": "gpt2", "pre": "smollm", "tokens": [t for t, _, _ in tokens], "token_type": [kind for _, _, kind in tokens],
        "merges": merges, "bos_token_id": 0, "eos_token_id": 0, "add_bos_token": False,
    }  # fmt: skip
    return len(values), b"".join(key(f"tokenizer.ggml.{name}", value) for name, value in values.items()), n_vocab


def metadata(shape, title, mix, vocabulary):
    s = shape
    values = {
        "general.architecture": "llama", "general.name": title, "general.file_type": MIXES[mix], "llama.vocab_size": s.n_vocab,
        "llama.context_length": s.n_ctx, "llama.embedding_length": s.n_embd, "llama.block_count": s.n_layer,
        "llama.feed_forward_length": s.n_ff, "llama.attention.head_count": s.n_head, "llama.attention.head_count_kv": s.n_head_kv,
        "llama.attention.key_length": s.d_head, "llama.attention.value_length": s.d_head,
        "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": s.rope_base,
        "llama.rope.dimension_count": s.d_head, "general.quantization_version": 2,
    }  # fmt: skip
    if s.n_expert:
        values.update({"llama.expert_count": s.n_expert, "llama.expert_used_count": 2})
    n, keys, n_tokens = vocabulary
    if n_tokens != s.n_vocab:
        raise ValueError(f"the vocabulary has {n_tokens} tokens, {title} needs {s.n_vocab}")
    return len(values) + n, b"".join(key(name, value) for name, value in values.items()) + bytes(keys)


def write(path, shape_name, mix, *, layers=None, vocab=None, progress=None):
    """Writes the file under a temporary name, renames it when whole; progress(bytes so far, in all) after every part."""
    shape = SHAPES[shape_name]
    if layers:
        shape = dataclasses.replace(shape, n_layer=layers)
    vocabulary = copied_keys(vocab) if vocab else made_up_keys(shape.n_vocab)
    n_keys, keys = metadata(shape, f"synthetic-{shape_name}", mix, vocabulary)
    table = list(tensors(shape, mix))
    entries = []
    for name, rows, columns, type_name, _ in table:
        type_id, elements, size, _ = BLOCKS.get(type_name, (0, 1, 4, None))
        if columns % elements:
            raise ValueError(f"{name}: rows of {columns} elements are not whole {type_name} blocks of {elements}")
        shape_in_file = (columns,) if rows == 1 else (columns, rows)
        if name.endswith("_exps.weight"):
            shape_in_file = (columns, rows // shape.n_expert, shape.n_expert)
        entries.append(gguf_raw.Entry(name, shape_in_file, type_id, rows * columns // elements * size, None))
    path, done, total = pathlib.Path(path), 0, sum(e.nbytes for e in entries)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as out:
            gguf_raw.write_header(out, n_keys, keys, entries)
            for line, entry in zip(table, entries):
                for part in parts(shape, *line):
                    out.write(part)
                    done += part.nbytes
                    if progress:
                        progress(done, total)
                out.write(bytes(gguf_raw.pad(entry.nbytes)))
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("mix", choices=MIXES, metavar="TYPE", help=", ".join(MIXES))
    parser.add_argument("out")
    parser.add_argument("--vocab", metavar="FILE", help="copy the tokenizer of this GGUF file")
    parser.add_argument("--layers", type=int, help="fewer layers than the real model")
    args = parser.parse_args(argv)

    def progress(done, total):
        if sys.stderr.isatty():
            print(f"\r{done >> 20} of {total >> 20} MB", end="", file=sys.stderr, flush=True)

    write(args.out, args.shape, args.mix, layers=args.layers, vocab=args.vocab, progress=progress)
    if sys.stderr.isatty():
        print(file=sys.stderr)


if __name__ == "__main__":
    main()

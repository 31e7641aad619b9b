"""How fast the ops beside the matrix products are: norm, gate, quantizing, rope, KV stores, attention, per tier.

    python bench/ops.py [--models llama-1b,smollm2] [--ops rms_norm,glu,attn] [--isa avx512] [--context 4096] [--kv q8_0] [--json]

Shapes are those of known models. One token: rows in cache, microseconds each; attention reads pages of a memory
much larger than the caches, GB/s. A prompt of 512 tokens: rows one after another, GB/s of floats read and written;
attention from position 0, GMAC/s. The last column is what all calls of a step take on one thread, as a share of the
time that its matrix products need at least: one token, the weights (--bits each) at the rate at which the one-token
product of F16 reads in the same run; a prompt, its multiply-adds at the peak of the tier's bare instructions
(bench/kernels.py). So it tells which ops are worth work; real products take longer, real shares are smaller; a
window is not looked at, and on the scalar tier a prompt has no share. Rounds
go over all lines in turn, and medians are printed. What calls of no elements take, which is Python's part, is taken off.
"""
import argparse
import json
import statistics
import time
from dataclasses import dataclass
from typing import Callable, NamedTuple

import numpy as np
from kernels import Job, choose, peak_gmacs

from pyengine import quants
from pyengine.native import ffi, lib
from pyengine.plan import KV_TYPES

PROMPT = 512
TILE = 32  # query rows of one attention part: PE_TILE of csrc/exec.h
MEMORY = 256 << 20  # of pages, and of the weights that are read


class Model(NamedTuple):
    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    d: int
    vocab: int
    gate: int
    norms: int       # of a hidden row, per layer
    head_norms: int  # 1: q and k are normed by head

    @property
    def group(self):
        return self.heads // self.kv_heads

    @property
    def layer_weights(self):
        return self.hidden * (2 * self.heads * self.d + 2 * self.kv_heads * self.d + 3 * self.ffn)


MODELS = {
    "llama-1b": Model(2048, 8192, 16, 32, 8, 64, 128256, lib.PE_ACT_SILU, 2, 0),
    "smollm2": Model(576, 1536, 30, 9, 3, 64, 49152, lib.PE_ACT_SILU, 2, 0),
    "gemma-270m": Model(640, 2048, 18, 4, 1, 256, 262144, lib.PE_ACT_GELU, 4, 1),
    "tinyllama": Model(2048, 5632, 22, 32, 4, 64, 32000, lib.PE_ACT_SILU, 2, 0),  # eight query heads a KV head
}


@dataclass
class Line:
    """Calls of one op on one tier: `work` makes `calls` of them, which a step of `tokens` tokens makes `times` times."""

    op: str
    tier: object
    model: str
    tokens: int
    work: Callable[[], None]
    empty: Callable[[], None]  # as many calls of no elements
    calls: int
    amount: float  # bytes, or multiply-adds, of all the calls
    unit: str
    times: float

    @property
    def name(self):
        return f"{self.op}_{ffi.string(self.tier.name).decode()}"


def buffer(n: int) -> np.ndarray:
    raw = np.zeros(n + 64, np.uint8)
    return raw[-raw.ctypes.data % 64:][:n]


def at(a: np.ndarray, kind: str, offset: int = 0):
    return ffi.cast(kind, a.ctypes.data + offset)


def repeat(fn, args: list, *kept) -> Callable[[], None]:
    """Calls of fn; `kept` is what the pointers among the arguments point to."""
    def work(_=kept):
        for a in args:
            fn(*a)
    return work


def row_lines(name: str, m: Model, tier, tokens: int, kv_type: int) -> list[Line]:
    """The ops that take one row of floats at a time."""
    rng, n = np.random.default_rng(1), PROMPT if tokens > 1 else 4
    widest = max(m.hidden, m.ffn, m.heads * m.d)
    x, up, y = (rng.standard_normal((n, widest)).astype(np.float32) for _ in range(3))
    q = buffer(n * 4 * widest)
    w, cs = np.ones(3 * widest, np.float32), np.full(m.d, 0.6, np.float32)
    cs[m.d // 2:] = 0.8  # a rotation: rows keep their length over the rounds
    rows = [i % n for i in range(PROMPT if tokens > 1 else 4 * PROMPT)]
    at_row = lambda a, i: at(a, "float *", 4 * widest * i)  # noqa: E731
    floats, weights = [[at_row(a, i) for i in range(n)] for a in (x, up, y)], at(w, "float *")
    xs, ups, ys = floats
    acts = [at(q, "void *", 4 * widest * i) for i in range(n)]
    table, qk = at(cs, "float *"), m.heads + m.kv_heads
    page = buffer(2 * lib.pe_kv_bytes(kv_type, m.d))
    kp, vp = at(page, "uint8_t *"), at(page, "uint8_t *", page.size // 2)
    taps = [ffi.new("float *[]", [xs[i], ups[i], xs[i]]) for i in range(n)]
    eps = 1e-5
    # op, its length, times in a layer, floats touched per element, arguments of row i
    quantized = 2 + (m.heads * m.d + m.ffn) / m.hidden
    table_of_ops = [
        ("rms_norm", m.hidden, m.norms, 2, lambda i, n: (ys[i], xs[i], weights, n, eps)),
        ("add", m.hidden, 2, 3, lambda i, n: (ys[i], xs[i], ups[i], n)),
        ("glu", m.ffn, 1, 3, lambda i, n: (m.gate, ys[i], xs[i], ups[i], n)),
        ("quant32", m.hidden, quantized, 1.25,
         lambda i, n: (acts[i], xs[i], m.hidden, 0, n // 32)),
        ("rope_halves", m.d, qk, 2, lambda i, n: (xs[i], table, n)),
        ("kv_store", m.d, m.kv_heads, 3, lambda i, n: (kp, vp, i % lib.PE_PAGE, xs[i], ups[i], n, n)),
        ("conv", m.hidden, 0, 7, lambda i, n: (ys[i], taps[i], weights, 3, n)),  # of lfm2: in none of these models
    ]
    if m.hidden % 256 == 0:
        table_of_ops.insert(4, ("quant256", m.hidden, quantized, 1.25,
                                lambda i, n: (acts[i], xs[i], m.hidden, 0, n // 256)))
    if m.head_norms:
        table_of_ops.append(("rms_norm", m.d, qk, 2, lambda i, n: (ys[i], xs[i], weights, n, eps)))
    arrays = (x, up, y, q, w, cs, page, taps)
    call = {op: tier.kv_store[kv_type] if op == "kv_store" else getattr(tier, op) for op, *_ in table_of_ops}
    return [Line(op, tier, name, tokens, repeat(call[op], [args(i, length) for i in rows], *arrays),
                 repeat(call[op], [args(i, 0) for i in rows], *arrays), len(rows), 4 * length * touched * len(rows), "GB/s", times * m.layers * tokens)
            for op, length, times, touched, args in table_of_ops]


class Pages:
    """Pages of random halves or blocks, and attention calls over them."""

    def __init__(self, m: Model, kv_type: int, memory: np.ndarray, context: int):
        self.m, self.kv_type, self.memory = m, kv_type, memory
        self.bytes = lib.pe_kv_bytes(kv_type, m.d)
        self.page = 2 * self.bytes * m.kv_heads
        self.pages = context // lib.PE_PAGE
        self.sequences = max(1, memory.size // (self.page * self.pages))
        ids = np.random.default_rng(0).permutation(self.sequences * self.pages)
        self.tables = ids.astype(np.int32).reshape(self.sequences, self.pages)
        rows = TILE * m.heads
        self.q = np.random.default_rng(2).standard_normal((rows, m.d)).astype(np.float32)
        self.o = np.zeros((rows, m.d), np.float32)
        self.scratch = buffer(lib.PE_SCRATCH)

    def call(self, sequence: int, head: int, n_q: int, pos: int):
        m, stride = self.m, self.m.heads * self.m.d
        return ffi.new("pe_attn *", {
            "q": at(self.q, "float *", 4 * head * m.group * m.d), "q_stride": stride, "n_q": n_q, "n_group": m.group,
            "dk": m.d, "dv": m.d, "pos": pos, "kv": at(self.memory, "uint8_t *"), "table": at(self.tables[sequence], "int32_t *"),
            "page_stride": self.page, "k_off": head * 2 * self.bytes, "v_off": (2 * head + 1) * self.bytes, "kv_type": self.kv_type,
            "scale": m.d ** -0.5, "c0": 0, "c1": (pos + n_q - 1) // lib.PE_CHUNK + 1,
            "o": at(self.o, "float *", 4 * head * m.group * m.d), "o_stride": stride, "scratch": at(self.scratch, "void *")})


def attention_lines(name: str, m: Model, tier, kv_type: int, memory: np.ndarray, context: int) -> list[Line]:
    pages = Pages(m, kv_type, memory, context)
    one = [(pages.call(s, h, 1, context - 1),) for s in range(pages.sequences) for h in range(m.kv_heads)]
    starts = range(0, PROMPT, TILE)
    many = [(pages.call(0, 0, TILE, t),) for t in starts]
    read = pages.sequences * pages.pages * pages.page
    macs = PROMPT * (PROMPT + 1) / 2 * 2 * m.d * m.group
    return [Line("attn", tier, name, 1, repeat(tier.attn, one, pages), list, len(one), read, "GB/s", m.layers * m.kv_heads),
            Line("attn", tier, name, PROMPT, repeat(tier.attn, many, pages), list, len(many), macs, "GMAC/s", m.layers * m.kv_heads * len(many))]


def seconds(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def tiers(isa_name: str | None) -> list:
    n = ffi.new("int32_t *")
    all_ = lib.pe_vops_all(n)
    return [all_[i] for i in range(n[0]) if not all_[i].isa & ~lib.pe_cpu_isa()
            and (ffi.string(all_[i].name).decode() == isa_name if isa_name else all_[i].isa)]


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--models", default=",".join(MODELS))
    p.add_argument("--ops", help="comma-separated; default: all")
    p.add_argument("--isa", help="only this tier, e.g. avx2 or scalar; default: all but scalar")
    p.add_argument("--context", type=int, default=4096, help="positions that one token attends to, in whole chunks of 256")
    p.add_argument("--kv", choices=KV_TYPES, default="f16")
    p.add_argument("--bits", type=float, default=4.85, help="per weight, for the time of a token's products")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--json", action="store_true")
    a = p.parse_args()
    chosen = a.models.split(",")
    if unknown := set(chosen) - set(MODELS):
        p.error(f"--models: found {', '.join(sorted(unknown))}, expected some of {', '.join(MODELS)}")
    if a.context < 1 or a.context % lib.PE_CHUNK or a.context < PROMPT:
        p.error(f"--context: found {a.context}, expected a multiple of {lib.PE_CHUNK}, at least {PROMPT}")
    kv_type = KV_TYPES[a.kv][0]
    memory = buffer(MEMORY)
    some = np.random.default_rng(3).standard_normal(1 << 20).astype(np.float16).view(np.uint8)
    if a.kv != "f16":  # any bytes are quants, but a scale has to be a sane half: 0.01 in every place
        some = np.full(1 << 20, 0.01, np.float16).view(np.uint8)
    memory.reshape(-1, some.size)[:] = some
    lines = [line for name in chosen for tier in tiers(a.isa)
             for line in [*(r for n in (1, PROMPT) for r in row_lines(name, MODELS[name], tier, n, kv_type)),
                          *attention_lines(name, MODELS[name], tier, kv_type, memory, a.context)]
             if a.ops is None or line.op in a.ops.split(",")]
    f16 = next(t.id for t in quants.TYPES.values() if t.name == "F16")
    reader = Job((choose([f16], None, 1) or choose([f16], "scalar", 1))[-1], 2048, 1, 1, memory, MEMORY)
    measured, reads, peaks = [[] for _ in lines], [], {line.tier.isa: [] for line in lines}
    for line in lines:  # pages are touched, caches warm
        line.work()
    for _ in range(a.rounds):
        reads.append(reader.figure(reader.seconds()))
        for isa, figures in peaks.items():
            figures.append(peak_gmacs(isa, 1))
        for i, line in enumerate(lines):
            measured[i].append(max(seconds(line.work) - seconds(line.empty), 1e-9))
    out = []
    for line, times in zip(lines, measured):
        m, took = MODELS[line.model], statistics.median(times)
        weights = m.layers * m.layer_weights + (m.vocab * m.hidden if line.tokens == 1 else 0)
        peak = statistics.median(peaks[line.tier.isa])
        floor = weights * a.bits / 8 / statistics.median(reads) / 1e9 if line.tokens == 1 else weights * PROMPT / peak / 1e9 if peak else 0
        row = {"op": line.name, "model": line.model, "tokens": line.tokens, "us": took / line.calls * 1e6,
               "figure": line.amount / took / 1e9, "unit": line.unit, "share": took / line.calls * line.times / floor if floor else None}
        out.append(row)
        if not a.json:
            tail = "" if row["share"] is None else f"{100 * row['share']:6.1f}% of the products' least time"
            print(f"{row['op']:20} {row['model']:11} n={row['tokens']:<4} {row['us']:9.2f} us a call {row['figure']:7.1f} {row['unit']:7}{tail}", flush=True)
    if a.json:
        print(json.dumps(out))


if __name__ == "__main__":
    main()

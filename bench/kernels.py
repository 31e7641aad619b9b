"""How fast the kernels are on this machine, beside what it can read, measured in the same run.

    python bench/kernels.py [--types Q4_1,Q8_0] [--k 2048] [--tokens 1,2,4,8,512] [--threads 1] [--isa avx2] [--mb 400] [--json]

One token: GB/s of weight bytes over a matrix much larger than the caches, and its share of
a plain linear read loop over the same bytes (a share above 1 is no error: eight streams
read more than one). More tokens: GMAC/s and the share of what the bare inner instructions
of the kernel's own tier reach on registers. Both also relative to Q4_0 on the same tier: multiply-adds per second,
measured right before it. Rounds go over all kernels in turn, and medians
of the rounds are printed, so that a busy neighbour disturbs every line alike.
"""
import argparse
import datetime
import json
import statistics
import threading
import time

import machine_facts
import numpy as np

from pyengine import quants
from pyengine.native import ffi, lib

PART = 512  # rows per call, as the executor hands them out


def finite_blocks(t: quants.QuantType, n: int) -> np.ndarray:
    """n blocks with random quants and sane scales: subnormals and NaN would be another benchmark."""
    rng = np.random.default_rng(1)
    if t.block == 1:
        x = (rng.standard_normal(n) * 0.05).astype(np.float32)
        x = x if t.bytes == 4 else x.astype(np.float16) if t.name == "F16" else (x.view(np.uint32) >> 16).astype(np.uint16)
        return x.view(np.uint8).reshape(n, t.bytes)
    blocks = rng.integers(0, 256, (n, t.bytes), np.uint8)
    if t.name == "MXFP4":  # a byte: 2^(e - 128)
        blocks[:, 0] = 120
        return blocks
    if t.name == "IQ1_M":  # its half is the top nibbles of four words, lowest first: about 0.004
        blocks[:, 49:56:2] = blocks[:, 49:56:2] & 15 | np.array([0, 0, 12, 1], np.uint8) << 4
        return blocks
    if t.name == "NVFP4":  # four bytes: 2^-3 to 2^-1
        blocks[:, :4] = rng.integers(40, 56, (n, 4))
        return blocks
    for at in {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "TQ1_0": (52,), "TQ2_0": (64,)}.get(t.name, (0, 2) if t.name in ("Q4_1", "Q5_1", "Q4_K", "Q5_K") else (0,)):
        blocks[:, at:at + 2] = rng.uniform(0.001, 0.01, n).astype(np.float16).view(np.uint8).reshape(n, 2)
    return blocks


def activations(act: int, k: int, n: int) -> tuple[np.ndarray, int]:
    stride = lib.pe_act_stride(act, k)
    raw = np.zeros(n * stride + 64, np.uint8)
    rows = raw[-raw.ctypes.data % 64:][:n * stride].reshape(n, stride)
    x = np.random.default_rng(2).standard_normal((n, k)).astype(np.float32)
    if act == quants.ACT_F32:
        rows[:, :4 * k] = x.view(np.uint8)
        return rows, stride
    block, up = (32 if act == quants.ACT_Q32 else 256), lambda b: (b + 63) // 64 * 64
    q = np.clip(np.rint(x * 40), -127, 127).astype(np.int8)
    d = np.full((n, k // block), 0.025, np.float32)
    s = q.reshape(n, -1, 32).sum(2, dtype=np.int32) if block == 32 else q.reshape(n, -1, 16).sum(2, dtype=np.int16)
    at = 0
    for section in (q, d, s) if block == 32 else quants.with_small(q, d, s):
        width = section[0].nbytes
        rows[:, at:at + width] = np.ascontiguousarray(section).view(np.uint8).reshape(n, width)
        at += up(width)
    return rows, stride


def fill(memory: np.ndarray, t: quants.QuantType) -> None:
    """The same few blocks again and again."""
    unit = finite_blocks(t, 16384).ravel()
    for at in range(0, memory.size, unit.size):
        part = memory[at:at + unit.size]
        part[:] = unit[:part.size]


class Job:
    """One kernel over one matrix, split over threads in parts of PART rows."""

    def __init__(self, row, k: int, n: int, threads: int, memory: np.ndarray, limit: int):
        t = quants.TYPES[row.wtype]
        self.row, self.name, self.type = row, ffi.string(row.name).decode(), t
        self.k, self.n, self.threads = k, n, threads
        row_bytes = t.row_bytes(k)
        self.rows = limit // row_bytes if n == 1 else min(max(limit // row_bytes // 8, PART), 2048 * 2048 // k)
        self.rows -= self.rows % PART
        self.memory, self.bytes = memory, self.rows * row_bytes
        self.x, stride = activations(row.act, k, n)
        self.y = np.empty((n, self.rows), np.float32)
        self.calls = [[] for _ in range(threads)]
        self.scratch = [np.zeros(lib.PE_SCRATCH + 64, np.uint8) for _ in range(threads)]
        for i, r0 in enumerate(range(0, self.rows, PART)):
            m, s = ffi.new("pe_mm *"), self.scratch[i % threads]
            m.w, m.x = ffi.cast("uint8_t *", memory.ctypes.data), ffi.cast("uint8_t *", self.x.ctypes.data)
            m.y, m.scratch = ffi.cast("float *", self.y.ctypes.data), ffi.cast("void *", s.ctypes.data + -s.ctypes.data % 64)
            m.w_stride, m.x_stride, m.y_stride = row_bytes, stride, self.rows
            m.k, m.n, m.r0, m.r1 = k, n, r0, r0 + PART
            self.calls[i % threads].append(m)

    def seconds(self) -> float:
        fn = self.row.fn
        return timed(lambda i: [fn(m) for m in self.calls[i]], self.threads)

    def macs(self, seconds: float) -> float:
        return self.rows * self.k * self.n / seconds

    def figure(self, seconds: float) -> float:
        return self.bytes / seconds / 1e9 if self.n == 1 else self.macs(seconds) / 1e9


def timed(work, threads: int) -> float:
    """Wall time of work(0) .. work(threads-1) side by side; cffi releases the GIL inside calls."""
    workers = [threading.Thread(target=work, args=(i,)) for i in range(1, threads)]
    start = time.perf_counter()
    for w in workers:
        w.start()
    work(0)
    for w in workers:
        w.join()
    return time.perf_counter() - start


def read_gbs(memory: np.ndarray, n: int, threads: int) -> float:
    part = n // threads // 64 * 64
    pointers = [ffi.cast("void *", memory.ctypes.data + i * part) for i in range(threads)]
    return part * threads / timed(lambda i: lib.pe_read_loop(pointers[i], part), threads) / 1e9


def peak_gmacs(isa: int, threads: int) -> float:
    """Of the best multiply-add among the instruction sets in `isa`."""
    done = [0] * threads

    def work(i):
        done[i] = lib.pe_mac_loop(isa, 1_000_000)

    seconds = timed(work, threads)
    return sum(done) / seconds / 1e9


def choose(wtypes, isa_name: str | None, n: int) -> list:
    count = ffi.new("int32_t *")
    rows = lib.pe_rows(count)
    usable = [rows[i] for i in range(count[0]) if not rows[i].isa & ~lib.pe_cpu_isa()]
    return [
        r for r in usable
        if r.wtype in wtypes and r.n_min <= n <= r.n_max
        and (f"_{isa_name}" in ffi.string(r.name).decode() if isa_name else r.isa)
    ]


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--types", help="comma-separated; default: every type with kernels")
    p.add_argument("--k", default="2048", help="columns, comma-separated")
    p.add_argument("--tokens", default="1,4,512")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--isa", help="only rows of this tier, e.g. avx2 or scalar; default: all but scalar")
    p.add_argument("--mb", type=int, default=400, help="size of the matrix read for one token")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--json", action="store_true")
    a = p.parse_args()
    wtypes = [t.id for t in quants.TYPES.values() if t.act is not None and (a.types is None or t.name in a.types.split(","))]
    limit = a.mb * 1_000_000
    memory, memory_q4_0 = np.zeros(limit, np.uint8), np.zeros(limit, np.uint8)
    out, q4_0 = [], {}  # (tier's bits, k, tokens) -> its job
    fill(memory_q4_0, quants.BY_NAME["Q4_0"])
    for wtype in wtypes:
        for k in map(int, a.k.split(",")):
            if k % quants.TYPES[wtype].block:
                continue
            jobs = [Job(r, k, n, a.threads, memory, limit) for n in map(int, a.tokens.split(",")) for r in choose([wtype], a.isa, n)]
            if not jobs:
                continue
            fill(memory[:max(job.bytes for job in jobs)], quants.TYPES[wtype])
            for job in jobs:
                at = job.row.isa, k, job.n
                if at not in q4_0:
                    rows = [r for r in choose([quants.BY_NAME["Q4_0"].id], None if job.row.isa else "scalar", job.n) if r.isa == job.row.isa]
                    q4_0[at] = Job(rows[0], k, job.n, a.threads, memory_q4_0, limit) if rows else None
            measured = [[] for _ in jobs]
            shares = [[] for _ in jobs]
            ratios = [[] for _ in jobs]
            for _ in range(a.rounds):
                for i, job in enumerate(jobs):
                    yardstick = (lambda: read_gbs(memory, limit, a.threads)) if job.n == 1 else (lambda: peak_gmacs(job.row.isa, a.threads))
                    before = yardstick()
                    base = q4_0[job.row.isa, k, job.n]
                    rate = base.macs(base.seconds()) if base else 0.0
                    seconds = job.seconds()
                    figure = job.figure(seconds)
                    ratios[i].append(job.macs(seconds) / rate if rate else 0.0)
                    best = max(before, yardstick())
                    measured[i].append(figure)
                    shares[i].append(figure / best if best else 0.0)
            for job, figures, share, ratio in zip(jobs, measured, shares, ratios):
                line = {"kernel": job.name, "k": k, "tokens": job.n, "threads": a.threads, "figure": statistics.median(figures),
                        "best": max(figures), "unit": "GB/s" if job.n == 1 else "GMAC/s"}
                line.update(type=job.type.name, isa=job.row.isa, share=statistics.median(share), of_q4_0=statistics.median(ratio) or None)
                out.append(line)
                if not a.json:
                    tail = f"{line['share']:6.2f} of a linear read" if job.n == 1 else f"{line['share']:6.2f} of the bare loop"
                    print(f"{job.name:22} k={k:<6} n={job.n:<4} {line['figure']:7.1f} (best {line['best']:6.1f}) {line['unit']:7}{tail}"
                          + (f", {line['of_q4_0']:5.2f} of Q4_0's speed" if line["of_q4_0"] else ""), flush=True)
    if a.json:
        print(json.dumps({"machine": machine_facts.cpu(), "date": datetime.date.today().isoformat(), "threads": a.threads, "rows": out}))


if __name__ == "__main__":
    main()

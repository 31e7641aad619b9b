"""What this machine reads and multiplies at best: the limits that `doctor` holds a model's speed against.

Bare loops over memory and registers (csrc/bench.c), no kernel of ours. The best of several short runs counts, since
neighbours can only take away from it. Imported by cli. Imports native and machine.
"""
import mmap
import threading
import time

from . import machine
from .native import TIERS, ffi, lib

STREAMS = 8                  # as many rows as a kernel for one token reads side by side on AVX2
RUN_SECONDS = 0.02           # of one run of the multiply-add loops

# The instruction that multiplies int8 best in each tier, of those with one of their own.
PEAKS = {
    "avx2": "vpmaddubsw, 256 bit", "avxvnni": "vpdpbusd, 256 bit", "avx512": "vpdpbusd, 512 bit",
    "neon": "smlal", "dotprod": "sdot", "i8mm": "smmla",
}  # fmt: skip


def side_by_side(work, threads: int) -> float:
    """Wall seconds of work(0) .. work(threads - 1) at the same time; the C calls in it release the GIL."""
    ready = threading.Barrier(threads)

    def run(i):
        ready.wait()
        work(i)

    workers = [threading.Thread(target=run, args=(i,)) for i in range(1, threads)]
    for w in workers:
        w.start()
    ready.wait()
    begin = time.perf_counter()
    work(0)
    for w in workers:
        w.join()
    return time.perf_counter() - begin


def buffer_bytes() -> int:
    """More than the caches hold, less than a quarter of what is free."""
    want = min(max(256 << 20, 3 * machine.cache_bytes()), 1 << 30)
    free = machine.memory_available()
    return max(1 << 24, want if free is None else min(want, free // 4)) & ~0xFFFFF


def read_rates(threads: list, *, size=None, rounds=3) -> dict:
    """{"linear": {threads: bytes/s}, "streams": {...}} of reading memory that is not in the caches."""
    size = size or buffer_bytes()
    with mmap.mmap(-1, size) as memory:
        block = b"\x55" * (1 << 20)
        for at in range(0, size, len(block)):            # untouched pages would all be the one zero page
            memory[at : at + len(block)] = block[: size - at]
        start = ffi.from_buffer("char[]", memory)
        base = int(ffi.cast("uintptr_t", start))
        loops = {"linear": lib.pe_read_loop, "streams": lambda p, n: lib.pe_read_streams(p, n, STREAMS)}
        best = {kind: dict.fromkeys(threads, 0.0) for kind in loops}
        for _ in range(rounds):
            for t in threads:
                part = size // t & ~0xFFF
                for kind, loop in loops.items():
                    seconds = side_by_side(lambda i: loop(ffi.cast("void *", base + i * part), part), t)
                    best[kind][t] = max(best[kind][t], part * t / seconds)
        ffi.release(start)
    return best


def peak_rates(threads: list, isa: int, *, rounds=5) -> dict:
    """{name: {threads: int8 multiply-adds/s}} of the bare instructions this CPU has."""
    able = [(name, TIERS[tier]) for tier, name in PEAKS.items() if TIERS[tier] & isa == TIERS[tier]]
    out = {name: dict.fromkeys(threads, 0.0) for name, _ in able}
    for name, bits in able:
        begin, n = time.perf_counter(), 20_000
        lib.pe_mac_loop(bits, n)
        n = max(1000, int(n * RUN_SECONDS / max(time.perf_counter() - begin, 1e-6)))
        for _ in range(rounds):
            for t in threads:
                done = [0] * t

                def work(i):
                    done[i] = lib.pe_mac_loop(bits, n)

                seconds = side_by_side(work, t)
                out[name][t] = max(out[name][t], sum(done) / seconds)
    return out

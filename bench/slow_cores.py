#!/usr/bin/env python3
"""What slow cores bring to a step: a simulation of parts claimed by whoever is free, for the tables of docs/threads.md.

    python bench/slow_cores.py [--rows 512] [--parts 16]

One layer's matrix products of three models, cut as csrc/exec_mm.c cuts them (mm_rows, ffn_rows, ffn_piece); time against the
performance cores alone. No memory, no barriers, no other ops: where memory is the limit, slow cores bring nothing at all.
tests/test_slow_thread.py measures the same of the real pool. Edit MACHINES for yours.
"""
import argparse
import heapq

# Name, cores and multiply-adds/s of each: fast, slow.
MACHINES = (
    ("RK3588: 4 x 53, 4 x 10.6 GMAC/s", 4, 53.3, 4, 10.6),      # sdot loops of blocks of 32 by llvm-mca, 2.4 and 1.8 GHz
    ("i5-1340P: 4 x 147, 8 x 27", 4, 147, 8, 27),               # half of the published peaks
    ("6 P x 160, 8 E x 139", 6, 160, 8, 139),
    ("3 x 38, 1 four times slower", 3, 38, 1, 9.5),
)
# Columns, rows, whether gate and up of a feed-forward, which are one instruction.
MODELS = {
    "0.5B": ((896, 1152, False), (896, 896, False), (896, 4864, True), (4864, 896, False)),
    "1B": ((2048, 3072, False), (2048, 2048, False), (2048, 8192, True), (8192, 2048, False)),
    "8B": ((4096, 6144, False), (4096, 4096, False), (4096, 14336, True), (14336, 4096, False)),
}


def up16(n):
    return (n + 15) // 16 * 16


def matrix_rows(rows, threads):
    return max(32, up16(rows // (4 * threads)))


def parts_of(k, rows, ffn, n, block, threads, per_thread):
    """Multiply-adds of each part, in the order they are claimed."""
    if not ffn:
        per = 32 if n >= 64 else matrix_rows(rows, threads)
        return [min(per, rows - r) * k * n for r in range(0, rows, per)]
    want = min(matrix_rows(rows, threads), 65536 // min(n, 512))
    per = max(block, want // block * block)
    blocks = -(-rows // per)
    piece = up16(-(-n // -(-per_thread * threads // blocks))) if per_thread else n
    piece = n if piece > n else max(piece, min(n, 128))
    return [2 * min(per, rows - r) * k * min(piece, n - t) for r in range(0, rows, per) for t in range(0, n, piece)]


def phase(parts, speeds):
    """Seconds until the last part is done."""
    free = [(0.0, i) for i in range(len(speeds))]
    heapq.heapify(free)
    end = 0.0
    for work in parts:
        now, i = heapq.heappop(free)
        now += work / speeds[i]
        end = max(end, now)
        heapq.heappush(free, (now, i))
    return end


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--rows", type=int, default=512, help="tokens of the step")
    p.add_argument("--parts", type=int, default=16, help="parts a thread that a feed-forward is cut into (FFN_PARTS)")
    args = p.parse_args()
    print("| cores | model | parts of whole prompts | parts of 128 to 512 tokens | ideal |\n|---|---|---|---|---|")
    for name, n_fast, fast, n_slow, slow in MACHINES:
        for model, shapes in MODELS.items():
            for kind, block in (("Q4_0", 32), ("K-quant", 256)):
                def layer(speeds, per_thread):
                    return sum(phase(parts_of(*s, args.rows, block, len(speeds), per_thread), speeds) for s in shapes)

                alone, both = [fast * 1e9] * n_fast, [fast * 1e9] * n_fast + [slow * 1e9] * n_slow
                base = layer(alone, args.parts)
                print(f"| {name} | {model} {kind} | {base / layer(both, 0):.2f} | {base / layer(both, args.parts):.2f} | {sum(both) / sum(alone):.2f} |")


if __name__ == "__main__":
    main()

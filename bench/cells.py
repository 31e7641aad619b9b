"""What bench/compare.py measures: models, cells, and the ratios this project holds itself to. Tables and their lookup only."""

import dataclasses
import fnmatch


TRIAL = 1024  # positions that a trial of a setting computes at most


@dataclasses.dataclass(frozen=True)
class Cell:
    name: str
    group: str  # whom we are compared with: native, avx2, or default (llama-cpp-python as it comes)
    kind: str  # prompt, generate, cold or rss
    n: int = 0  # prompt: ids; generate: steps
    ctx: int = 1  # generate: positions filled before
    batch: int = 1

    @property
    def n_ctx(self):
        """Positions of a sequence that all rounds of this cell together may need, in whole pages."""
        need = self.n + 64 if self.kind == "prompt" else self.ctx + 12 * self.n + 64
        return -(-need // 256) * 256

    @property
    def long(self):
        """Settings are tried on a shorter prompt or context, and only the best is measured."""
        return max(self.n, self.ctx) > TRIAL

    @property
    def unit(self):
        return {"cold": "s", "rss": "MB"}.get(self.kind, "tokens/s")


TITLES = {
    "cold": "cold start to first token", "rss": "peak RSS", "tg64": "generation, context 0", "tg16": "generation of 16",
    "tg64@1k": "generation, context 1k", "tg64@8k": "generation, context 8k", "pp512": "prompt of 512", "pp128": "prompt of 128",
    "pp4096": "prompt of 4096", "batch1": "1 sequence", "batch4": "4 sequences at a time", "batch16": "16 sequences at a time",
}  # fmt: skip
GROUPS = {
    "native": "pyengine, best tier, beside llama.cpp built natively",
    "avx2": "pyengine held to AVX2, beside AVX2 builds",
    "default": "a process of its own, defaults of both, beside llama-cpp-python",
}

PROMPT, GENERATE = Cell("pp512", "native", "prompt", 512), Cell("tg64", "native", "generate", 64)
AVX2 = (Cell("pp512", "avx2", "prompt", 512), Cell("tg64", "avx2", "generate", 64))
LONG = (
    Cell("tg64@1k", "native", "generate", 64, ctx=1024),
    Cell("batch1", "native", "generate", 32, ctx=16, batch=1),
    Cell("batch4", "native", "generate", 16, ctx=16, batch=4),
    Cell("batch16", "native", "generate", 8, ctx=16, batch=16),
    Cell("pp4096", "native", "prompt", 4096),
    Cell("tg64@8k", "native", "generate", 64, ctx=8192),
)
ALONE = (Cell("cold", "default", "cold"), Cell("rss", "default", "rss"))
BIG = (Cell("pp128", "native", "prompt", 128), Cell("tg16", "native", "generate", 16))

# name -> (catalog name or None, file names looked for in --models, cells)
MODELS = {
    "smollm2.Q4_1": ("smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", (PROMPT, GENERATE, *LONG, *AVX2, *ALONE)),
    "gemma-3-270m.Q4_K_M": ("gemma-3-270m", "gemma-3-270m.Q4_K_M.gguf", (PROMPT, GENERATE, *AVX2, *ALONE)),
    "llama-1b.Q4_K_M": (None, "llama-1b.Q4_K_M.gguf", (PROMPT, GENERATE, *LONG, *AVX2, *ALONE)),
    "llama-1b.Q4_0": (None, "llama-1b.Q4_0.gguf", (PROMPT, GENERATE, *AVX2)),
    "llama-1b.Q8_0": (None, "llama-1b.Q8_0.gguf", (PROMPT, GENERATE, *AVX2)),
    "moe-8x1b.Q4_K_M": (None, "moe-8x1b.Q4_K_M.gguf", (PROMPT, GENERATE)),
    "smollm2.Q8_0": (None, "SmolLM2-135M-Instruct.Q8_0.gguf", (PROMPT, GENERATE)),
    "smollm2.Q4_0": (None, "SmolLM2-135M-Instruct.Q4_0.gguf", (PROMPT, GENERATE)),
    "smollm2.Q4_K_M": (None, "SmolLM2-135M-Instruct.Q4_K_M.gguf", (PROMPT, GENERATE)),
    "smollm2.Q6_K": (None, "SmolLM2-135M-Instruct.Q6_K.gguf", (PROMPT, GENERATE)),
    "llama-8b.Q4_K_M": (None, "llama-8b.Q4_K_M.gguf", BIG),
    "llama-8b.Q4_0": (None, "llama-8b.Q4_0.gguf", BIG),
    "llama-8b.Q8_0": (None, "llama-8b.Q8_0.gguf", BIG),
}
ROUNDS = 5


def rounds(model, cell, quick):
    if quick and (cell.kind == "rss" or cell.long):
        return 1
    return 3 if quick or model.startswith("llama-8b") else ROUNDS


# Ratios we hold ourselves to: number, models, cell, group, at least. 1 generation, 2 prompts, 3 AVX2 builds,
# 4 batches, 5 a process of its own, 6 experts. A group "read" is weight bytes per second over a linear read loop;
# "batch1" is our own batch of 1.
SMALL = ("smollm2.Q4_1", "gemma-3-270m.Q4_K_M")
ONE_B = ("llama-1b.Q4_K_M", "llama-1b.Q4_0", "llama-1b.Q8_0")
EIGHT_B = ("llama-8b.Q4_K_M", "llama-8b.Q4_0", "llama-8b.Q8_0")
GOALS = (
    (1, ONE_B[:1], "tg64", "native", 2.2),
    (1, ONE_B[1:], "tg64", "native", 1.5),
    (1, SMALL, "tg64", "native", 1.4),
    (1, (SMALL[0], ONE_B[0]), "tg64@8k", "native", 2.0),
    (1, ONE_B, "tg64", "read", 1.0),
    (1, EIGHT_B, "tg16", "read", 1.0),
    (2, ONE_B[:1], "pp512", "native", 2.0),
    (2, ONE_B[1:], "pp512", "native", 1.5),
    (2, SMALL, "pp512", "native", 1.5),
    (2, ONE_B[:1], "pp4096", "native", 2.0),
    (2, SMALL[:1], "pp4096", "native", 1.5),
    (3, ONE_B, "tg64", "avx2", 2.0),
    (3, ONE_B[:1], "pp512", "avx2", 1.8),
    (3, ONE_B[1:2], "pp512", "avx2", 1.4),
    (3, ONE_B[2:], "pp512", "avx2", 1.2),
    (3, SMALL, "tg64", "avx2", 1.4),
    (3, SMALL, "pp512", "avx2", 1.4),
    (4, ONE_B[:1], "batch16", "native", 1.7),
    (4, ONE_B[:1], "batch16", "batch1", 2.5),
    (5, (SMALL[1], ONE_B[0]), "cold", "default", 1 / 0.5),
    (5, SMALL[:1], "cold", "default", 1 / 0.8),
    (5, (*SMALL, ONE_B[0]), "rss", "default", 1 / 0.65),
    (6, ("moe-8x1b.Q4_K_M",), "pp512", "native", 2.0),
)


def goals(model, cell_name):
    """{group: (number, at least)} of this cell."""
    return {group: (number, least) for number, models, cell, group, least in GOALS if model in models and cell == cell_name}


def chosen(only, numbers):
    """[(model, cell)] in the order of the table. `only`: MODEL, MODEL/CELL or MODEL/CELL/GROUP with wildcards;
    `numbers`: cells that a goal of these numbers names."""
    out = []
    for model, (_, _, cells) in MODELS.items():
        for cell in cells:
            full = f"{model}/{cell.name}/{cell.group}"
            if only and not any(fnmatch.fnmatchcase(full, f"{p}{'/*' * (2 - p.count('/'))}") for p in only):
                continue
            if numbers:
                groups = (cell.group, "read", "batch1") if cell.group == "native" else (cell.group,)
                named = any(n in numbers and group in groups for group, (n, _) in goals(model, cell.name).items())
                # our own batch of 1 is the other side of a goal
                if not named and not (4 in numbers and cell.name == "batch1" and goals(model, "batch16")):
                    continue
            out.append((model, cell))
    return out

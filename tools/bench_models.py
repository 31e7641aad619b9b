#!/usr/bin/env python3
"""Makes the models that bench/compare.py reads: synthetic Llama shapes, and SmolLM2 quantized again to other types.

    python tools/bench_models.py DIR --smollm2 FILE.gguf [--native-python PY] [--vocab FILE.gguf] [--skip-8b] [--more]

Requantizing is llama.cpp's own (llama_model_quantize of llama-cpp-python under --native-python), from the Q4_1 file:
what is measured depends on types and sizes, not on what is lost. --more adds types that compare.py does not read
(SmolLM2 in Q5_K_M, Q3_K_M, Q2_K, IQ4_NL, IQ4_XS, BF16; Llama-1B in IQ4_NL, IQ4_XS, MXFP4), for trying kernels on whole
models. Files that exist are kept. 23 GB in all, 5.0 GB without the 8B shapes. Not for users' models.
"""

import argparse
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import synthetic  # noqa: E402

FTYPES = {"Q8_0": 7, "Q4_0": 2, "Q4_K_M": 15, "Q6_K": 18}
MORE_FTYPES = {"Q5_K_M": 17, "Q3_K_M": 12, "Q2_K": 10, "IQ4_NL": 25, "IQ4_XS": 30, "BF16": 32}

QUANTIZE = """
import ctypes, sys
from llama_cpp import llama_cpp as c
silent = c.llama_log_callback(lambda level, text, data: None)
c.llama_log_set(silent, None)
params = c.llama_model_quantize_default_params()
params.ftype, params.allow_requantize, params.nthread = int(sys.argv[3]), True, 0
sys.exit(c.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), ctypes.byref(params)))
"""


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("dir", type=pathlib.Path)
    p.add_argument("--smollm2", type=pathlib.Path, help="SmolLM2-135M-Instruct.Q4_1.gguf")
    p.add_argument("--native-python", default=os.environ.get("PYENGINE_BENCH_NATIVE"), help="interpreter with llama-cpp-python")
    p.add_argument("--vocab", help="a file with a tokenizer of 128256 tokens for the synthetic shapes; default: made up")
    p.add_argument("--skip-8b", action="store_true")
    p.add_argument("--more", action="store_true")
    args = p.parse_args()
    args.dir.mkdir(parents=True, exist_ok=True)
    if args.smollm2 and args.native_python:
        for name, ftype in {**FTYPES, **(MORE_FTYPES if args.more else {})}.items():
            target = args.dir / f"SmolLM2-135M-Instruct.{name}.gguf"
            if not target.exists():
                print(target, flush=True)
                partial = target.with_name(target.name + ".partial")
                subprocess.run([args.native_python, "-c", QUANTIZE, str(args.smollm2), str(partial), str(ftype)], check=True)
                partial.replace(target)
    else:
        print("no SmolLM2 files: --smollm2 and --native-python are needed")
    for shape in ("llama-1b",) if args.skip_8b else ("llama-1b", "llama-8b"):
        for mix in ("Q4_K_M", "Q4_0", "Q8_0") + (("IQ4_NL", "IQ4_XS", "MXFP4") if args.more and shape == "llama-1b" else ()):
            synthesize(args, shape, mix, args.vocab)
    synthesize(args, "moe-8x1b", "Q4_K_M")  # 32,000 tokens


def synthesize(args, shape, mix, vocab=None):
    target = args.dir / f"{shape}.{mix}.gguf"
    if not target.exists():
        print(target, flush=True)
        synthetic.write(target, shape, mix, vocab=vocab)


if __name__ == "__main__":
    main()

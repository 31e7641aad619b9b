"""Processes that are measured whole: seconds from their start to the first byte of an answer, and peak memory.

Run by bench/compare.py under the interpreter of each engine; everything is each engine's default.

    python bench/alone.py ENGINE cold MODEL.gguf     one token after "Hello", printed
    python bench/alone.py ENGINE rss MODEL.gguf      256 ids of prompt and 64 tokens
"""

import os
import subprocess
import sys
import time

N_PROMPT, N_GENERATE = 256, 64  # together within the 512 positions that llama-cpp-python has by default


def pyengine(what, path):
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if what == "cold":
        from pyengine.cli import main

        sys.exit(main(["-m", path, "-p", "Hello", "-n", "1", "--raw", "--temp", "0"]))
    from pyengine import Llama

    with Llama(path) as model:
        answer = model.generate(list(range(1000, 1000 + N_PROMPT)), max_tokens=N_GENERATE, temperature=0, ignore_eos=True)
        print(answer.usage["completion_tokens"])


def llama_cpp(what, path):
    from llama_cpp import Llama

    model = Llama(path, verbose=False)
    if what == "cold":
        print(model("Hello", max_tokens=1, temperature=0)["choices"][0]["text"], flush=True)
        return
    tokens = model.generate(list(range(1000, 1000 + N_PROMPT)), temp=0)
    print(sum(1 for _, _ in zip(range(N_GENERATE), tokens)))


def run(python, engine, what, path, timeout):
    """Seconds to the first byte, or peak RSS in MB."""
    begin = time.perf_counter()
    process = subprocess.Popen([python, os.path.abspath(__file__), engine, what, str(path)], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
    import threading

    timer = threading.Timer(timeout, process.kill)
    timer.start()
    try:
        output = process.stdout.read(1)
        first = time.perf_counter() - begin
        output += process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    finally:
        timer.cancel()
    if process.returncode or not output:
        raise RuntimeError(f"{engine} {what} ended with {process.returncode}, {len(output)} bytes of output")
    return first if what == "cold" else usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6


if __name__ == "__main__":
    {"pyengine": pyengine, "llama_cpp": llama_cpp}[sys.argv[1]](*sys.argv[2:])

"""One engine with one model in a process of its own, driven by bench/compare.py: JSON lines in, JSON lines out.

    python bench/worker.py ENGINE MODEL.gguf THREADS SETTING

ENGINE is pyengine, llama_cpp (llama-cpp-python's ctypes API), ik_llama_cpp or xllamacpp; the last three run under
their own interpreters, so nothing of pyengine is imported for them. SETTING is "repack" or "plain": whether
llama.cpp may copy the weights into another layout. Commands, each answered by one line:

    open      n_ctx, batch, flash   a context for `batch` sequences of n_ctx positions
    start     n, batch, flash       forget everything, compute a prompt of n ids in each sequence; seconds
    generate  n, flash              n greedy steps, each for all sequences; seconds
    read                            the model's file read by one linear loop per thread; GB/s (pyengine only)

`flash` asks llama.cpp for its flash attention; contexts with and without stand side by side. Others ignore it.

A generated token is chosen by arg max: by our sampler, for llama.cpp by numpy, which is faster than its own. Each
engine is driven at the level where it is fastest from Python: our engine's steps, llama_decode, the server object.
"""

import contextlib
import json
import os
import sys
import time

MAX_STEP = 512  # ids in one step, both sides


def ids(n, seed):
    """Token ids that every measured vocabulary has."""
    out, state = [], (seed + 1) * 2654435761 % 2**32
    for _ in range(n):
        state = (1664525 * state + 1013904223) % 2**32
        out.append(1000 + (state >> 8) % 20000)
    return out


class Pyengine:
    def __init__(self, path, threads, setting):
        sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        self.path, self.threads = path, threads
        self.model, self.requests = None, []
        self.open(64, 1)

    def facts(self):
        import pyengine
        from pyengine import tune
        from pyengine.native import lib

        program = self.model.program
        read = sum(tune.token_bytes(program, i) for i in program.instrs)    # of experts those that a token takes
        names = {n[len("PE_ISA_") :].lower(): getattr(lib, n) for n in dir(lib) if n.startswith("PE_ISA_")}
        mask = self.model.program.isa
        return {
            "version": getattr(pyengine, "__version__", ""), "weight_bytes": read,
            "isa": [n for n, bit in names.items() if bit and mask & bit == bit],
        }  # fmt: skip

    def open(self, n_ctx, batch, flash=False):
        import warnings

        from pyengine import Llama

        if self.model is not None:
            self.model.close()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # more positions than the model was trained for: speed is measured
            self.model = Llama(self.path, n_ctx=n_ctx, max_seqs=batch, n_threads=self.threads, n_batch=MAX_STEP,
                               prefix_cache=False, speculate=None)
        # nothing is submitted to the engine's thread, so it never starts and steps are ours to make
        self.engine, self.requests = self.model._thread.engine, []

    def start(self, n, batch, flash=False):
        from pyengine.engine import Request
        from pyengine.sampling import Params, Sampler, new_scratch

        for request in self.requests:
            self.engine.cancel(request)
        n_vocab = self.model.program.n_vocab
        scratch, params = new_scratch(n_vocab), Params(temperature=0)
        self.requests = [Request(ids(n, seed), sampler=Sampler(params, n_vocab, 1, scratch=scratch)) for seed in range(batch)]
        begin = time.perf_counter()
        for request in self.requests:
            self.engine.add(request)
        while any(request.prompted is None for request in self.requests):
            self._step()
        return time.perf_counter() - begin

    def generate(self, n, flash=False):
        before = sum(len(request.tokens) for request in self.requests)
        begin = time.perf_counter()
        for _ in range(n):
            self._step()
        seconds = time.perf_counter() - begin
        made = sum(len(request.tokens) for request in self.requests) - before
        if made != n * len(self.requests):
            raise RuntimeError(f"{made} tokens in {n} steps of {len(self.requests)} sequences")
        return seconds

    def _step(self):
        self.engine.step()
        for request in self.requests:
            if request.done:
                raise RuntimeError(f"a request ended early: {request.finish_reason}, {request.error}")

    def read(self):
        import threading

        from pyengine.native import ffi, lib

        (file,) = self.model.gguf.files
        part = file.size // self.threads // 4096 * 4096
        pointers = [ffi.cast("void *", file.address + i * part) for i in range(self.threads)]
        best = float("inf")
        for _ in range(2):  # the first may find sleeping cores; the yardstick is the better
            others = [threading.Thread(target=lib.pe_read_loop, args=(p, part)) for p in pointers[1:]]
            begin = time.perf_counter()
            for thread in others:
                thread.start()
            lib.pe_read_loop(pointers[0], part)
            for thread in others:
                thread.join()
            best = min(best, time.perf_counter() - begin)
        return part * self.threads / best / 1e9


class LlamaCpp:
    """Mainline llama.cpp through llama-cpp-python's low-level API."""

    def __init__(self, path, threads, setting):
        from llama_cpp import __version__, llama_cpp

        self.c, self.version, self.threads = llama_cpp, __version__, threads
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.use_extra_bufts = setting == "repack"
        self._load(path, params)

    def _load(self, path, params):
        self.model = self.c.llama_model_load_from_file(path.encode(), params)
        if not self.model:
            raise RuntimeError(f"cannot load {path}")
        self.n_vocab = self.c.llama_vocab_n_tokens(self.c.llama_model_get_vocab(self.model))
        self.batch = self.c.llama_batch_init(MAX_STEP, 0, 1)
        self.contexts, self.state = {}, {}  # by flash: the context; the last tokens and their position

    def facts(self):
        return {"version": self.version, "system": self.c.llama_print_system_info().decode()}

    def _params(self, n_ctx, batch, flash):
        params = self.c.llama_context_default_params()
        params.n_ctx, params.n_seq_max = n_ctx * batch, batch
        params.n_batch = params.n_ubatch = MAX_STEP
        params.n_threads = params.n_threads_batch = self.threads
        self._set_flash(params, flash)
        return params

    def _set_flash(self, params, flash):
        params.flash_attn_type = int(flash)

    def _clear(self, context):
        self.c.llama_memory_clear(self.c.llama_get_memory(context), False)

    def open(self, n_ctx, batch, flash):
        if flash in self.contexts:
            self.c.llama_free(self.contexts.pop(flash))
        context = self.c.llama_init_from_model(self.model, self._params(n_ctx, batch, flash))
        if not context:
            raise RuntimeError("no context")
        self.contexts[flash] = context

    def _decode(self, context, rows, wanted):
        """rows: (token, position, sequence); returns the arg max after each of the `wanted` rows."""
        import numpy as np

        b = self.batch
        b.n_tokens = len(rows)
        for i, (token, position, seq) in enumerate(rows):
            b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = token, position, 1, i in wanted
            b.seq_id[i][0] = seq
        code = self.c.llama_decode(context, b)
        if code:
            raise RuntimeError(f"llama_decode: {code}")
        return [int(np.ctypeslib.as_array(self.c.llama_get_logits_ith(context, i), (self.n_vocab,)).argmax()) for i in wanted]

    def start(self, n, batch, flash):
        prompts, context, last = [ids(n, seed) for seed in range(batch)], self.contexts[flash], []
        begin = time.perf_counter()
        self._clear(context)
        for seq, prompt in enumerate(prompts):
            for first in range(0, n, MAX_STEP):
                rows = [(token, first + i, seq) for i, token in enumerate(prompt[first : first + MAX_STEP])]
                best = self._decode(context, rows, [len(rows) - 1] if first + len(rows) == n else [])
            last += best
        self.state[flash] = last, n
        return time.perf_counter() - begin

    def generate(self, n, flash):
        last, at = self.state[flash]
        context, wanted = self.contexts[flash], list(range(len(last)))
        begin = time.perf_counter()
        for _ in range(n):
            last = self._decode(context, [(token, at, seq) for seq, token in enumerate(last)], wanted)
            at += 1
        seconds = time.perf_counter() - begin
        self.state[flash] = last, at
        return seconds


class IkLlamaCpp(LlamaCpp):
    """ik_llama.cpp: the older API, repacking at load under another name."""

    def __init__(self, path, threads, setting):
        import ctypes
        import importlib.metadata

        from ik_llama_cpp import _ctypes_api

        self.c, self.threads = _ctypes_api, threads
        self.version = importlib.metadata.version("ik-llama-cpp-python")
        self._info = _ctypes_api._lib.llama_print_system_info
        self._info.restype = ctypes.c_char_p
        _ctypes_api.llama_backend_init()
        params = _ctypes_api.llama_model_default_params()
        params.repack_tensors = setting == "repack"
        if params.repack_tensors:
            params.use_mmap = False
        self._load(path, params)

    def facts(self):
        return {"version": self.version, "system": self._info().decode()}

    def _set_flash(self, params, flash):
        params.flash_attn = flash

    def _clear(self, context):
        self.c.llama_kv_cache_clear(context)


class Xllamacpp:
    """The server object, by its own clock, with the flash attention that it chooses. One sequence only."""

    def __init__(self, path, threads, setting):
        self.path, self.threads, self.setting, self.server = path, threads, setting, None

    def facts(self):
        import importlib.metadata

        import xllamacpp

        return {"version": importlib.metadata.version("xllamacpp"), "system": xllamacpp.get_system_info()}

    def open(self, n_ctx, batch, flash=False):
        import xllamacpp

        if batch != 1:
            raise RuntimeError("xllamacpp is measured with one sequence")
        self.server = None
        p = xllamacpp.CommonParams()
        p.model.path, p.n_ctx, p.n_parallel, p.verbosity = self.path, n_ctx, 1, -1
        p.n_batch = p.n_ubatch = MAX_STEP
        p.cpuparams.n_threads = p.cpuparams_batch.n_threads = self.threads
        p.warmup = p.fit_params = p.cache_prompt = False
        p.no_extra_bufts = self.setting == "plain"
        self.server = xllamacpp.Server(p)

    def _complete(self, prompt, n):
        body = {"prompt": prompt, "max_tokens": n, "temperature": 0, "cache_prompt": False, "ignore_eos": True}
        return self.server.handle_completions(body)["timings"]

    def start(self, n, batch, flash=False):
        self.prompt = ids(n, 0)
        timings = self._complete(self.prompt, 1)
        if timings["prompt_n"] != n:
            raise RuntimeError(f"{timings['prompt_n']} prompt tokens, expected {n}")
        return timings["prompt_ms"] / 1000

    def generate(self, n, flash=False):
        """The first token comes with the prompt, so n steps make n + 1 tokens."""
        timings = self._complete(self.prompt, n + 1)
        made = timings["predicted_n"]
        if made != n + 1:
            raise RuntimeError(f"{made} tokens, expected {n + 1}")
        return timings["predicted_ms"] / 1000


ENGINES = {"pyengine": Pyengine, "llama_cpp": LlamaCpp, "ik_llama_cpp": IkLlamaCpp, "xllamacpp": Xllamacpp}


def main():
    name, path, threads, setting = sys.argv[1:]
    # engines print what they like on stdout; answers go to where it was
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**line):
        answers.write(json.dumps(line) + "\n")
        answers.flush()

    try:
        engine = ENGINES[name](path, int(threads), setting)
        answer(value=engine.facts())
    except Exception as e:
        answer(error=f"{type(e).__name__}: {e}")
        return
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer(value=getattr(engine, command.pop("do"))(**command))
        except Exception as e:
            answer(error=f"{type(e).__name__}: {e}")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()

"""What this processor answers, as one line of JSON. Not a test and not imported by any: tools/emulate.py runs it
here and on emulated CPUs, and wants the same bits.

    python tests/answers.py cpu                                   tiers, rows and ops that can run
    python tests/answers.py tiny FOLDER TIER                      of each file: logits, ids and text
    python tests/answers.py logits FILE TIER KV CHUNK PROMPT GREEDY    those of test_one_answer.py
    python tests/answers.py chat FILE MESSAGE N                   a greedy answer, by class Llama
    python tests/answers.py text FILE PROMPT N                    a greedy continuation
"""

import json
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tools")]
os.environ["PYENGINE_TUNE"] = "0"


def cpu():
    from pyengine.native import TIERS, ffi, lib, rows

    have, n = lib.pe_cpu_isa(), ffi.new("int32_t *")
    ops = lib.pe_vops_all(n)
    return {
        "tiers": [name for name, bits in TIERS.items() if bits & have == bits],
        "bits": {name: int(bits) for name, bits in TIERS.items()},
        "rows": [list(row) for row in rows() if row.isa & ~have == 0],
        "ops": {ffi.string(ops[i].name).decode(): ops[i].isa for i in range(n[0]) if ops[i].isa & ~have == 0},
    }


def tiny(folder, tier):
    """The prompt is cut so that rows for one, few and many tokens all run. Files named so have a q8_0 or q4_0 cache."""
    import random

    from pyengine import Llama
    from runner import Runner
    from test_one_answer import digest

    os.environ["PYENGINE_ISA"] = tier
    draw, found = random.Random(5), {}
    ids = [draw.randrange(3, 320) for _ in range(90)]
    places = [0, 1, 4, 36, 37, 63, 64, 88, 89]
    for path in sorted(pathlib.Path(folder).glob("*.gguf")):
        kv_type = {"q8": "q8_0", "q4": "q4_0"}.get(path.stem.rsplit("_", 1)[-1], "f16")
        with Runner(path, n_ctx=256, max_seqs=1, n_threads=2, kv_type=kv_type) as runner:
            rows = [runner.step([(0, start, ids[start:end])], [p - start for p in places if start <= p < end])
                    for start, end in ((0, 37), (37, 42), (42, 89), (89, 90))]
            digests = [digest(row) for part in rows for row in part]
        with Llama(path, n_ctx=256, n_threads=2) as llm:
            done = llm.generate("The quick brown fox", max_tokens=12, temperature=0.9, seed=3)
            found[path.stem] = digests, done.text, llm.tokenize("The quick brown fox")
    return found


def logits(path, tier, kv_type, chunk, n_prompt, n_greedy):
    import pytest
    from test_one_answer import EDGES, Way, answer, prompt_ids

    n_prompt = int(n_prompt)
    places = [p for p in EDGES if p < n_prompt]
    with pytest.MonkeyPatch.context() as patch:
        digests, tokens = answer(path, Way(tier, 2, int(chunk), False, kv_type), places, patch, n_prompt, int(n_greedy))
    return {"prompt": prompt_ids(n_prompt, 1), "logits": digests, "greedy": tokens}


def chat(path, message, n):
    from pyengine import Llama

    with Llama(path, n_ctx=256, n_threads=2) as llm:
        done = llm.chat([{"role": "user", "content": message}], max_tokens=int(n), temperature=0.0)
        return {"prompt": llm.chat_tokens([{"role": "user", "content": message}]), "text": done.text}


def text(path, prompt, n):
    from pyengine import Llama

    with Llama(path, n_ctx=256, n_threads=2) as llm:
        return {"prompt": llm.tokenize(prompt), "text": llm.generate(prompt, max_tokens=int(n), temperature=0.0).text}


if __name__ == "__main__":
    work = {"cpu": cpu, "tiny": tiny, "logits": logits, "chat": chat, "text": text}[sys.argv[1]]
    print(json.dumps(work(*sys.argv[2:])), flush=True)

"""Which module builds which architecture. A file in arch/ has `hyper(gguf)`, which reads
and checks hyper-parameters, and `build(graph, hp)`, which writes the graph; it never names
a tensor type, an instruction set, a fusion or a cache layout.

Imported by plan/. Imports errors only, and the modules named here when asked for.
"""

import importlib

from ..errors import UnsupportedError

ARCHITECTURES = {
    "bert": "bert",
    "cohere2": "cohere2",
    "command-r": "command_r",
    "deepseek2": "deepseek2",
    "ernie4_5": "llama",
    "exaone": "qwen2",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "gpt-oss": "gpt_oss",
    "granite": "granite",
    "granitemoe": "granite",
    "internlm2": "llama",
    "lfm2": "lfm2",
    "lfm2moe": "lfm2",
    "llama": "llama",
    "mistral3": "mistral3",
    "nomic-bert": "nomic_bert",
    "pangu-embedded": "qwen2",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3moe",
    "smollm3": "smollm3",
    "xverse": "llama",
}


def module_for(name: str):
    """The module of an architecture string. UnsupportedError says why not, what is near and what there is."""
    if name not in ARCHITECTURES:
        known = importlib.import_module(".known", __name__)
        why, shown = known.why_not(name), name if name.isprintable() else ascii(name)[1:-1]
        raise UnsupportedError(f"architecture '{shown[:200]}' is not supported{': ' if why else ''}{why}; "
                               f"supported: {', '.join(sorted(ARCHITECTURES))}")
    return importlib.import_module(f".{ARCHITECTURES[name]}", __name__)

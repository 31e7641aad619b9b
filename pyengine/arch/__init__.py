"""Which module builds which architecture. A file in arch/ has `hyper(gguf)`, which reads
and checks hyper-parameters, and `build(graph, hp)`, which writes the graph; it never names
a tensor type, an instruction set, a fusion or a cache layout.

Imported by plan/. Imports errors only, and the modules named here when asked for.
"""

import importlib

from ..errors import UnsupportedError

ARCHITECTURES = {
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "granite": "granite",
    "llama": "llama",
    "mistral3": "mistral3",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "smollm3": "smollm3",
}

# What people try to load here, and why it is another kind of file.
NOT_A_MODEL = {
    "clip": "it is a vision projector (mmproj), not a language model",
    "t5": "encoder-decoder models are not supported",
    "t5encoder": "encoder-only text models are not supported",
    "whisper": "speech models are not supported",
}


def module_for(name: str):
    """The module of an architecture string. UnsupportedError lists what there is."""
    if name not in ARCHITECTURES:
        shown = name if name.isprintable() else ascii(name)[1:-1]
        why = f": {NOT_A_MODEL[name]}" if name in NOT_A_MODEL else ""
        raise UnsupportedError(f"architecture '{shown[:200]}' is not supported{why}; supported: {', '.join(sorted(ARCHITECTURES))}")
    return importlib.import_module(f".{ARCHITECTURES[name]}", __name__)

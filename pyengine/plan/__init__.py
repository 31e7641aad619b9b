"""From a GGUF to a program: graph, kernels, fusion, memory, instructions.

compile(gguf) reads hyper-parameters, builds the architecture's graph, lowers and fuses it
and lays out memory; nothing large is touched. Program.open allocates and binds; Program.run
does a step in one call. The engine is the only user in earnest.
"""

from .ops import KV_TYPES
from .program import Program, Seq, Step, compile

__all__ = ["KV_TYPES", "Program", "Seq", "Step", "compile"]

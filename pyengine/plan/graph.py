"""The graph language: what an architecture file is written in.

A graph is a list of textbook operations on rows of float32, one row per token of a
step, under GGUF's own tensor names. It says nothing of types, instruction sets,
fusions, pages or batches; those are lower.py's, fuse.py's and the engine's. Every
word checks its widths against the file, so a graph that was built fits its tensors.

Imported by arch/ and plan/. Imports errors and quants only.
"""

import math
import struct

from ..errors import GGUFError, UnsupportedError
from ..quants import TYPES

# What a vector (norm weight, bias) may be stored as; all but F32 are made float32 when the model is opened.
VECTOR_TYPES = ("F32", "F16", "BF16", "F64")

# Types that a file may name and no matrix product takes: what to do about it.
NO_MATRIX = {
    "Q8_1": "a form of activations, not of weights: quantize the model again, as Q8_0",
    "Q8_K": "a form of activations, not of weights: quantize the model again, as Q8_0",
    "F64": "convert the model again, with F32 or F16 weights",
    **dict.fromkeys(("I8", "I16", "I32", "I64"), "integers, where weights are expected"),
}


class Weight:
    """A tensor of the file in a role: "matrix" [rows, width] or "vector" [width]; or `n` of a matrix's rows or a
    vector's elements, from `first` on, where they lie."""

    __slots__ = ("name", "tensor", "role", "first", "n")

    def __init__(self, name, tensor, role, first=0, n=None):
        self.name, self.tensor, self.role, self.first = name, tensor, role, first
        self.n = n if n is not None else tensor.shape[0] if role == "vector" else tensor.n_rows

    @property
    def rows(self):
        return self.n if self.role == "matrix" else 1

    @property
    def width(self):
        return self.tensor.shape[0] if self.role == "matrix" else self.n

    @property
    def _unit(self):        # bytes of a row or an element: vectors are stored in types without blocks
        return self.tensor.row_bytes if self.role == "matrix" else self.tensor.nbytes // math.prod(self.tensor.shape)

    @property
    def offset(self):
        return self.tensor.offset + self.first * self._unit

    @property
    def nbytes(self):
        return self.n * self._unit

    @property
    def key(self):
        return self.name, self.first, self.n


class Node:
    """One operation. `rows` is "tokens" (a row per token of the step) or "wanted"."""

    __slots__ = ("id", "op", "inputs", "weights", "attrs", "width", "rows", "label")

    def __init__(self, id, op, inputs, weights, attrs, width, rows, label):
        self.id, self.op, self.inputs, self.weights, self.attrs = id, op, inputs, weights, attrs
        self.width, self.rows, self.label = width, rows, label


class Graph:
    def __init__(self, gguf, whole=True, n_ctx=0):
        self.gguf, self.whole = gguf, whole     # whole: every layer is built
        self.n_ctx = n_ctx                      # positions a sequence may have; 0: unknown
        self.choices = {}                       # what n_ctx decided: as much a setting of the answer as the KV type
        self.nodes = []
        self.output = None
        self.used = set()

    # ---- tensors ------------------------------------------------------------------

    def weight(self, name, *shape, role="matrix"):
        """The tensor `name`, whose ggml shape (row length first) must be `shape`. GGUFError otherwise."""
        tensor = self.gguf.tensors.get(name)
        if tensor is None:
            raise GGUFError(f"{self.gguf.path}: tensor '{name}' is missing; expected shape {list(shape)}", key=name)
        found = tuple(tensor.shape)
        while len(found) > len(shape) and found[-1] == 1:
            found = found[:-1]
        if found != tuple(shape):
            raise GGUFError(f"{self.gguf.path}: tensor '{name}' has shape {list(tensor.shape)}, expected {list(shape)}",
                            key=name, offset=tensor.offset)
        if role == "vector" and tensor.type_name not in VECTOR_TYPES:
            raise GGUFError(f"{self.gguf.path}: tensor '{name}' is a vector of type {tensor.type_name}, "
                            f"expected one of {', '.join(VECTOR_TYPES)}", key=name, offset=tensor.offset)
        if role == "matrix" and TYPES[tensor.type].act is None:
            raise UnsupportedError(f"{self.gguf.path}: tensor '{name}' is a matrix of type {tensor.type_name}: {NO_MATRIX[tensor.type_name]}")
        self.used.add(name)
        return Weight(name, tensor, role)

    def vector(self, name, n):
        return self.weight(name, n, role="vector")

    def part(self, weight, first, n):
        """n rows of a matrix, or elements of a vector, from `first` on, as a weight of their own."""
        assert 0 <= first <= first + n <= weight.n
        return Weight(weight.name, weight.tensor, weight.role, weight.first + first, n)

    def has(self, name):
        return name in self.gguf.tensors

    def optional_vector(self, name, n):
        return self.vector(name, n) if self.has(name) else None

    def numbers(self, name, n):
        """The values of a small F32 tensor, for tables computed when the model is opened."""
        t = self.vector(name, n).tensor
        if t.type_name != "F32":
            raise GGUFError(f"{self.gguf.path}: tensor '{name}' is {t.type_name}, expected F32", key=name, offset=t.offset)
        return struct.unpack(f"<{n}f", self.gguf.files[t.file].buffer[t.offset : t.offset + 4 * n])

    # ---- words --------------------------------------------------------------------

    def _node(self, op, inputs, weights=(), width=0, rows=None, label="", **attrs):
        if rows is None:
            rows = inputs[0].rows if inputs else "tokens"
        node = Node(len(self.nodes), op, tuple(inputs), tuple(weights), attrs, width, rows, label)
        self.nodes.append(node)
        return node

    def embed(self, weight, scale=1.0):
        """Rows of `weight` chosen by the step's token ids, times scale."""
        return self._node("embed", (), (weight,), width=weight.width, label=weight.name, scale=scale)

    def rope_table(self, frequencies, mscale=1.0):
        """Cosines and sines of position * frequency, times mscale: [cos..., sin...] per row."""
        return self._node("rope_table", (), width=2 * len(frequencies), label="rope",
                          frequencies=tuple(frequencies), mscale=mscale)

    def rms_norm(self, x, weight, eps):
        """x / sqrt(mean(x^2) + eps) * weight."""
        self._same(x, weight)
        return self._node("rms_norm", (x,), (weight,), width=x.width, label=weight.name, eps=eps)

    def layer_norm(self, x, weight, bias, eps):
        """(x - mean) / sqrt(var + eps) * weight + bias."""
        self._same(x, weight)
        return self._node("layer_norm", (x,), (weight, bias), width=x.width, label=weight.name, eps=eps)

    def linear(self, x, weight, bias=None):
        """x times the transpose of weight [rows, width], plus bias."""
        self._same(x, weight)
        if bias is not None and bias.width != weight.rows:
            raise GGUFError(f"tensor '{bias.name}' has {bias.width} elements, expected {weight.rows}", key=bias.name)
        return self._node("linear", (x,), (weight, bias), width=weight.rows, label=weight.name)

    def head_norm(self, x, weight, n_head, eps):
        """rms_norm of each head of x by itself; weight is as wide as a head."""
        return self._node("head_norm", (x,), (weight,), width=x.width, label=weight.name, n_head=n_head, eps=eps)

    def rope(self, x, table, n_head, kind):
        """Rotates the first table.width elements of each head: kind "adjacent" pairs (2j, 2j+1), "halves" (j, j+n/2)."""
        return self._node("rope", (x, table), width=x.width, label=x.label, n_head=n_head, kind=kind)

    def attention(self, q, k, v, *, n_head, n_kv, scale, window=0, softcap=0.0, layer):
        """Causal attention over what the cache holds and this step adds; window 0 sees everything."""
        dv = v.width // n_kv
        return self._node("attention", (q, k, v), width=n_head * dv, label=f"blk.{layer}.attn", n_head=n_head, n_kv=n_kv,
                          dk=k.width // n_kv, dv=dv, scale=scale, window=window, softcap=softcap, layer=layer)

    def short_conv(self, x, name, taps):
        """A causal convolution of each channel by itself: the sum of weight[channel, j] * x at taps-1-j positions before,
        over the rows of this step and what is kept of earlier ones. Before position 0 there is nothing."""
        tensor = self.weight(name, taps, x.width, role="vector").tensor
        return self._node("short_conv", (x,), (Weight(name, tensor, "vector", 0, taps * x.width),), width=x.width, label=name, taps=taps)

    def add(self, a, b):
        return self._node("add", (a, b), width=a.width, label=a.label)

    def mul(self, a, b):
        return self._node("mul", (a, b), width=a.width, label=a.label)

    def scale(self, x, value):
        return self._node("scale", (x,), width=x.width, label=x.label, value=value)

    def position_scale(self, x, period, slope):
        """Each row times 1 + slope * ln(1 + floor(position / period))."""
        return self._node("position_scale", (x,), width=x.width, label=x.label, period=period, slope=slope)

    def act(self, x, kind):
        """kind: "silu", "gelu" (tanh), "gelu_erf", "gelu_quick", "relu"."""
        return self._node("act", (x,), width=x.width, label=x.label, kind=kind)

    def softcap(self, x, value):
        """value * tanh(x / value)."""
        return self._node("softcap", (x,), width=x.width, label=x.label, value=value)

    def wanted(self, x):
        """Only the rows whose logits the step asks for."""
        return self._node("wanted", (x,), width=x.width, rows="wanted", label=x.label)

    def logits(self, x):
        self.output = x

    def _same(self, x, weight):
        if x.width != weight.width:
            raise GGUFError(f"tensor '{weight.name}' takes {weight.width} columns, its input has {x.width}", key=weight.name)

    # ---- after building -------------------------------------------------------------

    def check_all_used(self, ignorable=()):
        """Every tensor of the file is part of the graph, or on the architecture's list of ignorable endings."""
        extra = [n for n in self.gguf.tensors if self.whole and n not in self.used and not n.endswith(tuple(ignorable))]
        if extra:
            shown = ", ".join(f"'{n[:80]}'" for n in extra[:8]) + (f" and {len(extra) - 8} more" if len(extra) > 8 else "")
            raise GGUFError(f"{self.gguf.path}: {len(extra)} tensors that this architecture does not use: {shown}", key=extra[0])

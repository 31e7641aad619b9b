"""The graph language: what an architecture file is written in.

A graph is a list of textbook operations on rows of float32, one row per token of a
step, under GGUF's own tensor names. It says nothing of types, instruction sets,
fusions, pages or batches; those are lower.py's, fuse.py's and the engine's. Every
word checks its widths against the file, so a graph that was built fits its tensors.

Imported by arch/ and plan/. Imports errors and quants only.
"""

import math
import struct

from ..errors import GGUFError, RequestError, UnsupportedError
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
    vector's elements, from `first` on, where they lie. matrices: so many of either, one after another, an expert's or a head's each;
    rows and width are then one's, n is of all."""

    __slots__ = ("name", "tensor", "role", "first", "n", "matrices")

    def __init__(self, name, tensor, role, first=0, n=None, matrices=1):
        self.name, self.tensor, self.role, self.first, self.matrices = name, tensor, role, first, matrices
        self.n = n if n is not None else tensor.n_rows * tensor.shape[0] if role == "vector" else tensor.n_rows

    @property
    def rows(self):
        return self.n // self.matrices if self.role == "matrix" else 1

    @property
    def width(self):
        return self.tensor.shape[0] if self.role == "matrix" else self.n // self.matrices

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
    """One operation. `rows` is "tokens" (a row per token of the step), "wanted", "logits" (those of the wanted whose logits are) or
    "pairs" (a row for each expert of a token)."""

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
        self.hidden = self.output = None        # rows of the wanted tokens before the head; what the head makes of them
        self.both = False                       # attention sees what comes after a token, too
        self.labels = 0                         # rows of a classifier, which is the head in place of the vocabulary's
        self.n_used = 0                         # experts that a token takes; 0: there are none
        self.heads = 0                          # heads that have matrices of their own (head_linear); 0: there are none
        self.used = set()

    # ---- tensors ------------------------------------------------------------------

    def weight(self, name, *shape, role="matrix", matrices=1):
        """The tensor `name`, whose ggml shape (row length first) must be `shape`. GGUFError otherwise."""
        tensor = self.gguf.tensors.get(name)
        if tensor is None:
            raise GGUFError(f"{self.gguf.path}: tensor '{name}' is missing; expected shape {list(shape)}", key=name)
        if matrices > 1:
            shape = (*shape, matrices)
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
        return Weight(name, tensor, role, matrices=matrices)

    def vector(self, name, n, matrices=1):
        return self.weight(name, n, role="vector", matrices=matrices)

    def part(self, weight, first, n):
        """n rows of a matrix, or elements of a vector, from `first` on, as a weight of their own."""
        assert 0 <= first <= first + n <= weight.n and weight.matrices == 1
        return Weight(weight.name, weight.tensor, weight.role, weight.first + first, n)

    def has(self, name):
        return name in self.gguf.tensors

    def rows(self, name):
        """How many rows a matrix of the file has, where no key says it; 1 if it is missing."""
        tensor = self.gguf.tensors.get(name)
        return 1 if tensor is None else tensor.n_rows

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
        return self._node("embed", (), (weight,), width=weight.width, label=weight.name, scale=scale, by="token")

    def embed_position(self, weight):
        """Rows of `weight` chosen by position: learned ones. RequestError if n_ctx is more than it has."""
        if self.n_ctx > weight.rows:
            raise RequestError(f"n_ctx is {self.n_ctx}, and {self.gguf.path} has learned positions for {weight.rows} (tensor '{weight.name}')",
                               param="n_ctx")
        return self._node("embed", (), (weight,), width=weight.width, label=weight.name, scale=1.0, by="position")

    def embed_first(self, weight):
        """The first row of `weight` for every token."""
        return self._node("embed", (), (weight,), width=weight.width, label=weight.name, scale=1.0, by="nothing")

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

    def head_linear(self, x, weight):
        """linear of each head of x by a matrix of its own: weight has as many matrices as x has heads."""
        n = weight.matrices
        assert x.width % n == 0 and self.heads in (0, n)
        if x.width // n != weight.width:
            raise GGUFError(f"tensor '{weight.name}' takes {weight.width} columns, its input has heads of {x.width // n}", key=weight.name)
        if weight.width % 16:
            raise UnsupportedError(f"{self.gguf.path}: tensor '{weight.name}' has a matrix for each head, of {weight.width} columns; supported: multiples of 16")
        self.heads = n
        return self._node("head_linear", (x,), (weight,), width=n * weight.rows, label=weight.name)

    def splice(self, *parts):
        """Heads put together of columns, of one or two parts (x, heads, first, n): head h has the n columns from `first` on of
        x's head h, or of its only one."""
        n_head = max(heads for _, heads, _, _ in parts)
        assert len(parts) <= 2 and all(x.width % heads == 0 and heads in (1, n_head) for x, heads, _, _ in parts)
        assert all(0 <= first < first + n <= x.width // heads for x, heads, first, n in parts)
        return self._node("splice", [x for x, *_ in parts], width=n_head * sum(n for *_, n in parts), label=parts[-1][0].label,
                          parts=tuple((heads, x.width // heads, first, n) for x, heads, first, n in parts))

    def head_norm(self, x, weight, n_head, eps):
        """rms_norm of each head of x by itself; weight is as wide as a head."""
        return self._node("head_norm", (x,), (weight,), width=x.width, label=weight.name, n_head=n_head, eps=eps)

    def rope(self, x, table, n_head, kind):
        """Rotates the first table.width elements of each head: kind "adjacent" pairs (2j, 2j+1), "halves" (j, j+n/2)."""
        return self._node("rope", (x, table), width=x.width, label=x.label, n_head=n_head, kind=kind)

    def attention(self, q, k, v, *, n_head, n_kv, scale, window=0, softcap=0.0, sinks=None, layer, both=False):
        """Causal attention over what the cache holds and this step adds; window 0 sees everything. sinks: a number for each
        head, a score that the softmax counts and that has nothing behind it. both: every token sees the whole sequence, which
        is never split over steps then; all layers do, or none."""
        dv = v.width // n_kv
        if both and window:
            raise UnsupportedError(f"{self.gguf.path}: attention that is not causal, in a window, is not supported yet (layer {layer})")
        assert all(n.attrs["both"] == both for n in self.nodes if n.op == "attention")
        self.both = both
        return self._node("attention", (q, k, v), (sinks,), width=n_head * dv, label=f"blk.{layer}.attn", n_head=n_head, n_kv=n_kv,
                          dk=k.width // n_kv, dv=dv, scale=scale, window=window, softcap=softcap, layer=layer, both=both)

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

    def swiglu_oai(self, gate, up):
        """g / (1 + exp(-1.702 g)) * (u + 1) with g = min(gate, 7) and u = up held in -7..7."""
        return self._node("swiglu_oai", (gate, up), width=gate.width, label=gate.label)

    # Experts: rows "pairs" are those of (token, expert).

    def route(self, logits, n_used, kind, *, bias=None, groups=1, groups_used=1, normalize=False, scale=1.0):
        """The n_used experts of each token with the best scores, best first, equal ones by number, and their weights.
        kind: "softmax" or "sigmoid" of the logits is the score and the weight; "selected": the logit is the score, the
        weights are the softmax over those that were selected. bias: added to the scores alone. groups: only experts in
        the groups_used groups whose two best add up to most. Then weights divided by their sum, and times scale."""
        assert 1 <= n_used <= logits.width and self.n_used in (0, n_used)
        self.n_used = n_used
        return self._node("route", (logits,), (bias,), width=n_used, label=logits.label, n_expert=logits.width, kind=kind, groups=groups,
                          groups_used=groups_used, normalize=normalize, scale=scale)

    def expert_linear(self, x, route, weight, bias=None):
        """linear by each expert of a token: x has a row for each token or for each pair, the result for each pair."""
        self._same(x, weight)
        assert weight.matrices == route.attrs["n_expert"]
        return self._node("expert_linear", (x, route), (weight, bias), width=weight.rows, rows="pairs", label=weight.name)

    def mix(self, x, route):
        """The rows of a token's pairs, each times its weight, added up."""
        return self._node("mix", (x, route), width=x.width, rows="tokens", label=x.label)

    def softcap(self, x, value):
        """value * tanh(x / value)."""
        return self._node("softcap", (x,), width=x.width, label=x.label, value=value)

    def wanted(self, x):
        """Only the rows that the step asks for."""
        return self._node("wanted", (x,), width=x.width, rows="wanted", label=x.label)

    def embeddings(self, x):
        """What embeddings are made of: these rows of the wanted tokens are an output. The head, if there is one, goes on from what
        is returned, for those of them whose logits are wanted."""
        self.hidden = x
        return self._node("head_rows", (x,), width=x.width, rows="logits", label=x.label)

    def logits(self, x):
        self.output = x

    def _same(self, x, weight):
        if x.width != weight.width:
            raise GGUFError(f"tensor '{weight.name}' takes {weight.width} columns, its input has {x.width}", key=weight.name)

    def per_token(self, rows):
        """How many of an instruction's rows a token has."""
        return {"pairs": self.n_used, "heads": self.heads}.get(rows, 1)

    # ---- after building -------------------------------------------------------------

    def check_all_used(self, ignorable=()):
        """Every tensor of the file is part of the graph, or on the architecture's list of ignorable endings."""
        extra = [n for n in self.gguf.tensors if self.whole and n not in self.used and not n.endswith(tuple(ignorable))]
        if extra:
            shown = ", ".join(f"'{n[:80]}'" for n in extra[:8]) + (f" and {len(extra) - 8} more" if len(extra) > 8 else "")
            raise GGUFError(f"{self.gguf.path}: {len(extra)} tensors that this architecture does not use: {shown}", key=extra[0])

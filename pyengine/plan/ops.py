"""The instructions C knows: operand names in the order of pe_insn.a, what each operand
is to the instruction, and the names of its shape numbers and scalars. The table at the
top of csrc/exec.c says the same in C's words; what the operations of the graph mean in
numpy is in reference.py.

Imported by plan/ only. Imports nothing.
"""

import dataclasses

# pe_insn.n of EW, NORM, KV, GLU, FFN, ROUTE
EW = {"add": 0, "mul": 1, "scale": 2, "act": 3, "softcap": 4, "position_scale": 5}
ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_erf": 2, "gelu_quick": 3, "relu": 4, "swiglu_oai": 5}      # the last one for gate and up together
NORMS = {"none": 0, "rms": 1, "layer": 2}
ROPES = {"none": 0, "adjacent": 1, "halves": 2}
# logits: the first of the wanted rows, those that go through the head; a head of attention is a slot of a token as an expert is
COUNTS = {"tokens": 0, "wanted": 1, "pairs": 2, "heads": 2, "logits": 3}
BY = {"token": 0, "position": 1, "nothing": 2}         # which row of its weight an EMBED takes
ROUTES = {"softmax": 0, "sigmoid": 1, "selected": 2}

PAGE = 64            # positions per page, PE_PAGE
KV_TYPES = {"f16": (0, 128), "q8_0": (1, 68), "q4_0": (2, 36)}  # PE_KV_*, bytes a page for each dimension of a head
CHUNK = 256          # positions per attention chunk, PE_CHUNK
SPLIT_ROWS = 16      # steps of at most so many rows may split attention over chunks, PE_SPLIT_ROWS


@dataclasses.dataclass(frozen=True)
class Op:
    code: int
    operands: dict       # name -> "r" read, "w" written, "u" updated in place; in the order of pe_insn.a
    shape: tuple         # names of pe_insn.n
    scalars: tuple = ()  # names of pe_insn.f


OPS = {
    "EMBED": Op(0, {"weight": "r", "y": "w"}, ("k", "type", "row_bytes", "n_rows", "by"), ("scale",)),
    "ROPE_TABLE": Op(1, {"freq": "r", "y": "w"}, ("n",), ("mscale",)),
    "NORM": Op(2, {"x": "r", "post": "r", "residual": "u", "w": "r", "b": "r", "y": "w", "q32": "w", "q256": "w"},
               ("k", "kind", "gather"), ("eps", "gain")),
    "MM": Op(3, {"weight": "r", "x": "r", "y": "w", "bias": "r", "list": "r"}, ("k", "rows", "row_bytes", "act", "yk", "n_expert")),
    "KV": Op(4, {"q": "u", "k": "u", "v": "r", "table": "r", "q_norm": "r", "k_norm": "r", "pages": "u"},
             ("n_head", "n_kv", "dk", "dv", "n_rot", "kind", "group"), ("eps",)),
    "ATTN": Op(5, {"q": "r", "y": "w", "part": "w", "pages": "r", "sinks": "r"},
               ("n_head", "n_kv", "dk", "dv", "window", "group", "cap", "both"), ("scale", "softcap")),
    "ATTN_OUT": Op(6, {"part": "r", "y": "u", "q32": "w", "q256": "w", "sinks": "r"},
                   ("n_head", "n_kv", "dk", "dv", "window", "cap")),
    "GLU": Op(7, {"gate": "r", "up": "r", "y": "w", "q32": "w", "q256": "w"}, ("k", "kind")),
    "EW": Op(8, {"x": "r", "b": "r", "y": "w"}, ("k", "what", "kind", "period", "steps"), ("value",)),
    "FFN": Op(9, {"gate": "r", "up": "r", "x": "r", "y": "w", "q32": "w", "q256": "w", "list": "r"},
              ("k", "rows", "row_bytes", "act", "kind", "n_expert")),
    "ROUTE": Op(10, {"x": "r", "bias": "r", "weights": "w", "list": "w"}, ("n_expert", "kind", "groups", "groups_used", "normalize"), ("scale",)),
    "GROUP": Op(11, {"list": "u"}, ("n_expert",)),
    "GATHER": Op(12, {"x": "r", "list": "r", "y": "w"}, ("k", "act", "n_expert")),
    "MIX": Op(13, {"x": "r", "weights": "r", "list": "r", "y": "w"}, ("k", "n_expert")),
    "SPLICE": Op(14, {"a": "r", "b": "r", "y": "w"}, ("a_heads", "a_d", "a_first", "a_n", "b_heads", "b_d", "b_first", "b_n")),
    "CONV": Op(15, {"x": "r", "w": "r", "y": "w", "state": "u", "gate": "r", "q32": "w", "q256": "w"}, ("k", "taps")),
}


class Value:
    """Rows the program makes: kind f32, q32, q256 (activation rows) or part (chunk results) or list (who the step's experts
    are); k elements a row. kept: rows that are read from outside, whoever else reads them."""

    __slots__ = ("name", "kind", "k", "rows", "offset", "kept")

    def __init__(self, name, kind, k, rows):
        self.name, self.kind, self.k, self.rows, self.offset, self.kept = name, kind, k, rows, None, False

    @property
    def row_bytes(self):
        if self.kind == "q32":
            return up(self.k, 64) + 2 * up(self.k // 32 * 4, 64)
        if self.kind == "q256":
            return up(self.k, 64) + up(self.k // 256 * 4, 64) + up(self.k // 16 * 2, 64) + up(self.k // 256, 64)
        return up(self.k, 16) * 4


class Const:
    """Numbers made when the model is opened: frequencies (float64), scales, or a vector stored as 16 bits (float32)."""

    __slots__ = ("name", "data", "offset")

    def __init__(self, name, data):
        self.name, self.data, self.offset = name, data, None


class Pages:
    """The KV pages of one layer: the index-th of its cache group."""

    __slots__ = ("group", "index", "name")

    def __init__(self, group, index, name):
        self.group, self.index, self.name = group, index, name


class State:
    """What one layer keeps of every sequence beside its pages: `nbytes` in each slot. The pool of slots of a layer lies
    behind those of the layers before it; `before` is what these take of a slot."""

    __slots__ = ("before", "nbytes", "name")

    def __init__(self, before, nbytes, name):
        self.before, self.nbytes, self.name = before, nbytes, name


class Instr:
    """One instruction before it is laid out: operands by name, shape numbers, scalars."""

    __slots__ = ("op", "count", "args", "n", "f", "kernels", "label", "barrier", "tail")

    def __init__(self, op, count, args, n, f=None, kernels=None, label=""):
        self.op, self.count, self.n, self.f, self.kernels, self.label = op, count, n, f or {}, kernels, label
        self.args = {k: v for k, v in args.items() if v is not None}
        self.barrier = True     # the next instruction waits until this one is done
        self.tail = False       # may be run by the thread that ends the phase before, if it is little work

    def touched(self, modes):
        """Operands whose mode is in `modes` ("r", "w", "u")."""
        operands = OPS[self.op].operands
        return [v for name, v in self.args.items() if operands[name] in modes]

    def replace(self, old, new):
        for name, value in self.args.items():
            if value is old:
                self.args[name] = new


def up(n, to):
    return -(-n // to) * to

"""Graph to instructions: one operation, one or two instructions, and a kernel for each
matrix product. No fusion here (fuse.py) and no addresses (program.py).

Imported by plan/program.py. Imports plan/, native, quants through the rows it is given.
"""

import array
import dataclasses
import struct
from collections import Counter
from decimal import Context, Decimal

from ..errors import RequestError, UnsupportedError
from .ops import ACTIVATIONS, BY, CHUNK, EW, KV_TYPES, NORMS, PAGE, ROPES, ROUTES, SPLIT_ROWS, Const, Instr, Pages, State, Value, up

FORMS = ("f32", "q32", "q256")          # PE_ACT_*
PART_FLOATS = 1 << 22                   # chunk results kept at most, 16 MB: beyond it attention is not split


@dataclasses.dataclass
class CacheGroup:
    """Layers whose pages are counted together: equal window and KV shape."""

    window: int
    n_kv: int
    dk: int
    dv: int
    kv_type: str
    layers: list

    @property
    def layer_page_bytes(self):
        return self.n_kv * (self.dk + self.dv) * KV_TYPES[self.kv_type][1]

    @property
    def page_bytes(self):
        """One page of 64 positions over all layers of the group, K and V."""
        return self.layer_page_bytes * len(self.layers)


@dataclasses.dataclass(frozen=True)
class Kernels:
    """Rows of pe_rows() for one, few and many tokens; `few` and `many` are the first counts of the later two."""

    rows: tuple
    names: tuple
    few: int
    many: int
    act: int
    why: str = "static order"


def choose(type_id, type_name, all_rows, isa, measured=None, demoted=0) -> Kernels:
    """The rows for a weight type: those that were measured best on this machine (tune.Choice), else the widest
    instruction set first (`demoted` bits not counting: native.demoted), then the narrowest token range.
    UnsupportedError lists the rows that were refused."""
    mine = [r for r in all_rows if r.wtype == type_id]
    fit = sorted((r for r in mine if r.isa & isa == r.isa), key=lambda r: (-(r.isa & ~demoted), r.isa & demoted, r.n_max - r.n_min))
    if not fit:
        refused = "; ".join(f"{r.name}: this CPU or PYENGINE_ISA lacks its instruction set" for r in mine)
        raise UnsupportedError(f"no kernel for weights of type {type_name}: {refused or 'there is none'}")

    def best(n):
        return next((r for r in fit if r.n_min <= n <= r.n_max), None)

    one, many = best(1), best(512)
    few = best(2)
    if one is None or few is None or many is None:
        raise UnsupportedError(f"no kernel for weights of type {type_name} at {1 if one is None else 2 if few is None else 512} tokens; "
                               f"rows: {', '.join(f'{r.name} {r.n_min}..{r.n_max}' for r in fit)}")
    first_many = 2 if few is many else few.n_max + 1      # a gap before many.n_min is refused when the program is bound
    static = Kernels((one.index, few.index, many.index), (one.name, few.name, many.name), 2, first_many, one.act)
    return static if measured is None else _measured(static, measured, fit)


def _measured(static, choice, fit) -> Kernels:
    """The choice if its rows may run in this program for the counts they are chosen for, else the static order,
    with the reason: what was measured comes from a file."""
    by_name = {r.name: r for r in fit}
    rows = [by_name.get(name) for name in choice.rows]
    for row, name, lo, hi in zip(rows, choice.rows, (1, choice.few, choice.many), (choice.few - 1, choice.many - 1, 1 << 30)):
        refused = None
        if row is None:
            refused = f"{name[:80]!r} is no row for this type and instruction set"
        elif row.act != static.act:
            refused = f"{name} wants other activations"
        elif not covers(row, lo, hi):
            refused = f"{name} takes {row.n_min}..{row.n_max} tokens and is chosen for {lo}..{hi}"
        if refused:
            return dataclasses.replace(static, why=f"static order; tuned choice refused: {refused}")
    return dataclasses.replace(static, rows=tuple(r.index for r in rows), names=tuple(choice.rows), few=choice.few, many=choice.many,
                               why=choice.why)


def covers(row, lo, hi) -> bool:
    """Whether a row may stand for lo to hi tokens; more than n_max are handed over in pieces, of which the last
    may be a single token. The same is checked when the program is bound."""
    return row.n_min <= lo and (hi < lo or row.n_max >= hi or row.n_min <= 1)


def ew_shape(k, what, kind=0):
    return {"k": k, "what": EW[what], "kind": kind, "period": 0, "steps": 0}


class Lowering:
    def __init__(self, graph, rows, isa, n_ctx, kv_type, tuned=None, demoted=0, max_tokens=512):
        self.demoted, self.max_tokens = demoted, max_tokens
        self.graph, self.rows, self.isa, self.n_ctx, self.kv_type, self.tuned = graph, rows, isa, n_ctx, kv_type, tuned
        self.instrs, self.groups, self.states = [], [], []
        self.values = {}                # node id -> Value of kind f32
        self.forms = {}                 # (node id, form) -> Value
        self.lists = {}                 # route node id -> Value of kind list
        self.kernels = {}               # (type id, k, rows) -> Kernels
        self.consts = {}
        self.uses = Counter(x.id for node in graph.nodes for x in node.inputs)
        for node in (graph.output, graph.hidden):
            if node is not None:
                self.uses[node.id] += 1
        self.needed = {}                # node id -> activation forms its products want
        for node in graph.nodes:
            if node.op in ("linear", "expert_linear"):
                form = FORMS[self.kernels_for(node.weights[0]).act]
                self.needed.setdefault(node.inputs[0].id, []).append(form)

    def run(self):
        for node in self.graph.nodes:
            getattr(self, node.op)(node)
        return self.instrs, self.groups, self.states

    # ---- helpers --------------------------------------------------------------------

    def kernels_for(self, weight):
        t, key = weight.tensor, (weight.tensor.type, weight.width, weight.rows)
        if key not in self.kernels:
            measured = self.tuned.choice(t.type_name, weight.width, weight.rows) if self.tuned else None
            self.kernels[key] = choose(t.type, t.type_name, self.rows, self.isa, measured, self.demoted)
        return self.kernels[key]

    def emit(self, op, node, args, n, f=None, kernels=None, label=None):
        self.instrs.append(Instr(op, node.rows, args, n, f, kernels, node.label if label is None else label))

    def new(self, node, suffix=""):
        value = Value(f"{node.op}{node.id}{suffix}", "f32", node.width, node.rows)
        self.values[node.id] = value
        return value

    def of(self, node):
        return self.values[node.id]

    def vector(self, weight):
        """A vector as float32: where it lies if stored so, else a small constant."""
        if weight is None or weight.tensor.type_name == "F32":
            return weight
        if weight.key not in self.consts:
            self.consts[weight.key] = Const(weight.name, self.floats(weight))
        return self.consts[weight.key]

    def floats(self, weight) -> bytes:
        """A vector's float32 values."""
        t, n = weight.tensor, weight.n
        raw = self.graph.gguf.files[t.file].buffer[weight.offset : weight.offset + weight.nbytes]
        if t.type_name == "F64":        # rounded once; array() where struct would refuse what float32 does not hold
            return array.array("f", array.array("d", bytes(raw))).tobytes()
        if t.type_name == "F16":
            return struct.pack(f"<{n}f", *struct.unpack(f"<{n}e", raw))
        if t.type_name == "BF16":       # the upper half of a float32
            return b"".join(b"\0\0" + bytes(raw[2 * i : 2 * i + 2]) for i in range(n))
        return bytes(raw)

    def activation(self, node, form):
        """The rows of `node` in the form a kernel wants; all forms that are wanted are made at once."""
        if form == "f32":
            return self.of(node)
        if (node.id, form) not in self.forms:
            x, out = self.of(node), {}
            for f in sorted(set(self.needed[node.id]) - {"f32"}):
                out[f] = self.forms[node.id, f] = Value(f"{x.name}.{f}", f, x.k, x.rows)
            self.instrs.append(Instr("NORM", x.rows, {"x": x, **out}, {"k": x.k, "kind": NORMS["none"], "gather": 0}, {"eps": 0.0}, label="quantize"))
        return self.forms[node.id, form]

    def gathered(self, node, route, form):
        """The rows of `node`, one for each pair of `route`, in the order of the experts."""
        x = self.activation(node, form)
        if node.rows == "pairs":
            return x
        if (key := (node.id, route.id, form)) not in self.forms:
            self.forms[key] = Value(f"{x.name}.pairs", x.kind, x.k, "pairs")
            self.instrs.append(Instr("GATHER", "pairs", {"x": x, "list": self.lists[route.id], "y": self.forms[key]},
                                     {"k": x.k, "act": FORMS.index(form), "n_expert": route.attrs["n_expert"]}, label="gather"))
        return self.forms[key]

    def by_head(self, node, form, n_head):
        """The rows of `node` as a row for each of their heads. Floats of heads of whole sixteens lie so already."""
        if form == "f32":
            return self.of(node)
        x, d = self.of(node), node.width // n_head
        if (key := (node.id, "heads", form)) not in self.forms:
            self.forms[key] = Value(f"{x.name}.heads.{form}", form, d, "heads")
            self.instrs.append(Instr("NORM", "heads", {"x": x, form: self.forms[key]}, {"k": d, "kind": NORMS["none"], "gather": 0}, {"eps": 0.0}, label="quantize"))
        return self.forms[key]

    def own(self, node):
        """The value of a node that the next instruction may change in place."""
        x = self.of(node)
        if self.uses[node.id] == 1:
            return x
        copy = Value(x.name + "'", "f32", x.k, x.rows)
        self.instrs.append(Instr("EW", x.rows, {"x": x, "y": copy}, ew_shape(x.k, "scale"), {"value": 1.0}, label="copy"))
        return copy

    def ew(self, node, what, kind=0, value=0.0):
        a, b = self.of(node.inputs[0]), self.of(node.inputs[1]) if len(node.inputs) > 1 else None
        self.emit("EW", node, {"x": a, "b": b, "y": self.new(node)}, ew_shape(node.width, what, kind), {"value": value})

    # ---- one method per word of the graph ---------------------------------------------

    def embed(self, node):
        w = node.weights[0]
        t = w.tensor
        self.kernels_for(w)             # a type without kernels is refused by name here
        self.emit("EMBED", node, {"weight": w, "y": self.new(node)},
                  {"k": w.width, "type": t.type, "row_bytes": t.row_bytes, "n_rows": w.rows, "by": BY[node.attrs["by"]]}, {"scale": node.attrs["scale"]})

    def rope_table(self, node):
        freq = node.attrs["frequencies"]
        data = Const(f"rope{node.id}.freq", struct.pack(f"={len(freq)}d", *freq))
        self.emit("ROPE_TABLE", node, {"freq": data, "y": self.new(node)}, {"n": len(freq)}, {"mscale": node.attrs["mscale"]})

    def rms_norm(self, node):
        self.emit("NORM", node, {"x": self.of(node.inputs[0]), "w": self.vector(node.weights[0]), "y": self.new(node)},
                  {"k": node.width, "kind": NORMS["rms"], "gather": 0}, {"eps": node.attrs["eps"]})

    def layer_norm(self, node):
        w, b = node.weights
        self.emit("NORM", node, {"x": self.of(node.inputs[0]), "w": self.vector(w), "b": self.vector(b), "y": self.new(node)},
                  {"k": node.width, "kind": NORMS["layer"], "gather": 0}, {"eps": node.attrs["eps"]})

    def linear(self, node):
        w, bias = node.weights
        k = self.kernels_for(w)
        x = self.activation(node.inputs[0], FORMS[k.act])
        self.emit("MM", node, {"weight": w, "x": x, "y": self.new(node), "bias": self.vector(bias)},
                  {"k": w.width, "rows": w.rows, "row_bytes": w.tensor.row_bytes, "act": k.act, "yk": w.rows, "n_expert": 0}, kernels=k)

    def head_linear(self, node):
        w = node.weights[0]
        k = self.kernels_for(w)
        self.instrs.append(Instr("MM", "heads", {"weight": w, "x": self.by_head(node.inputs[0], FORMS[k.act], w.matrices), "y": self.new(node)},
                                 {"k": w.width, "rows": w.rows, "row_bytes": w.tensor.row_bytes, "act": k.act, "yk": node.width, "n_expert": w.matrices},
                                 kernels=k, label=node.label))

    def splice(self, node):
        a, b = (*node.attrs["parts"], (1, 1, 0, 0))[:2]
        names = [f"{part}_{what}" for part in "ab" for what in ("heads", "d", "first", "n")]
        x = [self.of(x) for x in node.inputs] + [None]
        self.emit("SPLICE", node, {"a": x[0], "b": x[1], "y": self.new(node)}, dict(zip(names, (*a, *b))))

    def in_place_heads(self, node, n_head, args, n, f):
        x = self.own(node.inputs[0])
        d = node.width // n_head
        self.values[node.id] = x
        self.emit("KV", node, {"q": x, **args}, {"n_head": n_head, "n_kv": 1, "dk": d, "dv": d, "n_rot": 0, "kind": 0, "group": 0, **n}, f)

    def head_norm(self, node):
        self.in_place_heads(node, node.attrs["n_head"], {"q_norm": self.vector(node.weights[0])}, {}, {"eps": node.attrs["eps"]})

    def rope(self, node):
        table = node.inputs[1]
        self.in_place_heads(node, node.attrs["n_head"], {"table": self.of(table)},
                            {"n_rot": table.width, "kind": ROPES[node.attrs["kind"]]}, {"eps": 0.0})

    def attention(self, node):
        a, sinks = node.attrs, self.vector(node.weights[0])
        key = (a["window"], a["n_kv"], a["dk"], a["dv"])
        group = next((i for i, g in enumerate(self.groups) if (g.window, g.n_kv, g.dk, g.dv) == key), None)
        if group is None:
            group = len(self.groups)
            if group == 8:
                raise UnsupportedError("more than 8 kinds of attention layers (window, KV heads, head sizes) in one model")
            if self.kv_type != "f16" and any(d % 32 or d > 1024 for d in (a["dk"], a["dv"])):
                raise RequestError(f"kv_type is {self.kv_type!r}, which takes head sizes in multiples of 32 up to 1024; {node.label} has K heads of "
                                   f"{a['dk']} and V heads of {a['dv']}", param="kv_type")
            self.groups.append(CacheGroup(*key, self.kv_type, []))
        pages = Pages(group, len(self.groups[group].layers), f"{node.label}.kv")
        self.groups[group].layers.append(a["layer"])
        q, k, v = (self.of(x) for x in node.inputs)
        heads = {"n_head": a["n_head"], "n_kv": a["n_kv"], "dk": a["dk"], "dv": a["dv"]}
        chunks = -(-self.n_ctx // CHUNK)
        # A sequence that is whole in its step has few rows only where it has few keys: nothing to split.
        cap = min(PART_FLOATS, SPLIT_ROWS * a["n_head"] * chunks * up(a["dv"] + 2, 16)) if chunks > 1 and not a["both"] else 0
        part = Value(f"part{node.id}", "part", cap, "once") if cap else None
        y = self.new(node)
        self.emit("KV", node, {"k": k, "v": v, "pages": pages}, {**heads, "n_rot": 0, "kind": 0, "group": group}, {"eps": 0.0}, label="store")
        self.emit("ATTN", node, {"q": q, "y": y, "part": part, "pages": pages, "sinks": sinks},
                  {**heads, "window": a["window"], "group": group, "cap": cap, "both": int(a["both"])},
                  {"scale": a["scale"], "softcap": a["softcap"]})
        self.emit("ATTN_OUT", node, {"part": part, "y": y, "sinks": sinks}, {**heads, "window": a["window"], "cap": cap}, label="merge")

    def short_conv(self, node):
        """The weights go tap by tap: lanes are channels. A slot keeps the taps - 1 rows before a position."""
        w, k, taps = node.weights[0], node.width, node.attrs["taps"]
        values = array.array("f", self.floats(w))
        turned = Const(w.name, b"".join(values[j::taps].tobytes() for j in range(taps)))
        state = State(sum(s.nbytes for s in self.states), (taps - 1) * up(k, 16) * 4, f"{w.name}.state")
        self.states.append(state)
        self.emit("CONV", node, {"x": self.of(node.inputs[0]), "w": turned, "y": self.new(node), "state": state}, {"k": k, "taps": taps})

    def add(self, node):
        self.ew(node, "add")

    def mul(self, node):
        self.ew(node, "mul")

    def scale(self, node):
        self.ew(node, "scale", value=node.attrs["value"])

    def position_scale(self, node):
        """Scales for every period of the context, made here: C has no logarithm to make them of the same bits everywhere."""
        period, slope, d = node.attrs["period"], Decimal(node.attrs["slope"]), Context(prec=40)
        steps = -(-self.n_ctx // period)
        if (key := ("position_scale", period, slope)) not in self.consts:
            scales = [float(d.add(1, d.multiply(slope, d.ln(Decimal(1 + i))))) for i in range(steps)]
            self.consts[key] = Const("position scales", struct.pack(f"={steps}f", *scales))
        self.emit("EW", node, {"x": self.of(node.inputs[0]), "b": self.consts[key], "y": self.new(node)},
                  {**ew_shape(node.width, "position_scale"), "period": period, "steps": steps}, {"value": 0.0})

    def act(self, node):
        self.ew(node, "act", kind=ACTIVATIONS[node.attrs["kind"]])

    def swiglu_oai(self, node):
        gate, up = (self.of(x) for x in node.inputs)
        self.emit("GLU", node, {"gate": gate, "up": up, "y": self.new(node)}, {"k": node.width, "kind": ACTIVATIONS["swiglu_oai"]})

    def route(self, node):
        a = node.attrs
        # who has pairs, where theirs begin, tokens of pairs, pairs of tokens: csrc/exec.h, pe_pairs
        pairs = Value(f"pairs{node.id}", "list", 2 + 2 * a["n_expert"] + 2 * self.max_tokens * node.width, "once")
        self.lists[node.id] = pairs
        self.emit("ROUTE", node, {"x": self.of(node.inputs[0]), "bias": self.vector(node.weights[0]), "weights": self.new(node), "list": pairs},
                  {"n_expert": a["n_expert"], "kind": ROUTES[a["kind"]], "groups": a["groups"], "groups_used": a["groups_used"],
                   "normalize": int(a["normalize"])}, {"scale": a["scale"]})
        self.instrs.append(Instr("GROUP", "pairs", {"list": pairs}, {"n_expert": a["n_expert"]}, label="group"))

    def expert_linear(self, node):
        (w, bias), (x, route) = node.weights, node.inputs
        k = self.kernels_for(w)
        self.emit("MM", node, {"weight": w, "x": self.gathered(x, route, FORMS[k.act]), "y": self.new(node), "bias": self.vector(bias),
                               "list": self.lists[route.id]},
                  {"k": w.width, "rows": w.rows, "row_bytes": w.tensor.row_bytes, "act": k.act, "yk": w.rows, "n_expert": w.matrices}, kernels=k)

    def mix(self, node):
        x, route = node.inputs
        self.emit("MIX", node, {"x": self.of(x), "weights": self.of(route), "list": self.lists[route.id], "y": self.new(node)},
                  {"k": node.width, "n_expert": route.attrs["n_expert"]})

    def softcap(self, node):
        self.ew(node, "softcap", value=node.attrs["value"])

    def wanted(self, node):
        x = self.of(node.inputs[0])
        self.emit("NORM", node, {"x": x, "y": self.new(node)}, {"k": x.k, "kind": NORMS["none"], "gather": 1}, {"eps": 0.0}, label="wanted rows")

    def head_rows(self, node):
        """No instruction: the first rows are where they are."""
        x = node.inputs[0]
        self.values[node.id] = self.of(x)
        self.of(x).kept = True

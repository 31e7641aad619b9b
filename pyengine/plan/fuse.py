"""Fusion: rules that turn several instructions into one with the same bits, each a
function from list to list. Every rule can be left out (compile(fuse=False) leaves out
all), and a test compares the answers.

Imported by plan/program.py. Imports plan/ops only.
"""

from .ops import EW, NORMS, Instr

COUNT_ROWS = ("NORM", "GLU", "ATTN_OUT", "CONV")    # instructions that can write activation rows


def fuse(instrs):
    for rule in (glu, conv_gate, wanted_norm, add_norm, post_norm, gain, heads, quantize, ffn):
        instrs = rule(instrs)
    return phases(instrs)


# ---- what reads and writes a value ----------------------------------------------------


def is_ew(instr, what):
    return instr.op == "EW" and instr.n["what"] == EW[what]


def is_norm(instr, *kinds):
    return instr.op == "NORM" and instr.n["kind"] in [NORMS[k] for k in kinds]


def without(instrs, *gone):
    return [i for i in instrs if not any(i is g for g in gone)]


class Index:
    """Readers and makers of every value, so that the rules stay linear."""

    def __init__(self, instrs):
        self.read, self.made = {}, {}
        for i in instrs:
            for v in i.touched("ru"):
                self.read.setdefault(id(v), []).append(i)
            for v in i.touched("w"):
                self.made[id(v)] = i

    def readers(self, v):
        return self.read.get(id(v), [])

    def maker(self, v):
        return self.made.get(id(v))


# ---- rules ----------------------------------------------------------------------------


def glu(instrs):
    """mul(act(gate), up) -> GLU."""
    index, out, gone = Index(instrs), [], set()
    for i in instrs:
        a = index.maker(i.args["x"]) if is_ew(i, "mul") else None
        if a is not None and is_ew(a, "act") and len(index.readers(i.args["x"])) == 1:
            gone.add(id(a))
            i = Instr("GLU", i.count, {"gate": a.args["x"], "up": i.args["b"], "y": i.args["y"]},
                      {"k": i.n["k"], "kind": a.n["kind"]}, label=i.label)
        out.append(i)
    return [i for i in out if id(i) not in gone]


def conv_gate(instrs):
    """conv(x) * gate -> a convolution that multiplies what it has made. The order of a product does not matter to its bits."""
    index, gone = Index(instrs), set()
    for i in instrs:
        for name, other in (("x", "b"), ("b", "x")):
            c = index.maker(i.args[name]) if is_ew(i, "mul") and id(i) not in gone else None
            # The gate is there before the convolution runs only if what makes it stands before.
            if (c is not None and c.op == "CONV" and "gate" not in c.args and len(index.readers(i.args[name])) == 1
                    and any(index.maker(i.args[other]) is m for m in instrs[:instrs.index(c)])):
                c.args["gate"], c.args["y"] = i.args[other], i.args["y"]
                gone.add(id(i))
    return [i for i in instrs if id(i) not in gone]


def wanted_norm(instrs):
    """norm(wanted(x)) -> a norm of the wanted rows only."""
    index, gone = Index(instrs), set()
    for i in instrs:
        if not (is_norm(i, "rms", "layer") and i.count == "wanted"):
            continue
        pick = index.maker(i.args["x"])
        if pick is not None and is_norm(pick, "none") and pick.n["gather"] and len(index.readers(i.args["x"])) == 1:
            i.args["x"], i.n["gather"] = pick.args["x"], 1
            gone.add(id(pick))
    return [i for i in instrs if id(i) not in gone]


def add_norm(instrs):
    """s = r + t; y = norm(s) -> one instruction that updates r in place. The order of the operands
    of an addition does not matter to its bits (a NaN's payload apart)."""
    position = {id(i): n for n, i in enumerate(instrs)}
    original = {id(i): dict(i.args) for i in instrs}
    index, gone, renamed = Index(instrs), set(), {}

    def now(v):
        while id(v) in renamed:
            v = renamed[id(v)]
        return v

    for i in instrs:
        for name, v in i.args.items():
            i.args[name] = now(v)
        if not is_norm(i, "rms", "layer") or "residual" in i.args:
            continue
        s = i.args["x"]
        add = index.maker(s)
        if add is None or not is_ew(add, "add") or id(add) in gone:
            continue
        if any(position[id(u)] < position[id(i)] for u in index.readers(s) if u is not i):
            continue                    # somebody reads the sum before the norm
        if i.n["gather"] and len(index.readers(s)) > 1:
            continue                    # only the wanted rows would be summed
        r, t = now(add.args["x"]), now(add.args["b"])
        if any(position[id(u)] > position[id(add)] for u in index.readers(original[id(add)]["x"])):
            continue                    # the old residual is still needed
        if r is t:
            continue
        i.args["x"], i.args["residual"] = t, r
        renamed[id(s)] = r
        gone.add(id(add))
    return [i for i in instrs if id(i) not in gone]


def post_norm(instrs):
    """The norm behind a block (gemma) joins the addition that follows it."""
    index, gone = Index(instrs), set()
    for i in instrs:
        if i.op != "NORM" or "residual" not in i.args or "post" in i.args:
            continue
        p = index.maker(i.args["x"])
        if (p is not None and is_norm(p, "rms") and set(p.args) == {"x", "w", "y"} and len(index.readers(i.args["x"])) == 1
                and p.f["eps"] == i.f["eps"] and p.count == "tokens"):
            i.args["post"], i.args["x"] = p.args["w"], p.args["x"]
            gone.add(id(p))
    return [i for i in instrs if id(i) not in gone]


def gain(instrs):
    """A block's output times a number (granite) is scaled by the addition that follows it."""
    index, gone = Index(instrs), set()
    for i in instrs:
        if i.op != "NORM" or "residual" not in i.args or "post" in i.args or i.f.get("gain"):
            continue
        s = index.maker(i.args["x"])
        if s is not None and is_ew(s, "scale") and s.f["value"] and len(index.readers(i.args["x"])) == 1 and s.count == "tokens":
            i.args["x"], i.f["gain"] = s.args["x"], s.f["value"]
            gone.add(id(s))
    return [i for i in instrs if id(i) not in gone]


def heads(instrs):
    """Head norms and rope of q and k, and the store of k and v, in one instruction before the attention."""
    out = list(instrs)
    index = Index(instrs)
    for attn in [i for i in instrs if i.op == "ATTN"]:
        store = next(i for i in index.readers(attn.args["pages"]) if i.op == "KV" and "v" in i.args)
        q, k = attn.args["q"], store.args["k"]
        if q is k:
            continue
        chains = []
        for value in (q, k):
            steps = [i for i in index.readers(value) if i.op == "KV" and i is not store]
            norms = [i for i in steps if "q_norm" in i.args]
            ropes = [i for i in steps if "table" in i.args]
            if len(norms) > 1 or len(ropes) > 1 or (norms and ropes and steps.index(norms[0]) > steps.index(ropes[0])):
                break
            chains.append((norms[0] if norms else None, ropes[0] if ropes else None))
        if len(chains) < 2:
            continue
        (qn, qr), (kn, kr) = chains
        if (qr is None) != (kr is None) or (qr and (qr.args["table"] is not kr.args["table"] or qr.n["kind"] != kr.n["kind"])):
            continue
        if qn and kn and qn.f["eps"] != kn.f["eps"]:
            continue
        store.args["q"] = q
        if qr:
            store.args["table"], store.n["n_rot"], store.n["kind"] = qr.args["table"], qr.n["n_rot"], qr.n["kind"]
        if qn:
            store.args["q_norm"], store.f["eps"] = qn.args["q_norm"], qn.f["eps"]
        if kn:
            store.args["k_norm"], store.f["eps"] = kn.args["q_norm"], kn.f["eps"]
        store.label = attn.label
        gone = [i for i in (qn, qr, kn, kr) if i is not None]
        out = without(out, *gone)
    return out


def quantize(instrs):
    """Activation rows are written by the instruction that makes their floats, if it can."""
    index, gone = Index(instrs), set()
    for i in instrs:
        if not is_norm(i, "none") or "y" in i.args or i.n["gather"]:
            continue
        x = i.args["x"]
        m = index.maker(x) or next((u for u in index.readers(x) if u.op == "ATTN_OUT"), None)
        if m is not None and m.op == "ATTN":
            m = next(u for u in index.readers(x) if u.op == "ATTN_OUT")
        if m is None or m.op not in COUNT_ROWS or m.count != i.count or (m.op == "NORM" and m.n["kind"] == 0):
            continue
        for form in ("q32", "q256"):
            if form in i.args:
                m.args[form] = i.args[form]
        if m.op != "ATTN_OUT" and not x.kept and all(u is i for u in index.readers(x)):
            del m.args["y"]
        gone.add(id(i))
    return [i for i in instrs if id(i) not in gone]


def ffn(instrs):
    """The products of gate and up and the GLU between them, for one range of rows after another."""
    index, out, gone = Index(instrs), [], set()
    for i in instrs:
        if i.op == "GLU":
            gate, up = index.maker(i.args["gate"]), index.maker(i.args["up"])
            if (all(m is not None and m.op == "MM" and "bias" not in m.args and m.count == i.count
                    and len(index.readers(m.args["y"])) == 1 for m in (gate, up))
                    and gate.args["x"] is up.args["x"] and gate.args.get("list") is up.args.get("list") and gate.kernels == up.kernels and gate.n == up.n):
                outputs = {name: i.args[name] for name in ("y", "q32", "q256") if name in i.args}
                n = {name: gate.n[name] for name in ("k", "rows", "row_bytes", "act", "n_expert")}
                gone.update((id(gate), id(up)))
                i = Instr("FFN", i.count, {"gate": gate.args["weight"], "up": up.args["weight"], "x": gate.args["x"], **outputs,
                                        "list": gate.args.get("list")},
                          {**n, "kind": i.n["kind"]}, kernels=gate.kernels, label=gate.label)
        out.append(i)
    return [i for i in out if id(i) not in gone]


def phases(instrs):
    """Takes out the barriers between neighbours that do not need each other. What is neither a matrix product nor
    attention may be the tail of the phase before it."""
    read, written = set(), set()
    for n, i in enumerate(instrs):
        r = {key(v) for v in i.touched("ru")}
        w = {key(v) for v in i.touched("wu")}
        i.tail = i.op not in ("MM", "FFN", "ATTN")
        if n and not (r & written or w & written or w & read):
            instrs[n - 1].barrier = False
            read |= r
            written |= w
        else:
            read, written = r, w
    return instrs


def key(value):
    """Pages of one layer are one thing, whatever object names them."""
    return (value.group, value.index) if hasattr(value, "group") else id(value)

"""The graph in numpy: what every operation means, in float64, one sequence at a time.

The oracle of the compiled program: same file, same tokens, no fusion, no pages, no
kernels. It keeps the three places where the definition itself rounds (docs/arithmetic.md):
activations of quantized products, K and V (and q beside K in blocks), embeddings as float32. Slow, and
imported by tests only.
"""

from .. import quants
from ..errors import UnsupportedError
from .lower import FORMS


def logits(graph, tokens, act_of, kv_type="f16"):
    """float64 [len(tokens), n_vocab]: what the model says after each token, from position 0.
    act_of(type id) is the activation form (PE_ACT_*) of a weight type."""
    return outputs(graph, tokens, act_of, kv_type)[1]


def outputs(graph, tokens, act_of, kv_type="f16"):
    """(what embeddings are made of, float64 [len(tokens), n_embd]; the logits, or None where there is no head)."""
    run = Reference(graph, tokens, act_of, kv_type)
    for node in graph.nodes:
        run.values[node.id] = getattr(run, node.op)(node)
    return run.values[graph.hidden.id], graph.output and run.values[graph.output.id]


class Reference:
    def __init__(self, graph, tokens, act_of, kv_type):
        import numpy

        self.np, self.graph, self.tokens, self.act_of = numpy, graph, list(tokens), act_of
        self.kv_type = kv_type
        self.values, self.weights, self.chosen = {}, {}, {}

    def of(self, node, i=0):
        return self.values[node.inputs[i].id]

    def weight(self, w):
        """[rows, width] or [width], float64."""
        if w.key not in self.weights:
            t = w.tensor
            raw = self.graph.gguf.files[t.file].buffer[w.offset : w.offset + w.nbytes]
            m = quants.dequantize(t.type, raw, w.width).astype(self.np.float64)
            self.weights[w.key] = m[0] if w.role == "vector" and w.matrices == 1 else m
        return self.weights[w.key]

    # ---- words ----------------------------------------------------------------------

    def embed(self, node):
        np, n = self.np, len(self.tokens)
        which = {"token": self.tokens, "position": range(n), "nothing": [0] * n}[node.attrs["by"]]
        rows = self.weight(node.weights[0])[list(which)].astype(np.float32)
        return (rows * np.float32(node.attrs["scale"])).astype(np.float64)

    def rope_table(self, node):
        np = self.np
        angle = np.arange(len(self.tokens), dtype=np.float64)[:, None] * np.array(node.attrs["frequencies"])
        return np.concatenate([np.cos(angle), np.sin(angle)], axis=1) * node.attrs["mscale"]

    def _rms(self, x, w, eps):
        np = self.np
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(eps)) * w

    def rms_norm(self, node):
        return self._rms(self.of(node), self.weight(node.weights[0]), node.attrs["eps"])

    def layer_norm(self, node):
        np, x = self.np, self.of(node)
        w, b = node.weights
        x = x - x.mean(axis=-1, keepdims=True)
        y = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(node.attrs["eps"])) * self.weight(w)
        return y if b is None else y + self.weight(b)

    def rounded(self, x, w):
        """The rows of x as a product with w takes them."""
        np = self.np
        x = x.astype(np.float32)
        form = FORMS[self.act_of(w.tensor.type)]
        if form != "f32":
            quantize = quants.quantize_q32 if form == "q32" else quants.quantize_q256
            out = []
            for row in x:
                q, d, *_ = quantize(row)
                q = np.asarray(q, np.float64).reshape(-1)
                out.append(q * np.repeat(np.asarray(d, np.float64).reshape(-1), q.size // np.size(d)))
            x = np.stack(out)
        return x.astype(np.float64)

    def linear(self, node):
        w, bias = node.weights
        y = self.rounded(self.of(node), w) @ self.weight(w).T
        return y if bias is None else y + self.weight(bias)

    def head_linear(self, node):
        w = node.weights[0]
        x = self.of(node)
        x = self.rounded(x.reshape(-1, w.width), w).reshape(len(x), w.matrices, w.width)
        return self.np.einsum("thk,hrk->thr", x, self.weight(w).reshape(w.matrices, w.rows, -1)).reshape(len(x), -1)

    def splice(self, node):
        np, n_head, out = self.np, max(heads for heads, *_ in node.attrs["parts"]), []
        for i, (heads, d, first, n) in enumerate(node.attrs["parts"]):
            x = self.of(node, i)
            out.append(np.broadcast_to(x.reshape(len(x), heads, d)[:, :, first : first + n], (len(x), n_head, n)))
        return np.concatenate(out, axis=2).reshape(len(out[0]), -1)

    # Rows of pairs are [tokens, used, width] here.

    def route(self, node):
        np, a, x = self.np, node.attrs, self.of(node)
        if a["kind"] == "softmax":
            prob = np.exp(x - x.max(axis=1, keepdims=True))
            prob /= prob.sum(axis=1, keepdims=True)
        else:
            prob = 1 / (1 + np.exp(-x)) if a["kind"] == "sigmoid" else x
        score = prob if node.weights[0] is None else prob + self.weight(node.weights[0])
        if a["groups"] > 1:
            by_group = np.sort(score.reshape(len(x), a["groups"], -1), axis=2)[:, :, -2:].sum(axis=2)
            kept = np.argsort(-by_group, axis=1, kind="stable")[:, : a["groups_used"]]
            out = np.ones((len(x), a["groups"]), bool)
            np.put_along_axis(out, kept, False, axis=1)
            score = np.where(np.repeat(out, score.shape[1] // a["groups"], axis=1), -np.inf, score)
        chosen = np.argsort(-score, axis=1, kind="stable")[:, : node.width]
        w = np.take_along_axis(prob, chosen, axis=1)
        if a["kind"] == "selected":
            w = np.exp(w - w.max(axis=1, keepdims=True))
            w /= w.sum(axis=1, keepdims=True)
        if a["normalize"]:
            w /= np.maximum(w.sum(axis=1, keepdims=True), 2.0**-14)
        self.chosen[node.id] = chosen
        return w * a["scale"]

    def expert_linear(self, node):
        np, (w, bias), chosen = self.np, node.weights, self.chosen[node.inputs[1].id]
        x = self.of(node)
        x = np.stack([self.rounded(rows, w) for rows in (x if x.ndim == 3 else np.repeat(x[:, None], chosen.shape[1], axis=1))])
        y = np.einsum("tsk,tsrk->tsr", x, self.weight(w).reshape(w.matrices, w.rows, -1)[chosen])
        return y if bias is None else y + self.weight(bias).reshape(w.matrices, -1)[chosen]

    def mix(self, node):
        return (self.of(node) * self.of(node, 1)[:, :, None]).sum(axis=1)

    def swiglu_oai(self, node):
        np = self.np
        gate, up = np.minimum(self.of(node), 7), np.clip(self.of(node, 1), -7, 7)
        return gate / (1 + np.exp(-1.702 * gate)) * (up + 1)

    def head_norm(self, node):
        x = self.of(node)
        h = x.reshape(len(x), node.attrs["n_head"], -1)
        return self._rms(h, self.weight(node.weights[0]), node.attrs["eps"]).reshape(x.shape)

    def rope(self, node):
        x, table = self.of(node), self.of(node, 1)
        n = table.shape[1]
        c, s = table[:, None, : n // 2], table[:, None, n // 2 :]
        h = x.reshape(len(x), node.attrs["n_head"], -1).copy()
        kind = node.attrs["kind"]
        if kind == "adjacent":
            a, b = slice(0, n, 2), slice(1, n, 2)
        elif kind == "halves":
            a, b = slice(0, n // 2), slice(n // 2, n)
        else:
            raise UnsupportedError(f"rope kind {kind!r}")
        x0, x1 = h[..., a].copy(), h[..., b].copy()
        h[..., a], h[..., b] = x0 * c - x1 * s, x1 * c + x0 * s
        return h.reshape(x.shape)

    def in_blocks(self, x, d_type):
        """x in blocks of 32 as int8 times d: q beside keys in blocks with d as it is, keys and values of q8_0 with d as float16."""
        np, b = self.np, x.reshape(-1, 32)
        d = np.abs(b).max(axis=1, keepdims=True) / 127
        q = np.rint(np.divide(b, d, out=np.zeros_like(b), where=d > 0))
        return (q * d.astype(d_type).astype(np.float64)).reshape(x.shape)

    def in_nibbles(self, x):
        """x in blocks of 32 as -8..7 times d, where the first of the largest is -8."""
        np, b = self.np, x.reshape(-1, 32)
        d = np.take_along_axis(b, np.abs(b).argmax(axis=1)[:, None], 1) / -8
        q = np.minimum(np.floor(np.divide(b, d, out=np.zeros_like(b), where=d != 0) + 8.5), 15) - 8
        return (q * d.astype(np.float16).astype(np.float64)).reshape(x.shape)

    def cached(self, x):
        np = self.np
        x = x.astype(np.float32).astype(np.float64)
        if self.kv_type == "f16":
            return x.astype(np.float16).astype(np.float64)
        return self.in_blocks(x, np.float16) if self.kv_type == "q8_0" else self.in_nibbles(x)

    def attention(self, node):
        np, a = self.np, node.attrs
        n, g = len(self.tokens), a["n_head"] // a["n_kv"]
        q = self.of(node).reshape(n, a["n_kv"], g, a["dk"])
        k = self.cached(self.of(node, 1)).reshape(n, a["n_kv"], a["dk"])
        v = self.cached(self.of(node, 2)).reshape(n, a["n_kv"], a["dv"])
        if self.kv_type != "f16":
            q = self.in_blocks(q, np.float64)
        s = np.einsum("ihgd,jhd->hgij", q, k) * a["scale"]
        if a["softcap"]:
            s = a["softcap"] * np.tanh(s / a["softcap"])
        i, j = np.arange(n)[:, None], np.arange(n)[None, :]
        seen = (j <= i) & ((j > i - a["window"]) if a["window"] else True)
        s = np.where(seen | a["both"], s, -np.inf)
        if node.weights[0] is not None:         # a column of its own, which nothing is read through
            s = np.concatenate([s, np.broadcast_to(self.weight(node.weights[0]).reshape(a["n_kv"], g, 1, 1), (*s.shape[:3], 1))], axis=-1)
        p = np.exp(s - s.max(axis=-1, keepdims=True))
        p = (p / p.sum(axis=-1, keepdims=True))[..., :n]
        return np.einsum("hgij,jhd->ihgd", p, v).reshape(n, -1)

    def short_conv(self, node):
        np, x, taps = self.np, self.of(node), node.attrs["taps"]
        w = self.weight(node.weights[0]).reshape(x.shape[1], taps)
        past = np.concatenate([np.zeros((taps - 1, x.shape[1])), x])
        return sum(past[j : j + len(x)] * w[:, j] for j in range(taps))

    def add(self, node):
        return self.of(node) + self.of(node, 1)

    def mul(self, node):
        return self.of(node) * self.of(node, 1)

    def scale(self, node):
        return self.of(node) * node.attrs["value"]

    def position_scale(self, node):
        np, a = self.np, node.attrs
        return self.of(node) * (1 + a["slope"] * np.log1p(np.arange(len(self.tokens)) // a["period"]))[:, None]

    def act(self, node):
        np, x, kind = self.np, self.of(node), node.attrs["kind"]
        if kind == "silu":
            return x / (1 + np.exp(-x))
        if kind == "gelu":
            return 0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))
        if kind == "gelu_erf":
            from math import erf

            return 0.5 * x * (1 + np.vectorize(erf)(x / 2**0.5))
        if kind == "gelu_quick":
            return x / (1 + np.exp(-1.702 * x))
        return np.maximum(x, 0)

    def softcap(self, node):
        cap = node.attrs["value"]
        return cap * self.np.tanh(self.of(node) / cap)

    def wanted(self, node):
        return self.of(node)            # the reference wants every row

    head_rows = wanted

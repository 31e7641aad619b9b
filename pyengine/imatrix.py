"""Importance matrices: how much each column of a weight mattered in a calibration run, as llama.cpp's GGUF form keeps it.

Reads the file and no model; convert.py weighs errors with what it gives. Imported by convert and the command line.
"""
import os

from .errors import GGUFError
from .gguf import GGUF
from .mapped import shown


def read(path: str | os.PathLike) -> dict:
    """{weight name: float32 [matrices, columns]}: mean squared input of each column, above 0; one matrix per expert."""
    import numpy as np

    with open(path, "rb") as f:
        start = f.read(4)
    if start != b"GGUF":
        raise GGUFError(f"{shown(os.fspath(path))}: expected an importance matrix in GGUF form, found {start!r} at its "
                        f"start (llama-imatrix writes the GGUF form today; it converts older files)", offset=0)
    out = {}
    with GGUF(path) as g:
        for name in g.tensors:
            if not name.endswith(".in_sum2"):
                continue
            weight = name[: -len(".in_sum2")]
            counts = f"{weight}.counts"
            if counts not in g.tensors:
                raise g.tensor_error(name, f"expected a tensor '{counts}' beside it")
            sums, n = _floats(g, name, np), _floats(g, counts, np)
            if n.size != len(sums):
                raise g.tensor_error(counts, f"found {n.size} counts, expected {len(sums)}, one per matrix of '{name}'")
            bad = ~np.isfinite(sums) | (sums < 0)
            if bad.any() or not (np.isfinite(n) & (n >= 0)).all():
                raise g.tensor_error(name, "found a negative or non-finite sum or count, expected sums of squares")
            mean = sums / np.maximum(n.reshape(-1, 1), 1)
            mean[mean.sum(axis=1) == 0] = 1              # a matrix that never ran: every column alike
            # only ratios count: brought below 1 by a power of two, so that no product of sums leaves a float
            mean = np.ldexp(mean, -np.frexp(mean.max(axis=1, keepdims=True))[1])
            # a column that never fired may still fire: it counts little, not nothing
            out[weight] = np.ascontiguousarray(np.maximum(mean, mean.mean(axis=1, keepdims=True) * 1e-4), dtype=np.float32)
        if not out:
            raise GGUFError(f"{shown(g.path)}: holds no tensor named *.in_sum2, expected an importance matrix")
    return out


def _floats(g: GGUF, name: str, np):
    t = g.tensors[name]
    if t.type_name != "F32":
        raise g.tensor_error(name, f"found {t.type_name}, expected F32")
    raw = np.frombuffer(g.files[t.file].buffer, dtype="<f4", count=t.nbytes // 4, offset=t.offset)
    return raw.reshape(-1, t.shape[0]).astype(np.float64)

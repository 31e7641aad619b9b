"""quants.py: the type table, refusals, and the meaning of activation quantization."""
import math
import subprocess
import sys

import gguf
import numpy as np
import pytest

from pyengine import quants
from pyengine.errors import RequestError, UnsupportedError
from pyengine.native import ffi, lib


def test_sizes_are_those_of_the_gguf_package():
    for t in quants.TYPES.values():
        try:
            ours, theirs = t, gguf.GGMLQuantizationType(t.id)
        except ValueError:
            continue  # newer than the package
        assert ours.name == theirs.name
        if t.name not in ("Q8_1",):  # stored here as two halves; the package counts two floats
            assert (ours.block, ours.bytes) == gguf.GGML_QUANT_SIZES[theirs]
    assert quants.BY_NAME["Q4_K"].id == 12 and quants.by_id(12).row_bytes(512) == 288


def test_which_types_have_kernels():
    assert {t.name for t in quants.TYPES.values() if t.act is not None} == set(quants._MEANING)
    assert quants.BY_NAME["Q8_K"].act is None


def test_codebooks_are_those_of_the_gguf_package():
    for name, part in {"IQ1_S": 8, "IQ1_M": 8, "IQ2_XXS": 1, "IQ2_XS": 1, "IQ2_S": 1, "IQ3_XXS": 1, "IQ3_S": 1}.items():
        theirs = getattr(gguf.quants, name)
        theirs.init_grid()
        entries, width = theirs.grid_shape
        places = np.zeros((-(-entries * width // 256), 256 // width), "i8")
        places.ravel()[:entries] = np.arange(entries)
        ours = quants._entries(name, places).reshape(-1, width)[:entries]
        assert np.array_equal(ours, theirs.grid.reshape(entries, width) * part), name
    n = ffi.new("int32_t[2]")
    assert lib.pe_iq_grid(quants.BY_NAME["Q4_K"].id, n, n + 1) == ffi.NULL and list(n) == [0, 0]


def test_refusals_name_what_was_asked():
    with pytest.raises(UnsupportedError, match="999"):
        quants.by_id(999)
    with pytest.raises(UnsupportedError, match="Q8_K"):
        quants.dequantize(15, bytes(292), 256)
    with pytest.raises(RequestError, match="block of 256"):
        quants.BY_NAME["Q4_K"].row_bytes(128)
    with pytest.raises(RequestError, match="143 bytes"):
        quants.dequantize(12, bytes(143), 256)
    with pytest.raises(RequestError, match="33"):
        quants.quantize_q32(np.zeros(33, "f4"))
    with pytest.raises(RequestError, match="100"):
        quants.activation_rows(quants.ACT_Q256, np.zeros((1, 100), "f4"))


def test_importing_it_does_not_import_numpy():
    code = "import pyengine.quants, sys; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_dequantize_takes_any_buffer_and_returns_its_own_memory():
    raw = np.arange(2 * 36, dtype=np.uint8)[:72].tobytes()
    a = quants.dequantize(2, raw, 64)
    b = quants.dequantize(2, memoryview(raw), 64)
    assert a.shape == (2, 64) and a.dtype == np.float32 and np.array_equal(a, b)
    floats = np.arange(6, dtype="f4")
    out = quants.dequantize(0, floats.view("u1"), 3)
    out[:] = 9
    assert floats[1] == 1


@pytest.mark.parametrize("block, quantize", [(32, quants.quantize_q32), (256, quants.quantize_q256)])
def test_activation_quantization(block, quantize):
    rng = np.random.default_rng(5)
    x = (rng.normal(0, 1, (6, 4 * block)) * 10.0 ** rng.integers(-20, 20, (6, 1))).astype("f4")
    q, d, s = quantize(x)
    amax = np.abs(x).reshape(6, 4, block).max(axis=-1)
    assert np.array_equal(d, amax / np.float32(127))
    assert np.abs(q.astype(int).reshape(6, 4, block)).max(axis=-1).min() == 127 == np.abs(q.astype(int)).max()
    error = np.abs(x.reshape(6, 4, block) - d[..., None].astype("f8") * q.reshape(6, 4, block))
    assert (error <= 0.5001 * d[..., None]).all()
    per = 32 if block == 32 else 16
    assert s.dtype == (np.int32 if block == 32 else np.int16)
    assert np.array_equal(s, q.astype(int).reshape(6, -1, per).sum(axis=-1))


@pytest.mark.parametrize("block, quantize", [(32, quants.quantize_q32), (256, quants.quantize_q256)])
def test_activation_edges(block, quantize):
    def one(*values):
        x = np.zeros(2 * block, dtype="f4")
        x[:len(values)] = values
        q, d, s = quantize(x)
        return q[:len(values)].tolist(), float(d[0]), d, q, s

    for bad in (math.nan, math.inf, -math.inf):
        _, first, d, q, s = one(1.0, bad, 3.0)
        assert math.isnan(first) and d[1] == 0 and not q.any() and not s.any()
    assert one(2.0**-101, -(2.0**-102))[:2] == ([0, 0], 0.0)
    assert one(2.0**-100)[:2] == ([127], float(np.float32(2.0**-100) / np.float32(127)))
    assert one(-0.0)[:2] == ([0], 0.0)
    top = float(np.finfo(np.float32).max)
    assert one(top, -top, top / 2)[0] == [127, -127, 64]       # 63.5 to even
    assert one(127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 126.5)[0] == [127, 0, 2, 2, 0, -2, 126]  # ties to even
    assert one(1.0, -1.0)[0] == [127, -127]


def test_activation_rows_lie_as_kernels_read_them():
    x = np.random.default_rng(6).normal(0, 1, (3, 512)).astype("f4")
    for act, quantize, sizes in ((quants.ACT_Q32, quants.quantize_q32, (512, 64, 64)),
                                 (quants.ACT_Q256, lambda x: quants.with_small(*quants.quantize_q256(x)), (512, 64, 64, 64))):
        rows = quants.activation_rows(act, x)
        assert rows.ctypes.data % 64 == 0 and rows.shape[1] == sum(sizes)
        at = 0
        for section, size in zip(quantize(x), sizes):
            raw = np.ascontiguousarray(section[1]).view("u1")
            assert rows[1, at:at + raw.size].tobytes() == raw.tobytes()
            at += size
    assert np.array_equal(quants.activation_rows(quants.ACT_F32, x).view("f4")[:, :512], x)

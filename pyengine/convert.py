"""Models to other weight types: reads a GGUF model, writes one whose matrices take fewer bits.

`quantize` is the whole of it; which tensor gets which type is mixes.py's business, the numbers are
csrc/quantize*.c's. Rows are cut into pieces that threads take one by one, and pieces are written in file order, so
memory stays near 20 MB per thread whatever the model's size, and no byte depends on the threads. Keys are carried over
as the bytes they are: the gguf package's writer would unpack and repack 280,000 strings, for a minute.
Imported by the command line and as pyengine.quantize.
"""
import os
import re
import shutil
import struct
import time
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import NamedTuple

from . import machine, mixes
from .errors import PyengineError, RequestError, UnsupportedError, quoted
from .gguf import GGUF
from .mapped import shown
from .native import ffi, isa_mask, lib
from .quants import BY_NAME, quantize_rows
from .request import whole

QUANTIZATION_VERSION = 2
_PIECE = 1 << 20          # weights a thread takes at a time: 4 MB of floats, 0.1 to 0.5 s of K-quants
_HEAD, _ENTRY = 128, 56   # bytes of a header beside keys and tensors (split.* are 82), and of a tensor's entry beside its name, at most
_COPY = 1 << 24           # bytes of a tensor that is carried over as it is
_UINT16, _UINT32, _INT32 = 2, 4, 5


class Converted(NamedTuple):
    """One tensor of a report."""

    name: str
    shape: tuple[int, ...]
    before: str      # type names
    after: str
    nbytes_before: int
    nbytes_after: int


class Report(NamedTuple):
    """What was made, or with dry_run would be."""

    paths: tuple[str, ...]
    type: str
    tensors: tuple[Converted, ...]
    header_bytes: int
    seconds: float

    @property
    def counts(self) -> dict[str, int]:
        """Tensors of each type, most first."""
        return dict(Counter(t.after for t in self.tensors).most_common())

    @property
    def bytes_before(self) -> int:
        return sum(t.nbytes_before for t in self.tensors)

    @property
    def bytes_after(self) -> int:
        return sum(t.nbytes_after for t in self.tensors)

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.bytes_after / max(1, sum(_elements(t.shape) for t in self.tensors))


class _Part(NamedTuple):
    """One output file: what stands in its table, and where its data goes."""

    path: str
    head: bytes
    tensors: list     # (Tensor, type name, bytes)


def quantize(path, out, type: str, *, requantize: bool = False, pure: bool = False, output_tensor_type: str | None = None,
             token_embedding_type: str | None = None, tensor_types=(), imatrix=None, keep_split: bool = False,
             split_max_size: int | None = None, threads: int | None = None, force: bool = False, dry_run: bool = False,
             progress=None) -> Report:
    """Writes the model at `path` (the first file of a split one) to `out` in another type.

    type: a mix such as "Q4_K_M" or "Q8_0", in any case. pure: one type for every matrix, without the mix's exceptions.
    tensor_types: (expression, tensor type) pairs; the first whose expression is found in a tensor's name decides.
    imatrix: a file of llama-imatrix; errors in columns that mattered weigh more.
    requantize: allow an input that is quantized already; what was lost there stays lost.
    keep_split, split_max_size (bytes): several files, PREFIX-00001-of-00003.gguf, PREFIX being out without .gguf.
    progress(bytes of input done, bytes in all) is called from this thread.
    Nothing is left behind when it fails or is interrupted.
    """
    started = time.perf_counter()
    name, mix = mixes.mix_of(type)
    threads = whole("threads", threads, 1, 1024, none=True)
    if keep_split and split_max_size is not None:
        raise RequestError("split_max_size: found with keep_split, expected one of them", param="split_max_size")
    split_max_size = whole("split_max_size", split_max_size, 1, 1 << 62, none=True)
    if not (out := os.fsdecode(out)):
        raise RequestError("out: found '', expected the name of a file", param="out")
    importance = {}
    if imatrix is not None:
        from . import imatrix as matrices

        importance = matrices.read(imatrix)
    with GGUF(path) as g:
        kinds = _types(g, name, pure, output_tensor_type, token_embedding_type, tensor_types, bool(importance))
        _check_sources(g, kinds, requantize)
        _check_importance(g, kinds, importance)
        parts = _parts(g, out, kinds, mix.file_type, keep_split, split_max_size)
        report = Report(tuple(p.path for p in parts), name, tuple(
            Converted(t.name, t.shape, t.type_name, kind, t.nbytes, n) for p in parts for t, kind, n in p.tensors),
            sum(len(p.head) for p in parts), 0.0)
        _check_targets(g, parts, force)
        if not dry_run:
            _check_space(parts)
            _write(g, parts, importance, threads or machine.threads().prompt, progress or (lambda done, total: None))
    return report._replace(seconds=time.perf_counter() - started)


# ---- what is wanted --------------------------------------------------------------------------


def _types(g, name, pure, output, embedding, tensor_types, has_imatrix) -> dict[str, str]:
    """Tensor name -> type name, of every tensor."""
    output = output and mixes.type_of(output, "output_tensor_type")
    embedding = embedding and mixes.type_of(embedding, "token_embedding_type")
    overrides = []
    for pair in tensor_types:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[0], str):
            raise RequestError(f"tensor_types: found {quoted(str(pair), 60)}, expected pairs (expression, type)", param="tensor_types")
        text, kind = pair
        try:
            overrides.append((re.compile(text), mixes.type_of(kind, "tensor_types")))
        except re.error as e:
            raise RequestError(f"tensor_types: {quoted(text)} is no regular expression: {e}", param="tensor_types") from None
    tensors = list(g.tensors.values())
    chosen = mixes.choose(tensors, name, mixes.Facts.of(g, has_imatrix), pure=pure, output=output, embedding=embedding,
                          overrides=overrides)
    for pattern, _ in overrides:
        if not any(pattern.search(n) for n in chosen):
            raise RequestError(f"tensor_types: {quoted(pattern.pattern)} is found in no tensor that can be quantized; "
                               f"there are {', '.join(list(chosen)[:4])} ...", param="tensor_types")
    return {t.name: chosen.get(t.name, t.type_name) for t in tensors}


def _check_sources(g, kinds, requantize: bool) -> None:
    for t in g.tensors.values():
        kind = kinds[t.name]
        if kind == t.type_name:
            continue
        if not lib.pe_can_quantize(BY_NAME[kind].id):
            raise UnsupportedError(f"{shown(g.path)}: tensor {quoted(t.name)}: {kind} has no quantizer here yet")
        if BY_NAME[t.type_name].block > 1 and not requantize:
            raise g.tensor_error(t.name, f"found {t.type_name}, expected F32, F16 or BF16: it is quantized already and would "
                                         f"lose twice; requantize=True (--requantize) does it nevertheless")


def _check_importance(g, kinds, importance) -> None:
    for name, matrix in importance.items():
        t = g.tensors.get(name)
        if t is None:
            continue      # made for a model with more (or other) tensors: what is there is used
        if t.shape[0] != matrix.shape[1] or _matrices(t) != len(matrix):
            raise g.tensor_error(name, f"found {t.shape[0]} columns and {_matrices(t)} matrices, expected "
                                       f"{matrix.shape[1]} and {len(matrix)} as in the importance matrix")
    if importance and not any(n in importance for n in kinds):
        raise RequestError("imatrix: names none of this model's tensors", param="imatrix")


def _matrices(t) -> int:
    return _elements(t.shape[2:])


def _elements(shape) -> int:
    n = 1
    for d in shape:
        n *= d
    return n


# ---- output files ------------------------------------------------------------------------------


def _parts(g, out: str, kinds, file_type: int, keep_split: bool, most: int | None) -> list[_Part]:
    sized = [(t, kinds[t.name], _elements(t.shape[1:]) * BY_NAME[kinds[t.name]].row_bytes(t.shape[0])) for t in g.tensors.values()]
    keys = _keys(g, file_type)
    if keep_split:
        groups = [[s for s in sized if s[0].file == i] for i in range(len(g.files))]
    elif most is not None:
        filling = max(g.alignment, 32)
        groups, left = [[]], most - _HEAD - filling - sum(map(len, keys))     # the first file has the keys, a vocabulary of some MB
        for s in sized:
            size = s[2] + filling + _ENTRY + len(s[0].name)
            if size > left and groups[-1]:
                groups.append([])
                left = most - _HEAD - filling
            groups[-1].append(s)
            left -= size
    else:
        groups = [sized]
    n = len(groups)
    if n > 99999:
        raise RequestError(f"split_max_size: makes {n} files, expected at most 99999", param="split_max_size")
    parts = []
    for i, group in enumerate(groups):
        mine = list(keys) if i == 0 else []
        if n > 1:
            mine += [_key("split.no", _UINT16, "<H", i), _key("split.count", _UINT16, "<H", n),
                     _key("split.tensors.count", _INT32, "<i", len(sized))]
            prefix = out[:-5] if out.endswith(".gguf") else out
            path = f"{prefix}-{i + 1:05d}-of-{n:05d}.gguf"
        else:
            path = out
        parts.append(_Part(path, _head(mine, group, _alignment(g, i)), group))
    return parts


def _key(name: str, kind: int, form: str, value: int) -> bytes:
    raw = name.encode()
    return struct.pack("<Q", len(raw)) + raw + struct.pack("<I", kind) + struct.pack(form, value)


def _keys(g, file_type: int) -> list:
    """The input's keys in their order, the two about quantization set, those about splitting left out."""
    new = {"general.quantization_version": QUANTIZATION_VERSION, "general.file_type": file_type}
    out = []
    for key, raw in g.raw_keys():
        if key in new:
            out.append(_key(key, _UINT32, "<I", new.pop(key)))
        elif not key.startswith("split."):
            out.append(raw)
    return out + [_key(key, _UINT32, "<I", value) for key, value in new.items()]


def _head(keys: list, group: list, alignment: int) -> bytes:
    table, offset = bytearray(), 0
    for t, kind, nbytes in group:
        raw = t.name.encode("ascii")
        table += struct.pack("<Q", len(raw)) + raw
        table += struct.pack(f"<I{len(t.shape)}QIQ", len(t.shape), *t.shape, BY_NAME[kind].id, offset)
        offset += nbytes + -nbytes % alignment
    head = b"".join((b"GGUF", struct.pack("<IQQ", 3, len(group), len(keys)), *keys, table))
    return head + bytes(-len(head) % alignment)


def _alignment(g, i: int) -> int:
    """Of output file i: later files of a split model have no key for it, so GGUF's default."""
    return g.alignment if i == 0 else 32


def _check_targets(g, parts, force: bool) -> None:
    for part in parts:
        for f in g.files:
            if os.path.exists(part.path) and os.path.samefile(part.path, f.path):
                raise RequestError(f"out: {shown(part.path)} is the input, expected another file", param="out")
        if os.path.isdir(part.path):
            raise RequestError(f"out: {shown(part.path)} is a directory, expected the name of a file", param="out")
        if os.path.lexists(part.path) and not force:
            raise RequestError(f"out: {shown(part.path)} exists; force=True (--force) replaces it", param="out")


def _check_space(parts) -> None:
    folder = os.path.dirname(parts[0].path) or "."
    need = sum(len(p.head) + sum(n + 32 for _, _, n in p.tensors) for p in parts)
    free = shutil.disk_usage(folder).free
    if free < need:
        raise PyengineError(f"out: needs {need / 1e6:.0f} MB under {shown(folder)}, which has {free / 1e6:.0f} MB free")


# ---- writing --------------------------------------------------------------------------------------


def _write(g, parts, importance, threads: int, progress) -> None:
    """Every file under a temporary name beside its own; renamed when all are whole and on the disk."""
    total = sum(t.nbytes for p in parts for t, _, _ in p.tensors)
    done, made = 0, []
    with ExitStack() as stack:
        for part in parts:
            folder, base = os.path.split(part.path)
            made.append(os.path.join(folder, f".{base}.{os.getpid()}.partial"))
            stack.callback(_remove, made[-1])
        pool = ThreadPoolExecutor(threads, thread_name_prefix="pyengine-quantize")
        stack.callback(pool.shutdown, wait=True, cancel_futures=True)
        for i, part in enumerate(parts):
            with open(made[i], "xb") as f:
                f.write(part.head)
                for data, n_in, pad in _pieces(g, part, importance, pool, threads, _alignment(g, i)):
                    f.write(data)
                    f.write(bytes(pad))
                    done += n_in
                    progress(done, total)
                f.flush()
                os.fsync(f.fileno())
        g.check_unchanged()
        for temporary, part in zip(made, parts):
            os.replace(temporary, part.path)
        _sync_folder(os.path.dirname(parts[0].path) or ".")


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _sync_folder(folder: str) -> None:
    """The rename itself on the disk; where a folder cannot be opened (Windows) the system sees to it."""
    try:
        fd = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(fd)
    except OSError:
        pass
    finally:
        os.close(fd)


def _pieces(g, part, importance, pool, threads: int, alignment: int):
    """(bytes, bytes of input, padding) in file order, a few pieces ahead of who takes them."""
    waiting: deque = deque()
    isa = isa_mask()
    for t, kind, nbytes in part.tensors:
        jobs = list(_jobs(g, t, kind, importance, isa))
        for i, (job, n_in) in enumerate(jobs):
            waiting.append((pool.submit(*job), n_in, -nbytes % alignment if i == len(jobs) - 1 else 0))
            if len(waiting) > 2 * threads:
                future, n, pad = waiting.popleft()
                yield future.result(), n, pad
    while waiting:
        future, n, pad = waiting.popleft()
        yield future.result(), n, pad


def _jobs(g, t, kind: str, importance, isa: int):
    """(call, bytes of input) of each piece of a tensor."""
    if kind == t.type_name:
        step = max(1, _COPY // max(1, t.row_bytes))
        for row in range(0, t.n_rows, step):
            n = min(step, t.n_rows - row)
            yield (_carry, g, t, row, n), n * t.row_bytes
        return
    matrix = importance.get(t.name)
    rows = t.n_rows // _matrices(t)                # an expert's rows share its importance, so a piece stays in one
    step = max(1, _PIECE // t.shape[0])
    for expert in range(_matrices(t)):
        for row in range(0, rows, step):
            n = min(step, rows - row)
            weights = None if matrix is None else matrix[expert]
            yield (_convert, g, t, kind, expert * rows + row, n, weights, isa), n * t.row_bytes


def _bytes(g, t, row: int, n: int):
    """Some rows as they lie in the file. The view keeps the mapping alive: an interrupt may close the model while a piece is on."""
    file, start = g.files[t.file], t.offset + row * t.row_bytes
    return file.buffer[start:start + n * t.row_bytes]


def _carry(g, t, row: int, n: int):
    data = _bytes(g, t, row, n)
    with ffi.from_buffer("char[]", data) as raw:
        bad = lib.pe_first_nonfinite(t.type, raw, n * t.shape[0])
    if bad >= 0:
        raise g.tensor_error(t.name, f"element {row * t.shape[0] + bad} is not finite, expected finite weights")
    return data


def _convert(g, t, kind: str, row: int, n: int, weights, isa: int):
    k = t.shape[0]
    out, wrong = quantize_rows(BY_NAME[t.type_name], BY_NAME[kind], _bytes(g, t, row, n), n, k, weights, isa, row * k)
    if wrong:
        raise g.tensor_error(t.name, wrong)
    return out

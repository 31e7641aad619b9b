"""The header of one GGUF file: typed reads by key, and refusals that name key and byte.

Runs the C scanner and words its errors. Knows the format's types but no key's
meaning (except general.alignment, which the scanner applies). Maps nothing: all
values come from the scanner's private copy of the header, checked once.
Imported by gguf; what arch and tokenizer see of a file's keys is this interface.
"""
import math
import os
import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pyengine.errors import ClosedError, GGUFError, MemoryBudgetError, quoted
from pyengine.mapped import shown
from pyengine.native import ffi, lib

VALUE_TYPES = {0: "u8", 1: "i8", 2: "u16", 3: "i16", 4: "u32", 5: "i32", 6: "f32", 7: "bool",
               8: "string", 9: "array", 10: "u64", 11: "i64", 12: "f64"}
_INTS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 10: "Q", 11: "q"}   # struct and array codes
_FLOATS = {6: "f", 12: "d"}
_BOOLS = {7: "B"}
_STRINGS = {8: "s"}
_NUMBERS = {**_INTS, **_FLOATS, **_BOOLS}
_ARRAY = 9

_REQUIRED: Any = object()


class Entry(NamedTuple):
    """pe_gguf_key: where a value lies in the header."""

    at: int       # the entry
    val: int      # the value's bytes
    end: int
    count: int    # array elements, string bytes
    key_len: int
    type: int
    elem: int     # 255 unless type is array


_ENTRY = struct.Struct("<IIIIHBB")
_TENSOR = struct.Struct("<QQIIIIIiBB6x")


class StringArray(Sequence):
    """An array of strings where it lies in the file: nothing is decoded or copied until asked for.

    [i] and iteration give bytes. String i is buffer[offsets[i] : offsets[i] + lengths[i]];
    the offsets also hold in the mapped file. Stays valid after the file is closed.
    """

    def __init__(self, buffer: memoryview, offsets: memoryview, lengths: memoryview):
        self.buffer = buffer    # the header, private to this process
        self.offsets = offsets  # uint64, absolute in the file
        self.lengths = lengths  # uint64

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        start = self.offsets[i]
        return bytes(self.buffer[start : start + self.lengths[i]])

    def __iter__(self) -> Iterator[bytes]:
        if not len(self):
            return
        first = self.offsets[0]
        raw = bytes(self.buffer[first : self.offsets[-1] + self.lengths[-1]])  # slicing bytes costs half of slicing views
        for start, length in zip(self.offsets, self.lengths):
            yield raw[start - first : start - first + length]


class Metadata:
    """Keys and values of one file. `default=` answers a missing key; without it a missing key is an error.

    A key of another type than asked is an error, whatever the default. Integers of every
    width are integers; f32 and f64 are floats; nothing else is converted.
    """

    def __init__(self, path: str | bytes, fd: int, size: int, cut: bool = False):
        """cut: a file that ends behind its header is read as well; `missing` says how many bytes of its tensors lack."""
        self.path, self.missing = path, 0
        self._g, code = self._scanned(fd, size)
        if cut and code == lib.PE_GGUF_ESHORT:
            whole = int(self._g.e_limit)
            self.missing = whole - size
            self._g, code = self._scanned(fd, whole)
        if code != lib.PE_OK:
            raise _refusal(path, fd, self._g)
        self.version = int(self._g.version)
        self.alignment = int(self._g.alignment)
        owner = self._g  # a view of the header keeps the scanner's memory alive
        head = ffi.gc(self._g.head, lambda _, owner=owner: None)
        self._head = memoryview(ffi.buffer(head, self._g.head_len)).toreadonly()

    def _scanned(self, fd: int, size: int) -> tuple:
        out = ffi.new("pe_gguf **")
        code = lib.pe_gguf_open(fd, size, *struct.unpack("=2Q", os.urandom(16)), out)
        if out[0] == ffi.NULL:
            raise MemoryBudgetError(f"{shown(self.path)}: out of memory")
        return ffi.gc(out[0], lib.pe_gguf_free), code

    @property
    def header_bytes(self) -> int:
        """Of the private copy that keys and names are read from."""
        return int(self._open.head_len)

    def _close_metadata(self) -> None:
        self._g = self._head = None

    @property
    def _open(self) -> Any:
        if self._g is None:
            raise ClosedError(f"{shown(self.path)}: is closed")
        return self._g

    # ---- keys ------------------------------------------------------------------

    def keys(self) -> list[str]:
        """All keys, in the file's order."""
        return [self._key_text(e) for e in self._entries()]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._find(key) >= 0

    def raw_keys(self) -> Iterator[tuple[str, memoryview]]:
        """Every key with the bytes of its whole entry as they stand in the file, for who writes a header from them."""
        for e in self._entries():
            yield self._key_text(e), self._head[e.at : e.end]

    def entry(self, key: str) -> Entry | None:
        """Where the key's value lies, or None."""
        i = self._find(key)
        if i < 0:
            return None
        return Entry(*_ENTRY.unpack(ffi.buffer(self._g.keys + i, _ENTRY.size)))

    def error(self, key: str, what: str) -> GGUFError:
        """The exception to raise about a key: names file, key and byte; `what` says found and expected."""
        e = self.entry(key)
        where = f"key {quoted(key)} at byte {e.at}" if e else f"key {quoted(key)}"
        return GGUFError(f"{shown(self.path)}: {where}: {what}", key=key, offset=e.at if e else None)

    def value(self, key: str) -> Any:
        """The value whatever its type, for display: arrays as list or StringArray, text that is no UTF-8 as bytes."""
        e = self._required(key)
        if e.type == _ARRAY:
            return self._strings(key) if e.elem in _STRINGS else self._array(e)
        if e.type in _STRINGS:
            raw = bytes(self._head[e.val : e.end])
            try:
                return raw.decode("utf-8")
            except UnicodeDecodeError:
                return raw
        return self._scalar(e)

    def describe(self, key: str) -> str:
        """Type and value in a few words: "u32 30", "string 'llama'", "array of 49152 string"."""
        return self._describe(self._required(key))

    # ---- typed reads -------------------------------------------------------------

    def get_str(self, key: str, default: Any = _REQUIRED) -> str:
        e = self._typed(key, _STRINGS, "a string", default)
        if e is None:
            return default
        try:
            return str(self._head[e.val : e.end], "utf-8")
        except UnicodeDecodeError:
            raise self.error(key, f"found {self._describe(e)}, expected UTF-8") from None

    def get_int(self, key: str, default: Any = _REQUIRED, lo: int | None = None, hi: int | None = None) -> int:
        e = self._typed(key, _INTS, _wanted("an integer", lo, hi), default)
        if e is None:
            return default
        return self._in_range(key, self._scalar(e), self._describe(e), lo, hi)

    def get_float(self, key: str, default: Any = _REQUIRED, lo: float | None = None,
                  hi: float | None = None) -> float:
        e = self._typed(key, _FLOATS, _wanted("a float", lo, hi), default)
        if e is None:
            return default
        return self._in_range(key, self._scalar(e), self._describe(e), lo, hi)

    def get_bool(self, key: str, default: Any = _REQUIRED) -> bool:
        e = self._typed(key, _BOOLS, "a bool", default)
        return default if e is None else self._scalar(e)

    def get_ints(self, key: str, n: int | None = None, default: Any = _REQUIRED, lo: int | None = None,
                 hi: int | None = None) -> list[int]:
        return self._numbers(key, _INTS, "integers", n, default, lo, hi)

    def get_floats(self, key: str, n: int | None = None, default: Any = _REQUIRED, lo: float | None = None,
                   hi: float | None = None) -> list[float]:
        return self._numbers(key, _FLOATS, "floats", n, default, lo, hi)

    def get_bools(self, key: str, n: int | None = None, default: Any = _REQUIRED) -> list[bool]:
        return self._numbers(key, _BOOLS, "bools", n, default, None, None)

    def get_strings(self, key: str, default: Any = _REQUIRED) -> StringArray:
        e = self._typed_array(key, _STRINGS, "strings", None, default)
        return default if e is None else self._strings(key)

    def get_per_layer(self, key: str, n_layers: int, default: Any = _REQUIRED, lo: int | None = None,
                      hi: int | None = None) -> list[int]:
        """One integer for each layer, stored once for all or as an array; bools count as 0 and 1."""
        e = self.entry(key)
        if e is not None and e.type == _ARRAY:
            return [int(v) for v in self._numbers(key, {**_INTS, **_BOOLS}, "integers", n_layers, default, lo, hi)]
        e = self._typed(key, {**_INTS, **_BOOLS}, f"an integer or an array of {n_layers}", default)
        if e is None:
            return default
        return [int(self._in_range(key, self._scalar(e), self._describe(e), lo, hi))] * n_layers

    # ---- inside --------------------------------------------------------------------

    def _find(self, key: str) -> int:
        raw = key.encode("utf-8", "surrogatepass")
        return lib.pe_gguf_find(self._open, raw, len(raw))

    def _entries(self) -> Iterator[Entry]:
        g = self._open
        if g.n_keys:
            yield from map(Entry._make, _ENTRY.iter_unpack(ffi.buffer(g.keys, g.n_keys * _ENTRY.size)))

    def _key_text(self, e: Entry) -> str:
        return str(self._head[e.at + 8 : e.at + 8 + e.key_len], "ascii")

    def _tensor_entries(self) -> Iterator[tuple[str, tuple[int, ...], int, int, int, int]]:
        """(name, shape, type, absolute offset, bytes, byte of the entry), checked by the scanner."""
        g = self._open
        if not g.n_tensors:
            return
        for offset, nbytes, at, d0, d1, d2, d3, kind, n_dims, name_len in _TENSOR.iter_unpack(
                ffi.buffer(g.tensors, g.n_tensors * _TENSOR.size)):
            yield str(self._head[at + 8 : at + 8 + name_len], "ascii"), (d0, d1, d2, d3)[:n_dims], kind, offset, nbytes, at

    def _required(self, key: str) -> Entry:
        e = self.entry(key)
        if e is None:
            raise self.error(key, "missing")
        return e

    def _typed(self, key: str, types: dict, wanted: str, default: Any) -> Entry | None:
        e = self.entry(key)
        if e is None:
            if default is _REQUIRED:
                raise self.error(key, f"missing, expected {wanted}")
            return None
        if e.type not in types:
            raise self.error(key, f"found {self._describe(e)}, expected {wanted}")
        return e

    def _typed_array(self, key: str, types: dict, what: str, n: int | None, default: Any) -> Entry | None:
        wanted = f"an array of {what}" if n is None else f"an array of {n} {what}"
        e = self._typed(key, {_ARRAY: ""}, wanted, default)
        if e is not None and (e.elem not in types or n is not None and e.count != n):
            raise self.error(key, f"found {self._describe(e)}, expected {wanted}")
        return e

    def _numbers(self, key: str, types: dict, what: str, n: int | None, default: Any, lo: Any, hi: Any) -> list:
        e = self._typed_array(key, types, what, n, default)
        if e is None:
            return default
        values = self._array(e)
        bad = (lo is not None and min(values, default=lo) < lo or hi is not None and max(values, default=hi) > hi
               or e.elem in _FLOATS and not all(map(math.isfinite, values)))
        if bad:  # search only then: 262,144 scores are checked in 10 ms, worded one by one in 130
            for i, v in enumerate(values):
                self._in_range(key, v, f"element {i} {VALUE_TYPES[e.elem]} {v}", lo, hi)
        return values

    def _in_range(self, key: str, v: Any, found: str, lo: Any, hi: Any) -> Any:
        if isinstance(v, float) and not math.isfinite(v):
            raise self.error(key, f"found {found}, expected a finite number")
        if lo is not None and v < lo or hi is not None and v > hi:
            raise self.error(key, f"found {found}, expected {_span(lo, hi)}")
        return v

    def _scalar(self, e: Entry) -> Any:
        (v,) = struct.unpack_from("<" + _NUMBERS[e.type], self._head, e.val)
        return v != 0 if e.type in _BOOLS else v

    def _array(self, e: Entry) -> list:
        values = array(_NUMBERS[e.elem])
        values.frombytes(self._head[e.val : e.end])
        return [v != 0 for v in values] if e.elem in _BOOLS else values.tolist()

    def _strings(self, key: str) -> StringArray:
        e = self._required(key)
        table = ffi.new("uint64_t[]", 2 * e.count)
        code = lib.pe_gguf_strings(self._g, self._find(key), table, table + e.count)
        assert code == lib.PE_OK
        both = memoryview(ffi.buffer(table)).cast("Q") if e.count else memoryview(b"").cast("Q")
        return StringArray(self._head, both[: e.count].toreadonly(), both[e.count :].toreadonly())

    def _describe(self, e: Entry) -> str:
        if e.type == _ARRAY:
            return f"array of {e.count} {VALUE_TYPES[e.elem]}"
        if e.type in _STRINGS:
            return f"string {quoted(self._head[e.val : e.end])}"
        return f"{VALUE_TYPES[e.type]} {self._scalar(e)}"


def _span(lo: Any, hi: Any) -> str:
    if lo is None:
        return f"at most {hi}"
    return f"at least {lo}" if hi is None else f"{lo}..{hi}" if lo != hi else f"{lo}"


def _wanted(what: str, lo: Any, hi: Any) -> str:
    return what if lo is None and hi is None else f"{what}, {_span(lo, hi)}"


# ---- the scanner's refusals in words ---------------------------------------------------

_TEXTS = {
    lib.PE_GGUF_EVERSION: "found GGUF version {found}, expected 2 or 3",
    lib.PE_GGUF_EENDIAN: "is a big-endian GGUF (version {found}), expected a little-endian one",
    lib.PE_GGUF_ETRUNCATED: "the file ends inside the header: found {found} bytes left, expected at least {limit}",
    lib.PE_GGUF_EHEADER: "found a header of more than {limit} bytes, expected less",
    lib.PE_GGUF_EKEYS: "found a count of {found} keys, expected at most {limit}, what the file has room for",
    lib.PE_GGUF_ETENSORS: "found a count of {found} tensors, expected at most {limit}",
    lib.PE_GGUF_EKEYLEN: "found a key of {found} bytes, expected 1..{limit}",
    lib.PE_GGUF_EKEYBYTE: "found byte {found:#04x} in the key, expected printable ASCII",
    lib.PE_GGUF_EKEYDUP: "found twice, first at byte {found}, expected once",
    lib.PE_GGUF_EVALTYPE: "found value type {found}, expected 0..12",
    lib.PE_GGUF_EELEMTYPE: "found array element type {found}, expected 0..12",
    lib.PE_GGUF_ENESTED: "found an array of arrays, expected an array of numbers or strings",
    lib.PE_GGUF_EARRAYLEN: "found an array of {found} elements, expected at most {limit}, what the file has room for",
    lib.PE_GGUF_ESTRINGLEN: "found a string of {found} bytes, expected at most the {limit} left in the file",
    lib.PE_GGUF_EBOOL: "found bool byte {found}, expected 0 or 1",
    lib.PE_GGUF_EALIGNTYPE: "found type {found_type}, expected u32",
    lib.PE_GGUF_EALIGN: "found u32 {found}, expected a power of two in 8..65536",
    lib.PE_GGUF_ENAMELEN: "found a name of {found} bytes, expected 1..{limit}",
    lib.PE_GGUF_ENAMEBYTE: "found byte {found:#04x} in the name, expected printable ASCII",
    lib.PE_GGUF_ENAMEDUP: "found twice, first at byte {found}, expected once",
    lib.PE_GGUF_ENDIMS: "found {found} dimensions, expected 1..4",
    lib.PE_GGUF_EDIM: "found dimension {limit} of {found}, expected 1..2147483648",
    lib.PE_GGUF_ETENSORTYPE: "found tensor type {found_signed}, expected one of ggml's current types{hint}",
    lib.PE_GGUF_EBLOCK: "found rows of {found} elements, expected a multiple of {limit}, the type's block",
    lib.PE_GGUF_ESIZE: "found a shape of 2^63 bytes or more, expected what the file can hold",
    lib.PE_GGUF_EOFFALIGN: "found data offset {found}, expected a multiple of {limit}",
    lib.PE_GGUF_EOFFRANGE: "found data offset {found}, expected one inside the file",
    lib.PE_GGUF_ESHORT: "file is shorter than its tensors need (have {found}, need {limit} bytes)",
    lib.PE_GGUF_EOVERLAP: "found data that overlaps that of {other}, expected its own{hint}",
}

# Types that ggml has taken out again, and what its own message says to do.
_REMOVED = {4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8"}


def _hint(code: int, found: int, tensor_type: int | None) -> str:
    """What to do about a tensor that cannot be read, where there is something."""
    if code == lib.PE_GGUF_ETENSORTYPE:
        name = _REMOVED.get(found)
        if name:
            return f": it is {name}, which was removed: quantize the model again, as {'IQ4_NL' if name.startswith('IQ4') else 'Q4_0'}"
        return ": a fork's, or newer than this version"
    if code == lib.PE_GGUF_EOVERLAP and tensor_type == 42:
        return " (Q2_0 is 18 bytes per 64 elements; a fork stores 34 per 128 under the same number: take the file with groups of 64)"
    return ""


def _refusal(path: str | bytes, fd: int, g: Any) -> Exception:
    code, found, limit = g.e_code, g.e_found, g.e_limit
    if code == lib.PE_ENOMEM:
        return MemoryBudgetError(f"{shown(path)}: out of memory reading the header at byte {g.e_at}")
    if code == lib.PE_GGUF_EREAD:
        return OSError(found, os.strerror(found), os.fsdecode(path))
    os.lseek(fd, 0, os.SEEK_SET)       # Windows has no pread
    start = os.read(fd, 512)
    if code == lib.PE_GGUF_EMAGIC or not start.startswith(b"GGUF"):
        return GGUFError(f"{shown(path)}: is not a GGUF file: {looks_like(start)}", offset=0)
    other, tensor_type = "", None
    if code == lib.PE_GGUF_EOVERLAP:
        t = g.tensors[found]
        tensor_type = t.type
        other = quoted(bytes(ffi.buffer(g.head + t.at + 8, t.name_len)))
    text = _TEXTS[code].format(found=found, limit=limit, found_type=VALUE_TYPES.get(found, found),
                               found_signed=found - (1 << 32) if found >> 31 & 1 else found, other=other,
                               hint=_hint(code, found, tensor_type))
    kind = {lib.PE_GGUF_IN_KEY: "key", lib.PE_GGUF_IN_TENSOR: "tensor"}.get(g.e_in)
    name = bytes(ffi.buffer(g.head + g.e_name, g.e_name_len)) if g.e_name_len else b""
    if not kind:
        where = f"byte {g.e_at}"
    elif name:
        where = f"{kind} {quoted(name)} at byte {g.e_at}"
    else:
        where = f"{kind} {g.e_index} at byte {g.e_at}"
    return GGUFError(f"{shown(path)}: {where}: {text}", offset=g.e_at,
                     key=name.decode("ascii", "backslashreplace") if name else None)


_LOOKS = [
    (b"FUGG", "a GGUF magic with its bytes swapped"),
    (b"version https://git-lfs", "a git-lfs pointer; fetch the file itself with git lfs pull"),
    (b"PK\x03\x04", "a zip archive (PyTorch checkpoints are such)"),
    (b"\x1f\x8b", "gzip data; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "zstd data; unpack it first"),
    (b"\xfd7zXZ", "xz data; unpack it first"),
    (b"lmgg", "a ggml file from before GGUF; convert it first"),
    (b"fmgg", "a ggmf file from before GGUF; convert it first"),
    (b"tjgg", "a ggjt file from before GGUF; convert it first"),
    (b"algg", "a ggla adapter from before GGUF; convert it first"),
    (b"\x80\x02", "a Python pickle"),
    (b"\x80\x04", "a Python pickle"),
    (b"\x7fELF", "a program"),
    (b"%PDF", "a PDF"),
    (b"{", "JSON"),
]


def looks_like(start: bytes) -> str:
    """What a file that is no GGUF seems to be, from its first bytes."""
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype html", b"<html", b"<head", b"<?xml")):
        return "found a web page (HTML), probably an error page saved under the model's name"
    if start[8:10] == b'{"' and int.from_bytes(start[:8], "little") < 1 << 40:
        return "found a safetensors file; convert it to GGUF first"
    for magic, what in _LOOKS:
        if start.startswith(magic):
            return f"found {what}"
    return f"found the bytes {start[:8].hex(' ')}, expected 47 47 55 46 (GGUF)"

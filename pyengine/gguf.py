"""GGUF models: metadata and named tensors of one file or a split one, mapped into memory.

Opens, follows split files, maps. Knows no key's meaning except the split's own, and
never touches the weights. Built on metadata and mapped; imported by all that read a model.

    with GGUF("model.gguf") as g:
        g.arch, g.get_int("llama.block_count", lo=1, hi=1024)
        t = g.tensors["token_embd.weight"]
        g.files[t.file].address + t.offset

Whatever is wrong with a file is a GGUFError; what the operating system refuses is its OSError.
"""
import math
import os
import re
from typing import NamedTuple

from pyengine.errors import GGUFError, quoted
from pyengine.mapped import MappedFile, open_regular, shown
from pyengine.metadata import Metadata, StringArray
from pyengine.native import ffi, lib

__all__ = ["GGUF", "Tensor", "StringArray", "TENSOR_TYPES"]

_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)


def _tensor_types() -> dict[int, tuple[str, int, int]]:
    n = ffi.new("int32_t *")
    table = lib.pe_types(n)
    return {table[i].id: (ffi.string(table[i].name).decode(), table[i].block, table[i].bytes) for i in range(n[0])}


TENSOR_TYPES = _tensor_types()  # ggml id -> (name, elements per block, bytes per block)


class Tensor(NamedTuple):
    """Where a weight lies. The shape is in GGUF's order: shape[0] is the row length."""

    name: str
    shape: tuple[int, ...]
    type: int        # ggml type id
    type_name: str
    file: int        # index into GGUF.files
    offset: int      # absolute in that file
    nbytes: int
    n_rows: int
    row_bytes: int
    at: int          # byte offset of its entry in that file's header


class GGUF(Metadata):
    """An open model. The keys are the first file's; tensors and files are those of all parts.

    mmap=False reads the weights into private memory instead of mapping them. cut=True also opens a file of which
    only the beginning is there, header and all: `missing` bytes lack, and weights must not be read.
    """

    def __init__(self, path: str | os.PathLike, mmap: bool = True, cut: bool = False):
        self.files: list[MappedFile] = []
        self.tensors: dict[str, Tensor] = {}
        self._g = None
        path = os.fspath(path)
        try:
            fd, info = open_regular(path)
            try:
                super().__init__(path, fd, info.st_size, cut)
            except BaseException:
                os.close(fd)
                raise
            self.files.append(MappedFile(path, fd, info, mmap))
            self._add_tensors(self)
            self._open_parts(mmap)
        except BaseException:
            self.close()
            raise

    def _add_tensors(self, part: Metadata) -> None:
        file = len(self.files) - 1
        for name, shape, kind, offset, nbytes, at in part._tensor_entries():
            if name in self.tensors:
                first = self.files[self.tensors[name].file].path
                raise GGUFError(f"{shown(part.path)}: tensor {quoted(name)} at byte {at}: "
                                f"found also in {shown(first)}, expected once", key=name, offset=at)
            type_name, block, block_bytes = TENSOR_TYPES[kind]
            self.tensors[name] = Tensor(name, shape, kind, type_name, file, offset, nbytes, math.prod(shape[1:]),
                                        shape[0] // block * block_bytes, at)

    def _open_parts(self, use_mmap: bool) -> None:
        """The other files of a split model, by the names derived from this one's, in its own folder."""
        count = self.get_int("split.count", default=1, lo=0, hi=99999)
        if count <= 1:
            return
        number = self.get_int("split.no", lo=0, hi=count - 1)
        if number != 0:
            raise self.error("split.no", f"found part {number + 1} of {count}, expected the first: open that")
        folder, base = os.path.split(os.fsdecode(self.path))
        name = _SHARD.fullmatch(base)
        if not name or int(name[2]) != 1 or int(name[3]) != count:
            raise self.error("split.count", f"found {count} parts, expected a file name that ends in "
                                            f"'-00001-of-{count:05d}.gguf'")
        for i in range(1, count):
            self._open_part(os.path.join(folder, f"{name[1]}-{i + 1:05d}-of-{count:05d}.gguf"), i, count, use_mmap)
        n = len(self.tensors)
        self.get_int("split.tensors.count", default=n, lo=n, hi=n)

    def _open_part(self, path: str, i: int, count: int, use_mmap: bool) -> None:
        try:
            fd, info = open_regular(path)
        except FileNotFoundError:
            raise self.error("split.count", f"found {count} parts, but part {i + 1} is missing: "
                                            f"expected {shown(path)}") from None
        try:
            part = Metadata(path, fd, info.st_size)
            part.get_int("split.no", lo=i, hi=i)
            part.get_int("split.count", lo=count, hi=count)
            for key in ("general.architecture", "split.tensors.count"):
                if key in self and key in part and self.value(key) != part.value(key):
                    raise part.error(key, f"found {part.describe(key)}, expected {self.describe(key)} "
                                          f"as in the first part")
        except BaseException:
            os.close(fd)
            raise
        self.files.append(MappedFile(path, fd, info, use_mmap))
        self._add_tensors(part)

    @property
    def arch(self) -> str:
        """general.architecture; an error if the file has none."""
        return self.get_str("general.architecture")

    def tensor_error(self, name: str, what: str) -> GGUFError:
        """The exception to raise about a tensor: names file, tensor and byte; `what` says found and expected."""
        t = self.tensors.get(name)
        path = self.files[t.file].path if t else self.path
        where = f"tensor {quoted(name)} at byte {t.at}" if t else f"tensor {quoted(name)}"
        return GGUFError(f"{shown(path)}: {where}: {what}", key=name, offset=t.at if t else None)

    def check_unchanged(self) -> None:
        """Raise FileChangedError if a mapped file was rewritten, cut or extended since it was opened."""
        for f in self.files:
            f.check_unchanged()

    def close(self) -> None:
        """Unmap everything. Addresses end with it; StringArrays already taken stay."""
        for f in self.files:
            f.close()
        self._close_metadata()

    def __enter__(self) -> "GGUF":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

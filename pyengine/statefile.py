"""Files of computed positions: tokens, prefix index entries and the bytes of their pages, to be refused when wrong.

    8 bytes   magic and version
    8 bytes   length of the header, little-endian
    header    JSON: kind, model, settings, records, what the caller adds
    pages     of each record, each group that has its page, layer by layer
    32 bytes  blake2b of all of the above

A file is written beside its name and renamed, so that there is always a whole one or none. It is
read completely and its checksum compared before anything in it is believed; that finds damage,
not malice: whoever can write the file can put any keys and values into it, though nothing else.
A file belongs to one model (size, header and the first bytes of every tensor) and one layout of the
cache (KV type, groups); n_ctx, threads, ISA and batch are no part of that, since no bit of a page
depends on them (but for what n_ctx chooses, Graph.choices: longrope's factors). Behind a page's last token are zeros, not what another sequence left there.

Not the sessions (session.py). Imported by session. Imports errors only; what it saves is handed to it.
"""
import contextlib
import hashlib
import json
import os
import stat
import struct
import tempfile

from .errors import SessionError, quoted

MAGIC = b"PYENGKV\x01"
DIGEST = 32
PAGE = 64
ARITHMETIC = 1             # rises when docs/arithmetic.md changes what a page holds
PIECE = 1 << 20


def identity(gguf, program) -> dict:
    """What a file has to have in common with the model that reads it."""
    digest, sample = hashlib.blake2b(digest_size=DIGEST), hashlib.blake2b(digest_size=DIGEST)
    starts = [f.size for f in gguf.files]
    for t in gguf.tensors.values():
        starts[t.file] = min(starts[t.file], t.offset)
        sample.update(gguf.files[t.file].buffer[t.offset:t.offset + min(t.nbytes, 4096)])
    for f, start in zip(gguf.files, starts):
        digest.update(f.buffer[:start])
    return {
        "model": {"bytes": sum(f.size for f in gguf.files), "header": digest.hexdigest(), "tensors": sample.hexdigest(), "arch": gguf.arch},
        "settings": {"kv_type": program.kv_type, "page": PAGE, "arithmetic": ARITHMETIC, "adapter": None, **program.graph.choices,
                     "groups": [[g.window or 0, g.n_kv, g.dk, g.dv, len(g.layers), g.layer_page_bytes] for g in program.groups]
                     # slots, that behave as pages of a window do: STATE of prefix.py
                     + ([[-1, 0, 0, 0, 1, program.slot_bytes]] if program.states else [])},
    }


# ---- writing -------------------------------------------------------------------------


def write(path, kind: str, own: dict, extra: dict, records, program, call) -> int:
    """Writes a file and returns its size. records: as Cache.entries() gives them, asked for by records()
    within call(function), which runs it between two steps. Of a page that is filled in part only that part is written."""
    path = os.fspath(path)
    folder, base = os.path.split(os.path.abspath(path))
    fd, temporary = tempfile.mkstemp(prefix=f".{base}.", dir=folder)
    try:
        with os.fdopen(fd, "wb") as f:
            out = _Digested(f)
            call(lambda: _body(out, {"kind": kind, **own, **extra}, list(records()), program))
            f.write(out.digest.digest())
            f.flush()
            os.fsync(f.fileno())
            size = f.tell()
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return size


class _Digested:
    def __init__(self, f):
        self.f, self.digest = f, hashlib.blake2b(digest_size=DIGEST)

    def write(self, data) -> None:
        self.digest.update(data)
        self.f.write(data)


def _body(out, header: dict, records, program) -> None:
    keys = list(dict.fromkeys(key for _, key, _, _, _ in records))
    numbers = {key: i for i, key in enumerate(keys)}
    header["keys"] = keys
    header["records"] = [[parent, numbers[key], tokens, [p >= 0 for p in pages], seen] for parent, key, tokens, pages, seen in records]
    text = json.dumps(header, separators=(",", ":")).encode()
    out.write(MAGIC + struct.pack("<Q", len(text)))
    out.write(text)
    for _, _, tokens, pages, _ in records:
        for g, p in enumerate(pages):
            if p >= 0:
                with program.page(g, p) as views:
                    for view in views:
                        if len(tokens) < PAGE:
                            view = bytearray(view)
                            program.blank(g, view, len(tokens))
                        out.write(view)


# ---- reading -------------------------------------------------------------------------


class State:
    """A file that has been checked: header, records for Cache.adopt(), and fill() for their pages."""

    def __init__(self, path, kind: str, own: dict, n_vocab: int):
        self.name = quoted(os.fspath(path))
        self._f = open(path, "rb")
        try:
            self.header = self._checked(kind, own)
            self.records, self._places = self._checked_records(self.header["settings"]["groups"], n_vocab)
        except BaseException:
            self._f.close()
            raise

    def close(self) -> None:
        self._f.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc) -> None:
        self.close()

    def error(self, what: str) -> SessionError:
        return SessionError(f"{self.name}: {what}")

    def fill(self, number: int, group: int, views) -> None:
        """Reads a page into its views, layer by layer."""
        self._f.seek(self._places[number, group])
        for view in views:
            done = 0
            while done < len(view):
                n = self._f.readinto(view[done:])
                if not n:
                    raise self.error("was cut while it was read")
                done += n

    def _checked(self, kind: str, own: dict) -> dict:
        info = os.fstat(self._f.fileno())
        if not stat.S_ISREG(info.st_mode):
            raise self.error("found something that is not a regular file, expected a state file")
        size = info.st_size
        digest = hashlib.blake2b(digest_size=DIGEST)
        head = self._f.read(len(MAGIC) + 8)
        if head[:len(MAGIC)] != MAGIC:
            raise self.error(f"begins with {head[:len(MAGIC)]!r}, expected {MAGIC!r}: no state file, or of another version")
        length = struct.unpack("<Q", head[len(MAGIC):])[0] if len(head) == len(MAGIC) + 8 else size
        self._start = len(head) + length
        if self._start + DIGEST > size:
            raise self.error(f"has {size} bytes, its header alone needs {self._start + DIGEST}: cut or damaged")
        digest.update(head)
        text = self._f.read(length)
        digest.update(text)
        left = size - self._start - DIGEST
        while left:
            piece = self._f.read(min(PIECE, left))
            if not piece:
                raise self.error("was cut while it was read")
            digest.update(piece)
            left -= len(piece)
        if self._f.read(DIGEST) != digest.digest():
            raise self.error("the checksum is not that of its content: cut or damaged")
        self._end = size - DIGEST
        try:
            header = json.loads(text)
        except (ValueError, RecursionError) as e:
            raise self.error(f"its header is not JSON: {e}") from None
        if not isinstance(header, dict) or header.get("kind") != kind:
            found = header.get("kind") if isinstance(header, dict) else header
            raise self.error(f"kind is {quoted(found)}, expected {quoted(kind)}")
        for part, expected in own.items():
            found = header.get(part)
            for name, value in expected.items():
                have = found.get(name) if isinstance(found, dict) else None
                if have != value:
                    what = "another model" if part == "model" else "other settings"
                    raise self.error(f"is of {what}: {part}.{name} is {quoted(have)}, expected {quoted(value)}")
        return header

    def _checked_records(self, groups, n_vocab: int):
        """What the header says about pages, as far as the cache relies on it."""
        keys, records = self.header.get("keys"), self.header.get("records")
        if not isinstance(keys, list) or not all(isinstance(k, str) for k in keys) or not isinstance(records, list):
            raise self.error("keys and records are not lists of texts and of records")
        out, places, at = [], {}, self._start
        for i, record in enumerate(records):
            try:
                parent, key, tokens, there, seen = record
                good = (_whole(parent, -1, i) and _whole(key, 0, len(keys)) and 0 < len(tokens) <= PAGE
                        and all(_whole(t, 0, n_vocab) for t in tokens) and [type(t) for t in there] == [bool] * len(groups)
                        and all(t or g[0] for t, g in zip(there, groups)) and type(seen) is bool
                        and (parent < 0 or len(out[parent][2]) == PAGE and out[parent][1] == keys[key]))
            except (TypeError, ValueError):
                good = False
            if not good:
                raise self.error(f"record {i} is not one of a state file")
            out.append((parent, keys[key], tokens, tuple(0 if t else -1 for t in there), seen))
            for g, t in enumerate(there):
                if t:
                    places[i, g] = at
                    at += groups[g][4] * groups[g][5]
        if at != self._end:
            raise self.error(f"has {self._end - self._start} bytes of pages, its records need {at - self._start}")
        return out, places


def _whole(value, lo: int, hi: int) -> bool:
    return type(value) is int and lo <= value < hi

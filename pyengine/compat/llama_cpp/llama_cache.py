"""Caches of states by their tokens: LlamaRAMCache and LlamaDiskCache.

The engine keeps what it computed of earlier prompts by itself, for every Llama and without a cache object; these are
containers for programs that hold states in them. Imported by users and by llama of this folder.
"""
import base64
import bisect
import hashlib
import json
import os
import tempfile
import threading
from collections import OrderedDict

from ...errors import SessionError


def _common(a, b) -> int:
    n = 0
    for x, y in zip(a, b):
        if x != y:
            break
        n += 1
    return n


class BaseLlamaCache:
    """cache[tokens] is the state of the longest common beginning of tokens and a key; KeyError where there is none."""

    def __init__(self, capacity_bytes: int = 2 << 30):
        self.capacity_bytes = capacity_bytes
        self._lock = threading.RLock()
        self._keys = []                  # sorted: the key with the longest common beginning is a neighbour
        self._sizes = OrderedDict()      # key -> bytes, least recently used first

    @property
    def cache_size(self) -> int:
        return sum(self._sizes.values())

    def _find_longest_prefix_key(self, key):
        key = tuple(key)
        i = bisect.bisect_left(self._keys, key)
        best = max(self._keys[max(0, i - 1):i + 1], key=lambda k: _common(k, key), default=None)
        return best if best is not None and _common(best, key) > 0 else None

    def __contains__(self, key) -> bool:
        with self._lock:
            return self._find_longest_prefix_key(key) is not None

    def __getitem__(self, key):
        with self._lock:
            found = self._find_longest_prefix_key(key)
            if found is None:
                raise KeyError("no cached state begins like these tokens")
            self._sizes.move_to_end(found)
            return self._read(found)

    def __setitem__(self, key, value) -> None:
        key = tuple(map(int, key))
        with self._lock:
            if key not in self._sizes:
                bisect.insort(self._keys, key)
            self._sizes.pop(key, None)
            self._sizes[key] = self._write(key, value)
            while self._sizes and self.cache_size > self.capacity_bytes:
                old, _ = self._sizes.popitem(last=False)
                del self._keys[bisect.bisect_left(self._keys, old)]
                self._drop(old)

    def _read(self, key):
        raise NotImplementedError

    def _write(self, key, value) -> int:
        """Keeps a state; its size in bytes."""
        raise NotImplementedError

    def _drop(self, key) -> None:
        raise NotImplementedError


class LlamaRAMCache(BaseLlamaCache):
    def __init__(self, capacity_bytes: int = 2 << 30):
        super().__init__(capacity_bytes)
        self.cache_state = {}

    def _read(self, key):
        return self.cache_state[key]

    def _write(self, key, value) -> int:
        self.cache_state[key] = value
        return value.llama_state_size

    def _drop(self, key) -> None:
        del self.cache_state[key]


LlamaCache = LlamaRAMCache


class LlamaDiskCache(BaseLlamaCache):
    """One JSON file per state, named after its tokens; what others left in the folder is found again."""

    def __init__(self, cache_dir: str = ".cache/llama_cache", capacity_bytes: int = 2 << 30):
        super().__init__(capacity_bytes)
        self.cache_dir = os.fspath(cache_dir)
        os.makedirs(self.cache_dir, exist_ok=True)
        files = [e for e in os.scandir(self.cache_dir) if e.name.endswith(".state.json")]
        for entry in sorted(files, key=lambda e: e.stat().st_mtime):
            try:
                with open(entry.path, encoding="utf-8") as f:
                    key = tuple(map(int, json.load(f)["key"]))
            except (ValueError, KeyError, TypeError, OSError):
                continue                 # not a state, or another's that was just evicted
            bisect.insort(self._keys, key)
            self._sizes[key] = entry.stat().st_size

    def _path(self, key) -> str:
        return os.path.join(self.cache_dir, hashlib.sha256(repr(key).encode()).hexdigest()[:32] + ".state.json")

    def _read(self, key):
        import numpy as np

        from .low_level import LlamaState

        path = self._path(key)
        try:
            with open(path, encoding="utf-8") as f:
                s = json.load(f)
            state = base64.b64decode(s["llama_state"], validate=True)
            return LlamaState(np.array(s["input_ids"], np.intc), np.empty((0, s["n_vocab"]), np.float32), s["n_tokens"], state, len(state), s["seed"])
        except (ValueError, KeyError, TypeError) as e:
            raise SessionError(f"{path}: not a state file: {type(e).__name__}") from e

    def _write(self, key, value) -> int:
        text = json.dumps({"key": key, "input_ids": value.input_ids[:value.n_tokens].tolist(), "n_tokens": value.n_tokens, "seed": value.seed,
                           "n_vocab": value.scores.shape[-1], "llama_state": base64.b64encode(value.llama_state).decode()})
        with tempfile.NamedTemporaryFile("w", dir=self.cache_dir, suffix=".part", delete=False, encoding="utf-8") as f:
            f.write(text)
        os.replace(f.name, self._path(key))
        return len(text)

    def _drop(self, key) -> None:
        try:
            os.unlink(self._path(key))
        except FileNotFoundError:        # another process evicted it
            pass

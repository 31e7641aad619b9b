"""Unigram vocabularies (tokenizer.ggml.model "t5"): sentencepiece's normalizer, then the tokens with the best sum of scores.

Scores are log probabilities; unigram.c does the work. User-defined tokens are split off before, and each stretch of text
between them begins anew, as with HF's added tokens; sentencepiece itself has no blank after them. Where the file has
byte tokens, a character in no token becomes its bytes, as in sentencepiece; llama.cpp has it unknown all the same.
May be imported by pyengine.tokenizer only.
"""
import re

from ..errors import MemoryBudgetError, TokenizerError
from ..native import address_of, ffi, lib
from .vocab import BYTE, NORMAL, UNKNOWN, USER_DEFINED, Trie

_SURROGATES = re.compile("[\ud800-\udfff]")
_KEY = "tokenizer.ggml.precompiled_charsmap"
_WHY = ("", "sizes that do not fit together", "a replacement beyond its end", "a key longer than 64 bytes or one without an end",
        "a replacement longer than 255 bytes")
_GROWTH = 16        # bytes that one byte may become; of NFKC's, 3 bytes become 33 at most
_PENALTY = 10.0     # below the worst token: a character in none


class Unigram:
    def __init__(self, vocabulary, gguf, prefix):
        self._unk = vocabulary.ids["unk"]
        if self._unk is None:
            self._unk = next(vocabulary.of_type(UNKNOWN), None)
        if self._unk is None:
            raise TokenizerError("tokenizer.ggml.tokens: no unknown token (unknown_token_id); a unigram vocabulary needs one")
        self._types, self._scores = vocabulary.types, vocabulary.scores()
        scores = memoryview(bytes(self._scores)).cast("f")
        worst = min((s for s, t in zip(scores, self._types) if t == NORMAL), default=None)
        if worst is None:
            raise TokenizerError("tokenizer.ggml.token_type: no normal token; a unigram vocabulary needs some")
        self._unk_score = worst - _PENALTY
        self._trie = Trie(vocabulary.tokens, (NORMAL, USER_DEFINED), vocabulary.types)
        self.has_bytes = next(vocabulary.of_type(BYTE), None) is not None
        self._bytes = ffi.new("int32_t[]", vocabulary.byte_ids()) if self.has_bytes else ffi.NULL
        self._prefix = prefix
        self._merge = gguf.get_bool("tokenizer.ggml.remove_extra_whitespaces", default=False)
        self._map = _charsmap(gguf)

    def encode(self, text, first):
        """Ids of text without control and user-defined tokens; first: nothing stands before it. Bytes that are not UTF-8
        become U+FFFD each."""
        if not text.isascii():
            text = _SURROGATES.sub("\ufffd", text)
        text = self._normalized(text.encode(), first)
        if not text:
            return []
        types = ffi.cast("uint8_t *", address_of(self._types))
        scores = ffi.cast("uint8_t *", address_of(self._scores))
        return self._trie.encode(lambda t, raw, n, out, n_out: lib.pe_ugm_encode(
            t, scores, types, raw, n, self._unk, self._unk_score, self._bytes, out, n_out), text)

    def _normalized(self, raw, first):
        n = ffi.new("uint64_t *")
        given = self._map, len(self._map), self._merge, self._prefix, first, raw, len(raw)
        code = lib.pe_ugm_normalize(*given, ffi.NULL, 0, n)
        if n[0] > _GROWTH * len(raw) + 4096:
            raise TokenizerError(f"text: {_KEY} makes {n[0]} bytes of {len(raw)}, expected at most {_GROWTH} of each")
        out = bytearray(n[0])
        code = code or lib.pe_ugm_normalize(*given, ffi.from_buffer(out), len(out), n)
        assert code == lib.PE_OK
        return bytes(out)


def _charsmap(gguf):
    entry = gguf.entry(_KEY)
    if entry is None:
        return b""
    if entry.type != 9 or entry.elem not in (0, 1):
        raise gguf.error(_KEY, f"found {gguf.describe(_KEY)}, expected an array of u8")
    raw = bytes(gguf.get_strings("tokenizer.ggml.tokens").buffer[entry.val:entry.end])
    if raw:
        why = ffi.new("uint64_t *")
        code = lib.pe_charsmap_check(raw, len(raw), why)
        if code == lib.PE_ENOMEM:
            raise MemoryBudgetError("out of memory in the tokenizer")
        if code:
            raise gguf.error(_KEY, f"found {_WHY[why[0]]} in its {len(raw)} bytes, expected what sentencepiece writes")
    return raw

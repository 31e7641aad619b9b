"""PLaMo-2 vocabularies (tokenizer.ggml.model "plamo2"): the tokens with the best sum of scores, from the end of the text.

Not sentencepiece's unigram (ugm.py): no normalization and no blanks written otherwise, scores are rounded to
ten-thousandths, a character in no token costs 1000 and is its bytes. unigram.c does the work.
May be imported by pyengine.tokenizer only.
"""
import re

from ..native import address_of, ffi, lib
from .vocab import NORMAL, UNUSED, USER_DEFINED, Trie

_BAD_BYTES = re.compile("([\udc80-\udcff])")  # bytes that were not UTF-8, as surrogateescape spells them
_ODD = re.compile("[\ud800-\udc7f\udd00-\udfff]")


class Plamo:
    def __init__(self, vocabulary, gguf):
        ids = vocabulary.byte_ids()
        self._byte_ids, self._bytes = ids, ffi.new("int32_t[]", ids)
        self._scores = vocabulary.scores()
        for i, score in enumerate(memoryview(bytes(self._scores)).cast("f")):
            if score >= 2000:
                raise gguf.error("tokenizer.ggml.scores", f"found {score:g} for token {i}, expected less than 2000")
        self._trie = Trie(vocabulary.tokens, (NORMAL, USER_DEFINED, UNUSED), vocabulary.types,
                          backwards=True)

    def encode(self, text, first):
        """Ids of text without control tokens, a byte order mark in front left out. Bytes that are not UTF-8 are kept."""
        text = text.removeprefix("\ufeff")
        if text.isascii():
            return self._encode(text)
        ids = []
        for part in _BAD_BYTES.split(_ODD.sub("\ufffd", text)):
            ids += [self._byte_ids[ord(part) - 0xDC00]] if "\udc80" <= part <= "\udcff" else self._encode(part)
        return ids

    def _encode(self, text):
        scores = ffi.cast("uint8_t *", address_of(self._scores))
        return self._trie.encode(lambda t, raw, n, out, n_out: lib.pe_plamo_encode(t, scores, raw, n, self._bytes, out, n_out),
                                 text.encode()) if text else []


def surface(vocabulary, token):
    """Bytes of a normal, unused or user-defined token."""
    return vocabulary.tokens[token]

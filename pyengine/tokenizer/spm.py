"""SentencePiece vocabularies (tokenizer.ggml.model "llama"): merges by score, byte fallback. bpe.c does the work.

Unused tokens count as normal, as in every converter to merges: they take part in merging. Equal, id for id, to the
sentencepiece library (tests/test_tokenizer_peers.py), whose model of gemma's 262,144 tokens took 77 ms and 40 MB.
What this is not: the unigram side of sentencepiece. May be imported by pyengine.tokenizer only.
"""
import re
import warnings

from ..errors import TokenizerError
from ..native import lib
from .vocab import MAX_TRIE_BYTES, SPACE, USER_DEFINED, Table

_SURROGATES = re.compile("[\ud800-\udfff]")
_BAD_BYTES = re.compile("([\udc80-\udcff])")  # bytes that were not UTF-8, as surrogateescape spells them
_OTHER_SURROGATES = re.compile("[\ud800-\udc7f\udd00-\udfff]")


def _is_utf8(text):
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


class SentencePiece:
    def __init__(self, vocabulary, add_space_prefix):
        self._bytes = vocabulary.byte_ids()
        self._prefix = add_space_prefix
        types = bytearray(vocabulary.types)
        if (total := sum(vocabulary.tokens.lengths[i] for i in vocabulary.of_type(USER_DEFINED))) > MAX_TRIE_BYTES // 3:
            raise TokenizerError(f"user-defined tokens: found {total} bytes of text, expected at most {MAX_TRIE_BYTES // 3}")
        for i in vocabulary.of_type(USER_DEFINED):
            if not _is_utf8(vocabulary.tokens[i]):  # half a character would match inside whole ones
                types[i] = 0
        self._table = table = Table(vocabulary.tokens, types, vocabulary.scores(), self._bytes)
        if table.repeats:
            i = table.first_repeat
            warnings.warn(f"tokenizer.ggml.tokens: token {i} ({vocabulary.tokens[i][:40]!r}) has the text of an earlier one, "
                          f"as have {table.repeats - 1} others; text becomes the earlier one", stacklevel=5)

    def encode(self, text, first):
        """Ids of text without control tokens; first: it begins the text or follows a control token."""
        if first and self._prefix:
            text = " " + text
        if not text.isascii() and _SURROGATES.search(text):
            text = _OTHER_SURROGATES.sub("\ufffd", text)
            ids = []
            for part in _BAD_BYTES.split(text):
                ids += [self._bytes[ord(part) - 0xDC00]] if "\udc80" <= part <= "\udcff" else self._encode(part)
            return ids
        return self._encode(text)

    def _encode(self, text):
        return self._table.encode(lib.pe_spm_encode, text.encode().replace(b" ", SPACE)) if text else []


def surface(vocabulary, token):
    """Bytes of a normal, unused or user-defined token."""
    return vocabulary.tokens[token].replace(SPACE, b" ")

"""WordPiece vocabularies (tokenizer.ggml.model "bert"): words, each the longest tokens from left to right, or unknown.

GGUF writes the beginning of a word with U+2581 where BERT writes the rest of one with ##. Normalization is llama.cpp's,
which its ids in published vectors follow; HF's BertNormalizer keeps what comes after a Hangul syllable's first consonant and
the vowel signs of Indic scripts (marks of category Mc), drops unassigned characters, and has words of more than 100
characters unknown. longest.c finds the tokens. May be imported by pyengine.tokenizer only.
"""

from ..errors import TokenizerError
from ..native import lib
from . import characters as c
from .vocab import BYTE, NORMAL, SPACE, UNUSED, USER_DEFINED, Trie

_KEPT = 1 << 16     # characters whose changes are remembered: 9 MB at most
_PIECE = 1 << 14    # characters changed with the interpreter's lock held: 1 ms, or 20 ms if none was met before


class WordPiece:
    def __init__(self, vocabulary, gguf):
        ids = vocabulary.ids
        missing = [f"{text} ({key})" for name, text, key in (("unk", "[UNK]", "unknown_token_id"), ("bos", "[CLS]", "cls_token_id"),
                                                             ("sep", "[SEP]", "seperator_token_id")) if ids[name] is None]
        if missing:
            raise TokenizerError(f"tokenizer.ggml.tokens: no {', '.join(missing)}; a WordPiece vocabulary needs them")
        self._unk = ids["unk"]
        self._trie = Trie(vocabulary.tokens, (NORMAL, USER_DEFINED, UNUSED, BYTE), vocabulary.types,
                          backwards=True)
        lowercase = gguf.get_bool("tokenizer.ggml.normalizer.lowercase", default=True)
        strip = gguf.get_bool("tokenizer.ggml.normalizer.strip_accents", default=lowercase)
        self._changes = _Changes(lowercase, strip)

    def encode(self, text, first):
        """Ids of text without control tokens. What is not UTF-8 is dropped, as U+FFFD is."""
        text = "".join([text[i:i + _PIECE].translate(self._changes) for i in range(0, len(text), _PIECE)])
        words = text.split()
        if not words:
            return []
        return self._trie.encode(lib.pe_wpm_encode, b" ".join([SPACE + word.encode() for word in words]), self._unk)


class _Changes(dict):
    """For str.translate: what a character becomes, blanks around it if it is a word of its own."""

    def __init__(self, lowercase, strip):
        self._lowercase, self._strip = lowercase, strip

    def __missing__(self, code):
        text = self._change(code)
        if len(self) < _KEPT:
            self[code] = text
        return text

    def _change(self, code):
        if self._strip:
            code = c.base(code)
        kind = c.kind(code)
        if kind == c.BLANK:
            return " "
        if kind == c.GONE or kind == c.MARK and self._strip:
            return ""
        text = chr(c.lower(code) if self._lowercase else code)
        return f" {text} " if kind == c.ALONE else text

"""RWKV's world vocabularies (tokenizer.ggml.model "rwkv"): the longest token of bytes, place after place.

GGUF writes a token's bytes as Python would between b' and ': \\xNN, \\t, \\n, \\r, and \\ before itself and quotes. The 256
bytes are tokens, so every text can be written, and comes back byte by byte. May be imported by pyengine.tokenizer only.
"""
import re

from ..errors import TokenizerError
from ..native import lib
from .vocab import NORMAL, USER_DEFINED, Joined, Trie

_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|([tnr\\'\"])|)", re.S)
_ODD = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # surrogates that stand for no byte
_TEXT = NORMAL, USER_DEFINED
_NAMED = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


def unescaped(text):
    """The bytes that a token's text stands for; None if it is not written as it has to be."""
    if b"\\" not in text:
        return text
    parts, end = [], 0
    for hit in _ESCAPE.finditer(text):
        code, name = hit.groups()
        if code is None and name is None:
            return None
        parts += text[end:hit.start()], bytes((int(code, 16),)) if code else _NAMED.get(name, name)
        end = hit.end()
    return b"".join(parts) + text[end:]


def surface(vocabulary, token):
    """Bytes of a normal, unused or user-defined token."""
    text = vocabulary.tokens[token]
    raw = unescaped(text)
    return text if raw is None else raw


class World:
    def __init__(self, vocabulary, gguf):
        tokens, types = [], vocabulary.types
        for i, text in enumerate(vocabulary.tokens):
            raw = unescaped(text) if types[i] in _TEXT else text
            if raw is None:
                raise TokenizerError(f"tokenizer.ggml.tokens: token {i} is {text[:40]!r}, expected \\xNN, \\t, \\n, \\r or a quote "
                                     "after each backslash")
            tokens.append(raw)
        self._trie = Trie(Joined(tokens), _TEXT, types, backwards=True)
        single = {raw[0] for i, raw in enumerate(tokens) if len(raw) == 1 and types[i] in _TEXT}
        if missing := set(range(256)) - single:
            raise TokenizerError(f"tokenizer.ggml.tokens: {len(missing)} of the 256 bytes are no tokens, the first is "
                                 f"0x{min(missing):02X}; an RWKV vocabulary needs them all")

    def encode(self, text, first):
        """Ids of text without control tokens; any bytes."""
        if not text.isascii():
            text = _ODD.sub("\ufffd", text)
        return self._trie.encode(lib.pe_rwkv_encode, text.encode("utf-8", "surrogateescape"))

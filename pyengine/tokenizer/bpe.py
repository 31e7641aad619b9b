"""BPE vocabularies (tokenizer.ggml.model "gpt2", and "gemma4" over characters): words cut by the rules of pre.py, merged
within each. split.c and bpe.c do the work in one call, without the interpreter's lock and in time linear in the text but
for a logarithm: 0.2 s for a megabyte of any one character under any rule.

HF's tokenizers, which cut words here before, held the lock for 7 s over 1.6 MB, took 570 ms and 90 MB to load llama-bpe's
280,147 merges, and minutes for 100 KB of digits under tiny_aya's own expression. It stays the other judge of our ids
(tests/test_tokenizer_peers.py) beside llama.cpp (tests/test_tokenizer_llama.py). Control tokens are split off before.
May be imported by pyengine.tokenizer only.
"""
import re
import warnings

from ..errors import TokenizerError
from ..native import ffi, lib
from .control import ControlTokens
from .pre import OF_CHARACTERS, RULES, WHOLE_NEWLINES, WHOLE_WORDS
from .rules import splitter
from .vocab import SPACE, USER_DEFINED, Table

_SURROGATES = re.compile("[\ud800-\udfff]")
_BARE_LINES = re.compile("(?m)^(?=[^\n\u2581])", re.ASCII)


def _byte_alphabet():
    """GPT-2's printable stand-ins for the 256 bytes: Latin-1 where visible, else U+0100 onwards."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in set(visible)]
    return {b: chr(b) for b in visible} | {b: chr(0x100 + i) for i, b in enumerate(hidden)}


ALPHABET = _byte_alphabet()
_BYTES = {ord(c): bytes((b,)) for b, c in ALPHABET.items()}
_PRINTABLE = frozenset(range(0x20, 0x7F))
# Published vocabularies lack some of the rest (falcon has none for most control characters): a text with
# such a byte is refused, where the library would leave it out.
_IN_UTF8 = frozenset(range(256)) - {0xC0, 0xC1} - frozenset(range(0xF5, 0x100))


def pre_tokenizer_name(gguf):
    name = gguf.get_str("tokenizer.ggml.pre", default=None)
    if name in (None, "default"):
        found = "missing" if name is None else repr(name)
        warnings.warn(f"tokenizer.ggml.pre is {found}: splitting words by the default rule, which may not be the one "
                      "this model was trained with", stacklevel=4)
        return "default"
    if name not in RULES:
        raise TokenizerError(f"tokenizer.ggml.pre: unknown pre-tokenizer {name[:100]!r}, expected one of "
                             f"{', '.join(sorted(RULES))}")
    return name


class ByteLevelBPE:
    def __init__(self, vocabulary, gguf, pre):
        tokens = vocabulary.tokens
        self.of_characters = pre in OF_CHARACTERS
        self._bare_lines = pre == "mmbert"
        self._table = table = Table(tokens, vocabulary.types, byte_ids=vocabulary.byte_ids() if self.of_characters else None)
        if table.repeats:
            warnings.warn(f"tokenizer.ggml.tokens: {table.repeats} tokens have the text of an earlier one; text "
                          "becomes the earlier one", stacklevel=5)
        ids = table.byte_ids()
        self._missing = frozenset(b for b in _IN_UTF8 if ids[b] < 0)
        if lacking := self._missing & _PRINTABLE:
            raise TokenizerError(f"tokenizer.ggml.tokens: no token for byte 0x{min(lacking):02X}, "
                                 "expected one for every byte of printable ASCII")
        self._read_merges(gguf)
        self._whole = 1 if pre in WHOLE_WORDS else 2 if pre in WHOLE_NEWLINES else 0
        self._splitter = splitter(RULES[pre])
        added = {}
        for i in vocabulary.of_type(USER_DEFINED):
            if tokens[i] and tokens[i].decode("utf-8", "replace").encode() == tokens[i]:  # no text holds half a character
                added.setdefault(tokens[i].decode(), table.find(tokens[i]))
        self._added = ControlTokens(added, name="user-defined tokens") if added else None

    def _read_merges(self, gguf):
        key = "tokenizer.ggml.merges"
        merges = gguf.get_strings(key)
        bad = ffi.new("uint64_t[2]")
        code = lib.pe_vocab_merges(self._table.c, ffi.from_buffer("uint64_t[]", merges.offsets),
                                   ffi.from_buffer("uint64_t[]", merges.lengths), len(merges), bad)
        if code == lib.PE_EINVAL:
            i, why = bad
            text = str(merges[i], "utf-8", "replace")
            if why == 4:
                raise gguf.error(key, f"found merge {i} ({text[:60]!r}) twice, expected each once")
            left, _, right = text.partition(" ")
            part = (left, right, left + right)[why - 1]
            raise gguf.error(key, f"found merge {i} ({text[:60]!r}), but {part[:60]!r} is no token; expected two tokens "
                                  "that make a third")
        self._table.check(code)

    def encode(self, text, first):
        """Ids of text without control tokens. Bytes that are not UTF-8 become U+FFFD each, as everywhere in BPE."""
        if not text.isascii():
            text = _SURROGATES.sub("\ufffd", text)
        ids = []
        for part in self._added.split(text) if self._added is not None else [text]:
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._encode(part)
        return ids

    def _encode(self, text):
        if self.of_characters:
            text = text.replace(" ", "\u2581")
            if self._bare_lines:  # each line begins like a word behind a blank
                text = _BARE_LINES.sub("\u2581", text)
        raw = text.encode()
        if self._missing and (lacking := self._missing.intersection(raw)):
            raise TokenizerError(f"text: this vocabulary has no token for byte 0x{min(lacking):02X}")
        return self._table.encode(lib.pe_bpe_encode, raw, self._splitter.c, self._whole)


def surface(vocabulary, token, of_characters=False):
    """Bytes of a normal or unused token; characters outside the byte alphabet stand for themselves."""
    text = vocabulary.tokens[token]
    if vocabulary.types[token] == USER_DEFINED:
        return text
    if of_characters:
        return text.replace(SPACE, b" ")
    return b"".join(_BYTES.get(ord(c)) or c.encode("utf-8", "surrogateescape")
                    for c in text.decode("utf-8", "surrogateescape"))

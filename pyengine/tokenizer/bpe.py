"""Byte-level BPE vocabularies (tokenizer.ggml.model "gpt2"), by way of the Hugging Face tokenizers library.

Only its BPE model, its splitting by regular expressions and its matching of added tokens are used; control
tokens are split off before. May be imported by pyengine.tokenizer only.
"""
import re
import warnings

from ..errors import TokenizerError
from .pre import RULES, WHOLE_WORDS
from .vocab import CONTROL, UNKNOWN, USER_DEFINED

_SURROGATES = re.compile("[\ud800-\udfff]")


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
    if name is None:
        warnings.warn("tokenizer.ggml.pre is missing: splitting words by the default rule, which may not be the one "
                      "this model was trained with", stacklevel=4)
        return "default"
    if name not in RULES:
        raise TokenizerError(f"tokenizer.ggml.pre: unknown pre-tokenizer {name[:100]!r}, expected one of "
                             f"{', '.join(sorted(RULES))}")
    return name


def _read_merges(gguf):
    key = "tokenizer.ggml.merges"
    texts = [str(m, "utf-8", "replace") for m in gguf.get_strings(key)]
    if len(set(texts)) != len(texts):
        seen = set()
        i = next(i for i, m in enumerate(texts) if m in seen or seen.add(m))
        raise gguf.error(key, f"found merge {i} ({texts[i][:60]!r}) twice, expected each once")
    # Cut at the first blank. What is malformed gives a half that no vocabulary has, and the library refuses it.
    return [m.partition(" ")[::2] for m in texts]


class ByteLevelBPE:
    def __init__(self, vocabulary, gguf, pre):
        from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

        tokens = [str(t, "utf-8", "replace") for t in vocabulary.tokens]
        ids = dict(zip(reversed(tokens), range(len(tokens) - 1, -1, -1)))  # of equal texts the lowest id stays
        if len(ids) != len(tokens):
            warnings.warn(f"tokenizer.ggml.tokens: {len(tokens) - len(ids)} tokens have the text of an earlier one; text "
                          "becomes the earlier one", stacklevel=5)
        ids.pop("", None)
        self._missing = frozenset(b for b in _IN_UTF8 if ALPHABET[b] not in ids)
        if lacking := self._missing & _PRINTABLE:
            raise TokenizerError(f"tokenizer.ggml.tokens: no token for byte 0x{min(lacking):02X}, "
                                 "expected one for every byte of printable ASCII")
        merges = _read_merges(gguf)
        for kind in (CONTROL, UNKNOWN):
            for i in vocabulary.of_type(kind):
                if ids.get(tokens[i]) == i:
                    del ids[tokens[i]]
        try:
            model = models.BPE(ids, merges, ignore_merges=pre in WHOLE_WORDS)
        except Exception as e:  # the library raises plain Exception, naming the token that is missing
            raise gguf.error("tokenizer.ggml.merges", str(e)[:200]) from None
        self._tokenizer = Tokenizer(model)
        if RULES[pre] == RULES["gpt-2"]:
            rule = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
        else:
            rule = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in RULES[pre]]
            rule.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence(rule)
        added = [tokens[i] for i in vocabulary.of_type(USER_DEFINED)
                 if tokens[i] and tokens[i].encode() == vocabulary.tokens[i]]  # no text holds half a character
        if added:
            self._tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in added])

    def encode(self, text, first):
        """Ids of text without control tokens. Bytes that are not UTF-8 become U+FFFD each, as everywhere in BPE."""
        if not text.isascii():
            text = _SURROGATES.sub("\ufffd", text)
        if self._missing and (lacking := self._missing.intersection(text.encode())):
            raise TokenizerError(f"text: this vocabulary has no token for byte 0x{min(lacking):02X}")
        try:
            return self._tokenizer.encode(text, add_special_tokens=False).ids
        except BaseException as e:
            if type(e).__name__ != "PanicException":  # what a panic inside the library arrives as
                raise
            raise TokenizerError(f"text of {len(text)} characters: {str(e)[:200]}") from None


def surface(vocabulary, token):
    """Bytes of a normal or unused token; characters outside the byte alphabet stand for themselves."""
    text = vocabulary.tokens[token]
    if vocabulary.types[token] == USER_DEFINED:
        return text
    return b"".join(_BYTES.get(ord(c)) or c.encode("utf-8", "surrogateescape")
                    for c in text.decode("utf-8", "surrogateescape"))

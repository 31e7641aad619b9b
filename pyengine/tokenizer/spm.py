"""SentencePiece vocabularies (tokenizer.ggml.model "llama"), by way of the sentencepiece library.

The library wants a serialized ModelProto; it is written here, by hand, from the file's arrays. What this
is not: the training or the unigram side of sentencepiece. May be imported by pyengine.tokenizer only.
"""
import re
import struct

from ..errors import TokenizerError
from .vocab import CONTROL, NORMAL, SPACE, UNKNOWN, UNUSED, USER_DEFINED

_BAD_BYTES = re.compile("([\udc80-\udcff])")  # bytes that were not UTF-8, as surrogateescape spells them
_OTHER_SURROGATES = re.compile("[\ud800-\udc7f\udd00-\udfff]")

# The library matches user-defined pieces with a trie that it builds recursively, a level per byte.
_MAX_USER_DEFINED_BYTES = 4096


def _varint(n):
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def _field(number, payload):
    """A length-delimited protobuf field."""
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _piece(text, score, kind):
    """SentencePiece {piece = 1, score = 2, type = 3}; score is four bytes already."""
    return _field(1, _field(1, text) + b"\x15" + score + b"\x18" + bytes((kind,)))


# TrainerSpec: model_type = 3 (BPE = 2), byte_fallback = 35.
_TRAINER = _field(2, b"\x18\x02" + _varint(35 << 3) + b"\x01")
# NormalizerSpec: name = 1, add_dummy_prefix = 3, remove_extra_whitespaces = 4, escape_whitespaces = 5.
# The blank in front is put there by encode() below, which knows where a text begins.
_NORMALIZER = _field(3, _field(1, b"identity") + b"\x18\x00\x20\x00\x28\x01")


def model_proto(tokens, types, scores):
    """ModelProto bytes. Control and unknown pieces cannot be met in text; one unknown piece of our own is
    appended, since the library insists on exactly one and byte fallback never lets it be used. Pieces that the
    library refuses (empty, with a NUL, the second of two equal ones) are kept as names no text can match.

    Unused pieces count as normal ones, as in every converter to merges: they take part in merging.
    """
    packed = struct.pack(f"<{len(scores)}f", *scores)
    # Nearly every piece is short and normal (the default, so no type field): two bytes of framing each.
    head = [bytes((0x0A, n + 7, 0x0A, n)) for n in range(121)]
    head += [b""] * (max(map(len, tokens)) - 120)
    parts = [head[len(t)] + t + b"\x15" + s for t, (s,) in zip(tokens, struct.iter_unpack("4s", packed))]
    taken = {}
    odd = {i for kind in (UNKNOWN, CONTROL, USER_DEFINED, 6) for i in _positions(types, kind)}
    odd.update(i for i, t in enumerate(tokens) if not 0 < len(t) <= 120 or 0 in t)
    if len(set(tokens)) != len(tokens):
        for i, t in enumerate(tokens):
            if taken.setdefault(t, i) != i:
                odd.add(i)
    for i in odd:
        text, kind = tokens[i], types[i]
        if kind in (UNKNOWN, UNUSED):
            kind = CONTROL if kind == UNKNOWN else NORMAL
        if kind == USER_DEFINED:
            if len(text) > _MAX_USER_DEFINED_BYTES:
                raise TokenizerError(f"tokenizer.ggml.tokens: user-defined token {i} has {len(text)} bytes, "
                                     f"expected at most {_MAX_USER_DEFINED_BYTES}")
            text = text.replace(b" ", SPACE)  # files keep them with blanks, the library looks for U+2581
        if not text or 0 in text or taken.get(tokens[i], i) != i:
            text, kind = b"\x01unreachable %d" % i, CONTROL
        parts[i] = _piece(text, packed[4 * i:4 * i + 4], kind)
    parts.append(_piece(b"\x01unknown", bytes(4), UNKNOWN))
    parts += _TRAINER, _NORMALIZER
    return b"".join(parts)


def _positions(types, kind):
    i = types.find(kind)
    while i >= 0:
        yield i
        i = types.find(kind, i + 1)


class SentencePiece:
    def __init__(self, vocabulary, add_space_prefix):
        import sentencepiece

        self._bytes = vocabulary.byte_ids()
        self._prefix = add_space_prefix
        self._model = sentencepiece.SentencePieceProcessor()
        proto = model_proto(vocabulary.all_tokens(), vocabulary.types, vocabulary.scores())
        try:
            self._model.LoadFromSerializedProto(proto)
        except RuntimeError as e:
            raise TokenizerError(f"tokenizer.ggml.tokens: refused by sentencepiece: {str(e)[:200]}") from None

    def encode(self, text, first):
        """Ids of text without control tokens; first: it begins the text or follows a control token."""
        if first and self._prefix:
            text = " " + text
        if text.isascii():
            return self._model.EncodeAsIds(text)
        if _OTHER_SURROGATES.search(text):
            text = _OTHER_SURROGATES.sub("\ufffd", text)
        ids = []
        for part in _BAD_BYTES.split(text):
            if len(part) == 1 and "\udc80" <= part <= "\udcff":
                ids.append(self._bytes[ord(part) - 0xDC00])
            elif part:
                ids += self._model.EncodeAsIds(part)
        return ids


def surface(vocabulary, token):
    """Bytes of a normal, unused or user-defined token."""
    return vocabulary.tokens[token].replace(SPACE, b" ")

"""SentencePiece vocabularies (tokenizer.ggml.model "llama"), by way of the sentencepiece library.

The library wants a serialized ModelProto; it is written here and in vocab.c, by hand, from the file's arrays.
What this is not: the training or the unigram side of sentencepiece. May be imported by pyengine.tokenizer only.
"""
import re
import warnings

from ..errors import TokenizerError
from ..native import ffi, lib
from .vocab import CONTROL, NORMAL, SPACE, UNKNOWN, UNUSED, USER_DEFINED

_TYPES = bytes.maketrans(bytes((UNKNOWN, UNUSED)), bytes((CONTROL, NORMAL)))

_BAD_BYTES = re.compile("([\udc80-\udcff])")  # bytes that were not UTF-8, as surrogateescape spells them
_OTHER_SURROGATES = re.compile("[\ud800-\udc7f\udd00-\udfff]")

# The library takes 7,999, but builds its trie of user-defined pieces recursively, a level per byte.
_MAX_PIECE_BYTES = 4096


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


# TrainerSpec: model_type = 3 (BPE = 2), byte_fallback = 35.
_TRAINER = _field(2, b"\x18\x02" + _varint(35 << 3) + b"\x01")
# NormalizerSpec: name = 1, add_dummy_prefix = 3, remove_extra_whitespaces = 4, escape_whitespaces = 5.
# The blank in front is put there by encode() below, which knows where a text begins.
_NORMALIZER = _field(3, _field(1, b"identity") + b"\x18\x00\x20\x00\x28\x01")
# The library insists on exactly one unknown piece (piece = 1, score = 2, type = 3), and phi-3 and gemma call theirs
# a control token: one of our own stands behind the last id, and byte fallback never lets it be used.
_UNKNOWN = _field(1, _field(1, b"\x01unknown") + b"\x15\0\0\0\0\x18\x02")


def model_proto(vocabulary, unreachable=()):
    """ModelProto bytes. Control and unknown pieces cannot be met in text; unused ones count as normal, as in
    every converter to merges: they take part in merging. Ids in unreachable get a name that no text has."""
    types = vocabulary.types.translate(_TYPES)
    half = (i for i in vocabulary.of_type(USER_DEFINED) if not _is_utf8(vocabulary.tokens[i]))
    for i in (*unreachable, *half):  # half a character as a user-defined piece would match inside whole ones
        types[i] = 0
    tokens = vocabulary.tokens
    from_buffer = ffi.from_buffer
    arguments = (from_buffer("uint8_t[]", tokens.buffer), from_buffer("uint64_t[]", tokens.offsets),
                 from_buffer("uint64_t[]", tokens.lengths), from_buffer("uint8_t[]", vocabulary.scores()),
                 from_buffer("uint8_t[]", types), vocabulary.n)
    pieces = bytearray(lib.pe_spm_pieces(*arguments, ffi.NULL))
    lib.pe_spm_pieces(*arguments, from_buffer("uint8_t[]", pieces))
    return b"".join((pieces, _UNKNOWN, _TRAINER, _NORMALIZER))


def _is_utf8(text):
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _repeated(tokens):
    """Ids whose text an earlier one has."""
    seen = set()
    return [i for i, t in enumerate(tokens) if t in seen or seen.add(t)]


class SentencePiece:
    def __init__(self, vocabulary, add_space_prefix):
        import sentencepiece

        self._bytes = vocabulary.byte_ids()
        self._prefix = add_space_prefix
        self._check_lengths(vocabulary)
        self._model = sentencepiece.SentencePieceProcessor()
        try:
            self._model.LoadFromSerializedProto(model_proto(vocabulary))
        except RuntimeError as e:
            # Equal texts are looked for only now: it costs 60 ms, and hardly any file has them.
            spelled = [t.replace(b" ", SPACE) if kind == USER_DEFINED else t
                       for t, kind in zip(vocabulary.tokens, vocabulary.types)]
            repeated = _repeated(spelled)
            if not repeated:
                raise TokenizerError(f"tokenizer.ggml.tokens: refused by sentencepiece: {str(e)[:200]}") from None
            warnings.warn(f"tokenizer.ggml.tokens: token {repeated[0]} ({spelled[repeated[0]][:40]!r}) has the text of an "
                          f"earlier one, as have {len(repeated) - 1} others; text becomes the earlier one", stacklevel=5)
            self._model.LoadFromSerializedProto(model_proto(vocabulary, repeated))

    @staticmethod
    def _check_lengths(vocabulary):
        lengths = vocabulary.tokens.lengths
        if (longest := max(lengths)) > _MAX_PIECE_BYTES:
            i = next(i for i, n in enumerate(lengths) if n == longest)
            raise TokenizerError(f"tokenizer.ggml.tokens: token {i} has {longest} bytes, expected at most "
                                 f"{_MAX_PIECE_BYTES} in a sentencepiece vocabulary")

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

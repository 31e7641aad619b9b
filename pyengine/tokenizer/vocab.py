"""The vocabulary of a file: token texts, types, scores and special ids, checked by name.

Knows nothing of how text is split. Texts stay in the file's mapping until somebody asks for them.
May be imported by pyengine.tokenizer only.
"""
import math
from array import array

from ..errors import TokenizerError

_ARRAY, _F32 = 9, 6  # GGUF's value types

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
KINDS = ("normal", "normal", "unknown", "control", "user_defined", "unused", "byte")  # 0: written by some converters

MAX_TOKEN_BYTES = 65536  # the longest token seen in a published model has 256
SPACE = "\u2581".encode()

# Texts that end a turn or a generation, whatever ids the file names. A control token with such a text always
# counts. One that the file calls user-defined counts too and is taken as control, except the HTML-like ones:
# gemma's "</s>" is the end of a strike-through. Where it is a plain word it is a plain word.
END_TEXTS = frozenset(text.encode() for text in (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<end_of_turn>",
    "<|endoftext|>", "<|end_of_text|>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<end_of_utterance>",
    "<eos>", "</s>", "<turn|>", "<|tool_response>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "[e~[",
    "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"))
AMBIGUOUS_END_TEXTS = frozenset((b"</s>", b"<eos>", b"<EOT>"))

BYTE_NAMES = {b"<0x%02X>" % b: b for b in range(256)}
SPECIAL_IDS = {"bos": "bos_token_id", "eos": "eos_token_id", "eot": "eot_token_id", "eom": "eom_token_id",
               "unk": "unknown_token_id", "pad": "padding_token_id"}


class Vocabulary:
    """tokens (bytes by id), types (one byte per id, 1..6), ids of the special tokens (None if absent)."""

    def __init__(self, gguf):
        self._gguf = gguf
        self.tokens = gguf.get_strings("tokenizer.ggml.tokens")
        self.n = len(self.tokens)
        if self.n == 0:
            raise gguf.error("tokenizer.ggml.tokens", "found an empty array, expected at least one token")
        longest = max(self.tokens.lengths)
        if longest > MAX_TOKEN_BYTES:
            i = next(i for i, n in enumerate(self.tokens.lengths) if n == longest)
            raise gguf.error("tokenizer.ggml.tokens", f"found {longest} bytes for token {i}, expected at most "
                                                      f"{MAX_TOKEN_BYTES}")
        self.types = self._read_types()
        self.ids = {name: self._special_id("tokenizer.ggml." + key) for name, key in SPECIAL_IDS.items()}
        self._demote_end_texts()

    def _read_types(self):
        key = "tokenizer.ggml.token_type"
        if key not in self._gguf:
            return bytearray(b"\1" * self.n)
        values = self._gguf.get_ints(key, n=self.n)
        try:
            types = bytearray(values)
        except (ValueError, OverflowError):
            types = bytearray(b"\xff")
        if max(types) > BYTE:
            i, v = next((i, v) for i, v in enumerate(values) if not 0 <= v <= BYTE)
            raise self._gguf.error(key, f"found type {v} for token {i}, expected 1 to 6")
        return types.replace(b"\0", b"\1")

    def _special_id(self, key):
        if key not in self._gguf:
            return None
        return self._gguf.get_int(key, lo=0, hi=self.n - 1)

    def _demote_end_texts(self):
        for i in self.of_type(USER_DEFINED):
            text = self.tokens[i]
            if text in END_TEXTS and text not in AMBIGUOUS_END_TEXTS:
                self.types[i] = CONTROL

    def of_type(self, kind):
        """Ids of that type, ascending. Found by memchr: 262,144 types with 6,249 hits take 1 ms."""
        i = self.types.find(kind)
        while i >= 0:
            yield i
            i = self.types.find(kind, i + 1)

    def scores(self):
        """The scores' bytes in the header: n little-endian floats, all finite."""
        key = "tokenizer.ggml.scores"
        entry = self._gguf.entry(key)
        if entry is None or (entry.type, entry.elem, entry.count) != (_ARRAY, _F32, self.n):
            found = "missing" if entry is None else f"found {self._gguf.describe(key)}"
            raise self._gguf.error(key, f"{found}, expected an array of {self.n} f32")
        raw = self.tokens.buffer[entry.val:entry.end]
        values = array("f")
        values.frombytes(raw)
        if not math.isfinite(sum(values)):
            i = next(i for i, v in enumerate(values) if not math.isfinite(v))
            raise self._gguf.error(key, f"found {values[i]} for token {i}, expected finite numbers")
        return raw

    def end_ids(self):
        ends = {self.ids[name] for name in ("eos", "eot", "eom")} - {None}
        by_text = {}
        for i in self.of_type(CONTROL):
            text = self.tokens[i]
            if text in END_TEXTS:
                by_text[text] = i
        # Where a call or a return ends a turn, <|end|> only ends one message of it.
        if b"<|end|>" in by_text and ({b"<|return|>", b"<|call|>"} <= by_text.keys()
                                      or by_text.keys() & {b"<|call|>", b"<|calls|>"} and b"<|flush|>" in by_text):
            if by_text[b"<|end|>"] not in ends:
                del by_text[b"<|end|>"]
        if b"<|tool_response>" in by_text:
            by_text.pop(b"</s>", None)
        return frozenset(ends | set(by_text.values()))

    def byte_ids(self):
        """The 256 byte tokens, <0x00> to <0xFF>, by value; strict about their texts."""
        ids = [None] * 256
        for i in self.of_type(BYTE):
            value = BYTE_NAMES.get(self.tokens[i])
            if value is None:
                raise TokenizerError(f"tokenizer.ggml.tokens: byte token {i} is {self.tokens[i][:20]!r}, "
                                     "expected <0x00> to <0xFF>")
            if ids[value] is None:
                ids[value] = i
        missing = [b for b in range(256) if ids[b] is None]
        if missing:
            raise TokenizerError(f"tokenizer.ggml.tokens: {len(missing)} of the 256 byte tokens are missing, the first "
                                 f"is <0x{missing[0]:02X}>; a sentencepiece vocabulary needs them all")
        return ids


def is_phi3(gguf):
    """phi-3 swallows blanks after its control tokens; nothing in the file says so but its name."""
    name = gguf.get_str("general.name", default="").lower()
    return "phi-3" in name or "phi3" in name

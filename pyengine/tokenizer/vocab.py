"""The vocabulary of a file: token texts, types, scores and special ids, checked by name.

Knows nothing of how text is split. Texts stay in the file's header until somebody asks for them.
May be imported by pyengine.tokenizer only.
"""
import os
import struct
import warnings
from array import array
from itertools import accumulate

from ..errors import MemoryBudgetError, TokenizerError
from ..native import address_of, ffi, lib

_ARRAY, _U32, _I32, _F32 = 9, 4, 5, 6  # GGUF's value types
F32 = 0  # ggml's type

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
               "unk": "unknown_token_id", "pad": "padding_token_id", "sep": "seperator_token_id", "cls": "cls_token_id",
               "mask": "mask_token_id"}  # "seperator": GGUF spells it so
# What old files leave out, where the tokens are what the kind's own layout says.
_USUAL_IDS = {
    "llama": (("unk", 0, b"<unk>"), ("bos", 1, b"<s>"), ("eos", 2, b"</s>")),
    "bert": (("pad", 0, b"[PAD]"), ("unk", 100, b"[UNK]"), ("bos", 101, b"[CLS]"), ("sep", 102, b"[SEP]"), ("mask", 103, b"[MASK]")),
    "t5": (("pad", 0, b"<pad>"), ("eos", 1, b"</s>"), ("unk", 2, b"<unk>")),
    "plamo2": (("unk", 0, b"<|plamo:unk|>"), ("bos", 1, b"<|plamo:bos|>"), ("eos", 2, b"<|plamo:eos|>"), ("pad", 3, b"<|plamo:pad|>")),
}
MAX_TRIE_BYTES = 1 << 24  # of all token texts; Gemma 3's 262,144 have 2.3 MB
MAX_NESTED = 256          # tokens that begin (or end) with one another: bounds the work per character


class Vocabulary:
    """tokens (bytes by id), types (one byte per id, 1..6), ids of the special tokens (None if absent)."""

    def __init__(self, gguf):
        self._gguf = gguf
        self.tokens = gguf.get_strings("tokenizer.ggml.tokens")
        self.n = len(self.tokens)
        if self.n == 0:
            raise gguf.error("tokenizer.ggml.tokens", "found an empty array, expected at least one token")
        longest = lib.pe_vocab_longest(ffi.from_buffer("uint64_t[]", self.tokens.lengths), self.n)
        if longest > MAX_TOKEN_BYTES:
            i = next(i for i, n in enumerate(self.tokens.lengths) if n == longest)
            raise gguf.error("tokenizer.ggml.tokens", f"found {longest} bytes for token {i}, expected at most "
                                                      f"{MAX_TOKEN_BYTES}")
        self.types = self._read_types()
        self.ids = {name: self._special_id("tokenizer.ggml." + key) for name, key in SPECIAL_IDS.items()}
        self._demote_end_texts()

    def _read_types(self):
        key = "tokenizer.ggml.token_type"
        entry = self._gguf.entry(key)
        if entry is None:
            return bytearray(b"\1" * self.n)
        if entry.type == _ARRAY and entry.elem in (_U32, _I32) and entry.count == self.n:
            values = self.tokens.buffer[entry.val:entry.end]
        else:  # narrow ones are widened; what is no array of n integers is refused
            values = struct.pack(f"<{self.n}i", *(max(-1, min(v, 99)) for v in self._gguf.get_ints(key, n=self.n)))
        types = bytearray(self.n)
        bad = lib.pe_vocab_types(ffi.from_buffer("uint8_t[]", values), self.n, ffi.from_buffer("uint8_t[]", types))
        if bad >= 0:
            raise self._gguf.error(key, f"found type {self._gguf.get_ints(key)[bad]} for token {bad}, expected 1 to 6")
        return types

    def _special_id(self, key):
        if key not in self._gguf:
            return None
        return self._gguf.get_int(key, lo=0, hi=self.n - 1)

    def _demote_end_texts(self):
        for i in self.of_type(USER_DEFINED):
            text = self.tokens[i]
            if text in END_TEXTS and text not in AMBIGUOUS_END_TEXTS:
                self.types[i] = CONTROL

    def take_usual_ids(self, model):
        if model == "bert" and self.ids["bos"] is None:
            self.ids["bos"] = self.ids["cls"]
        for name, i, text in _USUAL_IDS.get(model, ()):
            if self.ids[name] is None and i < self.n and self.tokens[i] == text:
                self.ids[name] = i

    def without_padding(self):
        """How many ids there are before the [PAD...] tokens with which a list of tokens is filled up to the model's rows."""
        n = self.n
        while n and self.types[n - 1] != NORMAL and self.tokens[n - 1] == b"[PAD%d]" % (n - 1):
            n -= 1
        return n

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
        bad = lib.pe_first_nonfinite(F32, ffi.from_buffer("uint8_t[]", raw), self.n)
        if bad >= 0:
            value = struct.unpack_from("<f", raw, 4 * bad)[0]
            raise self._gguf.error(key, f"found {value} for token {bad}, expected finite numbers")
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


class Table:
    """Token ids by text, for bpe.c: the arrays are those of the header, kept alive here.

    scores, byte_ids: sentencepiece. repeats: how many tokens have the text of an earlier one; first_repeat.
    """

    def __init__(self, tokens, types, scores=None, byte_ids=None):
        # Addresses, not from_buffer objects: a memoryview that is still exported breaks the collector at exit.
        arrays = [ffi.cast(kind, address_of(data)) for kind, data in (
            ("uint8_t *", tokens.buffer), ("uint64_t *", tokens.offsets), ("uint64_t *", tokens.lengths), ("uint8_t *", types))]
        self._alive = tokens, types, scores
        scores = ffi.NULL if scores is None else ffi.cast("uint8_t *", address_of(scores))
        byte_ids = ffi.NULL if byte_ids is None else ffi.new("int32_t[]", byte_ids)
        repeats, out = ffi.new("uint64_t[2]"), ffi.new("pe_vocab **")
        seeds = struct.unpack("=2Q", os.urandom(16))
        self.check(lib.pe_vocab_new(*arrays, len(tokens), scores, byte_ids, *seeds, repeats, out))
        self.repeats, self.first_repeat = repeats
        self.c = ffi.gc(out[0], lib.pe_vocab_free)

    @staticmethod
    def check(code):
        if code == lib.PE_ENOMEM:
            raise MemoryBudgetError("out of memory in the tokenizer")
        assert code == lib.PE_OK

    def byte_ids(self):
        ids = ffi.new("int32_t[256]")
        lib.pe_vocab_bytes(self.c, ids)
        return list(ids)

    def find(self, text):
        """The id of a text (bytes), -1 if it is no token that text can become."""
        return lib.pe_vocab_find(self.c, text, len(text))

    def encode(self, function, text, *arguments):
        """Ids of text (bytes) by pe_bpe_encode or pe_spm_encode."""
        if len(text) >> 32:
            raise TokenizerError(f"text: found {len(text)} bytes, expected less than 4 GB")
        out, n = ffi.new("int32_t[]", len(text)), ffi.new("uint64_t *")
        self.check(function(self.c, text, len(text), *arguments, out, n))
        return ffi.unpack(out, n[0])


class Joined:
    """Byte strings one after another, as Trie wants them."""

    def __init__(self, tokens):
        self.lengths = memoryview(array("Q", map(len, tokens)))
        self.offsets = memoryview(array("Q", accumulate(self.lengths, initial=0)))
        self.buffer = b"".join(tokens) or b"\0"


class Trie:
    """The automaton of trie.c over those tokens whose type is in kinds. tokens: .buffer, .offsets, .lengths."""

    def __init__(self, tokens, kinds, types, backwards=False, what="tokenizer.ggml.tokens", nested=MAX_NESTED):
        use = bytes(types).translate(bytes(t in kinds for t in range(256)))
        total = sum(n for n, used in zip(tokens.lengths, use) if used)
        if total > MAX_TRIE_BYTES:
            raise TokenizerError(f"{what}: {total} bytes of text, expected at most {MAX_TRIE_BYTES}")
        self._alive = tokens.lengths
        pointers = [ffi.cast("uint64_t *", address_of(data)) for data in (tokens.offsets, tokens.lengths)]
        facts, out = ffi.new("uint64_t[3]"), ffi.new("pe_trie **")
        seeds = struct.unpack("=2Q", os.urandom(16))
        Table.check(lib.pe_trie_new(ffi.cast("uint8_t *", address_of(tokens.buffer)), *pointers, use, len(use), backwards, *seeds,
                                    facts, out))
        self._c = ffi.gc(out[0], lib.pe_trie_free)
        repeats, first, found = facts
        if repeats:
            warnings.warn(f"tokenizer.ggml.tokens: {repeats} tokens have the text of an earlier one, token {first} is the first; "
                          "text becomes the earlier one", stacklevel=6)
        if nested is not None and found > nested:
            raise TokenizerError(f"{what}: {found} tokens {'begin' if backwards else 'end'} with one another, "
                                 f"expected at most {nested}")

    def longest(self, text):
        """The longest token that begins at each byte of text (backwards only), -1 where none does: an array of C's."""
        best = ffi.new("int32_t[]", len(text))
        lib.pe_trie_longest(self._c, text, len(text), best)
        return best

    def encode(self, function, text, *arguments):
        """Ids of text (bytes) by one of longest.c's or unigram.c's functions; arguments stand between text and out."""
        if len(text) >> 32:
            raise TokenizerError(f"text: found {len(text)} bytes, expected less than 4 GB")
        out, n = ffi.new("int32_t[]", len(text)), ffi.new("uint64_t *")
        Table.check(function(self._c, text, len(text), *arguments, out, n))
        return ffi.unpack(out, n[0])


def strips(gguf, model, pre):
    """(texts of tokens that take the blanks before them with them, and a function: does a text take those after it?).

    GGUF has no room for the lstrip and rstrip of Hugging Face's added tokens; which models have them is known by name."""
    name = gguf.get_str("general.name", default="").lower()
    arch = gguf.get_str("general.architecture", default="")
    if "phi-3" in name or "phi3" in name:
        return frozenset(), lambda text: text not in ("<unk>", "<s>", "<|endoftext|>")
    if pre in ("jina-v2-de", "jina-v2-es", "jina-v2-code", "roberta-bpe", "mmbert") or model == "t5":
        return frozenset(("<mask>",)), None     # RoBERTa's and, in unigram vocabularies, XLM-R's
    if "modern-bert" in (pre, arch) or "modern-bert" in name or "modernbert" in name:
        return frozenset(("[MASK]",)), None
    return frozenset(), None

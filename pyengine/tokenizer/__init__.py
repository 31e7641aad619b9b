"""Text to token ids and back, for the vocabularies that GGUF files carry.

One file per kind: spm.py (sentencepiece's merges), ugm.py (its unigram models), bpe.py with pre.py (byte-level BPE),
wpm.py (WordPiece), rwkv.py, plamo.py. Reading a file costs its special ids and token types; the model behind encode() is
built when it is first needed. Bytes that are not UTF-8: sentencepiece's merges, RWKV and PLaMo keep them, the others turn
each into U+FFFD. Lone surrogates U+DC80 to U+DCFF in a str stand for such bytes (as in os.fsdecode), any other becomes
U+FFFD.
Imports errors and native only. May be imported by llama, stream, chat's callers, serve, cli and compat.
"""
import threading
import warnings

from ..errors import TokenizerError, UnsupportedError
from . import bpe, plamo, rwkv, spm, ugm, wpm
from .control import ControlTokens
from .decode import Decoder
from .pre import ADDS_BOS, OF_CHARACTERS
from .vocab import BYTE, BYTE_NAMES, CONTROL, KINDS, UNKNOWN, USER_DEFINED, Vocabulary, strips

__all__ = ["MODELS", "Tokenizer", "load"]

MODELS = {"llama": "sentencepiece", "gpt2": "byte-level BPE", "gemma4": "BPE of characters", "bert": "WordPiece",
          "t5": "unigram", "rwkv": "RWKV world", "plamo2": "PLaMo-2"}
_BPE = ("gpt2", "gemma4")
_SURFACES = {"llama": spm, "bert": spm, "t5": spm, "rwkv": rwkv, "plamo2": plamo}  # whose surface() holds
_NONE = ("none", "no_vocab")  # what converters write for models without a vocabulary


def load(gguf):
    """The Tokenizer of an open GGUF. Raises UnsupportedError for kinds not built yet, GGUFError for broken ones."""
    model = gguf.get_str("tokenizer.ggml.model")
    if model in _NONE:
        raise UnsupportedError(f"tokenizer.ggml.model: {model!r}: the file has no vocabulary, so text can become no tokens")
    if model not in MODELS:
        raise UnsupportedError(f"tokenizer.ggml.model: {model[:100]!r} is not supported; supported are "
                               + ", ".join(f"{k!r} ({v})" for k, v in MODELS.items()))
    return Tokenizer(gguf, model)


class Tokenizer:
    """n_vocab; bos, eos, eot, eom, unk, pad, sep, cls, mask (None if absent); end_ids; add_bos, add_eos; model.

    n_sampled: ids from here on only fill the list up and are never sampled. closing: what add_eos adds, eos or
    WordPiece's sep."""

    def __init__(self, gguf, model):
        self.model = model
        self._gguf = gguf
        self._vocabulary = vocabulary = Vocabulary(gguf)
        self.n_vocab = vocabulary.n
        self.n_sampled = vocabulary.without_padding()
        vocabulary.take_usual_ids(model)
        for name, value in vocabulary.ids.items():
            setattr(self, name, value)
        self.pre = bpe.pre_tokenizer_name(gguf) if model == "gpt2" else model if model == "gemma4" else None
        prefix = model == "llama"
        if model in ("llama", "t5"):
            prefix = gguf.get_bool("tokenizer.ggml.add_space_prefix", default=prefix)
        self.add_space_prefix = prefix
        self.add_bos = self._adds("add_bos_token", "bos", model in ("llama", "bert") or self.pre in ADDS_BOS)
        self.add_eos = self._adds("add_eos_token", "eos", model == "t5")
        self.add_sep = self._adds("add_sep_token", "sep", model == "bert")
        if self.pre == "gemma4" and not self.add_bos and self.bos is not None:
            warnings.warn("tokenizer.ggml.add_bos_token: found false, as early conversions of Gemma 4 say; a text begins with "
                          "the beginning-of-sequence token all the same", stacklevel=4)
            self.add_bos = True
        self.closing = self.eos
        if model == "bert":
            self.add_eos, self.closing = self.add_sep, self.sep
        self._lock = threading.Lock()
        self._pieces = {}
        self._model = self._controls = self._end_ids = self._longest = None
        self._lstrip, self._rstrip = strips(gguf, model, self.pre)

    def _adds(self, name, token, default):
        """Whether encode() adds a token; WordPiece and unigram models need theirs, and are refused without."""
        key, id = "tokenizer.ggml." + name, getattr(self, token)
        if key in self._gguf:
            if (value := self._gguf.get_bool(key)) and id is None:
                raise self._gguf.error(key, "found true, but the file names no such token")
            return value
        if default and id is None and self.model in ("bert", "t5"):
            raise TokenizerError(f"{key}: missing, and the file names no {token} token; {MODELS[self.model]} vocabularies need one")
        return default and id is not None

    # --- the models, on first use ------------------------------------------------------------------

    def _build(self):
        with self._lock:
            if self._model is None:
                self._find_added()
                vocabulary, gguf = self._vocabulary, self._gguf
                if self.model in _BPE:
                    self._model = bpe.ByteLevelBPE(vocabulary, gguf, self.pre)
                elif self.model == "llama":
                    self._model = spm.SentencePiece(vocabulary, self.add_space_prefix)
                elif self.model == "t5":
                    self._model = ugm.Unigram(vocabulary, gguf, self.add_space_prefix)
                elif self.model == "bert":
                    self._model = wpm.WordPiece(vocabulary, gguf)
                else:
                    self._model = {"rwkv": rwkv.World, "plamo2": plamo.Plamo}[self.model](vocabulary, gguf)
            return self._model

    def _find_added(self):
        """User-defined tokens, where the kind's own file does not find them, or not those that take blanks with them."""
        self._added = None
        if self.model in _BPE or self.model == "llama" and self._rstrip is None:
            return
        texts = self._texts((USER_DEFINED,))
        if texts:
            self._added = self._finder(texts, "user-defined tokens")

    def _texts(self, kinds):
        texts = {}
        for kind in kinds:
            for i in self._vocabulary.of_type(kind):
                if text := self._vocabulary.tokens[i].decode("utf-8", "surrogateescape"):
                    texts.setdefault(text, i)
        return texts

    def _finder(self, texts, name="control tokens"):
        lstrip = frozenset(i for t, i in texts.items() if t in self._lstrip)
        rstrip = frozenset(i for t, i in texts.items() if self._rstrip and self._rstrip(t))
        return ControlTokens(texts, lstrip, rstrip, name)

    @property
    def controls(self):
        """The control tokens as they are found in text."""
        if self._controls is None:
            self._controls = self._finder(self._texts((CONTROL, UNKNOWN)))
        return self._controls

    @property
    def end_ids(self):
        if self._end_ids is None:
            self._end_ids = self._vocabulary.end_ids()
        return self._end_ids

    # --- text to ids -------------------------------------------------------------------------------

    def encode(self, text, special=False, add_bos=None, add_eos=None, shield="", continued=False):
        """Ids of text (str or bytes).

        special: texts of control tokens become those tokens; user-defined tokens always do.
        add_bos, add_eos: None is what the file says; neither is added where the ids already have it.
        continued: the text goes on from another, so no blank is put before it.
        shield: a character that Template.encode has put into the texts of users; it is taken out
        after control tokens are found.
        """
        if isinstance(text, (bytes, bytearray, memoryview)):
            text = bytes(text).decode("utf-8", "surrogateescape")
        elif not isinstance(text, str):
            raise TypeError(f"text: {type(text).__name__}, expected str or bytes")
        model = self._model or self._build()
        ids = []
        first = not continued
        for part in self.controls.split(text, shield) if special else [text] if text else []:
            if isinstance(part, int):
                ids.append(part)
                first = True
                continue
            if shield:
                part = part.replace(shield, "")
            for part in self._added.split(part) if self._added is not None else [part] if part else []:
                if isinstance(part, int):
                    ids.append(part)
                    first = True
                else:
                    ids += model.encode(part, first)
                    first = False
        if self.add_bos if add_bos is None else add_bos:
            if self.bos is None:
                raise TokenizerError("add_bos: this vocabulary has no beginning-of-sequence token")
            if ids[:1] != [self.bos]:
                ids.insert(0, self.bos)
        if self.add_eos if add_eos is None else add_eos:
            if self.closing is None:
                raise TokenizerError("add_eos: this vocabulary has no end-of-sequence token")
            if ids[-1:] != [self.closing]:
                ids.append(self.closing)
        return ids

    def at_least(self, text):
        """A number of ids that text surely makes, without making them: none stands for more bytes than the longest.
        0 where text is normalized, or an unknown token stands for any length of it."""
        if self.model in ("bert", "t5"):
            return 0
        if self._longest is None:
            lengths, longest = self._vocabulary.tokens.lengths, 1
            for i in sorted(range(self.n_vocab), key=lengths.__getitem__, reverse=True):
                if lengths[i] <= longest:        # what it stands for is never longer than its text
                    break
                longest = max(longest, len(self.piece(i, special=True)))
            self._longest = longest
        if self._lstrip or self._rstrip:
            text = "".join(text.split())
        return -(-len(text.encode("utf-8", "replace")) // self._longest)      # a byte that is not UTF-8 counts as one

    # --- ids to text -------------------------------------------------------------------------------

    def kind(self, token):
        return KINDS[self._vocabulary.types[self._checked(token)]]

    def is_text(self, token):
        return self._vocabulary.types[self._checked(token)] not in (CONTROL, UNKNOWN)

    def _checked(self, token):
        if not 0 <= token < self.n_vocab:
            raise TokenizerError(f"token id {token}: expected 0 to {self.n_vocab - 1}")
        return token

    def piece(self, token, special=False):
        """The bytes a token stands for; of control and unknown tokens only if special."""
        piece = self._pieces.get(token)
        if piece is None:
            kind = self._vocabulary.types[self._checked(token)]
            text = self._vocabulary.tokens[token]
            if kind in (CONTROL, UNKNOWN):
                piece = text
            elif kind == BYTE:
                value = BYTE_NAMES.get(text)
                piece = text if value is None else bytes((value,))
            else:
                piece = (bpe.surface(self._vocabulary, token, self.pre in OF_CHARACTERS) if self.model in _BPE
                         else _SURFACES[self.model].surface(self._vocabulary, token))
            self._pieces[token] = piece
        if not special and not self.is_text(token):
            return b""
        return piece

    def decode(self, ids, special=False, continued=False):
        """Text of ids. One leading blank that encode() adds is dropped, unless continued: the ids go on from others."""
        decoder = self.decoder(special, continued)
        return "".join([decoder.push(i) for i in ids]) + decoder.flush()

    def decoder(self, special=False, continued=False):
        words = self.model == "bert"    # each has a blank in front
        return Decoder(self, special, (words or self.add_space_prefix) and not continued, words)

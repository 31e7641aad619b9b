"""Text to token ids and back, for the vocabularies that GGUF files carry.

One file per kind: spm.py (sentencepiece), bpe.py with pre.py (byte-level BPE). Reading a file costs its
special ids and token types; the model behind encode() is built when it is first needed. Bytes that are not
UTF-8: SentencePiece keeps them as byte tokens, BPE turns each into U+FFFD. Lone surrogates U+DC80 to U+DCFF
in a str stand for such bytes (as in os.fsdecode), any other becomes U+FFFD.
Imports errors and native only. May be imported by llama, stream, chat's callers, serve, cli and compat.
"""
import threading
import warnings

from ..errors import TokenizerError, UnsupportedError
from . import bpe, spm
from .control import ControlTokens
from .decode import Decoder
from .pre import ADDS_BOS
from .vocab import BYTE, BYTE_NAMES, CONTROL, KINDS, UNKNOWN, Vocabulary, is_phi3

__all__ = ["Tokenizer", "load"]

_MODELS = {"llama": "sentencepiece", "gpt2": "byte-level BPE"}


def load(gguf):
    """The Tokenizer of an open GGUF. Raises UnsupportedError for kinds not built yet, GGUFError for broken ones."""
    model = gguf.get_str("tokenizer.ggml.model")
    if model not in _MODELS:
        raise UnsupportedError(f"tokenizer.ggml.model: {model[:100]!r} is not supported; supported are "
                               + ", ".join(f"{k!r} ({v})" for k, v in _MODELS.items()))
    return Tokenizer(gguf, model)


class Tokenizer:
    """n_vocab; bos, eos, eot, eom, unk, pad (None if absent); end_ids; add_bos, add_eos; model."""

    def __init__(self, gguf, model):
        self.model = model
        self._gguf = gguf
        self._vocabulary = vocabulary = Vocabulary(gguf)
        self.n_vocab = vocabulary.n
        if model == "gpt2":
            self.pre = bpe.pre_tokenizer_name(gguf)
            add_bos = self.pre in ADDS_BOS
            prefix = False
        else:
            self.pre = None
            self._sentencepiece_defaults()
            add_bos = True
            prefix = gguf.get_bool("tokenizer.ggml.add_space_prefix", default=True)
        self.add_space_prefix = prefix
        for name, value in vocabulary.ids.items():
            setattr(self, name, value)
        self.add_bos = self._adds("tokenizer.ggml.add_bos_token", self.bos, add_bos)
        self.add_eos = self._adds("tokenizer.ggml.add_eos_token", self.eos, False)
        self._swallows = is_phi3(gguf)
        self._lock = threading.Lock()
        self._pieces = {}
        self._model = self._controls = self._end_ids = self._longest = None

    def _sentencepiece_defaults(self):
        """Old files name no ids: sentencepiece's own layout, if the tokens there are what it says."""
        vocabulary = self._vocabulary
        for name, i, text in (("unk", 0, b"<unk>"), ("bos", 1, b"<s>"), ("eos", 2, b"</s>")):
            if vocabulary.ids[name] is None and i < vocabulary.n and vocabulary.tokens[i] == text:
                vocabulary.ids[name] = i

    def _adds(self, key, token, default):
        if key in self._gguf:
            if (value := self._gguf.get_bool(key)) and token is None:
                raise self._gguf.error(key, "found true, but the file names no such token")
            return value
        return default and token is not None

    # --- the models, on first use ------------------------------------------------------------------

    def _build(self):
        with self._lock:
            if self._model is None:
                if self.model == "gpt2":
                    self._model = bpe.ByteLevelBPE(self._vocabulary, self._gguf, self.pre)
                else:
                    self._model = spm.SentencePiece(self._vocabulary, self.add_space_prefix)
            return self._model

    @property
    def controls(self):
        """The control tokens as they are found in text."""
        if self._controls is None:
            texts = {}
            for kind in (CONTROL, UNKNOWN):
                for i in self._vocabulary.of_type(kind):
                    if text := self._vocabulary.tokens[i].decode("utf-8", "surrogateescape"):
                        texts.setdefault(text, i)
            swallow = frozenset()
            if self._swallows:
                swallow = frozenset(i for t, i in texts.items() if t not in ("<unk>", "<s>", "<|endoftext|>"))
            self._controls = ControlTokens(texts, swallow)
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
            if part:
                ids += model.encode(part, first)
                first = False
        if self.add_bos if add_bos is None else add_bos:
            if self.bos is None:
                raise TokenizerError("add_bos: this vocabulary has no beginning-of-sequence token")
            if ids[:1] != [self.bos]:
                ids.insert(0, self.bos)
        if self.add_eos if add_eos is None else add_eos:
            if self.eos is None:
                raise TokenizerError("add_eos: this vocabulary has no end-of-sequence token")
            if ids[-1:] != [self.eos]:
                ids.append(self.eos)
        return ids

    def at_least(self, text):
        """A number of ids that text surely makes, without making them: none stands for more bytes than the longest."""
        if self._longest is None:
            lengths, longest = self._vocabulary.tokens.lengths, 1
            for i in sorted(range(self.n_vocab), key=lengths.__getitem__, reverse=True):
                if lengths[i] <= longest:        # what it stands for is never longer than its text
                    break
                longest = max(longest, len(self.piece(i, special=True)))
            self._longest = longest
        if self._swallows:
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
                piece = (bpe if self.model == "gpt2" else spm).surface(self._vocabulary, token)
            self._pieces[token] = piece
        if not special and not self.is_text(token):
            return b""
        return piece

    def decode(self, ids, special=False, continued=False):
        """Text of ids. One leading blank that encode() adds is dropped, unless continued: the ids go on from others."""
        decoder = self.decoder(special, continued)
        return "".join([decoder.push(i) for i in ids]) + decoder.flush()

    def decoder(self, special=False, continued=False):
        return Decoder(self, special, self.add_space_prefix and not continued)

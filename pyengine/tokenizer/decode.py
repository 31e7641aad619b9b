"""Token bytes to text, piece by piece: characters come out whole, and only broken bytes become U+FFFD.

Knows no vocabulary: the tokenizer says what bytes an id stands for. May be imported by pyengine.tokenizer only.
"""
import codecs
import re

_UTF8 = codecs.getincrementaldecoder("utf-8")
_CONTRACTION = re.compile(" (?='(?:[sm]|[rv]e))")
_SAFE = re.compile(".*(?: [^?!.,' ]|[?!.,])", re.S)  # no rule of clean() reaches from before its end to behind it
_HELD = 256  # characters; of more, as many again come before they are looked at again, or a run of ' would take quadratic time


def clean(text):
    """WordPiece has a blank before every word and mark: those that English does not write go, as in llama.cpp."""
    text = re.sub(" (?=[?!.,])", "", text)
    return _CONTRACTION.sub("", text.replace(" ' ", "'"))


class Decoder:
    """push(id) gives the text that is certain so far, flush() the rest. Joined, they equal decode().

    drop_blank: one blank at the very beginning was put there by encode() and is taken away again. cleans: clean().
    """

    def __init__(self, tokenizer, special, drop_blank, cleans=False):
        self._piece = tokenizer.piece
        self._is_text = tokenizer.is_text
        self._special = special
        self._pending = drop_blank
        self._decode = _UTF8("replace").decode
        self._held = [] if cleans else None
        self._size = self._enough = 0  # characters held, and how many have to be

    def push(self, token):
        piece = self._piece(token, self._special)
        if self._pending and piece and self._is_text(token):
            self._pending = False
            if piece[0] == 0x20:
                piece = piece[1:]
        text = self._decode(piece)
        return text if self._held is None else self._cleaned(text)

    def flush(self):
        text = self._decode(b"", True)
        return text if self._held is None else clean("".join(self._held) + text)

    def _cleaned(self, text):
        """What no later text can change."""
        self._held.append(text)
        self._size += len(text)
        if self._size < self._enough:
            return ""
        held = "".join(self._held)
        safe = _SAFE.match(held)
        end = safe.end() if safe else 0
        if " " not in held[end:]:
            end = len(held)
        self._held, self._size = [held[end:]], len(held) - end
        self._enough = 2 * self._size if self._size > _HELD else 0
        return clean(held[:end])

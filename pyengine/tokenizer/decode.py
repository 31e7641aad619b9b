"""Token bytes to text, piece by piece: characters come out whole, and only broken bytes become U+FFFD.

Knows no vocabulary: the tokenizer says what bytes an id stands for. May be imported by pyengine.tokenizer only.
"""
import codecs

_UTF8 = codecs.getincrementaldecoder("utf-8")


class Decoder:
    """push(id) gives the text that is certain so far, flush() the rest. Joined, they equal decode().

    drop_blank: one blank at the very beginning was put there by encode() and is taken away again.
    """

    def __init__(self, tokenizer, special, drop_blank):
        self._piece = tokenizer.piece
        self._is_text = tokenizer.is_text
        self._special = special
        self._pending = drop_blank
        self._decode = _UTF8("replace").decode

    def push(self, token):
        piece = self._piece(token, self._special)
        if self._pending and piece and self._is_text(token):
            self._pending = False
            if piece[0] == 0x20:
                piece = piece[1:]
        return self._decode(piece)

    def flush(self):
        return self._decode(b"", True)

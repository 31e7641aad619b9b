"""Finds control tokens in text. Leftmost first, the longest of those that begin at one place.

Control tokens only where a caller asks for it (templates, special=True); user-defined tokens of most kinds are found with
it too, always. May be imported by pyengine.tokenizer only.
"""
import re

from ..errors import TokenizerError

_BLANKS = " \t\n\v\f\r"  # that tokens take with them: C's, as with llama.cpp; not U+3000
_MAX_LENGTHS = 64  # different token lengths behind one prefix: bounds the work per character


class ControlTokens:
    """texts: {text: id}. lstrip, rstrip: ids before or after which blanks are dropped.

    A few leading characters of every token make one regular expression without repetition, so a search is
    linear; behind it at most _MAX_LENGTHS slices are looked up. Building 6,249 tokens takes 5 ms where
    one alternation of them all takes Python's re 300 ms.
    """

    def __init__(self, texts, lstrip=frozenset(), rstrip=frozenset(), name="control tokens"):
        self._ids = texts
        self._lstrip, self._rstrip = lstrip, rstrip
        width = min(3, min(map(len, texts), default=1))
        lengths = {}
        for text in texts:
            lengths.setdefault(text[:width], set()).add(len(text))
        for prefix, values in lengths.items():
            if len(values) > _MAX_LENGTHS:
                raise TokenizerError(f"{name}: {len(values)} different lengths begin with {prefix!r}, "
                                     f"expected at most {_MAX_LENGTHS}")
        self._lengths = {p: sorted(v, reverse=True) for p, v in lengths.items()}
        self._width = width
        if len(lengths) <= 256:
            pattern = "|".join(map(re.escape, sorted(lengths)))
        else:
            pattern = "[" + "".join(map(re.escape, sorted({p[0] for p in lengths}))) + "]"
        self._search = re.compile(pattern).search if texts else None

    def contain(self, text):
        """Is text a part of one of them?"""
        return any(text in token for token in self._ids)

    def split(self, text, mark=""):
        """[str or id, ...], no empty strings. mark: what shield() put in; a token of one character before it is text."""
        if self._search is None:
            return [text] if text else []
        parts = []
        start = at = 0
        while True:
            hit = self._search(text, at)
            if hit is None:
                break
            at = hit.start()
            for n in self._lengths.get(text[at:at + self._width], ()):
                found = self._ids.get(text[at:at + n])
                if found is not None and not (mark and n == 1 and text.startswith(mark, at + 1)):
                    before = text[start:at]
                    if found in self._lstrip:
                        before = before.rstrip(_BLANKS)
                    if before:
                        parts.append(before)
                    parts.append(found)
                    at += n
                    if found in self._rstrip:
                        while at < len(text) and text[at] in _BLANKS:
                            at += 1
                    start = at
                    break
            else:
                at += 1
        if start < len(text):
            parts.append(text[start:])
        return parts

    def shield(self, text, mark, exempt=()):
        """text with mark put behind the first character of every control token that begins in it, also of one
        that other text could complete. Texts in exempt are left alone."""
        parts = []
        start = at = 0
        while self._search is not None:
            hit = self._search(text, at)
            if hit is None:
                break
            at = hit.start() + 1
            if not text.startswith(exempt, at - 1) and self._begins(text, at - 1):
                parts += text[start:at], mark
                start = at
        parts.append(text[start:])
        if self._search is not None and self._tail_begins(text):
            parts.append(mark)
        return "".join(parts)

    def _begins(self, text, at):
        lengths = self._lengths.get(text[at:at + self._width], ())
        if any(text[at:at + n] in self._ids for n in lengths):
            return True
        left = len(text) - at
        if not lengths or left >= lengths[0]:
            return False
        rest = text[at:]
        return any(len(token) > left and token.startswith(rest) for token in self._ids)

    def _tail_begins(self, text):
        """Does text end with fewer than the leading characters searched for?"""
        return any(prefix.startswith(text[-n:]) for n in range(1, min(self._width, len(text) + 1))
                   for prefix in self._lengths)

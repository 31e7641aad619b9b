"""Finds control tokens in text. Leftmost first, the longest of those that begin at one place.

Control tokens only where a caller asks for it (templates, special=True); user-defined tokens of most kinds are found with
it too, always. May be imported by pyengine.tokenizer only.
"""
import re
from bisect import bisect_left

from ..errors import TokenizerError
from ..native import lib
from .vocab import NORMAL, Joined, Trie

_BLANKS = b" \t\n\v\f\r"  # that tokens take with them: C's, as with llama.cpp; not U+3000
_MAX_BYTES = 4096  # of a token that texts are shielded from; the longest of a published model has 256


def _raw(text):
    return text.encode("utf-8", "surrogatepass")


def _text(raw):
    return raw.decode("utf-8", "surrogatepass")


class ControlTokens:
    """texts: {text: id}. lstrip, rstrip: ids before or after which blanks are dropped.

    A few leading characters of every token make one regular expression without repetition, which most texts fail at
    once. In the others an automaton (trie.c) finds the longest token of every place, in time linear in the text whatever
    the tokens; 6,249 of them take 10 ms to build.
    """

    def __init__(self, texts, lstrip=frozenset(), rstrip=frozenset(), name="control tokens"):
        self._texts = texts
        self._lstrip, self._rstrip = lstrip, rstrip
        self._name, self._search = name, None
        if not texts:
            return
        width = min(3, min(map(len, texts)))
        prefixes = sorted({text[:width] for text in texts})
        pattern = ("|".join(map(re.escape, prefixes)) if len(prefixes) <= 256 else
                   "[" + "".join(map(re.escape, sorted({p[0] for p in prefixes}))) + "]")
        self._search = re.compile(pattern).search
        self._ids = list(texts.values())
        raw = [_raw(text) for text in texts]
        self._lengths = list(map(len, raw))
        self._longest = max(self._lengths)
        self._single = frozenset(i for i, text in enumerate(texts) if len(text) == 1)
        self._sorted = sorted(raw)
        self._first = frozenset(token[0] for token in raw)
        self._trie = Trie(Joined(raw), (NORMAL,), bytes((NORMAL,)) * len(raw), backwards=True, what=name, nested=None)

    def contain(self, text):
        """Is text a part of one of them?"""
        return any(text in token for token in self._texts)

    def split(self, text, mark=""):
        """[str or id, ...], no empty strings. mark: what shield() put in; a token of one character before it is text."""
        if self._search is None or self._search(text) is None:
            return [text] if text else []
        raw, mark = _raw(text), _raw(mark)
        n, best = len(raw), self._trie.longest(raw)
        parts = []
        start = at = 0
        while (at := lib.pe_next_token(best, n, at)) < n:
            token = best[at]
            end = at + self._lengths[token]
            if mark and token in self._single and raw.startswith(mark, end):
                at = end
                continue
            found = self._ids[token]
            before = raw[start:at]
            if found in self._lstrip:
                before = before.rstrip(_BLANKS)
            if before:
                parts.append(_text(before))
            parts.append(found)
            if found in self._rstrip:
                while end < n and raw[end] in _BLANKS:
                    end += 1
            start = at = end
        if start < n:
            parts.append(_text(raw[start:]))
        return parts

    def shield(self, text, mark, exempt=()):
        """text with mark put behind the first character of every control token that begins in it, also of one
        that other text could complete. Texts in exempt are left alone."""
        if self._search is None:
            return text
        if self._longest > _MAX_BYTES:  # every end of the text that one could begin with is looked up
            raise TokenizerError(f"{self._name}: found one of {self._longest} bytes, expected at most {_MAX_BYTES}")
        raw = _raw(text)
        n, places = len(raw), []
        if self._search(text) is not None:
            best, at = self._trie.longest(raw), -1
            while (at := lib.pe_next_token(best, n, at + 1)) < n:
                places.append(at)
        places += (at for at in range(max(0, n - self._longest + 1), n) if raw[at] in self._first and self._begins(raw[at:]))
        if not places:
            return text
        exempt, parts, start = tuple(map(_raw, exempt)), [], 0
        for at in sorted(set(places)):
            if raw.startswith(exempt, at):
                continue
            end = at + 1
            while end < n and raw[end] & 0xC0 == 0x80:
                end += 1
            parts += raw[start:end], _raw(mark)
            start = end
        return _text(b"".join(parts) + raw[start:])

    def _begins(self, rest):
        """Does a token begin with rest?"""
        i = bisect_left(self._sorted, rest)
        return i < len(self._sorted) and self._sorted[i].startswith(rest)

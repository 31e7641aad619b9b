"""Marks, punctuation and controls of Unicode 15.1, as WordPiece cuts text: the same in every version of Python.

Constant tables, and the changes of one character; not a tokenizer. The version is that of llama.cpp's tables; unicodedata
has 13 (Python 3.10) to 17. May be imported by pyengine.tokenizer only.
"""
import bisect
import unicodedata

from ..native import ffi, lib


def _table(ranges):
    """First and one past the last code points, in turn: a code point is in where an odd number of them are not above it."""
    out = []
    for part in ranges.split():
        first, _, last = part.partition("-")
        out += int(first, 16), int(last or first, 16) + 1
    return out


def is_in(table, code):
    return bisect.bisect_right(table, code) & 1


def _of_class(letter):
    """A general category by its first letter, from the runs that cut words of BPE too (csrc/unicode.h)."""
    n = ffi.new("uint64_t *")
    runs = ffi.unpack(lib.pe_unicode_classes(n), n[0])
    out, place, inside = [], "CLMNPSZ".index(letter), False
    for run in runs:
        if (run & 7 == place) != inside:
            out.append(run >> 3)
            inside = not inside
    return out


MARKS, PUNCTUATION = _of_class("M"), _of_class("P")
CONTROLS = _table(  # without those that are blanks
    "0-8 E-1F 7F-84 86-9F AD 600-605 61C 6DD 70F 890-891 8E2 180E 200B-200F 202A-202E 2060-2064 2066-206F D800-F8FF FEFF FFF9-FFFB "
    "110BD 110CD 13430-1343F 1BCA0-1BCA3 1D173-1D17A E0001 E0020-E007F F0000-FFFFD 100000-10FFFD")
BLANKS = _table("9-D 20 85 A0 1680 2000-200A 2028 2029 202F 205F 3000")
# Ideographs that are words of their own. 2B920 is what HF's tokenizers have where 2B820 is meant.
IDEOGRAPHS = _table("3400-4DBF 4E00-9FFF F900-FAFF 20000-2A6DF 2A700-2B73F 2B740-2B81F 2B920-2CEAF 2F800-2FA1F")
ASCII_SYMBOLS = _table("24 2B 3C-3E 5E 60 7C 7E")
# Letters that came later and have a small form or parts: left as they are, whatever this Python knows of them.
_LATER = _table("1C89 A7CB A7CC A7CE A7D2 A7D4 A7DA A7DC 105C9 105E4 10D50-10D65 11383 11385 1138E 11391 113C5 113C7 113C8 "
                "16121-16128 16D68-16D6A 16EA0-16EB8")
# Capitals of Unicode 14, which Python 3.10 lacks, as runs: first, last, distance to the small one.
_CAPITALS = {code: code + distance for first, last, distance in (
    (0x2C2F, 0x2C2F, 48), (0xA7C0, 0xA7C0, 1), (0xA7D0, 0xA7D0, 1), (0xA7D6, 0xA7D6, 1), (0xA7D8, 0xA7D8, 1), (0x10570, 0x1057A, 39),
    (0x1057C, 0x1058A, 39), (0x1058C, 0x10592, 39), (0x10594, 0x10595, 39)) for code in range(first, last + 1)}

WORD, BLANK, GONE, MARK, ALONE = range(5)  # what WordPiece does with a character


def _classes():
    """Where a class begins, and which it is. U+FFFD goes as controls do."""
    kinds = {}
    for table, kind in ((CONTROLS, GONE), ((0xFFFD, 0xFFFE), GONE), (MARKS, MARK), (PUNCTUATION, ALONE), (ASCII_SYMBOLS, ALONE),
                        (IDEOGRAPHS, ALONE), (BLANKS, BLANK)):
        for first, end in zip(table[::2], table[1::2]):
            kinds[first] = kind
            kinds.setdefault(end, WORD)
    starts = sorted(kinds)
    return starts, [kinds[start] for start in starts]


_STARTS, _KINDS = _classes()


def kind(code):
    return _KINDS[bisect.bisect_right(_STARTS, code) - 1]


def lower(code):
    """The small letter; of those with several characters the first."""
    small = ord(chr(code).lower()[0])
    if small == code:
        return _CAPITALS.get(code, code)
    return code if is_in(_LATER, code) else small


def base(code):
    """The first character of the canonical decomposition: the letter without its accents, of a Hangul syllable the
    leading consonant."""
    first = ord(unicodedata.normalize("NFD", chr(code))[0])
    return code if first != code and is_in(_LATER, code) else first

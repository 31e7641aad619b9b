"""The regular expressions in a JSON Schema (ECMA's) as those that llguidance reads (Rust's), within JSON strings.

Classes are written out anew: "[", "&&", "~~" and "--" in one are characters for ECMA and operators for Rust. What
cannot be written is refused or taken out: an answer's strings have no control characters but line end, return and
tab (grammar.ESCAPES). And llguidance 1.9 takes a class that has the backspace to have quote and
backslash too, so that "^[^\\"]*$" let quotes pass: no class that leaves here has it.

Imports nothing; may be imported by schema.
"""

# Characters that no string of an answer has, and what must not stand alone in a pattern therefore.
UNWRITTEN = (frozenset(range(32)) | {127}) - {9, 10, 13}
_BACKSPACE = 8
_PLAIN = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "a": 7}
_SETS = frozenset("dDwWsS")
_HEX = {"x": 2, "u": 4, "U": 8}


def translated(pattern: str) -> str:
    """The pattern, or ValueError."""
    out, at = [], 0
    while at < len(pattern):
        c = pattern[at]
        if c == "[":
            text, at = _class(pattern, at)
        elif c == "\\":
            text, code, at = _escape(pattern, at)
            if code is not None:
                _check(code)
            elif text.startswith("\\P"):
                text = f"[^\\p{text[2:]}\\x08]"
        else:
            _check(ord(c))
            if c == "(" and pattern.startswith("?", at + 1):
                _check_flags(pattern, at + 2)
            text, at = c, at + 1
        out.append(text)
    return "".join(out)


def _check(code: int) -> None:
    if code in UNWRITTEN:
        raise ValueError(f"the control character U+{code:04X} is not written in answers")


def _check_flags(pattern: str, at: int) -> None:
    """Of (?flags) and (?flags:...) i and s are understood; x would change what the rest of the text is."""
    end = at
    while pattern[end:end + 1].isalpha() or pattern[end:end + 1] == "-":
        end += 1
    flags = pattern[at:end]
    if not (flags == "P" and pattern[end:end + 1] == "<") and not set(flags) <= {"i", "s", "-"}:
        raise ValueError(f"(?{flags}: only the flags i and s are supported")


def _escape(pattern: str, at: int):
    """(text for Rust, code point or None where it stands for a set, where it ends) of what begins with a backslash."""
    c = pattern[at + 1:at + 2]
    if not c:
        raise ValueError("the pattern ends with a backslash")
    if c in _SETS:
        return f"\\{c}", None, at + 2
    if c in "pP":
        end = pattern.find("}", at) if pattern.startswith("{", at + 2) else at + 2
        name = pattern[at + 2:end + 1]
        if end < 0 or name.strip("{}^").lower() in ("c", "cc", "other", "control", "cntrl") or "^" in name:
            raise ValueError(f"\\{c}{name} is not supported")
        return f"\\{c}{name}", None, end + 1
    if c in _HEX:
        if pattern.startswith("{", at + 2):
            end = pattern.find("}", at)
            digits, end = pattern[at + 3:end], end + 1
        else:
            end = at + 2 + _HEX[c]
            digits = pattern[at + 2:end]
        if end == 0 or not 0 < len(digits) <= 8 or not set(digits) <= set("0123456789abcdefABCDEF"):
            raise ValueError(f"\\{c} has to be followed by hexadecimal digits")
        return _written(int(digits, 16)), int(digits, 16), end
    if c in _PLAIN:
        return _written(_PLAIN[c]), _PLAIN[c], at + 2
    if c.isalnum():                      # \b, \B, \1, \k: llguidance says what it has not
        return f"\\{c}", None, at + 2
    return _written(ord(c)), ord(c), at + 2


def _class(pattern: str, at: int):
    """(text, where it ends) of [...]"""
    begin = at
    at += 1
    negated = pattern.startswith("^", at)
    at += negated
    parts, sets = [], []
    while not pattern.startswith("]", at):
        text, low, at = _element(pattern, at, begin)
        if low is None:
            if text[1] not in "dDwWsSp":
                raise ValueError(f"{text} is not supported in a class")
            sets.append(text)
            continue
        high = low
        if pattern.startswith("-", at) and not pattern.startswith("]", at + 1):
            text, high, at = _element(pattern, at + 1, begin)
            if high is None or high < low:
                raise ValueError(f"{pattern[begin:at]!r}: the range has no end")
        parts.append((low, high))
    if not parts and not sets:
        raise ValueError("a class without characters")
    if not negated and not sets and all(code in UNWRITTEN for low, high in parts for code in range(low, min(high, 128) + 1)):
        raise ValueError(f"{pattern[begin:at + 1]!r} has only control characters, which are not written in answers")
    if negated:
        parts.append((_BACKSPACE, _BACKSPACE))
    else:
        parts = [part for low, high in parts for part in _without_backspace(low, high)]
    ranges = [_written(low) if low == high else f"{_written(low)}-{_written(high)}" for low, high in parts]
    return f"[{'^' if negated else ''}{''.join(ranges + sets)}]", at + 1


def _without_backspace(low: int, high: int) -> list:
    if not low <= _BACKSPACE <= high:
        return [(low, high)]
    return [(a, b) for a, b in ((low, _BACKSPACE - 1), (_BACKSPACE + 1, high)) if a <= b]


def _element(pattern: str, at: int, begin: int):
    c = pattern[at:at + 1]
    if not c:
        raise ValueError(f"the class at {begin} has no end")
    if c == "\\":
        return _escape(pattern, at)
    return c, ord(c), at + 1


def _written(code: int) -> str:
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise ValueError(f"U+{code:04X} is no character")
    c = chr(code)
    return c if c.isascii() and c.isalnum() else f"\\u{{{code:X}}}"

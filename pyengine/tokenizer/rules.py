"""Makes the programs that split.c runs of the rules in pre.py: a small part of regular expressions, enough for all of them.

    a b    one after another          [...]  a set: characters, ranges, \\s \\S \\d \\p{L} (a class of Unicode's), [^...] none of
    a|b    the first that fits               these, [...&&[^...]] without those
    a? a* a+ a{3} a{1,3}  as many as go; one more + keeps them (a++): what follows never gets any back
    (?:a|b)  (?:a|b)?  (?:a|b)*+      groups; (?!\\S) at the end or before a blank; $ at the end of the piece
No captures, no references, no loops in loops but the one that keeps: a program's stack is as deep as its expression is long.
Expressions are ours, from pre.py, never a file's. May be imported by pyengine.tokenizer only.
"""
import functools
from array import array

from ..native import ffi, lib

_MATCH, _ONE, _RUN, _KEEP, _ALT, _JUMP, _NOT, _END, _CUT = range(9)  # split.c's
_SEARCH, _THREES = range(2)
_NO_SET, _ENDLESS = 64, 0xFFFFFFFF
_CLASSES = {c: 1 << i for i, c in enumerate("CLMNPSZ")}  # of unicode.h
_BLANKS = tuple((ord(a), ord(b)) for a, b in ("\t\r", "  ", "\x85\x85", "\xa0\xa0", "\u1680\u1680", "\u2000\u200a", "\u2028\u2029",
                                              "\u202f\u202f", "\u205f\u205f", "\u3000\u3000"))
_ESCAPES = {"r": "\r", "n": "\n", "t": "\t"}


class Threes:
    """A stage that cuts numbers in threes from the right. behind: also behind a number; before: also before whole threes."""

    def __init__(self, digits, behind, before):
        self.digits, self.flags = digits, behind | before << 1


class _Sets:
    def __init__(self):
        self.words, self._ids = array("I"), {}

    def add(self, mask=0, negate=0, plus=(), minus=()):
        key = mask, negate, tuple(plus), tuple(minus)
        if key not in self._ids:
            self._ids[key] = len(self._ids)
            self.words.extend([mask, negate, len(plus), len(minus), *(end for pair in (*plus, *minus) for end in pair)])
        return self._ids[key]

    def union(self, ids):
        return next(iter(ids)) if len(ids) == 1 else self.add(negate=2, plus=[(i, i) for i in sorted(ids)])


class _Parser:
    """An expression to a tree: alternatives of sequences of ("set", id, least, most, keeps), ("not", id), ("end",) and
    ("group", alternatives, "", "?" or "*+")."""

    def __init__(self, text, sets):
        self.text, self.sets, self.at = text, sets, 0

    def peek(self, text):
        return self.text.startswith(text, self.at)

    def take(self, text):
        if not self.peek(text):
            return False
        self.at += len(text)
        return True

    def next(self):
        self.at += 1
        return self.text[self.at - 1]

    def alternatives(self):
        found = [self.sequence()]
        while self.take("|"):
            found.append(self.sequence())
        return found

    def sequence(self):
        items = []
        while self.at < len(self.text) and not self.peek("|") and not self.peek(")"):
            if self.take(r"(?!\S)"):
                items.append(("not", self.sets.add(negate=1, plus=_BLANKS)))
            elif self.take("$"):
                items.append(("end",))
            elif self.take("(?:"):
                inner = self.alternatives()
                assert self.take(")"), self.text
                items.append(("group", inner, "*+" if self.take("*+") else "?" if self.take("?") else ""))
            else:
                items.append(("set", self.one(), *self.times()))
        return items

    def times(self):
        least, most = 1, 1
        if self.take("?"):
            least, most = 0, 1
        elif self.take("*"):
            least, most = 0, _ENDLESS
        elif self.take("+"):
            least, most = 1, _ENDLESS
        elif self.take("{"):
            end = self.text.index("}", self.at)
            least, _, most = self.text[self.at:end].partition(",")
            least, most, self.at = int(least), int(most or least), end + 1
        else:
            return 1, 1, False
        return least, most, self.take("+")

    def one(self):
        """The set of one item."""
        if self.take("["):
            negate = self.take("^")
            mask, plus = self.members()
            minus = ()
            if self.take("&&[^"):
                also, minus = self.members()
                assert not also and self.take("]"), self.text
            assert self.take("]"), self.text
            return self.sets.add(mask, int(negate), plus, minus)
        mask, plus = self.member()
        return self.sets.add(mask, 0, plus)

    def members(self):
        mask, plus = 0, []
        while not self.peek("]") and not self.peek("&&"):
            more, ranges = self.member()
            if self.peek("-") and not self.peek("-]"):
                self.at += 1
                _, upto = self.member()
                ranges = [(ranges[0][0], upto[0][1])]
            mask |= more
            plus += ranges
        return mask, plus

    def member(self):
        """(mask, ranges) of one character or class."""
        c = self.next()
        if c != "\\":
            return 0, [(ord(c), ord(c))]
        c = self.next()
        if c == "p":
            assert self.take("{") and self.peek(self.text[self.at] + "}"), self.text
            self.at += 2
            return _CLASSES[self.text[self.at - 2]], []
        if c == "s":
            return 0, list(_BLANKS)
        if c == "S":
            return 0, [(a[1] + 1, b[0] - 1) for a, b in zip(((0, -1), *_BLANKS), (*_BLANKS, (0x110000, 0)))]
        c = _ESCAPES.get(c, c)
        return 0, [(ord(c), ord(c))]


class _Compiler:
    def __init__(self, sets):
        self.sets, self.ops = sets, []

    def emit(self, kind, a=0, b=0, c=0):
        self.ops.append([kind, a, b, c])
        return self.ops[-1]

    def begins(self, items):
        """(sets a match of items begins with, whether it may be empty)."""
        sets = set()
        for item in items:
            if item[0] == "set":
                sets.add(item[1])
                if item[2]:
                    return sets, False
            elif item[0] == "group":
                empty = item[2] != ""
                for inner in item[1]:
                    more, may = self.begins(inner)
                    sets |= more
                    empty |= may
                if not empty:
                    return sets, False
        return sets, True

    def guard(self, items):
        sets, empty = self.begins(items)
        return _NO_SET if empty else self.sets.union(sets)

    def sequence(self, items, last):
        """last: a match is all that follows."""
        for i, item in enumerate(items):
            sure = last and all(rest[0] == "set" and not rest[2] or rest[0] == "group" and rest[2] for rest in items[i + 1:])
            if item[0] == "set":
                _, where, least, most, keeps = item
                if (least, most) == (1, 1):
                    self.emit(_ONE, where)
                else:
                    self.emit(_KEEP if keeps or sure else _RUN, where, least, most)
            elif item[0] == "not":
                self.emit(_NOT, item[1])
            elif item[0] == "end":
                self.emit(_END)
            else:
                self.group(item[1], item[2])

    def group(self, alternatives, kind):
        leave = []
        if kind == "*+":
            top = len(self.ops)
            out = self.emit(_ALT, 0, self.guard([("group", alternatives, "")]))
            self.group(alternatives, "")
            cut = self.emit(_CUT)
            self.emit(_JUMP, top)
            out[1] = cut[1] = len(self.ops)
            return
        for i, items in enumerate(alternatives):
            if i + 1 < len(alternatives) or kind == "?":
                other = self.emit(_ALT, 0, self.guard(items))
                self.sequence(items, False)
                leave.append(self.emit(_JUMP))
                other[1] = len(self.ops)
            else:
                self.sequence(items, False)
        for jump in leave:
            jump[1] = len(self.ops)

    def stage(self, alternatives):
        """(start, end, what a match begins with)."""
        start = len(self.ops)
        for i, items in enumerate(alternatives):
            other = self.emit(_ALT, 0, self.guard(items)) if i + 1 < len(alternatives) else None
            self.sequence(items, True)
            self.emit(_MATCH)
            if other:
                other[1] = len(self.ops)
        return start, len(self.ops), self.guard([("group", alternatives, "")])


def _program(rule):
    """(sets, stages, ops) of a rule as split.c reads them: three arrays of 32 bits."""
    sets = _Sets()
    compiler = _Compiler(sets)
    stages = array("I")
    for expression in rule:
        threes = isinstance(expression, Threes)
        parser = _Parser(expression.digits if threes else expression, sets)
        tree = parser.alternatives()
        assert parser.at == len(parser.text), parser.text[parser.at:]
        if threes:
            ((_, digits, *_),), = tree
            stages.extend([_THREES, expression.flags, 0, digits])
        else:
            stages.extend([_SEARCH, *compiler.stage(tree)])
    return sets.words, stages, array("I", [word for op in compiler.ops for word in op])


class Splitter:
    """A rule ready to run; one for all vocabularies of a name."""

    def __init__(self, rule):
        sets, stages, ops = _program(rule)
        out = ffi.new("pe_splitter **")
        code = lib.pe_splitter_new(ffi.from_buffer("uint32_t[]", sets), len(sets), ffi.from_buffer("uint32_t[]", stages),
                                   len(stages) // 4, ffi.from_buffer("uint32_t[]", ops), len(ops) // 4, out)
        if code == lib.PE_ENOMEM:
            raise MemoryError("out of memory in the tokenizer")
        assert code == lib.PE_OK, rule
        self.c = ffi.gc(out[0], lib.pe_splitter_free)

    def words(self, text):
        """The words of text (str or UTF-8), in bytes: for tests and for people; encoding does both at once."""
        raw = text.encode() if isinstance(text, str) else text
        lengths, n = ffi.new("uint32_t[]", max(len(raw), 1)), ffi.new("uint64_t *")
        assert lib.pe_split(self.c, raw, len(raw), lengths, n) == lib.PE_OK
        words, at = [], 0
        for length in ffi.unpack(lengths, n[0]):
            words.append(raw[at:at + length])
            at += length
        return words


splitter = functools.lru_cache(maxsize=None)(Splitter)  # of a rule as a tuple

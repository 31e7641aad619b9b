"""GBNF, the grammar notation of llama.cpp, as a Lark grammar for llguidance. Exact or refused.

Not a matcher: grammar.py hands the result to llguidance. Imports errors only; may be imported by grammar.

GBNF knows characters, llguidance words (lexemes), and takes the longest word at each place: "b" | "bc"
before "cd" would never see the "b" of "bcd". So a grammar without recursion becomes one word, whose
regular expression has no such choice, and one with recursion has words of a single character.
The first costs microseconds a token, the second about 2 ms where any character may come.
"""
from .errors import GrammarError, quoted

MAX_DEPTH = 100            # of groups, and of rules that use each other without recursion
MAX_MARKS = 4              # of repetitions one behind another, as in "a"*+?
MAX_REPEAT = 10_000        # the largest count in {m,n}

_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-", "^": "^"}
_HEX = {"x": 2, "u": 4, "U": 8}
_DIGITS = frozenset("0123456789")
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_") | _DIGITS
_EMPTY = ("seq", ())


def to_lark(text: str) -> str:
    """The same language in llguidance's dialect of Lark, or GrammarError with the line."""
    rules = _Parser(text).rules()
    if "root" not in rules:
        raise _error("there is no rule named root")
    for name, (node, at) in rules.items():
        for other in _references(node):
            if other not in rules:
                raise _error(f"rule {quoted(name)} uses {quoted(other)}, which is not defined", text, at)
    never = rules.keys() - _ending(rules)
    reached, recursive = _walk(rules, text)
    endless = [name for name in reached if name in never]
    if endless:
        raise _error(f"rule {quoted(endless[0])} has no end: every alternative needs itself", text, rules[endless[0]][1])
    # Rules are numbered, for Lark's names have other letters; "start" is its root.
    pattern = "r{}" if recursive else "R{}"
    names = {name: pattern.format(i) for i, name in enumerate(reached)}
    lines = [f"start: {names['root']}"]
    lines += [f"{names[name]}: {_lark(rules[name][0], names, recursive)}" for name in reached]
    return "\n".join(lines) + "\n"


def _error(message: str, text: str = "", at=None) -> GrammarError:
    line = "" if at is None else f", line {text.count(chr(10), 0, at) + 1}"
    return GrammarError(f"grammar{line}: {message}", param="grammar")


class _Parser:
    """One pass over the text. Groups are kept on a stack of our own, so depth is a number and not a fault."""

    def __init__(self, text: str):
        self.text, self.at = text, 0

    def fail(self, message: str) -> GrammarError:
        return _error(message, self.text, self.at)

    def rules(self) -> dict:
        """{name: (node, where it begins)}"""
        rules = {}
        self.blank(lines=True)
        while self.at < len(self.text):
            at = self.at
            name = self.name()
            if name in rules:
                raise self.fail(f"rule {quoted(name)} is defined twice")
            self.blank()
            if not self.text.startswith("::=", self.at):
                raise self.fail(f"expected ::= after the name {quoted(name)}, found {self.found()}")
            self.at += 3
            self.blank(lines=True)
            rules[name] = self.alternatives(), at
            self.blank(lines=True)
        return rules

    def found(self) -> str:
        return quoted(self.text[self.at:self.at + 12]) if self.at < len(self.text) else "the end of the text"

    def blank(self, lines: bool = False) -> None:
        """Skips blanks and comments, with lines also line ends."""
        text, skipped = self.text, " \t\r\n" if lines else " \t"
        while self.at < len(text):
            if text[self.at] == "#":
                end = [e for e in (text.find("\n", self.at), text.find("\r", self.at)) if e >= 0]
                self.at = min(end, default=len(text))
            elif text[self.at] in skipped:
                self.at += 1
            else:
                return

    def word(self, letters) -> str:
        start = self.at
        while self.at < len(self.text) and self.text[self.at] in letters:
            self.at += 1
        return self.text[start:self.at]

    def name(self) -> str:
        word = self.word(_NAME)
        if not word:
            raise self.fail(f"expected the name of a rule, found {self.found()}")
        return word

    def alternatives(self):
        """Everything up to the end of the rule."""
        outer, choices, items = [], [], []       # (choices, items) of the groups around; what is being read
        while True:
            c = self.text[self.at:self.at + 1]
            if c == "|":
                choices.append(_sequence(items))
                items = []
                self.at += 1
                self.blank(lines=True)
                continue
            if c == "(":
                if len(outer) == MAX_DEPTH:
                    raise self.fail(f"groups are nested more than {MAX_DEPTH} deep")
                outer.append((choices, items))
                choices, items = [], []
                self.at += 1
                self.blank(lines=True)
                continue
            if c == ")" and outer:
                group = _alternative([*choices, _sequence(items)])
                choices, items = outer.pop()
                items.append(group)
                self.at += 1
            elif c == '"':
                items.append(("text", self.literal()))
            elif c == "[":
                items.append(("class", self.char_class()))
            elif c == ".":
                items.append(("class", "(?s:.)"))
                self.at += 1
            elif c and c in _NAME:
                items.append(("rule", self.name()))
            elif c and c in "*+?{" and items:
                node, n = items[-1], 1
                while node[0] == "repeat":
                    node, n = node[1], n + 1
                if n > MAX_MARKS:
                    raise self.fail(f"more than {MAX_MARKS} repetitions of the same")
                items[-1] = self.repeated(items[-1])
            elif c and c in "<!":
                raise self.fail(f"{self.found()}: tokens (<name>, <[id]>) are not supported, only characters")
            elif outer:
                raise self.fail(f"expected ) or another element, found {self.found()}")
            elif not c or c in "\r\n":
                return _alternative([*choices, _sequence(items)])
            else:
                raise self.fail(f"expected a literal, a character class, a rule or a group, found {self.found()}")
            self.blank(lines=bool(outer))

    def repeated(self, node):
        c = self.text[self.at]
        self.at += 1
        if c != "{":
            return ("repeat", node, *{"*": (0, None), "+": (1, None), "?": (0, 1)}[c])
        self.blank(lines=True)
        low = self.count()
        high = low
        self.blank(lines=True)
        if self.text[self.at:self.at + 1] == ",":
            self.at += 1
            self.blank(lines=True)
            high = self.count() if self.text[self.at:self.at + 1] in _DIGITS else None
            self.blank(lines=True)
        if self.text[self.at:self.at + 1] != "}":
            raise self.fail(f"expected }} after a count, found {self.found()}")
        self.at += 1
        if high is not None and high < low:
            raise self.fail(f"{{{low},{high}}}: the second count is less than the first")
        return ("repeat", node, low, high) if high != 0 else _EMPTY

    def count(self) -> int:
        digits = self.word(_DIGITS)
        if not digits:
            raise self.fail(f"expected a count, found {self.found()}")
        if len(digits) > 9 or int(digits) > MAX_REPEAT:
            raise self.fail(f"a count of {digits[:20]}, at most {MAX_REPEAT}")
        return int(digits)

    def literal(self) -> str:
        self.at += 1
        out = []
        while self.text[self.at:self.at + 1] != '"':
            out.append(self.char("a literal"))
        self.at += 1
        return "".join(out)

    def char_class(self) -> str:
        """A regular expression for it."""
        self.at += 1
        negated = self.text[self.at:self.at + 1] == "^"
        self.at += negated
        parts = []
        while self.text[self.at:self.at + 1] != "]":
            first = last = self.char("a character class")
            if self.text[self.at:self.at + 1] == "-" and self.text[self.at + 1:self.at + 2] not in ("]", ""):
                self.at += 1
                last = self.char("a character class")
                if last < first:
                    raise self.fail(f"the range {quoted(first)} to {quoted(last)} is empty")
            parts.append(_escaped(first) if first == last else f"{_escaped(first)}-{_escaped(last)}")
        if not parts:
            raise self.fail("a character class without characters")
        self.at += 1
        return f"[{'^' if negated else ''}{''.join(parts)}]"

    def char(self, where: str) -> str:
        """One character, which may be written as an escape."""
        c = self.text[self.at:self.at + 1]
        if not c:
            raise self.fail(f"the text ends within {where}")
        self.at += 1
        if c != "\\":
            return self.scalar(ord(c))
        c = self.text[self.at:self.at + 1]
        self.at += 1
        if c in _ESCAPES:
            return _ESCAPES[c]
        n = _HEX.get(c)
        digits = self.text[self.at:self.at + n] if n else ""
        if not n or len(digits) < n or not set(digits) <= set("0123456789abcdefABCDEF"):
            raise self.fail(f"{quoted(chr(92) + c + digits)} is no escape; \\n \\r \\t \\\\ \\\" \\[ \\] \\xHH \\uHHHH \\UHHHHHHHH are")
        self.at += n
        return self.scalar(int(digits, 16))

    def scalar(self, code: int) -> str:
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise self.fail(f"U+{code:04X} is no character")
        return chr(code)


def _sequence(items):
    return items[0] if len(items) == 1 else ("seq", tuple(items))


def _alternative(choices):
    return choices[0] if len(choices) == 1 else ("or", tuple(choices))


# Nodes are nested at most as deep as groups, so plain recursion over them is bounded.

def _children(node):
    return node[1] if node[0] in ("seq", "or") else (node[1],) if node[0] == "repeat" else ()


def _references(node):
    if node[0] == "rule":
        yield node[1]
    for child in _children(node):
        yield from _references(child)


def _ending(rules) -> set:
    """Names of the rules that some text satisfies. Each place of a rule counts what it still waits for, so this takes as
    long as reading the rules, however they use each other."""
    users, waiting, places, todo = [], [], {}, []    # of a place: the one around it, or its rule's name; how many it waits for
    for name, (node, _) in rules.items():
        stack = [(node, name)]
        while stack:
            (kind, *rest), user = stack.pop()
            i = len(users)
            children = () if kind == "repeat" and rest[1] == 0 else _children((kind, *rest))
            users.append(user)
            waiting.append(1 if kind in ("or", "rule") else len(children))
            if kind == "rule":
                places.setdefault(rest[0], []).append(i)
            elif not waiting[i]:
                todo.append(i)
            stack += [(child, i) for child in children]
    ending = set()
    while todo:
        user = users[todo.pop()]
        if user in ending:
            continue
        if isinstance(user, str):
            ending.add(user)
        for i in places.get(user, ()) if isinstance(user, str) else (user,):
            waiting[i] -= 1
            if not waiting[i]:
                todo.append(i)
    return ending


def _walk(rules, text) -> tuple[list, bool]:
    """Names that root reaches, root first, and whether one of them needs itself."""
    height = {}                          # finished: how deep rules lie below
    recursive = False
    path, on_path = [("root", iter(_references(rules["root"][0])))], {"root"}
    reached = ["root"]
    while path:
        name, others = path[-1]
        for other in others:
            if other in on_path:
                recursive = True
            elif other not in height:
                reached.append(other)
                on_path.add(other)
                path.append((other, iter(_references(rules[other][0]))))
                break
        else:
            path.pop()
            on_path.discard(name)
            height[name] = 1 + max((height.get(other, 0) for other in _references(rules[name][0])), default=0)
            if height[name] > MAX_DEPTH:
                raise _error(f"rule {quoted(name)}: rules use each other more than {MAX_DEPTH} deep", text, rules[name][1])
    return reached, recursive


def _escaped(c: str) -> str:
    """A character in a regular expression, inside or outside of a class."""
    return c if c.isascii() and c.isalnum() else f"\\u{{{ord(c):X}}}"


def _lark(node, names, recursive: bool) -> str:
    kind = node[0]
    if kind == "text":
        if not node[1]:
            return '""'
        chars = [_escaped(c) for c in node[1]]
        return " ".join(f"/{c}/" for c in chars) if recursive else f"/{''.join(chars)}/"
    if kind == "class":
        return f"/{node[1]}/"
    if kind == "rule":
        return names[node[1]]
    if kind == "seq":
        return " ".join(_grouped(n, names, recursive) for n in node[1]) or '""'
    if kind == "or":
        return " | ".join(_lark(n, names, recursive) for n in node[1])
    _, inner, low, high = node
    mark = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((low, high), f"{{{low},{'' if high is None else high}}}")
    return f"({_lark(inner, names, recursive)}){mark}"


def _grouped(node, names, recursive: bool) -> str:
    text = _lark(node, names, recursive)
    return f"({text})" if node[0] == "or" else text

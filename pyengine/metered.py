"""What jinja templates may use, each with its price: filters, tests, methods and globals within a budget of steps.

A step is about a microsecond, and one more per 64 characters that something touches; results far larger than their
operands are foreseen and refused. spend() takes steps from the run of this thread. Not the environment; imported by
sandbox.py only.
"""
import functools
import json
import re
import threading
import types
from datetime import datetime

import jinja2.defaults
import jinja2.filters
from jinja2.utils import Namespace
from markupsafe import Markup, escape

from .errors import TemplateError

MAX_STEPS = 1_000_000
MAX_TEXT = 4 << 20  # characters of one string, and of the output
MAX_ITEMS = 100_000  # of range() and of one list
MAX_WIDTH = 1000  # of padding, indentation, precision
_MAX_INT_BITS = 4096
CHARS_PER_STEP = 64

_run = threading.local()


class OutOfBudget(TemplateError):
    out_of_budget = True


def start_run(steps=MAX_STEPS):
    _run.steps = steps


def steps_left():
    return _run.steps


def spend(steps):
    _run.steps -= steps
    if _run.steps < 0:
        raise OutOfBudget(f"template does more than {MAX_STEPS} steps")


def _text_limit(n):
    if n > MAX_TEXT:
        raise OutOfBudget(f"template makes a text of {n} characters, expected at most {MAX_TEXT}")


def shallow(value):
    """Pays for passing over a value once."""
    if isinstance(value, str):
        _text_limit(len(value))
        spend(1 + len(value) // CHARS_PER_STEP)
    elif isinstance(value, (list, tuple, dict, range)):
        if len(value) > MAX_ITEMS:
            raise OutOfBudget(f"template makes a list of {len(value)} items, expected at most {MAX_ITEMS}")
        spend(1 + len(value) // 8)
    return value


def deep(value):
    """Pays for writing a value out, and returns about how long that is; lists may hold one list many times."""
    if isinstance(value, str):
        shallow(value)
        return len(value)
    total, steps, left, stack = 0, 0, _run.steps, [value]
    while stack:
        v = stack.pop()
        steps += 1
        if isinstance(v, str):
            total += len(v)
            steps += len(v) // CHARS_PER_STEP
        elif isinstance(v, dict):
            stack.extend(v)
            stack.extend(v.values())
            total += 4 * len(v)
        elif isinstance(v, (list, tuple)):
            stack.extend(v)
            total += 2 * len(v)
        elif isinstance(v, Namespace):
            stack.append(object.__getattribute__(v, "_Namespace__attrs"))
        else:
            total += 8
        if steps > left or total > MAX_TEXT:
            break
    spend(steps)
    _text_limit(total)
    return total


# --- operations whose result may be far larger than what goes in ----------------------------------------

_WIDE = re.compile(r"\d{4,}")
_NESTED_FIELD = re.compile(r"\{[^{}]*\{")
_STARRED = re.compile(r"%[-+ #0]*(?:\*|\d*\.\*)")


def check_format(fields, pattern, args):
    """A format string: widths are small and written out, and fields times the largest argument fits."""
    if _WIDE.search(pattern) or _NESTED_FIELD.search(pattern) or _STARRED.search(pattern):
        raise OutOfBudget(f"template formats with a width above {MAX_WIDTH - 1} or one from a variable")
    largest = max(map(deep, args), default=0)
    _text_limit(len(pattern) + pattern.count(fields) * (largest + MAX_WIDTH))


def _check_width(width):
    if isinstance(width, (int, float)) and abs(width) > MAX_WIDTH:
        raise OutOfBudget(f"template asks for a width of {width}, expected at most {MAX_WIDTH}")
    return width


def _check_replace(text, old, new, *count):
    _text_limit(len(text) + (text.count(old) if old else len(text) + 1) * len(new))


def _check_join(separator, values):
    values = list(_metered(values) if isinstance(values, types.GeneratorType) else values)
    _text_limit(deep(values) + len(separator) * len(values))
    return values


def bounded(value):
    """Arithmetic of what passed here takes no time to speak of."""
    if isinstance(value, int) and value.bit_length() > _MAX_INT_BITS:
        raise OutOfBudget(f"template makes a number of {value.bit_length()} bits, expected at most {_MAX_INT_BITS}")
    return value


def _metered(values):
    for value in values:
        spend(1)
        yield value


def check_binop(operator, left, right):
    spend(2)
    if operator == "%":
        if isinstance(left, str):
            check_format("%", left, right if isinstance(right, tuple) else (right,))
    elif operator in "**":
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() + right.bit_length() if operator == "*" else left.bit_length() * abs(right)
            if bits > _MAX_INT_BITS:
                raise OutOfBudget(f"template makes a number of {bits} bits, expected at most {_MAX_INT_BITS}")
        for sequence, n in ((left, right), (right, left)):
            if isinstance(sequence, (str, list, tuple)) and isinstance(n, int):
                _text_limit(len(sequence) * n)
                if not isinstance(sequence, str) and len(sequence) * n > MAX_ITEMS:
                    raise OutOfBudget(f"template makes a list of {len(sequence) * n} items, expected at most "
                                      f"{MAX_ITEMS}")


_STR_METHODS = frozenset("capitalize casefold center count endswith expandtabs find format index isalnum isalpha "
                         "isascii isdecimal isdigit islower isnumeric isspace istitle isupper join ljust lower lstrip "
                         "partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip "
                         "split splitlines startswith strip swapcase title upper zfill".split())
METHODS = {str: _STR_METHODS, Markup: _STR_METHODS, dict: frozenset(("copy", "get", "items", "keys", "values")),
            list: frozenset(("copy", "count", "index")), tuple: frozenset(("count", "index")),
            int: frozenset(), float: frozenset(("is_integer",)), bool: frozenset(), bytes: frozenset(),
            range: frozenset()}


def check_method(text, name, args, kwargs):
    """Before a method of a str is called. Returns the arguments to call it with."""
    shallow(text)
    if name in ("center", "ljust", "rjust", "zfill", "expandtabs"):
        for a in (*args, *kwargs.values()):
            _check_width(a)
        if name == "expandtabs":
            _text_limit(len(text) + text.count("\t") * MAX_WIDTH)
    elif name == "replace":
        _check_replace(text, *args)
    elif name == "join" and args:
        return (_check_join(text, args[0]),)
    return args


# --- filters: the ones chat templates need, nothing that makes HTML ------------------------------------------

_PLAIN = ("abs attr batch count d default dictsort first float groupby int items last length list map max min reject "
          "rejectattr reverse round select selectattr slice sort unique").split()
_WRITING = "capitalize center lower title trim truncate upper urlencode wordcount string".split()
_CUTTING = frozenset(("title", "wordcount"))  # make a list of words
_COMPARING = frozenset(("sort", "unique", "groupby", "max", "min", "dictsort"))
_FREE = frozenset(("count", "d", "default", "first", "last", "length"))  # cost the same for any length
_FREE_NUMBERS = frozenset(("d", "default", "int", "float", "first", "last", "list", "map", "select", "reject"))


# Tests that do not look into a value; the first two want the name itself.
_FREE_TESTS = frozenset(("defined", "undefined", "none", "boolean", "true", "false", "string", "mapping", "sequence", "iterable", "number",
                         "integer", "float", "callable", "filter", "test"))


def _charging(test):
    @functools.wraps(test)
    def charged(*args, **kwargs):
        for a in (*args, *kwargs.values()):
            deep(a) if isinstance(a, (list, tuple, dict)) else shallow(a)
        return test(*args, **kwargs)

    return charged


def tests():
    return {name: test if name in _FREE_TESTS else _charging(test) for name, test in jinja2.defaults.DEFAULT_TESTS.items()}


def _filter(name, whole):
    function = jinja2.defaults.DEFAULT_FILTERS[name]

    @functools.wraps(function)
    def checked(*args, **kwargs):
        spend(1)
        if name in _COMPARING:
            where = 1 if isinstance(args[0], jinja2.Environment) else 0
            args = [*args[:where], *(list(_metered(a)) if isinstance(a, types.GeneratorType) else a for a in args[where:])]
            spend(deep(args[where]) // CHARS_PER_STEP * 2)       # keys are made, and compared some times
        for a in () if name in _FREE else args:
            deep(a) if whole else shallow(a)
        if name in _CUTTING:
            spend(len(str(args[0])) // 4)
        if name not in _FREE_NUMBERS:
            for a in (*args[1:], *kwargs.values()):
                _check_width(a)
        result = function(*args, **kwargs)
        if isinstance(result, types.GeneratorType):
            return _metered(result)
        return result if name in _FREE else bounded(shallow(result))

    return checked


def _format(pattern, *args, **kwargs):
    check_format("%", str(pattern), (*args, *kwargs.values()))
    return shallow(str(pattern) % (kwargs or args))


def _indent(text, width=4, first=False, blank=False):
    pad = width if isinstance(width, str) else " " * _check_width(width)
    deep(text)
    if not isinstance(text, str):              # jinja2 would add a line end to it: in place, where it is a list
        raise TypeError(f"indent: found {type(text).__name__}, expected a text")
    _text_limit(len(text) + (text.count("\n") + 1) * len(pad))
    return jinja2.filters.do_indent(text, width, first, blank)


@jinja2.pass_environment
def _join(environment, values, d="", attribute=None):
    if attribute is not None:
        values = map(jinja2.filters.make_attrgetter(environment, attribute), values)
    d = str(d)
    return shallow(d.join(map(str, _check_join(d, _metered(values)))))


def _replace(text, old, new, count=-1):
    deep(text)
    text, old, new = str(text), str(old), str(new)
    _check_replace(text, old, new)
    return shallow(text.replace(old, new, -1 if count is None else count))


@jinja2.pass_environment
def _sum(environment, values, attribute=None, start=0):
    if not isinstance(start, (int, float)):
        raise TypeError("sum: start is a number")
    if attribute is not None:
        values = map(jinja2.filters.make_attrgetter(environment, attribute), values)
    return sum(_metered(values), start)


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    """As transformers has it: no HTML escapes, no \\u escapes, keys in their order."""
    if isinstance(indent, int) and indent > 16 or isinstance(indent, str) and len(indent) > 16:
        raise OutOfBudget(f"template asks for an indentation of {indent}, expected at most 16")
    deep(value)
    return shallow(json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                               sort_keys=sort_keys))


def _escape(text):
    deep(text)
    return shallow(escape(text))


def _safe(text):
    deep(text)
    return Markup(text)


def filters():
    table = {name: _filter(name, False) for name in _PLAIN}
    table.update((name, _filter(name, True)) for name in _WRITING)
    table.update(format=_format, indent=_indent, join=_join, replace=_replace, sum=_sum, tojson=_tojson, e=_escape,
                 escape=_escape, safe=_safe)
    return table


# --- globals ------------------------------------------------------------------------------------------------


def _range(*args):
    values = range(*args)
    if len(values) > MAX_ITEMS:
        raise OutOfBudget(f"template asks for a range of {len(values)}, expected at most {MAX_ITEMS}")
    return values


def _raise_exception(message=""):
    raise TemplateError(str(message)[:2000])


def _strftime_now(pattern="%Y-%m-%d"):
    if len(pattern) > 256 or re.search(r"%[^a-zA-Z%]*\d", pattern):
        raise OutOfBudget("strftime_now: expected a short format without widths")
    return datetime.now().strftime(pattern)


class _Dict:
    """The name dict, without what a class has."""

    def __call__(self, *args, **kwargs):
        return dict(*args, **kwargs)

    def fromkeys(self, keys, value=None):
        return dict.fromkeys(_metered(keys), value)


class _Namespace(Namespace):
    """Names that begin with _ are refused, as by transformers."""

    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        spend(8)
        values = dict(*args, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name, value):
        _check_name(name)
        Namespace.__setitem__(self, name, value)


def _check_name(name):
    if isinstance(name, str) and name.startswith("_"):
        raise TemplateError(f"template: a namespace has no names that begin with _, found {name[:60]!r}")


GLOBALS = {"range": _range, "dict": _Dict(), "namespace": _Namespace, "raise_exception": _raise_exception, "strftime_now": _strftime_now}

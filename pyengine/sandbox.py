"""Jinja within a budget: templates come with model files and are not trusted.

jinja2's immutable sandbox stops access to Python; this adds what it lacks, bounds on time and memory: every
loop turn, call, filter and operator costs a step and a step more per 64 characters it touches, results that
are far larger than their operands are foreseen and refused, and the output is cut short by an error.
Deterministic: the same template and messages pass or fail on every machine. Not a place for what chat
templates mean; that is chat.py, the only importer (lazily, since jinja2 takes 60 ms to import).
"""
import collections
import functools
import json
import re
import threading
import types
from datetime import datetime

import jinja2.defaults
import jinja2.filters
import jinja2.nodes as nodes
from jinja2 import meta, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer
from markupsafe import Markup, escape

from .errors import TemplateError

MAX_SOURCE = 256 << 10  # the largest template found in a published model has 18 KB
MAX_DEPTH = 100
MAX_STEPS = 1_000_000
MAX_TEXT = 4 << 20  # characters of one string, and of the output
MAX_ITEMS = 100_000  # of range() and of one list
MAX_WIDTH = 1000  # of padding, indentation, precision
_MAX_INT_BITS = 4096
_CHARS_PER_STEP = 64

_run = threading.local()


class OutOfBudget(TemplateError):
    out_of_budget = True


def start_run(steps=MAX_STEPS):
    _run.steps = steps


def spend(steps):
    _run.steps -= steps
    if _run.steps < 0:
        raise OutOfBudget(f"template does more than {MAX_STEPS} steps")


def _text_limit(n):
    if n > MAX_TEXT:
        raise OutOfBudget(f"template makes a text of {n} characters, expected at most {MAX_TEXT}")


def _shallow(value):
    """Pays for passing over a value once."""
    if isinstance(value, str):
        _text_limit(len(value))
        spend(1 + len(value) // _CHARS_PER_STEP)
    elif isinstance(value, (list, tuple, dict, range)):
        if len(value) > MAX_ITEMS:
            raise OutOfBudget(f"template makes a list of {len(value)} items, expected at most {MAX_ITEMS}")
        spend(1 + len(value) // 8)
    return value


def _deep(value):
    """Pays for writing a value out, and returns about how long that is; lists may hold one list many times."""
    if isinstance(value, str):
        _shallow(value)
        return len(value)
    total, stack = 0, [value]
    while stack:
        v = stack.pop()
        spend(1)
        if isinstance(v, str):
            total += len(v)
            spend(len(v) // _CHARS_PER_STEP)
        elif isinstance(v, dict):
            stack.extend(v)
            stack.extend(v.values())
            total += 4 * len(v)
        elif isinstance(v, (list, tuple)):
            stack.extend(v)
            total += 2 * len(v)
        elif isinstance(v, Namespace):
            stack.append(vars(v).get("_Namespace__attrs", {}))
        else:
            total += 8
        _text_limit(total)
    return total


# --- operations whose result may be far larger than what goes in ----------------------------------------

_WIDE = re.compile(r"\d{4,}")
_NESTED_FIELD = re.compile(r"\{[^{}]*\{")
_STARRED = re.compile(r"%[-+ #0]*(?:\*|\d*\.\*)")


def _check_format(fields, pattern, args):
    """A format string: widths are small and written out, and fields times the largest argument fits."""
    if _WIDE.search(pattern) or _NESTED_FIELD.search(pattern) or _STARRED.search(pattern):
        raise OutOfBudget(f"template formats with a width above {MAX_WIDTH - 1} or one from a variable")
    largest = max(map(_deep, args), default=0)
    _text_limit(len(pattern) + pattern.count(fields) * (largest + MAX_WIDTH))


def _check_width(width):
    if isinstance(width, (int, float)) and abs(width) > MAX_WIDTH:
        raise OutOfBudget(f"template asks for a width of {width}, expected at most {MAX_WIDTH}")
    return width


def _check_replace(text, old, new, *count):
    _text_limit(len(text) + (text.count(old) if old else len(text) + 1) * len(new))


def _check_join(separator, values):
    values = list(_metered(values) if isinstance(values, types.GeneratorType) else values)
    _text_limit(_deep(values) + len(separator) * len(values))
    return values


def _metered(values):
    for value in values:
        spend(1)
        yield value


def _checked_binop(operator, left, right):
    spend(1)
    if operator == "%":
        if isinstance(left, str):
            _check_format("%", left, right if isinstance(right, tuple) else (right,))
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
_METHODS = {str: _STR_METHODS, Markup: _STR_METHODS, dict: frozenset(("copy", "get", "items", "keys", "values")),
            list: frozenset(("copy", "count", "index")), tuple: frozenset(("count", "index")),
            int: frozenset(), float: frozenset(("is_integer",)), bool: frozenset(), bytes: frozenset(),
            range: frozenset()}


def _check_method(text, name, args, kwargs):
    """Before a method of a str is called. Returns the arguments to call it with."""
    _shallow(text)
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
_FREE = frozenset(("count", "d", "default", "first", "last", "length"))  # cost the same for any length
_FREE_NUMBERS = frozenset(("d", "default", "int", "float", "first", "last", "list", "map", "select", "reject"))


def _filter(name, deep):
    function = jinja2.defaults.DEFAULT_FILTERS[name]

    @functools.wraps(function)
    def checked(*args, **kwargs):
        spend(1)
        for a in () if name in _FREE else args:
            _deep(a) if deep else _shallow(a)
        if name not in _FREE_NUMBERS:
            for a in (*args[1:], *kwargs.values()):
                _check_width(a)
        result = function(*args, **kwargs)
        if isinstance(result, types.GeneratorType):
            return _metered(result)
        return result if name in _FREE else _shallow(result)

    return checked


def _format(pattern, *args, **kwargs):
    _check_format("%", str(pattern), (*args, *kwargs.values()))
    return _shallow(str(pattern) % (kwargs or args))


def _indent(text, width=4, first=False, blank=False):
    pad = width if isinstance(width, str) else " " * _check_width(width)
    _deep(text)
    text = text if isinstance(text, str) else str(text)
    _text_limit(len(text) + (text.count("\n") + 1) * len(pad))
    return jinja2.filters.do_indent(text, width, first, blank)


@jinja2.pass_environment
def _join(environment, values, d="", attribute=None):
    if attribute is not None:
        values = map(jinja2.filters.make_attrgetter(environment, attribute), values)
    d = str(d)
    return _shallow(d.join(map(str, _check_join(d, _metered(values)))))


def _replace(text, old, new, count=-1):
    _deep(text)
    text, old, new = str(text), str(old), str(new)
    _check_replace(text, old, new)
    return _shallow(text.replace(old, new, -1 if count is None else count))


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
    _deep(value)
    return _shallow(json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                               sort_keys=sort_keys))


def _escape(text):
    _deep(text)
    return _shallow(escape(text))


def _safe(text):
    _deep(text)
    return Markup(text)


def _filters():
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


class _Generation(Extension):
    """{% generation %} marks the assistant's words for training; here it is a scope, as it is there, and nothing more."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


# --- the environment ----------------------------------------------------------------------------------------


class _Meter(NodeTransformer):
    """Puts a price on what the environment's hooks do not see: loop turns, ~, comparisons, tests, slices."""

    def _charged(self, node):
        return nodes.Call(nodes.EnvironmentAttribute("charge", lineno=node.lineno), [node], [], None, None,
                          lineno=node.lineno)

    def _with_tick(self, node):
        self.generic_visit(node)
        static = sum(len(t.data) for t in node.find_all(nodes.TemplateData))
        call = nodes.Call(nodes.EnvironmentAttribute("tick", lineno=node.lineno),
                          [nodes.Const(2 + static // _CHARS_PER_STEP, lineno=node.lineno)], [], None, None,
                          lineno=node.lineno)
        node.body.insert(0, nodes.ExprStmt(call, lineno=node.lineno))
        return node

    visit_For = visit_Macro = visit_CallBlock = visit_Block = _with_tick

    def visit_Concat(self, node):
        self.generic_visit(node)
        node.nodes = [self._charged(n) for n in node.nodes]
        return self._charged(node)

    def visit_Compare(self, node):
        self.generic_visit(node)
        node.expr = self._charged(node.expr)
        for operand in node.ops:
            operand.expr = self._charged(operand.expr)
        return node

    def visit_Test(self, node):
        self.generic_visit(node)
        if node.name not in ("defined", "undefined"):  # these two want the name itself
            node.node = self._charged(node.node)
            node.args = [self._charged(a) for a in node.args or ()]
        return node

    def visit_Getitem(self, node):
        self.generic_visit(node)
        return self._charged(node) if isinstance(node.arg, nodes.Slice) else node


def _tick(steps):
    spend(steps)
    return ""


def _charge(value):
    _deep(value) if isinstance(value, (list, tuple, dict)) else _shallow(value)
    return value


@pass_context
def _finalize(context, value):
    _deep(value)
    return value


class Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("+", "*", "%", "**"))
    tick = staticmethod(_tick)
    charge = staticmethod(_charge)

    def __init__(self):
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation],
                         finalize=_finalize, optimized=False, cache_size=0)
        self.filters = _filters()
        self.globals = {"range": _range, "dict": _Dict(), "namespace": _Namespace, "raise_exception": _raise_exception,
                        "strftime_now": _strftime_now}

    def call_binop(self, context, operator, left, right):
        _checked_binop(operator, left, right)
        return _shallow(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value):
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def checked(*args, **kwargs):
            _check_format("{", value.__self__, (*args, *kwargs.values()))
            return wrapped(*args, **kwargs)

        return checked

    def is_safe_attribute(self, obj, attr, value):
        allowed = _METHODS.get(type(obj))
        return (allowed is None or attr in allowed) and super().is_safe_attribute(obj, attr, value)

    def call(__self, __context, __obj, *args, **kwargs):
        if __obj is _tick or __obj is _charge:
            return __obj(*args)
        spend(2)  # a call takes 2 us, most else under 1
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            args = _check_method(owner, __obj.__name__, args, kwargs)
        return _shallow(super().call(__context, __obj, *args, **kwargs))


_environment = None

# template: jinja2's. reads: the names of variables that it looks up.
Compiled = collections.namedtuple("Compiled", "template reads")


def compile_template(source):
    """A Compiled of a template's text. TemplateError for what does not parse or is too large."""
    global _environment
    if len(source) > MAX_SOURCE:
        raise TemplateError(f"template has {len(source)} characters, expected at most {MAX_SOURCE}")
    if _environment is None:
        _environment = Sandbox()
    start_run()
    try:
        tree = _environment.parse(source)
        _check_depth(tree)
        reads = frozenset(meta.find_undeclared_variables(tree))
        return Compiled(_environment.from_string(_Meter().visit(tree)), reads)
    except TemplateError:
        raise
    except RecursionError:
        raise TemplateError(f"template is nested too deeply, expected at most {MAX_DEPTH} levels") from None
    except jinja2.TemplateSyntaxError as e:
        raise TemplateError(f"template, line {e.lineno}: {str(e.message)[:500]}") from None
    except Exception as e:
        raise TemplateError(f"template: {type(e).__name__}: {str(e)[:500]}") from None


def _check_depth(tree):
    stack = [(tree, 0)]
    while stack:
        node, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise TemplateError(f"template, line {node.lineno}: nested too deeply, expected at most {MAX_DEPTH} levels")
        stack.extend((child, depth + 1) for child in node.iter_child_nodes())


def run(compiled, variables, steps=None):
    """The text that a Compiled makes of variables, within `steps` of its own or MAX_STEPS. TemplateError for whatever goes
    wrong in it."""
    template = compiled.template
    start_run(steps or MAX_STEPS)
    parts, length = [], 0
    try:
        for part in template.root_render_func(template.new_context(variables)):
            length += len(part)
            if length > MAX_TEXT:
                raise OutOfBudget(f"template writes more than {MAX_TEXT} characters")
            parts.append(part)
        return "".join(parts)
    except TemplateError:
        raise
    except RecursionError:
        raise TemplateError("template calls itself without end") from None
    except Exception as e:
        raise TemplateError(f"template, line {_line(template, e)}: {type(e).__name__}: {str(e)[:500]}") from None


def _line(template, error):
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is not None and trace.tb_frame.f_globals.get("__file__") == template.filename:
            line = trace.tb_lineno
        trace = trace.tb_next
    return template.get_corresponding_lineno(line)

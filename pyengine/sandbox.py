"""Jinja within a budget: templates come with model files and are not trusted.

jinja2's immutable sandbox stops access to Python; this adds what it lacks, bounds on time and memory: source, depth
and tokens before compiling, then every loop turn, branch, call, filter and operator costs steps (metered.py), and the
output is cut short by an error. Deterministic: the same template and messages pass or fail on every machine. Not a
place for what chat templates mean; that is chat.py, the only importer (lazily, since jinja2 takes 60 ms to import).
"""
import collections

import jinja2
import jinja2.nodes as nodes
from jinja2 import meta, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.runtime import LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from . import metered
from .errors import TemplateError
from .metered import MAX_STEPS, MAX_TEXT, OutOfBudget, deep, shallow, spend, start_run

MAX_SOURCE = 256 << 10  # the largest template found in a published model has 18 KB
MAX_TOKENS = 20_000  # and 2,800 tokens; jinja2 and Python need 25 us and 4 KB to compile each
MAX_DEPTH = 100


class _Generation(Extension):
    """{% generation %} marks the assistant's words for training; here it is a scope, as it is there, and nothing more."""

    tags = {"generation"}

    def filter_stream(self, stream):
        for count, token in enumerate(stream):
            if count == MAX_TOKENS:
                raise TemplateError(f"template, line {token.lineno}: expected at most {MAX_TOKENS} tokens")
            yield token

    def parse(self, parser):
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


# --- the environment ----------------------------------------------------------------------------------------


class _Meter(NodeTransformer):
    """Puts a price on what the environment's hooks do not see: code that is run again and again, ~, comparisons, slices, keys.

    What it puts in are floor divisions, the one operation on an object of ours that is compiled as it stands: half
    the time of a call.
    """

    def _charged(self, node):
        if isinstance(node, nodes.Const):      # as long as the source, which is bounded
            return node
        return nodes.FloorDiv(nodes.EnvironmentAttribute("charge", lineno=node.lineno), node, lineno=node.lineno)

    def _tick(self, steps, line):
        return nodes.FloorDiv(nodes.EnvironmentAttribute("tick", lineno=line), nodes.Const(steps, lineno=line), lineno=line)

    def _priced(self, body, line, least=0):
        """body, after a step for every four of its nodes, which take 0.1 to 1 us each, and for 64 characters of text."""
        steps = _price(body) + least
        if steps:
            body.insert(0, nodes.ExprStmt(self._tick(steps, line), lineno=line))

    def _with_tick(self, node):
        self._priced(node.body, node.lineno, 2)
        return self.generic_visit(node)

    visit_Macro = visit_CallBlock = visit_Block = _with_tick

    def visit_For(self, node):
        if node.test is not None:
            node.test = nodes.And(self._tick(1 + _price([node.test]), node.lineno), node.test, lineno=node.lineno)
        self._priced(node.else_, node.lineno)
        return self._with_tick(node)

    def visit_If(self, node):
        self._priced(node.body, node.lineno)
        self._priced(node.else_, node.lineno)
        return self.generic_visit(node)

    def visit_Concat(self, node):
        self.generic_visit(node)
        node.nodes = [self._charged(n) for n in node.nodes]
        return self._charged(node)

    def visit_Compare(self, node):
        self.generic_visit(node)
        if len(node.ops) == 1 and node.ops[0].op in ("eq", "ne") and any(
                isinstance(n, nodes.Const) for n in (node.expr, node.ops[0].expr)):
            return node                        # looks at no more of a value than the constant is long
        node.expr = self._charged(node.expr)
        for operand in node.ops:
            operand.expr = self._charged(operand.expr)
        return node

    def visit_Pair(self, node):
        self.generic_visit(node)
        node.key = self._charged(node.key)     # the hash of a tuple of tuples takes time
        return node

    def visit_Getitem(self, node):
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            return self._charged(node)
        node.arg = self._charged(node.arg)
        return node


_INNER = {nodes.For: ("target", "iter"), nodes.If: ("test", "elif_"), nodes.Macro: ("args", "defaults"),
          nodes.CallBlock: ("call", "args", "defaults"), nodes.Block: ()}


# What the garbage collector has to look through, and what the sandbox looks up: 1 to 2 us each.
_DEAR = (nodes.List, nodes.Dict, nodes.Tuple, nodes.Macro, nodes.Getattr, nodes.Getitem)


def _price(body):
    """Steps for running a body once, without the bodies in it, which have prices of their own."""
    count, stack = 0, list(body)
    while stack:
        node = stack.pop()
        if isinstance(node, nodes.TemplateData):
            count += len(node.data) // 16
        else:
            count += 6 if isinstance(node, _DEAR) else 1
        stack.extend(node.iter_child_nodes(only=_INNER.get(type(node))))
    return count // 4


class _Ticker:
    def __floordiv__(self, steps):
        spend(steps)
        return True


class _Charger:
    def __floordiv__(self, value):
        deep(value) if isinstance(value, (list, tuple, dict)) else shallow(value)
        return value


@pass_context
def _finalize(context, value):
    deep(value)
    return value


class Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("+", "-", "*", "%", "**"))
    tick = _Ticker()
    charge = _Charger()

    def __init__(self):
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation],
                         finalize=_finalize, optimized=False, cache_size=0)
        self.filters = metered.filters()
        self.tests = metered.tests()
        self.globals = dict(metered.GLOBALS)

    def call_binop(self, context, operator, left, right):
        metered.check_binop(operator, left, right)
        return metered.bounded(shallow(super().call_binop(context, operator, left, right)))

    def wrap_str_format(self, value):
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def checked(*args, **kwargs):
            metered.check_format("{", value.__self__, (*args, *kwargs.values()))
            return wrapped(*args, **kwargs)

        return checked

    def is_safe_attribute(self, obj, attr, value):
        allowed = metered.METHODS.get(type(obj))
        if isinstance(obj, Namespace):
            spend(4)                           # its lookups are Python's
        return (allowed is None or attr in allowed) and super().is_safe_attribute(obj, attr, value)

    def call(__self, __context, __obj, *args, **kwargs):
        spend(4)  # a call takes 2 to 4 us, most else under 1
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            args = metered.check_method(owner, __obj.__name__, args, kwargs)
        elif not isinstance(__obj, (Macro, LoopContext)):      # these hand on what they get; others compare it, or take its hash
            for a in (owner, *args, *kwargs.values()):
                if isinstance(a, (list, tuple)) or isinstance(a, dict) and a is not owner:
                    deep(a)
        return shallow(super().call(__context, __obj, *args, **kwargs))


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

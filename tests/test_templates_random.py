"""Random templates of a grammar: the small ones render what transformers renders or both refuse; the hostile ones end within budget
and raise nothing but TemplateError."""
import time

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from test_templates_transformers import SPECIAL, TOOLS, ours, theirs

from pyengine import chat, metered
from pyengine.errors import TemplateError

MESSAGES = [{"role": "system", "content": " Be <brief>.\n"}, {"role": "user", "content": "é\n\nHello 'x'", "name": "n"},
            {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": [1, None, True], "b": 1.5}}}]},
            {"role": "user", "content": "42"}]
SMALL = ["0", "1", "-1", "2", "3", "7", "1.5", "''", "'a'", "' b\\n'", "'x,y'", "true", "false", "none", "[]", "{}", "[1, 2]", "(1, 'a')", "{'k': 1, 'a': [2]}"]
LARGE = [*SMALL, "9999", "99999", "10**9", "4000000", "'x' * 4000000", "'ab' * 99999", "range(99999)", "range(99999) | list", "[1] * 99999", "'\U0001f600' * 60000",
         "'{}' * 9999", "'%s' * 9999", "2 ** 4000", "ns", "ns.y", "loop", "self", "m", "raise_exception", "dict", "namespace", "cycler", "''.__class__", "'9' * 5000"]
NAMES = ["messages", "message", "tools", "x", "ns.v", "message.content", "message.role", "message['tool_calls']", "bos_token", "nothing", "messages[0]", "messages[-1].content"]
FILTERS = ["trim", "upper", "lower", "length", "list", "first", "last", "tojson", "tojson(indent=2)", "string", "int", "float", "abs", "join(',')", "join", "sort", "unique | list",
           "reverse | list", "map('upper') | list", "map(attribute='role') | list", "selectattr('role', 'eq', 'user') | list", "select('string') | list", "reject('none') | list",
           "default('d')", "default('d', true)", "replace('e', '<')", "items | list", "dictsort", "indent(2)", "indent(3, true)", "title", "capitalize", "wordcount", "batch(2) | list",
           "slice(2) | list", "round", "sum", "max", "min", "e", "safe", "truncate(5)", "center(9)", "groupby('role') | list", "format(1)", "urlencode", "length > 1", "count", "attr('role')"]
LARGE_FILTERS = [*FILTERS, "center(10**9)", "indent(10**7)", "batch(10**9) | list", "round(10**9)", "int(0, 16)", "tojson(indent=10**8)", "map('list') | list", "map('sort') | list",
                 "join('x' * 99999)", "replace('', 'x' * 9999)", "format(*range(9999))", "sort(attribute='role')", "map('tojson') | join", "select('in', range(9999)) | list", "xmlattr", "wordwrap(1)"]
METHODS = [".strip()", ".split(',')", ".upper()", ".startswith('a')", ".items()", ".get('role')", ".keys() | list", ".replace('e', '')", ".format(1, 2)", ".find('x')", ".count('l')", "[0]",
           "[1:]", "[::-1]", "[:2]", "['role']", ".role", ".content", ".splitlines()", ".rstrip('\\n')", ".endswith(('a', 'o'))", ".partition(' ')", ".index(1)", ".append(1)", ".join(['a', 'b'])"]
LARGE_METHODS = [*METHODS, ".join(x)", ".replace('x', x)", ".ljust(10**8)", ".zfill(10**8)", ".split('x')", ".expandtabs(10**8)", ".format(x, x)", ".__class__", ".__init__", ".mro()", ".copy()"]
TESTS = ["defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "true", "in [1, 'a']", "eq('a')", "odd", "boolean", "not none", "sameas(none)", "divisibleby(2)"]
OPERATORS = ["+", "-", "*", "~", "%", "/", "//", "**", "==", "!=", "<", ">=", "and", "or", "in", "not in"]


class Maker:
    def __init__(self, random, hostile):
        self.choose, self.hostile, self.left = random.choice, hostile, 60
        self.atoms, self.filters, self.methods = (LARGE, LARGE_FILTERS, LARGE_METHODS) if hostile else (SMALL, FILTERS, METHODS)

    def expression(self, depth=0):
        self.left -= 1
        kind = self.choose("aannnfmtobci") if depth < 4 and self.left > 0 else self.choose("an")
        inner = lambda: self.expression(depth + 1)
        if kind == "a":
            return self.choose(self.atoms)
        if kind == "n":
            return self.choose(NAMES)
        if kind == "f":
            return f"({inner()}) | {self.choose(self.filters)}"
        if kind == "m":
            return f"({inner()}){self.choose(self.methods)}"
        if kind == "t":
            return f"({inner()}) is {self.choose(TESTS)}"
        if kind == "o":
            return f"({inner()}) {self.choose(OPERATORS)} ({inner()})"
        if kind == "b":
            return self.choose((f"not ({inner()})", f"[{inner()}, {inner()}]", f"{{'k': {inner()}}}", f"({inner()}, )"))
        if kind == "c":
            return self.choose((f"m({inner()})", f"m({inner()}, b={inner()})", f"dict(a={inner()})", "range(3) | list", f"namespace(v={inner()}).v",
                                *((f"loop({inner()})", f"range({inner()})", f"strftime_now({inner()})", f"dict({inner()})") if self.hostile else ())))
        return f"({inner()}) if ({inner()}) else ({inner()})"

    def block(self, depth=0):
        self.left -= 1
        o, c = self.choose(("{% ", "{%- ", "{%+ ")), self.choose((" %}", " -%}", " %}\n"))
        kind = self.choose("wweeeifssngcdr") if depth < 4 and self.left > 0 else self.choose("we")
        body = lambda: "".join(self.block(depth + 1) for _ in range(self.choose((1, 2, 3))))
        if kind == "w":
            return self.choose((" ", "\n", "text", "<|x|>\n", "  \n\n", "\t{# note #}\n", "{# #} ", "é"))
        if kind == "e":
            return self.choose(("{{ ", "{{- ")) + self.expression() + self.choose((" }}", " -}}", " }}\n"))
        if kind == "i":
            return f"{o}if {self.expression()}{c}{body()}" + self.choose(("", f"{o}elif {self.expression()}{c}{body()}", f"{o}else{c}{body()}")) + f"{o}endif{c}"
        if kind == "f":
            what = self.choose(("messages", "messages", "tools or []", "range(3)", "[1, 2, 3]", self.expression()))
            tail = self.choose(("", "", f" if {self.expression()}", " recursive" if self.hostile else ""))
            extra = self.choose(("", "{{ loop.index }}", "{{ loop.last }}{{ loop.previtem }}", "{% if loop.index == 2 %}{% break %}{% endif %}", "{% if loop.first %}{% continue %}{% endif %}"))
            return f"{o}for message in {what}{tail}{c}{extra}{body()}{o}endfor{c}"
        if kind == "s":
            return f"{o}set {self.choose(('x', 'ns.v', 'y'))} = {self.expression()}{c}"
        if kind == "n":
            return f"{o}set x{c}{body()}{o}endset{c}"
        if kind == "g":
            return f"{o}generation{c}{body()}{o}endgeneration{c}"
        if kind == "c":
            return self.choose((f"{o}call m({self.expression()}){c}{body()}{o}endcall{c}", f"{o}filter {self.choose(('upper', 'trim', 'title'))}{c}{body()}{o}endfilter{c}"))
        if kind == "d":
            return f"{o}macro {self.choose(('m', 'k'))}(a, b=1){c}{body()}{o}endmacro{c}"
        return f"{o}with z = {self.expression()}{c}{{{{ z }}}}{body()}{o}endwith{c}"

    def template(self):
        inside = "{{ m(a) }}" if self.hostile else ""
        head = "{% set ns = namespace(v=1) %}{% macro m(a, b=2) %}[{{ a }}{{ b }}" + inside + "{{ caller() if caller else '' }}]{% endmacro %}"
        return head + "".join(self.block() for _ in range(self.choose((1, 2, 3, 5))))


def templates(hostile):
    return st.randoms(use_true_random=False).map(lambda r: Maker(r, hostile).template())


def same_as_transformers(source):
    want = theirs(source, MESSAGES, tools=TOOLS)
    got = ours(chat.Template(source, SPECIAL), MESSAGES, tools=TOOLS)
    if isinstance(want, str):
        # A slice of a number or dict that stands in the template is undefined to jinja2's optimizer, which is off here, and an error else.
        fine = got == want or "not subscriptable" in str(got) or "unhashable type: 'slice'" in str(got) or _changed(source, want, got)
        assert fine, (source, want, got)
    else:
        assert isinstance(got, TemplateError), (source, want)


def _changed(source, want, got):
    """Where a template asks for null, or takes contents in another form, the messages are not those that came."""
    t = chat.Template(source, SPECIAL)
    messages, variables = t._prepared(MESSAGES, TOOLS, None, {})
    return messages != [{k: v for k, v in m.items() if v is not None} for m in MESSAGES] and (isinstance(got, TemplateError) or theirs(source, messages, tools=TOOLS) in (got, want))


def ends_within_budget(source):
    before = time.process_time()
    try:
        text = chat.Template(source, SPECIAL).render(MESSAGES, tools=TOOLS)
    except TemplateError:
        pass
    else:
        assert len(text) <= metered.MAX_TEXT
    assert time.process_time() - before < 6, source              # 1.1 s and four probes of 0.05, with a margin for slower machines


ANY = dict(deadline=None, suppress_health_check=list(HealthCheck))


@settings(max_examples=150, derandomize=True, **ANY)
@given(templates(False))
def test_random_templates_as_transformers_renders_them(source):
    same_as_transformers(source)


@settings(max_examples=100, derandomize=True, **ANY)
@given(templates(True))
def test_random_hostile_templates_end_within_budget(source):
    ends_within_budget(source)


@pytest.mark.long
@settings(max_examples=2_000, **ANY)
@given(templates(False))
def test_many_random_templates_as_transformers_renders_them(source):
    same_as_transformers(source)


@pytest.mark.campaign
@settings(max_examples=30_000, **ANY)
@given(templates(True))
def test_a_campaign_of_hostile_templates(source):
    ends_within_budget(source)

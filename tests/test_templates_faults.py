"""Hostile templates and messages (faults 78 to 82 and 84): refused by TemplateError or RequestError, cheaply."""
import itertools
import resource

import pytest

from pyengine import chat
from pyengine.errors import RequestError, TemplateError

HELLO = [{"role": "user", "content": "hello"}]


def render(source, messages=HELLO, **variables):
    return chat.Template(source).render(messages, variables=variables)


# --- 78: no way out ---------------------------------------------------------------------------------

_STARTS = ("''", "()", "[]", "{}", "0", "1.5", "messages", "messages[0]", "range", "dict", "namespace()", "loop",
           "raise_exception", "strftime_now", "self", "none", "undefined_name", "range(3)", "m", "''.join")
_ENDS = (".__class__.__mro__[1].__subclasses__()", ".__init__.__globals__['os']", ".__globals__", ".__class__.__base__",
         "['__class__']['__mro__']", "|attr('__class__')|attr('__mro__')", ".__getattribute__('__class__')",
         ".__reduce_ex__(2)", ".__code__", ".__self__.__class__", ".__func__", ".__dict__['x']", ".mro()",
         ".format.__self__.__class__", ".__doc__.__class__.__name__")


def escapes():
    for start, end in itertools.product(_STARTS, _ENDS):
        yield "{% macro m() %}{% endmacro %}{% for x in [1] %}{{ " + start + end + " }}{% endfor %}"
    yield from (
        "{{ '{0.__class__.__mro__}'.format('') }}", "{{ '{x.__class__}'.format(x=messages) }}",
        "{{ '%s' | format(''.__class__) }}", "{{ [''] | map(attribute='__class__') | list | first }}",
        "{{ messages | map(attribute='__class__.__mro__') | list }}", "{{ ['x'] | groupby('__class__') }}",
        "{{ [''] | sum(attribute='__class__') }}", "{{ [''] | join(attribute='__class__') }}",
        "{{ [''] | selectattr('__class__.__name__') | list }}{{ x.y.z }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}{{ ns.__class__.__mro__ }}",
        "{{ lipsum.__globals__['os'].popen('id').read() }}", "{{ cycler.__init__.__globals__.os }}",
        "{{ joiner.__init__.__globals__.os }}", "{{ lipsum() }}", "{{ cycler('a').next() }}", "{{ joiner()() }}",
        "{{ get_flashed_messages.__globals__ }}", "{{ url_for.__globals__ }}", "{{ config.items() }}",
        "{{ request.application.__globals__ }}", "{{ self._TemplateReference__context.environment.x }}",
        "{{ self.__init__.__globals__.x }}", "{% include '/etc/passwd' %}", "{% import 'os' as os %}{{ os.x }}",
        "{% extends '/etc/passwd' %}", "{% from 'os' import system %}{{ system('id') }}",
        "{{ messages.append(1) }}", "{{ messages.clear() }}", "{{ messages[0].update({}) }}", "{{ messages.pop() }}",
        "{{ ''.translate({}) }}", "{{ ''.encode().decode.__self__ }}", "{{ (1).to_bytes(10, 'big') }}",
        "{{ (1).from_bytes(b) }}", "{{ {}.fromkeys('ab') }}", "{{ environment.x }}", "{{ context.x }}",
        "{{ tick(1) }}", "{{ charge(1) }}", "{{ __import__('os').x }}", "{{ open('/etc/passwd').read() }}",
        "{{ 'x' | pprint }}", "{{ 'x' | urlize }}", "{{ {'a': 1} | xmlattr }}", "{{ [1] | random }}",
        "{% do messages.append(1) %}", "{% debug %}", "{{ x.__class__ ~ y.__mro__[0] }}")


ESCAPES = list(escapes())


def test_there_are_many_escapes():
    assert len(ESCAPES) >= 60


@pytest.mark.parametrize("source", ESCAPES)
def test_no_way_out(source):
    try:
        text = render(source)
    except TemplateError:
        return
    # what does not raise yields an undefined value, never an object of Python
    assert text == "" or "class" not in text and "<" not in text and "root:" not in text


# --- 79 to 82: no way to hang or to fill memory -------------------------------------------------------

BIG = "{% set a = 'x' * 4000000 %}"
DOUBLING = "{% set ns = namespace(x=SEED) %}{% for i in range(60) %}{% set ns.x = GROW %}{% endfor %}"


def doubling(seed, grow, end="{{ ns.x }}"):
    return DOUBLING.replace("SEED", seed).replace("GROW", grow) + end


EXPENSIVE = {
    "range": "{{ range(10**9) | list }}",
    "range of range": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "silent loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% set x = j %}{% endfor %}{% endfor %}",
    "loops of filters": "{% for i in range(99999) %}{{ range(99999) | sum }}{% endfor %}",
    "loops of maps": "{% for i in range(99999) %}{% set x = range(99999) | map('string') | list %}{% endfor %}",
    "loops of length": "{% for i in range(99999) %}{% set x = range(99999) | select | list | length %}{% endfor %}",
    "loops of max": "{% for i in range(99999) %}{% set x = range(99999) | max %}{% endfor %}",
    "loops of reject": "{% for i in range(99999) %}{% set x = range(99999) | rejectattr('x') | first %}{% endfor %}",
    "loops of in": "{% for i in range(99999) %}{% set x = 'a' in range(99999) %}{% endfor %}",
    "repetition": "{{ 'A' * 10**9 }}",
    "repetition from the left": "{{ 10**9 * 'A' }}",
    "list repetition": "{{ [1] * 10**9 }}",
    "tuple repetition": "{{ (1, 2) * 10**8 }}",
    "format": "{{ '%1000000000d' % 1 }}",
    "format star": "{{ '%*d' % (10**9, 1) }}",
    "format precision": "{{ '%.1000000000f' % 1.0 }}",
    "format precision star": "{{ '%.*f' % (10**9, 1.0) }}",
    "format filter": "{{ '%1000000000d' | format(1) }}",
    "format method": "{{ '{:1000000000}'.format(1) }}",
    "format nested": "{{ '{:{w}}'.format(1, w=10**9) }}",
    "format many fields": BIG + "{{ ('{0}' * 100000).format(a) }}",
    "percent many fields": BIG + "{{ ('%(a)s' * 100000) % {'a': a} }}",
    "center": "{{ 'x'.center(2*10**9) }}",
    "center filter": "{{ 'x' | center(2*10**9) }}",
    "ljust": "{{ 'x'.ljust(2*10**9) }}",
    "rjust": "{{ 'x'.rjust(2*10**9) }}",
    "zfill": "{{ 'x'.zfill(2*10**9) }}",
    "expandtabs": "{{ '\t'.expandtabs(2*10**9) }}",
    "many tabs": "{{ ('\t' * 4000000).expandtabs(1000) }}",
    "indent": "{{ 'x\ny' | indent(10**9) }}",
    "indent many": "{{ ('x\n' * 1000000) | indent(1000) }}",
    "indent text": BIG + "{{ ('x\n' * 1000000) | indent(a) }}",
    "json indent": "{{ [1] | tojson(indent=10**9) }}",
    "replace": "{% set a = 'x' * 100000 %}{{ a.replace('x', a) }}",
    "replace nothing": "{% set a = 'x' * 100000 %}{{ a.replace('', a) }}",
    "replace filter": "{% set a = 'x' * 100000 %}{{ a | replace('x', a) }}",
    "join": BIG + "{{ ([a] * 10000) | join }}",
    "join method": BIG + "{{ ''.join([a] * 10000) }}",
    "join separator": BIG + "{{ ([''] * 10000) | join(a) }}",
    "join itself": BIG + "{{ a.join(a) }}",
    "doubling by ~": doubling("'x'", "ns.x ~ ns.x"),
    "doubling by +": doubling("'x'", "ns.x + ns.x"),
    "doubling by format": doubling("'x'", "'%s%s' % (ns.x, ns.x)"),
    "doubling by format method": doubling("'x'", "'{0}{0}'.format(ns.x)"),
    "doubling by join": doubling("'x'", "[ns.x, ns.x] | join"),
    "doubling lists": doubling("[1]", "ns.x + ns.x"),
    "nested lists": doubling("[1]", "[ns.x, ns.x]"),
    "nested lists as json": doubling("[1]", "[ns.x, ns.x]", "{{ ns.x | tojson }}"),
    "nested lists as string": doubling("[1]", "[ns.x, ns.x]", "{{ ns.x | string | length }}"),
    "nested lists by ~": doubling("[1]", "[ns.x, ns.x]", "{{ '' ~ ns.x }}"),
    "nested lists by %": doubling("[1]", "[ns.x, ns.x]", "{{ '%s' % [ns.x] }}"),
    "nested lists by format": doubling("[1]", "[ns.x, ns.x]", "{{ '{}'.format(ns.x) }}"),
    "nested lists by join": doubling("[1]", "[ns.x, ns.x]", "{{ ns.x | join }}"),
    "nested lists by replace": doubling("[1]", "[ns.x, ns.x]", "{{ ns.x | replace('1', '2') }}"),
    "nested lists by upper": doubling("[1]", "[ns.x, ns.x]", "{{ ns.x | upper }}"),
    "nested lists compared": doubling("[1]", "[ns.x, ns.x]", "{{ ns.x == [ns.x[0], ns.x[1]] }}"),
    "nested dicts": doubling("{}", "{'a': ns.x, 'b': ns.x}"),
    "namespace in itself": "{% set ns = namespace() %}{% set ns.x = [ns, ns] %}{{ ns }}",
    "nested lists in a namespace": doubling("[1]", "[ns.x, ns.x]", "{{ ns }}"),
    "power": "{{ 9 ** (9 ** 9) }}",
    "squaring": "{% set ns = namespace(x=2) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}{{ ns }}",
    "round": "{{ 1.5 | round(10**9, 'ceil') }}",
    "batch": "{{ [1] | batch(10**9, 'x') | list }}",
    "slice": "{{ [1] | slice(10**9) | list }}",
    "sum of lists": "{{ ([[1] * 1000] * 1000) | sum(start=[]) }}",
    "int": "{{ ('9' * 4000000) | int }}{{ raise_exception('x') }}",
    "macro": "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}",
    "macro tree": "{% macro m(x) %}{% if x %}{{ m(x - 1) }}{{ m(x - 1) }}{% endif %}{% endmacro %}{{ m(40) }}",
    "macro text": "{% macro m(x) %}" + "t" * 1000 + "{% if x %}{{ m(x - 1) }}{{ m(x - 1) }}{% endif %}{% endmacro %}"
                  "{% set a = m(30) %}",
    "two macros": "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
    "caller": "{% macro m() %}{{ caller() }}{{ m() }}{% endmacro %}{% call m() %}x{% endcall %}",
    "block": "{% block b %}{{ self.b() }}{% endblock %}",
    "block tree": "{% block b %}{% for i in range(9) %}{{ self.b() }}{% endfor %}{% endblock %}",
    "recursive loop": "{% for x in [[1]] recursive %}{{ loop([[1], [1]]) }}{% endfor %}",
    "recursive loop tree": doubling("[]", "[ns.x, ns.x]", "{% for x in ns.x recursive %}{{ loop(x) }}{% endfor %}"),
    "output": "{% for i in range(99999) %}" + "t" * 1000 + "{% endfor %}",
    "output of values": "{% set a = 'x' * 100000 %}{% for i in range(99999) %}{{ a }}{% endfor %}",
    "output captured": "{% set a %}{% for i in range(99999) %}{% for j in range(9) %}" + "t" * 1000 +
                       "{% endfor %}{% endfor %}{% endset %}",
    "filter block": "{% filter upper %}{% for i in range(99999) %}" + "t" * 10000 + "{% endfor %}{% endfilter %}",
    "comparing": BIG + "{% set b = a ~ '' %}{% for i in range(99999) %}{% set c = a == b %}{% endfor %}",
    "searching": BIG + "{% for i in range(99999) %}{% set c = 'xxxy' in a %}{% endfor %}",
    "slicing": BIG + "{% for i in range(99999) %}{% set c = a[1:] %}{% endfor %}",
    "splitting": BIG + "{% for i in range(99999) %}{% set c = a.split('x') %}{% endfor %}",
    "testing": BIG + "{% for i in range(99999) %}{% set c = a is upper %}{% endfor %}",
    "upper": BIG + "{% for i in range(99999) %}{% set c = a.upper() %}{% endfor %}",
    "strftime": "{{ strftime_now('%1000000000Y') }}",
    "strftime long": "{{ strftime_now('%c' * 1000000) }}",
    "parentheses": "{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}",
    "lists": "{{ " + "[" * 100_000 + "]" * 100_000 + " }}",
    "nots": "{{ " + "not " * 60_000 + "1 }}",
    "minuses": "{{ " + "-" * 200_000 + "1 }}",
    "chain of +": "{{ 1" + "+1" * 100_000 + " }}",
    "chain of dots": "{{ a" + ".b" * 100_000 + " }}",
    "chain of filters": "{{ a" + "|d" * 100_000 + " }}",
    "chain of calls": "{{ a" + "()" * 100_000 + " }}",
    "ifs": "{% if 1 %}" * 20_000 + "{% endif %}" * 20_000,
    "fors": "{% for i in [1] %}" * 50 + "{{ i }}" + "{% endfor %}" * 50,
    "conditionals": "{{ " + "1 if 1 else " * 20_000 + "1 }}",
    "long": "x" * (300 << 10),
    "16 MB": "{{ 1 }}" * (16 << 17),
    "unclosed": "{{ '" + "x" * 200_000,
    "unclosed comments": "{#" * 100_000,
    "null": "{{ messages[0].content * 10**7 }}",
    "bodies of attributes": "{% for i in range(99999) %}{% for j in range(99999) %}" + "{% if messages.x %}{% endif %}" * 2000 + "{% endfor %}{% endfor %}",
    "chains of attributes": "{% set ns = namespace() %}{% set ns.n = ns %}{% for i in range(99999) %}{% for j in range(99999) %}{% set y = ns" + ".n" * 90 + " %}{% endfor %}{% endfor %}",
    "bodies of constants": "{% for i in range(99999) %}{% for j in range(99999) %}" + "{{ 'x' }}" * 6000 + "{% endfor %}{% endfor %}",
    "bodies of sets": "{% for i in range(99999) %}{% for j in range(99999) %}" + "{% set x = i %}" * 3000 + "{% endfor %}{% endfor %}",
    "tests of loops": "{% for i in range(99999) %}{% for j in range(99999) if " + "a.b.c or " * 9000 + "a %}{% endfor %}{% endfor %}",
    "tests of loops that are small": "{% for i in range(99999) %}{% for j in range(99999) if a %}{% endfor %}{% endfor %}",
    "bodies of elifs": "{% for i in range(99999) %}{% for j in range(99999) %}{% if a %}" + "{% elif messages.x %}" * 900 + "{% endif %}{% endfor %}{% endfor %}",
    "conditions": "{% for i in range(99999) %}{% for j in range(99999) %}" + "{% set x = messages.x if messages.x else messages.x %}" * 1200 + "{% endfor %}{% endfor %}",
    "macro of attributes": "{% macro m() %}" + "{% if messages.x %}{% endif %}" * 2000 + "{% endmacro %}{% for i in range(99999) %}{{ m() }}{% endfor %}",
    "sort of long texts": BIG + "{% set b = ([a ~ 'x', a ~ 'y'] * 40000) %}{{ b | sort | length }}",
    "unique of long texts": BIG + "{% set b = ([a ~ 'x', a ~ 'y'] * 40000) %}{{ b | unique | list | length }}",
    "max of long texts": BIG + "{% set b = ([a ~ 'x', a ~ 'y'] * 40000) %}{{ b | max | length }}",
    "groupby of long texts": BIG + "{% set b = ([{'x': a ~ 'x'}, {'x': a ~ 'y'}] * 40000) %}{{ b | groupby('x') | length }}",
    "sort by attribute of long texts": BIG + "{% set b = ([{'x': a ~ 'x'}, {'x': a ~ 'y'}] * 40000) %}{{ b | sort(attribute='x') | length }}",
    "index of long texts": BIG + "{% set b = [a ~ 'x'] * 90000 %}{{ b.index(a ~ 'y') }}",
    "count of long texts": BIG + "{% set b = [a ~ 'x'] * 90000 %}{{ b.count(a ~ 'y') }}{{ raise_exception('') }}",
    "select of long texts": BIG + "{% set b = [a ~ 'x'] * 90000 %}{{ b | select('eq', a ~ 'y') | list | length }}",
    "reject in": "{% for i in range(99999) %}{{ range(9999) | reject('in', range(99999) | list) | list | length }}{% endfor %}",
    "map of sorts": "{% set a = range(99999) | list %}{{ ([a] * 99999) | map('sort') | map('length') | list }}",
    "sort again and again": "{% set a = range(99999) | list %}{% for i in range(99999) %}{% set x = a | sort %}{% endfor %}",
    "hash of nested tuples": doubling("(1,)", "(ns.x, ns.x)", "{{ {ns.x: 1} }}"),
    "hash of nested tuples as key": doubling("(1,)", "(ns.x, ns.x)", "{{ {}[ns.x] }}{{ raise_exception('') }}"),
    "hash of nested tuples in get": doubling("(1,)", "(ns.x, ns.x)", "{{ {}.get(ns.x) }}"),
    "hash of nested tuples in dict": doubling("(1,)", "(ns.x, ns.x)", "{{ dict([(ns.x, 1)]) }}"),
    "hash of nested tuples in fromkeys": doubling("(1,)", "(ns.x, ns.x)", "{{ dict.fromkeys([ns.x]) }}"),
    "hash of nested tuples in": doubling("(1,)", "(ns.x, ns.x)", "{{ ns.x in {} }}"),
    "hash of nested tuples, unique": doubling("(1,)", "(ns.x, ns.x)", "{{ [ns.x] | unique | list }}"),
    "nested lists changed": "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}"
                            "{% for i in [ns.x, ns.y] %}{{ loop.changed(i) }}{% endfor %}",
    "nested lists counted": doubling("[1]", "[ns.x, ns.x]", "{{ [ns.x].count([ns.x[0], ns.x[1]]) }}"),
    "nested lists tested": doubling("[1]", "[ns.x, ns.x]", "{{ ns.x is eq([ns.x[0], ns.x[1]]) }}"),
    "int of hex": BIG.replace("'x'", "'f'") + "{% set n = a | int(0, 16) %}{{ n // (n // 3) }}{{ raise_exception('') }}",
    "adding numbers": "{% set ns = namespace(x=2 ** 4000) %}{% for i in range(90000) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "subtracting numbers": "{% set ns = namespace(x=2 ** 4000) %}{% for i in range(90000) %}{% set ns.x = ns.x - (0 - ns.x) %}{% endfor %}",
    "many numbers": "{% set ns = namespace(x=[], n=2 ** 4000) %}{% for i in range(99999) %}{% for j in range(99999) %}{% set ns.n = ns.n - 1 %}{% set ns.x = [ns.n, ns.x] %}"
                    "{% endfor %}{% endfor %}",
    "many texts": "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% for j in range(99999) %}{% set ns.x = ['\U0001f600' * 63, ns.x] %}{% endfor %}{% endfor %}",
    "many lists": "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% for j in range(99999) %}{% set ns.x = [[1] * 7, [1] * 7, ns.x] %}{% endfor %}{% endfor %}",
    "many dicts": "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% for j in range(99999) %}{% set ns.x = [{}, {'a': {}}, ns.x] %}{% endfor %}{% endfor %}",
    "many namespaces": "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% for j in range(99999) %}{% set ns.x = [namespace(a=1), ns.x] %}{% endfor %}{% endfor %}",
    "many macros": "{% for i in range(99999) %}{% for j in range(99999) %}{% macro m() %}{% endmacro %}{% endfor %}{% endfor %}",
    "splits kept": "{% set a = 'x,' * 40000 %}{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [a.split(','), ns.x] %}{% endfor %}",
    "lists of texts kept": "{% set a = 'xy' * 40000 %}{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [a | list, ns.x] %}{% endfor %}",
    "joined by loops": "{% set ns = namespace(x='') %}{% for i in range(99999) %}{% set ns.x = ns.x ~ 'xxxxxxxxxxxxxxxx' * 60 %}{% endfor %}",
    "call block tree": "{% macro m(n) %}{% if n %}{{ caller() }}{% call m(n - 1) %}{{ caller() }}{% endcall %}{% endif %}{% endmacro %}{% call m(90) %}x{% endcall %}"
                       "{% for i in range(99999) %}{% call m(30) %}x{% endcall %}{% endfor %}",
    "self import": "{% import self as x %}{{ x }}",
    "include itself": "{% include self %}",
    "wordwrap": "{{ ('x ' * 1000000) | wordwrap(1) }}", "xmlattr": "{{ {'a': 1} | xmlattr }}", "urlize": "{{ 'x' | urlize }}",
    "escape grows": "{{ ('<' * 4000000) | e }}",
    "urlencode grows": "{{ ('é' * 3000000) | urlencode }}",
    "json grows": "{{ ('é' * 3000000) | tojson(ensure_ascii=true) }}",
    "replace by deletion": "{% for i in range(99999) %}{% set x = ('ab' * 1000000).replace('b', '') %}{% endfor %}",
    "percent flags": "{{ ('%' ~ ' ' * 4000000) % 1 }}",
    "braces": "{{ ('{' * 4000000).format(1) }}",
    "truncate": "{% for i in range(99999) %}{% set x = ('ab ' * 1000000) | truncate(1000) %}{% endfor %}",
    "title": "{{ ('a ' * 2000000) | title | length }}{{ raise_exception('') }}",
    "many variables": "".join(f"{{% set a{i} = {i} %}}" for i in range(12_000)) + "{{ raise_exception('') }}",
    "many macros in the source": "".join(f"{{% macro a{i}(x, y=1) %}}{{{{ x }}}}{{% endmacro %}}" for i in range(5_000)) + "{{ raise_exception('') }}",
    "many outputs": "{{ a }}" * 35_000 + "{{ raise_exception('') }}",
    "many filters": "{{ a | trim | upper }}" * 11_000 + "{{ raise_exception('') }}",
    "many slices": "{{ a[1:2] ~ b in c }}" * 11_000 + "{{ raise_exception('') }}",
    "many ifs": "{% if a == 'b' %}x{% endif %}" * 8_000 + "{{ raise_exception('') }}",
    "many loops": "{% for i in a %}x{% endfor %}" * 8_000 + "{{ raise_exception('') }}",
    "long list": "{{ [" + "1," * 120_000 + "] }}{{ raise_exception('') }}",
    "long dict": "{{ {" + "1:1," * 60_000 + "} }}{{ raise_exception('') }}",
    "long call": "{{ a(" + "1," * 120_000 + ") }}",
    "long number": "{{ " + "9" * 200_000 + " }}",
    "long float": "{{ 1e" + "9" * 200_000 + " }}{{ raise_exception('') }}",
    "long name": "{{ " + "a" * 200_000 + ".b }}",
    "blanks": " " * 250_000 + "{{ raise_exception('') }}",
    "blanks in a tag": "{{" + " " * 250_000 + "raise_exception('') }}",
    "lines": "\n" * 250_000 + "{{ raise_exception('') }}",
    "blanks before blocks": ("   " * 40 + "{% set a = 1 %}\n") * 1800 + "{{ raise_exception('') }}",
    "unclosed blocks": "{%" * 120_000, "quotes": "{{ " + "'a'" * 80_000 + " }}", "backslashes": "{{ '" + "\\\\" * 120_000 + "' }}{{ raise_exception('') }}",
    "raw": "{% raw %}" + "{{" * 120_000, "comments": "{# " + "-" * 250_000, "nested raw": "{% raw %}" * 25_000,
}


def test_there_are_many_of_them():
    assert len(EXPENSIVE) >= 180


# Half a second each and more of a kind that is there already.
SLOW = {n for n in EXPENSIVE if n.startswith(("nested lists", "hash of nested", "loops of", "many "))} | {"namespace in itself", "map of sorts", "nested dicts"}
SLOW |= {"bodies of elifs", "bodies of constants", "bodies of sets", "conditions", "macro of attributes", "tests of loops that are small"}
SLOW -= {"nested lists as json", "hash of nested tuples in get", "loops of max", "many dicts"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.long) if n in SLOW else n for n in EXPENSIVE])
@pytest.mark.timeout(60)  # a hang ends here; nothing is timed
def test_expensive_templates_are_refused(name):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TemplateError):
        render(EXPENSIVE[name])
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 256 << 10  # KB


def test_a_refusal_leaves_the_template_usable():
    template = chat.Template("{% for i in range(n) %}{% for j in range(n) %}{% endfor %}{% endfor %}ok")
    with pytest.raises(TemplateError, match="steps"):
        template.render(HELLO, variables={"n": 99_999})
    assert template.render(HELLO, variables={"n": 10}) == "ok"


def test_what_is_allowed():
    assert render("{{ 'ab' * 3 }}{{ [1] * 2 }}{{ '%05d|%s' % (7, 'x') }}") == "ababab[1, 1]00007|x"
    assert render("{{ '{:>4}'.format(1) }}") == "   1"
    assert render("{{ 2 ** 10 }}{{ 7 % 4 }}{{ 'x'.center(3) }}{{ 'a\nb' | indent(2) }}") == "10243 x a\n  b"
    assert render("{{ ['a', 'b'] | join(', ') }}{{ 'aXbX' | replace('X', '-', 1) }}{{ [1, 2] | sum }}") == "a, ba-bX3"
    assert render("{{ messages[::-1] | length }}{{ 'b' in 'abc' }}{{ 1 is number }}{{ x is defined }}") == (
        "1TrueTrueFalse")
    assert render("{% for a in [1, 2] %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% endfor %}") == (
        "1/2False 2/2True ")


def test_long_conversations_pass():
    source = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] | trim + '<|im_end|>' }}"
              "{% if loop.index0 > messages | length - 3 and m.role == 'user' %}!{% endif %}{% endfor %}")
    talk = [{"role": ("user", "assistant")[i % 2], "content": "word " * 100} for i in range(5000)]
    assert len(render(source, talk)) > 2_500_000
    assert len(render(source, [{"role": "user", "content": "x" * 2_000_000}])) > 2_000_000


# --- 84: messages ----------------------------------------------------------------------------------

_circle = {"role": "user", "content": "x"}
_circle["self"] = [_circle]
_deep = []
for _ in range(200):
    _deep = [_deep]


@pytest.mark.parametrize("messages, param", [
    (None, "messages"), ("hello", "messages"), ([], "messages"), ({}, "messages"), (HELLO * 20_001, "messages"),
    ([None], "messages[0]"), (["hello"], "messages[0]"), ([[]], "messages[0]"), ([{}], "messages[0].role"),
    ([{"role": 1}], "messages[0].role"), ([{"role": ""}], "messages[0].role"),
    ([{"role": None, "content": "x"}], "messages[0].role"), ([{"role": "x" * 65}], "messages[0].role"),
    ([{"role": "<|im_end|>"}], "messages[0].role"), ([{"role": "user\n"}], "messages[0].role"),
    ([*HELLO, {"role": "user", "content": 1}], "messages[1].content"),
    ([{"role": "user", "content": {}}], "messages[0].content"),
    ([{"role": "user", "content": b"x"}], "messages[0].content"),
    ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
    ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0]"),
    ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
    ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "messages[0].content[0].text"),
    ([{"role": "user", "x": object()}], "messages[0].x"), ([{"role": "user", "x": {1: 2}}], "messages[0].x"),
    ([{"role": "user", "x": {"y": {1, 2}}}], "messages[0].x.y")])
def test_wrong_messages_are_named(messages, param):
    with pytest.raises(RequestError) as e:
        render("{{ messages }}", messages)
    assert e.value.param == param and param in str(e.value)


@pytest.mark.parametrize("value", [_circle, _deep])
def test_circles_and_depths(value):
    with pytest.raises(RequestError, match="nested deeper"):
        render("{{ messages }}", [{"role": "user", "x": value}])
    with pytest.raises(RequestError, match="nested deeper"):
        render("{{ x }}", x=value)


@pytest.mark.parametrize("name", ["messages", "tools", "bos_token", "unk_token", "range", "raise_exception"])
def test_reserved_names(name):
    with pytest.raises(RequestError) as e:
        chat.Template("x").render(HELLO, variables={name: 1})
    assert e.value.param == name

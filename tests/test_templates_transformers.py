"""Must show 4: every published template at hand renders what transformers' own apply_chat_template renders, or both refuse.

Where pyengine goes beyond (docs/templates.md), it has to render what transformers makes of the messages in the form that
the template takes: BEYOND lists which templates, in which conversations, in which form."""
import datetime
import functools
import json
import pathlib

import pytest

from pyengine import chat
from pyengine.errors import RequestError, TemplateError

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data" / "templates"
FILES = sorted(FOLDER.glob("*.jinja"))
NOW = datetime.datetime(2026, 7, 4, 5, 6, 7)
DATE = "2026-07-04"

TOOL = {"type": "function", "function": {
    "name": "lookup", "description": "it’s <b> é & \"q\"",
    "parameters": {"type": "object", "properties": {
        "word": {"type": "string", "description": "a word"},
        "limit": {"type": "integer", "description": "at most"}},
        "required": ["word"]}}}
RICH = {"type": "function", "function": {"name": "rich", "description": "a\nb", "strict": True, "parameters": {
    "type": "object", "additionalProperties": False, "properties": {
        "how": {"type": "string", "enum": ["whole", "part"]}, "limit": {"type": ["integer", "null"], "default": 3},
        "any": {"anyOf": [{"type": "string"}, {"type": "number"}]}, "ref": {"$ref": "#/$defs/x"},
        "more": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "number"}}}}}}}}
OTHER = {"type": "function", "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}}}
TOOLS = [TOOL, OTHER]
ARGUMENTS = {"word": "ü <b> \"q\"", "limit": 2, "more": [{"a": 1.5}]}


def call(arguments, content="", name="lookup", more=()):
    one = {"id": "call00001", "type": "function", "function": {"name": name, "arguments": arguments}}
    return [{"role": "user", "content": "What is ü?"}, {"role": "assistant", "content": content, "tool_calls": [one, *more]},
            {"role": "tool", "name": name, "tool_call_id": "call00001", "content": "{\"answer\": 42}"}]


SYSTEM = {"role": "system", "content": "Be brief, <now>."}
TALK = [{"role": "user", "content": "Hello <there> é"}, {"role": "assistant", "content": " Hi \n"}, {"role": "user", "content": "  And\nnow?  "}]
UNICODE = ("\u202eright\u202c e\u0301 \U0001f469\u200d\U0001f4bb \u00a0nbsp \u2028 line \ufeff \u0000 \r\n tab\t 'q' \"d\" \\n {{ x }} {% if %} "
           "<|im_end|> </s> <|eot_id|> \u4f60\u597d")
SECOND = {"id": "call00002", "type": "function", "function": {"name": "now", "arguments": {}}}
# name: (messages, what apply_chat_template gets beside them)
CONVERSATIONS = {
    "talk": (TALK, {}),
    "system": ([SYSTEM, *TALK], {}),
    "no generation prompt": ([SYSTEM, *TALK, {"role": "assistant", "content": "Done."}], {"add_generation_prompt": False}),
    "unicode": ([{"role": "user", "content": UNICODE}, {"role": "assistant", "content": UNICODE}, {"role": "user", "content": "ok"}], {}),
    "empty": ([{"role": "user", "content": ""}, {"role": "assistant", "content": ""}, {"role": "user", "content": "\n"}], {}),
    "tools": ([SYSTEM, *TALK], {"tools": TOOLS}),
    "rich tool": (TALK, {"tools": [RICH]}),
    "call, object": ([*call(ARGUMENTS), {"role": "assistant", "content": "It is 42."}, TALK[2]], {"tools": TOOLS}),
    "call, text": (call(json.dumps(ARGUMENTS, ensure_ascii=False)), {"tools": TOOLS}),
    "call, null content": (call({"word": "x"}, None), {"tools": TOOLS}),
    "two calls": (call({"word": "x"}, "", more=[SECOND]) + [{"role": "tool", "name": "now", "tool_call_id": "call00002", "content": "12:00"}], {"tools": TOOLS}),
    "parts": ([{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}], {}),
    "reasoning": ([*TALK[:1], {"role": "assistant", "reasoning_content": "Hm, <so>.", "content": "Hi"}, TALK[2]], {}),
    "reasoning, other name": ([*TALK[:1], {"role": "assistant", "reasoning": "Hm.", "content": "Hi"}, *call({"word": "x"})], {"tools": TOOLS}),
    "think in content": ([*TALK[:1], {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nHi"}, TALK[2]], {}),
    "continue": ([TALK[0], {"role": "assistant", "content": "It is, of course, "}], {"continue_final_message": True, "add_generation_prompt": False}),
    "variables": ([SYSTEM, TALK[0]], {"enable_thinking": False, "thinking": False, "reasoning_effort": "low"}),
    "documents": ([TALK[0]], {"documents": [{"doc_id": "1", "title": "A <b>", "text": "é"}]}),
    "developer": ([{"role": "developer", "content": "Be brief."}, TALK[0]], {}),
}


def asked(path):
    """{name: (messages, keywords)} for one template; two take nothing without tools, one wants the tools under its own name."""
    base = {"tools": TOOLS} if "tool_use" in path.stem else {"functions": "[]", "datetime": DATE} if "firefunction" in path.stem else {}
    return {name: (messages, {**base, **given}) for name, (messages, given) in CONVERSATIONS.items()}


# --- forms that templates take, and those that need them -------------------------------------------------


def per_message(change):
    return lambda messages: [change(m) for m in messages]


def joined(m):
    return {**m, "content": "\n".join(p["text"] for p in m["content"])} if isinstance(m.get("content"), list) else m


def with_arguments(form):
    def change(m):
        if not m.get("tool_calls"):
            return m
        return {**m, "tool_calls": [{**c, "function": {**c["function"], "arguments": form(c["function"]["arguments"])}} for c in m["tool_calls"]]}

    return per_message(change)


FORMS = {
    "objects": with_arguments(lambda a: json.loads(a) if isinstance(a, str) else a),
    "texts": with_arguments(lambda a: a if isinstance(a, str) else json.dumps(a, ensure_ascii=False)),
    "joined": per_message(joined),
    "filled": per_message(lambda m: {**m, "content": m.get("content") or ""}),
    "null": per_message(lambda m: {**m, "content": m.get("content") or None} if m.get("tool_calls") else m),
    "as system": per_message(lambda m: {**m, "role": "system"} if m["role"] == "developer" else m),
}
# (conversation, form): templates of which pyengine makes what transformers makes of the messages in that form. Beside these,
# "developer" is "system" to every template that does not have the word.
BEYOND = {
    ("call, text", "objects"): (
        "Apriel-1.6-15b-Thinker-fixed ByteDance-Seed-OSS CohereForAI-c4ai-command-r-plus-tool_use GLM-4.6 MiniMax-M1 MiniMax-M3 "
        "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 Qwen-QwQ-32B Qwen3.5-4B Spark2.5 deepseek-ai-DeepSeek-V3.1 deepseek-ai-DeepSeek-V4-Flash-0731 "
        "meetkai-functionary-medium-v3.1 meta-llama-Llama-3.1-8B-Instruct meta-llama-Llama-3.3-70B-Instruct moonshotai-Kimi-K2 "
        "openai-gpt-oss-120b poolside-Laguna-S-2.1 poolside-Laguna-XS.2 unsloth-Apriel-1.5"),
    ("call, text", "null"): "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    ("parts", "joined"): (
        "ByteDance-Seed-OSS CohereForAI-c4ai-command-r-plus-tool_use GigaChat3-10B-A1.8B HuggingFaceTB-SmolLM3-3B LFM2-8B-A1B "
        "LFM2.5-Instruct NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use Qwen-QwQ-32B Qwen-Qwen3-0.6B "
        "deepseek-ai-DeepSeek-R1-Distill-Llama-8B deepseek-ai-DeepSeek-V3.1 deepseek-ai-DeepSeek-V4-Flash-0731 "
        "fireworks-ai-llama-3-firefunction-v2 ibm-granite-granite-3.3-2B-Instruct llama-cpp-deepseek-r1 meetkai-functionary-medium-v3.1 "
        "meta-llama-Llama-3.1-8B-Instruct meta-llama-Llama-3.3-70B-Instruct openai-gpt-oss-120b poolside-Laguna-S-2.1 poolside-Laguna-XS.2 "
        "upstage-Solar-Open-100B"),
    ("call, null content", "filled"): "LFM2-8B-A1B LFM2.5-Instruct Qwen-QwQ-32B Qwen-Qwen3-0.6B ibm-granite-granite-3.3-2B-Instruct",
    ("call, null content", "texts+null"): "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    ("call, object", "texts+null"): "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    ("two calls", "texts+null"): "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    ("reasoning, other name", "texts+null"): "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


@functools.cache
def tokenizer():
    transformers = pytest.importorskip("transformers")
    import tokenizers

    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(tokenizers.models.BPE()), **SPECIAL)


def theirs(source, messages, forms="", **given):
    """What transformers makes of the messages in some form, or its refusal."""
    messages = functools.reduce(lambda m, form: FORMS[form](m), forms.split("+") if forms else [], messages)
    given = {"add_generation_prompt": True, **given}
    try:
        if "null" in forms:        # apply_chat_template would drop it
            from transformers.utils.chat_template_utils import render_jinja_template

            return render_jinja_template([messages], chat_template=source, **SPECIAL, **given)[0][0]
        return tokenizer().apply_chat_template(messages, chat_template=source, tokenize=False, **given)
    except Exception as e:
        return e


def ours(template, messages, tools=None, documents=None, continue_final_message=False, add_generation_prompt=True, **variables):
    try:
        return template.render(messages, add_generation_prompt, variables, tools=tools, documents=documents,
                               continue_final_message=continue_final_message)
    except (TemplateError, RequestError) as e:
        return e


@pytest.fixture(autouse=True)
def stopped_clock(monkeypatch):
    from transformers.utils import chat_template_utils

    from pyengine import metered

    class Stopped(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return NOW

    for module in (metered, chat_template_utils):
        monkeypatch.setattr(module, "datetime", Stopped)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_same_text_as_transformers_or_both_refuse(path):
    source, rendered = path.read_text(encoding="utf-8"), 0
    template = chat.Template(source, SPECIAL)
    for name, (messages, given) in asked(path).items():
        forms = next((form for (n, form), stems in BEYOND.items() if n == name and path.stem in stems.split()), "")
        if name == "developer" and "developer" not in source:
            forms = "as system"
        want, got = theirs(source, messages, forms, **given), ours(template, messages, **given)
        if isinstance(want, str):
            assert got == want, name
            assert forms == "" or want != theirs(source, messages, **given), name       # BEYOND lists nothing in vain
            rendered += 1
        else:
            assert isinstance(got, TemplateError) and str(want)[:60] in str(got) or isinstance(want, RecursionError), (name, want, got)
    assert rendered >= 12


def test_templates_were_found_where_the_data_is():
    if not FOLDER.exists():
        pytest.skip("shared test data are absent")
    assert len(FILES) >= 35


SMALL = {
    "scope of generation": "{% set x = 1 %}{% for m in messages %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}{% endfor %}",
    "tools are none": "{{ tools is none }}{{ tools is defined }}{{ documents is none }}{{ x is defined }}{{ unk_token is defined }}{{ unk_token }}",
    "nulls are left out": "{{ messages[0].name is defined }}{{ messages[0] | length }}{% for k in messages[0] %}{{ k }}{% endfor %}",
    "json": "{{ messages | tojson }}{{ messages | tojson(indent=1) }}{{ [1, 'é'] | tojson(ensure_ascii=True, separators=(',', ':'), sort_keys=True) }}",
    "namespace": "{% set ns = namespace(a=1) %}{% for m in messages %}{% set ns.a = ns.a + 1 %}{% endfor %}{{ ns.a }}{{ ns.b is defined }}",
    "namespace of _": "{% set ns = namespace(_a=1) %}{{ ns._a }}",
    "dict": "{% set d = dict(a=1, b=2) %}{{ d }}{{ dict.fromkeys(['x']) }}{{ d.copy() | items | list }}",
    "macros": "{% macro m(a, b=2) %}[{{ a }}{{ b }}{{ kwargs.c }}{{ varargs }}]{% endmacro %}{{ m(1) }}{{ m(1, 3, 4, c=5) }}{% call m(0) %}{% endcall %}",
    "loop": "{% for m in messages %}{{ loop.index }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.previtem is defined }}{{ loop.cycle('a', 'b') }}"
            "{% if loop.index > 1 %}{% continue %}{% endif %}{{ loop.changed(m.role) }}{% else %}none{% endfor %}",
    "white space": "  {% if true %}\n  a\n  {% endif %}\n {{- ' b ' -}} \n c {%- set x = 1 %}\n{# c #}\n  {# d #}  e\n{%+ if true %} f{% endif +%}\ng\n",
    "undefined": "[{{ x }}{{ messages[0].x }}{{ messages[9] }}{{ x | default('d') }}{{ x | length }}{{ x == none }}]",
    "undefined attribute": "{{ x.y }}",
    "undefined added": "{{ 'a' + x }}",
    "slices": "{{ messages[1:] | length }}{{ messages[::-1][0].role }}{{ 'abc'[-2:] }}{{ 'abc'[5] }}{{ (1, 2)[0] }}",
    "filters": "{{ messages | map(attribute='role') | join(',') }}{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ ' x ' | trim }}"
               "{{ [3, 1] | sort | first }}{{ {'b': 1, 'a': 2} | dictsort }}{{ 'a b' | title | replace('A', 'x') | upper }}{{ 3.7 | int }}{{ '5' | float }}"
               "{{ [1, 2, 3] | batch(2) | list }}{{ [[1, 2]] | sum(start=0, attribute='0') }}{{ 'x\ny' | indent(2, true) }}{{ [1, 1] | unique | list }}"
               "{{ messages | groupby('role') | length }}{{ '<' | e }}{{ 'a' | string | safe }}{{ '%s-%d' | format('a', 1) }}{{ 1 | abs }}{{ x | d(1) }}"
               "{{ {'a': none} | items | list }}{{ [1, 2] | reject('odd') | list }}{{ 'abcdef' | truncate(4, true) }}{{ 'a b' | wordcount }}",
    "methods": "{{ 'a,b'.split(',') }}{{ 'abc'.startswith('a') }}{{ ' a '.strip() }}{{ 'a'.upper() }}{{ 'aXb'.replace('X', '-') }}{{ 'a{}'.format(1) }}"
               "{{ {'a': 1}.items() | list }}{{ {'a': 1}.get('b', 2) }}{{ 'abc'.find('c') }}{{ 'a-b'.partition('-') }}{{ 'aaa'.count('a') }}",
    "tests": "{{ 1 is number }}{{ 'a' is string }}{{ {} is mapping }}{{ [] is iterable }}{{ [] is sequence }}{{ true is boolean }}{{ 2 is even }}{{ 1 is in [1] }}"
             "{{ none is none }}{{ 1 is eq 1 }}{{ 4 is divisibleby 2 }}{{ messages is not string }}{{ false is false }}",
    "numbers": "{{ 7 // 2 }}{{ 7 / 2 }}{{ 2 ** 10 }}{{ 7 % 3 }}{{ -1 }}{{ 1.0 }}{{ 1e3 }}{{ 10 ** 2 > 99 and not false }}{{ 'a' ~ 1 ~ none }}{{ 1 if false }}",
    "date": "{{ strftime_now('%d %b %Y') }}{{ strftime_now('%A %H:%M') }}",
    "its own words": "{% if messages %}{{ raise_exception('No, ' ~ messages[0].role) }}{% endif %}",
    "append": "{% set x = [] %}{% set _ = x.append(1) %}{{ x }}",
    "block set": "{% set x %} a {{ 1 }} {% endset %}[{{ x }}]{% set y | upper %}b{% endset %}{{ y }}{% filter upper %}c{% endfilter %}{% with z = 1 %}{{ z }}{% endwith %}",
    "unknown tag": "{% audio %}",
    "broken": "{% if %}",
}


@pytest.mark.parametrize("name", SMALL)
def test_small_templates_render_as_transformers_renders_them(name):
    messages = [{"role": "user", "content": "a é", "name": None}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    want, got = theirs(SMALL[name], messages), ours(chat.Template(SMALL[name], SPECIAL), messages)
    assert got == want if isinstance(want, str) else isinstance(got, TemplateError), (want, got)


@pytest.mark.parametrize("last, source", [
    ("Hello, ", "{% for m in messages %}[{{ m.content }}]{% endfor %}"), ("Hello, ", "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}"),
    ("", "{% for m in messages %}[{{ m.content }}]{% endfor %}"), ("x", "nothing of it"), ("x", "{{ messages[0].content }}"),
    ([{"type": "text", "text": "a"}, {"type": "text", "text": "b "}], "{% for m in messages %}[{% if m.content is string %}{{ m.content }}{% else %}"
                                                                     "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}]{% endfor %}")])
def test_continuing_as_transformers_does(last, source):
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": last}]
    given = {"continue_final_message": True, "add_generation_prompt": False}
    want, got = theirs(source, messages, **given), ours(chat.Template(source), messages, **given)
    assert got == want if isinstance(want, str) else isinstance(got, RequestError), (want, got)

"""Messages to prompt: the chat templates of a model file, rendered as transformers renders them (docs/templates.md).

Not a parser of answers, and no home for built-in formats: a file without a template has none.
jinja2 is imported at the first rendering (sandbox.py). May be imported by stream, llama, serve, cli, compat.
"""
import json
import re

from .errors import GGUFError, RequestError, TemplateError

MAX_MESSAGES = 20_000
_MAX_DEPTH = 64
_MAX_NODES = 1_000_000
MAX_BITS = 2048                        # of an integer; a body's have at most 400 digits
_PROBE_STEPS = 50_000                  # the largest published template takes 2,000 for one message
_ROLE = re.compile(r"[\w .:-]{1,64}")
_ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function"))
# What the file calls a token, and what templates call it.
_SPECIAL = (("unknown", "unk_token"), ("padding", "pad_token"), ("seperator", "sep_token"), ("cls", "cls_token"),
            ("mask", "mask_token"))
RESERVED = frozenset(("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "bos_token",
                       "eos_token", "raise_exception", "strftime_now", "range", "dict", "namespace",
                       *(name for _, name in _SPECIAL)))
# Reasoning marks in an assistant's earlier words are that model's own; templates look for them to cut it out.
_THINKING = ("<think>", "</think>", "<thinking>", "</thinking>", "[THINK]", "[/THINK]", "<seed:think>",
             "</seed:think>")
_REASONING = ("reasoning_content", "thinking", "reasoning")
_ASKS_FOR_NULL = re.compile(r"content(?:['\"]\])?\s+is\s+(?:not\s+)?none\b")
# Code points that are no characters (Unicode 23.7) never occur in proper text; one of them marks texts of users.
_MARKS = [chr(c) for c in (*range(0xFDD0, 0xFDF0), *(plane + 0xFFFE for plane in range(0x10000, 0x110000, 0x10000)))]


# --- the templates of a file -----------------------------------------------------------------------------


def from_gguf(gguf, tokenizer):
    """{name: Template} of the file, the one without a name as "default"; empty where it has none. A template that
    is no text or does not compile says so when it is rendered, and hinders nothing else."""
    special = special_tokens(gguf, tokenizer)
    key = "tokenizer.chat_template"
    templates = {"default": _of_key(gguf, key, special)} if key in gguf else {}
    for name in sorted(k for k in gguf.keys() if k.startswith(key + ".")):
        templates.setdefault(name[len(key) + 1:], _of_key(gguf, name, special))
    return templates


def _of_key(gguf, key, special):
    try:
        return Template(gguf.get_str(key), special)
    except GGUFError as e:
        return Template("", special, failure=str(e))


def special_tokens(gguf, tokenizer):
    """{"bos_token": "<s>", ...}. A token that the file does not have is undefined in templates, as it would be where
    transformers' special_tokens_map has none."""
    found = {"bos_token": tokenizer.bos, "eos_token": tokenizer.eos}
    for key, name in _SPECIAL:
        key = f"tokenizer.ggml.{key}_token_id"
        if key in gguf:
            found[name] = gguf.get_int(key, lo=-1, hi=(1 << 32) - 1)
    return {name: tokenizer.piece(i, special=True).decode("utf-8", "replace") for name, i in found.items()
            if i is not None and 0 <= i < tokenizer.n_vocab}


def choose(templates, name=None, tools=None, documents=None, variables=None):
    """The Template to use, as transformers chooses: by name, "tool_use" where tools are given, else "default".
    RequestError for tools, documents or variables that it would not read."""
    template = _chosen(templates, name, tools)
    if not isinstance(variables, (dict, type(None))):
        raise RequestError(f"template_variables: found {type(variables).__name__}, expected an object", param="template_variables")
    for what in variables or ():
        where = f"template_variables.{str(what)[:100]}"
        if what in RESERVED:
            raise RequestError(f"{where}: is not the caller's to set", param=where)
        if what not in template.reads:
            raise RequestError(f"{where}: the model's chat template does not read it", param=where)
    for what, value in (("tools", tools), ("documents", documents)):
        if value and what not in template.reads:
            raise RequestError(f"{what}: the model's chat template does not read them", param=what)
    return template


def _chosen(templates, name, tools):
    if name is not None:
        if not isinstance(name, str) or name not in templates:
            raise RequestError(f"chat_template: found {_shown(name)}, expected the name of one of the file's templates: "
                               f"{', '.join(templates)}", param="chat_template")
        return templates[name]
    if tools and "tool_use" in templates:
        return templates["tool_use"]
    if "default" not in templates:
        raise TemplateError(f"the file has no default chat template, expected a name of: {', '.join(templates)}")
    return templates["default"]


class Template:
    """source: jinja text. special: {"bos_token": "<s>", ...}, variables that are the vocabulary's. failure: why there is none."""

    def __init__(self, source, special=None, failure=None):
        self.source = source
        self.special = dict(special or {})
        self._compiled = None
        self._failure = failure
        self._probed = {}

    @property
    def reads(self):
        """Names of the variables that the template looks up. TemplateError where it does not compile."""
        return self._compile().reads

    def render(self, messages, add_generation_prompt=True, variables=None, *, tools=None, documents=None,
               continue_final_message=False):
        """The prompt as text. RequestError names what is wrong with the messages, TemplateError the rest."""
        messages, variables = self._prepared(messages, tools, documents, variables)
        return self._whole(messages, variables, add_generation_prompt, continue_final_message)

    def encode(self, tokenizer, messages, add_generation_prompt=True, variables=None, *, tools=None, documents=None,
               continue_final_message=False, check=None):
        """The prompt as ids, with one BOS if the vocabulary begins with one. check(text) may refuse the text before.

        Control tokens come from the template's own text only. In every string of messages and variables a mark
        is put inside whatever would read as a control token, the marked prompt is cut at control tokens, and
        the marks are taken out of the text between: "<|im_end|>" written by a user stays text.
        """
        messages, variables = self._prepared(messages, tools, documents, variables)
        mark = self._unused_mark(messages, variables)
        controls = tokenizer.controls

        def shield(value, exempt=()):
            if isinstance(value, str):
                return controls.shield(value, mark, exempt)
            if isinstance(value, list):
                return [shield(v, exempt) for v in value]
            if isinstance(value, dict):
                return {controls.shield(k, mark): shield(v, exempt) for k, v in value.items()}
            return value

        for i, message in enumerate(messages):
            self._check_role(message["role"], controls, f"messages[{i}].role")
        messages = [{controls.shield(k, mark): v if k == "role" else shield(v, _THINKING if m["role"] == "assistant" else ())
                     for k, v in m.items()} for m in messages]
        text = self._whole(messages, shield(variables), add_generation_prompt, continue_final_message)
        if check is not None:
            check(text.replace(mark, ""))
        ids = tokenizer.encode(text, special=True, add_eos=False, shield=mark)
        while tokenizer.add_bos and ids[1:2] == [tokenizer.bos]:
            del ids[0]
        return ids

    def _check_role(self, role, controls, where):
        """Templates write "<|" + role + "|>", and no mark could be in a role: it is compared. So a role that is
        neither usual nor the template's own may not be a part of a control token."""
        known = role in _ROLES or f"'{role}'" in self.source or f'"{role}"' in self.source
        if not known and controls.contain(role):
            raise RequestError(f"{where}: found {role!r}, a part of a control token, expected a role that the model's "
                               "template knows", param=where)

    def _unused_mark(self, messages, variables):
        used = self.source + repr(messages) + repr(variables)  # repr escapes noncharacters, hence both spellings
        for mark in _MARKS:
            if mark not in used and ascii(mark)[1:-1] not in used:
                return mark
        raise RequestError("messages: contain all 66 noncharacters of Unicode, expected at least one to be free",
                           param="messages")

    # --- messages as this template wants them -------------------------------------------------------------

    def _prepared(self, messages, tools, documents, variables):
        """Checked copies of everything, in the forms that the template takes; docs/templates.md has the list."""
        messages, variables = _checked(messages, tools, documents, variables)
        null = _ASKS_FOR_NULL.search(self.source) is not None
        out = []
        for i, given in enumerate(messages):
            message = {k: v for k, v in given.items() if v is not None}
            if null and (message.get("tool_calls") or "content" not in message):
                message["content"] = message.get("content") or None
            if message["role"] == "developer" and "developer" not in self.source:
                message["role"] = "system"
            reasoning = next((message[k] for k in _REASONING if k in message), None)
            if reasoning is not None:
                message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
            content = message.get("content")
            if isinstance(content, list) and not self._writes("parts"):
                message["content"] = _flattened(content, f"messages[{i}].content")
            elif isinstance(content, str) and not self._writes("text") and self._writes("parts"):
                message["content"] = [{"type": "text", "text": content}]
            if isinstance(message.get("tool_calls"), list):
                where = f"messages[{i}].tool_calls"
                message["tool_calls"] = [self._call(c, f"{where}[{j}]") for j, c in enumerate(message["tool_calls"])]
            out.append(message)
        return out, variables

    def _call(self, call, where):
        """A call with its arguments in the form that the template writes out: OpenAI's clients send JSON in a text,
        most templates want an object, some take both and some a text only."""
        holder = call.get("function", call) if isinstance(call, dict) else None
        arguments = holder.get("arguments") if isinstance(holder, dict) else None
        if isinstance(arguments, str) and not self._writes("arguments as text") and self._writes("arguments as object"):
            found = _parsed(arguments)
            where += ".function.arguments" if holder is not call else ".arguments"
            if not isinstance(found, dict):
                raise RequestError(f"{where}: found {_shown(arguments)}, expected JSON of an object, for that is what the "
                                   "model's template writes out", param=where)
            arguments = _Copier().copy(found, where, 0)        # no deeper or larger than what comes as an object
        elif isinstance(arguments, dict) and not self._writes("arguments as object") and self._writes("arguments as text"):
            arguments = json.dumps(arguments, ensure_ascii=False)
        else:
            return call
        holder = {**holder, "arguments": arguments}
        return holder if "function" not in call else {**call, "function": holder}

    def _writes(self, what):
        """Does the template write out contents, or arguments of calls, that come in this form? Tried once."""
        if what not in self._probed:
            messages, tools, good, bad = _PROBES[what]
            if _ASKS_FOR_NULL.search(self.source):
                messages = [{**m, "content": m["content"] or None} for m in messages]
            try:
                text = self._run({"messages": messages, "tools": tools, "add_generation_prompt": False}, _PROBE_STEPS)
            except TemplateError:
                text = ""
            self._probed[what] = all(g in text for g in good) and not any(b in text for b in bad)
        return self._probed[what]

    # --- rendering ----------------------------------------------------------------------------------------

    def _whole(self, messages, variables, add_generation_prompt, open_end):
        """The text of all messages; with open_end it ends where the last one's content does, to be continued."""
        if not open_end:
            return self._render(messages, variables, add_generation_prompt)
        mark = self._unused_mark(messages, variables)
        messages, final = _marked(messages, mark)
        text = self._render(messages, variables, False)
        at = text.rfind(mark)
        if at < 0 or final.strip() not in text:
            raise RequestError("continue_final_message: the model's template does not write out the end of the last message",
                               param="continue_final_message")
        # The blank behind the mark is gone where the template strips contents; then what was before the mark is stripped.
        return text[:at] if text.startswith(" ", at + 1) else text[:at].rstrip()

    def _render(self, messages, variables, add_generation_prompt):
        variables = {**variables, "messages": messages, "add_generation_prompt": bool(add_generation_prompt)}
        try:
            return self._run(variables)
        except TemplateError as e:
            # Half of the published templates add content to a string, and fail where a call of tools has none; some take
            # parts from users only.
            plain = None if e.out_of_budget else _plain(messages)
            if plain is None:
                raise
            try:
                return self._run({**variables, "messages": plain})
            except TemplateError:
                pass
            raise

    def _compile(self):
        from . import sandbox

        if self._failure is not None:
            raise TemplateError(self._failure)
        if self._compiled is None:
            try:
                self._compiled = sandbox.compile_template(self.source)
            except TemplateError as e:
                self._failure = str(e)
                raise
        return self._compiled

    def _run(self, variables, steps=None):
        from . import sandbox

        return sandbox.run(self._compile(), {"tools": None, "documents": None, **self.special, **variables}, steps)


def _probes():
    """{what: (messages, tools, what has to be in their text, what must not)}."""
    word, key = "p1r2o3b4e", "k5e6y7"

    def content(value):
        return [{"role": "user", "content": value}]

    def call(arguments):
        return [{"role": "user", "content": "hello"},
                {"role": "assistant", "content": "", "tool_calls": [{"id": "call00001", "type": "function", "function": {
                    "name": "lookup", "arguments": arguments}}]},
                {"role": "tool", "name": "lookup", "tool_call_id": "call00001", "content": "42"}]

    tools = [{"type": "function", "function": {"name": "lookup", "description": "Looks up.", "parameters": {
        "type": "object", "properties": {"x": {"type": "string", "description": "what"}}, "required": ["x"]}}}]
    return {"text": (content(word), None, [word], []),
            "parts": (content([{"type": "text", "text": word}]), None, [word], ["'type'", '"type"']),
            "arguments as object": (call({key: word}), tools, [key, word], [f"'{key}': '{word}'"]),
            "arguments as text": (call(f'{{"{key}": "{word}"}}'), tools, [f'"{key}"', f'"{word}"'], [f'\\"{key}', f'"{key}\\'])}


_PROBES = _probes()


def _parsed(text):
    if not text.strip():
        return {}                      # what clients send for a call without arguments
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_no_number, parse_float=_number)
    except (ValueError, RecursionError):
        return None


def _object(pairs):
    """JSON that says a name twice, or a number that is none, would reach the model as something else."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is given twice")
    return found


def _no_number(text):
    raise ValueError(f"{text} is not JSON")


def _number(text):
    value = float(text)
    return value if value - value == 0 else _no_number(text)


def _flattened(parts, where):
    for i, part in enumerate(parts):
        if part["type"] != "text":
            raise RequestError(f"{where}[{i}].type: found {part['type'][:40]!r}, but this model's template takes text only",
                               param=f"{where}[{i}].type")
    return "\n".join(part["text"] for part in parts)


def _plain(messages):
    """Messages whose contents are all texts, or None where they are already, or cannot be."""
    out = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            if any(part["type"] != "text" for part in content):
                return None
            content = "\n".join(part["text"] for part in content)
        out.append(message if isinstance(message.get("content"), str) else {**message, "content": content or ""})
    return None if all(a is b for a, b in zip(out, messages)) else out


def _marked(messages, mark):
    """Messages with a mark and a blank behind the last one's text, and that text."""
    last, where = dict(messages[-1]), f"messages[{len(messages) - 1}].content"
    content = last.get("content")
    if isinstance(content, list):
        at = max((i for i, part in enumerate(content) if part["type"] == "text"), default=None)
        final = None if at is None else content[at]["text"]
        if at is not None:
            last["content"] = [*content[:at], {**content[at], "text": final + mark + " "}, *content[at + 1:]]
    else:
        final = content
        last["content"] = f"{final}{mark} "
    if final is None:
        raise RequestError(f"{where}: has no text, expected one that continue_final_message can go on with", param=where)
    return [*messages[:-1], last], final


# --- what may come in --------------------------------------------------------------------------------


def _checked(messages, tools, documents, variables):
    """Copies made of plain lists, dicts, strings, numbers and None; RequestError names what is none of them."""
    if not isinstance(messages, (list, tuple)):
        raise RequestError(f"messages: found {type(messages).__name__}, expected a list", param="messages")
    if not 0 < len(messages) <= MAX_MESSAGES:
        raise RequestError(f"messages: found {len(messages)}, expected 1 to {MAX_MESSAGES}", param="messages")
    copier = _Copier()
    out = []
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        if not isinstance(message, dict):
            raise RequestError(f"{where}: found {type(message).__name__}, expected an object", param=where)
        role = message.get("role")
        if not isinstance(role, str) or not _ROLE.fullmatch(role):
            raise RequestError(f"{where}.role: found {_shown(role)}, expected a short word", param=f"{where}.role")
        _check_content(message.get("content"), f"{where}.content")
        out.append(copier.copy(message, where, 0))
    for name in variables or ():
        if name in RESERVED:
            raise RequestError(f"{name}: a name that templates use for something else", param=name)
    variables = {name: copier.copy(value, name, 0) for name, value in (variables or {}).items()}
    for name, value in (("tools", tools), ("documents", documents)):
        if value is None:
            continue
        if not isinstance(value, (list, tuple)):
            raise RequestError(f"{name}: found {type(value).__name__}, expected a list", param=name)
        for i, item in enumerate(value):
            if not isinstance(item, dict):
                raise RequestError(f"{name}[{i}]: found {_shown(item)}, expected an object", param=f"{name}[{i}]")
        variables[name] = copier.copy(value, name, 0)
    return out, variables


def _check_content(content, where):
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, (list, tuple)):
        raise RequestError(f"{where}: found {type(content).__name__}, expected a string, a list of parts or null",
                           param=where)
    for i, part in enumerate(content):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise RequestError(f"{where}[{i}]: found {_shown(part)}, expected an object with a type",
                               param=f"{where}[{i}]")
        if part["type"] == "text" and not isinstance(part.get("text"), str):
            raise RequestError(f"{where}[{i}].text: found {_shown(part.get('text'))}, expected a string",
                               param=f"{where}[{i}].text")


def _shown(value):
    return repr(value)[:60] if isinstance(value, (str, int, float, type(None))) else type(value).__name__


class _Copier:
    def __init__(self):
        self._left = _MAX_NODES

    def copy(self, value, where, depth):
        self._left -= 1
        if self._left < 0:
            raise RequestError(f"{where}: more than {_MAX_NODES} values in all, expected fewer", param=where)
        if depth > _MAX_DEPTH:
            where = where[:100]
            raise RequestError(f"{where}...: nested deeper than {_MAX_DEPTH}", param=where)
        if value is None or type(value) in (str, bool, float):
            return value
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise RequestError(f"{where}: found an integer of {value.bit_length()} bits, expected at most {MAX_BITS}", param=where)
        for plain in (str, int, float):    # of their subclasses the plain value: methods of others are nothing for a template
            if isinstance(value, plain):
                return getattr(plain, f"__{plain.__name__}__")(value)
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    raise RequestError(f"{where}: found the key {_shown(key)}, expected strings as keys", param=where)
            return {str(k): self.copy(v, f"{where}.{k}"[:200], depth + 1) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.copy(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(value)]
        raise RequestError(f"{where}: found {type(value).__name__}, expected what JSON has", param=where)

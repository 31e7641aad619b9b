"""Messages to prompt: the chat template of a model file, rendered as transformers renders it.

Not a parser of answers, and no home for built-in formats: a file without a template has none.
jinja2 is imported at the first rendering (sandbox.py). May be imported by stream, llama, serve, cli, compat.
"""
import re

from .errors import RequestError, TemplateError

MAX_MESSAGES = 20_000
_MAX_DEPTH = 64
_MAX_NODES = 1_000_000
_ROLE = re.compile(r"[\w .:-]{1,64}")
RESERVED = frozenset(("messages", "add_generation_prompt", "bos_token", "eos_token", "raise_exception",
                       "strftime_now", "range", "dict", "namespace"))
# Reasoning marks in an assistant's earlier words are that model's own; templates look for them to cut it out.
_THINKING = ("<think>", "</think>", "<thinking>", "</thinking>", "[THINK]", "[/THINK]", "<seed:think>",
             "</seed:think>")
# Code points that are no characters (Unicode 23.7) never occur in proper text; one of them marks texts of users.
_MARKS = [chr(c) for c in (*range(0xFDD0, 0xFDF0), *(plane + 0xFFFE for plane in range(0x10000, 0x110000, 0x10000)))]


def from_gguf(gguf, tokenizer):
    """The file's Template, or None where it has none. A template that does not compile says so when rendered."""
    if "tokenizer.chat_template" not in gguf:
        return None
    return Template(gguf.get_str("tokenizer.chat_template"), _text(tokenizer, tokenizer.bos),
                    _text(tokenizer, tokenizer.eos))


def _text(tokenizer, token):
    return "" if token is None else tokenizer.piece(token, special=True).decode("utf-8", "replace")


class Template:
    """source: jinja text. bos_text, eos_text: what the template sees as bos_token and eos_token."""

    def __init__(self, source, bos_text="", eos_text=""):
        self.source = source
        self.bos_text = bos_text
        self.eos_text = eos_text
        self._compiled = None
        self._failure = None
        self._parts = None

    def render(self, messages, /, add_generation_prompt=True, **variables):
        """The prompt as text. RequestError names what is wrong with the messages, TemplateError the rest."""
        return self._render(*_checked(messages, variables), add_generation_prompt)

    def encode(self, tokenizer, messages, add_generation_prompt=True, check=None, /, **variables):
        """The prompt as ids, with one BOS if the vocabulary begins with one. check(text) may refuse the text before.

        Control tokens come from the template's own text only. In every string of messages and variables a mark
        is put inside whatever would read as a control token, the marked prompt is cut at control tokens, and
        the marks are taken out of the text between: "<|im_end|>" written by a user stays text.
        """
        messages, variables = _checked(messages, variables)
        mark = self._unused_mark(messages, variables)
        controls = tokenizer.controls

        def shield(value, exempt=()):
            if isinstance(value, str):
                return controls.shield(value, mark, exempt)
            if isinstance(value, list):
                return [shield(v, exempt) for v in value]
            if isinstance(value, dict):
                return {k: shield(v, exempt) for k, v in value.items()}
            return value

        messages = [{k: v if k == "role" else shield(v, _THINKING if m["role"] == "assistant" else ())
                     for k, v in m.items()} for m in messages]
        text = self._render(messages, shield(variables), add_generation_prompt)
        if check is not None:
            check(text.replace(mark, ""))
        ids = tokenizer.encode(text, special=True, add_eos=False, shield=mark)
        while tokenizer.add_bos and ids[1:2] == [tokenizer.bos]:
            del ids[0]
        return ids

    def _unused_mark(self, messages, variables):
        used = self.source + repr(messages) + repr(variables)  # repr escapes noncharacters, hence both spellings
        for mark in _MARKS:
            if mark not in used and ascii(mark)[1:-1] not in used:
                return mark
        raise RequestError("messages: contain all 66 noncharacters of Unicode, expected at least one to be free",
                           param="messages")

    # --- rendering ---------------------------------------------------------------------------------

    def _render(self, messages, variables, add_generation_prompt):
        if any(isinstance(m.get("content"), list) for m in messages) and not self._takes_parts():
            messages = [_flattened(i, m) for i, m in enumerate(messages)]
        variables = {**variables, "messages": messages, "add_generation_prompt": bool(add_generation_prompt)}
        try:
            return self._run(variables)
        except TemplateError:
            # Half of the published templates add content to a string, and fail where a call of tools has none.
            if all(m.get("content") is not None for m in messages):
                raise
            filled = [{**m, "content": ""} if m.get("content") is None else m for m in messages]
            try:
                return self._run({**variables, "messages": filled})
            except TemplateError:
                pass
            raise

    def _run(self, variables):
        from . import sandbox

        if self._failure is not None:
            raise TemplateError(self._failure)
        if self._compiled is None:
            try:
                self._compiled = sandbox.compile_template(self.source)
            except TemplateError as e:
                self._failure = str(e)
                raise
        return sandbox.run(self._compiled, {"bos_token": self.bos_text, "eos_token": self.eos_text, **variables})

    def _takes_parts(self):
        """Does the template write out contents that are lists of parts? Tried once, with one part."""
        if self._parts is None:
            probe = [{"role": "user", "content": [{"type": "text", "text": "p1r2o3b4e"}]}]
            try:
                text = self._run({"messages": probe, "add_generation_prompt": False})
            except TemplateError:
                text = ""
            self._parts = "p1r2o3b4e" in text and "'type'" not in text and '"type"' not in text
        return self._parts


def _flattened(index, message):
    content = message.get("content")
    if not isinstance(content, list):
        return message
    for i, part in enumerate(content):
        if part["type"] != "text":
            raise RequestError(f"messages[{index}].content[{i}].type: found {part['type'][:40]!r}, but this model's "
                               "template takes text only", param=f"messages[{index}].content[{i}].type")
    return {**message, "content": "\n".join(part["text"] for part in content)}


# --- what may come in --------------------------------------------------------------------------------


def _checked(messages, variables):
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
    for name in variables:
        if name in RESERVED:
            raise RequestError(f"{name}: a name that templates use for something else", param=name)
    return out, {name: copier.copy(value, name, 0) for name, value in variables.items()}


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
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if isinstance(value, str):
            return str(value)
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    raise RequestError(f"{where}: found the key {_shown(key)}, expected strings as keys", param=where)
            return {str(k): self.copy(v, f"{where}.{k}"[:200], depth + 1) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.copy(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(value)]
        raise RequestError(f"{where}: found {type(value).__name__}, expected what JSON has", param=where)

"""Chat formats and handlers: the registry, the formatters, and handlers made of them.

A handler is called with the Llama and every argument of create_chat_completion and returns its response. A formatter makes a
prompt of messages. Text of messages is plain in formats that are templates: control tokens come from the template alone.
Imported by llama of this folder, and by users.
"""
import dataclasses
import json
from typing import Protocol

from ... import chat as templates
from ...errors import RequestError, UnsupportedError
from . import chat, options
from .formats import FORMATS, FUNCTION_CALLING
from .llama_grammar import LlamaGrammar


class LlamaChatCompletionHandlerNotFoundException(Exception):
    pass


class LlamaChatCompletionHandler(Protocol):
    """Called with llama= and every argument of create_chat_completion; returns its response or an iterator of chunks."""

    def __call__(self, *, llama, messages, **kwargs): ...


class ChatFormatter(Protocol):
    """Messages to a prompt."""

    def __call__(self, *, messages, **kwargs) -> "ChatFormatterResponse": ...


@dataclasses.dataclass
class ChatFormatterResponse:
    """prompt: text with its control tokens. added_special: it begins with BOS where it should."""

    prompt: str
    stop: "str | list | None" = None
    stopping_criteria: object = None
    added_special: bool = False


# ---- formatters ------------------------------------------------------------------


class Jinja2ChatFormatter:
    """A template as formatter. eos_token ends an answer where it comes as text, stop_token_ids where they come as tokens."""

    def __init__(self, template: str, eos_token: str, bos_token: str, add_generation_prompt: bool = True, stop_token_ids=None):
        self.template, self.eos_token, self.bos_token = template, eos_token, bos_token
        self.add_generation_prompt = add_generation_prompt
        self.stop_token_ids = None if stop_token_ids is None else set(stop_token_ids)
        self._template = templates.Template(template, {"bos_token": bos_token, "eos_token": eos_token})

    def __call__(self, *, messages, functions=None, function_call=None, tools=None, tool_choice=None, **kwargs) -> ChatFormatterResponse:
        variables = _variables(functions, function_call, tool_choice)
        prompt = self._template.render(messages, self.add_generation_prompt, variables, tools=tools)
        return ChatFormatterResponse(prompt=prompt, stop=[self.eos_token] if self.eos_token else [],
                                     stopping_criteria=self._criteria(), added_special=True)

    def _criteria(self):
        if self.stop_token_ids is None:
            return None
        from .llama import StoppingCriteriaList

        return StoppingCriteriaList([lambda tokens, logits: int(tokens[-1]) in self.stop_token_ids])

    def tokens(self, llama, messages, tools=None, **variables) -> list:
        """The prompt as ids, in which text of messages never becomes a control token."""
        return self._template.encode(llama._llm.tokenizer, messages, self.add_generation_prompt, variables, tools=tools)

    def to_chat_handler(self):
        return _template_handler(self)


def _variables(functions, function_call, tool_choice) -> dict:
    given = {"functions": functions, "function_call": function_call, "tool_choice": tool_choice}
    return {name: value for name, value in given.items() if value is not None}


def _stops(*stops) -> list:
    out = []
    for stop in stops:
        out += [stop] if isinstance(stop, str) else list(stop or ())
    return out


# ---- handlers --------------------------------------------------------------------


def _template_handler(formatter):
    """A handler of a template that encodes for itself."""

    def handler(*, llama, messages, functions=None, function_call=None, tools=None, tool_choice=None, stop=(), **arguments):
        shown = None if tool_choice == "none" else tools     # a model that must not call is not shown what it could
        prompt = formatter.tokens(llama, messages, shown, **_variables(functions, function_call, tool_choice))
        ends = [formatter.eos_token] if formatter.eos_token else []
        return chat.respond(llama, prompt, stop=_stops(stop, ends), stopping_criteria=formatter._criteria(), functions=functions,
                            function_call=function_call, tools=tools, tool_choice=tool_choice, **arguments)

    return handler


def own_template_handler(file_templates):
    """The model file's own templates, the one for tools where tools are given and there is one."""

    def handler(*, llama, messages, functions=None, function_call=None, tools=None, tool_choice=None, stop=(), **arguments):
        shown = None if tool_choice == "none" else tools
        name = "tool_use" if shown and "tool_use" in file_templates else "default"
        variables = _variables(functions, function_call, tool_choice)
        prompt = file_templates[name].encode(llama._llm.tokenizer, messages, True, variables, tools=shown, check=llama._llm.could_fit)
        return chat.respond(llama, prompt, stop=_stops(stop), functions=functions, function_call=function_call, tools=tools,
                            tool_choice=tool_choice, **arguments)

    return handler


def chat_formatter_to_chat_completion_handler(chat_formatter):
    """A handler of any function messages -> ChatFormatterResponse."""

    def handler(*, llama, messages, functions=None, function_call=None, tools=None, tool_choice=None, stop=(), **arguments):
        result = chat_formatter(messages=messages, functions=functions, function_call=function_call, tools=tools, tool_choice=tool_choice)
        prompt = llama.tokenize(result.prompt.encode("utf-8", "surrogateescape"), add_bos=not result.added_special, special=True)
        return chat.respond(llama, prompt, stop=_stops(stop, result.stop), stopping_criteria=result.stopping_criteria, functions=functions,
                            function_call=function_call, tools=tools, tool_choice=tool_choice, **arguments)

    return handler


def chatml_function_calling(*, llama, messages, functions=None, function_call=None, tools=None, tool_choice=None, stop=(), **arguments):
    """chatml with the tools in the system message. "auto" lets the model say "message:" or "functions.NAME:", and its calls
    are parsed; a named tool, or "required", is as with other handlers."""
    tools, tool_choice = chat.as_tools(functions, function_call, tools, tool_choice)
    if tools and (not messages or messages[0].get("role") != "system"):
        messages = [{"role": "system", "content": ""}, *messages]
    offered = None if tool_choice == "none" else tools
    formatter = Jinja2ChatFormatter(FUNCTION_CALLING, "<|im_end|>", "")
    stop = _stops(stop, "<|im_end|>")
    if not tools or tool_choice not in (None, "auto"):
        prompt = formatter.tokens(llama, messages, offered)
        names = chat.wanted_tools(tools, tool_choice)
        if len(names) == 1:              # the answer begins where the arguments do
            prompt += llama.tokenize(f"functions.{names[0]}:\n".encode(), add_bos=False)
        return chat.respond(llama, prompt, stop=stop, tools=tools, tool_choice=tool_choice, **arguments)
    if arguments.get("grammar") is not None or (arguments.get("response_format") or {}).get("type", "text") != "text":
        raise RequestError("grammar, response_format: cannot hold for an answer that may be a call", param="grammar")
    for name in ("grammar", "response_format"):
        arguments.pop(name, None)
    logprobs, top = arguments.pop("logprobs", None), arguments.pop("top_logprobs", None)
    stream = arguments.pop("stream", False)
    prompt = formatter.tokens(llama, messages, offered)
    completion = llama.create_completion(prompt=prompt, stop=stop, stream=stream, grammar=LlamaGrammar(lark=_calls_grammar(tools)),
                                         logprobs=(top or 0) if logprobs else None, **arguments)
    if stream:
        return _auto_chunks(completion)
    calls, text = _parsed(completion["choices"][0]["text"])
    if calls:
        return chat.tool_response(completion, calls=calls)
    completion["choices"][0]["text"] = text
    return chat.chat_response(completion)


def _calls_grammar(tools) -> str:
    rules = ["start: message | call (\"\\n\" call)*", "message: \"message:\\n\" /(.|\\n)*/",
             "call: " + " | ".join(f"call_{i}" for i in range(len(tools)))]
    for i, tool in enumerate(tools):
        name = tool["function"]["name"]
        rules.append(f"call_{i}: {json.dumps(f'functions.{name}:' + chr(10))} %json {json.dumps(chat.parameters(tools, name))}")
    return "\n".join(rules)


def _parsed(text) -> tuple:
    """(calls, text) of an answer in the form that _calls_grammar prescribes; the last call may be cut."""
    if not text.startswith("functions."):
        return [], text[len("message:\n"):] if text.startswith("message:\n") else text
    calls, decoder = [], json.JSONDecoder()
    while text.startswith("functions."):
        head, _, text = text.partition(":\n")
        try:
            _, end = decoder.raw_decode(text)
        except ValueError:
            end = len(text)
        calls.append((head[len("functions."):], text[:end]))
        text = text[end:].lstrip("\n")
    return calls, ""


def _auto_chunks(chunks):
    """Streams words as they come; calls when they are complete."""
    held, kind = [], None
    for chunk in chunks:
        choice = chunk["choices"][0]
        if kind is None:
            held.append(chunk)
            text = "".join(c["choices"][0]["text"] for c in held)
            if choice["finish_reason"] is None and len(text) <= len("message:\n"):
                continue
            if text.startswith("functions."):
                break
            rest = text[len("message:\n"):] if text.startswith("message:\n") else ""
            kind = "text"
            yield chat._chunk(chunk, {"role": "assistant"}, None, None)
            if rest:
                yield chat._chunk(chunk, {"content": rest}, None, None)
            if choice["finish_reason"] is not None:
                yield chat._chunk(chunk, {}, None, choice["finish_reason"])
        elif choice["finish_reason"] is None:
            yield chat._chunk(chunk, {"content": choice["text"]}, chat._logprobs(choice["logprobs"]), None)
        else:
            yield chat._chunk(chunk, {}, None, choice["finish_reason"])
    if kind is None:
        def rest():
            yield from held
            yield from chunks

        yield from chat.tool_chunks(rest(), parse=lambda text: _parsed(text)[0])


# ---- the registry ----------------------------------------------------------------


class LlamaChatCompletionHandlerRegistry:
    """Names to handlers; there is one registry."""

    _chat_handlers: dict = {}

    def register_chat_completion_handler(self, name: str, chat_handler, overwrite: bool = False) -> None:
        if not overwrite and name in self._chat_handlers:
            raise ValueError(f"Formatter with name '{name}' is already registered. Use `overwrite=True` to overwrite it.")
        self._chat_handlers[name] = chat_handler

    def unregister_chat_handler(self, name: str) -> None:
        if name not in self._chat_handlers:
            raise ValueError(f"No formatter registered under the name '{name}'.")
        del self._chat_handlers[name]

    def get_chat_completion_handler_by_name(self, name: str):
        if name in _LATER:
            raise UnsupportedError(f"chat_format {name!r}: {_LATER[name]}")
        try:
            return self._chat_handlers[name]
        except KeyError:
            raise LlamaChatCompletionHandlerNotFoundException(
                f"Invalid chat handler: {name} (valid formats: {list(self._chat_handlers)})") from None


_FUNCTIONARY = "functionary's own prompts are not built; tool calls work with the model's own template (a named tool or \"required\")"
_LATER = dict.fromkeys(("functionary", "functionary-v1", "functionary-v2"), _FUNCTIONARY)


def get_chat_completion_handler(name: str):
    return LlamaChatCompletionHandlerRegistry().get_chat_completion_handler_by_name(name)


def register_chat_completion_handler(name: str):
    def decorator(f):
        LlamaChatCompletionHandlerRegistry().register_chat_completion_handler(name, f)
        return f

    return decorator


def register_chat_format(name: str):
    def decorator(f):
        LlamaChatCompletionHandlerRegistry().register_chat_completion_handler(name, chat_formatter_to_chat_completion_handler(f))
        return f

    return decorator


def _function(name, formatter, end):
    """A named format as a function messages -> ChatFormatterResponse."""

    def format_function(messages, **kwargs) -> ChatFormatterResponse:
        return ChatFormatterResponse(prompt=formatter._template.render(messages, True), stop=end or None)

    format_function.__name__ = "format_" + name
    format_function.__doc__ = f"The prompt of messages in the format {name!r}."
    return format_function


class _Named(Jinja2ChatFormatter):
    """A format of the table: bos_token and eos_token are the vocabulary's."""

    def tokens(self, llama, messages, tools=None, **variables):
        template = templates.Template(self.template, templates.special_tokens(llama._llm.gguf, llama._llm.tokenizer))
        return template.encode(llama._llm.tokenizer, messages, True, variables, tools=tools)


for _name, (_source, _end) in FORMATS.items():
    _formatter = _Named(_source, _end, "<s>")
    _formatter._template = templates.Template(_source, {"bos_token": "<s>", "eos_token": "</s>"})
    LlamaChatCompletionHandlerRegistry._chat_handlers[_name] = _template_handler(_formatter)
    _short = _name.replace("baichuan-2", "baichuan2").replace("llama-", "llama").replace("-", "_")
    globals()["format_" + _short] = _function(_short, _formatter, _end)
LlamaChatCompletionHandlerRegistry._chat_handlers["chatml-function-calling"] = chatml_function_calling
format = globals()["format_chatml"]


# ---- formats of tokenizer configurations ------------------------------------------


def _text_of(token) -> str:
    return token["content"] if isinstance(token, dict) else token or ""


def hf_tokenizer_config_to_chat_formatter(tokenizer_config: dict, add_generation_prompt: bool = True) -> Jinja2ChatFormatter:
    """Of a tokenizer_config.json's chat_template, bos_token and eos_token."""
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):       # several, by name
        template = {t["name"]: t["template"] for t in template}.get("default")
    if not isinstance(template, str):
        raise RequestError("tokenizer_config: has no chat_template", param="tokenizer_config")
    return Jinja2ChatFormatter(template, _text_of(tokenizer_config.get("eos_token")), _text_of(tokenizer_config.get("bos_token")),
                               add_generation_prompt)


def hf_tokenizer_config_to_chat_completion_handler(tokenizer_config: dict, add_generation_prompt: bool = True):
    return hf_tokenizer_config_to_chat_formatter(tokenizer_config, add_generation_prompt).to_chat_handler()


def hf_autotokenizer_to_chat_formatter(pretrained_model_name_or_path) -> Jinja2ChatFormatter:
    """Of a folder with a tokenizer_config.json, or of a repository on the hub."""
    import os

    path = os.path.join(os.fspath(pretrained_model_name_or_path), "tokenizer_config.json")
    if not os.path.exists(path):
        try:
            import huggingface_hub
        except ImportError as e:
            raise ImportError("a tokenizer on the hub needs the huggingface_hub package: pip install 'pyengine-gguf[hub]'") from e
        path = huggingface_hub.hf_hub_download(os.fspath(pretrained_model_name_or_path), "tokenizer_config.json")
    with open(path, encoding="utf-8") as f:
        return hf_tokenizer_config_to_chat_formatter(json.load(f))


def hf_autotokenizer_to_chat_completion_handler(pretrained_model_name_or_path):
    return hf_autotokenizer_to_chat_formatter(pretrained_model_name_or_path).to_chat_handler()


# ---- images ----------------------------------------------------------------------


def _images(name):
    def refuse(self, *args, **kwargs):
        raise UnsupportedError(f"{name}: models that see images are not supported yet")

    return type(name, (), {"__init__": refuse, "from_pretrained": classmethod(refuse), "__doc__": "Refused: no images yet."})


for _name in ("Llava15", "Llava16", "Obsidian", "Moondream", "NanoLlava", "Llama3VisionAlpha", "MiniCPMv26", "Qwen25VL", "Gemma4", "MTMD"):
    globals()[_name + "ChatHandler"] = _images(_name + "ChatHandler")
Llama3VisionAlpha = globals()["Llama3VisionAlphaChatHandler"]

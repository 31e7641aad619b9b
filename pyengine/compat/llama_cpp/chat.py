"""From a prompt of messages to a chat response: response formats, tools, and completions turned into chat objects.

Not templates (llama_chat_format.py) and not the completion itself (completion.py). Imported by llama_chat_format of this folder.
"""
import json

from ...errors import RequestError
from . import options
from .llama_grammar import LlamaGrammar

JSON_OBJECT = {"type": "object"}


def respond(llama, prompt, *, stop=(), stopping_criteria=None, functions=None, function_call=None, tools=None, tool_choice=None,
            response_format=None, grammar=None, logprobs=None, top_logprobs=None, stream=False, **arguments):
    """create_completion on a prompt of ids, as a chat completion or an iterator of its chunks."""
    tools, tool_choice = as_tools(functions, function_call, tools, tool_choice)
    names = wanted_tools(tools, tool_choice)
    grammar = _only_one(grammar, response_grammar(response_format), tool_grammar(tools, names))
    completion = llama.create_completion(
        prompt=prompt, stop=list(stop), stopping_criteria=stopping_criteria, grammar=grammar, stream=stream,
        logprobs=(top_logprobs or 0) if logprobs else None, **arguments)
    if names:
        return tool_chunks(completion, names) if stream else tool_response(completion, names)
    return chat_chunks(completion) if stream else chat_response(completion)


# ---- what the answer has to follow ------------------------------------------------


def _only_one(*grammars):
    given = [g for g in grammars if g is not None]
    if len(given) > 1:
        raise RequestError("grammar, response_format, tool_choice: an answer can follow only one of them", param="grammar")
    return given[0] if given else None


def response_grammar(response_format):
    """None, or the grammar of {"type": "json_object"} (with "schema" or without) or {"type": "json_schema"}."""
    if response_format is None:
        return None
    kind = response_format.get("type") if isinstance(response_format, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        schema = response_format.get("schema")
        return LlamaGrammar(schema=JSON_OBJECT if schema is None else schema)
    if kind == "json_schema":
        inner = response_format.get("json_schema")
        schema = inner.get("schema") if isinstance(inner, dict) else None
        if schema is None:
            raise RequestError('response_format: {"type": "json_schema"} without json_schema.schema', param="response_format")
        return LlamaGrammar(schema=schema)
    raise RequestError(f'response_format: found {response_format!r:.80}, expected "type" to be "text", "json_object" or "json_schema"',
                       param="response_format")


def as_tools(functions, function_call, tools, tool_choice) -> tuple:
    """The older functions and function_call in the form of tools and tool_choice."""
    if functions is not None:
        tools = [{"type": "function", "function": f} for f in functions]
        if isinstance(function_call, dict):
            tool_choice = {"type": "function", "function": {"name": function_call.get("name")}}
        elif function_call is not None:
            tool_choice = function_call
    return tools, tool_choice


def wanted_tools(tools, tool_choice) -> list:
    """Names of the tools of which one has to be called; empty where the answer is text."""
    if isinstance(tool_choice, dict):
        name = (tool_choice.get("function") or {}).get("name")
        if name not in [t["function"]["name"] for t in tools or ()]:
            raise RequestError(f"Tool choice '{name}' not found in tools.", param="tool_choice")
        return [name]
    if tool_choice in ("required", "any"):
        if not tools:
            raise RequestError(f"tool_choice: found {tool_choice!r} without tools", param="tool_choice")
        return [t["function"]["name"] for t in tools]
    if tool_choice not in (None, "auto", "none"):
        raise RequestError(f'tool_choice: found {tool_choice!r:.80}, expected "none", "auto", "required" or '
                           f'{{"type": "function", "function": {{"name": ...}}}}', param="tool_choice")
    if tools and tool_choice != "none":
        options.warn_once('tool_choice "auto" with the model\'s own template: the answer is its text, calls in it are not '
                          'parsed; name a tool, use "required", or chat_format="chatml-function-calling"')
    return []


def parameters(tools, name) -> dict:
    for tool in tools:
        if tool["function"]["name"] == name:
            return tool["function"].get("parameters") or JSON_OBJECT
    raise AssertionError(name)


def tool_grammar(tools, names):
    """The arguments of the one tool, or an object that names one of several."""
    if not names:
        return None
    if len(names) == 1:
        return LlamaGrammar(schema=parameters(tools, names[0]))
    return LlamaGrammar(schema={"anyOf": [
        {"type": "object", "properties": {"name": {"const": name}, "arguments": parameters(tools, name)},
         "required": ["name", "arguments"], "additionalProperties": False} for name in names]})


# ---- responses -------------------------------------------------------------------


def _logprobs(columns):
    """Of the completion's columns, a chat's list; bytes are null, as there."""
    if columns is None:
        return None
    return {"content": [
        {"token": token, "bytes": None, "logprob": logprob,
         "top_logprobs": [{"token": t, "logprob": p, "bytes": None} for t, p in top.items()]}
        for token, logprob, top in zip(columns["tokens"], columns["token_logprobs"], columns["top_logprobs"])], "refusal": None}


def chat_response(completion) -> dict:
    choice = completion["choices"][0]
    return {"id": "chat" + completion["id"], "object": "chat.completion", "created": completion["created"], "model": completion["model"],
            "choices": [{"index": 0, "message": {"role": "assistant", "content": choice["text"]},
                         "logprobs": _logprobs(choice["logprobs"]), "finish_reason": choice["finish_reason"]}],
            "usage": completion["usage"]}


def _chunk(completion, delta, logprobs, finish_reason) -> dict:
    return {"id": "chat" + completion["id"], "model": completion["model"], "created": completion["created"], "object": "chat.completion.chunk",
            "choices": [{"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}]}


def chat_chunks(chunks):
    first = True
    for chunk in chunks:
        choice = chunk["choices"][0]
        if first:
            first = False
            yield _chunk(chunk, {"role": "assistant"}, None, None)
        if choice["finish_reason"] is None:
            yield _chunk(chunk, {"content": choice["text"]}, _logprobs(choice["logprobs"]), None)
        else:
            yield _chunk(chunk, {}, None, choice["finish_reason"])


def _called(text, names) -> tuple:
    """Name and arguments of an answer that tool_grammar shaped; arguments as the model wrote them where only one can be meant."""
    if len(names) == 1:
        return names[0], text
    try:
        call = json.loads(text)
    except ValueError:                   # cut by max_tokens: the name may be missing too
        return "", text
    return call["name"], json.dumps(call["arguments"], ensure_ascii=False)


def tool_calls(completion_id, calls) -> list:
    return [{"id": f"call__{i}_{name}_{completion_id}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, (name, arguments) in enumerate(calls)]


def tool_response(completion, names=None, calls=None) -> dict:
    """A response whose message is a call. finish_reason stays "length" where the arguments were cut."""
    choice = completion["choices"][0]
    if calls is None:
        calls = [_called(choice["text"], names)]
    name, arguments = calls[0]
    finish_reason = "tool_calls" if choice["finish_reason"] == "stop" else choice["finish_reason"]
    message = {"role": "assistant", "content": None, "function_call": {"name": name, "arguments": arguments},
               "tool_calls": tool_calls(completion["id"], calls)}
    return {"id": "chat" + completion["id"], "object": "chat.completion", "created": completion["created"], "model": completion["model"],
            "choices": [{"index": 0, "message": message, "logprobs": _logprobs(choice["logprobs"]), "finish_reason": finish_reason}],
            "usage": completion["usage"]}


def _tool_chunk(completion, role, call, finish_reason, logprobs=None) -> dict:
    delta = {"role": role, "content": None, "function_call": None, "tool_calls": None}
    if call is not None:
        i, name, arguments = call
        delta["function_call"] = {"name": name, "arguments": arguments}
        delta["tool_calls"] = [{"index": i, "id": f"call__{i}_{name}_{completion['id']}", "type": "function",
                                "function": {"name": name, "arguments": arguments}}]
    return {"id": "chat" + completion["id"], "object": "chat.completion.chunk", "created": completion["created"], "model": completion["model"],
            "choices": [{"index": 0, "finish_reason": finish_reason, "logprobs": logprobs, "delta": delta}]}


def tool_chunks(chunks, names=None, parse=None):
    """The arguments of one tool as they come; of several, when all is there. parse(text) -> calls, or None for plain text."""
    first, text = True, []
    for chunk in chunks:
        choice = chunk["choices"][0]
        if first:
            first = False
            yield _tool_chunk(chunk, "assistant", None, None)
        if choice["finish_reason"] is None:
            if parse is None and len(names) == 1:
                yield _tool_chunk(chunk, None, (0, names[0], choice["text"]), None, _logprobs(choice["logprobs"]))
            else:
                text.append(choice["text"])
            continue
        reason = choice["finish_reason"]
        if text:
            calls = [_called("".join(text), names)] if parse is None else parse("".join(text))
            for i, (name, arguments) in enumerate(calls):
                yield _tool_chunk(chunk, None, (i, name, arguments), None)
        yield _tool_chunk(chunk, None, None, "tool_calls" if reason == "stop" else reason)

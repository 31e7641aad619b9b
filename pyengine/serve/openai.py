"""The OpenAI dialect: /v1/models, /v1/completions, /v1/chat/completions, as tables and the shapes of answers.

Not HTTP (app.py), not checks (fields.py), not the engine. Where a server of ours does more than OpenAI's, the names
are llama-server's or vLLM's. Imported by serve.app. docs/api.md is the description for users.
"""
import json
import time

from ..aio import gather, merged
from ..errors import RequestError, UnsupportedError
from . import answers as a, echo, rows
from .exchange import Events, HTTPError
from .fields import ANYTHING, FLAG, OBJECT, TEXT, Choice, Either, Field, List, Object, Table, Text, Whole, takes, wrong

LATER = "not supported by this server yet"


# ---- tables ------------------------------------------------------------------------

STREAM_OPTIONS = Table(
    "stream_options",
    Field("include_usage", FLAG, default=False, about="a last chunk without choices has usage"),
    Field("include_obfuscation", FLAG, ignored="padding against traffic analysis is not sent"),
    Field("continuous_usage_stats", FLAG, refused="usage comes once, at the end: include_usage", off=(False,)),
)

JSON_SCHEMA = Table(
    "json_schema",
    Field("schema", rows.SCHEMA, required=True),
    Field("name", TEXT, ignored="a label"),
    Field("description", TEXT, ignored="not shown to the model"),
    Field("strict", FLAG, ignored="a schema is always followed strictly"),
)

RESPONSE_FORMAT = Table(
    "response_format",
    Field("type", Choice("text", "json_object", "json_schema"), required=True),
    Field("json_schema", Object(JSON_SCHEMA)),
    Field("schema", rows.SCHEMA, about="with json_object, as in llama-server"),
)


def response_format(given: dict) -> dict:
    kind, schema = given["type"], given.get("json_schema")
    if kind == "json_schema":
        if schema is None or "schema" in given:
            raise RequestError("response_format.json_schema: expected, an object with the schema", param="response_format.json_schema")
        return {"json_schema": schema["schema"]}
    if kind == "text" and "schema" in given:
        raise RequestError("response_format.schema: given with type \"text\"", param="response_format.schema")
    if schema is not None:
        raise RequestError(f"response_format.json_schema: given with type {json.dumps(kind)}", param="response_format.json_schema")
    if kind == "json_object":
        return {"json_schema": given.get("schema", {"type": "object"})}
    return {}


def harmless(name: str, why: str, kind=ANYTHING) -> Field:
    return Field(name, kind, ignored=why)


COMMON = [
    Field("model", TEXT, about="the name that /v1/models gives, or absent"),
    rows.sampling(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0),
    rows.structure(),
    rows.extensions(),
    Field("n", Whole(1, rows.MAX_N), default=1, about="answers to each prompt"),
    Field("stop", rows.STOP),
    Field("stream", FLAG, default=False),
    Field("stream_options", Object(STREAM_OPTIONS)),
    Field("cache_prompt", FLAG, default=True, about="false: compute the prompt anew and keep nothing of it"),
    Field("min_tokens", Whole(0), refused=LATER, off=(0,)),
    Field("stop_token_ids", List(Whole(0)), refused=LATER, off=([],)),
    Field("repetition_penalty", refused="the name here is repeat_penalty", off=(1,)),
    Field("prompt_logprobs", refused=LATER, off=(0, False)),
    Field("truncate_prompt_tokens", refused="a prompt is never cut: one that does not fit is an error"),
    harmless("user", "nobody is told apart by it; API keys do that", TEXT),
    harmless("metadata", "nothing is stored", OBJECT),
    harmless("service_tier", "there is one tier; priority orders requests", TEXT),
    harmless("prompt_cache_options", "prompts are found by their tokens"),
    Field("moderation", refused="nothing is moderated here"),
    harmless("prompt_cache_key", "prompts are found by their tokens; cache_salt keeps them apart", TEXT),
    harmless("safety_identifier", "nothing is stored", TEXT),
]

COMPLETION = Table(
    "completion", *COMMON,
    Field("prompt", rows.PROMPT, required=True, about="a text, token ids, or a list of either"),
    Field("max_tokens", Whole(-1), default=16, about="-1: to the end of the answer or of the context"),
    Field("max_completion_tokens", Whole(-1), to="max_tokens"),
    Field("logprobs", rows.TOP, about="so many of the most probable tokens, up to 20"),
    Field("echo", FLAG, default=False, about="the prompt before the answer; with logprobs, its own tokens' too"),
    Field("suffix", TEXT, about="what follows the gap; for models with fill-in-the-middle tokens"),
    Field("best_of", Whole(1, rows.MAX_N), about="generates so many, answers with the n most probable"),
    Field("response_format", Object(RESPONSE_FORMAT), to="json_schema", turn=response_format),
)

PART = Table("content part", Field("type", Choice("text"), required=True), Field("text", TEXT, required=True),
             harmless("cache_control", "every prompt is cached"))

MESSAGE = Table(
    "message",
    Field("role", Text(1), required=True),
    Field("content", Either(TEXT, List(Object(PART), 1))),
    Field("name", TEXT),
    Field("tool_calls", List(OBJECT), about="arguments as JSON in a text or as an object"),
    Field("tool_call_id", TEXT),
    Field("reasoning_content", TEXT), Field("reasoning", TEXT), Field("thinking", TEXT),
    Field("function_call", refused="deprecated; tool_calls is the name"),
    Field("refusal", refused="this server gives and reads no refusals"),
    Field("audio", refused="the model reads text"),
    harmless("annotations", "not shown to the model"),
)

# What a template is given beside messages; the same for /apply-template.
TEMPLATE_INPUT = [
    Field("tools", List(OBJECT), about="functions, for the template to write out; it has to read them"),
    Field("documents", List(OBJECT), about="for the template to write out; it has to read them"),
    Field("chat_template_kwargs", OBJECT, to="template_variables", about="variables for the model's template; it has to read them"),
    Field("add_generation_prompt", FLAG, about="false: nothing asks the model to answer; true unless continue_final_message"),
    Field("continue_final_message", FLAG, default=False, about="the answer goes on with the last message's text"),
]

CHAT = Table(
    "chat completion", *COMMON,
    Field("messages", List(Object(MESSAGE), 1), to="prompt", required=True),
    Field("max_completion_tokens", Whole(-1), to="max_tokens", about="absent or -1: to the end of the answer or of the context"),
    Field("max_tokens", Whole(-1)),
    Field("logprobs", FLAG, to="with_logprobs", default=False),
    Field("top_logprobs", rows.TOP, to="logprobs", about="with logprobs true"),
    Field("response_format", Object(RESPONSE_FORMAT), to="json_schema", turn=response_format),
    Field("reasoning_effort", TEXT, about="for templates that read it"),
    TEMPLATE_INPUT,
    Field("tool_choice", ANYTHING, about="auto: the model sees the tools; none: it does not"),
    Field("functions", refused="deprecated, and " + LATER, off=([],)),
    Field("function_call", refused="deprecated, and " + LATER, off=("none", "auto")),
    Field("modalities", List(TEXT), refused="this server answers in text", off=(["text"],)),
    Field("audio", refused="this server answers in text"),
    Field("web_search_options", refused="this server reaches no web"),
    Field("verbosity", refused="no template reads it", off=("medium",)),
    Field("chat_template", refused="a template comes with the model, not with a request"),
    harmless("parallel_tool_calls", "calls stay in the text of the answer", FLAG),
    harmless("store", "nothing is stored", FLAG),
    harmless("prediction", "answers are the same with a prediction and without"),
    harmless("prompt_cache_retention", "a prompt is kept while there is room"),
)


# ---- /v1/models ----------------------------------------------------------------------


def _model(server) -> dict:
    llama = server.llm.llama
    tensors = llama.gguf.tensors.values()
    meta = {"n_ctx": llama.n_ctx, "n_ctx_train": llama.n_ctx_train, "n_vocab": llama.n_vocab, "n_embd": llama.program.hp.n_embd,
            "n_params": sum(t.shape[0] * t.n_rows for t in tensors), "size": sum(f.size for f in llama.gguf.files)}
    return {"id": server.model, "object": "model", "created": server.created, "owned_by": "pyengine",
            "max_model_len": llama.n_ctx, "meta": meta}


@takes(None)
async def models(server, ctx, values):
    return {"object": "list", "data": [_model(server)]}


@takes(None)
async def model(server, ctx, values):
    a.check_model(server, ctx.params["model"])
    return _model(server)


# ---- /v1/completions -------------------------------------------------------------------


@takes(COMPLETION)
async def completions(server, ctx, values):
    a.check_model(server, values.get("model"))
    options, n = a.options(ctx, values), values["n"]
    best_of = values.get("best_of", n)
    if best_of < n:
        raise RequestError(f"best_of: found {best_of}, expected at least n, {n}", param="best_of")
    _check_stream(values)
    if best_of > n:
        if values["stream"]:
            raise RequestError("best_of: more than n cannot be streamed", param="best_of")
        options["logprobs"] = options.get("logprobs", 0)
    options["n"] = best_of
    prompts, echoes = await server.work(_prompts, server.llm.llama, values)
    own = None                               # the prompts' logprobs; they come first, and leave the prompts in the cache
    if values["echo"] and values.get("logprobs") is not None:
        own = await echo.of_prompts(server.llm, prompts, echoes, values["logprobs"], options)
    started = await server.llm.start(prompts, **options)
    head = _head(server, "cmpl-", "text_completion")
    if values["stream"]:
        return Events(_completion_stream(head, started, values, echoes, n, own))
    results = await gather(started)
    billed = a.usage(results, best_of)
    if best_of > n:
        results = [r for i in range(0, len(results), best_of) for r in _best(results[i:i + best_of], n)]
    choices = []
    for i, result in enumerate(results):
        logprobs = None
        if values.get("logprobs") is not None:
            before, offset = own[i // n] if own else (None, 0)
            logprobs, _ = _completion_logprobs(result.logprobs, offset, before)
        choices.append(_completion_choice(i, echoes[i // n] + result.text, logprobs, a.finish_reason(result), a.stop_reason(result)))
    return {**head, "choices": choices, "usage": billed, **_timings(values, results)}


def _prompts(llama, values):
    """(token lists, texts to echo)."""
    prompt, suffix = values["prompt"], values.get("suffix")
    if suffix is not None:
        if not isinstance(prompt, str):
            raise RequestError("suffix: goes with one prompt that is a text", param="suffix")
        return [_around(llama, prompt, suffix)], [prompt if values["echo"] else ""]
    prompts, several = llama.prompts(prompt)
    if not values["echo"]:
        return prompts, [""] * len(prompts)
    given = prompt if several else [prompt]
    return prompts, [p if isinstance(p, str) else llama.detokenize(p, special=True) for p in given]


def _around(llama, prefix, suffix) -> list:
    """Fill-in-the-middle: the tokens that ask for what is between two texts."""
    ids = []
    for names in (("fim_pre", "prefix"), ("fim_suf", "suffix"), ("fim_mid", "middle")):
        keys = [f"tokenizer.ggml.{name}_token_id" for name in names]
        found = [llama.gguf.get_int(k, lo=0, hi=llama.n_vocab - 1) for k in keys if k in llama.gguf]
        if not found:
            raise RequestError("suffix: this model has no fill-in-the-middle tokens", param="suffix")
        ids.append(found[0])
    start, end, middle = ids
    bos = [llama.tokenizer.bos] if llama.tokenizer.add_bos else []
    llama.could_fit(prefix + suffix)
    text = [llama.tokenize(t, add_bos=False) for t in (prefix, suffix)]
    return [*bos, start, *text[0], end, *text[1], middle]


def _best(results, n) -> list:
    """The n of the highest mean logprob; ties by index."""
    return sorted(results, key=lambda r: (-a.mean_logprob(r), r.index))[:n]


def _completion_choice(i, text, logprobs, finish_reason, stop_reason=None) -> dict:
    out = {"index": i, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
    return out if stop_reason is None else {**out, "stop_reason": stop_reason}


def _completion_logprobs(entries, offset, before=None):
    """The four lists, behind those of a prompt, and where the next token's text begins."""
    out = {name: list(before[name]) if before else [] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}
    for e in entries or []:
        out["tokens"].append(a.token_name(e))
        out["token_logprobs"].append(e["logprob"])
        top = {a.token_name(t): t["logprob"] for t in e["top_logprobs"]}
        out["top_logprobs"].append(top | {a.token_name(e): e["logprob"]})
        out["text_offset"].append(offset)
        offset += len(e["token"])
    return out, offset


async def _completion_stream(head, started, values, echoes, n, own):
    blank = _blank(values)
    offsets = [own[i // n][1] if own else 0 for i in range(len(started))]
    waiting = dict(enumerate(e for e in echoes for _ in range(n)))      # texts to echo before the first piece
    async for i, piece in merged(started):
        if i in waiting:
            text = waiting.pop(i)
            if text or own:
                yield {**head, "choices": [_completion_choice(i, text, own[i // n][0] if own else None, None)], **blank}
        if piece is None:
            result = started[i].job.result
            choice = _completion_choice(i, "", None, a.finish_reason(result), a.stop_reason(result))
            yield {**head, "choices": [choice], **blank, **_timings(values, [result])}
            continue
        logprobs = None
        if values.get("logprobs") is not None:
            logprobs, offsets[i] = _completion_logprobs(piece.logprobs, offsets[i])
        if piece.text or logprobs:
            yield {**head, "choices": [_completion_choice(i, piece.text, logprobs, None)], **blank}
    for event in _stream_end(head, started, values, n):
        yield event


# ---- /v1/chat/completions ----------------------------------------------------------------


@takes(CHAT)
async def chat(server, ctx, values):
    a.check_model(server, values.get("model"))
    _check_stream(values)
    options = a.options(ctx, values)
    if values["with_logprobs"]:
        options.setdefault("logprobs", 0)
    elif options.pop("logprobs", 0):
        raise RequestError("top_logprobs: needs logprobs to be true", param="top_logprobs")
    prompt = await server.work(_chat_prompt, server.llm.llama, values)
    started = await server.llm.start([prompt], **options)
    if values["stream"]:
        return Events(_chat_stream(_head(server, "chatcmpl-", "chat.completion.chunk"), started, values))
    results = await gather(started)
    choices = []
    for i, result in enumerate(results):
        choice = {"index": i, "message": {"role": "assistant", "content": result.text, "refusal": None},
                  "logprobs": _chat_logprobs(result.logprobs), "finish_reason": a.finish_reason(result)}
        if a.stop_reason(result) is not None:
            choice["stop_reason"] = a.stop_reason(result)
        choices.append(choice)
    return {**_head(server, "chatcmpl-", "chat.completion"), "choices": choices, "usage": a.usage(results, len(results)),
            **_timings(values, results)}


def messages(given: list) -> list:
    """Messages with what each has to have: content, but for an assistant that called or thought."""
    out = []
    for i, message in enumerate(given):
        message = dict(message)
        if not message.get("tool_calls"):
            message.pop("tool_calls", None)
            thought = message["role"] == "assistant" and any(name in message for name in ("reasoning_content", "reasoning", "thinking"))
            if "content" not in message and not thought:
                raise RequestError(f"messages[{i}].content: missing, expected a text or a list of parts", param=f"messages[{i}].content")
        out.append(message)
    return out


def template_input(llama, values) -> dict:
    """Keywords for Llama.chat_tokens and chat_text, with what the request wants its template to see."""
    tools, choice = values.get("tools"), values.get("tool_choice")
    for i, tool in enumerate(tools or ()):
        function = tool.get("function")
        if tool.get("type") != "function" or not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise wrong(f"tools[{i}]", _cut(tool), "{\"type\": \"function\", \"function\": {\"name\": ...}}")
    if choice not in (None, "none", "auto"):
        raise wrong("tool_choice", _cut(choice), "\"auto\" or \"none\": nothing makes the model call a tool here, and calls are not taken out of its answer")
    how = {"tools": None if choice == "none" else tools or None, "documents": values.get("documents") or None,
           "continue_final_message": values["continue_final_message"]}
    if how["continue_final_message"] and values.get("add_generation_prompt"):
        raise RequestError("continue_final_message: the last message goes on, and add_generation_prompt begins another", param="continue_final_message")
    variables = dict(values.get("template_variables") or {})
    if "reasoning_effort" in values:
        if "reasoning_effort" not in llama.template(**how).reads:
            raise RequestError("reasoning_effort: the model's template does not read it", param="reasoning_effort")
        if variables.get("reasoning_effort", values["reasoning_effort"]) != values["reasoning_effort"]:
            where = "chat_template_kwargs.reasoning_effort"
            raise RequestError(f"{where}: says the same as reasoning_effort, and they differ", param=where)
        variables["reasoning_effort"] = values["reasoning_effort"]
    return {**how, "template_variables": variables, "add_generation_prompt": values.get("add_generation_prompt", True)}


def _cut(value) -> str:
    return json.dumps(value, ensure_ascii=False)[:60]


def _chat_prompt(llama, values) -> list:
    try:
        return llama.chat_tokens(messages(values["prompt"]), **template_input(llama, values))
    except UnsupportedError as e:
        raise HTTPError(400, str(e)) from e


def _entry(e: dict) -> dict:
    return {"token": e["token"], "bytes": e["bytes"], "logprob": e["logprob"]}


def _chat_logprobs(entries):
    if entries is None:
        return None
    content = [{**_entry(e), "top_logprobs": [_entry(t) for t in e["top_logprobs"]]} for e in entries]
    return {"content": content, "refusal": None}


async def _chat_stream(head, started, values):
    blank = _blank(values)
    begun = set()

    def chunk(i, delta, logprobs=None, finish_reason=None, **more):
        return {**head, "choices": [{"index": i, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason, **more}], **blank}

    async for i, piece in merged(started):
        if i not in begun:
            begun.add(i)
            yield chunk(i, {"role": "assistant", "content": "", "refusal": None})
        if piece is None:
            result = started[i].job.result
            reason = a.stop_reason(result)
            more = {} if reason is None else {"stop_reason": reason}
            yield {**chunk(i, {}, None, a.finish_reason(result), **more), **_timings(values, [result])}
        elif piece.text or piece.logprobs:
            yield chunk(i, {"content": piece.text}, _chat_logprobs(piece.logprobs))
    for event in _stream_end(head, started, values, len(started)):
        yield event


# ---- what both have -------------------------------------------------------------------------


def _head(server, prefix, kind) -> dict:
    return {"id": a.new_id(prefix), "object": kind, "created": int(time.time()), "model": server.model,
            "system_fingerprint": a.fingerprint(server.llm.llama)}


def _check_stream(values) -> None:
    if values.get("stream_options") is not None and not values["stream"]:
        raise RequestError("stream_options: only with stream true", param="stream_options")


def _blank(values) -> dict:
    """With include_usage, every chunk but the last says that usage is null."""
    return {"usage": None} if (values.get("stream_options") or {}).get("include_usage") else {}


def _stream_end(head, started, values, per_prompt):
    if _blank(values):
        yield {**head, "choices": [], "usage": a.usage([s.job.result for s in started], per_prompt)}
    yield "[DONE]"


def _timings(values, results) -> dict:
    if not values["timings"]:
        return {}
    out = [a.timings(r) for r in results]
    return {"timings": out[0] if len(out) == 1 else out}


ROUTES = [
    ("GET", "/v1/models", models), ("GET", "/models", models), ("GET", "/v1/models/{model}", model),
    ("POST", "/v1/completions", completions),
    ("POST", "/v1/chat/completions", chat), ("POST", "/chat/completions", chat),
]

"""The dialect of llama.cpp's llama-server: /completion, /tokenize, /detokenize, /apply-template, /props, /slots.

As tables and the shapes of answers; its OpenAI routes are openai.py's, /health and /metrics app.py's. Not HTTP, not
checks, not the engine. What asks for nothing passes ("dry_multiplier": 0); what we do not do is refused by name.
Imported by serve.app. docs/api.md is the description for users.
"""
from ..aio import gather, merged
from ..errors import RequestError
from ..request import ids as checked_ids
from . import answers as a, rows
from .exchange import Events, HTTPError
from .fields import FLAG, OBJECT, TEXT, Either, Field, List, Object, Table, Text, Whole, takes
from .openai import MESSAGE, TEMPLATE_INPUT, harmless, messages, template_input

OFF = "not supported; only the value that switches it off passes"
WITHOUT = "is of no effect without what it belongs to"

# ---- samplers --------------------------------------------------------------------------

# The order is ours, and llama-server's default. A sampler that is left out is switched off.
CHAIN = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "adaptive_p", "temperature")
LETTERS = dict(zip("edskypmxat", CHAIN))
OTHER_NAMES = {"typical_p": "typ_p", "typ": "typ_p", "typical": "typ_p", "top-k": "top_k", "top-p": "top_p", "min-p": "min_p",
               "nucleus": "top_p", "temp": "temperature", "top-n-sigma": "top_n_sigma", "infill": ""}
SWITCHED_OFF = {"penalties": {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}, "top_k": {"top_k": 0},
                "typ_p": {"typical_p": 1.0}, "top_p": {"top_p": 1.0}, "min_p": {"min_p": 0.0}, "temperature": {"temperature": 1.0}}


def samplers(given) -> list:
    """Names in the order of the chain; RequestError for another order, for it is not what would happen."""
    names = [LETTERS.get(c, c) for c in given] if isinstance(given, str) else [OTHER_NAMES.get(n, n) for n in given]
    last = -1
    for name in names:
        if name not in CHAIN:
            raise RequestError(f"samplers: {name[:40]!r} is not known here, expected some of {', '.join(CHAIN)}", param="samplers")
        if CHAIN.index(name) <= last:
            raise RequestError(f"samplers: {name!r} comes too late; the order is {', '.join(CHAIN)}", param="samplers")
        last = CHAIN.index(name)
    return names


# ---- tables ----------------------------------------------------------------------------

MEDIA = Table("prompt object", Field("prompt_string", TEXT, required=True),
              Field("multimodal_data", refused="the model reads text", off=([],)))
MIXED = List(Either(Whole(0), TEXT), 1)
ONE = Either(TEXT, MIXED, Object(MEDIA))


def off(name: str, *values, why: str = OFF) -> Field:
    return Field(name, refused=why, off=values)


def n_probs(n: int) -> dict:
    return {"logprobs": n} if n else {}


COMPLETION = Table(
    "llama-server completion",
    Field("prompt", Either(TEXT, MIXED, Object(MEDIA), List(ONE, 1, rows.MAX_PROMPTS)), required=True,
          about="a text, tokens, tokens and texts mixed, or a list of these, which is answered by a list"),
    Field("model", TEXT),
    rows.sampling(temperature=0.8, top_p=0.95, top_k=40, min_p=0.05),
    rows.structure(),
    rows.extensions(),
    Field("n_predict", Whole(-1), to="max_tokens", default=-1, about="-1: to the end of the answer or of the context"),
    Field("max_tokens", Whole(-1)),
    Field("max_completion_tokens", Whole(-1), to="max_tokens"),
    Field("n_cmpl", Whole(1, rows.MAX_N), to="n", default=1),
    Field("n", Whole(1, rows.MAX_N)),
    Field("stop", rows.STOP),
    Field("samplers", Either(List(TEXT), Text()), turn=lambda given: {"samplers": samplers(given)},
          about="which samplers, in the one order there is: " + ", ".join(CHAIN)),
    Field("n_probs", rows.TOP, to="logprobs", turn=n_probs),
    Field("logprobs", rows.TOP, turn=n_probs),
    Field("stream", FLAG, default=False),
    Field("cache_prompt", FLAG, default=True, about="false: compute the prompt anew and keep nothing of it"),
    Field("return_tokens", FLAG, default=False),
    Field("timings_per_token", FLAG, default=False),
    Field("response_fields", List(TEXT, 0, 64), about="of the answer, only these: a/b is b within a"),
    harmless("id_slot", "there are no slots: a cached prompt serves every request", Whole(-1)),
    harmless("n_keep", "the context is never shifted", Whole(-1)),
    harmless("sse_ping_interval", "the server's --keepalive-seconds decides"),
    harmless("verbose", "what was used is in generation_settings anyway", FLAG),
    harmless("stream_options", "counts are in the last event", OBJECT),
    off("n_discard", 0), off("n_indent", 0), off("n_cache_reuse", 0), off("min_keep", 0, 1), off("t_max_predict_ms", 0, -1, why="deadline_ms is the name here"),
    off("return_progress", False), off("post_sampling_probs", False), off("backend_sampling", False), off("echo", False),
    off("image_data", []), off("lora", []),
    off("top_n_sigma", -1, 0), off("xtc_probability", 0), off("dynatemp_range", 0), off("dry_multiplier", 0), off("mirostat", 0),
    off("adaptive_target", -1),
    [harmless(name, WITHOUT) for name in ("xtc_threshold", "dynatemp_exponent", "dry_base", "dry_allowed_length", "dry_penalty_last_n",
                                          "dry_sequence_breakers", "mirostat_tau", "mirostat_eta", "adaptive_decay")],
    off("grammar_lazy", False), off("grammar_triggers", []), off("preserved_tokens", []), off("chat_format", 0), off("reasoning_format", "none"),
    off("parse_tool_calls", False),
)

TOKENIZE = Table(
    "tokenize",
    Field("content", Either(TEXT, List(Either(Whole(0), TEXT))), required=True),
    Field("add_special", FLAG, default=False, about="begin with the token that begins a text"),
    Field("parse_special", FLAG, default=True, about="read control tokens in the text"),
    Field("with_pieces", FLAG, default=False),
)
DETOKENIZE = Table("detokenize", Field("tokens", List(Whole(0)), required=True))
APPLY_TEMPLATE = Table(
    "apply-template",
    Field("messages", List(Object(MESSAGE), 1), required=True),
    TEMPLATE_INPUT,
    harmless("model", "there is one", TEXT),
)


# ---- /completion ----------------------------------------------------------------------------


@takes(COMPLETION)
async def completion(server, ctx, values):
    a.check_model(server, values.get("model"))
    if "samplers" in values:
        for name in SWITCHED_OFF.keys() - set(values["samplers"]):
            values |= SWITCHED_OFF[name]
    prompts, texts, several = await server.work(_prompts, server.llm.llama, values["prompt"])
    n = values["n"]
    started = await server.llm.start(prompts, **a.options(ctx, values))
    if values["stream"]:
        return Events(_stream(server, values, started, texts))
    results = await gather(started)
    out = [_final(server, values, i, s.job, r, texts[i // n]) for i, (s, r) in enumerate(zip(started, results))]
    return out if several or n > 1 else out[0]


def _prompts(llama, prompt):
    """(token lists, their texts, whether they came as a list)."""
    several = isinstance(prompt, list) and (any(isinstance(p, (list, dict)) for p in prompt) or all(isinstance(p, str) for p in prompt))
    given = prompt if several else [prompt]
    lists = [_tokens(llama, p) for p in given]
    texts = [p if isinstance(p, str) else llama.detokenize(tokens, special=True) for p, tokens in zip(given, lists)]
    return lists, texts, several


def _tokens(llama, prompt) -> list:
    if isinstance(prompt, dict):
        prompt = prompt["prompt_string"]
    if isinstance(prompt, list) and any(isinstance(part, str) for part in prompt):
        for part in prompt:
            if isinstance(part, str):
                llama.could_fit(part)
        prompt = mixed(llama, prompt, special=True, add_bos=None)
    return llama.prompts(prompt)[0][0]


def mixed(llama, parts, *, special, add_bos) -> list:
    """Ids of texts and ids in a row; only a text that begins it gets a beginning."""
    out = []
    for i, part in enumerate(parts):
        out += [part] if isinstance(part, int) else llama.tokenize(part, special=special, add_bos=add_bos if i == 0 else False)
    return out


async def _stream(server, values, started, texts):
    counts = [0] * len(started)
    async for i, piece in merged(started):
        job = started[i].job
        if piece is None:
            yield _final(server, {**values, "in_stream": True}, i, job, job.result, texts[i // values["n"]])
            continue
        counts[i] += len(piece.tokens)
        event = {"index": i, "content": piece.text, "tokens": list(piece.tokens), "stop": False, "id_slot": -1,
                 "tokens_predicted": counts[i], "tokens_evaluated": len(job.request.prompt)}
        if piece.logprobs is not None:
            event["completion_probabilities"] = piece.logprobs
        yield event


def _final(server, values, i, job, result, text) -> dict:
    """The answer, or in a stream its last event: what was sent before is not sent again."""
    sent = values.get("in_stream", False)
    a.finish_reason(result)                  # an answer that was cut from outside has none, and is an error
    out = {
        "index": i, "content": "" if sent else result.text, "tokens": result.tokens if values["return_tokens"] and not sent else [],
        "id_slot": -1, "stop": True, "model": server.model, "tokens_predicted": len(result.tokens),
        "tokens_evaluated": result.usage["prompt_tokens"], "generation_settings": _settings(values, job), "prompt": text,
        "has_new_line": "\n" in result.text, "truncated": False, "stop_type": _stop_type(result),
        "stopping_word": result.stop or "", "tokens_cached": result.cached_tokens, "timings": a.timings(result),
    }
    if result.finish_reason == "deadline":
        out["stop_reason"] = "deadline"
    if result.logprobs is not None and not sent:
        out["completion_probabilities"] = result.logprobs
    return _only(out, values["response_fields"]) if values.get("response_fields") else out


def _stop_type(result) -> str:
    if result.finish_reason == "stop":
        return "eos" if result.stop is None else "word"
    return "limit"


def _settings(values, job) -> dict:
    """What was used, every default filled in."""
    p = job.request.sampler.params
    stop = values.get("stop") or []
    return {"seed": job.seed, "temperature": p.temperature, "top_k": p.top_k, "top_p": p.top_p, "min_p": p.min_p, "typical_p": p.typical_p,
            "repeat_last_n": p.repeat_last_n, "repeat_penalty": p.repeat_penalty, "presence_penalty": p.presence_penalty,
            "frequency_penalty": p.frequency_penalty, "logit_bias": [[i, b if b - b == 0 else False] for i, b in p.logit_bias],
            "n_probs": p.logprobs or 0, "n_predict": values["max_tokens"], "max_tokens": values["max_tokens"],
            "stop": [stop] if isinstance(stop, str) else stop, "ignore_eos": values.get("ignore_eos", False), "stream": values["stream"],
            "samplers": values.get("samplers", list(CHAIN)), "grammar": values.get("grammar") or "", "n": values["n"]}


def _only(answer: dict, names: list) -> dict:
    out = {}
    for name in names:
        value = answer
        for part in name.split("/"):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            out[name] = value
    return out


# ---- tokens and templates -----------------------------------------------------------------------


@takes(TOKENIZE)
async def tokenize(server, ctx, values):
    content, special, add_bos = values["content"], values["parse_special"], None if values["add_special"] else False
    llama = server.llm.llama
    ids = await server.work(mixed, llama, [content] if isinstance(content, str) else content, special=special, add_bos=add_bos)
    if not values["with_pieces"]:
        return {"tokens": ids}
    return {"tokens": await server.work(_pieces, llama, ids)}


def _pieces(llama, ids) -> list:
    out = []
    for i in checked_ids(ids, llama.n_vocab, "content"):
        raw = bytes(llama.tokenizer.piece(i, special=True))
        try:
            out.append({"id": i, "piece": raw.decode("utf-8")})
        except UnicodeDecodeError:
            out.append({"id": i, "piece": list(raw)})
    return out


@takes(DETOKENIZE)
async def detokenize(server, ctx, values):
    return {"content": await server.llm.detokenize(values["tokens"], special=True)}


@takes(APPLY_TEMPLATE)
async def apply_template(server, ctx, values):
    llama = server.llm.llama
    return {"prompt": await server.work(_applied, llama, values)}


def _applied(llama, values) -> str:
    return llama.chat_text(messages(values["messages"]), **template_input(llama, values))


# ---- what the server is and does ------------------------------------------------------------------


@takes(None)
async def props(server, ctx, values):
    llama = server.llm.llama
    tokenizer, templates = llama.tokenizer, llama.chat_templates
    defaults = {f.target: f.default for f in COMPLETION.fields.values() if f.default is not None and f.target in a.OPTIONS}
    return {
        "default_generation_settings": {"params": defaults, "n_ctx": llama.n_ctx}, "total_slots": llama.program.max_seqs,
        "model_alias": server.model, "model_path": server.model, "modalities": {"vision": False, "audio": False, "video": False},
        "endpoint_slots": True, "endpoint_props": False, "endpoint_metrics": True,
        "chat_template": templates.get("default", ""), **{f"chat_template_{name}": t for name, t in templates.items() if name != "default"},
        "chat_templates": list(templates), "bos_token": _text(tokenizer, tokenizer.bos), "eos_token": _text(tokenizer, tokenizer.eos),
        "build_info": f"pyengine {a.__version__}", "is_sleeping": False,
    }


def _text(tokenizer, token) -> str:
    return "" if token is None else tokenizer.piece(token, special=True).decode("utf-8", "replace")


@takes(None)
async def slots(server, ctx, values):
    """Requests that run, one to a place; what they say is nobody's business."""
    llama = server.llm.llama
    running = [job.request for job in llama.running() if job.request.started is not None and not job.request.done]
    running.sort(key=lambda r: r.added)
    total = max(llama.program.max_seqs, len(running))
    if ctx.query.get("fail_on_no_slot") and len(running) >= llama.program.max_seqs:
        raise HTTPError(503, "no slot available", "unavailable_error")
    out = []
    for i in range(total):
        busy = i < len(running)
        slot = {"id": i, "n_ctx": llama.n_ctx, "is_processing": busy}
        if busy:
            r = running[i]
            slot |= {"n_prompt_tokens": len(r.prompt), "n_prompt_tokens_cache": r.cached, "n_decoded": len(r.tokens),
                     "n_remain": -1 if r.max_tokens is None else r.max_tokens - len(r.tokens)}
        out.append(slot)
    return out


def error_body(error: HTTPError) -> dict:
    kind = "exceed_context_size_error" if error.code == "context_length_exceeded" else error.type
    return {"error": {"code": error.status, "message": error.message, "type": kind, "param": error.param, **error.extra}}


ROUTES = [
    ("POST", "/completion", completion), ("POST", "/completions", completion),
    ("POST", "/tokenize", tokenize), ("POST", "/detokenize", detokenize), ("POST", "/apply-template", apply_template),
    ("GET", "/props", props), ("GET", "/slots", slots),
]

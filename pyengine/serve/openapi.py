"""/openapi.json: the dialects' tables as an OpenAPI description. Knows no field itself. Imported by serve.app.

What has no table (answers, events) is described by the members that are always there.
"""
import re

from .. import __version__
from . import llama_server, openai, vectors
from .fields import takes

DIALECTS = (openai, llama_server, vectors)


def _object(**properties) -> dict:
    return {"type": "object", "properties": properties, "required": list(properties)}


_TEXT, _COUNT, _LIST = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "array"}
_OPENAI = {"object": _TEXT, "id": _TEXT, "created": _COUNT, "model": _TEXT, "choices": {"type": "array", "minItems": 1}, "usage": _object(
    prompt_tokens=_COUNT, completion_tokens=_COUNT, total_tokens=_COUNT)}
_NATIVE = _object(index=_COUNT, content=_TEXT, stop={"const": True}, tokens_predicted=_COUNT, tokens_evaluated=_COUNT, timings={"type": "object"})

# What a 200 holds, by path; and of POSTs that can stream, the events.
ANSWERS = {
    "/v1/models": _object(object={"const": "list"}, data=_LIST), "/models": _object(object={"const": "list"}, data=_LIST),
    "/v1/models/{model}": _object(id=_TEXT, object={"const": "model"}),
    "/v1/completions": _object(**_OPENAI), "/v1/chat/completions": _object(**_OPENAI), "/chat/completions": _object(**_OPENAI),
    "/completion": {"anyOf": [_NATIVE, {"type": "array"}, {"type": "object"}]}, "/completions": {"anyOf": [_NATIVE, {"type": "array"}, {"type": "object"}]},
    "/tokenize": _object(tokens=_LIST), "/detokenize": _object(content=_TEXT), "/apply-template": _object(prompt=_TEXT),
    **dict.fromkeys(("/v1/embeddings", "/embeddings"), _object(object={"const": "list"}, data=_LIST, model=_TEXT, pooling=_TEXT, usage={"type": "object"})),
    **dict.fromkeys(("/v1/rerank", "/rerank", "/v1/reranking", "/reranking"), _object(object={"const": "list"}, results=_LIST, model=_TEXT, usage={"type": "object"})),
    "/props": _object(total_slots=_COUNT), "/slots": _LIST,
}
ERROR = _object(error={"type": "object", "properties": {"message": _TEXT, "type": _TEXT}, "required": ["message", "type"]})
STATUSES = {"400": "the request is wrong; param names the field", "401": "no key, or a wrong one", "403": "a foreign Host or Origin",
            "404": "no such model", "405": "no such method", "408": "the deadline passed", "413": "the body is too large", "415": "not plain JSON", "429": "too many requests wait",
            "503": "not ready"}


def describe(dialects=DIALECTS) -> dict:
    paths: dict = {}
    for dialect in dialects:
        for method, path, handler in dialect.ROUTES:
            operation = {"operationId": f"{method.lower()}{re.sub('[^a-z0-9]+', '_', path)}", "tags": [dialect.__name__.rpartition(".")[2]],
                         "responses": _responses(path, handler.table)}
            if handler.table is not None:
                operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": handler.table.schema()}}}
            names = re.findall(r"{(\w+)}", path)
            if names:
                operation["parameters"] = [{"name": n, "in": "path", "required": True, "schema": _TEXT} for n in names]
            paths.setdefault(path, {}).setdefault(method.lower(), operation)
    return {"openapi": "3.1.0", "info": {"title": "pyengine", "version": __version__}, "paths": paths,
            "components": {"schemas": {"Error": ERROR}, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}}}


def _responses(path: str, table) -> dict:
    content = {"application/json": {"schema": ANSWERS.get(path, {})}}
    if table is not None and "stream" in table.fields:
        content["text/event-stream"] = {"schema": _object(data=_TEXT)}
    out = {"200": {"description": "the answer", "content": content}}
    for status, meaning in STATUSES.items():
        out[status] = {"description": meaning, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    return out


@takes(None)
async def openapi(server, ctx, values):
    return describe()


ROUTES = [("GET", "/openapi.json", openapi)]

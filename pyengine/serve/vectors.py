"""/v1/embeddings in OpenAI's form and /v1/rerank in Jina's, as tables and the shapes of answers.

Not HTTP (app.py), not checks (fields.py), not what vectors are made of (embed.py). Imported by serve.openapi, which lists the
dialects. docs/embeddings.md is the description for users.
"""
import base64
import sys

from .. import embed
from . import answers as a, rows
from .fields import FLAG, TEXT, Choice, Either, Field, List, Object, Table, Whole, takes
from .openai import harmless

MAX_TEXTS = 2048           # of one request, as OpenAI has it

HOW = [f for f in rows.extensions() if f.name != "timings"]

EMBEDDING = Table(
    "embedding",
    Field("input", Either(TEXT, rows.IDS, List(Either(TEXT, rows.IDS), 1, MAX_TEXTS)), to="texts", required=True,
          about="a text, token ids, or a list of either"),
    Field("model", TEXT, about="the name that /v1/models gives, or absent"),
    Field("encoding_format", Choice("float", "base64"), default="float", about="base64: the float32 of a vector, little-endian"),
    Field("dimensions", Whole(1), about="only the first so many, for models trained for that"),
    Field("normalize", FLAG, default=True, about="vectors as long as 1"),
    Field("pooling", Choice(*embed.POOLINGS[:-1]), about="absent: what the model's file says; none: a vector for each token"),
    Field("truncate_prompt_tokens", refused="a text is never cut: one that does not fit is an error"),
    harmless("user", "nobody is told apart by it; API keys do that", TEXT),
    HOW,
)

DOCUMENT = Table("document", Field("text", TEXT, required=True))

RERANK = Table(
    "rerank",
    Field("query", TEXT, required=True),
    Field("documents", List(Either(TEXT, Object(DOCUMENT)), 1, MAX_TEXTS), required=True, about="texts, or objects with a text"),
    Field("model", TEXT, about="the name that /v1/models gives, or absent"),
    Field("top_n", Whole(1), about="only the best so many"),
    Field("return_documents", FLAG, default=False, about="each result with its document"),
    Field("texts", refused="the name here is documents"),
    Field("max_tokens_per_doc", refused="a document is never cut: one that does not fit is an error"),
    harmless("user", "nobody is told apart by it; API keys do that", TEXT),
    HOW,
)


@takes(EMBEDDING)
async def embeddings(server, ctx, values):
    a.check_model(server, values.get("model"))
    program, how = server.llm.llama.program, _how(ctx, values)
    dimensions = embed.check(program, values["normalize"], values.get("dimensions"))
    texts, _ = embed.listed(values["texts"])
    jobs, pools = await server.llm.run(lambda llama, notify: embed.start(llama, texts, values.get("pooling"), notify=notify, **how))

    def shown():
        return [_shown(pool.vector(values["normalize"], dimensions), values["encoding_format"]) for pool in pools]

    data = [{"object": "embedding", "index": i, "embedding": v} for i, v in enumerate(await server.work(shown))]
    return {"object": "list", "data": data, "model": server.model, "pooling": pools[0].pooling, "usage": _usage(jobs)}


@takes(RERANK)
async def rerank(server, ctx, values):
    a.check_model(server, values.get("model"))
    how = _how(ctx, values)
    texts = [d if isinstance(d, str) else d["text"] for d in values["documents"]]
    jobs, pools = await server.llm.run(lambda llama, notify: embed.start_rank(llama, values["query"], texts, notify=notify, **how))
    results = []
    for index, score in embed.ranked(pools, values.get("top_n")):
        results.append({"index": index, "relevance_score": score, **({"document": {"text": texts[index]}} if values["return_documents"] else {})})
    return {"object": "list", "model": server.model, "results": results, "usage": _usage(jobs)}


def _how(ctx, values) -> dict:
    return {name: v for name, v in a.options(ctx, values).items() if name in ("priority", "key", "salt", "deadline")}


def _shown(vector, form: str):
    """As numbers or as bytes, of the same float32; of pooling none a list of either."""
    if vector.ndim > 1:
        return [_shown(row, form) for row in vector]
    if form == "float":
        return vector.tolist()
    return base64.b64encode((vector if sys.byteorder == "little" else vector.byteswap()).tobytes()).decode("ascii")


def _usage(jobs) -> dict:
    n = sum(len(job.request.prompt) for job in jobs)
    return {"prompt_tokens": n, "total_tokens": n}


ROUTES = [
    ("POST", "/v1/embeddings", embeddings), ("POST", "/embeddings", embeddings),
    ("POST", "/v1/rerank", rerank), ("POST", "/rerank", rerank), ("POST", "/reranking", rerank), ("POST", "/v1/reranking", rerank),
]

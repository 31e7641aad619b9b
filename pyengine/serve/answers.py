"""From a dialect's values to the engine and back: options, names, usage, timings, logprobs. What dialects share.

Not a dialect: no route and no field's name. Imported by openai, llama_server and those to come.
"""
import functools
import hashlib
import time
import uuid

from .. import __version__
from ..errors import ClosedError
from ..request import Options
from .exchange import HTTPError

OPTIONS = frozenset(Options.__dataclass_fields__) - {"key", "salt", "deadline", "processors"}


def options(ctx, values: dict) -> dict:
    """Keywords of start(): what the table gave, and whose request it is."""
    out = {name: value for name, value in values.items() if name in OPTIONS}
    out["priority"] = max(ctx.priority, values.get("priority", 0))
    anew = values.get("cache_prompt") is False       # under a salt of its own nothing is found, by it or by others
    out["key"], out["salt"] = ctx.key, salt(ctx, uuid.uuid4().hex if anew else values.get("cache_salt"))
    if values.get("deadline_ms") is not None:
        spent = time.monotonic() - ctx.received if ctx.received else 0.0
        out["deadline"] = max(0.0, values["deadline_ms"] / 1e3 - spent)
    return out


def salt(ctx, given: "str | None") -> str:
    """The namespace of the prefix cache: that of the key, and within it what the request names."""
    if given is None:
        return ctx.salt
    return hashlib.sha256(f"{len(ctx.salt)}:{ctx.salt}{given}".encode("utf-8", "surrogatepass")).hexdigest()


def check_model(server, name: "str | None") -> None:
    """A name is compared with the one that is served: never a path, never replaced."""
    if name is not None and name != server.model:
        from ..errors import quoted

        raise HTTPError(404, f"model: {quoted(name, 100)} is not served here, {quoted(server.model)} is", "not_found_error",
                        "model", "model_not_found")


def new_id(prefix: str) -> str:
    return prefix + uuid.uuid4().hex


def finish_reason(result) -> str:
    """stop or length. A deadline is a kind of length; stop_reason() says which."""
    if result.finish_reason is None:
        raise ClosedError("the request was ended before its answer was complete")
    return "stop" if result.finish_reason == "stop" else "length"


def stop_reason(result):
    """The stop string that was met, "deadline", or None."""
    return "deadline" if result.finish_reason == "deadline" else result.stop


def usage(results, per_prompt: int = 1) -> dict:
    """Tokens of all answers; a prompt counts once, and as cached is what its first answer found computed."""
    firsts = results[::per_prompt]
    n_prompt = sum(r.usage["prompt_tokens"] for r in firsts)
    n = sum(r.usage["completion_tokens"] for r in results)
    return {"prompt_tokens": n_prompt, "completion_tokens": n, "total_tokens": n_prompt + n,
            "prompt_tokens_details": {"cached_tokens": sum(r.cached_tokens for r in firsts)}}


def timings(result) -> dict:
    """In llama-server's names; queued_ms and first_ms are ours."""
    t = result.timings
    out = {"cache_n": result.cached_tokens}
    for name in ("prompt", "predicted"):
        n, ms = t[f"{name}_n"], t[f"{name}_ms"]
        out |= {f"{name}_n": n, f"{name}_ms": ms, f"{name}_per_token_ms": ms / n if n else 0.0,
                f"{name}_per_second": t[f"{name}_per_second"]}
    return out | {"queued_ms": t["queued_ms"], "first_ms": t["first_ms"]}


def token_name(entry: dict) -> str:
    """A token as the key of an object: bytes that are no text alone would all have one name."""
    raw = bytes(entry["bytes"])
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{b:02x}" for b in raw)


def mean_logprob(result) -> float:
    entries = result.logprobs or []
    return sum(e["logprob"] for e in entries) / len(entries) if entries else 0.0


def fingerprint(llama) -> str:
    """Changes when answers may: another release, model or type of the KV cache."""
    return _fingerprint(llama.model_path, tuple(f.size for f in llama.gguf.files), llama.program.kv_type)


@functools.lru_cache(maxsize=8)
def _fingerprint(path, sizes, kv_type) -> str:
    h = hashlib.sha256(repr((__version__, sizes, kv_type)).encode())
    with open(path, "rb") as f:              # the header, and weights here and there
        for i in range(17):
            f.seek(max(0, sizes[0] * i // 16 - 4096))
            h.update(f.read(4096))
    return f"fp_{h.hexdigest()[:12]}"

"""Schemathesis against a server process over a tiny model, from its own /openapi.json: whatever comes, no 5xx, and answers as described.

A body that names all of sixty fields at random is always a 400 and slow to draw, so the fields are dealt out: each round
describes a handful of them, and all have their turn. Half of the requests are of the description's kind, half are not.
max_tokens is capped by the tiny context. Long: 500 requests; campaign: 20,000.
"""
import collections
import copy
import json
import random
import sys

import pytest

schemathesis = pytest.importorskip("schemathesis")
pytest.importorskip("starlette")

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

from serve_process import Server

HAND = 6                   # fields beside the required ones that a round describes
WEIGHTS = {"/v1/completions": 3, "/v1/chat/completions": 3, "/completion": 3, "/chat/completions": 0.3, "/completions": 0.3}     # the others: 1
MESSAGES = {"type": "array", "minItems": 1, "maxItems": 4, "items": {
    "type": "object", "required": ["role", "content"], "additionalProperties": False,
    "properties": {"role": {"enum": ["system", "developer", "user", "assistant", "tool"]}, "content": {"type": "string"}}}}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    import tiny_gguf

    path = tmp_path_factory.mktemp("schemathesis") / "tiny.gguf"
    tiny_gguf.write(path, tiny_gguf.Spec(vocabulary="bpe", n_embd=32, n_ff=(48,), n_head=2, n_head_kv=(1,), chat_template=tiny_gguf.CHATML))
    with Server(path, "--alias", "tiny", "-c", "128", "--parallel", "16", "--no-access-log") as server:
        yield server


def hands(schema, draw):
    """Descriptions of a few fields each, which together have them all; names of models are the one that is there, in
    half of them messages are short and good."""
    required = schema.get("required", [])
    spare = [k for k in schema["properties"] if k not in required]
    draw.shuffle(spare)
    for i in range(0, max(1, len(spare)), HAND):
        properties = {k: schema["properties"][k] for k in (*required, *spare[i:i + HAND])}
        if "model" in properties:
            properties["model"] = {"enum": ["tiny", None, "gpt-4o"]}
        if "messages" in properties and draw.random() < 0.5:
            properties["messages"] = MESSAGES
        yield {**schema, "properties": properties}


def rounds(described, n, draw):
    """(operation, mode, requests to send), about n in all."""
    from schemathesis import GenerationMode

    posts = {path: operation["post"] for path, operation in described["paths"].items() if "post" in operation}
    total = sum(WEIGHTS.get(path, 1) for path in posts)
    for path, post in posts.items():
        share, schema = n * WEIGHTS.get(path, 1) / total, post["requestBody"]["content"]["application/json"]["schema"]
        variants = list(hands(schema, draw))
        while len(variants) * 20 < share:                # no more than twenty requests of one hand, then all are dealt anew
            variants += hands(schema, draw)
        for variant in variants:
            one = copy.deepcopy(described)
            one["paths"] = {path: {"post": copy.deepcopy(post)}}
            one["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"] = variant
            (operation,) = [r.ok() for r in schemathesis.openapi.from_dict(one).get_all_operations()]
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                yield operation, mode, max(1, round(share / len(variants) / 2))
    gets = copy.deepcopy(described)
    gets["paths"] = {path: {"get": operation["get"]} for path, operation in described["paths"].items() if "get" in operation}
    for result in schemathesis.openapi.from_dict(gets).get_all_operations():
        yield result.ok(), GenerationMode.POSITIVE, 5


def check(server, n):
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance

    checks = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
    seen, draw = collections.Counter(), random.Random(n)
    for operation, mode, examples in rounds(server.get("/openapi.json")[1], n, draw):

        @seeded(draw.randrange(2**32))
        @settings(max_examples=examples, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=mode))
        def send(case):
            response = case.call(base_url=server.url, timeout=120)
            seen[response.status_code, operation.path] += 1
            case.validate_response(response, checks=checks)

        send()
        print(f"\r{sum(seen.values())} requests", end="", file=sys.stderr, flush=True)
    by_status = collections.Counter()
    for (status, _), count in seen.items():
        by_status[status] += count
    print(dict(by_status), json.dumps({path: count for (status, path), count in sorted(seen.items()) if status == 200}))
    assert sum(by_status.values()) >= n
    assert by_status[200] >= 0.1 * n and by_status[400] >= 0.1 * n and not any(status >= 500 for status in by_status)
    assert all(seen[200, path] for path in WEIGHTS)
    assert server.get("/health")[0] == 200 and not any(s["is_processing"] for s in server.get("/slots")[1])
    assert not any("Traceback" in line for line in server.lines)


@pytest.mark.long
def test_500_requests_from_the_description(server):
    check(server, 500)


@pytest.mark.campaign
@pytest.mark.timeout(5400)
def test_20000_requests_from_the_description(server):
    check(server, 20_000)

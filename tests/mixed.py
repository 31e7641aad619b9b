"""Many different requests at once, and each of them alone: what test_serve_mixed.py compares. Not a test.

The requests are made from a seed: short and long prompts (many with a common beginning), completions and
chats, streaming and not, one and two choices, JSON schema, two priorities, temperature 0 and 0.8, logprobs,
stop strings, and some whose client goes away. What comes back is reduced to what has to be equal: the text,
the reason why it ended, the token counts, the logprobs.
"""

import asyncio
import json
import random

from texts import PASSAGES, PROMPTS

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 130},
                   "kind": {"enum": ["cat", "dog", "bird"]}},
    "required": ["name", "age", "kind"], "additionalProperties": False,
}


GROWING = 12


def requests(n, seed=1, cancelled=0.15):
    """n requests: (path, body, after): `after` None, or how many seconds or events later the client goes away."""
    rng, out = random.Random(seed), []
    for i in range(n):
        kind = rng.choices(["short", "long", "chat", "schema"], [4, 2, 3, 1])[0] if i >= GROWING else "growing"
        body = {"model": "default", "seed": rng.randrange(1 << 31), "temperature": rng.choice([0, 0.8]),
                "stream": rng.random() < 0.5, "priority": rng.choice([0, 0, 1])}
        if kind == "growing":        # they begin together on a page each and come to want five: a small pool has to preempt
            body.update(prompt=f"{i}. {rng.choice(PROMPTS)}", max_tokens=280, ignore_eos=True, priority=0)
        elif kind == "short":
            body.update(prompt=f"{i}. {rng.choice(PROMPTS)}", max_tokens=rng.choice([6, 24, 64, 192]))
        elif kind == "long":         # a common beginning of any length, then a text of its own
            text = " ".join(" ".join(PASSAGES).split()[:rng.randrange(100, 700)])
            body.update(prompt=f"{text}\n\n{i}. {rng.choice(PROMPTS)}", max_tokens=rng.randrange(4, 24))
        elif kind == "chat":
            turns = [{"role": "system", "content": "You are brief. " + PASSAGES[rng.randrange(3)][: rng.choice([60, 600])]},
                     {"role": "user", "content": f"{rng.choice(PROMPTS)} ({i % 7})"}]
            if rng.random() < 0.4:
                turns += [{"role": "assistant", "content": "I see."}, {"role": "user", "content": "Say more."}]
            body.update(messages=turns, max_tokens=rng.choice([6, 24, 64, 192]))
        else:
            body.update(messages=[{"role": "user", "content": f"Describe pet number {i} as JSON with name, age and kind."}],
                        max_tokens=96, response_format={"type": "json_schema", "json_schema": {"name": "pet", "strict": True, "schema": SCHEMA}})
        if rng.random() < 0.15 and kind != "growing":
            body["n"] = 2
        if rng.random() < 0.15 and kind != "growing":
            body["stop"] = rng.choice([["\n"], [".", "!"], " the"])
        if rng.random() < 0.2:
            body.update({"logprobs": True, "top_logprobs": 3} if "messages" in body else {"logprobs": 3})
        if rng.random() < 0.1:
            body["frequency_penalty"] = 0.7
        after = rng.choice([0.0, 0.02, 0.2, 1.0]) if rng.random() < cancelled and kind != "growing" else None
        if body["stream"]:
            body["stream_options"] = {"include_usage": True}
        out.append(("/v1/chat/completions" if "messages" in body else "/v1/completions", body, after))
    return out


def _choice(choice):
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    return {"text": text, "finish_reason": choice["finish_reason"], "logprobs": choice.get("logprobs")}


def _join(events):
    """The choices of a stream, as they would have been in one piece."""
    choices, usage = {}, None
    for event in events:
        usage = event.get("usage") or usage
        for part in event["choices"]:
            c = choices.setdefault(part["index"], {"text": "", "finish_reason": None, "logprobs": None})
            c["text"] += (part["delta"].get("content") or "") if "delta" in part else part["text"]
            c["finish_reason"] = part["finish_reason"] or c["finish_reason"]
            for name, values in (part.get("logprobs") or {}).items():
                if values is not None:
                    c["logprobs"] = c["logprobs"] or {}
                    c["logprobs"].setdefault(name, []).extend(values)
    return [choices[i] for i in sorted(choices)], usage


def _normal(choices, usage):
    for c in choices:
        if c["logprobs"]:            # a stream has no nulls beside lists
            c["logprobs"] = {k: v for k, v in c["logprobs"].items() if v is not None}
    return {"choices": choices, "prompt_tokens": usage["prompt_tokens"], "completion_tokens": usage["completion_tokens"]}


async def ask(client, path, body, after=None):
    """The answer in its normal form; None if the client went away; RuntimeError for any status but 200."""
    async def whole():
        if not body["stream"]:
            reply = await client.post(path, json=body)
            if reply.status_code != 200:
                raise RuntimeError(f"{reply.status_code}: {reply.text[:300]}")
            data = reply.json()
            return _normal([_choice(c) for c in data["choices"]], data["usage"])
        async with client.stream("POST", path, json=body) as reply:
            if reply.status_code != 200:
                raise RuntimeError(f"{reply.status_code}: {(await reply.aread())[:300]!r}")
            events, ended = [], False
            async for line in reply.aiter_lines():
                if line.startswith("data: [DONE]"):
                    ended = True
                elif line.startswith("data: "):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise RuntimeError(f"in the stream: {event['error']}")
                    events.append(event)
            if not ended:
                raise RuntimeError("the stream ended without [DONE]")
            return _normal(*_join(events))

    if after is None:
        return await whole()
    try:
        return await asyncio.wait_for(whole(), after)
    except asyncio.TimeoutError:
        return None


async def all_at_once(client, work, at_once):
    """Answers in the order of `work`, at most `at_once` under way; an exception stands in its answer's place."""
    seats = asyncio.Semaphore(at_once)

    async def one(path, body, after):
        async with seats:
            try:
                return await ask(client, path, body, after)
            except Exception as e:
                return e

    return await asyncio.gather(*(one(*w) for w in work))

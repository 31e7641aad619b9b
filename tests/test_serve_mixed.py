"""One answer, served: whatever else runs, a request gets the bytes it gets alone on a fresh engine.

Hundreds of mixed requests (mixed.py) go to `pyengine-cli serve` with SmolLM2, sixteen sequences at one time; then
each that was not cancelled is asked again, alone, of a model opened for it with nothing that could matter: one
request, no prefix cache, no speculation. Run whole (500 requests, every setting) with PYENGINE_CAMPAIGN=1.
"""

import asyncio
import contextlib
import functools
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

import mixed

ROOT = pathlib.Path(__file__).resolve().parent.parent
CAMPAIGN = bool(os.environ.get("PYENGINE_CAMPAIGN"))
N = 500 if CAMPAIGN else 60
CONTEXT = 2048

# What must not matter, and what does: the type of the cache. A whole context is 32 pages of 64; a pool of 33 forces preemption.
SETTINGS = {
    "f16": [],
    "f16, small pool": ["--cache-tokens", "2112", "--speculate", "off"],
    "f16, small pool, no prefix cache": ["--cache-tokens", "2112", "--no-prefix-cache"],
    "f16, no prefix cache, no speculation": ["--no-prefix-cache", "--speculate", "off"],
    "q8_0": ["-ctk", "q8_0"],
    "q8_0, small pool": ["-ctk", "q8_0", "--cache-tokens", "2112"],
    "q8_0, small pool, no prefix cache, no speculation": ["-ctk", "q8_0", "--cache-tokens", "2112", "--no-prefix-cache", "--speculate", "off"],
    "q4_0, small pool": ["-ctk", "q4_0", "--cache-tokens", "2112"],
}
OFTEN = ("f16", "f16, small pool", "q8_0, small pool")      # those of the normal long run

pytestmark = [pytest.mark.long, pytest.mark.timeout(7200 if CAMPAIGN else 900)]


@contextlib.contextmanager
def served(path, tmp_path, options):
    """A server process on a unix socket; ends it with SIGTERM and wants exit code 0."""
    sock, log = tmp_path / "socket", open(tmp_path / "log", "w+")
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; from pyengine.cli import main; sys.exit(main())", "serve", "-m", str(path), "-c", str(CONTEXT), "-t", "2", "--alias", "default",
         "--unix-socket", str(sock), "--max-queue", "1000", "--no-access-log", *options], cwd=ROOT, stderr=log, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        yield process, sock
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, (tmp_path / "log").read_text()[-2000:]
    finally:
        process.kill()
        process.wait()
        log.close()


def client(transport):
    import httpx

    return httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=1200)


async def ready(http):
    for _ in range(600):
        with contextlib.suppress(Exception):
            if (await http.get("/health")).status_code == 200:
                return
        await asyncio.sleep(0.1)
    raise AssertionError("the server did not become ready")


async def gauges(http):
    text = (await http.get("/metrics")).text
    return {m[1]: float(m[2]) for m in re.finditer(r"^pyengine_(\w+?)(?:\{[^}]*\})? ([0-9.e+]+)$", text, re.M)}


@functools.cache
def alone(path, kv_type, index, n):
    """The answer to request `index` of n by an engine made for it."""
    import httpx

    from pyengine import Llama
    from pyengine.serve import Settings, create_app

    route, body, _ = mixed.requests(n)[index]
    with Llama(path, n_ctx=CONTEXT, n_threads=2, max_seqs=2, kv_type=kv_type, prefix_cache=False, speculate=None) as llm:

        async def one():
            async with client(httpx.ASGITransport(create_app(llm, Settings(model="default")))) as http:
                return await mixed.ask(http, route, body)

        return asyncio.run(one())


@pytest.mark.parametrize("setting", SETTINGS if CAMPAIGN else OFTEN)
def test_mixed_requests_get_the_bytes_they_get_alone(real_model, tmp_path, setting):
    import httpx

    path, options = real_model("smollm2"), SETTINGS[setting]
    work = mixed.requests(N)

    async def run():
        async with client(httpx.AsyncHTTPTransport(uds=str(sock), limits=httpx.Limits(max_connections=200))) as http:
            await ready(http)
            begin = time.monotonic()
            answers = await mixed.all_at_once(http, work, 64)
            seconds = time.monotonic() - begin
            for _ in range(100):         # who went away is noticed within a step
                facts = await gauges(http)
                if not facts["num_requests_running"] + facts["num_requests_waiting"] + facts["kv_cache_usage_perc"]:
                    break
                await asyncio.sleep(0.1)
            return answers, facts, seconds

    with served(path, tmp_path, options) as (_, sock):
        answers, facts, seconds = asyncio.run(run())
    errors = [(i, a) for i, a in enumerate(answers) if isinstance(a, BaseException)]
    assert not errors, errors[:5]
    assert facts["num_requests_running"] == facts["num_requests_waiting"] == facts["kv_cache_usage_perc"] == 0, facts
    kv_type = options[options.index("-ctk") + 1] if "-ctk" in options else "f16"
    given = [i for i, a in enumerate(answers) if a is not None]
    assert all(answers[i] is not None for i, (_, _, after) in enumerate(work) if after is None)
    different = [i for i in given if answers[i] != alone(str(path), kv_type, i, N)]
    print(f"{setting}: {len(work)} requests in {seconds:.1f} s, {len(given)} answered, {len(different)} different; "
          f"{facts.get('num_preemptions_total', 0):.0f} preemptions, {facts.get('prefix_cache_hits_total', 0):.0f} cached tokens, "
          f"{facts.get('spec_decode_num_accepted_tokens_total', 0):.0f} guessed")
    assert not different, [(i, work[i][1], answers[i], alone(str(path), kv_type, i, N)) for i in different[:2]]
    if "small pool" in setting:
        assert facts["num_preemptions_total"] > 0, "the pool was not short: nothing was shown"

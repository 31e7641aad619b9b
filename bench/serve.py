#!/usr/bin/env python3
"""pyengine's server beside llama-server (inside xllamacpp), in one run: many requests at once, and a shared system prompt.

    python bench/serve.py [--model FILE] [--rounds N] [--concurrent 16] [--prompt 128] [--tokens 64] [--system 1000] [--threads N]
                          [--peer-python PY] [--peer-setting NAME] [--also avx2 lookup-off] [--ours-only] [--peer-only]
                          [--resume] [--lock FILE] [--result FILE]

Both run as servers of their own on this machine and stay up; an asyncio client sends the same requests to one and then
the other, round by round (A B A B), so that a busy neighbour hits both. Medians over the rounds count.

many      `concurrent` streaming requests to /v1/completions at one moment, each with `prompt` ids of its own and `tokens` new
          tokens (temperature 0, ignore_eos). Tokens/s is all new tokens over the time from the first byte sent to the last
          received; time to first token is each request's own, and the median of a round's requests is the round's.
system    a prompt of `system` ids and a question, then the same ids and another question: time to first token of both.

Prompts are slices of English text from this repository, never used twice: a prefix cache finds nothing in `many`, and in `system`
only what it should. The peer's settings (flash attention or not, weights repacked or not, one KV buffer for all slots or
one each) are each tried with one round; the two best are measured in all rounds and the better median counts, per
figure. Ours runs as `pyengine-cli serve` comes; --also: and held to AVX2, which is what the peer's wheel uses, or without
guessing tokens. Every server answers a short request first. A server that gives another number of tokens than was asked for
is an error. The client is the same for both and is not subtracted. --resume: add to the samples of the result file, so that a
table may be put together from short runs, each with both sides in it. --lock: hold this file's lock during each round,
where several people measure on one machine.
"""

import argparse
import asyncio
import contextlib
import fcntl
import importlib.util
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import machine_facts
import report

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent

# Of the peer: name -> (flash attention, repacked weights, one KV buffer). "auto" is what llama-server chooses.
PEER_SETTINGS = {"fa": (1, True, False), "plain": (0, True, False), "fa+unified": (1, True, True), "fa+norepack": (1, False, False)}
START_SECONDS, ANSWER_SECONDS = 120, 300
QUESTIONS = ("\n\nQuestion: what is the first thing that is described above?\nAnswer:", "\n\nQuestion: what would you change in it, and why?\nAnswer:")


# ---- servers ---------------------------------------------------------------------


class Server:
    """A child process that serves; stderr goes to a file, whose end is in the error if it does not come up."""

    def __init__(self, name, command, env=None):
        self.name = name
        self.log = tempfile.NamedTemporaryFile("w+", prefix="pyengine-bench-", suffix=".log")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})}, cwd=ROOT)
        self.url = None

    def wait(self):
        import httpx

        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self.process.poll() is None:
            self.url = self.url or self._address()
            if self.url:
                with contextlib.suppress(httpx.HTTPError):
                    if httpx.get(self.url + "/health", timeout=5).status_code == 200:
                        return self
            time.sleep(0.1)
        tail = self.tail()
        self.close()
        raise RuntimeError(f"{self.name} did not come up: {tail}")

    def tail(self):
        self.log.flush()
        return pathlib.Path(self.log.name).read_text(errors="replace")[-600:]

    def _address(self):
        found = re.findall(r"http://127\.0\.0\.1:\d+", pathlib.Path(self.log.name).read_text(errors="replace"))
        return next((url for url in found if not url.endswith(":0")), None)

    def warm(self, args):
        async def short():
            async with client_of(args) as client:
                await asyncio.gather(*(one(client, self.url, [100 + i] * 32, 4) for i in range(args.concurrent)))

        asyncio.run(short())
        return self

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()


def ours(args, also=None):
    speculate = "off" if also == "lookup-off" else "lookup"
    return Server("pyengine" + (f" {also}" if also else ""), [
        sys.executable, "-c", "import sys; from pyengine.cli import main; sys.exit(main())", "serve", "-m", args.model, "--host", "127.0.0.1", "--port", "0", "--parallel", str(args.concurrent),
        "-c", str(args.n_ctx), "--speculate", speculate, "--no-access-log", *(["-t", str(args.threads)] if args.threads else [])],
        env={"PYTHONPATH": str(ROOT), **({"PYENGINE_ISA": also} if also == "avx2" else {})})


def peer(args, setting):
    return Server(f"xllamacpp {setting}", [args.peer_python, str(HERE / "serve.py"), "--be-peer", setting, "--model", args.model, "--concurrent",
                                           str(args.concurrent), "--n-ctx", str(args.n_ctx), "--threads", str(args.threads or os.cpu_count())])


def be_peer(args):
    """In the peer's process: its server object, which listens by itself."""
    import xllamacpp

    flash, repack, unified = PEER_SETTINGS[args.be_peer]
    p = xllamacpp.CommonParams()
    p.model.path, p.hostnames, p.port = args.model, ["127.0.0.1"], 0
    p.n_parallel, p.n_ctx = args.concurrent, args.n_ctx * args.concurrent    # divided among the slots
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = args.threads
    p.flash_attn_type = xllamacpp.llama_flash_attn_type(flash)
    p.no_extra_bufts, p.kv_unified, p.fit_params, p.verbosity = not repack, unified, False, -1
    server = xllamacpp.Server(p)
    print(server.listening_address, flush=True)
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    while not stop:
        time.sleep(0.2)
    os._exit(0)                      # its own end waits for connections


# ---- the client ------------------------------------------------------------------


async def one(client, url, prompt, n_tokens):
    """(seconds to the first token, seconds to the last byte) of a streaming request."""
    body = {"prompt": prompt, "max_tokens": n_tokens, "temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    start, first, usage, rest = time.perf_counter(), None, None, b""
    async with client.stream("POST", url + "/v1/completions", json=body) as response:
        if response.status_code != 200:
            raise RuntimeError(f"{url}: {response.status_code} {(await response.aread())[:300]!r}")
        async for data in response.aiter_bytes():
            *events, rest = (rest + data).split(b"\n\n")
            for event in events:
                if not event.startswith(b"data: {"):
                    continue
                event = json.loads(event[6:])
                if first is None and any(c["text"] for c in event.get("choices", ())):
                    first = time.perf_counter() - start
                usage = event.get("usage") or usage
                if "error" in event:
                    raise RuntimeError(f"{url}: {event['error']}")
    made = (usage or {}).get("completion_tokens")
    if made != n_tokens or first is None:
        raise RuntimeError(f"{url}: {made} tokens, expected {n_tokens}")
    return first, time.perf_counter() - start


def client_of(args):
    import httpx

    return httpx.AsyncClient(timeout=ANSWER_SECONDS, limits=httpx.Limits(max_connections=args.concurrent + 4), trust_env=False)


async def many(args, server, prompts):
    async with client_of(args) as client:
        start = time.perf_counter()
        answers = await asyncio.gather(*(one(client, server.url, p, args.tokens) for p in prompts))
        seconds = time.perf_counter() - start
    return {"tokens_per_second": len(prompts) * args.tokens / seconds, "first_ms": 1e3 * statistics.median(f for f, _ in answers)}


async def system(args, server, prompts):
    async with client_of(args) as client:
        first, second = [await one(client, server.url, p, 8) for p in prompts]
    return {"system_first_ms": 1e3 * first[0], "system_second_ms": 1e3 * second[0]}


class Texts:
    """Slices of ids of English text, each handed out once."""

    def __init__(self, url, anywhere):
        files = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("bench/*.md")])
        text = "\n\n".join(f.read_text(encoding="utf-8") for f in files)
        self.ids = self.tokenize(url, text)
        self.at = int(time.time()) % (len(self.ids) // 2) if anywhere else 0     # a run that is resumed goes on elsewhere
        self.questions = [self.tokenize(url, q) for q in QUESTIONS]

    @staticmethod
    def tokenize(url, text):
        import httpx

        return httpx.post(url + "/tokenize", json={"content": text}, timeout=60, trust_env=False).raise_for_status().json()["tokens"]

    def take(self, n):
        if self.at + n > len(self.ids):
            raise RuntimeError(f"{len(self.ids)} ids of text are not enough for so many rounds")
        self.at += n
        return self.ids[self.at - n:self.at]


# ---- rounds ----------------------------------------------------------------------


@contextlib.contextmanager
def locked(path):
    if path is None:
        yield
        return
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def one_round(args, servers, texts, samples, busy):
    """The same requests to every server, one after the other."""
    prompts = [texts.take(args.prompt) for _ in range(args.concurrent)]
    head = texts.take(args.system)
    asked = [head + q for q in texts.questions]
    for server in servers:
        with locked(args.lock):
            watch = machine_facts.Busy([s.process.pid for s in servers])
            try:
                found = asyncio.run(many(args, server, prompts))
                found |= asyncio.run(system(args, server, asked))
            except Exception as e:
                raise RuntimeError(f"{server.name}: {type(e).__name__}: {e}; its last words: {server.tail()}") from e
            busy.append(watch.others([s.process.pid for s in servers]))
        for name, value in found.items():
            samples.setdefault(server.name, {}).setdefault(name, []).append(value)
        print(f"  {server.name:24} {found['tokens_per_second']:7.1f} tokens/s  first {found['first_ms']:7.0f} ms  system "
              f"{found['system_first_ms']:6.0f} -> {found['system_second_ms']:5.0f} ms", file=sys.stderr, flush=True)


def best_peers(args, texts):
    """The two settings that give most tokens/s in one round each, still running."""
    tried = []
    for setting in PEER_SETTINGS:
        try:
            server = peer(args, setting).wait().warm(args)
        except RuntimeError as e:
            print(f"  {e}", file=sys.stderr)
            continue
        samples = {}
        one_round(args, [server], texts, samples, [])
        tried.append((samples[server.name]["tokens_per_second"][0], server))
        tried.sort(key=lambda t: -t[0])
        while len(tried) > 2:
            tried.pop()[1].close()
    return [server for _, server in tried]


FIGURES = {"tokens_per_second": ("tokens/s, all requests", 1), "first_ms": ("time to first token, ms", 0),
           "system_first_ms": ("system prompt, first time, ms", 0), "system_second_ms": ("system prompt, second time, ms", 0)}


def table(entry):
    """The Markdown table and what follows from it."""
    medians = {side: {name: statistics.median(v) for name, v in found.items()} for side, found in entry["sides"].items()}
    mine = medians.get("pyengine")
    others = [side for side in medians if side.startswith("xllamacpp")]
    lines = [f"| {entry['concurrent']} requests, {entry['prompt']}-token prompts, {entry['tokens']} new tokens | pyengine | xllamacpp's llama-server | ratio |",
             "|---|---:|---:|---:|"]
    facts = {}
    for name, (title, more) in FIGURES.items():
        a = mine and mine[name]
        side = (max if more else min)(others, key=lambda s: medians[s][name]) if others else None
        b = side and medians[side][name]
        ratio = (a / b if more else b / a) if a and b else None
        facts[name] = ratio
        lines.append(f"| {title} | {'' if a is None else f'{a:.0f}'} | {'' if b is None else f'{b:.0f} ({side.split()[-1]})'} | {'' if ratio is None else f'{ratio:.2f}x'} |")
    for side, found in medians.items():
        facts[f"sooner {side}"] = sooner = found["system_first_ms"] / found["system_second_ms"]
        lines.append(f"\n{side}: a shared {entry['system']}-token prompt is answered {sooner:.1f} times sooner the second time")
    return "\n".join(lines), facts


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", help="default: smollm2 of the catalog")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--concurrent", type=int, default=16)
    p.add_argument("--prompt", type=int, default=128)
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--system", type=int, default=1000)
    p.add_argument("--n-ctx", type=int, default=1536, help="positions of each request")
    p.add_argument("--threads", type=int, help="of both; default: ours chooses, the peer gets every core")
    p.add_argument("--peer-python", default=os.environ.get("PYENGINE_BENCH_XLLAMACPP"), help="interpreter with xllamacpp; default: this one, if it has it")
    p.add_argument("--peer-setting", choices=PEER_SETTINGS, help="measure this setting of the peer and try no others")
    p.add_argument("--ours-only", action="store_true")
    p.add_argument("--peer-only", action="store_true", help="with --peer-setting")
    p.add_argument("--also", nargs="*", choices=("avx2", "lookup-off"), default=[], help="measure ours in these ways too")
    p.add_argument("--resume", action="store_true")
    p.add_argument("--lock", metavar="FILE")
    p.add_argument("--result", type=pathlib.Path, help="default: bench/results/DATE-CPU.serve.json")
    p.add_argument("--be-peer", choices=PEER_SETTINGS, help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.model is None:
        args.model = subprocess.run([sys.executable, "-m", "pyengine.cli.pull", "smollm2"], check=True, capture_output=True, text=True, cwd=ROOT,
                                    env={**os.environ, "PYTHONPATH": str(ROOT)}).stdout.split("\n")[0]
    if args.be_peer:
        return be_peer(args)
    if args.peer_python is None and importlib.util.find_spec("xllamacpp"):
        args.peer_python = sys.executable
    if args.peer_only and not args.peer_setting:
        p.error("--peer-only needs --peer-setting")
    if args.peer_python is None and not args.ours_only:
        print("no interpreter with xllamacpp (--peer-python): ours only", file=sys.stderr)
        args.ours_only = True

    servers, samples, busy = [], {}, []
    try:
        if not args.peer_only:
            servers += [ours(args, also).wait().warm(args) for also in (None, *args.also)]
        if args.peer_setting and not args.ours_only:
            servers.append(peer(args, args.peer_setting).wait().warm(args))
        texts = Texts(servers[0].url, args.resume)
        if not args.peer_setting and not args.ours_only:
            servers += best_peers(args, texts)
        print("measured:", file=sys.stderr)
        for _ in range(args.rounds):
            one_round(args, servers, texts, samples, busy)
    finally:
        for server in servers:
            server.close()
    facts = machine_facts.facts(ROOT)
    result = args.result or HERE / "results" / f"{facts['date'][:10]}-{machine_facts.slug()}.serve.json"
    if args.resume and result.exists():
        earlier = report.read(result)
        for side, found in earlier["sides"].items():
            for name, values in found.items():
                mine = samples.setdefault(side, {})
                mine[name] = values + mine.get(name, [])
        busy.append(earlier["busy"])
    entry = {"model": pathlib.Path(args.model).name, "rounds": max(len(v) for found in samples.values() for v in found.values()), "concurrent": args.concurrent, "prompt": args.prompt, "tokens": args.tokens,
             "system": args.system, "n_ctx": args.n_ctx, "threads": args.threads, "busy": max(busy), "sides": samples, "run": facts}
    markdown, entry["ratios"] = table(entry)
    report.save(entry, result)
    result.with_suffix(".md").write_text(markdown + "\n")
    print(markdown)
    print(f"\nbusy: at most {entry['busy']:.2f} cores taken by others; samples in {result}")


if __name__ == "__main__":
    main()

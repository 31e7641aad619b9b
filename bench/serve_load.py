#!/usr/bin/env python3
"""Many connections at once against a running server: which answers they get, and how fast /health is meanwhile.

    pyengine-cli serve -m smollm2 --port 8080 --no-access-log &
    python bench/serve_load.py --connections 500 --requests 5000 --max-tokens 2

Not a throughput bench (serve.py). The client is asyncio over plain sockets, in a process of its own: it takes a core
while it runs, which the server then lacks. Its own delay is measured (how late a timer fires) and printed beside the
server's. Standard library only.
"""
import argparse
import asyncio
import collections
import json
import os
import time
import urllib.parse


async def exchange(reader, writer, raw: bytes):
    """One request on an open connection: its status, and whether the connection stays open."""
    writer.write(raw)
    await writer.drain()
    head = await reader.readuntil(b"\r\n\r\n")
    headers = head.lower()
    if b"transfer-encoding: chunked" in headers:
        while True:
            size = int((await reader.readline()).split(b";")[0], 16)
            await reader.readexactly(size + 2)
            if not size:
                break
    else:
        length = [int(line[15:]) for line in headers.split(b"\r\n") if line.startswith(b"content-length:")]
        await reader.readexactly(length[0] if length else 0)
    return head.split()[1].decode(), b"connection: close" not in headers


async def worker(open_connection, raw, left, statuses, latencies):
    connection = None
    while left:
        left.pop()
        begin = time.monotonic()
        try:
            if connection is None:
                connection = await open_connection()
            status, stays = await exchange(*connection, raw())
        except (OSError, asyncio.IncompleteReadError) as e:
            status, stays = type(e).__name__, False
        statuses[status] += 1
        latencies[status].append(time.monotonic() - begin)
        if not stays and connection is not None:
            connection[1].close()
            connection = None
    if connection is not None:
        connection[1].close()


async def probe(open_connection, raw, every, out, late):
    """/health again and again, each on a connection of its own."""
    while True:
        begin = time.monotonic()
        try:
            reader, writer = await open_connection()
            status, _ = await exchange(reader, writer, raw)
            writer.close()
        except (OSError, asyncio.IncompleteReadError) as e:
            status = type(e).__name__
        out.append((status, time.monotonic() - begin))
        wake = time.monotonic() + every
        await asyncio.sleep(every)
        late.append(time.monotonic() - wake)


def quantiles(seconds):
    ordered = sorted(seconds)
    pick = lambda q: 1e3 * ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else None
    return {"n": len(ordered), "p50_ms": pick(0.5), "p99_ms": pick(0.99), "max_ms": pick(1.0)}


async def measure(args):
    url = urllib.parse.urlsplit(args.url)

    def open_connection():
        return asyncio.open_connection(url.hostname, url.port)

    key = f"Authorization: Bearer {args.api_key}\r\n" if args.api_key else ""
    counter = iter(range(1 << 60))

    def post():
        body = json.dumps({"prompt": f"Request number {next(counter)}", "max_tokens": args.max_tokens, "temperature": 0, "stream": args.stream}).encode()
        return (f"POST /v1/completions HTTP/1.1\r\nHost: {url.netloc}\r\n{key}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n").encode() + body

    statuses, latencies = collections.Counter(), collections.defaultdict(list)
    health, late = [], []
    probing = asyncio.ensure_future(probe(open_connection, f"GET /health HTTP/1.1\r\nHost: {url.netloc}\r\nConnection: close\r\n\r\n".encode(), args.every, health, late))
    begin, left = time.monotonic(), [None] * args.requests
    await asyncio.gather(*(worker(open_connection, post, left, statuses, latencies) for _ in range(args.connections)))
    seconds = time.monotonic() - begin
    await asyncio.sleep(0.2)
    probing.cancel()
    return {"seconds": seconds, "statuses": dict(statuses), "latency": {s: quantiles(v) for s, v in latencies.items()},
            "health": {"statuses": dict(collections.Counter(s for s, _ in health)), **quantiles([t for _, t in health])}, "own_delay": quantiles(late)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--url", default="http://127.0.0.1:8080")
    p.add_argument("--api-key", default=os.environ.get("PYENGINE_API_KEY"))
    p.add_argument("--connections", type=int, default=500)
    p.add_argument("--requests", type=int, default=5000)
    p.add_argument("--max-tokens", type=int, default=2)
    p.add_argument("--stream", action="store_true")
    p.add_argument("--every", type=float, default=0.02, help="seconds between two questions to /health")
    p.add_argument("--json", action="store_true")
    args = p.parse_args()
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, args.connections + 100)), hard))
    result = asyncio.run(measure(args))
    if args.json:
        print(json.dumps(result))
        return
    print(f"{args.requests} requests over {args.connections} connections in {result['seconds']:.1f} s")
    for name, row in (*((f"status {s}", q) for s, q in sorted(result["latency"].items())), ("/health", result["health"]), ("own delay", result["own_delay"])):
        print(f"  {name:12} {row['n']:6}   p50 {row['p50_ms']:8.1f} ms   p99 {row['p99_ms']:8.1f} ms   max {row['max_ms']:8.1f} ms")
    print(f"  /health statuses: {result['health']['statuses']}")


if __name__ == "__main__":
    main()

"""What happened, counted: Prometheus metrics under the names that dashboards for vLLM look for, with the prefix pyengine_.

Counts and histograms of requests are observed as they end; what the engine counts itself is read when somebody asks.
No label holds anything a client chose. Not logs. Imported by app.
"""
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

FIRST = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.25, 2.5, 5, 10, 20, 40, 80, 160)
BETWEEN = (0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.25, 0.5, 1, 2.5, 5)
WHOLE = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
TOKENS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
METHODS = ("GET", "POST", "OPTIONS", "HEAD")


class Metrics:
    def __init__(self, stats):
        """stats() -> Llama.stats(), or {} while there is no model."""
        self.registry = registry = CollectorRegistry()

        def histogram(name, text, buckets):
            return Histogram(f"pyengine_{name}", text, registry=registry, buckets=buckets)

        self._first = histogram("time_to_first_token_seconds", "from a request's arrival to its first token", FIRST)
        self._between = histogram("inter_token_latency_seconds", "between two tokens of an answer", BETWEEN)
        self._whole = histogram("e2e_request_latency_seconds", "from a request's arrival to its end", WHOLE)
        self._queued = histogram("request_queue_time_seconds", "from arrival to the first step that computes it", FIRST)
        self._prefill = histogram("request_prefill_time_seconds", "computing the prompt", FIRST)
        self._decode = histogram("request_decode_time_seconds", "from the first token to the last", WHOLE)
        self._prompt = histogram("request_prompt_tokens", "tokens of a prompt", TOKENS)
        self._generation = histogram("request_generation_tokens", "tokens of an answer", TOKENS)
        self._success = Counter("pyengine_request_success", "answers that ended well", ("finished_reason",), registry=registry)
        self._failure = Counter("pyengine_request_failure", "answers that ended with an error or were given up", ("reason",), registry=registry)
        self._http = Counter("pyengine_http_requests", "HTTP requests", ("route", "method", "status"), registry=registry)
        self._http_seconds = Histogram("pyengine_http_request_duration_seconds", "HTTP requests, first byte to last", ("route",),
                                       registry=registry, buckets=WHOLE)
        registry.register(_Engine(stats))

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        self._http.labels(route, method if method in METHODS else "other", str(status)).inc()
        self._http_seconds.labels(route).observe(seconds)

    def answered(self, answer) -> None:
        """An aio.Answer has ended."""
        job = answer.job
        if job.error is not None or job.result is None or job.result.finish_reason is None:
            self._failure.labels("cancelled" if job.error is None else "error").inc()
            return
        result, timings = job.result, job.result.timings
        self._success.labels(result.finish_reason).inc()
        self._prompt.observe(result.usage["prompt_tokens"])
        self._generation.observe(result.usage["completion_tokens"])
        self._queued.observe(timings["queued_ms"] / 1e3)
        self._prefill.observe(timings["prompt_ms"] / 1e3)
        self._decode.observe(timings["predicted_ms"] / 1e3)
        self._whole.observe((timings["queued_ms"] + timings["prompt_ms"] + timings["predicted_ms"]) / 1e3)
        if timings.get("first_ms") is not None:
            self._first.observe(timings["first_ms"] / 1e3)
        before = None
        for at, n in answer.arrivals:
            if before is not None:
                for _ in range(n):       # tokens that came together share the time since the last ones
                    self._between.observe((at - before) / n)
            before = at

    def exposition(self):
        return generate_latest(self.registry), CONTENT_TYPE_LATEST


class _Engine:
    """What Llama.stats() has, when it is asked for."""

    GAUGES = (("num_requests_running", "running", "requests that run"), ("num_requests_waiting", "waiting", "requests that wait"))
    COUNTERS = (("prompt_tokens", "prompt_tokens", "tokens of prompts"),
                ("generation_tokens", "generated_tokens", "tokens generated"),
                ("prefix_cache_queries", "prompt_tokens", "prompt tokens that were looked for in the prefix cache"),
                ("prefix_cache_hits", "cached_tokens", "prompt tokens that were found there"),
                ("num_preemptions", "preemptions", "requests that gave up their pages to an older one"),
                ("spec_decode_num_draft_tokens", "proposed", "tokens proposed by speculation"),
                ("spec_decode_num_accepted_tokens", "accepted", "proposed tokens that were right"),
                ("cache_evictions", "evictions", "cached pages that were given up for others"),
                ("engine_steps", "steps", "steps of the engine"))

    def __init__(self, stats):
        self._stats = stats

    def describe(self):
        return ()                    # so that registering does not ask for stats

    def collect(self):
        stats = self._stats()
        if not stats:
            return
        for name, key, text in self.GAUGES:
            yield GaugeMetricFamily(f"pyengine_{name}", text, stats[key])
        used, total = sum(stats["pages_used"]), sum(stats["pages_total"])
        yield GaugeMetricFamily("pyengine_kv_cache_usage_perc", "share of the KV cache's pages that running requests hold, 0 to 1",
                                used / total if total else 0.0)
        pages = GaugeMetricFamily("pyengine_kv_cache_pages", "pages of the KV cache", labels=("group", "state"))
        for state in ("total", "used", "cached", "free"):
            for group, n in enumerate(stats[f"pages_{state}"]):
                pages.add_metric((str(group), state), n)
        yield pages
        for name, key, text in self.COUNTERS:
            yield CounterMetricFamily(f"pyengine_{name}", text, stats[key])

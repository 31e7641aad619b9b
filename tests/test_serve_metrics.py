"""/metrics: the names dashboards look for, figures that are right, labels that no client can choose."""
import re

import pytest

import pyengine
from prometheus_client.parser import text_string_to_metric_families
from serving import app_of, client, idle, run
from tiny_gguf import Spec, write


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("tiny") / "model.gguf", Spec(n_vocab=331, seed=3))


def samples(text):
    """{(name, labels): value}, parsed as Prometheus would."""
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in text_string_to_metric_families(text) for s in family.samples}


def after(path, *requests, **settings):
    with pyengine.Llama(path, n_ctx=256, max_seqs=4) as llm:
        async def go():
            async with client(app_of(llm, **settings)) as c:
                for method, url, options in requests:
                    await c.request(method, url, **options)
                await idle(llm)              # the engine counts after it has answered
                return (await c.get("/metrics")).text

        return samples(run(go()))


def gen(**body):
    return ("POST", "/gen", {"json": body})


def test_figures_of_answers(path):
    got = after(path, gen(prompt=[5, 6, 7], max_tokens=10, ignore_eos=True), gen(prompt=[5, 6], max_tokens=4, ignore_eos=True, stream=True), gen(temperature=-1))
    value = lambda name, **labels: got[(f"pyengine_{name}", tuple(sorted(labels.items())))]
    assert value("request_success_total", finished_reason="length") == 2
    assert value("generation_tokens_total") == 14 and value("prompt_tokens_total") == 5
    assert value("time_to_first_token_seconds_count") == 2 and value("e2e_request_latency_seconds_count") == 2
    assert 4 <= value("inter_token_latency_seconds_count") <= 9 + 3       # tokens of the first piece have no time between them
    assert 0 <= value("time_to_first_token_seconds_sum") <= value("e2e_request_latency_seconds_sum")
    assert value("request_prompt_tokens_sum") == 5 and value("request_generation_tokens_sum") == 14
    for name in ("request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds"):
        assert value(f"{name}_count") == 2
    assert value("http_requests_total", route="/gen", method="POST", status="200") == 2
    assert value("http_requests_total", route="/gen", method="POST", status="400") == 1
    assert value("num_requests_running") == value("num_requests_waiting") == 0


def test_names_that_dashboards_look_for(path):
    names = {name for name, _ in after(path)}
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prefix_cache_queries_total", "prefix_cache_hits_total", "prompt_tokens_total",
                 "generation_tokens_total", "num_preemptions_total", "time_to_first_token_seconds_bucket", "inter_token_latency_seconds_bucket",
                 "e2e_request_latency_seconds_bucket", "request_queue_time_seconds_bucket", "request_prefill_time_seconds_bucket", "request_decode_time_seconds_bucket",
                 "request_prompt_tokens_bucket", "request_generation_tokens_bucket", "spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total"):
        assert f"pyengine_{name}" in names, name


def test_labels_are_bounded_and_hold_nothing_a_client_chose(path):
    strange = [("GET", f"/nowhere/{i}?prompt=secret", {}) for i in range(30)] + [("BREW", "/gen", {}), ("GET", "/show/secret", {}), ("POST", "/gen", {"content": b"secret"})]
    got = after(path, *strange, gen(prompt="secret", max_tokens=2))
    text = repr(sorted(got))
    assert "secret" not in text and "nowhere" not in text and "BREW" not in text
    http = {labels for name, labels in got if name == "pyengine_http_requests_total"}
    assert len(http) <= 6
    assert {dict(labels)["route"] for labels in http} <= {"other", "/gen", "/show/{name}", "/metrics"}


def test_two_apps_in_one_process_count_apart(path):
    a = after(path, gen(prompt=[5], max_tokens=2, ignore_eos=True))
    b = after(path)
    assert a[("pyengine_generation_tokens_total", ())] == 2 and b[("pyengine_generation_tokens_total", ())] == 0


def test_no_model_yet():
    app = app_of(lambda: None)

    async def go():
        async with client(app) as c:
            return await c.get("/metrics")

    r = run(go())
    assert r.status_code == 200 and "num_requests" not in r.text and re.match(r"text/plain", r.headers["content-type"])

"""What a real router and real pods show: the guide lists all of it and nothing else; sums agree with answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import tiny_model
from live_cluster import LiveCluster
from metric_names import CERTIFICATES, exposed, listed
from prometheus_client.parser import text_string_to_metric_families

pytestmark = pytest.mark.cluster

FLAGS = (
    *("--prefill", "1", "--decode", "1", "--dtype", "float32", "--max-model-len", "256", "--kv-memory", "4MiB"),
    *("--chunk-size", "32", "--prefill-mode", "remote"),
)
PROMPTS = [[(seed * 37 + i * 7 + i * i * (seed + 3)) % 256 for i in range(20 + 17 * seed)] for seed in range(9)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    """A cluster that has answered a request, and one in a chat."""
    cluster = LiveCluster(tiny_model.build(tmp_path_factory.mktemp("llama"), "llama"), *FLAGS)
    try:
        cluster.complete(PROMPTS[-1], 8)
        cluster.assert_at_rest()
        yield cluster
    finally:
        assert cluster.stop() == 0


def texts(cluster: LiveCluster) -> dict[str, str]:
    """Return what each process shows, by "router" or the pod's role."""
    urls = {"router": f"{cluster.http}/metrics", **{pod["role"]: pod["metrics"] for pod in cluster.pods()}}
    return {who: httpx.get(url, trust_env=False, timeout=30).text for who, url in urls.items()}


def total(text: str, name: str, **labels: str) -> float:
    """Return the sum of a sample's values that have these labels."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def test_the_guide_lists_what_is_shown_and_nothing_else(cluster: LiveCluster) -> None:
    rows = listed()
    shown: dict[str, list[str]] = {}
    for who, text in texts(cluster).items():
        for name, (kind, labels) in exposed(text).items():
            assert name in rows, f"{who} shows {name}, which docs/metrics.md does not list"
            assert kind == rows[name].kind, name
            assert not labels or labels == rows[name].labels, name
            shown.setdefault(name, []).append(who)
    # Those of certificates are shown where there are some: `test_tls.py`.
    by = {name: row.shown_by for name, row in rows.items() if not name.endswith(CERTIFICATES)}
    assert by.keys() == shown.keys()
    words = {"router": ["router"], "pods": ["prefill", "decode"]}
    assert {name: words.get(who, [who.removesuffix(" pods")]) for name, who in by.items()} == shown


def test_each_metric_says_what_it_is(cluster: LiveCluster) -> None:
    for text in texts(cluster).values():
        for family in text_string_to_metric_families(text):
            words = family.name.removeprefix("pagewire_").replace("_", " ")
            assert family.documentation not in ("", words), family.name


def test_what_a_request_came_to_is_counted_once_by_each_name(cluster: LiveCluster) -> None:
    model = cluster.model_name
    counted: tuple[tuple[str, dict[str, str]], ...] = (
        ("vllm:request_prompt_tokens_count", {"model_name": model}),
        ("vllm:e2e_request_latency_seconds_count", {"model_name": model}),
        ("vllm:request_queue_time_seconds_count", {"model_name": model}),
        ("vllm:request_prefill_time_seconds_count", {"model_name": model}),
        ("gen_ai_server_request_duration_seconds_count", {"gen_ai_request_model": model, "error_type": ""}),
        ("pagewire_router_placements_total", {"model": model, "placement": "remote"}),
        ("pagewire_router_exposed_transfer_seconds_count", {"model": model}),
        ("pagewire_router_slo_requests_total", {"model": model, "slo": "availability", "result": "met"}),
    )

    def counts() -> list[float]:
        router = texts(cluster)["router"]
        return [total(router, name, **labels) for name, labels in counted]

    before = counts()
    cluster.complete(PROMPTS[0], 5)
    assert [after - then for after, then in zip(counts(), before, strict=True)] == [1.0] * len(counted)


def test_sums_over_pods_are_the_sums_of_answers(cluster: LiveCluster) -> None:
    before = texts(cluster)
    fields = {"n": 2, "seed": 3, "temperature": 1.0, "ignore_eos": True}
    answers = asyncio.run(cluster.complete_all(PROMPTS, 17, concurrency=4, **fields))
    cluster.assert_at_rest()
    after = texts(cluster)

    def grown(who: str, name: str, **labels: str) -> float:
        return total(after[who], name, **labels) - total(before[who], name, **labels)

    prompt, output = (sum(answer.usage[name] for answer in answers) for name in ("prompt_tokens", "completion_tokens"))
    assert (prompt, output) == (sum(map(len, PROMPTS)), len(PROMPTS) * 2 * 17)
    assert sum(grown(who, "pagewire_generation_tokens_total") for who in ("prefill", "decode")) == output
    assert grown("prefill", "pagewire_generation_tokens_total") == len(PROMPTS) * 2
    assert grown("router", "vllm:generation_tokens_total") == output
    assert grown("router", "gen_ai_client_token_usage_sum", gen_ai_token_type="output") == output
    assert grown("router", "vllm:prompt_tokens_total") == prompt
    assert grown("router", "vllm:request_success_total", finished_reason="length") == len(PROMPTS) * 2
    for who in ("prefill", "decode"):
        stepped = [grown(who, f"pagewire_{name}_total") for name in ("prompt_tokens_computed", "generation_tokens")]
        assert grown(who, "vllm:iteration_tokens_total_sum") == sum(stepped)
        assert 0 < grown(who, "vllm:iteration_tokens_total_count") <= sum(stepped)
    computed, cached = (grown("prefill", f"pagewire_prompt_tokens_{name}_total") for name in ("computed", "cached"))
    assert computed + cached == prompt
    gaps = grown("router", "vllm:inter_token_latency_seconds_count")
    assert gaps == len(PROMPTS) * 16  # n answers of a request go out side by side


def test_churn_accounts_for_the_free_list(cluster: LiveCluster) -> None:
    for pod in cluster.pods():
        said: dict[str, Any] = cluster.metrics(pod)
        churned = said["kv_blocks_total"] - said["kv_blocks_allocated_total"] + said["kv_blocks_freed_total"]
        assert churned == said["kv_blocks_free"]
        assert said["kv_blocks_allocated_total"] > 0
        assert said["graph_recaptures_total"] == said["leases_orphaned"] == said["kv_blocks_orphaned"] == 0


def test_both_processes_of_a_pod_cost_something(cluster: LiveCluster) -> None:
    for who in ("prefill", "decode"):
        text = texts(cluster)[who]
        for process in ("front", "engine"):
            assert total(text, "pagewire_process_cpu_seconds_total", process=process) > 0
            assert total(text, "pagewire_process_resident_bytes", process=process) > 1 << 20

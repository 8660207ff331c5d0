"""Shows what requests came to: as vLLM names it, as OpenTelemetry does, and under names of our own.

Read at scrape time from `RequestCounts`. Invariant: no name is shown by pods as well, so that sums over all processes
count nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from pagewire.router.request_counts import RequestCounts
from pagewire.serving.sample import add_distribution

PROVIDER = "pagewire"

_VLLM = {
    "time_to_first_token_seconds": ("ttft_s", "Arrival to first token"),
    "inter_token_latency_seconds": ("gap_s", "Between two tokens that come one after the other"),
    "time_per_output_token_seconds": ("gap_s", "The same, as it was named before"),
    "request_time_per_output_token_seconds": ("tpot_s", "Mean seconds per token after the first"),
    "e2e_request_latency_seconds": ("e2e_s", "Arrival to last token"),
    "request_queue_time_seconds": ("queue_s", "Wait for a place, for blocks, and for the prefill pod's turn"),
    "request_prefill_time_seconds": ("prefill_s", "Computing the prompt"),
    "request_decode_time_seconds": ("decode_s", "First token to last token"),
    "request_inference_time_seconds": ("inference_s", "Prefill and decode together"),
    "request_prompt_tokens": ("prompt", "Prompt tokens of a request"),
    "request_generation_tokens": ("output", "Tokens of all answers of a request"),
    "request_max_num_generation_tokens": ("longest", "Tokens of the longest answer of a request"),
    "request_params_max_tokens": ("max_tokens", "Most tokens that a request may have"),
    "request_params_n": ("answers", "Answers that a request asks for"),
}
_OURS = {
    "transfer_seconds": ("transfer_s", "Time in which blocks of a request were on their way between pods"),
    "exposed_transfer_seconds": ("exposed_s", "Of that, what no computing hid"),
}


class Titled(Protocol):
    """Something with a name for operators, which it may get late."""

    @property
    def title(self) -> str:
        """The name."""
        ...


class RequestCollector(Collector):
    """Of each model's counts, by what the model is called now; `engine` is this router's name."""

    def __init__(self, models: Mapping[Titled, RequestCounts], engine: str) -> None:
        self._models = models
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of this moment."""
        models = [(model.title, counts) for model, counts in self._models.items()]
        yield from self._vllm(models)
        yield from _ours(models)
        yield from _otel(models)

    def _vllm(self, models: Sequence[tuple[str, RequestCounts]]) -> Iterator[Metric]:
        names = ["model_name", "engine"]
        for name, (field, text) in _VLLM.items():
            family = HistogramMetricFamily(f"vllm:{name}", text, labels=names)
            for title, counts in models:
                add_distribution(family, [title, self._engine], attrgetter(field)(counts))
            yield family
        prompt = CounterMetricFamily("vllm:prompt_tokens", "Prompt tokens of requests that have begun", labels=names)
        output = CounterMetricFamily("vllm:generation_tokens", "Tokens that went out", labels=names)
        ends = CounterMetricFamily(
            "vllm:request_success", "Answers by how they ended", labels=[*names, "finished_reason"]
        )
        for title, counts in models:
            prompt.add_metric([title, self._engine], counts.prompt_tokens)
            output.add_metric([title, self._engine], counts.output_tokens)
            for reason, count in counts.endings.items():
                ends.add_metric([title, self._engine, reason], count)
        yield from (prompt, output, ends)


def _ours(models: Sequence[tuple[str, RequestCounts]]) -> Iterator[Metric]:
    for name, (field, text) in _OURS.items():
        family = HistogramMetricFamily(f"pagewire_router_{name}", text, labels=["model"])
        for title, counts in models:
            add_distribution(family, [title], attrgetter(field)(counts))
        yield family
    placements = CounterMetricFamily(
        "pagewire_router_placements",
        "Finished requests by where their prompt was built and what carried its blocks",
        labels=["model", "placement", "transport"],
    )
    slo = CounterMetricFamily(
        "pagewire_router_slo_requests", "Requests by objective, met or missed", labels=["model", "slo", "result"]
    )
    for title, counts in models:
        for placement, count in counts.placements.items():
            placements.add_metric([title, *placement], count)
        for kept, count in counts.slo.items():
            slo.add_metric([title, *kept], count)
    yield from (placements, slo)


def _otel(models: Sequence[tuple[str, RequestCounts]]) -> Iterator[Metric]:
    names = ["gen_ai_provider_name", "gen_ai_request_model", "gen_ai_operation_name"]
    duration = HistogramMetricFamily(
        "gen_ai_server_request_duration_seconds", "Arrival to the end of a request", labels=[*names, "error_type"]
    )
    ttft = HistogramMetricFamily("gen_ai_server_time_to_first_token_seconds", "Arrival to first token", labels=names)
    tpot = HistogramMetricFamily(
        "gen_ai_server_time_per_output_token_seconds", "Mean seconds per token after the first", labels=names
    )
    tokens = HistogramMetricFamily(
        "gen_ai_client_token_usage", "Tokens of a request", labels=[*names, "gen_ai_token_type"]
    )
    for title, counts in models:
        for (operation, error), each in counts.otel_duration_s.items():
            add_distribution(duration, [PROVIDER, title, operation, error], each)
        for operation, each in counts.otel_ttft_s.items():
            add_distribution(ttft, [PROVIDER, title, operation], each)
        for operation, each in counts.otel_tpot_s.items():
            add_distribution(tpot, [PROVIDER, title, operation], each)
        for (operation, kind), each in counts.otel_tokens.items():
            add_distribution(tokens, [PROVIDER, title, operation, kind], each)
    yield from (duration, ttft, tpot, tokens)

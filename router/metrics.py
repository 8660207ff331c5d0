"""The router's Prometheus metrics: one registry per router, scraped over its HTTP port.

Intervals are between two stamps of this process; TTFT counts from the arrival of the request.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pagewire.core.timeline import Phase, Timeline
from pagewire.router.request import Finished

TTFT_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
TPOT_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
E2E_BUCKETS = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)


class RouterMetrics:
    """What a router counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests", "Requests by how they ended", "outcome")
        self.attempts = self._counter("retries", "Further attempts by what failed the one before", "cause")
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of finished requests")
        self.generation_tokens = self._counter("generation_tokens", "Tokens streamed by finished requests")
        self.predicted_tokens = self._counter(
            "index_predicted_cached_tokens", "Prompt tokens that the index said were cached where the prompt went"
        )
        self.cached_tokens = self._counter("cached_tokens", "Prompt tokens that were cached where the prompt went")
        self.misjudged_tokens = self._counter(
            "index_misjudged_tokens", "Absolute difference between predicted and actual cached tokens"
        )
        self.unknown_fields = self._counter(
            "unknown_fields", "Request fields that were ignored because nobody knows them"
        )
        self.ttft_s = self._histogram("time_to_first_token_seconds", "Arrival to first token", TTFT_BUCKETS)
        self.tpot_s = self._histogram("time_per_output_token_seconds", "Mean seconds per token after it", TPOT_BUCKETS)
        self.e2e_s = self._histogram("e2e_request_latency_seconds", "Arrival to last token", E2E_BUCKETS)
        self.active = Gauge("pagewire_router_requests_active", "Requests admitted now", registry=self.registry)
        self.pods = Gauge("pagewire_router_pods", "Usable pods", ["role"], registry=self.registry)
        self.lookup_failures = Gauge(
            "pagewire_router_index_lookup_failures", "Index lookups done without so far", registry=self.registry
        )

    def finished(self, event: Finished, timeline: Timeline) -> None:
        """Count a request that came to its end."""
        usage = event.usage
        self.requests.labels(event.endings[0].finish_reason.value).inc()
        self.prompt_tokens.inc(usage.prompt_tokens)
        self.generation_tokens.inc(usage.completion_tokens)
        self.predicted_tokens.inc(event.predicted_cached_tokens)
        self.cached_tokens.inc(usage.cached_tokens)
        self.misjudged_tokens.inc(abs(event.predicted_cached_tokens - usage.cached_tokens))
        ttft_s = timeline.between_s(Phase.RECEIVED, Phase.FIRST_TOKEN)
        rest_s = timeline.between_s(Phase.FIRST_TOKEN, Phase.LAST_TOKEN)
        if ttft_s is not None and rest_s is not None:
            self.ttft_s.observe(ttft_s)
            self.e2e_s.observe(ttft_s + rest_s)
            if event.longest > 1:
                self.tpot_s.observe(rest_s / (event.longest - 1))

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"pagewire_router_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"pagewire_router_{name}", text, buckets=buckets, registry=self.registry)

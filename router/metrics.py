"""The router's Prometheus metrics: one registry per router, scraped over its HTTP port.

Intervals are between two stamps of this process; TTFT counts from the arrival of the request.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pagewire.core.errors import PagewireError
from pagewire.core.timeline import Phase, Timeline
from pagewire.router.calibration import Calibration
from pagewire.router.events import Finished
from pagewire.router.hit_watch import Alarm, Cause
from pagewire.router.pods import PodPool
from pagewire.router.refusals import Refused
from pagewire.router.request_counts import MET_OR_MISSED, RequestCounts
from pagewire.router.request_metrics import RequestCollector, Titled
from pagewire.serving.certificate_expiry import CertificateExpiry
from pagewire.serving.sample import families
from pagewire.serving.tracing import Tracing

TTFT_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
TPOT_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
E2E_BUCKETS = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)


class IndexCounts(Protocol):
    """Who reads the prefix index."""

    failures: int
    skipped: int


class LookupCounts(Protocol):
    """Who asks it for requests."""

    hits: int
    misses: int
    alarm: Alarm | None


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
        self.refusals = self._counter("refusals", "Requests that were refused by the limit that refused them", "reason")
        self.ejections = self._counter("ejections", "Pods found unfit by what attempts on them showed", "cause")
        self.slo_outcomes = self._counter(
            "slo_outcomes",
            "Requests with a prediction, by objective: foreseen and actual",
            "slo",
            "predicted",
            "actual",
        )
        self.slo_probes = self._counter(
            "slo_probes", "Requests let in that should miss an objective, to learn whether they do", "slo"
        )
        self.queue_wait_s = self._histogram(
            "queue_wait_seconds", "Wait of those that no pod had room for", TTFT_BUCKETS
        )
        self.ttft_s = self._histogram("time_to_first_token_seconds", "Arrival to first token", TTFT_BUCKETS)
        self.tpot_s = self._histogram("time_per_output_token_seconds", "Mean seconds per token after it", TPOT_BUCKETS)
        self.e2e_s = self._histogram("e2e_request_latency_seconds", "Arrival to last token", E2E_BUCKETS)
        self.active = Gauge("pagewire_router_requests_active", "Requests admitted now", registry=self.registry)
        self.pods = Gauge("pagewire_router_pods", "Usable pods", ["model", "role"], registry=self.registry)
        self.waiting = Gauge("pagewire_router_requests_waiting", "Requests that wait for room", registry=self.registry)
        self.ejected = Gauge("pagewire_router_pods_ejected", "Pods that are kept out now", registry=self.registry)
        self.slo_active = Gauge(
            "pagewire_router_slo_gate_active", "Models of which misses of an objective are refused now", ["slo"],
            registry=self.registry,
        )  # fmt: skip
        self.concurrency_limit = Gauge(
            "pagewire_router_concurrency_limit", "Requests at once that meet their objectives; +Inf: no limit",
            ["model", "of"], registry=self.registry,
        )  # fmt: skip

    def watch_index(self, index: IndexCounts, lookups: Sequence[LookupCounts], is_away: Callable[[], bool]) -> None:
        """Show what the index's reader and its users, one for each model, count, and whether Redis is away."""

        def alarm(cause: Cause) -> float:
            return float(any(each.alarm is not None and each.alarm.cause is cause for each in lookups))

        self._total("index_lookup_failures", "Index lookups without an answer in time", lambda: index.failures)
        self._total("index_lookups_skipped", "Lookups not tried since Redis did not answer", lambda: index.skipped)
        self._gauge("index_away", "1 while Redis is away: lookups are held back, or pods not discovered", is_away)
        self._total("index_lookup_hits", "Lookups that found a linked pod", lambda: sum(each.hits for each in lookups))
        self._total("index_lookup_misses", "Lookups that found none", lambda: sum(each.misses for each in lookups))
        shown = Gauge(
            "pagewire_router_index_zero_hit_alarm",
            "1 while prompts repeat and none is found, by the likely cause",
            ["cause"],
            registry=self.registry,
        )
        for cause in Cause:
            shown.labels(cause.value).set_function(functools.partial(alarm, cause))

    def watch_dials(self, num_broken: Callable[[], int]) -> None:
        """Show how many links broke by our own fault: call once."""
        self._total("broken_dials", "Links that ended in an error of the router's own", num_broken)

    def finished(self, event: Finished, timeline: Timeline) -> None:
        """Count a request that came to its end."""
        usage = event.usage
        self.requests.labels(event.endings[0].finish_reason.value).inc()
        self.prompt_tokens.inc(usage.prompt_tokens)
        self.generation_tokens.inc(usage.completion_tokens)
        self.predicted_tokens.inc(event.predicted_cached_tokens)
        # Not those of the usage: what was fetched from elsewhere the index did not place there.
        found_tokens = min(event.report.cached_tokens if event.report else 0, usage.prompt_tokens)
        self.cached_tokens.inc(found_tokens)
        self.misjudged_tokens.inc(abs(event.predicted_cached_tokens - found_tokens))
        ttft_s = timeline.between_s(Phase.RECEIVED, Phase.FIRST_TOKEN)
        rest_s = timeline.between_s(Phase.FIRST_TOKEN, Phase.LAST_TOKEN)
        if ttft_s is not None and rest_s is not None:
            self.ttft_s.observe(ttft_s)
            self.e2e_s.observe(ttft_s + rest_s)
            if event.longest > 1:
                self.tpot_s.observe(rest_s / (event.longest - 1))

    def failed(self, error: PagewireError) -> None:
        """Count a request that failed, or was refused by a limit."""
        self.requests.labels(error.cause).inc()
        if isinstance(error, Refused):
            self.refusals.labels(error.reason.value).inc()

    def slo_outcome(self, slo: str, *, predicted_miss: bool, actual_miss: bool) -> None:
        """Count what became of a request that had a prediction."""
        self.slo_outcomes.labels(slo, MET_OR_MISSED[predicted_miss], MET_OR_MISSED[actual_miss]).inc()

    def slo_probe(self, slo: str) -> None:
        """Count a request that was let in to learn from it."""
        self.slo_probes.labels(slo).inc()

    def watch(self, calibrations: Mapping[PodPool, Calibration]) -> None:
        """Show how good predictions are, for each model: call once."""
        self.registry.register(_Predictions(calibrations))

    def watch_requests(self, models: Mapping[Titled, RequestCounts], engine: str) -> None:
        """Show what each model's requests came to; `engine` is this router's name. Call once."""
        self.registry.register(RequestCollector(models, engine))

    def watch_certificates(self, expiry: CertificateExpiry) -> None:
        """Show when they are over: call once."""
        self.registry.register(_Certificates(expiry))

    def watch_tracing(self, tracing: Tracing) -> None:
        """Show what became of spans: call once."""
        self.registry.register(_Traces(tracing))

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def _gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        Gauge(f"pagewire_router_{name}", text, registry=self.registry).set_function(value)

    def _total(self, name: str, text: str, value: Callable[[], float]) -> None:
        self.registry.register(_Total(f"pagewire_router_{name}", text, value))

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"pagewire_router_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"pagewire_router_{name}", text, buckets=buckets, registry=self.registry)


class _Total(Collector):
    """Reads, at scrape time, what others count."""

    def __init__(self, name: str, text: str, value: Callable[[], float]) -> None:
        self._name = name
        self._text = text
        self._value = value

    def collect(self) -> Iterator[Metric]:
        """Yield it."""
        yield CounterMetricFamily(self._name, self._text, value=self._value())


class _Certificates(Collector):
    """Reads, at scrape time, when certificates are over."""

    def __init__(self, expiry: CertificateExpiry) -> None:
        self._expiry = expiry

    def collect(self) -> Iterator[Metric]:
        """Yield what is known."""
        yield from families(self._expiry.samples(), "pagewire_router_", {})


class _Traces(Collector):
    """Reads, at scrape time, what became of spans."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def collect(self) -> Iterator[Metric]:
        """Yield what was sent and what was not."""
        for name, total in self._tracing.counters().items():
            yield CounterMetricFamily(f"pagewire_router_{name}", name.replace("_", " "), value=total)


class _Predictions(Collector):
    """Reads, at scrape time, what was predicted, what came true, and what predictions are multiplied with now."""

    def __init__(self, calibrations: Mapping[PodPool, Calibration]) -> None:
        self._calibrations = calibrations

    def collect(self) -> Iterator[Metric]:
        """Yield a sample for each part of each way and model."""
        labels = ("model", "part", "where")
        totals = {
            "count": CounterMetricFamily(
                "pagewire_router_predictions", "Predicted parts that came true", labels=labels
            ),
            "predicted_s": CounterMetricFamily(
                "pagewire_router_predicted_seconds", "Seconds that parts were predicted to take", labels=labels
            ),
            "actual_s": CounterMetricFamily(
                "pagewire_router_actual_seconds", "Seconds that the same parts took", labels=labels
            ),
            "error_s": CounterMetricFamily(
                "pagewire_router_prediction_error_seconds", "Absolute differences of the two", labels=labels
            ),
        }
        factors = GaugeMetricFamily(
            "pagewire_router_prediction_correction", "What predictions are multiplied with", labels=labels
        )
        for pool, calibration in self._calibrations.items():
            for (way, part), record in calibration.records.items():
                values = [pool.name, part.removesuffix("_s"), way.value]
                for name, family in totals.items():
                    family.add_metric(values, float(getattr(record, name)))
                factors.add_metric(values, record.factor)
        yield from totals.values()
        yield factors

"""A pod's load as Prometheus gauges and counters, served on a port of its own.

Reads a `Load` at scrape time: one source for the router's placement and for the operator's graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from pagewire.core.load import BrownoutLevel, Load

_GAUGES = {
    "num_requests_running": ("num_running", "Sequences in the batch"),
    "num_requests_waiting": ("num_waiting", "Sequences that wait for a place"),
    "waiting_tokens": ("waiting_tokens", "Prompt tokens still to compute"),
    "kv_blocks_total": ("blocks_total", "Blocks of the pool"),
    "kv_blocks_free": ("blocks_free", "Blocks that hold nothing"),
    "kv_blocks_cached": ("blocks_cached", "Blocks that hold a reusable prefix and no sequence"),
    "kv_blocks_host": (
        "blocks_host",
        "Blocks in host memory, outside the pool: cached, or spilled by a sequence larger than it",
    ),
    "kv_blocks_held": ("blocks_held", "Blocks that a sequence holds"),
    "kv_blocks_pinned": ("blocks_pinned", "Blocks that hold a named prefix for good"),
    "kv_blocks_shared": ("blocks_shared", "Blocks that sequences would hold besides if none were held together"),
    "kv_blocks_reserved": ("blocks_reserved", "Blocks promised and not yet bound"),
    "kv_blocks_orphaned": ("blocks_orphaned", "Blocks held by no live request; always 0 in health"),
    "prefill_seconds_per_token": ("prefill_s_per_token", "Measured seconds per prompt token"),
    "step_seconds": ("step_s", "Measured seconds per decode step"),
    "prefill_budget_tokens": ("prefill_budget", "Prompt tokens that the last step might have had"),
    "copy_out_seconds_per_block": ("copy_out_s_per_block", "Measured seconds to copy a block to host memory"),
    "copy_in_seconds_per_block": ("copy_in_s_per_block", "Measured seconds to copy a block back from host memory"),
}
_COUNTERS = {
    "prompt_tokens": ("prompt_tokens", "Prompt tokens of admitted sequences"),
    "prompt_tokens_computed": ("prompt_tokens_computed", "Prompt tokens computed here"),
    "prompt_tokens_cached": ("prompt_tokens_cached", "Prompt tokens taken from the prefix cache"),
    "prompt_tokens_pinned": ("prompt_tokens_pinned", "Of those, tokens taken from pinned blocks"),
    "generation_tokens": ("output_tokens", "Tokens sampled here"),
    "kv_block_steps": ("block_steps", "Blocks that sequences held in each step, none together, summed over steps"),
    "kv_block_steps_shared": ("block_steps_shared", "Of those, blocks that holding them together saved"),
    "preemptions": ("preemptions", "Sequences preempted"),
    "preemptions_swapped": ("preemptions_swapped", "Sequences preempted whose KV was left to host memory"),
}


class Sample(NamedTuple):
    """One value of a gauge, with labels beside the pod's own."""

    name: str
    labels: dict[str, str]
    value: float


class MetricsServer(Protocol):
    """The HTTP server that prometheus_client starts."""

    server_port: int

    def shutdown(self) -> None:
        """Stop serving."""

    def server_close(self) -> None:
        """Let go of the port, after `shutdown`."""


class LoadCollector:
    """Turns what `load`, `counters` and `gauges` return into metrics, with the pod's name and role as labels."""

    def __init__(
        self,
        pod_id: str,
        role: str,
        load: Callable[[], Load],
        counters: Callable[[], dict[str, float]],
        gauges: Callable[[], Iterator[Sample]],
    ) -> None:
        self._labels = {"pod": pod_id, "role": role}
        self._load = load
        self._counters = counters
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of this moment."""
        load = self._load()
        names, values = list(self._labels), list(self._labels.values())
        for name, (field, text) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"pagewire_{name}", text, labels=names)
            gauge.add_metric(values, float(getattr(load, field)))
            yield gauge
        brownout = GaugeMetricFamily("pagewire_brownout", "1 for the level of service", labels=[*names, "level"])
        for level in BrownoutLevel:
            brownout.add_metric([*values, level.value], float(load.brownout is level))
        yield brownout
        totals = {name: (float(getattr(load, field)), text) for name, (field, text) in _COUNTERS.items()}
        totals |= {name: (value, name.replace("_", " ")) for name, value in self._counters().items()}
        for name, (total, text) in totals.items():
            counter = CounterMetricFamily(f"pagewire_{name}", text, labels=names)
            counter.add_metric(values, total)
            yield counter
        families: dict[str, GaugeMetricFamily] = {}
        for sample in self._gauges():
            family = families.get(sample.name)
            if family is None:
                text = sample.name.replace("_", " ")
                family = GaugeMetricFamily(f"pagewire_{sample.name}", text, labels=[*names, *sample.labels])
                families[sample.name] = family
            family.add_metric([*values, *sample.labels.values()], sample.value)
        yield from families.values()


def serve(collector: LoadCollector, host: str, port: int) -> MetricsServer:
    """Serve /metrics on `host:port` from a thread; the real port is the result's `server_port`."""
    registry = CollectorRegistry()
    registry.register(collector)  # type: ignore[arg-type]
    server, _thread = start_http_server(port, addr=host, registry=registry)
    return server

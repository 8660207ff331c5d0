"""A pod's load as Prometheus gauges and counters.

Reads a `Load` at scrape time: one source for the router's placement and for the operator's graphs, and nothing that a
step would pay for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from prometheus_client.core import Metric

from pagewire.core.load import BrownoutLevel, Load
from pagewire.serving import vllm_metrics
from pagewire.serving.counter_texts import COUNTED
from pagewire.serving.cpu_usage import CpuUsage
from pagewire.serving.gpu_usage import GpuUsage
from pagewire.serving.process_usage import ProcessUsage
from pagewire.serving.sample import Sample, families
from pagewire.serving.step_counts import StepCounts

WAIT_FOR_BLOCKS = "requests_waiting_for_blocks"  # a gauge of services whose requests wait before the engine

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
    "tenants_over_quota": ("tenants_over_quota", "Tenants with more cached blocks than their quota"),
    "predicted_queue_seconds": (
        "queue_s",
        "Seconds that the waiting prompt tokens should take, as measured; 0 until it is",
    ),
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
    "draft_tokens": ("draft_tokens", "Drafted tokens that decodes computed beside their own"),
    "draft_tokens_accepted": ("draft_tokens_accepted", "Of those, tokens that were what was drawn"),
    "kv_block_steps": ("block_steps", "Blocks that sequences held in each step, none together, summed over steps"),
    "kv_block_steps_shared": ("block_steps_shared", "Of those, blocks that holding them together saved"),
    "kv_token_steps": ("token_steps", "Tokens whose KV was in those blocks at the end of each step, summed over steps"),
    "preemptions": ("preemptions", "Sequences preempted"),
    "preemptions_swapped": ("preemptions_swapped", "Sequences preempted whose KV was left to host memory"),
    "kv_blocks_allocated": ("blocks_allocated", "Blocks taken from the free ones"),
    "kv_blocks_freed": ("blocks_freed", "Blocks that came free"),
    "kv_blocks_evicted": ("blocks_evicted", "Cached blocks that had to make room in the pool"),
    "kv_blocks_evicted_over_quota": (
        "blocks_evicted_over_quota",
        "Of those, blocks that went first since a tenant had more than its quota",
    ),
    "graph_recaptures": ("graph_recaptures", "Device graphs that had to be captured anew: each stalls a step"),
}


class Shown(Protocol):
    """What /metrics shows."""

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of this moment; called from the serving thread."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Whose metrics these are; `cache` is how the KV cache is built, in vLLM's words."""

    pod_id: str
    role: str
    model: str
    cache: Mapping[str, str]


class LoadCollector:
    """Turns a pod's load, its counters and what is measured beside them into metrics, with its name and role as labels.

    `steps` are what its steps came to, `pids` its processes by what they do, `devices` the UUIDs of its GPUs, none
    for one that computes on the CPU.
    """

    def __init__(
        self,
        about: About,
        load: Callable[[], Load],
        counters: Callable[[], dict[str, float]],
        gauges: Callable[[], Iterator[Sample]],
        steps: StepCounts,
        *,
        pids: Mapping[str, int],
        devices: Sequence[str],
    ) -> None:
        self._about = about
        self._load = load
        self._counters = counters
        self._gauges = gauges
        self._steps = steps
        self._processes = ProcessUsage(pids)
        self._devices: list[GpuUsage | CpuUsage] = [*map(GpuUsage, devices)] or [CpuUsage()]

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of this moment."""
        load, gauges, about = self._load(), tuple(self._gauges()), self._about
        ours = itertools.chain(_of_load(load), _totals(self._counters()), gauges)
        machine = itertools.chain(self._processes.samples(), *(device.samples() for device in self._devices))
        yield from families((*ours, *machine), "pagewire_", {"pod": about.pod_id, "role": about.role})
        num_waiting = load.num_waiting + sum(int(each.value) for each in gauges if each.name == WAIT_FOR_BLOCKS)
        samples = vllm_metrics.engine_samples(load, num_waiting, about.cache)
        names = {"model_name": about.model, "engine": about.pod_id, "role": about.role}
        yield from families(samples, vllm_metrics.PREFIX, names)
        yield from vllm_metrics.step_histograms(self._steps, names)


def _of_load(load: Load) -> Iterator[Sample]:
    for name, (field, text) in _GAUGES.items():
        yield Sample(name, {}, getattr(load, field), text)
    for name, (field, text) in _COUNTERS.items():
        yield Sample(name, {}, getattr(load, field), text, is_total=True)
    for level in BrownoutLevel:
        yield Sample("brownout", {"level": level.value}, load.brownout is level, "1 for the level of service")


def _totals(counters: Mapping[str, float]) -> Iterator[Sample]:
    for name, value in counters.items():
        yield Sample(name, {}, value, COUNTED.get(name, ""), is_total=True)

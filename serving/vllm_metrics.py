"""What a pod shows under the names that vLLM gave it, so that dashboards made for vLLM read it.

Of engines alone: running, waiting, KV, prefix cache, preemptions, steps, how long blocks live. What is counted of whole
requests is the router's to show, which alone sees them whole: no name is shown by both, so that a sum over all
processes counts nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import HistogramMetricFamily, Metric

from pagewire.core.load import Load
from pagewire.serving.sample import Sample, add_distribution
from pagewire.serving.step_counts import StepCounts

PREFIX = "vllm:"


def engine_samples(load: Load, num_waiting: int, config: Mapping[str, str]) -> Iterator[Sample]:
    """Yield them; `num_waiting` counts what waits before the engine or in it, `config` is how the cache is built."""
    in_use = load.blocks_total - load.blocks_free - load.blocks_cached
    usage = in_use / load.blocks_total if load.blocks_total else 0.0
    yield Sample("num_requests_running", {}, load.num_running, "Sequences in the batch")
    yield Sample("num_requests_waiting", {}, num_waiting, "Sequences that wait for blocks or for a place")
    yield Sample("kv_cache_usage_perc", {}, usage, "Share of the pool that is held, 0 to 1")
    yield Sample("gpu_cache_usage_perc", {}, usage, "The same, as it was named before")
    yield Sample("cache_config_info", config, 1.0, "How the KV cache is built")
    totals = {
        "prefix_cache_queries": (load.prompt_tokens, "Prompt tokens that were looked for in the prefix cache"),
        "prefix_cache_hits": (load.prompt_tokens_cached, "Prompt tokens that were found there"),
        "spec_decode_num_draft_tokens": (load.draft_tokens, "Drafted tokens that decodes computed beside their own"),
        "spec_decode_num_accepted_tokens": (load.draft_tokens_accepted, "Of those, tokens that were what was drawn"),
        "num_preemptions": (load.preemptions, "Sequences preempted"),
    }
    for name, (total, text) in totals.items():
        yield Sample(name, {}, total, text, is_total=True)


def step_histograms(steps: StepCounts, common: Mapping[str, str]) -> Iterator[Metric]:
    """Yield what steps came to, `common` as its labels."""
    distributions = {
        "iteration_tokens_total": (steps.tokens, "Prompt tokens that a step computed and tokens that it drew"),
        "kv_block_lifetime_seconds": (steps.lived_s, "A block's life, from being taken to being evicted; sampled"),
        "kv_block_idle_before_evict_seconds": (steps.idle_s, "Of that, the time since its last use; sampled"),
        "kv_block_reuse_gap_seconds": (steps.gap_s, "Between two uses of a block, its last ones; sampled"),
    }
    for name, (distribution, text) in distributions.items():
        family = HistogramMetricFamily(PREFIX + name, text, labels=[*common])
        add_distribution(family, [*common.values()], distribution)
        yield family

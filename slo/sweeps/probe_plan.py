"""One probe of a sweep, as it is to be played: its requests, its seed, its limits."""

from __future__ import annotations

import dataclasses
import hashlib

from pagewire.core.config import ConfigError
from pagewire.slo.figures.objectives import parse_objectives
from pagewire.slo.load.pieces import parse_vocabulary
from pagewire.slo.load.run import RunPlan
from pagewire.slo.sweeps.sweep_config import DEFAULT_FIRST_RATE, SweepConfig
from pagewire.slo.workloads.workload import Workload
from pagewire.slo.workloads.workload_source import num_recorded, workload_of


def within_recording(config: SweepConfig) -> SweepConfig:
    """Return a sweep whose recording lasts through every probe: the search goes no higher than that.

    Raises ConfigError where it is too short for the lowest rate, or for one of a list; and as `workload_of` does.
    """
    num_arrivals = num_recorded(config)
    if num_arrivals is None:
        return config
    most = num_arrivals / config.duration_s
    if max(config.rates, default=config.lowest_rate) > most:
        raise ConfigError(
            f"{config.trace} has {num_arrivals} arrivals, which last for {config.duration_s:g} s at {most:.4g}/s at "
            f"most: lower duration_s, or {'the rates' if config.rates else 'lowest_rate'}"
        )
    if config.rates or most >= config.highest_rate:
        return config
    return dataclasses.replace(config, rate=min(config.rate or DEFAULT_FIRST_RATE, most), highest_rate=most)


def run_plan(config: SweepConfig) -> RunPlan:
    """Return how each probe is played."""
    return RunPlan(
        objectives=parse_objectives(config.slo),
        warmup_s=config.warmup_s,
        duration_s=config.duration_s,
        timeout_s=config.timeout_s,
        vocabulary=parse_vocabulary(config.token_ids),
        is_chat=config.api == "chat",
    )


def probe_workload(config: SweepConfig, rate: float, repeat: int) -> Workload:
    """Return the requests of the `repeat`-th probe at a rate, from 0 on; raises as `workload_of` does.

    They are the same for every cluster, so that clusters are compared; and others than those of any other probe, so
    that no cluster finds in its cache what it was asked before.
    """
    digest = hashlib.blake2b(f"{config.seed}/{rate!r}/{repeat}".encode(), digest_size=4).digest()
    return workload_of(dataclasses.replace(config, rate=rate, seed=int.from_bytes(digest)))

"""One probe of a sweep, as it is to be played: its requests, its seed, its limits."""

from __future__ import annotations

import dataclasses
import hashlib

from pagewire.slo.objectives import parse_objectives
from pagewire.slo.pieces import parse_vocabulary
from pagewire.slo.run import RunPlan
from pagewire.slo.sweep_config import SweepConfig
from pagewire.slo.workload import Workload
from pagewire.slo.workload_source import workload_of


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

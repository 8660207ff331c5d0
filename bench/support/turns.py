"""Loads played on several local clusters in turns, round by round, so that a machine that changes changes for all.

Knows the laboratory: clusters are those of a sweep, all up at once, and whoever is not asked idles. Invariant: in one
round every cluster is asked the same requests; no two loads or rounds share one, so no cache holds what was not meant.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pagewire.cli.local_clusters import LocalClusters
from pagewire.slo.figures.objectives import Objectives
from pagewire.slo.figures.record import Record
from pagewire.slo.load.run import Run, RunPlan
from pagewire.slo.sweeps.configuration import Configuration
from pagewire.slo.sweeps.sweep import Cluster
from pagewire.slo.sweeps.sweep_folder import SweepFolder
from pagewire.slo.workloads.workload import Workload
from pagewire.slo.workloads.workload_config import WorkloadConfig
from pagewire.slo.workloads.workload_source import workload_of

PLAN = RunPlan(objectives=Objectives({}))
LOCK_S = 1.0
WARM_UP = WorkloadConfig(concurrency=2, requests=4)
Figures = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A workload by name. The first `ahead` of its arrivals go before what counts; `on` is who plays it, "": all."""

    name: str
    config: WorkloadConfig
    ahead: int = 0
    on: str = ""


async def play(
    configurations: Sequence[Configuration], loads: Sequence[Load], rounds: int, seed: int, say: Callable[[str], None]
) -> list[Figures]:
    """Return the figures of every run, in the order of the runs; raises Unavailable where a cluster ends."""
    found: list[Figures] = []
    async with AsyncExitStack() as stack:
        folder = SweepFolder(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pagewire-bench-"))))
        lock = await stack.enter_async_context(folder.locked(LOCK_S, lambda: None))
        starter = LocalClusters(os.environ, lock)
        clusters: dict[str, Cluster] = {}
        for each in configurations:
            say(f"starting {each.name}")
            clusters[each.name] = await stack.enter_async_context(starter.started(each, folder.logs(each)))
        for number, cluster in enumerate(clusters.values()):
            await cluster.run(_workload(WARM_UP, f"{seed}/warm-up/{number}"), PLAN)
        for number in range(rounds):
            for load in loads:
                for name in _turned([each for each in clusters if load.on in ("", each)], number):
                    run = await _run(clusters[name], load, f"{seed}/{load.name}/{number}")
                    found.append({"configuration": name, "load": load.name, "round": number, **_figures(run)})
                    say(f"{name}, {load.name}, round {number}: {found[-1]['elapsed_s']:.1f} s")
    return found


def median(runs: Sequence[Figures], name: str) -> float:
    """Return the median over rounds."""
    return statistics.median(each[name] for each in runs)


def spread(runs: Sequence[Figures], name: str, form: str = ".0f") -> str:
    """Return the median over rounds with the least and the most, as people read it."""
    values = [each[name] for each in runs]
    return f"{statistics.median(values):{form}} ({min(values):{form}}-{max(values):{form}})"


def chosen(runs: Sequence[Figures], configuration: str, load: str) -> list[Figures]:
    """Return the runs of a load on a cluster, one a round."""
    return [each for each in runs if (each["configuration"], each["load"]) == (configuration, load)]


async def _run(cluster: Cluster, load: Load, seed: str) -> Run:
    workload = _workload(load.config, seed)
    if load.ahead:
        await cluster.run(_part(workload, 0, load.ahead), PLAN)
    return await cluster.run(_part(workload, load.ahead, None), PLAN)


def _workload(config: WorkloadConfig, seed: str) -> Workload:
    digest = hashlib.blake2b(seed.encode(), digest_size=4).digest()
    return workload_of(dataclasses.replace(config, seed=int.from_bytes(digest)))


def _part(workload: Workload, first: int, stop: int | None) -> Workload:
    return dataclasses.replace(workload, source=lambda: islice(workload, first, stop))


def _turned(names: list[str], number: int) -> Iterator[str]:
    """Yield them from another one on in each round: nobody is always the first."""
    first = number % len(names)
    yield from (*names[first:], *names[:first])


def _figures(run: Run) -> Figures:
    if run.summary.failures or any(not each.is_answered for each in run.records):
        raise RuntimeError(f"requests failed: {'; '.join(run.warnings())}")
    records = run.records
    elapsed_s = max(each.last_s or 0.0 for each in records) - min(each.sent_s for each in records)
    told: Figures = {"elapsed_s": elapsed_s, "requests_per_s": len(records) / elapsed_s}
    told["output_tokens_per_s"] = sum(each.output_tokens for each in records) / elapsed_s
    told["cached_share"] = sum(each.cached_tokens or 0 for each in records) / sum(r.input_tokens for r in records)
    for name in ("ttft", "tpot", "e2e", "gap"):
        found = run.summary.measures[name]
        if found is not None:
            told |= {f"{name}_p50_ms": found.p50, f"{name}_p90_ms": found.p90, f"{name}_max_ms": found.max}
    told["requests"] = [_request(each) for each in records]
    told["counters"] = {pod: dict(each) for pod, each in run.counters.items()}
    return told


def _request(record: Record) -> list[Any]:
    """Return what a request was: tokens in, cached and out; seconds to the first and to the last token."""
    times = [round(each, 4) for each in (record.ttft_s or 0.0, record.e2e_s or 0.0)]
    return [record.input_tokens, record.cached_tokens, record.output_tokens, *times]

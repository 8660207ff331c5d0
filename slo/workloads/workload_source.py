"""From settings to a workload: the recording is read or requests are made up, then times and lengths are set."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from pagewire.core.config import ConfigError
from pagewire.slo.workloads.formats.mooncake import read_mooncake
from pagewire.slo.workloads.formats.sharegpt import read_sharegpt
from pagewire.slo.workloads.formats.tables import AZURE, read_azure, read_burstgpt
from pagewire.slo.workloads.made_up import PrefixTree, Shape, made_up
from pagewire.slo.workloads.processes import Process
from pagewire.slo.workloads.samples import sample
from pagewire.slo.workloads.transforms import at_rate, first, resized, retimed, until
from pagewire.slo.workloads.workload import Workload
from pagewire.slo.workloads.workload_config import WorkloadConfig

DEFAULT_REQUESTS = 100
DEFAULT_RATE = 1.0
NO_END = 10**9  # arrivals; the duration ends them
SAMPLE = "sample:"


def workload_of(config: WorkloadConfig) -> Workload:
    """Return the workload that `config` says; raises ConfigError, TraceError with line and field, and OSError."""
    try:
        workload = _recorded(config) if config.trace else _made_up(config)
        if config.length_scale != 1:
            workload = resized(workload, config.length_scale)
        if config.requests:
            workload = first(workload, config.requests)
        if config.concurrency:
            return dataclasses.replace(workload, concurrency=config.concurrency)
        workload = _timed(config, workload)
        return until(workload, config.duration_s) if config.duration_s else workload
    except ValueError as error:
        raise ConfigError(str(error)) from error


def num_recorded(config: WorkloadConfig) -> int | None:
    """Return how many arrivals the recording has, None where there is none; raises as `workload_of` does."""
    return sum(1 for _ in _recorded(config)) if config.trace else None


def rate_of(config: WorkloadConfig) -> float:
    """Return at what rate arrivals come, 0 where the times are as recorded, or users of a closed loop make them."""
    if config.rate or config.concurrency or _arrivals(config) == "recorded":
        return config.rate
    return DEFAULT_RATE


def _made_up(config: WorkloadConfig) -> Workload:
    shape = Shape(
        input=config.input,
        output=config.output,
        tree=PrefixTree(share=config.prefix_share, depth=config.prefix_depth, branches=config.prefix_branches),
        turns=config.turns,
        later_input=config.later_input,
        think_s=config.think_s,
    )
    num_arrivals = config.requests or (NO_END if config.duration_s else DEFAULT_REQUESTS)
    return made_up("made up", shape, num_arrivals=num_arrivals, seed=config.seed)


def _timed(config: WorkloadConfig, workload: Workload) -> Workload:
    arrivals, rate = _arrivals(config), rate_of(config)
    if arrivals == "recorded":
        return at_rate(workload, rate) if rate else workload
    cv = {"constant": 0.0, "poisson": 1.0, "gamma": config.burst_cv}[arrivals]
    return retimed(workload, Process(rate=rate, cv=cv), config.seed)


def _arrivals(config: WorkloadConfig) -> str:
    if config.arrivals != "auto":
        return config.arrivals
    return "recorded" if config.trace and _format(config) != "sharegpt" else "poisson"


def _recorded(config: WorkloadConfig) -> Workload:
    path, seed, kind = _path(config), config.seed, _format(config)
    if config.think_s and kind != "sharegpt":
        raise ConfigError(f"think_s is of recordings without times: {kind} has its own")
    match kind:
        case "mooncake":
            return read_mooncake(path, seed=seed)
        case "azure":
            return read_azure(path, seed=seed)
        case "burstgpt":
            return read_burstgpt(path, seed=seed)
        case _:
            return read_sharegpt(path, seed=seed, think_s=config.think_s)


def _path(config: WorkloadConfig) -> Path:
    if config.trace.startswith(SAMPLE):
        return sample(config.trace.removeprefix(SAMPLE))
    return Path(config.trace)


def _format(config: WorkloadConfig) -> str:
    if config.trace_format != "auto":
        return config.trace_format
    path = _path(config)
    match path.suffix:
        case ".jsonl":
            return "mooncake"
        case ".json":
            return "sharegpt"
        case ".csv":
            with path.open(encoding="utf-8-sig", errors="replace") as lines:
                return "azure" if AZURE[0] in lines.readline() else "burstgpt"
    raise ConfigError(f"{path.name} does not end in .jsonl, .json or .csv: say its format with trace_format")

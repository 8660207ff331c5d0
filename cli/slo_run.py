"""`pagewire slo run`: one run, watched on a terminal, with its table, its records and its JSON."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from pagewire.cli import out_file
from pagewire.cli.progress import Report, bar, say
from pagewire.cli.slo_origin import asked
from pagewire.slo.figures.record import Record
from pagewire.slo.figures.redaction import bare
from pagewire.slo.figures.statistics import distribution_ms
from pagewire.slo.figures.table import table
from pagewire.slo.load.player import Played
from pagewire.slo.load.run import Run, RunPlan, Server, run
from pagewire.slo.workloads.workload import Workload
from pagewire.slo.workloads.workload_config import WorkloadConfig
from pagewire.slo.workloads.workload_source import workload_of

SHOWN_EVERY_S = 0.25
INTERRUPTED = 130  # 128 and the number of SIGINT, as shells have it
RECENT = 200  # records whose TTFT is shown while others run


def execute(
    config: WorkloadConfig, server: Server, plan: RunPlan, *, records: Path | None, summary: Path | None
) -> int:
    """Run it, print the table, write what was asked for, and return the exit code.

    It is 130 where Ctrl-C cut it short, 1 where nothing was answered. Raises what `run` does, and OSError. No request
    is sent where a file cannot be written, and should one fail later, the table is there all the same.
    """
    workload = workload_of(config)
    total = _num_requests(workload, plan)
    for file in (summary, records):
        out_file.try_out(file)
    with out_file.kept(records) as keep:
        with bar(server.url) if sys.stderr.isatty() else nullcontext() as report:
            done = asyncio.run(_watched(workload, server, plan, keep, report, total))
        try:  # first: what was measured is not lost with a terminal
            out_file.write_json(summary, done.as_json(**asked(config), url=bare(server.url)))
        finally:
            print("\n".join(table(done.summary)))
            for warning in done.warnings():
                say(f"pagewire: {warning}")
    if done.left is not None:
        return INTERRUPTED
    return 0 if any(record.is_answered for record in done.records) else 1


def _num_requests(workload: Workload, plan: RunPlan) -> int | None:
    """Return how many requests there are at most, having seen that each is sound; None where only time ends them."""
    if workload.concurrency and plan.duration_s < math.inf:
        return None
    return sum(len(arrival.turns) for arrival in workload)


async def _watched(
    workload: Workload,
    server: Server,
    plan: RunPlan,
    on_record: Callable[[Record], None],
    report: Report | None,
    total: int | None,
) -> Run:
    watching: list[asyncio.Task[None]] = []

    def watch(played: Played) -> None:
        if report is not None:
            watching.append(asyncio.create_task(_show(played, plan, report, total)))

    try:
        return await run(workload, server, plan, on_start=watch, on_record=on_record, may_be_cut_short=True)
    finally:
        for task in watching:
            task.cancel()


async def _show(played: Played, plan: RunPlan, report: Report, total: int | None) -> None:
    begun_s = asyncio.get_running_loop().time()
    while True:
        await asyncio.sleep(SHOWN_EVERY_S)
        share = (
            len(played.records) / total if total else (asyncio.get_running_loop().time() - begun_s) / plan.duration_s
        )
        report(_line(played, plan), min(1.0, share))


def _line(played: Played, plan: RunPlan) -> str:
    recent = played.records[-RECENT:]
    failed = sum(not each.is_answered for each in played.records)
    told = f"{played.running} running, {len(played.records)} done, {failed} failed"
    if (ttft := distribution_ms([each.ttft_s for each in recent if each.ttft_s is not None])) is not None:
        good = sum(map(plan.objectives.is_good, recent)) / len(recent)
        told += f", {good:.0%} good, TTFT p50 {ttft.p50:.0f} p99 {ttft.p99:.0f} ms"
    return told

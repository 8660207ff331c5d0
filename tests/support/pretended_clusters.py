"""Clusters for sweeps that compute nothing: what share of requests is good follows from the rate alone.

As a program it is a sweep over them that takes its time, to be killed: python pretended_clusters.py FOLDER SETTINGS.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from pagewire.core.config import load
from pagewire.core.errors import Unavailable
from pagewire.slo.figures.record import Record
from pagewire.slo.figures.summary import Window
from pagewire.slo.figures.tally import summarize
from pagewire.slo.load.run import Run, RunPlan
from pagewire.slo.sweeps.configuration import Configuration
from pagewire.slo.sweeps.sweep import Cluster, Sweep
from pagewire.slo.sweeps.sweep_config import SweepConfig
from pagewire.slo.sweeps.sweep_folder import SweepFolder
from pagewire.slo.workloads.made_up import Lengths
from pagewire.slo.workloads.workload import Workload

LENGTH = Lengths(8, 8)
GOOD_S, BAD_S = 0.1, 10.0  # TTFT, with an objective between


class PretendedClusters:
    """`capacity` by the name of a configuration: as many requests a second are good, whatever comes beyond is not.

    `ran` has what was played, `(name, seed)`; 0 is a cluster that does not start, and a negative capacity one that
    breaks in its second run.
    """

    def __init__(self, capacity: dict[str, float], pause_s: float = 0.0) -> None:
        self.capacity = capacity
        self.pause_s = pause_s
        self.ran: list[tuple[str, int]] = []
        self.num_started = 0
        self.running = 0

    def started(self, configuration: Configuration, logs: Path) -> AbstractAsyncContextManager[Cluster]:
        assert logs.is_dir()
        return self._started(configuration)

    @asynccontextmanager
    async def _started(self, configuration: Configuration) -> AsyncIterator[Cluster]:
        capacity = self.capacity[configuration.name]
        if not capacity:
            raise Unavailable("does not fit\n    a line of its log")
        self.num_started += 1
        self.running += 1
        assert self.running == 1, "two clusters at once would share the machine"
        try:
            yield PretendedCluster(configuration.name, capacity, self)
        finally:
            self.running -= 1


class PretendedCluster:
    def __init__(self, name: str, capacity: float, among: PretendedClusters) -> None:
        self._name = name
        self._capacity = capacity
        self._among = among
        self._num_runs = 0

    async def run(self, workload: Workload, plan: RunPlan) -> Run:
        await asyncio.sleep(self._among.pause_s)
        self._num_runs += 1
        self._among.ran.append((self._name, workload.seed))
        if self._capacity < 0 and self._num_runs == 2:
            raise RuntimeError("broken")
        records = [
            record(number, arrival.at_s, self._is_good(number, arrival.at_s)) for number, arrival in enumerate(workload)
        ]
        window = Window(from_s=plan.warmup_s, until_s=plan.duration_s)
        summary = summarize(records, window, plan.objectives)
        return Run(model="none", records=tuple(records), summary=summary, lags_s=())

    def _is_good(self, number: int, at_s: float) -> bool:
        return number < math.ceil(abs(self._capacity) * at_s) + 1


def record(number: int, due_s: float, is_good: bool) -> Record:
    first_s = due_s + (GOOD_S if is_good else BAD_S)
    return Record(
        arrival=number, turn=0, intended_s=due_s, sent_s=due_s, first_s=first_s, last_s=first_s + 0.1, gaps_s=(0.1,),
        input_tokens=8, output_tokens=2, wanted_tokens=2,
    )  # fmt: skip


async def swept(
    config: SweepConfig, clusters: PretendedClusters, folder: Path, say: Callable[[str], None] = lambda text: None
) -> Sweep:
    """Return a sweep that ran to its end."""
    sweep = Sweep(config, clusters, SweepFolder(folder), about={"command": "pagewire slo sweep"}, say=say)
    await sweep.run()
    return sweep


def main() -> None:
    folder, told = Path(sys.argv[1]), json.loads(sys.argv[2])
    config = load(SweepConfig, environ={}, flags=told).value
    clusters = PretendedClusters({each.name: 8.0 for each in config.configurations()}, pause_s=0.02)
    asyncio.run(swept(config, clusters, folder, lambda text: print(text, flush=True)))
    print(json.dumps(clusters.ran))


if __name__ == "__main__":
    main()

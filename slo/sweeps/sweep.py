"""A sweep: every configuration is started, probed at the rates that its search asks for, and stopped.

Knows no way to start a cluster: it is given `Clusters`, real or simulated. Invariant: all it knows is in its folder, so
one that was killed goes on behind its last finished probe, and one that is finished starts nothing. A configuration
that fails is noted by name and left; the others go on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

from pagewire.slo.figures.origin import machine, versions
from pagewire.slo.load.run import Run, RunPlan
from pagewire.slo.sweeps.configuration import Configuration
from pagewire.slo.sweeps.finding import Finding
from pagewire.slo.sweeps.probe_plan import probe_workload, run_plan
from pagewire.slo.sweeps.sweep_config import SweepConfig
from pagewire.slo.sweeps.sweep_folder import RECORDS, RUN, SweepFolder
from pagewire.slo.workloads.workload import Workload

TITLE = "An SLO sweep"
PACKAGES = ("httpx", "grpcio", "torch", "transformers")  # of the client, and of pods that are started here


class Cluster(Protocol):
    """What a workload is played against: real pods, or simulated ones in virtual time."""

    async def run(self, workload: Workload, plan: RunPlan) -> Run:
        """Play it to its end and return what it came to; raises where the cluster is not what it should be."""
        ...


class Clusters(Protocol):
    """Who starts clusters."""

    def started(self, configuration: Configuration, logs: Path) -> AbstractAsyncContextManager[Cluster]:
        """Return a cluster, which is ready when entered and gone when left; `logs` is a folder for its logs."""
        ...


class Sweep:
    """One sweep in its folder. `about` is written beside every run: the command, whatever else; `say` hears of each."""

    def __init__(
        self,
        config: SweepConfig,
        clusters: Clusters,
        folder: SweepFolder,
        *,
        about: Mapping[str, Any],
        say: Callable[[str], None],
    ) -> None:
        self._config = config
        self._clusters = clusters
        self._folder = folder
        self._about = {**about, "seed": config.seed, "versions": versions(*PACKAGES)}
        self._say = say
        self._search = config.search()

    async def run(self) -> list[Finding]:
        """Make the probes that are left and return what all came to; raises OSError where none can be kept."""
        self._tell()
        for configuration in self._config.configurations():
            try:
                while self._next_rate(configuration) is not None:
                    await self._probe(configuration)
            except Exception as error:  # whatever ended this one, the others go on
                self._folder.fail(configuration, error)
                self._tell()
                self._say(f"{configuration.name}: failed: {self._finding(configuration).error}")
        return self.findings()

    def findings(self) -> list[Finding]:
        """Return what all probes so far came to."""
        return [*map(self._finding, self._config.configurations())]

    def _finding(self, configuration: Configuration) -> Finding:
        probes = tuple(self._folder.probes(configuration))
        return Finding(configuration=configuration, probes=probes, error=self._folder.failure(configuration))

    def _next_rate(self, configuration: Configuration) -> float | None:
        finding = self._finding(configuration)
        return None if finding.error else self._search.next_rate(finding.evidence)

    async def _probe(self, configuration: Configuration) -> None:
        """Start a cluster and make the probes that are left, or the next one alone where each has a fresh cluster."""
        self._say(f"{configuration.name}: starting")
        async with self._clusters.started(configuration, self._folder.logs(configuration)) as cluster:
            while (rate := self._next_rate(configuration)) is not None:
                await self._probe_at(rate, configuration, cluster)
                if self._config.fresh:
                    return

    async def _probe_at(self, rate: float, configuration: Configuration, cluster: Cluster) -> None:
        taken = {probe.repeat for probe in self._finding(configuration).probes if probe.rate == rate}
        repeat = next(number for number in itertools.count() if number not in taken)  # one may have been taken away
        workload = probe_workload(self._config, rate, repeat)
        run = await cluster.run(workload, run_plan(self._config))
        figures = run.as_json(
            **self._about,
            configuration=configuration.name,
            settings=dict(configuration.settings),
            workload=self._config.as_json() | {"rate": rate, "seed": workload.seed},
        )
        self._folder.keep(configuration, rate, repeat, figures, run.records)
        self._tell()
        attained = run.summary.all_attained
        told = f"{attained.share:.1%} of {attained.total} good ({attained.interval})"
        self._say(f"{configuration.name}: {rate:g}/s, {told}")
        for warning in run.warnings():
            self._say(f"  {warning}")

    def _tell(self) -> None:
        findings, targets = self.findings(), self._config.attainment
        runs = [
            {
                "labels": {**finding.configuration.labels, "rate": probe.rate},
                "summary": f"{probe.folder}/{RUN}",
                "records": f"{probe.folder}/{RECORDS}",
            }
            for finding in findings
            for probe in finding.probes
        ]
        beside = {"title": self._config.title or TITLE, **self._about}
        found = {"configurations": [finding.as_json(targets) for finding in findings]}
        self._folder.tell(
            sweep={**beside, "machine": machine(), "asked": self._config.as_json(), **found},
            experiment={**beside, "runs": runs},
        )

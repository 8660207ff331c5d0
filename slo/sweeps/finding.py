"""What a sweep found of one configuration: its probes, the rates that it carries, or why it failed. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pagewire.slo.figures.summary import Attainment
from pagewire.slo.figures.table import aligned
from pagewire.slo.sweeps.bracket import Crossing, Evidence, crossing
from pagewire.slo.sweeps.configuration import Configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One finished run at a rate, in requests a second; `folder` holds it, relative to the sweep's."""

    rate: float
    repeat: int
    attained: Attainment
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A configuration with its probes by rate; `error` is why it has no more of them, "" where nothing went wrong."""

    configuration: Configuration
    probes: tuple[Probe, ...]
    error: str = ""

    @property
    def evidence(self) -> Evidence:
        """What its probes say together."""
        evidence = Evidence()
        for probe in self.probes:
            evidence.tell(probe.rate, probe.attained)
        return evidence

    def crossings(self, targets: Sequence[float]) -> list[Crossing]:
        """Return the rates at which its attainment falls below each target."""
        return [crossing(self.evidence, target) for target in targets]

    def as_json(self, targets: Sequence[float]) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "name": self.configuration.name,
            "settings": dict(self.configuration.settings),
            "error": self.error,
            "rates": [{**dataclasses.asdict(each), "told": str(each)} for each in self.crossings(targets)],
            "probes": [
                {"rate": each.rate, "repeat": each.repeat, "folder": each.folder, **each.attained.as_json()}
                for each in self.probes
            ],
        }


def table(findings: Sequence[Finding], targets: Sequence[float]) -> Iterator[str]:
    """Yield the lines of a table: for each configuration the highest rate of each target."""
    heads = [f"{target:.10g}" if target * 100 % 1 else f"{target:.0%}" for target in targets]
    rows = [[each.configuration.name, *map(str, each.crossings(targets))] for each in findings]
    yield from aligned([["", *heads], *rows])
    for finding in findings:
        if finding.error:
            yield f"{finding.configuration.name} failed: {finding.error.splitlines()[0]}"

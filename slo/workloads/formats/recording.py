"""What recordings have in common: they are workloads whose first arrival is at 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

from pagewire.slo.workloads.arrival import Arrival
from pagewire.slo.workloads.workload import Workload


def recorded(path: Path, arrivals: Sequence[Arrival], seed: int) -> Workload:
    """Return the workload of a recording's arrivals, by time; raises ValueError where there are none."""
    if not arrivals:
        raise ValueError(f"{path.name} has no requests")
    begin_s = min(arrival.at_s for arrival in arrivals)
    ordered = sorted((replace(each, at_s=each.at_s - begin_s) for each in arrivals), key=attrgetter("at_s"))
    return Workload(name=path.name, source=lambda: ordered, seed=seed)

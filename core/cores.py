"""How many cores this process may use: those that it is bound to, and no more than its share of time keeps busy.

A share is what a container is given: a control group, or one above it, may run for a quota of each period, on however
many cores. More threads than that would all stand still for the rest of the period. Knows nothing of who computes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pagewire.core.control_groups import GROUPS, MEMBERSHIP, limits


def usable(groups: Path = GROUPS, membership: Path = MEMBERSHIP) -> int:
    """Return their number, at least 1; `groups` is where control groups are, `membership` says which are ours."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    shares = (int(quota_us / period_us) for quota_us, period_us in _quotas(groups, membership))
    return max(1, min((bound, *shares)))


def _quotas(groups: Path, membership: Path) -> Iterator[tuple[int, int]]:
    """Yield the microseconds of running and of the period of each group that bounds us."""
    for said in limits("cpu", ("cpu.cfs_quota_us", "cpu.cfs_period_us"), ("cpu.max",), groups, membership):
        if len(said) == 2 and all(map(str.isdecimal, said)) and int(said[1]):  # no bound is "max", or -1
            yield int(said[0]), int(said[1])

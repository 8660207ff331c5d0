"""The devices of an engine's ranks, as a setting names them. Knows names; touches no device.

One name on a CPU is everybody's, with one pool in common. Else each rank has a device and a pool of its own heads: they
are named one by one, or follow the one that is named. Invariant: all devices of an engine are of one kind.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

NAME = r"cpu|cuda(:\d{1,2})?"


def kind_of(device: str) -> str:
    """Return cpu or cuda, of whatever `devices_of` takes."""
    return re.split("[:,]", device)[0]


def devices_of(device: str, num_ranks: int) -> tuple[str, ...]:
    """Return the device of each rank, or the one that all share: `cuda:2` of two ranks is `cuda:2` and `cuda:3`.

    Those of CUDA have their numbers, `cuda` is `cuda:0`. Raises ValueError for what names no device, or not as many as
    there are ranks.
    """
    names, kind = device.split(","), kind_of(device)
    if not all(re.fullmatch(NAME, name) for name in names):
        raise ValueError(f"device {device!r} is not cpu, cuda or cuda:N, nor a list of those")
    if any(kind_of(name) != kind for name in names):
        raise ValueError(f"device {device}: the ranks of an engine compute on devices of one kind")
    if len(names) not in (1, num_ranks):
        raise ValueError(f"device {device}: {len(names)} devices for tensor_parallel {num_ranks}")
    if kind == "cpu":
        return tuple(names)
    numbers = [int(name.partition(":")[2] or 0) for name in names]
    if len(names) == 1:
        numbers = [numbers[0] + rank for rank in range(num_ranks)]
    return tuple(f"cuda:{number}" for number in numbers)


def are_distinct(devices: Sequence[str]) -> bool:
    """Return whether each of several ranks has a GPU to itself, as NCCL wants it."""
    return kind_of(devices[0]) == "cuda" and len(set(devices)) == len(devices)

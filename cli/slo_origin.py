"""With what a command made its figures: what was typed, the settings of its workload, the machine and the versions."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from pagewire.slo.figures.origin import machine, versions
from pagewire.slo.figures.redaction import bare
from pagewire.slo.workloads.workload_config import WorkloadConfig

KEY_FLAG = "--api-key"


def asked(config: WorkloadConfig) -> dict[str, Any]:
    """Return what this process was asked, for its JSON: with the rate at which it asked, where none was said."""
    from pagewire.slo.workloads.workload_source import rate_of

    workload = config.as_json() | {"rate": rate_of(config)}
    return {"command": command_line(sys.argv), "seed": config.seed, "workload": workload}


def origin(config: WorkloadConfig) -> dict[str, Any]:
    """Return the same with the machine and the versions that it ran on."""
    return {**asked(config), "machine": machine(), "versions": versions()}


def command_line(arguments: Sequence[str]) -> str:
    """Return a command as it could be typed again, without its key and what URLs say of users."""
    told = ["pagewire"]
    for before, argument in pairwise(arguments):
        if before == KEY_FLAG:
            told.append("...")
        else:
            told.append(f"{KEY_FLAG}=..." if argument.startswith(f"{KEY_FLAG}=") else bare(argument))
    return shlex.join(told)

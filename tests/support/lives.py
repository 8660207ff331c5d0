"""Which processes still are: by who they are, for a number is another's soon after."""

from __future__ import annotations

from collections.abc import Iterable

import psutil


def is_alive(process: psutil.Process) -> bool:
    """Return whether this very process is there, and more than a zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def left_behind(processes: Iterable[psutil.Process], within_s: float) -> list[psutil.Process]:
    """Return those that do not end, or that nobody reaps, within `within_s`."""
    _, perhaps = psutil.wait_procs(processes, timeout=within_s)  # which waits for a number
    return [process for process in perhaps if process.is_running()]

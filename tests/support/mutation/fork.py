"""Work in a child that starts as a copy of this process, and whose end nothing here can notice but by its answer.

Bounded by the child's own processor time, not by the clock: a machine that is busy or paused changes no answer. The
clock bounds only what waits for ever, and stands while the child waits for a processor. Knows nothing of what the work
is.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

_STARTING = threading.Lock()  # or a child of another thread would hold the end that this one's is to close
EXTRA_MEMORY = 3 << 30  # bytes beyond what this process has mapped; a mutant that fills a list for ever ends there


def forked(
    work: Callable[[], Any],
    cpu_seconds: float | None = None,
    wall_seconds: float | None = None,
    is_quiet: bool = True,
) -> Any:
    """Return what `work` returned in a child, as JSON carries it; None where it did not come to its end."""
    with _STARTING:
        reading, writing = os.pipe()
        child = os.fork()
        if child != 0:
            os.close(writing)
    if child == 0:
        os.close(reading)
        _run(work, writing, cpu_seconds, is_quiet)
    answer = _read(reading, child, wall_seconds)
    os.close(reading)
    if answer is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # and whatever it started
    _, status = os.waitpid(child, 0)
    return json.loads(answer) if answer and status == 0 else None


def allow(cpu_seconds: float) -> None:
    """End this process once it has used so much more of the processor's time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime + cpu_seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))


def _run(work: Callable[[], Any], writing: int, cpu_seconds: float | None, is_quiet: bool) -> None:
    try:
        os.setpgid(0, 0)
        if is_quiet:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 1)
            os.dup2(nothing, 2)
        if cpu_seconds is not None:
            allow(cpu_seconds)
            with open("/proc/self/statm") as statm:
                mapped = int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (mapped + EXTRA_MEMORY, resource.RLIM_INFINITY))
        answer = json.dumps(work()).encode()
        while answer:
            answer = answer[os.write(writing, answer) :]
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os._exit(1)
    os._exit(0)


def _read(reading: int, child: int, wall_seconds: float | None) -> bytes | None:
    """Return all that comes until the other end closes; None where nothing comes in time."""
    parts: list[bytes] = []
    while True:
        waited = 0  # in seconds that this process saw pass: while it is stopped itself, so is the child
        while not select.select([reading], [], [], 1)[0]:
            waited += not _is_ready(child)
            if wall_seconds is not None and waited > wall_seconds:
                return None
        part = os.read(reading, 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)


def _is_ready(process: int) -> bool:
    """Whether a thread of a process runs, or would if there were a processor for it."""
    for stat in Path(f"/proc/{process}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # it may end meanwhile
            if stat.read_text().rpartition(")")[2].split()[0] in "RD":
                return True
    return False

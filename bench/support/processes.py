"""Processes of a benchmark: started in a group of their own, tied to cores, ended whole.

Knows nothing of what they serve. Invariant: when `stop` returns, nothing of the group is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

STOP_S = 60.0


class ServerProcess:
    """One process with its children; `log` holds its stderr, and its stdout too unless that is read."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        environ: Mapping[str, str],
        *,
        reads_stdout: bool,
        takes_stdin: bool = False,
    ) -> None:
        self.log = log
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if takes_stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE if reads_stdout else stderr,
                stderr=stderr,
                env={**os.environ, **environ},
                start_new_session=True,
                text=True,
            )

    @property
    def tail(self) -> str:
        """The last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])

    def said(self) -> Any:
        """Return the JSON of its stdout's next line; raises RuntimeError where it says no more.

        Whatever comes instead of a line, it is ended: nobody holds it yet who could.
        """
        assert self.process.stdout is not None
        try:
            if line := self.process.stdout.readline():
                return json.loads(line)
            raise RuntimeError(f"{self.log.stem} ended:\n{self.tail}")
        except BaseException:
            self.stop()
            raise

    def pause(self) -> None:
        """Let nothing of it run, so that what it polls for when idle costs the others nothing."""
        signal_tree(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it run again."""
        signal_tree(self.process.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Ask it to end, wait for that, and kill what is left of it.

        By SIGTERM: what a shell started in the background ignores SIGINT, and so do its children.
        """
        self.resume()
        tree = children_of(self.process.pid)
        self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for process in tree:  # those that have a group of their own
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(tree, timeout=STOP_S)


def leave_on_signals() -> None:
    """Have SIGTERM and SIGHUP end this process as an error does: what it started is ended."""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)


def free_port() -> int:
    """Return a port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def children_of(pid: int) -> list[psutil.Process]:
    """Return all that came from `pid` and still lives."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def signal_tree(pid: int, number: signal.Signals) -> None:
    """Send a signal to `pid` and to all that came from it; those that are gone meanwhile are passed over."""
    for each in (pid, *(child.pid for child in children_of(pid))):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, number)


def pin(pid: int, cores: Iterable[int]) -> None:
    """Let every thread of `pid` and of its children run on `cores` only; threads to come inherit it."""
    chosen = set(cores)
    for process in (pid, *(child.pid for child in children_of(pid))):
        for thread in list(Path(f"/proc/{process}/task").iterdir()):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), chosen)


def unpin_helpers(pid: int) -> None:
    """Let every thread of `pid` and of its children run on any core, except for each process's first thread."""
    for process in (pid, *(child.pid for child in children_of(pid))):
        for thread in list(Path(f"/proc/{process}/task").iterdir()):
            if int(thread.name) != process:
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(int(thread.name), os.sched_getaffinity(0))

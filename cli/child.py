"""A process that `pagewire up` started: tethered, in a group of its own, its log in a file, its readiness one line.

Knows nothing of what the process does. Invariant: after `stop` no process of its group is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pagewire.core.documents import parse_object
from pagewire.core.errors import Unavailable

TAIL_LINES = 25
MAX_READY_BYTES = 1 << 20


class Child:
    """One running process: `role` is what it does, `log` holds its stderr, which is ours where there is none."""

    def __init__(self, name: str, role: str, process: asyncio.subprocess.Process, log: Path | None) -> None:
        self.name = name
        self.role = role
        self.log = log
        self._process = process
        self._draining: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls, name: str, role: str, command: Sequence[str], environ: Mapping[str, str], log: Path | None = None,
        keeping: Sequence[int] = (),
    ) -> Child:  # fmt: skip
        """Start `command` tied to this process, with the descriptors `keeping` open in it too.

        Raises OSError where it cannot be started.
        """
        tether = [sys.executable, "-m", "pagewire.cli.tether", str(os.getpid())]
        with log.open("ab") if log is not None else contextlib.nullcontext() as stderr:
            process = await asyncio.create_subprocess_exec(
                *tether,
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                env=dict(environ),
                start_new_session=True,
                limit=MAX_READY_BYTES,
                pass_fds=keeping,
            )
        return cls(name, role, process, log)

    @property
    def pid(self) -> int:
        """The process id, which is its group's too."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended, None while it runs."""
        return self._process.returncode

    async def ready(self, timeout_s: float) -> dict[str, Any]:
        """Return the JSON object that says the process is up. Raises Unavailable with its log's tail otherwise."""
        line = await self.line(timeout_s)
        try:
            said = parse_object(line, "it")
        except ValueError:
            raise Unavailable(f"{self.name} said {line!r} instead of a JSON object") from None
        self.drain()
        return said

    async def line(self, timeout_s: float) -> str:
        """Return the next line of its stdout. Raises Unavailable with its log's tail when it ends or takes too long."""
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(timeout_s):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise Unavailable(f"{self.name} was not ready within {timeout_s:g} s\n{self.tail()}") from None
        if not line:
            code = await self._process.wait()
            raise Unavailable(f"{self.name} ended with exit code {code} before it was ready\n{self.tail()}")
        return line.decode(errors="replace").strip()

    def drain(self) -> None:
        """Read and forget what it still prints: a full pipe would block it."""
        self._draining = asyncio.create_task(self._drain())

    async def exited(self) -> int:
        """Wait for the process to end and return its exit code."""
        return await self._process.wait()

    async def stop(self, grace_s: float) -> None:
        """End it: SIGTERM, `grace_s` seconds to finish, then SIGKILL for its whole group."""
        self.tell(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._process.wait()
        self.kill()
        await self._process.wait()
        if self._draining is not None:
            await self._draining

    def kill(self) -> None:
        """SIGKILL for its whole group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def tail(self) -> str:
        """Return the last lines of its log."""
        if self.log is None:
            return ""
        lines = self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        return "\n".join(f"    {line}" for line in lines)

    def tell(self, number: signal.Signals) -> None:
        """Send it a signal, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def _drain(self) -> None:
        assert self._process.stdout is not None
        while await self._process.stdout.read(65536):
            pass

"""A lifeline breaks when its source closes or is killed, and not before."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest
from open_files import open_files

from pagewire.core.errors import TransferFailed
from pagewire.kvtransfer.transports.lifeline import Hold, Lifeline


def handed(fd: int, pid: str = "self") -> int:
    """A descriptor of the same pipe, as a taker is handed one."""
    return os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)


def test_a_lifeline_breaks_when_its_source_closes() -> None:
    lifeline = Lifeline()
    holds = [Hold(handed(lifeline.fd)), Hold(handed(lifeline.fd))]
    assert all(hold.is_held for hold in holds)
    lifeline.close()
    assert not any(hold.is_held for hold in holds)
    lifeline.close()
    for hold in (*holds, *holds):
        hold.close()
        assert not hold.is_held


async def test_a_lifeline_breaks_when_its_source_is_killed() -> None:
    code = (
        "import sys; from pagewire.kvtransfer.transports.lifeline import Lifeline; line = Lifeline();"
        "print(line.fd, flush=True); sys.stdin.read()"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-c", code, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    hold = Hold(handed(int(await process.stdout.readline()), str(process.pid)))
    assert hold.is_held
    process.kill()
    await process.wait()
    assert not hold.is_held
    hold.close()


def test_nothing_is_left_open() -> None:
    before = open_files()
    lifeline = Lifeline()
    hold = Hold(handed(lifeline.fd))
    lifeline.close()
    hold.close()
    assert open_files() - before == set()


def test_a_process_without_descriptors_left_has_a_named_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(_flags: int) -> tuple[int, int]:
        raise OSError(24, "too many open files")

    monkeypatch.setattr(os, "pipe2", none_left)
    with pytest.raises(TransferFailed, match="no lifeline"):
        Lifeline()

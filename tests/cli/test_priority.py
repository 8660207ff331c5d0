"""Who goes first: what the kernel has of it, for real processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagewire.cli import priority


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that leads a session of its own."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        yield process
        process.kill()


def test_a_session_comes_after_others(sleeper: subprocess.Popen[bytes]) -> None:
    asyncio.run(priority.lower(sleeper.pid, 5))
    assert os.getpriority(os.PRIO_PROCESS, sleeper.pid) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 5)
    group = Path(f"/proc/{sleeper.pid}/autogroup")
    if group.exists() and group.read_text():  # a kernel may be built with it, and not use it
        assert group.read_text().endswith(" nice 5\n")


def test_one_that_is_gone_is_nobodys_trouble(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.kill()
    sleeper.wait()
    asyncio.run(priority.lower(sleeper.pid, 5))


def test_a_kernel_that_is_asked_too_often_is_asked_again(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def write(_path: Path, text: str) -> None:
        said.append(text)
        if len(said) < 3:
            raise BlockingIOError

    monkeypatch.setattr(priority, "AGAIN_S", 0.0)
    monkeypatch.setattr(Path, "write_text", write)
    asyncio.run(priority.lower(sleeper.pid, 7))
    assert said == ["7"] * 3
    said.clear()
    monkeypatch.setattr(priority, "TRIES", 2)
    asyncio.run(priority.lower(sleeper.pid, 7))
    assert said == ["7"] * 2

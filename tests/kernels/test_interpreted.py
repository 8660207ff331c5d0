"""The files in `interpreted/`, each in a process whose kernels Triton interprets; as many at once as cores."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from pagewire.core import cores

FILES = sorted((Path(__file__).parent / "interpreted").glob("test_*.py"))
Runs = dict[Path, "Future[subprocess.CompletedProcess[str]]"]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[Runs]:
    """Those that are asked for, the largest first: it takes longest."""
    own = [item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path]
    asked = {file for file in FILES if any(item.callspec.params["file"] == file for item in own)}
    with ThreadPoolExecutor(cores.usable()) as pool:
        yield {file: pool.submit(_run, file) for file in sorted(asked, key=lambda file: -file.stat().st_size)}
        pool.shutdown(cancel_futures=True)


def _run(file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", str(file)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_interpreted(file: Path, runs: Runs) -> None:
    done = runs[file].result()
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout

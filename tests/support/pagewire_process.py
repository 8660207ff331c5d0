"""A sub-command of `pagewire`, by this tree, in a process of its own, to its end."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

TIMEOUT_S = 120.0


class Ended(NamedTuple):
    """How it ended and what it said; `out` is empty where its stdout went elsewhere."""

    code: int | None
    out: str
    err: str


async def pagewire(
    *arguments: str, before: tuple[str, ...] = (), cwd: Path | None = None, stdout: int = asyncio.subprocess.PIPE,
    environ: Mapping[str, str] | None = None,
) -> Ended:  # fmt: skip
    """Run it, behind the command `before`, with variables more than ours; raises TimeoutError."""
    process = await asyncio.create_subprocess_exec(
        *before, sys.executable, "-P", "-m", "pagewire.cli.main", *arguments, cwd=cwd,
        stdout=stdout, stderr=asyncio.subprocess.PIPE, env={**os.environ, **(environ or {})},
    )  # fmt: skip
    async with asyncio.timeout(TIMEOUT_S):
        out, err = await process.communicate()
    return Ended(process.returncode, (out or b"").decode(), err.decode())

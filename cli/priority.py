"""Who goes first where processes share processors and there are too few of them.

Knows Linux's two ways to say it. A session is a scheduling group of its own there, if the kernel makes such groups, and
of those each gets the same share however many threads it has; `nice` counts within one alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

TRIES, AGAIN_S = 20, 0.1  # the kernel takes one such word in a tenth of a second from who is not root


async def lower(pid: int, niceness: int) -> None:
    """Let a process that leads a session, and what it starts, come after others by `niceness` steps (1 to 19).

    A step is about a quarter of its share. Does what the system lets it, and nothing where the process is gone.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.setpriority(os.PRIO_PROCESS, pid, niceness)
    group = Path(f"/proc/{pid}/autogroup")
    for _ in range(TRIES):
        try:
            await asyncio.to_thread(group.write_text, str(niceness))
        except BlockingIOError:
            await asyncio.sleep(AGAIN_S)
        except OSError:  # no such kernel, or no such process any more
            return
        else:
            return

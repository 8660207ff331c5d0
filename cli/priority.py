"""Who goes first where processes share processors and there are too few of them.

Knows Linux's two ways to say it. Where the kernel makes a scheduling group of each session, those share the processors
evenly however many threads they have, and `nice` counts within one alone. In a control group that bounds processors
there are no such groups, and `nice` counts within that.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

MOST = 19
TRIES, AGAIN_S = 20, 0.1  # the kernel takes one such word in a tenth of a second from who is not root


async def lower(pid: int, steps: int) -> None:
    """Let a process that leads a session, and what it starts, come after this process by `steps` (1 to 19).

    With each it has a fifth less. Does what the system lets it, and nothing where the process is gone.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.setpriority(os.PRIO_PROCESS, pid, min(MOST, os.getpriority(os.PRIO_PROCESS, 0) + steps))
    group = Path(f"/proc/{pid}/autogroup")  # a new one has 0, whoever made it
    for _ in range(TRIES):
        try:
            await asyncio.to_thread(group.write_text, str(steps))
        except BlockingIOError:
            await asyncio.sleep(AGAIN_S)
        except OSError:  # no such kernel, or no such process any more
            return
        else:
            return

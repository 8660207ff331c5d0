"""How much memory this process may have: the machine's, and no more than its control groups are given.

Who takes more is killed, without a word: memory is granted when it is asked for, and given when it is touched. Knows
nothing of who else takes of it.
"""

from __future__ import annotations

import os
from pathlib import Path

from pagewire.core.control_groups import GROUPS, MEMBERSHIP, limits, text_of

MOUNTS = Path("/proc/self/mountinfo")
_IN_MEMORY = frozenset(("tmpfs", "ramfs", "devtmpfs"))


def usable_bytes(groups: Path = GROUPS, membership: Path = MEMBERSHIP) -> int:
    """Return their number; `groups` is where control groups are, `membership` says which are ours."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    said = limits("memory", ("memory.limit_in_bytes",), ("memory.max",), groups, membership)
    return min((machine, *(int(words[0]) for words in said if len(words) == 1 and words[0].isdecimal())))


def is_memory(folder: Path, mounts: Path = MOUNTS) -> bool:
    """Return whether what is written to a folder, which may not be there yet, stays in memory, and counts as ours."""
    try:
        there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
        device = there.stat().st_dev
    except OSError:  # whoever writes there is told
        return False
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in text_of(mounts).splitlines():
        place, _, kind = line.partition(" - ")
        if place.split()[2] == number:
            return kind.split()[0] in _IN_MEMORY
    return False

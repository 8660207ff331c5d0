"""How much memory this process may have: the machine's, and no more than its control groups are given.

Who takes more is killed, without a word: memory is granted when it is asked for, and given when it is touched. Knows
nothing of who else takes of it.
"""

from __future__ import annotations

import os
from pathlib import Path

from pagewire.core.control_groups import GROUPS, MEMBERSHIP, limits


def usable_bytes(groups: Path = GROUPS, membership: Path = MEMBERSHIP) -> int:
    """Return their number; `groups` is where control groups are, `membership` says which are ours."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    said = limits("memory", ("memory.limit_in_bytes",), ("memory.max",), groups, membership)
    return min((machine, *(int(words[0]) for words in said if len(words) == 1 and words[0].isdecimal())))

"""What a pod goes by in the prefix index: a number that it drew, and the tier in which it holds a block.

    member = index id * 2 + tier, in decimal        tier 0: its pool, 1: host memory

Numbers below 2**31 and nothing else: Redis keeps a set of such in four bytes each. Two pods of a cluster draw the same
one too rarely to matter (1,000 pods: 5 in 10,000), and it would cost time, never correctness. An id is drawn anew
whenever what is in the index under the old one can no longer be put right. Pure.
"""

from __future__ import annotations

MAX_INDEX_ID = 2**30 - 1
TIERS = (0, 1)


def member(index_id: int, tier: int) -> bytes:
    """Return the name in the index of a pod that holds a block in `tier`; raises ValueError on what is no tier."""
    if tier not in TIERS:
        raise ValueError(f"tier must be 0 or 1, is {tier}")
    return b"%d" % (index_id * 2 + tier)


MAX_NAME_BYTES = len(member(MAX_INDEX_ID, tier=1))


def index_id_of(member: bytes) -> int | None:
    """Return whose name it is, None where it is nobody's: what lies in Redis need not be ours."""
    if not (member.isdigit() and len(member) <= MAX_NAME_BYTES):
        return None
    found = int(member) // 2
    return found if 0 < found <= MAX_INDEX_ID else None

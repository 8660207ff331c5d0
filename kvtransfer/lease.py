"""Who is still believed to be alive: the claims on held blocks, renewed by their peer's signs of life.

Knows keys, peers and moments; nothing of blocks. Time is a parameter, durations are relative, so no two clocks are
ever compared. Invariant: a key that was granted is reported ended exactly once: by `expired` or `release`.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class _Lease:
    peer_id: str
    lease_s: float
    ends_s: float


class LeaseTable(Generic[K]):
    """The leases of one pod. `grace_s` is added to each: a sign of life may be that late and count."""

    def __init__(self, *, grace_s: float = 1.0, max_lease_s: float = 600.0) -> None:
        self._grace_s = grace_s
        self._max_lease_s = max_lease_s
        self._leases: dict[K, _Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, key: object) -> bool:
        return key in self._leases

    def grant(self, key: K, peer_id: str, lease_s: float, now_s: float) -> None:
        """Start a lease of `lease_s` seconds, within bounds. Raises ValueError when one exists or is not positive."""
        if key in self._leases:
            raise ValueError(f"{key!r} has a lease")
        if not lease_s > 0:
            raise ValueError(f"a lease of {lease_s} s")
        held_s = min(lease_s, self._max_lease_s) + self._grace_s
        self._leases[key] = _Lease(peer_id, held_s, now_s + held_s)

    def renew(self, peer_id: str, now_s: float) -> None:
        """The peer showed a sign of life: all its leases start anew."""
        for lease in self._leases.values():
            if lease.peer_id == peer_id:
                lease.ends_s = max(lease.ends_s, now_s + lease.lease_s)

    def release(self, key: K) -> bool:
        """End a lease; False when it had ended before."""
        return self._leases.pop(key, None) is not None

    def expired(self, now_s: float) -> tuple[K, ...]:
        """End the leases whose time is over and return their keys."""
        keys = tuple(key for key, lease in self._leases.items() if lease.ends_s <= now_s)
        for key in keys:
            del self._leases[key]
        return keys

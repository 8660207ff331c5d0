"""In which order cached things go: the least recently used first, of owners over their quota before anybody else's.

Works for both tiers of the cache. Knows keys and owners, not what a key is the name of; each call costs a constant, and
a key without an owner costs one ordered dictionary. Invariants: an owner is over when it has more keys here than its
share of the capacity; while somebody is over, the first is a key of the one that has been for longest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from pagewire.engine.owner import Owner

K = TypeVar("K", bound=Hashable)


class EvictionOrder(Generic[K]):
    """Keys of a cache with `capacity` places."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._owners: OrderedDict[K, Owner | None] = OrderedDict()  # of all keys; least recently used first
        self._own: dict[Owner, OrderedDict[K, None]] = {}  # each owner's keys, likewise
        self._over: dict[Owner, None] = {}  # over for longest first

    def __len__(self) -> int:
        return len(self._owners)

    def __contains__(self, key: K) -> bool:
        return key in self._owners

    def __iter__(self) -> Iterator[K]:
        """Yield all keys, least recently used first."""
        return iter(self._owners)

    @property
    def num_over(self) -> int:
        """Owners that have more than their quota."""
        return len(self._over)

    def add(self, key: K, owner: Owner | None) -> None:
        """Take in a key that is not here, as the most recently used."""
        self._owners[key] = owner
        if owner is not None:
            self._own.setdefault(owner, OrderedDict())[key] = None
            self._judge(owner)

    def remove(self, key: K) -> None:
        """Forget a key that is here."""
        owner = self._owners.pop(key)
        if owner is not None:
            del self._own[owner][key]
            self._judge(owner)

    def touch(self, key: K) -> None:
        """Make a key that is here the most recently used."""
        self._owners.move_to_end(key)
        owner = self._owners[key]
        if owner is not None:
            self._own[owner].move_to_end(key)

    def first(self) -> K:
        """Return the key that is to go first; there must be one."""
        for owner in self._over:
            return next(iter(self._own[owner]))
        return next(iter(self._owners))

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        for owner, keys in self._own.items():
            assert keys, "an owner without keys is kept"
            assert list(keys) == [key for key, whose in self._owners.items() if whose is owner], "an order is broken"
        assert set(self._own) == {owner for owner in self._owners.values() if owner is not None}
        assert set(self._over) <= set(self._own), "an owner without keys is over its quota"

    def _judge(self, owner: Owner) -> None:
        count = len(self._own[owner])
        if count > owner.limit(self._capacity):
            self._over.setdefault(owner)
        else:
            self._over.pop(owner, None)
        if not count:
            del self._own[owner]

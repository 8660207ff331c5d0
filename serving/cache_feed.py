"""What a pod's cache holds, told to the routers that want to hear it.

Knows links and blocks, nothing of Redis, whose index has every eighth block alone and no order. Invariant: what a link
was told since its last snapshot, added up, is what the cache holds; a link that reads too slowly for that ends.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable

from pagewire.core.block_hash import BlockHash
from pagewire.core.cache_events import CacheEvents
from pagewire.core.engine_messages import CachedBlock
from pagewire.core.errors import Unavailable
from pagewire.core.messages import Heartbeat, LinkMessage
from pagewire.serving.link import Link

log = logging.getLogger(__name__)

SNAPSHOT_BLOCKS = 4096  # in one frame: tokens must not wait long behind it


class CacheFeed:
    """One pod's."""

    def __init__(self) -> None:
        self._held: dict[BlockHash, CachedBlock] = {}
        self._sequence = 0
        self._links: set[Link] = set()

    def note(self, stored: Iterable[CachedBlock], evicted: Iterable[CachedBlock]) -> None:
        """Take what the cache gained and lost, and tell it; never blocks."""
        gone = tuple(block.block_hash for block in evicted)
        for block_hash in gone:
            self._held.pop(block_hash, None)
        new = tuple(stored)
        self._held.update((block.block_hash, block) for block in new)
        self._sequence += 1
        change = _events(self._sequence, new, evicted=gone)
        for link in list(self._links):
            self._say(link, change)

    def on_message(self, link: Link, message: LinkMessage) -> None:
        """Heed what a router's heartbeat wants: a snapshot now and all changes after it, or no more of them."""
        if not isinstance(message, Heartbeat) or message.wants_cache is None:
            return
        if not message.wants_cache:
            self._links.discard(link)
            return
        self._links.add(link)
        num_parts = max(1, -(-len(self._held) // SNAPSHOT_BLOCKS))
        blocks = iter(self._held.values())
        for part in range(num_parts):
            of_part = tuple(itertools.islice(blocks, SNAPSHOT_BLOCKS))
            self._say(link, _events(self._sequence, of_part, part=part, num_parts=num_parts))

    def on_down(self, link: Link) -> None:
        """A link is gone."""
        self._links.discard(link)

    def _say(self, link: Link, events: CacheEvents) -> None:
        try:
            link.send(events)
        except Unavailable as error:
            log.info("cache events not sent: %s", error.message)
            self._links.discard(link)


def _events(
    sequence: int,
    stored: tuple[CachedBlock, ...],
    *,
    evicted: tuple[BlockHash, ...] = (),
    part: int = 0,
    num_parts: int = 0,
) -> CacheEvents:
    return CacheEvents(
        sequence=sequence,
        hashes=tuple(block.block_hash for block in stored),
        depths=tuple(block.depth for block in stored),
        tiers=tuple(block.tier for block in stored),
        evicted=evicted,
        part=part,
        num_parts=num_parts,
    )

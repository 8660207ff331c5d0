"""What the prefix index says of a prompt, and what asking it is worth.

One question per request, bounded in time; without an answer the placement follows from links and loads. Beside the
requests, entries that are nobody's are swept and the alarm of `hit_watch` is raised and cleared. Knows no policy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pagewire.core.block_hash import INDEX_STRIDE, BlockHash, chain, root_hash
from pagewire.core.clock import Clock, MonotonicClock
from pagewire.core.fingerprint import Fingerprint
from pagewire.router.hit_watch import Alarm, Evidence, HitWatch, Looked
from pagewire.router.pods import PodPool
from pagewire.router.prefix_index import Held, Members, held, probes
from pagewire.router.request import Request
from pagewire.router.strangers import Entry, Strangers

log = logging.getLogger(__name__)

MAX_STALE = 256  # entries that wait to be swept; what does not fit is met again
ALARM_S = 1.0  # how often the alarm is looked at


class Known(Protocol):
    """All pods of the cluster that this router knows, whatever they serve."""

    is_current: bool

    def index_ids(self) -> set[int]:
        """Return what they go by in the index."""
        ...

    def refused(self) -> dict[str, str]:
        """Return why pods are not used, by pod id."""
        ...


class Index(Protocol):
    """The prefix index in Redis, which never raises."""

    async def lookup(self, hashes: Sequence[BlockHash]) -> Sequence[Members] | None:
        """Return the members of each hash's key, None when it takes too long."""
        ...

    async def sweep(self, entries: Sequence[Entry]) -> None:
        """Take entries out."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """A prompt as the index knows it: where its chain starts, pod id -> cached tokens, those of them in host memory.

    `fingerprint` is what it was hashed for: only pods that serve just that may ever have the request.
    """

    root: BlockHash
    cached: Mapping[str, int]
    on_host: Mapping[str, int]
    fingerprint: Fingerprint


class PrefixLookup:
    """Asks the index for requests. A name is nobody's when it was unknown for `stranger_s` seconds."""

    def __init__(
        self, pool: PodPool, known: Known, index: Index, *, secret: bytes, stranger_s: float, clock: Clock | None = None
    ) -> None:
        self._pool = pool
        self._known = known
        self._index = index
        self._secret = secret
        self._clock = clock or MonotonicClock()
        self._strangers = Strangers(stranger_s)
        self._watch = HitWatch()
        self._stale: asyncio.Queue[Entry] = asyncio.Queue(MAX_STALE)
        self.alarm: Alarm | None = None
        self.hits = 0
        self.misses = 0

    async def run(self) -> None:
        """Sweep, and watch, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sweep())
            tasks.create_task(self._look_out())

    async def look_up(self, request: Request, fingerprint: Fingerprint) -> Prefix:
        """Ask the index who holds how much of the prompt."""
        root = root_hash(
            model_digest=fingerprint.model_digest,
            kv_fingerprint=fingerprint.kv_fingerprint,
            adapter=fingerprint.adapter_digest(request.adapter),
            salt=request.cache_salt,
            tenant=request.tenant.salt,
            key=self._secret,
        )
        block_size, num_tokens = fingerprint.block_size, len(request.prompt)
        asked = probes(chain(root, request.prompt, block_size))
        answers = await self._index.lookup([probe.block_hash for probe in asked])
        found = Held(tokens={}, on_host={})
        if answers is not None:
            found = held(asked, answers, self._pool.index_members(), num_tokens, block_size)
        if asked:
            beginning = hash(tuple(request.prompt[: INDEX_STRIDE * block_size]))
            self._note(found, beginning, asked[0].block_hash, is_answered=answers is not None)
        if found.unknown and self._known.is_current:
            stale = self._strangers.stale(found.unknown, self._known.index_ids(), self._clock.now())
            for entry in stale[: MAX_STALE - self._stale.qsize()]:
                self._stale.put_nowait(entry)
        return Prefix(root=root, cached=found.tokens, on_host=found.on_host, fingerprint=fingerprint)

    def look_out(self) -> None:
        """Raise the alarm, or end it; each is logged once."""
        if self._watch.is_alarmed == (self.alarm is not None):
            return
        cached = sum(pod.load.blocks_cached + pod.load.blocks_pinned for pod in self._pool.pods)
        self.alarm = self._watch.alarm(Evidence(refused=self._known.refused(), blocks_cached=cached))
        if self.alarm is None:
            log.info("the prefix index finds prompts again")
        else:
            log.warning("%s (%s)", self.alarm.text, self.alarm.cause)

    def _note(self, found: Held, beginning: int, first: BlockHash, *, is_answered: bool) -> None:
        is_hit = bool(found.tokens)
        self.hits += is_hit
        self.misses += is_answered and not is_hit
        looked = Looked(tokens=beginning, first=first, is_answered=is_answered, is_hit=is_hit)
        self._watch.note(looked, self._clock.now())

    async def _look_out(self) -> None:
        while True:
            await asyncio.sleep(ALARM_S)
            self.look_out()

    async def _sweep(self) -> None:
        while True:
            entries = [await self._stale.get()]
            while not self._stale.empty():
                entries.append(self._stale.get_nowait())
            await self._index.sweep(entries)

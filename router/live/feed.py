"""Snapshots for everybody who watches: made once for an interval, whoever asks first, and never when nobody does.

Knows watchers and bytes; nothing of what is in them, or of sockets. There is no queue: a watcher that is slow to take
what it was given finds the newest one next. Invariants: no two snapshots are taken within an interval; no more than
`max_watchers` watch, none for longer than `watch_s`, after which a key is shown anew; what a watcher gets was made for
its own view.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any, Protocol

from pagewire.core.clock import Clock
from pagewire.core.errors import Draining, Overloaded

INTERVAL_S = 0.5
MAX_WATCHERS = 32
RETRY_AFTER_S = 5.0

Json = dict[str, Any]


class Source(Protocol):
    """What there is to see."""

    def pods(self) -> Json:
        """Return what those are told who may see all."""
        ...

    def requests(self, tenant: str | None) -> Json:
        """Return what a tenant is told, or for None those who may see all."""
        ...


class Feed:
    """One router's. A view is the name of a tenant, or None for all."""

    def __init__(
        self,
        source: Source,
        clock: Clock,
        *,
        watch_s: float,
        interval_s: float = INTERVAL_S,
        max_watchers: int = MAX_WATCHERS,
    ) -> None:
        self._source = source
        self._clock = clock
        self._watch_s = watch_s
        self._interval_s = interval_s
        self._max_watchers = max_watchers
        self._num_watchers = 0
        self._made_s = float("-inf")
        self._frames: dict[str | None, bytes] = {}  # of the newest snapshot, by view
        self._closed = asyncio.Event()

    @property
    def num_watchers(self) -> int:
        """Who watches now."""
        return self._num_watchers

    async def watch(self, view: str | None) -> AsyncGenerator[bytes, None]:
        """Yield server-sent events, one for an interval, until `watch_s` are over or we close; the end says no reason.

        Raises Draining and Overloaded at the beginning.
        """
        if self._closed.is_set():
            raise Draining("this router goes away", retry_after_s=RETRY_AFTER_S)
        if self._num_watchers >= self._max_watchers:
            raise Overloaded(f"{self._max_watchers} watch already", retry_after_s=RETRY_AFTER_S)
        self._num_watchers += 1
        try:
            ends_s = self._clock.now() + self._watch_s
            while not self._closed.is_set() and self._clock.now() < ends_s:
                yield self._frame(view)
                await self._pause()
        finally:
            self._num_watchers -= 1
            if not self._num_watchers:
                self._frames = {}

    def close(self) -> None:
        """End every watcher's stream; nobody may watch any more."""
        self._closed.set()

    def _frame(self, view: str | None) -> bytes:
        now_s = self._clock.now()
        if now_s - self._made_s >= self._interval_s:
            self._made_s, self._frames = now_s, {}
        frame = self._frames.get(view)
        if frame is None:
            body = self._source.requests(view)
            if view is None:
                body |= self._source.pods()
            frame = b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"
            self._frames[view] = frame
        return frame

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._interval_s):
                await self._closed.wait()
        except TimeoutError:
            return

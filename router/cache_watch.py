"""Who wants to hear what the pods' caches hold, and what each of them is still to be told.

Knows pods' cache events, nothing of gRPC or Redis. A subscriber hears of each pod a snapshot first, then every change.
Pods are asked for their snapshots one after another, when all before was taken: so what waits for a subscriber is one
snapshot and a bounded number of changes, however large the cluster. One that takes them too slowly is told of the gap
by name, and gets another snapshot once it has caught up. Pods tell nothing while nobody listens.

    wanted --asked for--> asked --first part--> taking --last part--> live
       ^                    |                     |                    |
       +--------------------+---------------------+--------------------+   gap: too slow, or the pod was lost

Invariant: what was told of a pod since its last snapshot, added up, is what it held after the change `sequence`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from pagewire.core.cache_events import CacheEvents
from pagewire.core.errors import Overloaded, PagewireError

log = logging.getLogger(__name__)

MAX_SUBSCRIBERS = 32
MAX_QUEUED_BLOCKS = 65_536  # of changes that one subscriber has not taken, a hundred bytes each
SLOW = "slow_subscriber"
LOST = "pod_lost"


class WatchedPod(Protocol):
    """A pod as far as its cache is watched."""

    @property
    def pod_id(self) -> str:
        """Its name."""
        ...

    @property
    def incarnation(self) -> str:
        """Which of that name it is."""
        ...

    def watch_cache(self, wanted: bool) -> None:
        """Ask for a snapshot and all changes after it, or for no more of them; no-op without a link."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """From here on what the pod holds is not known, until its next snapshot."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheNews:
    """What a subscriber hears of one pod."""

    pod_id: str
    incarnation: str
    sequence: int
    body: CacheEvents | Gap


class _Phase(Enum):
    WANTED = auto()
    ASKED = auto()
    TAKING = auto()
    LIVE = auto()


@dataclass(slots=True)
class _Course:
    """How far a subscriber is with one pod."""

    phase: _Phase = _Phase.WANTED
    sequence: int = 0


class Subscription:
    """One subscriber's; `pod_ids` are those that it wants to hear of, all when empty."""

    def __init__(self, watch: CacheWatch, pod_ids: Collection[str]) -> None:
        self._watch = watch
        self._pod_ids = frozenset(pod_ids)
        self._courses: dict[WatchedPod, _Course] = {}
        self._queue: deque[CacheNews] = deque()
        self._queued_blocks = 0
        self._filled = asyncio.Event()
        self._error: PagewireError | None = None

    async def take(self) -> CacheNews:
        """Return what is next, when there is something; raises why the subscription ended."""
        while not self._queue:
            if self._error is not None:
                raise self._error
            self._filled.clear()
            self._ask_next()
            await self._filled.wait()
        news = self._queue.popleft()
        if isinstance(news.body, CacheEvents) and not news.body.is_snapshot:
            self._queued_blocks -= news.body.num_blocks
        return news

    def wants(self, pod: WatchedPod) -> bool:
        """True while the pod's snapshot was asked for and has not begun."""
        return pod in self._courses and self._courses[pod].phase is _Phase.ASKED

    def add(self, pod: WatchedPod) -> None:
        """There is a pod."""
        if not self._pod_ids or pod.pod_id in self._pod_ids:
            self._courses[pod] = _Course()
            self._filled.set()

    def lose(self, pod: WatchedPod) -> None:
        """The link to a pod is down."""
        course = self._courses.pop(pod, None)
        if course is not None and course.phase in (_Phase.TAKING, _Phase.LIVE):
            self._put(pod, course, Gap(reason=LOST))
        self._filled.set()  # perhaps it was the one that was asked

    def put(self, pod: WatchedPod, events: CacheEvents) -> None:
        """A pod said something."""
        course = self._courses.get(pod)
        if course is None:
            return
        if events.is_snapshot:
            if events.part == 0 and course.phase is _Phase.ASKED:
                course.phase = _Phase.TAKING
            if course.phase is not _Phase.TAKING:
                return  # it is somebody else's
            if events.is_last:
                course.phase = _Phase.LIVE
        elif course.phase is not _Phase.LIVE:
            return  # its snapshot is still to come, and will hold it
        elif self._queued_blocks + events.num_blocks > MAX_QUEUED_BLOCKS:
            course.phase = _Phase.WANTED
            self._put(pod, course, Gap(reason=SLOW))
            return
        else:
            self._queued_blocks += events.num_blocks
        course.sequence = events.sequence
        self._put(pod, course, events)

    def end(self, error: PagewireError) -> None:
        """Let the subscriber hear `error` after what is queued."""
        self._error = error
        self._filled.set()

    def _put(self, pod: WatchedPod, course: _Course, body: CacheEvents | Gap) -> None:
        news = CacheNews(pod_id=pod.pod_id, incarnation=pod.incarnation, sequence=course.sequence, body=body)
        self._queue.append(news)
        self._filled.set()

    def _ask_next(self) -> None:
        phases = {course.phase for course in self._courses.values()}
        if _Phase.ASKED in phases or _Phase.TAKING in phases:
            return
        for pod, course in self._courses.items():
            if course.phase is _Phase.WANTED:
                course.phase = _Phase.ASKED
                self._watch.ask(pod)
                return


class CacheWatch:
    """All subscriptions of one router. The pool of pods tells it who comes, goes, and says what."""

    def __init__(self) -> None:
        self._pods: set[WatchedPod] = set()
        self._asked: set[WatchedPod] = set()  # whose snapshot is on its way
        self._subscriptions: set[Subscription] = set()
        self._closed: PagewireError | None = None

    @contextmanager
    def subscribe(self, pod_ids: Collection[str] = ()) -> Iterator[Subscription]:
        """Subscribe as long as the context lasts. Raises Overloaded where there are too many subscribers."""
        if self._closed is not None:
            raise self._closed
        if len(self._subscriptions) >= MAX_SUBSCRIBERS:
            raise Overloaded(f"{MAX_SUBSCRIBERS} listen to cache events already", retry_after_s=10.0)
        subscription = Subscription(self, pod_ids)
        self._subscriptions.add(subscription)
        try:
            for pod in self._pods:
                subscription.add(pod)
            yield subscription
        finally:
            self._subscriptions.discard(subscription)
            if not self._subscriptions:
                self._asked.clear()
                for pod in self._pods:
                    pod.watch_cache(False)

    def ask(self, pod: WatchedPod) -> None:
        """Have a pod send a snapshot, unless one is on its way."""
        if pod not in self._asked:
            self._asked.add(pod)
            pod.watch_cache(True)

    def on_up(self, pod: WatchedPod) -> None:
        """The link to a pod is up."""
        self._pods.add(pod)
        for subscription in self._subscriptions:
            subscription.add(pod)

    def on_down(self, pod: WatchedPod) -> None:
        """The link to a pod is down."""
        self._pods.discard(pod)
        self._asked.discard(pod)
        for subscription in self._subscriptions:
            subscription.lose(pod)

    def on_events(self, pod: WatchedPod, events: CacheEvents) -> bool:
        """A pod said something; False where it is not what a pod says."""
        if events.part > events.num_parts:
            return False
        for subscription in self._subscriptions:
            subscription.put(pod, events)
        if events.is_snapshot and events.is_last:
            self._asked.discard(pod)
            if any(subscription.wants(pod) for subscription in self._subscriptions):
                self.ask(pod)  # somebody came while this one was on its way
        return True

    def close(self, error: PagewireError) -> None:
        """End all subscriptions with `error`; there are no new ones."""
        self._closed = error
        for subscription in self._subscriptions:
            subscription.end(error)

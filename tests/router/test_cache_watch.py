"""What subscribers hear of pods' caches, against a model of what the pods hold. Pure: pods are the real `CacheFeed`s on
links that are lists; whole routers and the wire are in test_rpc.py."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagewire.core.block_hash import BlockHash
from pagewire.core.cache_events import CacheEvents
from pagewire.core.engine_messages import CachedBlock
from pagewire.core.errors import Draining, Overloaded
from pagewire.core.messages import Heartbeat, LinkMessage
from pagewire.router import cache_watch
from pagewire.router.cache_watch import CacheNews, CacheWatch, Gap, Subscription
from pagewire.serving import cache_feed
from pagewire.serving.cache_feed import CacheFeed


class ListLink:
    """A link whose frames wait until they are delivered."""

    def __init__(self) -> None:
        self.frames: list[LinkMessage] = []

    def send(self, message: LinkMessage) -> None:
        self.frames.append(message)


class HeldPod:
    """A pod, and what it holds."""

    def __init__(self, pod_id: str, watch: CacheWatch) -> None:
        self.pod_id = pod_id
        self.incarnation = "1"
        self.held: dict[BlockHash, int] = {}
        self.asked: list[bool] = []
        self._watch = watch
        self._feed = CacheFeed()
        self._link = ListLink()

    def watch_cache(self, wanted: bool) -> None:
        self.asked.append(wanted)
        self._feed.on_message(self._link, Heartbeat(wants_cache=wanted))  # type: ignore[arg-type]

    def change(self, stored: Iterable[int], evicted: Iterable[int]) -> None:
        """Store blocks by number, in the tier that is their number's parity; evict those that are held."""
        new = {hash_of(number): number % 2 for number in stored}
        gone = [hash_of(number) for number in evicted if hash_of(number) in self.held and hash_of(number) not in new]
        for block_hash in gone:
            del self.held[block_hash]
        self.held.update(new)
        self._feed.note(
            (CachedBlock(block_hash=block_hash, depth=0, tier=tier) for block_hash, tier in new.items()),
            (CachedBlock(block_hash=block_hash, depth=0) for block_hash in gone),
        )

    @property
    def has_undelivered(self) -> bool:
        return bool(self._link.frames)

    def relink(self) -> None:
        """Lose the link, with what is on it, and have another."""
        self._watch.on_down(self)
        self._feed.on_down(self._link)  # type: ignore[arg-type]
        self._link = ListLink()
        self._watch.on_up(self)

    def deliver(self, count: int = 1_000_000) -> None:
        """Let so many frames arrive."""
        for _ in range(min(count, len(self._link.frames))):
            frame = self._link.frames.pop(0)
            assert isinstance(frame, CacheEvents)
            assert self._watch.on_events(self, frame)


class Heard:
    """A subscriber that adds up what it is told, and checks the order of it."""

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.held: dict[str, dict[BlockHash, int] | None] = {}
        self.reasons: list[str] = []
        self._sequence: dict[str, int] = {}
        self._part: dict[str, int] = {}

    async def take(self) -> bool:
        """Take one piece of news; False where there is none now."""
        try:
            async with asyncio.timeout(0):
                self.hear(await self.subscription.take())
        except TimeoutError:
            return False
        return True

    def hear(self, news: CacheNews) -> None:
        pod_id, body = news.pod_id, news.body
        if isinstance(body, Gap):
            self.reasons.append(body.reason)
            self.held[pod_id] = None
            self._part.pop(pod_id, None)
            return
        new = dict(zip(body.hashes, body.tiers, strict=True))
        if body.is_snapshot:
            assert self.held.get(pod_id) is None or self._part[pod_id]
            assert body.part == self._part.get(pod_id, 0)
            self.held[pod_id] = {**(self.held.get(pod_id) or {}), **new}
            self._part[pod_id] = 0 if body.is_last else body.part + 1
        else:
            held = self.held[pod_id]
            assert held is not None
            assert self._part[pod_id] == 0
            assert news.sequence == self._sequence[pod_id] + 1
            for block_hash in body.evicted:
                del held[block_hash]
            held.update(new)
        self._sequence[pod_id] = news.sequence


def hash_of(number: int) -> BlockHash:
    return BlockHash(number.to_bytes(16, "big"))


NUMBERS = st.lists(st.integers(0, 30), max_size=8, unique=True)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("change"), st.integers(0, 1), NUMBERS, NUMBERS),
        st.tuples(st.just("deliver"), st.integers(0, 1), st.integers(1, 3)),
        st.tuples(st.just("take"), st.integers(0, 1)),
        st.tuples(st.just("relink"), st.integers(0, 1)),
        st.tuples(st.just("come")),
    ),
    max_size=60,
)


@given(steps=STEPS)
@settings(max_examples=150, deadline=None)
def test_what_is_heard_adds_up_to_what_is_held(steps: list[tuple[object, ...]]) -> None:
    asyncio.run(_walk(steps))


async def settle(pods: list[HeldPod], heard: list[Heard]) -> None:
    """Deliver and take until there is nothing more."""
    while any([await each.take() for each in heard]) or any(pod.has_undelivered for pod in pods):
        for pod in pods:
            pod.deliver()


async def _walk(steps: list[tuple[object, ...]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_watch, "MAX_QUEUED_BLOCKS", 12)
        patch.setattr(cache_feed, "SNAPSHOT_BLOCKS", 5)
        watch = CacheWatch()
        pods = [HeldPod(f"p{number}", watch) for number in range(2)]
        for pod in pods:
            watch.on_up(pod)
        contexts = [watch.subscribe()]
        heard = [Heard(contexts[0].__enter__())]
        for step in steps:
            match step:
                case ("change", int(place), list(stored), list(evicted)):
                    pods[place].change(stored, evicted)
                case ("deliver", int(place), int(count)):
                    pods[place].deliver(count)
                case ("take", int(place)) if place < len(heard):
                    await heard[place].take()
                case ("relink", int(place)):
                    pods[place].relink()
                case ("come",) if len(heard) < 2:
                    contexts.append(watch.subscribe())
                    heard.append(Heard(contexts[-1].__enter__()))
        await settle(pods, heard)
        for each in heard:
            assert each.held == {pod.pod_id: pod.held for pod in pods}
        for context in contexts:
            context.__exit__(None, None, None)
        assert all(pod.asked[-1] is False for pod in pods)


async def test_a_slow_subscriber_is_told_of_the_gap_and_what_waits_for_it_is_bounded() -> None:
    watch = CacheWatch()
    pod = HeldPod("p0", watch)
    watch.on_up(pod)
    with watch.subscribe() as slow:
        heard = Heard(slow)
        await settle([pod], [heard])
        for start in range(0, 2 * cache_watch.MAX_QUEUED_BLOCKS, 1000):
            pod.change(range(start, start + 1000), range(max(0, start - 1000), start))
            pod.deliver()
        assert sum(n.body.num_blocks for n in slow._queue if isinstance(n.body, CacheEvents)) <= 65_536
        await settle([pod], [heard])
        assert heard.reasons == ["slow_subscriber"]
        assert heard.held == {"p0": pod.held}


async def test_only_the_pods_that_were_asked_for_are_heard_of() -> None:
    watch = CacheWatch()
    pods = [HeldPod(f"p{number}", watch) for number in range(2)]
    with watch.subscribe(["p1"]) as subscription:
        for pod in pods:
            pod.change([1], [])
            watch.on_up(pod)
        heard = Heard(subscription)
        await settle(pods, [heard])
        assert heard.held == {"p1": pods[1].held}
    assert (pods[0].asked, pods[1].asked) == ([False], [True, False])


async def test_there_is_a_bound_on_subscribers_and_an_end() -> None:
    watch = CacheWatch()
    contexts = [watch.subscribe() for _ in range(cache_watch.MAX_SUBSCRIBERS)]
    subscriptions = [context.__enter__() for context in contexts]
    with pytest.raises(Overloaded, match="32 listen"), watch.subscribe():
        pass
    watch.close(Draining("going"))
    with pytest.raises(Draining):
        await subscriptions[0].take()
    for context in contexts:
        context.__exit__(None, None, None)
    with pytest.raises(Draining), watch.subscribe():
        pass


def test_what_no_pod_says_is_refused() -> None:
    watch = CacheWatch()
    pod = HeldPod("p0", watch)
    with pytest.raises(ValueError, match="1 blocks, 0 places"):
        CacheEvents(sequence=1, hashes=(hash_of(1),), depths=(), tiers=(0,))
    assert not watch.on_events(pod, CacheEvents(sequence=1, part=3, num_parts=2))

"""Several sources to several takers at once, by every networked transport; pods come and are killed while others ship.

Sources are processes and die by SIGKILL; takers are streams and pools of the test's process. Proves that pairs do not
disturb one another: what is lost is lost by name, and everybody else has exactly the right bytes.
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from shipping import Shipping
from sources import SourceProcess
from transport_rigs import (
    BETWEEN_PROCESSES,
    CARRIERS,
    NUM_BLOCKS,
    SMALL,
    Recorder,
    devices_of,
    each_of,
    pool,
    taking,
    target_pool,
)

from pagewire.core.errors import PagewireError
from pagewire.kvtransfer.effects import Outcome
from pagewire.kvtransfer.transport import BlockMemory, ShipmentKey
from pagewire.kvtransfer.transports.stream_receiver import StreamReceiver

PART = NUM_BLOCKS // 2


class Taker:
    """A pod that takes from several sources, one half of its pool for each."""

    def __init__(self, pod_id: str, recorder: Recorder) -> None:
        self.pod_id = pod_id
        self.recorder = recorder
        self.streams: list[tuple[StreamReceiver, BlockMemory]] = []
        self.shippings: list[list[Shipping]] = []

    async def dial(self, source: SourceProcess, carrier: str, stack: contextlib.AsyncExitStack) -> None:
        shippings: list[Shipping] = []
        heard = _Losses(self.recorder, shippings)
        stream = await stack.enter_async_context(
            taking(
                source.port, (CARRIERS[carrier](),), heard, pod_id=self.pod_id, flow=SMALL, memory=target_pool(carrier)
            )
        )
        self.streams.append(stream)
        self.shippings.append(shippings)

    async def ship(self, source: SourceProcess, number: int, round_: int) -> Shipping:
        receiver, memory = self.streams[number]
        shipping = Shipping(source, receiver, memory, self.recorder, (round_, 1), first=0, num=PART, pod_id=self.pod_id)
        self.shippings[number].append(shipping)
        await shipping.ship()
        return shipping


class _Losses(Recorder):
    """Tells the shipments of a stream that it is lost."""

    def __init__(self, recorder: Recorder, shippings: list[Shipping]) -> None:
        super().__init__()
        self._recorder = recorder
        self._shippings = shippings

    def on_lost(self, peer_id: str, keys: tuple[ShipmentKey, ...], error: PagewireError) -> None:
        for shipping in self._shippings:
            if shipping.key in keys:
                shipping.lost(error)
                shipping.act(shipping.shipment.peer_lost())  # nobody answers a fence any more
        self._recorder.note()


@pytest.mark.parametrize("carrier", each_of(BETWEEN_PROCESSES))
async def test_pods_join_and_are_killed_while_others_ship(carrier: str) -> None:
    original, recorder = pool(filled=True), Recorder()
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(devices_of(carrier))
        sources = [
            await stack.enter_async_context(SourceProcess.start(carrier, Recorder(), SMALL.message_bytes))
            for _ in range(2)
        ]
        takers = [Taker(f"D{number}", recorder) for number in range(2)]
        for taker in takers:
            for source in sources:
                await taker.dial(source, carrier, stack)
        first = [await taker.ship(source, n, 1) for taker in takers for n, source in enumerate(sources)]
        joined = Taker("D2", recorder)
        await joined.dial(sources[0], carrier, stack)
        second = [await taker.ship(sources[0], 0, 2) for taker in (*takers, joined)]
        for shipping in (*first, *second):
            assert (await shipping.over()).outcome is Outcome.LANDED, shipping.cause
            assert shipping.matches(original)
        doomed = [await taker.ship(sources[1], 1, 3) for taker in takers]
        sources[1].kill()
        others = [await taker.ship(sources[0], 0, 4) for taker in (*takers, joined)]
        for shipping in others:
            assert (await shipping.over()).outcome is Outcome.LANDED, shipping.cause
            assert shipping.matches(original)
        for shipping in doomed:
            over = await shipping.over()
            assert over.outcome is Outcome.LANDED or shipping.cause == "stream_lost"
            assert shipping.matches(original)
            assert not shipping.open
        async with asyncio.TaskGroup() as tasks:
            for shipping in (*first, *second, *others):
                tasks.create_task(shipping.settled())

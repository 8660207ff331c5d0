"""Every transport, its source in another process where it can be, with faults on its messages and in its carrier.

Whatever goes wrong: the taker has exactly the source's bytes, or a loss with a named cause and a right prefix; no claim
stays open, and the next shipment on the stream, or on the one after it, arrives: no credit is owed for ever.

Bytes that change on their way are tried where a CPU touches them. Between devices none does, and there is no checksum:
what travels there rests on the hardware's own, and what a source may have changed on its lifeline.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from faulty_carrier import Faults
from faulty_channel import FaultyPath, Plan, corrupt, duplicate, reorder, swallow
from shipping import Shipping
from sources import Source, started
from transport_rigs import (
    CARRIERS,
    FAST,
    ON_HOSTS,
    SECRET,
    SMALL,
    Recorder,
    devices_of,
    dial_to,
    each_of,
    pool,
    running,
    target_pool,
)

from pagewire.core.errors import PagewireError
from pagewire.kvtransfer.effects import Outcome
from pagewire.kvtransfer.transport import ShipmentKey
from pagewire.kvtransfer.transports.stream_receiver import StreamReceiver
from pagewire.kvtransfer.wire import Kind

NUM = 20
LOST = {"stream_lost", "transfer_timeout", "block_corrupt", "contract_broken"}
where_a_cpu_touches_the_payload = pytest.mark.parametrize("setting", each_of(ON_HOSTS), indirect=True)


class Setting:
    """A source process and a taker with a faulty path and a faulty carrier between them."""

    def __init__(self, source: Source, receiver: StreamReceiver, path: FaultyPath, faults: Faults, target: Any) -> None:
        self.source, self.receiver, self.path, self.faults, self.target = source, receiver, path, faults, target
        self.recorder = Recorder()
        self.original = pool(filled=True)
        self.shipments: list[Shipping] = []

    def on_lost(self, peer_id: str, keys: tuple[ShipmentKey, ...], error: PagewireError) -> None:
        for shipping in self.shipments:
            if shipping.key in keys:
                shipping.lost(error)
        self.recorder.note()

    async def begin(self, *, first: int = 0, num: int = NUM) -> Shipping:
        key = (len(self.shipments) + 1, 1)
        shipping = Shipping(self.source, self.receiver, self.target, self.recorder, key, first=first, num=num)
        self.shipments.append(shipping)
        await shipping.ship()
        return shipping

    async def drop(self) -> None:
        """Lose the stream."""
        self.receiver.drop("the test says so")
        await self.recorder.until(lambda: not self.receiver.is_connected)

    async def still_serves(self) -> None:
        """What follows arrives."""
        self.path.plan = lambda _number, message: [message]
        await self.receiver.connected(20)
        after = await self.begin(first=40, num=16)
        assert (await after.over()).outcome is Outcome.LANDED, after.cause
        assert after.matches(self.original)
        for shipping in self.shipments:
            await shipping.settled()
            assert not shipping.open
            assert shipping.shipment.num_quarantined == 0


@pytest.fixture(params=each_of(CARRIERS))
async def setting(request: pytest.FixtureRequest) -> AsyncIterator[Setting]:
    with devices_of(request.param):
        async with _setting(request.param) as setting:
            yield setting


@contextlib.asynccontextmanager
async def _setting(carrier: str) -> AsyncIterator[Setting]:
    faults, target = Faults(), target_pool(carrier)
    async with started(carrier, Recorder(), SMALL.message_bytes) as source:
        path = FaultyPath(dial_to(f"127.0.0.1:{source.port}"), lambda _number, message: [message])
        faults.around_line = path.line
        holder: list[Setting] = []
        receiver = StreamReceiver(
            path.dial, pod_id="D", source_id="P", secret=SECRET, memory=target,
            on_lost=lambda peer_id, keys, error: holder[0].on_lost(peer_id, keys, error),
            carriers=(faults.around(CARRIERS[carrier]()),), flow=SMALL, times=FAST,
        )  # fmt: skip
        holder.append(Setting(source, receiver, path, faults, target))
        async with running(receiver):
            await receiver.connected(30)
            yield holder[0]


@pytest.mark.parametrize(
    "plan",
    [duplicate, reorder(0, 3), corrupt(2), corrupt(1, at=0), corrupt(2, at=30), corrupt(0, at=50)],
    ids=["duplicate", "reorder", "corrupt end", "corrupt start", "corrupt head", "corrupt checksum"],
)
async def test_a_message_that_is_not_as_it_was_sent(setting: Setting, plan: Plan) -> None:
    setting.path.plan = plan
    shipping = await setting.begin()
    over = await shipping.over()
    assert shipping.matches(setting.original)
    assert (over.outcome, shipping.cause) == (Outcome.LANDED, "") or shipping.cause in LOST
    await setting.still_serves()


async def test_a_message_that_never_comes(setting: Setting) -> None:
    setting.path.plan = swallow(4)
    shipping = await setting.begin()
    await setting.recorder.until(lambda: shipping.shipment.num_verified >= 8)
    shipping.expire()
    over = await shipping.over()
    assert over.outcome is Outcome.LOST
    assert shipping.cause in LOST
    assert over.kept_blocks >= 8
    assert shipping.matches(setting.original)
    if setting.receiver.is_connected:  # a carrier that is sent to has noticed
        await setting.drop()
    await setting.still_serves()


async def test_late_messages_of_a_shipment_that_ended(setting: Setting) -> None:
    """The stream stalls until the shipment is cancelled; what comes then goes nowhere."""
    setting.path.flowing.clear()
    shipping = await setting.begin()
    shipping.act(shipping.shipment.cancel(0.0))
    assert shipping.handed is None, "it is fenced first"
    setting.path.flowing.set()
    assert (await shipping.over()).outcome is Outcome.CANCELLED
    await setting.still_serves()
    zeros = bytes(setting.target.block_bytes)
    assert all(setting.target.read(index) == zeros for index in range(NUM))


@where_a_cpu_touches_the_payload
async def test_a_block_that_lands_spoilt_is_asked_for_again(setting: Setting) -> None:
    setting.faults.spoil = {3: 1, 4: 1, 11: 1}
    shipping = await setting.begin()
    assert (await shipping.over()).outcome is Outcome.LANDED
    assert shipping.matches(setting.original)
    assert setting.receiver.counters.corrupt == 3
    await setting.still_serves()


@where_a_cpu_touches_the_payload
async def test_a_block_that_lands_spoilt_twice_is_as_a_dead_peer(setting: Setting) -> None:
    setting.faults.spoil = {5: 2}
    shipping = await setting.begin()
    over = await shipping.over()
    assert (over.outcome, shipping.cause) == (Outcome.LOST, "block_corrupt")
    assert over.kept_blocks == 5
    assert shipping.matches(setting.original)
    await setting.still_serves()


async def test_a_carrier_that_fails_ends_the_stream(setting: Setting) -> None:
    setting.faults.fail_at = 2
    shipping = await setting.begin()
    over = await shipping.over()
    assert (over.outcome, shipping.cause) == (Outcome.LOST, "stream_lost")
    assert shipping.matches(setting.original)
    await setting.still_serves()


async def test_a_source_whose_carrier_fails_loses_the_stream(setting: Setting) -> None:
    await setting.source.fault("carry_fails_at", 2)
    shipping = await setting.begin()
    over = await shipping.over()
    assert (over.outcome, shipping.cause) == (Outcome.LOST, "stream_lost")
    assert shipping.matches(setting.original)
    await setting.still_serves()


async def test_a_source_whose_carrier_hangs_is_given_up_by_its_own_clock(setting: Setting) -> None:
    """What hangs still reads the blocks: the fence is answered once the stream that it hangs in is over."""
    await setting.source.fault("carry_hangs_at", 2)
    shipping = await setting.begin()
    await setting.source.carries(3)
    shipping.expire()
    over = await shipping.over()
    assert over.outcome is Outcome.LOST
    assert shipping.cause in LOST
    assert shipping.matches(setting.original)
    if setting.receiver.is_connected:  # the source has ended it, and we may not have heard yet
        await setting.drop()
    await setting.still_serves()


async def test_a_placement_that_hangs_quarantines_its_blocks_until_it_has_ended(setting: Setting) -> None:
    setting.faults.hang_at = 2
    shipping = await setting.begin()
    await setting.faults.hanging.wait()
    shipping.expire()
    assert shipping.shipment.num_quarantined == len(shipping.open) > 0
    assert shipping.handed is None
    await setting.drop()
    assert (await shipping.over()).outcome is Outcome.LOST
    assert shipping.matches(setting.original)
    await setting.still_serves()


@where_a_cpu_touches_the_payload
async def test_a_source_block_that_changes_under_a_copy_is_noticed(setting: Setting) -> None:
    """As when a source gave it away too early: what lies there is not what was announced, and is asked for again."""

    async def spoil() -> None:
        await setting.source.spoil(0)

    setting.faults.before = spoil
    shipping = await setting.begin(num=1)
    assert (await shipping.over()).outcome is Outcome.LANDED
    if setting.receiver.counters.corrupt == 0:  # the bytes had left before
        assert shipping.matches(setting.original)
    else:
        assert setting.receiver.counters.corrupt == 1
        assert setting.target.read(0) == bytes(setting.target.block_bytes)
    await setting.still_serves()


@pytest.mark.parametrize("plan", [duplicate, corrupt(1)], ids=["duplicate", "corrupt"])
async def test_checksums_that_follow_and_are_not_as_they_were_sent(setting: Setting, plan: Plan) -> None:
    setting.path.kinds = (Kind.SUMS,)
    setting.path.plan = plan
    shipping = await setting.begin()
    over = await shipping.over()
    assert shipping.matches(setting.original)
    assert (over.outcome, shipping.cause) == (Outcome.LANDED, "") or shipping.cause in LOST
    await setting.still_serves()

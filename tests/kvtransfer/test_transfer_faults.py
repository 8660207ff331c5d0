"""A whole transfer, both state machines over real loopback gRPC, with faults put on the bulk stream.

The frames of the link are direct calls. Proves that whatever comes of the bytes, the decode pod ends up with exactly
the prefill pod's blocks, or knows what it lacks. Cannot prove timing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest
from faulty_channel import FaultyPath, Plan, corrupt, duplicate, reorder, swallow
from transport_rigs import BLOCK_BYTES, FAST, SECRET, SMALL, Recorder, RecordingSink, dial_to, pool, running, serving

from pagewire.core.clock import ManualClock
from pagewire.core.errors import StreamLost
from pagewire.kvtransfer.effects import (
    Announce,
    AskBind,
    AskResend,
    Detach,
    Effects,
    HandOver,
    Outcome,
    Purge,
    Release,
    SendBlocks,
    SendFence,
    SendFenced,
    SendLanded,
    Verdict,
)
from pagewire.kvtransfer.intake import Intake
from pagewire.kvtransfer.memory import PoolMemory
from pagewire.kvtransfer.outgoing import OutgoingShipment, OutgoingState
from pagewire.kvtransfer.shipment import IncomingShipment, IncomingState
from pagewire.kvtransfer.transports.grpc import GRPC
from pagewire.kvtransfer.transports.stream_receiver import StreamReceiver
from pagewire.kvtransfer.transports.stream_sender import StreamSender

FIRST, NUM = 1, 20
END = FIRST + NUM


class Transfer:
    """One shipment from P to D, its effects carried out as the services do."""

    def __init__(
        self,
        sender: StreamSender,
        receiver: StreamReceiver,
        target: PoolMemory,
        recorder: Recorder,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self.sender, self.receiver, self.recorder, self.tasks = sender, receiver, recorder, tasks
        self.clock = ManualClock()
        self.target = target
        self.handed: list[HandOver] = []
        self.released: list[Release] = []
        self.resends = 0
        self.incoming = IncomingShipment(
            request_id="r", generation=1, shipment_id=3, first_block=FIRST, max_blocks=NUM, deadline_s=100.0
        )
        self.outgoing = OutgoingShipment(request_id="r", generation=1, shipment_id=3, peer_id="D", first_block=FIRST)
        self.intake = Intake(self.incoming, self.clock, lambda _, effects: self.on_d(effects))
        receiver.register(3, 1, self)

    def claim(self, shipment_id: int, generation: int, indices: Sequence[int]) -> Sequence[tuple[Verdict, int]]:
        return self.intake.claim(shipment_id, generation, indices)

    def settle(self, shipment_id: int, generation: int, indices: Sequence[int], is_intact: bool) -> None:
        self.intake.settle(shipment_id, generation, indices, is_intact)
        self.recorder.note()

    def ship(self, *, chunk: int = 5) -> None:
        """P's engine computes chunk after chunk; block i of the chain is P's block i."""
        self.incoming.accepted()
        for start in range(FIRST, END, chunk):
            ids = tuple(range(start, min(start + chunk, END)))
            self.on_p(self.outgoing.chunk_done(start, ids))
        self.on_p(self.outgoing.prompt_done(is_finished=False))
        self.on_d(self.incoming.first_token(NUM, self.clock.now()))

    def on_d(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case AskBind(num_blocks=num_blocks):
                    # Chain index i is bound to D's block 2 * i: the two pools agree on nothing.
                    self.on_d(self.incoming.bound(tuple(2 * index for index in range(num_blocks))))
                    self.receiver.retry(3, 1)
                case AskResend(first_block=first, num_blocks=num):
                    self.resends += num
                    self.on_p(self.outgoing.resend(first, num))
                case Detach():
                    self.receiver.unregister(3, 1)
                case SendFence():
                    self.on_p(self.outgoing.fence())
                case SendLanded():
                    self.on_p(self.outgoing.landed())
                case HandOver():
                    self.handed.append(effect)
                    self.recorder.note()

    def on_p(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case SendBlocks(blocks=blocks):
                    self.sender.send("D", 3, 1, list(blocks))
                case Announce(first_block=first, num_blocks=num):
                    self.on_d(self.incoming.chunk_ready(first, num, self.clock.now()))
                case Purge():
                    self.tasks.create_task(self.purge())
                case Release():
                    self.released.append(effect)
                    self.on_p(self.outgoing.freed())
                case SendFenced():
                    self.on_d(self.incoming.fenced())
        self.recorder.note()

    async def purge(self) -> None:
        await self.sender.fence("D", 3, 1)
        self.on_p(self.outgoing.purged())

    def arrived(self, num_blocks: int) -> bool:
        source = pool(filled=True)
        indices = range(FIRST, FIRST + num_blocks)
        return all(self.target.read(2 * index) == source.read(index) for index in indices)


@contextlib.asynccontextmanager
async def transfer(plan: Plan) -> AsyncIterator[tuple[Transfer, FaultyPath]]:
    recorder = Recorder()
    sender = StreamSender(
        pod_id="P", secret=SECRET, memory=pool(filled=True), carriers=(GRPC,), on_lost=recorder.on_lost,
        message_bytes=SMALL.message_bytes, times=FAST,
    )  # fmt: skip
    async with (
        serving(sender) as address,
        asyncio.TaskGroup() as tasks,
    ):
        faulty, target = FaultyPath(dial_to(address), plan), pool(filled=False)
        receiver = StreamReceiver(
            faulty.dial, pod_id="D", source_id="P", secret=SECRET, memory=target,
            carriers=(GRPC,), on_lost=recorder.on_lost, flow=SMALL, times=FAST,
        )  # fmt: skip
        async with running(receiver):
            await receiver.connected(10)
            yield Transfer(sender, receiver, target, recorder, tasks), faulty


async def until_over(both: Transfer) -> None:
    await both.recorder.until(lambda: bool(both.handed) and both.outgoing.state is OutgoingState.CLOSED)
    assert len(both.handed) == len(both.released) == 1


@pytest.mark.parametrize(
    ("name", "plan", "resends"),
    [
        ("none", lambda _number, message: [message], 0),
        ("corrupt", corrupt(0, 3, 7), 3),
        ("duplicate", duplicate, 0),
        ("reorder", reorder(0, 3, 6), 0),
    ],
)
async def test_faults_that_the_client_never_notices(name: str, plan: Plan, resends: int) -> None:
    async with transfer(plan) as (both, _):
        both.ship()
        await until_over(both)
        assert both.handed == [HandOver(outcome=Outcome.LANDED, kept_blocks=NUM)]
        assert both.released == [Release(outcome=Outcome.LANDED, is_computed=True)]
        assert both.arrived(NUM)
        assert both.resends == both.receiver.counters.corrupt == resends
        assert both.incoming.num_verified == NUM


async def test_everything_twice_is_counted_as_that() -> None:
    async with transfer(duplicate) as (both, _):
        both.ship()
        await until_over(both)
        counters = both.receiver.counters
        assert counters.duplicate + counters.dropped + NUM <= counters.blocks <= 2 * NUM
        assert counters.duplicate >= NUM - SMALL.message_bytes // BLOCK_BYTES


async def test_corrupt_twice_keeps_the_prefix() -> None:
    """Messages of two blocks: number 2 spoils block 6 (it flips the last byte), and what is sent again for it."""

    def plan(number: int, message: bytes) -> list[bytes]:
        spoils_block_6 = number == 2 or len(message) < SMALL.message_bytes
        return corrupt(number)(number, message) if spoils_block_6 else [message]

    async with transfer(plan) as (both, _):
        both.ship(chunk=NUM)
        await until_over(both)
        assert both.incoming.state is IncomingState.RESUMABLE
        assert both.handed == [HandOver(outcome=Outcome.LOST, kept_blocks=5)]
        assert both.released == [Release(outcome=Outcome.CANCELLED, is_computed=True)]
        assert both.arrived(5)


async def test_a_message_that_never_comes_ends_by_the_deadline() -> None:
    async with transfer(swallow(4)) as (both, _):
        both.ship(chunk=NUM)
        await both.recorder.until(lambda: both.incoming.num_verified >= NUM - 2)
        assert (both.incoming.num_verified, both.incoming.landed_prefix_blocks) == (NUM - 2, 8)
        both.clock.advance(99.0)
        both.on_d(both.incoming.expired(both.clock.now()))
        await until_over(both)
        assert both.handed == [HandOver(outcome=Outcome.LOST, kept_blocks=8)]


async def test_late_blocks_of_a_cancelled_shipment_go_nowhere() -> None:
    async with transfer(lambda _number, message: [message]) as (both, channel):
        channel.flowing.clear()
        both.ship()
        both.on_d(both.incoming.cancel(0.0))
        await until_over(both)
        channel.flowing.set()
        # A later shipment on the same stream shows that everything before it was read.
        probe = Recorder()
        sink = RecordingSink(probe)
        both.receiver.register(4, 1, sink)
        both.sender.send("D", 4, 1, [(63, 63)])
        await probe.until(lambda: sink.placed == [63])
        assert both.handed == [HandOver(outcome=Outcome.CANCELLED)]
        assert all(both.target.read(block_id) == bytes(BLOCK_BYTES) for block_id in range(2 * END))


async def test_a_bad_header_ends_the_stream_and_a_new_one_serves() -> None:
    async with transfer(corrupt(1, at=0)) as (both, _):
        both.ship()
        await both.recorder.until(lambda: ("P", ((3, 1),)) in both.recorder.lost)
        both.on_d(both.incoming.stream_lost(StreamLost("the test says so"), 0.0))
        await until_over(both)
        assert both.handed[0].outcome is Outcome.LOST
        assert both.arrived(both.handed[0].kept_blocks)
        await both.receiver.connected(10)

"""The bulk stream itself: who may connect, what garbage does, which carrier is taken, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import NoReturn, cast

import grpc
import pytest
from faulty_carrier import Faults
from transport_rigs import (
    BLOCK_BYTES,
    CARRIERS,
    FAST,
    NUM_BLOCKS,
    SECRET,
    SMALL,
    CountedDial,
    Recorder,
    RecordingSink,
    dial_to,
    pool,
    running,
    serving,
    taking,
)

from pagewire.core.errors import PagewireError, PeerMismatch, TransferFailed, TransferTimeout
from pagewire.core.kv_layout import KVLayout
from pagewire.kvtransfer import greeting_wire, wire
from pagewire.kvtransfer.carrier import Carrier, Inlet, Line, Outlet
from pagewire.kvtransfer.greeting import Greeter
from pagewire.kvtransfer.memory import PoolMemory
from pagewire.kvtransfer.transport import BlockMemory, ShipmentKey, TransportTimes
from pagewire.kvtransfer.transports.grpc import GRPC
from pagewire.kvtransfer.transports.outgoing_stream import Context, OutgoingStream
from pagewire.kvtransfer.transports.shm import shm_carrier
from pagewire.kvtransfer.transports.stream import CHANNEL_OPTIONS, METHOD
from pagewire.kvtransfer.transports.stream_receiver import Dial, StreamReceiver
from pagewire.kvtransfer.transports.stream_sender import StreamSender


def a_sender(
    recorder: Recorder | None = None, *, secret: bytes = SECRET, times: TransportTimes = FAST, carrier: Carrier = GRPC
) -> StreamSender:
    heard, faults = recorder or Recorder(), Faults()
    faults.on_carried = heard.on_carried
    return StreamSender(
        pod_id="P", secret=secret, memory=pool(filled=True), carriers=(faults.around(carrier),), on_lost=heard.on_lost,
        message_bytes=SMALL.message_bytes, times=times,
    )  # fmt: skip


def a_receiver(
    address: str | Dial, recorder: Recorder | None = None, *, secret: bytes = SECRET, source_id: str = "P",
    block_bytes: int = BLOCK_BYTES, carriers: tuple[Carrier, ...] = (GRPC,),
) -> StreamReceiver:  # fmt: skip
    heard = recorder or Recorder()
    memory = PoolMemory(memoryview(bytearray(4 * block_bytes)), block_bytes=block_bytes, num_blocks=4)
    return StreamReceiver(
        dial_to(address) if isinstance(address, str) else address, pod_id="D", source_id=source_id, secret=secret,
        memory=memory, on_lost=heard.on_lost, carriers=carriers, flow=SMALL, times=FAST,
    )  # fmt: skip


@contextlib.asynccontextmanager
async def raw_call(sender: StreamSender) -> AsyncIterator[grpc.aio.StreamStreamCall[bytes, bytes]]:
    async with serving(sender) as address, grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(METHOD)()
        yield call
        call.cancel()


@contextlib.asynccontextmanager
async def open_call(sender: StreamSender) -> AsyncIterator[grpc.aio.StreamStreamCall[bytes, bytes]]:
    """Yield a bulk stream that has been greeted as pod D greets."""
    async with raw_call(sender) as call:
        data = await call.read()
        assert isinstance(data, bytes)
        greeter = Greeter(peer_id="D", block_bytes=BLOCK_BYTES, secret=SECRET)
        hello = greeter.hello("P", greeting_wire.decode_challenge(data), bytes(16), SMALL.window_bytes, carrier="grpc")
        await call.write(greeting_wire.encode_hello(hello))
        await call.read()
        yield call


async def test_an_empty_secret_is_refused_on_both_sides() -> None:
    with pytest.raises(ValueError, match="empty"):
        a_sender(secret=b"")
    with pytest.raises(ValueError, match="empty"):
        a_receiver("127.0.0.1:1", secret=b"")


async def test_a_block_that_no_message_holds_has_no_carrier_in_band() -> None:
    huge = PoolMemory(memoryview(b""), block_bytes=wire.MAX_MESSAGE_BYTES, num_blocks=0)
    for end in (GRPC.outlet, GRPC.inlet):
        with pytest.raises(TransferFailed, match="does not fit"):
            end(huge, "D")


@pytest.mark.parametrize(
    ("secret", "source_id", "block_bytes", "kind", "reason"),
    [
        (b"another", "P", BLOCK_BYTES, TransferFailed, "refused"),
        (SECRET, "P2", BLOCK_BYTES, TransferFailed, "refused"),
        (SECRET, "P", 2 * BLOCK_BYTES, PeerMismatch, "block bytes 1024 / 2048"),
    ],
)
async def test_a_misfit_is_refused_with_a_reason_and_may_try_again(
    secret: bytes, source_id: str, block_bytes: int, kind: type[PagewireError], reason: str
) -> None:
    sender = a_sender()
    async with serving(sender) as address:
        receiver = a_receiver(address, secret=secret, source_id=source_id, block_bytes=block_bytes)
        async with running(receiver):
            async with asyncio.timeout(10):
                while reason not in receiver.reason:
                    with contextlib.suppress(TransferFailed, PeerMismatch):
                        await receiver.connected(0.01)
            with pytest.raises(kind, match="no stream for blocks"):
                await receiver.connected(0.01)
            assert not sender.is_connected("D")
            with pytest.raises(kind):
                receiver.register(1, 1, RecordingSink(Recorder()))


async def test_an_overheard_hello_is_worth_nothing() -> None:
    """The same bytes that opened one stream do not open another: the challenge is a new one."""
    greeter = Greeter(peer_id="D", block_bytes=BLOCK_BYTES, secret=SECRET)
    sender = a_sender()
    async with raw_call(sender) as call:
        data = await call.read()
        assert isinstance(data, bytes)
        challenge = greeting_wire.decode_challenge(data)
        overheard = greeting_wire.encode_hello(
            greeter.hello("P", challenge, bytes(16), SMALL.window_bytes, carrier="grpc")
        )
        await call.write(overheard)
        assert isinstance(await call.read(), bytes)
        assert sender.is_connected("D")
    async with raw_call(sender) as call:
        await call.read()
        await call.write(overheard)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


NO_HELLOS = [b"", b"x", b"PWKV", b"PWKV\x04\x02", b"\x80\x04." * 20, bytes(20000), b"PWKV\x04\x02" + bytes(90)]


@pytest.mark.parametrize(
    ("garbage", "code"),
    [
        *((each, grpc.StatusCode.INVALID_ARGUMENT) for each in NO_HELLOS),
        (b"PWKV\x03\x02" + bytes(90), grpc.StatusCode.ABORTED),  # of another version
    ],
)
async def test_garbage_for_a_hello_opens_nothing(garbage: bytes, code: grpc.StatusCode) -> None:
    sender = a_sender()
    async with raw_call(sender) as call:
        await call.read()
        await call.write(garbage)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
        assert refused.value.code() is code
        assert not sender.is_connected("")


async def test_a_silent_dialler_is_hung_up_on() -> None:
    async with raw_call(a_sender(times=TransportTimes(connect_s=0.2))) as call:
        await call.read()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_garbage_for_credit_ends_the_stream_once() -> None:
    recorder = Recorder()
    sender = a_sender(recorder)
    async with open_call(sender) as call:
        await call.write(b"PWKV\x02\x05 and so on")
        await recorder.until(lambda: recorder.lost == [("D", ())])
        assert not sender.is_connected("D")


async def test_a_receiver_that_gives_no_credit_gets_a_window_and_no_more() -> None:
    recorder = Recorder()
    sender = a_sender(recorder)
    async with open_call(sender) as call:
        for shipment_id in range(1, 9):
            sender.send("D", shipment_id, 1, [(index, index) for index in range(NUM_BLOCKS)])
        await recorder.until(lambda: sender.counters.bytes == SMALL.window_bytes)
        await sender.fence("D", 1, 1)
        assert sender.counters.bytes == SMALL.window_bytes
        await call.write(wire.encode_credit(wire.Credit(ShipmentKey(2, 1), 4 * BLOCK_BYTES)))
        await recorder.until(lambda: sender.counters.bytes > SMALL.window_bytes)
        assert {key.shipment_id for _, key, _ in recorder.sent[4:]} <= set(range(2, 9)), "1 is fenced"


async def test_a_source_that_minds_no_credit_is_read_no_further() -> None:
    """What it sends would lie in our memory until its blocks have ids."""
    recorder, sender = Recorder(), a_sender()
    async with (
        serving(sender) as address,
        taking(int(address.rpartition(":")[2]), (GRPC,), recorder) as (receiver, _),
    ):
        sender._streams["D"].outbox._window_bytes = 1 << 40
        receiver.register(1, 1, RecordingSink(recorder, is_bound=False))
        sender.send("D", 1, 1, [(index, index) for index in range(NUM_BLOCKS)])
        await recorder.until(lambda: recorder.lost == [("P", (ShipmentKey(1, 1),))])
        assert receiver.counters.bytes <= 2 * SMALL.window_bytes
        assert [error.cause for error in recorder.errors] == ["contract_broken"]


@pytest.mark.parametrize("carrier", ["shm", "tcp", "collective", "local"])
async def test_a_source_that_sends_no_checksums_breaks_the_contract(carrier: str) -> None:
    """Where a CPU reads what it places, whoever it comes from."""
    recorder, made = Recorder(), CARRIERS[carrier]()

    def careless(memory: BlockMemory, peer_id: str) -> Outlet:
        outlet = made.outlet(memory, peer_id)
        outlet.checksums = False
        return outlet

    careless_sender = a_sender(carrier=dataclasses.replace(made, outlet=careless))
    async with (
        serving(careless_sender) as address,
        taking(int(address.rpartition(":")[2]), (made,), recorder) as (receiver, _),
    ):
        sink = RecordingSink(recorder)
        receiver.register(1, 1, sink)
        careless_sender.send("D", 1, 1, [(0, 0), (1, 1)])
        await recorder.until(lambda: recorder.lost == [("P", (ShipmentKey(1, 1),))])
        assert (sink.placed, recorder.errors[0].cause) == ([], "contract_broken")
        assert "without checksums" in recorder.errors[0].message


async def test_who_says_that_layers_come_in_parts_that_they_do_not_fall_into_is_not_paired() -> None:
    layout = KVLayout(num_layers=3, num_kv_heads=1, head_dim=4, block_size=16, dtype="float32")
    memory = PoolMemory(memoryview(bytearray(4 * layout.block_bytes)), block_bytes=layout.block_bytes, num_blocks=4)
    recorder = Recorder()
    sender = StreamSender(pod_id="P", secret=SECRET, memory=memory, carriers=(GRPC,), layout=layout, num_groups=2)
    async with serving(sender) as address:
        receiver = StreamReceiver(
            dial_to(address), pod_id="D", source_id="P", secret=SECRET, memory=memory, on_lost=recorder.on_lost,
            carriers=(GRPC,), layout=layout, times=FAST,
        )  # fmt: skip
        async with running(receiver):
            with pytest.raises(PeerMismatch, match="3 layers in 2 parts"):
                await receiver.connected(1.0)


async def test_a_second_stream_of_a_pod_replaces_the_first() -> None:
    at_p = Recorder()
    sender = a_sender(at_p)
    async with contextlib.AsyncExitStack() as stack:
        address = await stack.enter_async_context(serving(sender))
        recorders = [Recorder(), Recorder()]
        receivers = []
        for recorder in recorders:
            receiver = a_receiver(address, recorder)
            receivers.append(receiver)
            task = asyncio.create_task(receiver.run())
            stack.callback(task.cancel)
            await receiver.connected(10)
            if receiver is receivers[0]:
                receiver.register(1, 1, RecordingSink(recorder))
        await recorders[0].until(lambda: recorders[0].lost == [("P", (ShipmentKey(1, 1),))])
        assert at_p.lost[0] == ("D", ())


async def test_memory_out_of_range_ends_the_stream_not_the_process(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    sender = a_sender(recorder)
    async with serving(sender) as address:
        port = int(address.rpartition(":")[2])
        async with taking(port, (GRPC,), recorder) as (receiver, _):
            receiver.register(1, 1, RecordingSink(recorder))
            sender.send("D", 1, 1, [(0, NUM_BLOCKS)])
            await recorder.until(lambda: ("P", (ShipmentKey(1, 1),)) in recorder.lost)
            await receiver.connected(10)
            assert "could not be sent" in caplog.text
            again = RecordingSink(recorder)
            receiver.register(1, 2, again)
            sender.send("D", 1, 2, [(0, 0)])
            await recorder.until(lambda: again.placed == [0])


async def test_a_carrier_that_does_not_open_gives_way_to_the_next(caplog: pytest.LogCaptureFixture) -> None:
    """One that our pool does not fit, one that the source does not have, and one that is there."""

    def misfit(_memory: object, _peer_id: str) -> NoReturn:
        raise TransferFailed("no such memory")

    broken = dataclasses.replace(GRPC, name="broken", inlet=misfit)
    unknown = dataclasses.replace(GRPC, name="unknown")
    sender = a_sender()
    async with serving(sender) as address:
        dial = CountedDial(address)
        receiver = a_receiver(dial, carriers=(broken, unknown, GRPC))
        async with running(receiver):
            await receiver.connected(10)
            assert (receiver.transport, receiver.is_fallback) == ("grpc", True)
            assert (dial.num_opened, dial.num_closed) == (3, 2)
        assert (dial.num_opened, dial.num_closed) == (3, 3)
    assert "by broken: TransferFailed: no such memory" in caplog.text
    assert "by unknown: FAILED_PRECONDITION" in caplog.text


async def test_a_source_that_is_silent_before_it_hears_of_a_carrier_fails_none() -> None:
    """It stands still, or starts: whichever carrier it was dialled for has nothing to do with it."""
    better = dataclasses.replace(GRPC, name="better")
    times = dataclasses.replace(FAST, connect_s=0.5)
    sender = StreamSender(pod_id="P", secret=SECRET, memory=pool(filled=True), carriers=(better, GRPC), times=times)
    serve, is_still = sender._serve, asyncio.Event()

    async def still_at_first(_requests: object, context: Context) -> None:
        if not is_still.is_set():
            is_still.set()
            await asyncio.sleep(times.connect_s * 2)
        await serve(_requests, context)

    sender._serve = still_at_first  # type: ignore[method-assign]
    async with serving(sender) as address:
        receiver = StreamReceiver(
            dial_to(address), pod_id="D", source_id="P", secret=SECRET, memory=pool(filled=False),
            on_lost=Recorder().on_lost, carriers=(better, GRPC), flow=SMALL, times=times,
        )  # fmt: skip
        async with running(receiver):
            await receiver.connected(10)
            assert is_still.is_set()
            assert (receiver.transport, receiver.is_fallback) == ("better", False)


async def test_a_source_that_reads_no_credit_and_sends_on_loses_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credit is owed by the key, and there may be any number of those."""

    async def never(_stream: OutgoingStream, _line: Line) -> None:
        await asyncio.Event().wait()

    async def flood(_stream: OutgoingStream, line: Line) -> None:
        for number in itertools.count():
            await line.write(wire.encode_ready(ShipmentKey(number, 1), range(1), BLOCK_BYTES, (0,), (0,)))

    monkeypatch.setattr(OutgoingStream, "_read_credit", never)
    monkeypatch.setattr(OutgoingStream, "_write_blocks", flood)
    recorder, carriers = Recorder(), (shm_carrier(),)
    sender = StreamSender(pod_id="P", secret=SECRET, memory=pool(filled=True), carriers=carriers)
    async with serving(sender) as address:
        receiver = StreamReceiver(
            dial_to(address), pod_id="D", source_id="P", secret=SECRET, memory=pool(filled=False),
            on_lost=recorder.on_lost, carriers=carriers, times=dataclasses.replace(FAST, write_s=0.2),
        )  # fmt: skip
        async with running(receiver):
            await receiver.connected(10)
            await recorder.until(lambda: bool(recorder.errors))
            assert isinstance(recorder.errors[0], TransferTimeout)


async def test_an_address_that_cannot_be_dialled_costs_a_stream_and_not_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(a_sender()) as address:
        dials = [lambda: grpc.aio.insecure_channel(0), dial_to(address)]  # type: ignore[arg-type]
        receiver = a_receiver(lambda: dials.pop(0)())
        async with running(receiver):
            await receiver.connected(10)
    assert "the stream for blocks from P broke" in caplog.text


async def test_nobody_waits_for_a_stream_that_has_not_come_for_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request would lose that time each, one after another; a new offer, or a stream that was up, is waited for."""
    is_broken = True

    def inlet(memory: BlockMemory, source_id: str) -> Inlet:
        if is_broken:
            raise TransferFailed("no way")
        return GRPC.inlet(memory, source_id)

    async def waits() -> bool:
        """Return whether it waits at all, as it says itself: what took how long depends on the machine."""
        asked_s: list[float] = []
        timeout = asyncio.timeout

        def noted(seconds: float) -> asyncio.Timeout:
            asked_s.append(seconds)
            return timeout(seconds)

        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "timeout", noted)
            with pytest.raises(TransferFailed, match="no way"):
                await receiver.connected(2.0)
        return asked_s[0] > 0

    carriers = (dataclasses.replace(GRPC, inlet=inlet),)
    async with serving(a_sender()) as address:
        receiver = a_receiver(address, carriers=carriers)
        async with running(receiver):
            assert await waits()
            assert not await waits()
            receiver.offer(carriers)
            assert await waits()
            is_broken = False
            receiver.offer(carriers)
            await receiver.connected(10)
            receiver.drop("the test says so")
            await receiver.connected(10)


async def test_nothing_is_dialled_before_a_carrier_is_offered() -> None:
    sender = a_sender()
    async with serving(sender) as address:
        receiver = a_receiver(address, carriers=())
        async with running(receiver):
            with pytest.raises(TransferFailed, match="not dialled yet"):
                await receiver.connected(0.01)
            receiver.offer((GRPC,))
            await receiver.connected(10)
            assert (receiver.transport, receiver.is_fallback) == ("grpc", False)


async def test_a_carrier_that_breaks_in_no_foreseen_way_costs_a_stream_and_not_the_next() -> None:
    broken = iter([True])

    def inlet(memory: BlockMemory, source_id: str) -> Inlet:
        if next(broken, False):
            raise AttributeError("our own bug")
        return GRPC.inlet(memory, source_id)

    async with serving(a_sender()) as address:
        receiver = a_receiver(address, carriers=(dataclasses.replace(GRPC, inlet=inlet),))
        async with running(receiver):
            await receiver.connected(10)


async def test_who_offers_nothing_any_more_is_not_dialled() -> None:
    async with serving(a_sender()) as address:
        recorder = Recorder()
        receiver = a_receiver(address, recorder)
        async with running(receiver):
            await receiver.connected(10)
            receiver.offer(())
            receiver.drop("the test says so")
            await recorder.until(lambda: not receiver.is_connected)
            with pytest.raises(TransferFailed):
                await receiver.connected(0.3)
            receiver.offer((GRPC,))
            await receiver.connected(10)


async def test_an_offer_that_is_taken_back_at_once_ends_nothing() -> None:
    async with serving(a_sender()) as address:
        receiver = a_receiver(address, carriers=())
        async with running(receiver):
            await asyncio.sleep(0.01)
            receiver.offer((GRPC,))
            receiver.offer(())
            await asyncio.sleep(0.01)
            receiver.offer((GRPC,))
            await receiver.connected(10)


async def test_an_offer_that_is_taken_back_during_a_greeting_that_fails_ends_nothing() -> None:
    """As when another pod answers at the address."""
    greets, is_first = asyncio.Event(), iter([True])

    async def hang(_card: bytes) -> None:
        greets.set()
        await asyncio.Event().wait()

    def inlet(memory: BlockMemory, source_id: str) -> Inlet:
        made = GRPC.inlet(memory, source_id)
        if next(is_first, False):
            setattr(made, "open", hang)  # noqa: B010 - its own is a method
        return made

    async with serving(a_sender()) as address:
        receiver = a_receiver(address, carriers=(dataclasses.replace(GRPC, inlet=inlet),))
        async with running(receiver):
            await greets.wait()
            receiver.offer(())
            async with asyncio.timeout(30):
                while "Timeout" not in receiver.reason:
                    with contextlib.suppress(TransferFailed):
                        await receiver.connected(0.01)
            receiver.offer((GRPC,))
            await receiver.connected(10)


async def test_a_source_that_changes_its_mind_at_each_greeting_is_dialled_at_leisure() -> None:
    """What it says of its blocks is believed once; who says another thing each time is not dialled without a pause."""
    sender = a_sender()
    answered = itertools.count(1)
    welcome = sender._greeter.welcome

    def otherwise(hello: greeting_wire.Hello, challenge: bytes, card: bytes, _num_groups: int) -> greeting_wire.Welcome:
        return welcome(hello, challenge, card, 2 ** (next(answered) % 2 + 1))

    sender._greeter = cast("Greeter", SimpleNamespace(admit=sender._greeter.admit, welcome=otherwise, order=""))
    async with serving(sender) as address:
        receiver = a_receiver(address)
        async with running(receiver), asyncio.timeout(10):
            while "each time anew" not in receiver.reason:
                with contextlib.suppress(PeerMismatch, TransferFailed):
                    await receiver.connected(0.01)


async def test_a_message_that_its_carrier_does_not_carry_in_time_ends_the_stream_and_not_the_next() -> None:
    at_p, recorder, faults = Recorder(), Recorder(), Faults()
    faults.carry_hangs_at = 0
    sender = StreamSender(
        pod_id="P", secret=SECRET, memory=pool(filled=True), carriers=(faults.around(GRPC),), on_lost=at_p.on_lost,
        times=dataclasses.replace(FAST, carry_s=0.2),
    )  # fmt: skip
    async with serving(sender) as address, taking(int(address.rpartition(":")[2]), (GRPC,), recorder) as (receiver, _):
        receiver.register(1, 1, RecordingSink(recorder))
        sender.send("D", 1, 1, [(0, 0)])
        await at_p.until(lambda: len(at_p.lost) == 1)
        await recorder.until(lambda: len(recorder.lost) == 1)
        assert "TransferTimeout: a message was not carried within 0.2 s" in receiver.reason
        await receiver.connected(10)
        again = RecordingSink(recorder)
        receiver.register(1, 2, again)
        sender.send("D", 1, 2, [(3, 3)])
        await recorder.until(lambda: again.placed == [3])

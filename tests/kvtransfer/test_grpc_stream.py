"""What is particular to the gRPC transport: who may connect, what garbage does, and two real processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from transport_rigs import (
    BLOCK_BYTES,
    FAST,
    NUM_BLOCKS,
    SECRET,
    SMALL,
    Recorder,
    RecordingSink,
    grpc_rig,
    pool,
    running,
    serving,
)

from pagewire.core.errors import TransferFailed
from pagewire.kvtransfer import wire
from pagewire.kvtransfer.greeting import Greeter
from pagewire.kvtransfer.memory import PoolMemory
from pagewire.kvtransfer.transport import Flow, ShipmentKey, TransportTimes
from pagewire.kvtransfer.transports.grpc import CHANNEL_OPTIONS, GrpcReceiver, GrpcSender
from pagewire.kvtransfer.transports.grpc_stream import METHOD

SUPPORT = Path(__file__).parent.parent / "support"


def a_sender(recorder: Recorder | None = None, *, secret: bytes = SECRET, times: TransportTimes = FAST) -> GrpcSender:
    heard = recorder or Recorder()
    return GrpcSender(
        pod_id="P", secret=secret, memory=pool(filled=True), on_lost=heard.on_lost, on_sent=heard.on_sent, times=times
    )


def a_receiver(
    channel: grpc.aio.Channel, recorder: Recorder | None = None, *, secret: bytes = SECRET, sender_id: str = "P",
    block_bytes: int = BLOCK_BYTES,
) -> GrpcReceiver:  # fmt: skip
    heard = recorder or Recorder()
    return GrpcReceiver(
        channel, pod_id="D", sender_id=sender_id, secret=secret, block_bytes=block_bytes, on_lost=heard.on_lost,
        flow=SMALL, times=FAST,
    )  # fmt: skip


@contextlib.asynccontextmanager
async def raw_call(sender: GrpcSender) -> AsyncIterator[grpc.aio.StreamStreamCall[bytes, bytes]]:
    async with serving(sender) as address, grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(METHOD)()
        yield call
        call.cancel()


@contextlib.asynccontextmanager
async def open_call(sender: GrpcSender) -> AsyncIterator[grpc.aio.StreamStreamCall[bytes, bytes]]:
    """Yield a bulk stream that has been greeted as pod D greets."""
    async with raw_call(sender) as call:
        data = await call.read()
        assert isinstance(data, bytes)
        greeter = Greeter(peer_id="D", block_bytes=BLOCK_BYTES, secret=SECRET)
        hello = greeter.hello("P", wire.decode_challenge(data), bytes(16), SMALL.window_bytes)
        await call.write(wire.encode_hello(hello))
        await call.read()
        yield call


async def test_an_empty_secret_is_refused_on_both_sides() -> None:
    with pytest.raises(ValueError, match="empty"):
        a_sender(secret=b"")
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        with pytest.raises(ValueError, match="empty"):
            a_receiver(channel, secret=b"")


async def test_a_block_that_no_message_holds_is_refused() -> None:
    huge = PoolMemory(memoryview(b""), block_bytes=wire.MAX_MESSAGE_BYTES, num_blocks=0)
    with pytest.raises(ValueError, match="does not fit"):
        GrpcSender(pod_id="P", secret=SECRET, memory=huge, on_lost=lambda _peer, _keys: None)


@pytest.mark.parametrize(
    ("secret", "sender_id", "block_bytes"),
    [(b"another", "P", BLOCK_BYTES), (SECRET, "P2", BLOCK_BYTES), (SECRET, "P", 2 * BLOCK_BYTES)],
)
async def test_a_misfit_is_refused_with_a_reason_and_may_try_again(
    secret: bytes, sender_id: str, block_bytes: int
) -> None:
    sender = a_sender()
    async with serving(sender) as address, grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        receiver = a_receiver(channel, secret=secret, sender_id=sender_id, block_bytes=block_bytes)
        async with running(receiver):
            async with asyncio.timeout(10):
                while "refused" not in receiver.reason:
                    with contextlib.suppress(TransferFailed):
                        await receiver.connected(0.01)
            with pytest.raises(TransferFailed, match="no stream for blocks"):
                await receiver.connected(0.01)
            assert not sender.is_connected("D")
            with pytest.raises(TransferFailed):
                receiver.register(1, 1, RecordingSink(pool(filled=False), Recorder()))


async def test_an_overheard_hello_is_worth_nothing() -> None:
    """The same bytes that opened one stream do not open another: the challenge is a new one."""
    greeter = Greeter(peer_id="D", block_bytes=BLOCK_BYTES, secret=SECRET)
    sender = a_sender()
    async with raw_call(sender) as call:
        data = await call.read()
        assert isinstance(data, bytes)
        challenge = wire.decode_challenge(data)
        overheard = wire.encode_hello(greeter.hello("P", challenge, bytes(16), SMALL.window_bytes))
        await call.write(overheard)
        assert isinstance(await call.read(), bytes)
        assert sender.is_connected("D")
    async with raw_call(sender) as call:
        await call.read()
        await call.write(overheard)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


GARBAGE = [b"", b"x", b"PWKV\x01\x02", b"\x80\x04." * 20, bytes(2000), b"PWKV\x02\x02" + bytes(90)]


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_garbage_for_a_hello_opens_nothing(garbage: bytes) -> None:
    sender = a_sender()
    async with raw_call(sender) as call:
        await call.read()
        await call.write(garbage)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
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
        await call.write(b"PWKV\x01\x05 and so on")
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


async def test_a_second_stream_of_a_pod_replaces_the_first() -> None:
    at_p = Recorder()
    sender = a_sender(at_p)
    async with contextlib.AsyncExitStack() as stack:
        address = await stack.enter_async_context(serving(sender))
        recorders = [Recorder(), Recorder()]
        receivers = []
        for recorder in recorders:
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS))
            receiver = a_receiver(channel, recorder)
            receivers.append(receiver)
            task = asyncio.create_task(receiver.run())
            stack.callback(task.cancel)
            await receiver.connected(10)
            if receiver is receivers[0]:
                receiver.register(1, 1, RecordingSink(pool(filled=False), recorder))
        await recorders[0].until(lambda: recorders[0].lost == [("P", (ShipmentKey(1, 1),))])
        assert at_p.lost[0] == ("D", ())


async def test_memory_out_of_range_ends_the_stream_not_the_process(caplog: pytest.LogCaptureFixture) -> None:
    async with grpc_rig() as rig:
        sink = rig.sink()
        rig.receiver.register(1, 1, sink)
        rig.sender.send("D", 1, 1, [(0, NUM_BLOCKS)])
        await rig.at_receiver.until(lambda: len(rig.at_receiver.lost) == 1)
        await rig.receiver.connected(10)
        assert "could not be sent" in caplog.text
        again = rig.sink()
        rig.receiver.register(1, 2, again)
        rig.sender.send("D", 1, 2, [(0, 0)])
        await rig.at_receiver.until(lambda: again.placed == [0])


async def test_two_processes_and_the_death_of_one() -> None:
    """A real prefill process sends a pool's worth, is killed in the middle of the next, and the loss is told once."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", str(SUPPORT / "sender_process.py"), stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(SUPPORT)},
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    recorder = Recorder()
    try:
        port = int(await asyncio.wait_for(process.stdout.readline(), 30))
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS) as channel:
            receiver = GrpcReceiver(
                channel, pod_id="D", sender_id="P", secret=SECRET, block_bytes=BLOCK_BYTES, on_lost=recorder.on_lost,
                flow=Flow(window_bytes=16 * BLOCK_BYTES, message_bytes=4 * BLOCK_BYTES), times=FAST,
            )  # fmt: skip
            async with running(receiver):
                await receiver.connected(30)
                source, target = pool(filled=True), pool(filled=False)
                sink, unbound = RecordingSink(target, recorder), RecordingSink(target, recorder, is_bound=False)
                receiver.register(1, 1, sink)
                receiver.register(2, 1, unbound)
                process.stdin.write(f"1 1 0 {NUM_BLOCKS}\n2 1 0 {NUM_BLOCKS}\n".encode())
                await recorder.until(lambda: len(sink.placed) == NUM_BLOCKS and len(unbound.deliveries) > 0)
                assert all(source.read(index) == target.read(index) for index in range(NUM_BLOCKS))
                process.kill()
                await recorder.until(lambda: bool(recorder.lost))
                assert recorder.lost == [("P", (ShipmentKey(1, 1), ShipmentKey(2, 1)))]
                assert unbound.placed == []
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()

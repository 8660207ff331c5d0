"""What is particular to tcp: who gets in, what is sent in halves, broken off, late or not read, over real sockets.

Proves both ends against each other and against ends that misbehave, on loopback; cannot show a real network's losses.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import socket
import struct
from collections.abc import AsyncIterator

import pytest
from open_files import open_files
from patience import comes_true
from sources import make_rig
from transport_rigs import BLOCK_BYTES, NUM_BLOCKS, Recorder, RecordingSink, pool, serving, taking

from pagewire.core.errors import ContractBroken, StreamLost, TransferFailed
from pagewire.core.side_door import Card, SideDoor
from pagewire.core.token_door import CONNECT_S, MAX_ASKING, TOKEN_BYTES
from pagewire.kvtransfer import wire
from pagewire.kvtransfer.carrier import Carrier
from pagewire.kvtransfer.memory import PoolMemory
from pagewire.kvtransfer.outbox import Batch
from pagewire.kvtransfer.transport import ShipmentKey
from pagewire.kvtransfer.transports import tcp
from pagewire.kvtransfer.transports.grpc import GRPC
from pagewire.kvtransfer.transports.stream_sender import StreamSender
from pagewire.kvtransfer.transports.tcp import TcpInlet, TcpOutlet
from pagewire.kvtransfer.wire import MalformedMessage, Ready

KEY = ShipmentKey(1, 1)


def ready_of(number: int, *block_ids: int) -> Ready:
    return Ready(KEY, 0, (), block_ids=block_ids, tag=number)


def outlet_of(memory: PoolMemory, door: SideDoor | None = None, port: int = 0) -> TcpOutlet:
    return TcpOutlet(memory, door or SideDoor(port=port))


def port_of(card: bytes) -> int:
    return Card.from_bytes(card).port


@contextlib.asynccontextmanager
async def a_pair(source: PoolMemory, target: PoolMemory) -> AsyncIterator[tuple[TcpOutlet, TcpInlet]]:
    outlet, inlet = outlet_of(source), TcpInlet(target)
    await inlet.open(await outlet.open(inlet.card))
    try:
        yield outlet, inlet
    finally:
        for end in (outlet, inlet, outlet, inlet):
            end.close()


@contextlib.asynccontextmanager
async def a_source_of_ours(target: PoolMemory) -> AsyncIterator[tuple[TcpInlet, socket.socket]]:
    """An inlet, and the socket of a source that says what the test wants."""
    near, far = socket.socketpair()
    inlet = TcpInlet(target, 8 * BLOCK_BYTES)
    near.setblocking(False)
    inlet._socket_line.attach(near)
    with far:
        yield inlet, far
        inlet.close()


def payload(data: bytes) -> bytes:
    return struct.pack("<I", 1 << 31 | len(data)) + data


async def test_blocks_go_from_pool_to_pool_behind_their_message() -> None:
    source, target = pool(filled=True), pool(filled=False)
    async with a_pair(source, target) as (outlet, inlet):
        batch = Batch(KEY, 0, (5, 7, 6))
        assert outlet.tag(batch) == 0
        await outlet.line.write(b"ready")
        await outlet.line.write(b"sums")
        await outlet.carry(batch)
        ready = ready_of(0, *batch.block_ids)
        assert await inlet.line.read() == b"ready"
        await inlet.arrived(ready)
        sums = await inlet.place(ready, [(2, 3), (0, 1)])
        assert (target.read(3), target.read(1)) == (source.read(6), source.read(5))
        assert list(sums) == [ready.checksum(2, source.read(6)), ready.checksum(0, source.read(5))]
        assert target.read(5) == target.read(7) == bytes(BLOCK_BYTES)
        assert await inlet.line.read() == b"sums", "what came before the payload is there after it"
        await inlet.line.write(b"credit")
        assert await outlet.line.read() == b"credit"
        with pytest.raises(IndexError):
            await inlet.place(ready, [(0, NUM_BLOCKS)])


async def test_a_socket_breaks_where_its_other_end_is_silent() -> None:
    """As behind a firewall that forgot it; by itself the kernel waits for a quarter of an hour, or for hours."""
    async with a_pair(pool(filled=False), pool(filled=False)) as (outlet, inlet):
        for end in (outlet, inlet):
            connection = end._socket_line._socket
            assert connection is not None
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            told = [
                connection.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
            ]
            assert told == [5, 5, 3, 15_000]


async def test_messages_larger_than_any_socket_buffer_arrive_and_the_loop_turns_meanwhile() -> None:
    size = 24 << 20  # kernels keep some megabytes
    source = PoolMemory(memoryview(bytearray(os.urandom(size))), block_bytes=size // 8, num_blocks=8)
    target = PoolMemory(memoryview(bytearray(size)), block_bytes=size // 8, num_blocks=8)
    async with a_pair(source, target) as (outlet, inlet):
        turns, is_over = 0, False

        async def turning() -> None:
            nonlocal turns
            while not is_over:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(turning())
        ready = ready_of(0, *range(8))
        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            tasks.create_task(outlet.carry(Batch(KEY, 0, tuple(range(8)))))
            tasks.create_task(inlet.arrived(ready))
        await inlet.place(ready, [(position, position) for position in range(8)])
        is_over = True
        await beside
        assert target.view == source.view
        assert turns > 5


async def test_a_wrong_token_gets_nothing_and_spoils_nothing_and_a_right_one_is_good_once() -> None:
    outlet, inlet = outlet_of(pool(filled=True)), TcpInlet(pool(filled=False))
    card = await outlet.open(b"")
    with socket.create_connection(("127.0.0.1", port_of(card))) as stranger:
        stranger.sendall(bytes(TOKEN_BYTES))
        assert await asyncio.to_thread(stranger.recv, 100) == b""
    await inlet.open(card)
    late = TcpInlet(pool(filled=False))
    with pytest.raises(TransferFailed, match="cannot be used"):
        await late.open(card)  # nobody listens there any more
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port_of(card)))
    for end in (outlet, inlet, late):
        end.close()


async def test_a_token_is_good_once_while_another_is_expected_at_the_same_door() -> None:
    door = SideDoor()
    outlets = [outlet_of(pool(filled=True), door) for _ in range(2)]
    cards = [await outlet.open(b"") for outlet in outlets]
    assert port_of(cards[0]) == port_of(cards[1]), "streams share a door"
    inlets = [TcpInlet(pool(filled=False)) for _ in range(3)]
    await inlets[0].open(cards[0])
    with pytest.raises(TransferFailed):
        await inlets[1].open(cards[0])
    await inlets[2].open(cards[1])
    for outlet, inlet, word in ((outlets[0], inlets[0], b"0"), (outlets[1], inlets[2], b"1")):
        await outlet.carry(Batch(KEY, 0, (1,)))
        await inlet.line.write(word)
        assert await outlet.line.read() == word
    for outlet in outlets:
        outlet.close()
    for inlet in inlets:
        inlet.close()


async def test_strangers_that_say_nothing_hold_up_nobody_however_many() -> None:
    outlet, inlet = outlet_of(pool(filled=True)), TcpInlet(pool(filled=False))
    card = await outlet.open(b"")
    with contextlib.ExitStack() as silent:
        strangers = []
        for number in range(3 * MAX_ASKING):
            stranger = silent.enter_context(socket.create_connection(("127.0.0.1", port_of(card)), timeout=CONNECT_S))
            stranger.sendall(bytes(number % TOKEN_BYTES))  # some a part of a token
            strangers.append(stranger)
            await asyncio.sleep(0.002)
        async with asyncio.timeout(CONNECT_S / 2):  # far less than one of them may take
            assert await asyncio.to_thread(_ended, strangers[0]), "the oldest had to go"
            await inlet.open(card)
        for stranger in strangers:
            assert await asyncio.to_thread(_ended, stranger), "nobody is expected any more"
    outlet.close()
    inlet.close()


def _ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


async def test_who_listens_in_the_place_of_the_source_is_not_believed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        port = impostor.getsockname()[1]
        card = Card(token=bytes(TOKEN_BYTES), answer=b"a" * TOKEN_BYTES, host="127.0.0.1", port=port).to_bytes()
        inlet = TcpInlet(pool(filled=False))
        opening = asyncio.create_task(inlet.open(card))
        connection, _ = await asyncio.to_thread(impostor.accept)
        with connection:
            connection.sendall(b"b" * TOKEN_BYTES)
            with pytest.raises(TransferFailed, match="did not write the card"):
                await opening
        inlet.close()


async def test_cards_that_lie_are_refused() -> None:
    inlet = TcpInlet(pool(filled=False))
    head = Card(token=bytes(TOKEN_BYTES), answer=bytes(TOKEN_BYTES), host="", port=1).to_bytes()
    for card in (b"", head, head + b"a" * 256, head + b"\xff\xfe", head + b"\0", head + b"127.0.0.1"):
        with pytest.raises(TransferFailed):
            await inlet.open(card)
    inlet.close()


async def test_a_port_that_is_taken_is_said_by_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        outlet = outlet_of(pool(filled=True), port=taken.getsockname()[1])
        with pytest.raises(TransferFailed, match=f"cannot listen on 127.0.0.1, port {taken.getsockname()[1]}"):
            await outlet.open(b"")
        outlet.close()


async def test_half_a_payload_then_silence_is_waited_for_and_its_end_is_a_loss() -> None:
    target = pool(filled=False)
    async with a_source_of_ours(target) as (inlet, far):
        far.sendall(payload(b"x" * 2 * BLOCK_BYTES)[:BLOCK_BYTES])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await inlet.arrived(ready_of(0, 1, 2))
    assert target.view == bytes(target.view.nbytes)
    async with a_source_of_ours(target) as (inlet, far):
        arriving = asyncio.create_task(inlet.arrived(ready_of(0, 1, 2)))
        far.sendall(payload(b"x" * 2 * BLOCK_BYTES)[:BLOCK_BYTES])
        await asyncio.sleep(0.01)
        far.close()
        with pytest.raises(StreamLost, match="ended after"):
            await arriving
    assert target.view == bytes(target.view.nbytes), "nothing is written outside a place"


async def test_a_reset_within_a_message_is_a_loss_at_both_ends() -> None:
    source = pool(filled=True)
    outlet = outlet_of(source)
    card = await outlet.open(b"")
    taker = socket.create_connection(("127.0.0.1", port_of(card)))
    taker.sendall(card[:TOKEN_BYTES])
    assert await asyncio.to_thread(taker.recv, TOKEN_BYTES) == card[TOKEN_BYTES : 2 * TOKEN_BYTES]
    carrying = asyncio.create_task(carry_for_ever(outlet))
    await asyncio.sleep(0.1)
    taker.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    taker.close()  # by a reset
    async with asyncio.timeout(5):
        with pytest.raises(StreamLost, match="broke"):
            await carrying
    outlet.close()


async def carry_for_ever(outlet: TcpOutlet) -> None:
    while True:
        await outlet.carry(Batch(KEY, 0, tuple(range(NUM_BLOCKS))))


async def test_a_peer_that_reads_nothing_costs_no_memory_of_ours_and_can_be_given_up() -> None:
    size = 1 << 20
    source = PoolMemory(memoryview(bytearray(64 * size)), block_bytes=size, num_blocks=64)
    async with a_pair(source, pool(filled=False)) as (outlet, _):
        before = resident_bytes()
        carrying = asyncio.create_task(carry_for_ever(outlet))
        await asyncio.sleep(0.3)
        assert not carrying.done()
        assert resident_bytes() - before < 8 * size, "what was not taken lies in the pool alone"
        outlet.close()
        async with asyncio.timeout(5):
            with pytest.raises(StreamLost):
                await carrying


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


async def test_payload_that_does_not_fit_its_message_ends_the_stream() -> None:
    for sent, error in (
        (payload(b"x" * BLOCK_BYTES), MalformedMessage),  # shorter than was announced
        (struct.pack("<I", (1 << 32) - 1), MalformedMessage),  # as long as can be said: nothing is allocated for it
        (2 * (struct.pack("<I", 2) + b"hi"), MalformedMessage),  # messages where payload was announced
    ):
        async with a_source_of_ours(pool(filled=False)) as (inlet, far):
            far.sendall(sent)
            with pytest.raises(error):
                await inlet.arrived(ready_of(0, 1, 2))
    async with a_source_of_ours(pool(filled=False)) as (inlet, far):
        far.sendall(payload(b"unannounced"))
        with pytest.raises(MalformedMessage, match="nothing announced"):
            await inlet.line.read()


async def test_messages_are_numbered_and_what_is_staged_is_bounded_and_used_again() -> None:
    target = pool(filled=False)
    async with a_source_of_ours(target) as (inlet, far):
        far.sendall(payload(b"a" * 4 * BLOCK_BYTES) + payload(b"b" * 4 * BLOCK_BYTES))
        first, second = ready_of(0, 1, 2, 3, 4), ready_of(1, 5, 6, 7, 8)
        await inlet.arrived(first)
        await inlet.arrived(second)
        await inlet.arrived(ready_of(0, 1, 2, 3, 4))  # a message that came twice: its payload came once
        with pytest.raises(ContractBroken, match="missing"):
            await inlet.arrived(ready_of(3, 1))
        with pytest.raises(ContractBroken, match="to be staged"):
            await inlet.arrived(ready_of(2, 1))
        inlet.done(second)
        inlet.done(second)
    async with a_source_of_ours(target) as (inlet, far):
        for number in range(50):
            far.sendall(payload(bytes([number]) * 8 * BLOCK_BYTES))
            ready = ready_of(number, *range(8))
            await inlet.arrived(ready)
            await inlet.place(ready, [(0, 0)])
            assert target.read(0) == bytes([number]) * BLOCK_BYTES
            inlet.done(ready)
            with pytest.raises(TransferFailed, match="nothing came"):
                await inlet.place(ready, [(0, 0)])


async def test_large_and_small_messages_that_take_turns_never_meet_the_bound() -> None:
    """Within half of the bound at a time; room that small ones had is not grown for large ones, one by one."""
    async with a_source_of_ours(pool(filled=False)) as (inlet, far):
        number = 0
        for _ in range(3):
            for sizes in ((1, 1, 1, 1), (4,)):
                messages = []
                for size in sizes:
                    far.sendall(payload(bytes(size * BLOCK_BYTES)))
                    messages.append(ready_of(number, *range(size)))
                    await inlet.arrived(messages[-1])
                    number += 1
                for ready in messages:
                    inlet.done(ready)


async def test_a_late_block_is_received_and_never_written() -> None:
    """Its claim is gone when it comes: the bytes are let go, and what follows on the socket is read right."""
    async with make_rig("tcp") as rig:
        stale, sink = rig.sink(is_bound=False), rig.sink()
        rig.receiver.register(1, 1, stale)
        await rig.source.send("D", 1, 1, [(index, index) for index in range(4)])
        await rig.at_taker.until(lambda: len(stale.asked) == 4)
        rig.receiver.unregister(1, 1)
        await rig.source.send("D", 1, 1, [(index, index) for index in range(4, 8)])
        rig.receiver.register(2, 1, sink)
        await rig.source.send("D", 2, 1, [(index, index) for index in range(20, 30)])
        await rig.at_taker.until(lambda: len(sink.placed) == 10)
        assert rig.matches(list(range(20, 30)))
        assert all(rig.target.read(index) == bytes(BLOCK_BYTES) for index in range(8))
        assert rig.receiver.counters.dropped == 8


@pytest.mark.parametrize("how", ["refused", "taken"])
async def test_where_the_port_cannot_be_dialled_or_had_the_pair_falls_back(how: str) -> None:
    recorder, source = Recorder(), pool(filled=True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        wrong = SideDoor(dialled="127.0.0.2") if how == "refused" else SideDoor(port=taken.getsockname()[1])
        sender = StreamSender(pod_id="P", secret=b"cluster secret", memory=source, carriers=(tcp.carrier(wrong), GRPC))
        async with serving(sender) as address:
            carriers: tuple[Carrier, ...] = (tcp.carrier(SideDoor()), GRPC)
            async with taking(int(address.rpartition(":")[2]), carriers, recorder) as (receiver, target):
                assert (receiver.transport, receiver.is_fallback) == ("grpc", True)
                sink = RecordingSink(recorder)
                receiver.register(1, 1, sink)
                sender.send("D", 1, 1, [(3, 3)])
                await recorder.until(lambda: sink.placed == [3])
                assert target.read(3) == source.read(3)


@pytest.mark.parametrize("how", ["ended", "reset"])
async def test_the_loss_of_the_socket_is_the_loss_of_the_stream_and_the_next_one_is_tcp_again(how: str) -> None:
    recorder, source = Recorder(), pool(filled=True)
    sender = StreamSender(
        pod_id="P", secret=b"cluster secret", memory=source, carriers=(tcp.carrier(SideDoor()), GRPC),
        on_lost=recorder.on_lost,
    )  # fmt: skip
    carriers = (tcp.carrier(SideDoor()), GRPC)
    async with (
        serving(sender) as address,
        taking(int(address.rpartition(":")[2]), carriers, recorder) as (receiver, _),
    ):
        assert (receiver.transport, receiver.is_fallback) == ("tcp", False)
        receiver.register(1, 1, RecordingSink(recorder))
        outlet = sender._streams["D"]._outlet
        assert isinstance(outlet, TcpOutlet)
        if how == "reset":
            assert outlet._socket_line._socket is not None
            # To connect to nowhere is how a socket is reset at once, while others use it.
            assert ctypes.CDLL(None).connect(outlet._socket_line._socket.fileno(), bytes(16), 16) == 0
        else:
            outlet._socket_line.close()
        await recorder.until(lambda: {peer for peer, _ in recorder.lost} == {"P", "D"})
        async with asyncio.timeout(20):
            while not (receiver.is_connected and sender.is_connected("D")):
                await receiver.connected(10)
                await asyncio.sleep(0)
        assert (receiver.transport, receiver.is_fallback) == ("tcp", False)


async def test_opening_that_is_cancelled_or_closed_leaves_no_socket() -> None:
    source, target = pool(filled=True), pool(filled=False)

    async def a_round(steps: int, *, closed: bool) -> None:
        outlet, inlet = outlet_of(source), TcpInlet(target)
        opening = asyncio.create_task(inlet.open(await outlet.open(b"")))
        for _ in range(steps):
            await asyncio.sleep(0.0005)
        if closed:
            outlet.close()
            inlet.close()
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        outlet.close()
        inlet.close()
        await asyncio.sleep(0.02)

    await a_round(0, closed=False)
    gc.collect()  # other tests' pools
    before = open_files()
    for steps in range(8):
        await a_round(steps, closed=bool(steps % 2))
    # What was cancelled closes its sockets in turns of the loop, be they late.
    assert await comes_true(lambda: open_files() - before == set(), within_s=20.0, every_s=0.01), open_files() - before


def test_the_messages_are_those_of_every_stream() -> None:
    """A number is told in the tag of READY, which all carriers have: 32 bits."""
    outlet = TcpOutlet(pool(filled=False), SideDoor())
    outlet._numbers._next = (1 << 32) - 1
    batch = Batch(KEY, 0, (1,))
    tag = outlet.tag(batch)
    message = wire.encode_ready(KEY, batch.indices, BLOCK_BYTES, batch.block_ids, (1,), tag)
    assert wire.decode_ready(message, BLOCK_BYTES).tag == tag == (1 << 32) - 1
    assert outlet.tag(batch) == 0

"""What is particular to shared memory: who gets a pool's descriptor, and what it is good for."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import mmap
import os
import socket
import struct
import time
from pathlib import Path

import pytest
from open_files import open_files
from patience import comes_true
from transport_rigs import BLOCK_BYTES, NUM_BLOCKS, pool

from pagewire.core.errors import ContractBroken, TransferFailed
from pagewire.core.token_door import CONNECT_S, TOKEN_BYTES
from pagewire.kvtransfer.memory import PoolMemory
from pagewire.kvtransfer.transport import ShipmentKey
from pagewire.kvtransfer.transports import shm
from pagewire.kvtransfer.transports.descriptor_post import fetch_descriptor
from pagewire.kvtransfer.transports.host_socket import ABANDONED_S, host_token
from pagewire.kvtransfer.transports.line import SocketLine
from pagewire.kvtransfer.transports.shm import ShmInlet, ShmOutlet
from pagewire.kvtransfer.wire import Ready

KEY = ShipmentKey(1, 1)


async def a_descriptor(card: bytes, token: bytes) -> int:
    """Fetch the pool's descriptor as an inlet does."""
    line = SocketLine()
    try:
        return await fetch_descriptor(card[shm._CARD.size :], token, line)
    finally:
        line.close()


async def test_whoever_gets_the_number_of_a_closed_socket_is_woken() -> None:
    """A taker's line may be opened in the very turn of the loop in which a post closes."""
    outlet, line = ShmOutlet("", pool(filled=True), "D"), SocketLine()
    await outlet.open(b"")
    assert outlet._post is not None
    listening = outlet._post._door._listening
    assert listening is not None
    await asyncio.sleep(0)  # it accepts now
    freed = listening.fileno()
    outlet.close()
    near, far = socket.socketpair()
    assert freed in (near.fileno(), far.fileno()), "the kernel gives the lowest number that is free"
    if freed == far.fileno():
        near, far = far, near
    near.setblocking(False)
    line.attach(near)
    asyncio.get_running_loop().call_later(0.01, far.sendall, struct.pack("<I", 2) + b"hi")
    async with asyncio.timeout(20):
        assert await line.read() == b"hi"  # asked for in this turn still: a task of its own would begin in the next
    line.close()
    far.close()


@pytest.mark.parametrize("where", ["abstract", "directory"])
async def test_a_taker_maps_the_pool_and_copies_out_of_it(where: str, tmp_path: Path) -> None:
    source, target = pool(filled=True), pool(filled=False)
    outlet = ShmOutlet("" if where == "abstract" else str(tmp_path), source, "D")
    inlet = ShmInlet(target, "P")
    await inlet.open(await outlet.open(inlet.card))
    assert os.listdir(tmp_path) == [], "the socket's file is gone as soon as it was used"
    await inlet.place(Ready(KEY, 0, (), block_ids=(5, 7)), [(1, 3)])
    assert target.read(3) == source.read(7)
    for block_ids in ((NUM_BLOCKS,), (2**64 - 1,)):
        with pytest.raises(ContractBroken):
            await inlet.place(Ready(KEY, 0, (), block_ids=block_ids), [(0, 3)])
    for end in (inlet, outlet):
        end.close()
        end.close()


async def test_pages_that_the_source_does_not_have_are_not_made_for_it() -> None:
    """They would count as ours, and there may be as many as it says."""
    num_bytes = NUM_BLOCKS << 20
    fd = os.memfd_create("pagewire-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, num_bytes)
    source = PoolMemory(mmap.mmap(fd, num_bytes), block_bytes=1 << 20, num_blocks=NUM_BLOCKS, fd=fd)
    source.seal()
    outlet = ShmOutlet("", source, "D")
    inlet = ShmInlet(PoolMemory(memoryview(bytearray(1 << 20)), block_bytes=1 << 20, num_blocks=1), "P")
    await inlet.open(await outlet.open(inlet.card))
    for _ in range(100):
        await asyncio.sleep(0)
    assert os.fstat(fd).st_blocks == 0
    for end in (inlet, outlet, source):
        end.close()
    os.close(fd)


async def test_what_a_killed_pod_left_in_the_directory_is_removed_by_the_next(tmp_path: Path) -> None:
    """It may outlive all pods, as a volume does."""
    now_s, gone, live, strange = time.time(), tmp_path / "pagewire-gone", tmp_path / "pagewire-live", tmp_path / "other"
    for path in (gone, live, strange):
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
    (tmp_path / "pagewire-file").touch()
    for path in (gone, strange, tmp_path / "pagewire-file"):
        os.utime(path, (now_s - 2 * ABANDONED_S, now_s - 2 * ABANDONED_S))
    outlet = ShmOutlet(str(tmp_path), pool(filled=True), "D")
    await outlet.open(b"")
    assert not gone.exists()
    outlet.close()
    assert sorted(os.listdir(tmp_path)) == ["other", "pagewire-file", "pagewire-live"]


async def test_the_descriptor_is_good_for_reading_alone() -> None:
    outlet = ShmOutlet("", pool(filled=True), "D")
    card = await outlet.open(b"")
    fd = await a_descriptor(card, card[:TOKEN_BYTES])
    outlet.close()
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)  # the kernel opens a memfd anew for whoever asks ...
    for mine in (fd, again):
        with pytest.raises(OSError, match=r"Operation not permitted|Permission denied"):
            mmap.mmap(mine, BLOCK_BYTES, mmap.MAP_SHARED, mmap.PROT_WRITE)  # ... and the seal holds all the same
        with pytest.raises(OSError, match=r"Operation not permitted|Bad file descriptor"):
            os.write(mine, b"x")
        with pytest.raises(OSError, match=r"Operation not permitted|Invalid argument"):
            os.ftruncate(mine, 0)
        os.close(mine)


async def test_a_wrong_token_gets_nothing_and_spoils_nothing() -> None:
    source = pool(filled=True)
    outlet, inlet = ShmOutlet("", source, "D"), ShmInlet(pool(filled=False), "P")
    card = await outlet.open(b"")
    with pytest.raises(OSError, match=r"no descriptor|reset"):
        await a_descriptor(card, bytes(TOKEN_BYTES))
    await inlet.open(card)
    late = ShmInlet(pool(filled=False), "P")
    with pytest.raises(TransferFailed, match="cannot be mapped"):
        await late.open(card)  # the token is good once
    outlet.close()
    inlet.close()


async def test_who_connects_and_says_nothing_holds_up_nobody() -> None:
    outlet, inlet = ShmOutlet("", pool(filled=True), "D"), ShmInlet(pool(filled=False), "P")
    card = await outlet.open(b"")
    with contextlib.ExitStack() as silent:
        for _ in range(3):
            silent.enter_context(socket.socket(socket.AF_UNIX)).connect(card[shm._CARD.size :])
        async with asyncio.timeout(CONNECT_S / 2):  # far less than one of them may take
            await inlet.open(card)
    outlet.close()
    inlet.close()


async def test_a_taker_that_is_cancelled_keeps_no_descriptor() -> None:
    """Cancelled at each step of the exchange in turn: what came is given back."""
    source, target = pool(filled=True), pool(filled=False)
    await a_round(source, target, 0)
    gc.collect()  # other tests' pools
    before = open_files()
    for steps in range(12):
        await a_round(source, target, steps)
    # What was cancelled closes its sockets in turns of the loop, be they late.
    assert await comes_true(lambda: open_files() - before == set(), within_s=20.0, every_s=0.01), open_files() - before


async def a_round(source: PoolMemory, target: PoolMemory, steps: int) -> None:
    outlet, inlet = ShmOutlet("", source, "D"), ShmInlet(target, "P")
    opening = asyncio.create_task(inlet.open(await outlet.open(b"")))
    for _ in range(steps):
        await asyncio.sleep(0)
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    outlet.close()
    inlet.close()
    await asyncio.sleep(0.01)


async def test_a_card_that_lies_is_refused() -> None:
    inlet = ShmInlet(pool(filled=False), "P")
    for card in (b"", bytes(10), shm._CARD.pack(bytes(32), 1)):
        with pytest.raises(TransferFailed):
            await inlet.open(card)
    outlet = ShmOutlet("", pool(filled=True), "D")
    card = await outlet.open(b"")
    larger = shm._CARD.pack(card[:TOKEN_BYTES], NUM_BLOCKS + 1) + card[shm._CARD.size :]
    with pytest.raises(TransferFailed, match="not what its card says"):
        await inlet.open(larger)
    for end in (inlet, outlet):
        end.close()


async def test_a_pool_that_could_shrink_is_not_mapped() -> None:
    fd = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, BLOCK_BYTES)
    memory = PoolMemory.map(fd, block_bytes=BLOCK_BYTES, num_blocks=1)
    with pytest.raises(TransferFailed, match="not sealed"):
        ShmOutlet("", memory, "D")
    os.close(fd)


def test_a_pool_without_a_descriptor_is_not_offered() -> None:
    memory = PoolMemory(memoryview(bytearray(BLOCK_BYTES)), block_bytes=BLOCK_BYTES, num_blocks=1)
    with pytest.raises(TransferFailed, match="no descriptor"):
        ShmOutlet("", memory, "D")


def test_a_host_is_known_by_where_its_sockets_are(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    assert host_token() == host_token() != ""
    assert len({host_token(), host_token(str(tmp_path)), host_token(str(other))}) == 3
    assert host_token(str(tmp_path / "missing")) == ""

"""The bulk stream's bytes: what goes in comes out, what is not ours is refused, what is spoilt is noticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.core.errors import PeerMismatch, Unauthenticated
from pagewire.kvtransfer import wire
from pagewire.kvtransfer.greeting import Greeter
from pagewire.kvtransfer.memory import PoolMemory
from pagewire.kvtransfer.transport import Flow, ShipmentKey
from pagewire.kvtransfer.wire import Credit, Hello, MalformedMessage

SIZE = 24
KEY = ShipmentKey(2**64 - 1, 2**32 - 1)
KEYS = st.builds(ShipmentKey, st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
BLOCKS = st.lists(st.binary(min_size=SIZE, max_size=SIZE), min_size=1, max_size=5)


def encoded(key: ShipmentKey = KEY, first: int = 7, blocks: tuple[bytes, ...] = (b"a" * SIZE, b"b" * SIZE)) -> bytes:
    return wire.encode_blocks(key, first, [memoryview(block) for block in blocks])


@given(key=KEYS, first=st.integers(0, 2**32 - 6), blocks=BLOCKS)
def test_blocks_come_out_as_they_went_in(key: ShipmentKey, first: int, blocks: list[bytes]) -> None:
    message = wire.decode_blocks(encoded(key, first, tuple(blocks)), SIZE)
    assert (message.key, message.first_block) == (key, first)
    assert [bytes(payload) for payload in message.payloads] == blocks
    assert all(message.is_intact(position) for position in range(len(blocks)))


def test_the_header_is_frozen() -> None:
    """Bytes of version 1, once and for all: another layout needs another version."""
    message = wire.encode_blocks(ShipmentKey(1, 2), 3, [memoryview(bytes(range(4)))])
    start, key, rest = "50574b5601040000", "010000000000000002000000", "0300000001000000040000000400000000000000"
    assert message[:40].hex() == start + key + rest
    assert message[40:48].hex() == "12a95dc32114f10e"
    assert message[48:] == bytes(range(4))


@given(at=st.integers(0, len(encoded()) - 1), bit=st.integers(0, 7))
def test_no_flipped_bit_passes_as_the_same_blocks(at: int, bit: int) -> None:
    """Except the two reserved bytes of the header, which say nothing."""
    spoilt = bytearray(encoded())
    spoilt[at] ^= 1 << bit
    try:
        message = wire.decode_blocks(bytes(spoilt), SIZE)
    except MalformedMessage:
        return
    intact = [message.is_intact(position) for position in range(len(message.payloads))]
    assert not all(intact) or at in (6, 7)


@given(message=st.binary(max_size=200))
def test_anything_is_either_understood_or_malformed(message: bytes) -> None:
    for decode in (wire.decode_hello, wire.decode_credit, wire.decode_challenge, wire.decode_welcome):
        for data in (message, encoded()[:6] + message):
            with pytest.raises(MalformedMessage):
                decode(data)
    with pytest.raises(MalformedMessage):
        wire.decode_blocks(message, SIZE)


@pytest.mark.parametrize("cut", range(0, len(encoded()), 9))
def test_a_truncated_or_longer_message_is_malformed(cut: int) -> None:
    for message in (encoded()[:cut], encoded() + bytes(1)):
        with pytest.raises(MalformedMessage):
            wire.decode_blocks(message, SIZE)


def test_another_block_size_is_malformed() -> None:
    with pytest.raises(MalformedMessage, match="ours: 25"):
        wire.decode_blocks(encoded(), SIZE + 1)


def test_a_count_of_billions_allocates_nothing() -> None:
    message = bytearray(encoded())
    message[24:28] = b"\xff" * 4
    with pytest.raises(MalformedMessage, match="4294967295 blocks"):
        wire.decode_blocks(bytes(message), SIZE)


@given(key=KEYS, num_bytes=st.integers(0, 2**64 - 1))
def test_credit(key: ShipmentKey, num_bytes: int) -> None:
    assert wire.decode_credit(wire.encode_credit(Credit(key, num_bytes))) == Credit(key, num_bytes)


@given(peer_id=st.text(min_size=1, max_size=60), window=st.integers(0, 2**64 - 1))
def test_hello(peer_id: str, window: int) -> None:
    hello = Hello(peer_id=peer_id, block_bytes=5, window_bytes=window, nonce=b"n" * 16, proof=b"p" * 32)
    assert wire.decode_hello(wire.encode_hello(hello)) == hello


@pytest.mark.parametrize("peer_id", ["", "x" * 257])
def test_a_peer_id_is_bounded(peer_id: str) -> None:
    with pytest.raises(ValueError, match="peer id"):
        wire.encode_hello(Hello(peer_id=peer_id, block_bytes=1, window_bytes=1, nonce=b"", proof=b""))


# ------------------------------------------------------------------------------------------------------ greeting


def greeter(peer_id: str, *, secret: bytes = b"s", block_bytes: int = 8) -> Greeter:
    return Greeter(peer_id=peer_id, block_bytes=block_bytes, secret=secret)


def test_two_pods_prove_themselves_to_each_other() -> None:
    hello = greeter("D").hello("P", b"challenge", b"nonce", 100)
    proof = greeter("P").answer(hello, b"challenge")
    greeter("D").check("P", hello, b"challenge", proof)
    for sender_id, challenge, said in (
        ("P2", b"challenge", proof),
        ("P", b"other", proof),
        ("P", b"challenge", hello.proof),
    ):
        with pytest.raises(Unauthenticated):
            greeter("D").check(sender_id, hello, challenge, said)


def test_a_hello_is_good_for_one_pod_one_challenge_one_window() -> None:
    hello = greeter("D").hello("P", b"challenge", b"nonce", 100)
    edited = Hello(peer_id="D", block_bytes=8, window_bytes=10**9, nonce=b"nonce", proof=hello.proof)
    renamed = Hello(peer_id="E", block_bytes=8, window_bytes=100, nonce=b"nonce", proof=hello.proof)
    for pod, said, challenge in (
        (greeter("P2"), hello, b"challenge"),
        (greeter("P"), hello, b"another"),
        (greeter("P"), edited, b"challenge"),
        (greeter("P"), renamed, b"challenge"),
        (greeter("P", secret=b"t"), hello, b"challenge"),
    ):
        with pytest.raises(Unauthenticated):
            pod.answer(said, challenge)
    with pytest.raises(PeerMismatch, match="block bytes 9 / 8"):
        greeter("P", block_bytes=9).answer(hello, b"challenge")


def test_an_empty_secret_is_refused_and_a_secret_is_not_shown() -> None:
    with pytest.raises(ValueError, match="empty"):
        greeter("D", secret=b"")
    assert "hidden" not in repr(greeter("D", secret=b"hidden"))


# -------------------------------------------------------------------------------------------------- memory, flow


def test_a_pool_reads_and_writes_whole_blocks_inside_itself() -> None:
    data = bytearray(10)
    memory = PoolMemory(memoryview(data), block_bytes=3, num_blocks=3)
    memory.write(2, memoryview(b"xyz"))
    assert data == bytes(6) + b"xyz" + bytes(1)
    assert bytes(memory.read(2)) == b"xyz"
    assert memory.read(0).readonly
    for block_id in (-1, 3, 2**40):
        with pytest.raises(IndexError):
            memory.read(block_id)
        with pytest.raises(IndexError):
            memory.write(block_id, memoryview(b"xyz"))
    with pytest.raises(ValueError, match="4 bytes for a block of 3"):
        memory.write(0, memoryview(b"wxyz"))
    with pytest.raises(ValueError, match="4 blocks of 3 bytes in 10"):
        PoolMemory(memoryview(data), block_bytes=3, num_blocks=4)


@pytest.mark.parametrize(("window", "message"), [(0, 0), (10, 6), (10, 0), (-4, -8)])
def test_a_flow_holds_two_messages(window: int, message: int) -> None:
    with pytest.raises(ValueError, match="a window of"):
        Flow(window_bytes=window, message_bytes=message)

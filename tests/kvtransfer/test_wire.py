"""The bulk stream's bytes: what goes in comes out, what is not ours is refused, what is spoilt is noticed."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.core.errors import PeerMismatch, Unauthenticated
from pagewire.kvtransfer import wire
from pagewire.kvtransfer.greeting import Greeter
from pagewire.kvtransfer.memory import PoolMemory
from pagewire.kvtransfer.transport import Flow, ShipmentKey
from pagewire.kvtransfer.wire import Credit, Hello, MalformedMessage, Welcome

SIZE = 24
KEY = ShipmentKey(2**64 - 1, 2**32 - 1)
KEYS = st.builds(ShipmentKey, st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
BLOCKS = st.lists(st.binary(min_size=SIZE, max_size=SIZE), min_size=1, max_size=5)


def indices(first: int, num: int, stride: int = 1) -> range:
    return range(first, first + num * stride, stride)


def encoded(
    key: ShipmentKey = KEY, first: int = 7, blocks: tuple[bytes, ...] = (b"a" * SIZE, b"b" * SIZE), stride: int = 1
) -> bytes:
    return wire.encode_blocks(key, indices(first, len(blocks), stride), [memoryview(block) for block in blocks])


@given(key=KEYS, first=st.integers(0, 2**32 - 6000), blocks=BLOCKS, stride=st.integers(1, 1000))
def test_blocks_come_out_as_they_went_in(key: ShipmentKey, first: int, blocks: list[bytes], stride: int) -> None:
    message = wire.decode_ready(encoded(key, first, tuple(blocks), stride), SIZE)
    assert (message.key, message.indices) == (key, indices(first, len(blocks), stride))
    assert [bytes(payload) for payload in message.payloads] == blocks
    assert all(message.is_intact(position, data) for position, data in enumerate(message.payloads))


@given(
    key=KEYS,
    first=st.integers(0, 2**32 - 6),
    stride=st.integers(1, 2**32 - 1),
    block_ids=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=5),
    has_sums=st.booleans(),
    tag=st.integers(0, 2**32 - 1),
)
def test_ready_comes_out_as_it_went_in(
    key: ShipmentKey, first: int, stride: int, block_ids: list[int], has_sums: bool, tag: int
) -> None:
    sums = [block_id ^ 5 for block_id in block_ids] if has_sums else []
    encoded_ready = wire.encode_ready(key, indices(first, len(block_ids), stride), SIZE, block_ids, sums, tag)
    message = wire.decode_ready(encoded_ready, SIZE)
    assert message == wire.Ready(key, first, tuple(sums), tuple(block_ids), tag=tag, stride=stride)
    for spoilt in (encoded_ready[:-1], encoded_ready + b"x"):
        with pytest.raises(MalformedMessage):
            wire.decode_ready(spoilt, SIZE)


def test_the_header_is_frozen() -> None:
    """Bytes of version 3, once and for all: another layout needs another version."""
    message = wire.encode_blocks(ShipmentKey(1, 2), range(3, 4), [memoryview(bytes(range(4)))])
    start, key, rest = (
        "50574b5603040000",
        "010000000000000002000000",
        "03000000010000000100000000000000040000000400000000000000",
    )
    assert message[:48].hex() == start + key + rest
    assert message[48:56].hex() == "12a95dc32114f10e"
    assert message[56:] == bytes(range(4))


@given(at=st.integers(0, len(encoded()) - 1), bit=st.integers(0, 7))
def test_no_flipped_bit_passes_as_the_same_blocks(at: int, bit: int) -> None:
    """Except the tag, which says nothing where the payload is in band."""
    spoilt = bytearray(encoded())
    spoilt[at] ^= 1 << bit
    try:
        message = wire.decode_ready(bytes(spoilt), SIZE)
    except MalformedMessage:
        return
    intact = [message.is_intact(position, data) for position, data in enumerate(message.payloads)]
    assert not all(intact) or 32 <= at < 36


@given(message=st.binary(max_size=200))
def test_anything_is_either_understood_or_malformed(message: bytes) -> None:
    for decode in (wire.decode_hello, wire.decode_credit, wire.decode_challenge, wire.decode_welcome):
        for data in (message, encoded()[:6] + message):
            with pytest.raises(MalformedMessage):
                decode(data)
    with pytest.raises(MalformedMessage):
        wire.decode_ready(message, SIZE)


@pytest.mark.parametrize("cut", range(0, len(encoded()), 9))
def test_a_truncated_or_longer_message_is_malformed(cut: int) -> None:
    for message in (encoded()[:cut], encoded() + bytes(1)):
        with pytest.raises(MalformedMessage):
            wire.decode_ready(message, SIZE)


def test_another_block_size_is_malformed() -> None:
    with pytest.raises(MalformedMessage, match="ours: 25"):
        wire.decode_ready(encoded(), SIZE + 1)


def test_a_count_of_billions_allocates_nothing() -> None:
    message = bytearray(encoded())
    message[28:32] = b"\xff" * 4
    with pytest.raises(MalformedMessage, match="4294967295 blocks"):
        wire.decode_ready(bytes(message), SIZE)


def test_indices_that_do_not_move_are_malformed() -> None:
    message = bytearray(encoded())
    message[24:28] = bytes(4)
    with pytest.raises(MalformedMessage, match="one index"):
        wire.decode_ready(bytes(message), SIZE)


@given(key=KEYS, num_bytes=st.integers(0, 2**64 - 1))
def test_credit(key: ShipmentKey, num_bytes: int) -> None:
    assert wire.decode_credit(wire.encode_credit(Credit(key, num_bytes))) == Credit(key, num_bytes)


def a_hello(peer_id: str, window: int = 1, carrier: str = "grpc", card: bytes = b"") -> Hello:
    return Hello(
        peer_id=peer_id, block_bytes=5, window_bytes=window, carrier=carrier, order="layer_outer", card=card,
        nonce=b"n" * 16, proof=b"p" * 32,
    )  # fmt: skip


@given(
    peer_id=st.text(min_size=1, max_size=60),
    window=st.integers(0, 2**64 - 1),
    carrier=st.text(max_size=60),
    card=st.binary(max_size=300),
)
def test_greetings(peer_id: str, window: int, carrier: str, card: bytes) -> None:
    hello = a_hello(peer_id, window, carrier, card)
    assert wire.decode_hello(wire.encode_hello(hello)) == hello
    welcome = Welcome(order=carrier, num_groups=1 + window % 2**31, card=card, proof=b"p" * 32)
    assert wire.decode_welcome(wire.encode_welcome(welcome)) == welcome
    for data in (wire.encode_hello(hello), wire.encode_welcome(welcome)):
        decode = wire.decode_hello if data[5] == wire.Kind.HELLO else wire.decode_welcome
        for spoilt in (data[:-1], data + b"x"):
            with pytest.raises(MalformedMessage):
                decode(spoilt)


def test_names_and_cards_are_bounded() -> None:
    with pytest.raises(ValueError, match="empty peer id"):
        wire.encode_hello(a_hello(""))
    for hello in (a_hello("x" * 257), a_hello("x", carrier="y" * 257), a_hello("x", card=bytes(16385))):
        with pytest.raises(ValueError, match="are the most"):
            wire.encode_hello(hello)


# ------------------------------------------------------------------------------------------------------ greeting


def greeter(peer_id: str, *, secret: bytes = b"s", block_bytes: int = 8, order: str = "layer_outer") -> Greeter:
    return Greeter(peer_id=peer_id, block_bytes=block_bytes, order=order, secret=secret)


def test_two_pods_prove_themselves_to_each_other() -> None:
    hello = greeter("D").hello("P", b"challenge", b"nonce", 100, carrier="shm", card=b"card")
    greeter("P").admit(hello, b"challenge")
    welcome = greeter("P").welcome(hello, b"challenge", b"answer")
    greeter("D").check("P", hello, b"challenge", welcome)
    for source_id, challenge, said in (
        ("P2", b"challenge", welcome),
        ("P", b"other", welcome),
        ("P", b"challenge", dataclasses.replace(welcome, proof=hello.proof)),
        ("P", b"challenge", dataclasses.replace(welcome, card=b"another")),
        ("P", b"challenge", dataclasses.replace(welcome, order="another")),
    ):
        with pytest.raises(Unauthenticated):
            greeter("D").check(source_id, hello, challenge, said)


def test_a_hello_is_good_for_one_pod_one_challenge_and_as_it_was_said() -> None:
    hello = greeter("D").hello("P", b"challenge", b"nonce", 100, carrier="grpc", card=b"card")
    edits: list[dict[str, Any]] = [
        {"window_bytes": 10**9}, {"peer_id": "E"}, {"carrier": "shm"}, {"card": b"c"}, {"order": "head_outer"},
    ]  # fmt: skip
    edited = [(greeter("P"), dataclasses.replace(hello, **edit), b"challenge") for edit in edits]
    for pod, said, challenge in (
        *edited,
        (greeter("P2"), hello, b"challenge"),
        (greeter("P"), hello, b"another"),
        (greeter("P", secret=b"t"), hello, b"challenge"),
    ):
        with pytest.raises(Unauthenticated):
            pod.admit(said, challenge)
    with pytest.raises(PeerMismatch, match="block bytes 9 / 8"):
        greeter("P", block_bytes=9).admit(hello, b"challenge")


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

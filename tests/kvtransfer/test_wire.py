"""The bytes of messages of blocks: what goes in comes out, what is not ours is refused, what is spoilt is noticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.kvtransfer import wire
from pagewire.kvtransfer.transport import ShipmentKey
from pagewire.kvtransfer.wire import Credit, MalformedMessage, Ready, Sums

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


def sums_of(message: Ready) -> tuple[int, ...]:
    """Those of the payload that came."""
    return tuple(message.checksum(position, data) for position, data in enumerate(message.payloads))


@given(key=KEYS, first=st.integers(0, 2**32 - 6000), blocks=BLOCKS, stride=st.integers(1, 1000))
def test_blocks_come_out_as_they_went_in(key: ShipmentKey, first: int, blocks: list[bytes], stride: int) -> None:
    message = wire.decode_ready(encoded(key, first, tuple(blocks), stride), SIZE)
    assert (message.key, message.indices) == (key, indices(first, len(blocks), stride))
    assert [bytes(payload) for payload in message.payloads] == blocks
    assert sums_of(message) == message.checksums


@given(
    key=KEYS,
    first=st.integers(0, 2**32 - 6),
    stride=st.integers(1, 2**32 - 1),
    block_ids=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=5),
    summed=st.sampled_from(["here", "following", "never"]),
    tag=st.integers(0, 2**32 - 1),
)
def test_ready_comes_out_as_it_went_in(
    key: ShipmentKey, first: int, stride: int, block_ids: list[int], summed: str, tag: int
) -> None:
    sums, follow = tuple(block_id ^ 5 for block_id in block_ids if summed == "here"), summed == "following"
    encoded_ready = wire.encode_ready(
        key, indices(first, len(block_ids), stride), SIZE, block_ids, sums, tag, sums_follow=follow
    )
    message = wire.decode_ready(encoded_ready, SIZE)
    assert message == Ready(key, first, sums, tuple(block_ids), tag=tag, stride=stride, sums_follow=follow)
    assert message.is_summed == (summed != "never")
    for spoilt in (encoded_ready[:-1], encoded_ready + b"x"):
        with pytest.raises(MalformedMessage):
            wire.decode_ready(spoilt, SIZE)


@given(
    key=KEYS,
    first=st.integers(0, 2**31),
    stride=st.integers(1, 2**32 - 1),
    checksums=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=5).map(tuple),
    cut=st.integers(0, 80),
)
def test_checksums_that_follow_come_out_as_they_went_in(
    key: ShipmentKey, first: int, stride: int, checksums: tuple[int, ...], cut: int
) -> None:
    sums = Sums(key, indices(first, len(checksums), stride), checksums)
    message = wire.encode_sums(sums, SIZE)
    assert wire.is_sums(message)
    assert wire.decode_sums(message, SIZE) == sums
    for spoilt in (message[:-1], message[:cut][: len(message) - 1], message + b"x", encoded()):
        with pytest.raises(MalformedMessage):
            wire.decode_sums(spoilt, SIZE)
    with pytest.raises(MalformedMessage):
        wire.decode_sums(message, SIZE + 1)
    with pytest.raises(MalformedMessage):
        wire.decode_ready(message, SIZE)


def test_the_header_is_frozen() -> None:
    """Bytes of version 4, once and for all: another layout needs another version."""
    message = wire.encode_blocks(ShipmentKey(1, 2), range(3, 4), [memoryview(bytes(range(4)))])
    start, key, rest = (
        "50574b5604040000",
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
    assert sums_of(message) != message.checksums or 32 <= at < 36


@given(message=st.binary(max_size=200))
def test_anything_is_either_understood_or_malformed(message: bytes) -> None:
    for data in (message, encoded()[:6] + message):
        with pytest.raises(MalformedMessage):
            wire.decode_credit(data)
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

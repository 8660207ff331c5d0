"""The bytes of messages of blocks: what goes in comes out, what is not ours is refused, what is spoilt is noticed."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.kvtransfer import wire
from pagewire.kvtransfer.transport import ShipmentKey
from pagewire.kvtransfer.wire import Credit, Kind, MalformedMessage, Ready, Sums

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


def test_the_other_messages_are_frozen() -> None:
    key, name = ShipmentKey(1, 2), "010000000000000002000000"
    credit = wire.encode_credit(Credit(key, 5))
    assert credit.hex() == "50574b5604050000" + name + "00000000" + "0500000000000000"
    indices = "03000000" + "02000000" + "02000000"  # first, stride, count
    sums = wire.encode_sums(Sums(key, range(3, 7, 2), (8, 9)), SIZE)
    end = "18000000" + "0000000000000000" + "0800000000000000" + "0900000000000000"  # block bytes, rest, checksums
    assert sums.hex() == "50574b5604070000" + name + indices + "00000000" + end
    end = "18000000" + "1000000000000000"
    for flags, kwargs in ((1, {}), (2, {"sums_follow": True})):
        ready = wire.encode_ready(key, range(3, 7, 2), SIZE, (8, 9), (), 7, **kwargs)
        rest = "07000000" + end + "0800000000000000" + "0900000000000000"
        assert ready.hex() == f"50574b5604060{flags}00" + name + indices + rest


def test_what_is_not_said_is_no_tag_a_stride_of_one_and_no_checksums() -> None:
    message = Ready(KEY, 3, (), (5, 6))
    assert (message.tag, message.stride, message.sums_follow, message.is_summed) == (0, 1, False, False)
    assert (len(message), message.indices) == (2, range(3, 5))
    assert wire.decode_ready(wire.encode_ready(KEY, range(3, 5), SIZE, (5, 6), ()), SIZE) == message


def test_each_block_has_one_index() -> None:
    for indices in (range(1), range(3)):
        with pytest.raises(ValueError, match=r"shorter|longer"):
            wire.encode_blocks(KEY, indices, [memoryview(bytes(SIZE))] * 2)


def test_checksums_start_from_the_name_of_their_block() -> None:
    data = memoryview(b"a" * SIZE)
    sums = {wire.checksum(ShipmentKey(*name[:2]), name[2], data) for name in ((1, 2, 3), (2, 1, 3), (1, 3, 2))}
    assert len(sums) == 3
    message = Ready(ShipmentKey(1, 2), 1, (), stride=2, payloads=(data, data))
    assert message.checksum(1, data) == wire.checksum(ShipmentKey(1, 2), 3, data)


def headed(kind: int, flags: int, stride: int, count: int, rest: int, behind: int) -> bytes:
    """A message of blocks by the documented layout, with as many bytes behind the header as it is given."""
    head = struct.pack("<4sBBHQIIIIIIQ", b"PWKV", wire.WIRE_VERSION, kind, flags, 1, 2, 3, stride, count, 0, SIZE, rest)
    return head + bytes(behind)


@pytest.mark.parametrize(
    ("flags", "stride", "count", "rest", "behind"),
    [(1, 1, 2, 0, 16), (2, 1, 2, 0, 16), (0, 1, 0, 0, 0), (0, 0, 2, 0, 16), (0, 1, 2, 8, 16), (0, 1, 2, 0, 24)],
)
def test_checksums_that_contradict_themselves_are_malformed(
    flags: int, stride: int, count: int, rest: int, behind: int
) -> None:
    wire.decode_sums(headed(Kind.SUMS, 0, 1, 2, 0, 16), SIZE)
    with pytest.raises(MalformedMessage):
        wire.decode_sums(headed(Kind.SUMS, 0, 1, 2, 0, 16), SIZE, max_blocks=1)
    with pytest.raises(MalformedMessage):
        wire.decode_sums(headed(Kind.SUMS, flags, stride, count, rest, behind), SIZE)


@pytest.mark.parametrize(
    ("kind", "flags", "stride", "count", "rest", "behind"),
    [
        (Kind.READY, 1, 1, 0, 0, 0),  # of nothing
        (Kind.READY, 1, 1, 2, 24, 24),  # three ids for two blocks
        (Kind.READY, 3, 1, 2, 16, 16),  # a flag that there is not
        (Kind.READY, 1, 0, 2, 16, 16),  # one index for all
        (Kind.READY, 0, 1, 2, 16, 16),  # without the checksums it has
        (Kind.BLOCKS, 0, 1, 0, 0, 0),
        (Kind.BLOCKS, 0, 1, 2, 3 * SIZE, 16 + 3 * SIZE),
        (Kind.BLOCKS, 1, 1, 2, 2 * SIZE, 2 * SIZE),  # a CPU has made it and could have summed
        (Kind.BLOCKS, 0, 1, 2, 2 * SIZE, 2 * SIZE),
        (Kind.SUMS, 1, 1, 2, 16, 16),
    ],
)
def test_blocks_that_contradict_themselves_are_malformed(
    kind: Kind, flags: int, stride: int, count: int, rest: int, behind: int
) -> None:
    wire.decode_ready(headed(Kind.READY, 1, 1, 2, 16, 16), SIZE)
    wire.decode_ready(headed(Kind.BLOCKS, 0, 1, 2, 2 * SIZE, 16 + 2 * SIZE), SIZE)
    with pytest.raises(MalformedMessage):
        wire.decode_ready(headed(Kind.READY, 1, 1, 2, 16, 16), SIZE, max_blocks=1)
    with pytest.raises(MalformedMessage):
        wire.decode_ready(headed(kind, flags, stride, count, rest, behind), SIZE)


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
    message = wire.encode_credit(Credit(key, num_bytes))
    assert wire.decode_credit(message) == Credit(key, num_bytes)
    for spoilt in (message[:-1], message + b"x"):
        with pytest.raises(MalformedMessage):
            wire.decode_credit(spoilt)

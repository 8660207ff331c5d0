"""The bulk stream's messages of blocks, byte by byte. No protobuf: a payload in band is copied once, into the message.

    down  BLOCKS     header | count x xxh3_64 | count x block bytes        (payload in band)
    down  READY      header | count x xxh3_64 | count x block id           (payload fetched or sent by the carrier)
    down  SUMS       header | count x xxh3_64                              (those of a READY that went ahead without)
    up    CREDIT     key, bytes

Every message, those of `greeting_wire` too, starts with magic, version and kind. A "block" is what the stream carries:
a block of the pool, or one of the parts of one. Indices run from first_block on, stride apart. A block's checksum is
seeded with its shipment, generation and index, so that intact bytes under a wrong name do not pass either; flags in the
header say that there are none, or that they follow. Knows nothing of streams. Invariant: sizes are checked against the
message's true length before anything is taken from it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import xxhash

from pagewire.core.errors import ContractBroken
from pagewire.kvtransfer.transport import ShipmentKey

MAGIC = b"PWKV"
WIRE_VERSION = 4
MAX_MESSAGE_BYTES = 64 << 20
MAX_BLOCKS = (1 << 32) - 1  # that a message can name

START = struct.Struct("<4sBB")
_BLOCKS = struct.Struct(
    "<4sBBHQIIIIIIQ"
)  # start, flags, shipment id, generation, first block, stride, count, tag, block bytes, bytes behind the checksums
_CREDIT = struct.Struct("<4sBBHQIIQ")  # start, 0, shipment id, generation, 0, bytes
_NAME = struct.Struct("<QII")
_NO_CHECKSUMS = 1
_SUMS_FOLLOW = 2


class Kind(IntEnum):
    """The fifth byte."""

    CHALLENGE = 1
    HELLO = 2
    WELCOME = 3
    BLOCKS = 4
    CREDIT = 5
    READY = 6
    SUMS = 7


class MalformedMessage(ContractBroken):
    """A peer sent what no peer of ours sends; its stream ends."""


class Credit(NamedTuple):
    """`num_bytes` of this key's payload were disposed of."""

    key: ShipmentKey
    num_bytes: int


class Sums(NamedTuple):
    """The checksums of a READY whose blocks have these indices."""

    key: ShipmentKey
    indices: range
    checksums: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ready:
    """A message of blocks, for the indices from `first_block` on, `stride` apart. The payload is in it, or is not.

    Then `block_ids` says where it lies in the source's pool. `checksums` is empty where nobody computed any, and where
    they follow (`sums_follow`). `tag` is a number from the source's carrier to the taker's.
    """

    key: ShipmentKey
    first_block: int
    checksums: tuple[int, ...]
    block_ids: tuple[int, ...] = ()
    payloads: tuple[memoryview, ...] = ()
    tag: int = 0
    stride: int = 1
    sums_follow: bool = False

    @property
    def is_summed(self) -> bool:
        """True where the source tells checksums, now or later."""
        return self.sums_follow or bool(self.checksums)

    @property
    def indices(self) -> range:
        """Those of the blocks, in their order."""
        return range(self.first_block, self.first_block + len(self) * self.stride, self.stride)

    def __len__(self) -> int:
        return len(self.block_ids) or len(self.payloads)

    def index(self, position: int) -> int:
        """Return that of the block at `position`."""
        return self.first_block + position * self.stride

    def indices_at(self, positions: Sequence[int]) -> Sequence[int]:
        """Return those of the blocks at these positions."""
        if isinstance(positions, range):
            return self.indices[positions.start : positions.stop : positions.step]
        first, stride = self.first_block, self.stride
        return [first + position * stride for position in positions]

    def checksum(self, position: int, data: memoryview) -> int:
        """Return that of `data` as the block at `position`."""
        return xxhash.xxh3_64_intdigest(data, self.seed(position))

    def seed(self, position: int) -> int:
        """Return that of the checksum of the block at `position`."""
        return checksum_seed(self.key, self.index(position))


def checksum(key: ShipmentKey, index: int, data: memoryview) -> int:
    """Return xxh3_64 of a block, seeded with its full name."""
    return xxhash.xxh3_64_intdigest(data, checksum_seed(key, index))


def checksum_seed(key: ShipmentKey, index: int) -> int:
    """Return what a block's checksum starts from: its full name, so that one block does not pass for another."""
    return xxhash.xxh3_64_intdigest(_NAME.pack(key.shipment_id, key.generation, index))


def checksums(key: ShipmentKey, indices: range, blocks: Sequence[memoryview]) -> tuple[int, ...]:
    """Return the checksums of blocks with these indices in the chain."""
    return tuple([checksum(key, index, data) for index, data in zip(indices, blocks, strict=True)])


def encode_blocks(key: ShipmentKey, indices: range, payloads: Sequence[memoryview]) -> bytes:
    """Return a message with its payload, whose one copy this is. Every block has the same length."""
    size = payloads[0].nbytes
    sums = checksums(key, indices, payloads)
    return b"".join((_head(Kind.BLOCKS, key, indices, size, size * len(payloads), sums), *payloads))


def encode_ready(
    key: ShipmentKey,
    indices: range,
    block_bytes: int,
    block_ids: Sequence[int],
    sums: Sequence[int],
    tag: int = 0,
    *,
    sums_follow: bool = False,
) -> bytes:
    """Return a message without its payload; `sums`, the checksums, may be empty, `tag` has 32 bits."""
    head = _head(Kind.READY, key, indices, block_bytes, 8 * len(block_ids), sums, tag, sums_follow=sums_follow)
    return head + struct.pack(f"<{len(block_ids)}Q", *block_ids)


def encode_sums(sums: Sums, block_bytes: int) -> bytes:
    """Return a message."""
    return _head(Kind.SUMS, sums.key, sums.indices, block_bytes, 0, sums.checksums)


def is_sums(message: bytes) -> bool:
    """Return whether a message of blocks is one of their checksums alone."""
    return message[5:6] == bytes([Kind.SUMS])


def decode_sums(message: bytes, block_bytes: int, max_blocks: int = MAX_BLOCKS) -> Sums:
    """Return what is in a SUMS message; raises MalformedMessage, also on more than `max_blocks`."""
    check_start(message, Kind.SUMS, _BLOCKS.size)
    _, _, _, flags, shipment_id, generation, first, stride, count, _, size, rest = _BLOCKS.unpack_from(message)
    is_whole = len(message) == _BLOCKS.size + 8 * count and 0 < count <= max_blocks
    if flags or not stride or rest or size != block_bytes or not is_whole:
        raise MalformedMessage(f"checksums of {count} blocks of {size} bytes (ours: {block_bytes}) in {len(message)}")
    indices = range(first, first + count * stride, stride)
    checksums = struct.unpack_from(f"<{count}Q", message, _BLOCKS.size)
    return Sums(ShipmentKey(shipment_id, generation), indices, checksums)


def decode_ready(message: bytes, block_bytes: int, max_blocks: int = MAX_BLOCKS) -> Ready:
    """Return the parts of a BLOCKS or READY message, in place.

    Raises MalformedMessage, also on more than `max_blocks`.
    """
    kind = Kind.READY if message[5:6] == bytes([Kind.READY]) else Kind.BLOCKS
    check_start(message, kind, _BLOCKS.size)
    _, _, _, flags, shipment_id, generation, first, stride, count, tag, size, rest = _BLOCKS.unpack_from(message)
    start = _BLOCKS.size + (0 if flags else 8 * count)
    each = 8 if kind is Kind.READY else size
    is_whole = len(message) == start + rest and rest == count * each and 0 < count <= max_blocks
    is_known = flags <= (_SUMS_FOLLOW if kind is Kind.READY else 0)
    if size != block_bytes or not is_whole or not is_known:
        raise MalformedMessage(
            f"{count} blocks of {size} bytes (ours: {block_bytes}), {rest} in all, in {len(message)} bytes"
        )
    if not stride:
        raise MalformedMessage("blocks that all have one index")
    key = ShipmentKey(shipment_id, generation)
    sums = struct.unpack_from(f"<{(start - _BLOCKS.size) // 8}Q", message, _BLOCKS.size)
    if kind is Kind.READY:
        block_ids = struct.unpack_from(f"<{count}Q", message, start)
        follow = flags == _SUMS_FOLLOW
        return Ready(key, first, sums, block_ids=block_ids, tag=tag, stride=stride, sums_follow=follow)
    view = memoryview(message)
    payloads = tuple(view[at : at + size] for at in range(start, len(message), size))
    return Ready(key, first, sums, payloads=payloads, stride=stride)


def _head(
    kind: Kind,
    key: ShipmentKey,
    indices: range,
    size: int,
    rest: int,
    sums: Sequence[int],
    tag: int = 0,
    *,
    sums_follow: bool = False,
) -> bytes:
    flags = _SUMS_FOLLOW if sums_follow else 0 if sums else _NO_CHECKSUMS
    first, stride, count = indices.start, indices.step, len(indices)
    header = _BLOCKS.pack(MAGIC, WIRE_VERSION, kind, flags, *key, first, stride, count, tag, size, rest)
    return header + struct.pack(f"<{len(sums)}Q", *sums)


def encode_credit(credit: Credit) -> bytes:
    """Return a message."""
    return _CREDIT.pack(MAGIC, WIRE_VERSION, Kind.CREDIT, 0, *credit.key, 0, credit.num_bytes)


def decode_credit(message: bytes) -> Credit:
    """Return what came back; raises MalformedMessage."""
    check_start(message, Kind.CREDIT, _CREDIT.size, exact=True)
    _, _, _, _, shipment_id, generation, _, num_bytes = _CREDIT.unpack(message)
    return Credit(ShipmentKey(shipment_id, generation), num_bytes)


def check_start(message: bytes, expected: Kind, num_bytes: int, *, exact: bool = False) -> None:
    """Check start and length; raises MalformedMessage."""
    if len(message) < num_bytes or (exact and len(message) != num_bytes):
        raise MalformedMessage(f"{expected.name} of {len(message)} bytes")
    magic, version, kind = START.unpack_from(message)
    if (magic, version, kind) != (MAGIC, WIRE_VERSION, expected):
        raise MalformedMessage(f"not {expected.name} of version {WIRE_VERSION}: {magic!r} {version} {kind}")

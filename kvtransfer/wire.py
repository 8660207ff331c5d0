"""The bulk stream's messages, byte by byte. No protobuf: a payload in band is copied once, into the message.

    down  CHALLENGE  nonce
    up    HELLO      block bytes, window | peer id, carrier, order of a block's axes, card, nonce, proof  (first one up)
    down  WELCOME    parts of a block | order, card, proof
    down  BLOCKS     header | count x xxh3_64 | count x block bytes        (payload in band)
    down  READY      header | count x xxh3_64 | count x block id           (payload fetched or sent by the carrier)
    up    CREDIT     key, bytes

Every message starts with magic, version and kind; texts are behind their length. A "block" is what the stream carries:
a block of the pool, or one of the parts of one. Indices run from first_block on, stride apart. A
block's checksum is seeded with its shipment, generation and index, so that intact bytes under a wrong name do not pass
either; a flag in the header says that there are none. Knows nothing of streams. Invariant: sizes are checked against
the message's true length before anything is taken from it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import xxhash

from pagewire.core.errors import TransferFailed
from pagewire.kvtransfer.transport import ShipmentKey

MAGIC = b"PWKV"
WIRE_VERSION = 3
NONCE_BYTES = 16
PROOF_BYTES = 32
MAX_ID_BYTES = 256
MAX_CARD_BYTES = 16384
MAX_MESSAGE_BYTES = 64 << 20

_START = struct.Struct("<4sBB")
_BLOCKS = struct.Struct(
    "<4sBBHQIIIIIIQ"
)  # start, flags, shipment id, generation, first block, stride, count, tag, block bytes, bytes behind the checksums
_CREDIT = struct.Struct("<4sBBHQIIQ")  # start, 0, shipment id, generation, 0, bytes
_HELLO = struct.Struct("<4sBBQQ")  # start, block bytes, window bytes
_WELCOME = struct.Struct("<4sBBI")  # start, parts of a block
_LENGTH = struct.Struct("<H")
_NAME = struct.Struct("<QII")
_NO_CHECKSUMS = 1


class Kind(IntEnum):
    """The fifth byte."""

    CHALLENGE = 1
    HELLO = 2
    WELCOME = 3
    BLOCKS = 4
    CREDIT = 5
    READY = 6


class MalformedMessage(TransferFailed):
    """A peer sent what no peer of ours sends; its stream ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Who dials and what it takes: `window_bytes` in flight, blocks of `block_bytes`, by `carrier`."""

    peer_id: str
    block_bytes: int
    window_bytes: int
    carrier: str
    order: str
    card: bytes
    nonce: bytes
    proof: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """What the source is, in answer; a block travels on this stream in `num_groups` parts."""

    order: str
    num_groups: int = 1
    card: bytes
    proof: bytes = b""


class Credit(NamedTuple):
    """`num_bytes` of this key's payload were disposed of."""

    key: ShipmentKey
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Ready:
    """A message of blocks, for the indices from `first_block` on, `stride` apart. The payload is in it, or is not.

    Then `block_ids` says where it lies in the source's pool. `checksums` is empty where nobody computed any. `tag` is a
    number from the source's carrier to the taker's.
    """

    key: ShipmentKey
    first_block: int
    checksums: tuple[int, ...]
    block_ids: tuple[int, ...] = ()
    payloads: tuple[memoryview, ...] = ()
    tag: int = 0
    stride: int = 1

    @property
    def indices(self) -> range:
        """Those of the blocks, in their order."""
        return range(self.first_block, self.first_block + len(self) * self.stride, self.stride)

    def __len__(self) -> int:
        return len(self.block_ids) or len(self.payloads)

    def index(self, position: int) -> int:
        """Return that of the block at `position`."""
        return self.first_block + position * self.stride

    def is_intact(self, position: int, data: memoryview) -> bool:
        """Return whether `data` is the block at `position`, by its checksum."""
        return xxhash.xxh3_64_intdigest(data, self.seed(position)) == self.checksums[position]

    def seed(self, position: int) -> int:
        """Return that of the checksum of the block at `position`."""
        return checksum_seed(self.key, self.index(position))


def checksum(key: ShipmentKey, index: int, data: memoryview) -> int:
    """Return xxh3_64 of a block, seeded with its full name."""
    return xxhash.xxh3_64_intdigest(data, checksum_seed(key, index))


def checksum_seed(key: ShipmentKey, index: int) -> int:
    """Return what a block's checksum starts from: its full name, so that one block does not pass for another."""
    return xxhash.xxh3_64_intdigest(_NAME.pack(key.shipment_id, key.generation, index))


def checksums(key: ShipmentKey, indices: range, blocks: Sequence[memoryview]) -> list[int]:
    """Return the checksums of blocks with these indices in the chain."""
    return [checksum(key, index, data) for index, data in zip(indices, blocks, strict=True)]


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
) -> bytes:
    """Return a message without its payload; `sums`, the checksums, may be empty, `tag` has 32 bits."""
    head = _head(Kind.READY, key, indices, block_bytes, 8 * len(block_ids), sums, tag)
    return head + struct.pack(f"<{len(block_ids)}Q", *block_ids)


def decode_ready(message: bytes, block_bytes: int) -> Ready:
    """Return the parts of a BLOCKS or READY message, in place; raises MalformedMessage."""
    kind = Kind.READY if message[5:6] == bytes([Kind.READY]) else Kind.BLOCKS
    kind_of(message, kind, _BLOCKS.size)
    _, _, _, flags, shipment_id, generation, first, stride, count, tag, size, rest = _BLOCKS.unpack_from(message)
    start = _BLOCKS.size + (0 if flags & _NO_CHECKSUMS else 8 * count)
    each = 8 if kind is Kind.READY else size
    if not count or size != block_bytes or rest != count * each or len(message) != start + rest or flags & ~1:
        raise MalformedMessage(
            f"{count} blocks of {size} bytes (ours: {block_bytes}), {rest} in all, in {len(message)} bytes"
        )
    if not stride:
        raise MalformedMessage("blocks that all have one index")
    key = ShipmentKey(shipment_id, generation)
    sums = struct.unpack_from(f"<{(start - _BLOCKS.size) // 8}Q", message, _BLOCKS.size)
    if kind is Kind.READY:
        block_ids = struct.unpack_from(f"<{count}Q", message, start)
        return Ready(key, first, sums, block_ids=block_ids, tag=tag, stride=stride)
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
) -> bytes:
    flags = 0 if sums else _NO_CHECKSUMS
    first, stride, count = indices.start, indices.step, len(indices)
    header = _BLOCKS.pack(MAGIC, WIRE_VERSION, kind, flags, *key, first, stride, count, tag, size, rest)
    return header + struct.pack(f"<{len(sums)}Q", *sums)


def encode_credit(credit: Credit) -> bytes:
    """Return a message."""
    return _CREDIT.pack(MAGIC, WIRE_VERSION, Kind.CREDIT, 0, *credit.key, 0, credit.num_bytes)


def decode_credit(message: bytes) -> Credit:
    """Return what came back; raises MalformedMessage."""
    kind_of(message, Kind.CREDIT, _CREDIT.size, exact=True)
    _, _, _, _, shipment_id, generation, _, num_bytes = _CREDIT.unpack(message)
    return Credit(ShipmentKey(shipment_id, generation), num_bytes)


def encode_challenge(nonce: bytes) -> bytes:
    """Return a message."""
    return _START.pack(MAGIC, WIRE_VERSION, Kind.CHALLENGE) + nonce


def decode_challenge(message: bytes) -> bytes:
    """Return the nonce; raises MalformedMessage."""
    kind_of(message, Kind.CHALLENGE, _START.size + NONCE_BYTES, exact=True)
    return message[_START.size :]


def encode_welcome(welcome: Welcome) -> bytes:
    """Return a message; without a proof, what is to be proven. Raises ValueError on a part that is too long."""
    return _WELCOME.pack(MAGIC, WIRE_VERSION, Kind.WELCOME, welcome.num_groups) + _join(
        (welcome.order.encode(), MAX_ID_BYTES), (welcome.card, MAX_CARD_BYTES), (welcome.proof, PROOF_BYTES)
    )


def decode_welcome(message: bytes) -> Welcome:
    """Return the answer; raises MalformedMessage."""
    kind_of(message, Kind.WELCOME, _WELCOME.size)
    _, _, _, num_groups = _WELCOME.unpack_from(message)
    order, card, proof = _split(message, _WELCOME.size, (MAX_ID_BYTES, MAX_CARD_BYTES, PROOF_BYTES))
    if len(proof) != PROOF_BYTES or not num_groups:
        raise MalformedMessage(f"a proof of {len(proof)} bytes, a block in {num_groups} parts")
    return Welcome(order=_text(order), num_groups=num_groups, card=card, proof=proof)


def encode_hello(hello: Hello) -> bytes:
    """Return a message; without a proof, what is to be proven. Raises ValueError on a part that is too long."""
    if not hello.peer_id:
        raise ValueError("an empty peer id")
    head = _HELLO.pack(MAGIC, WIRE_VERSION, Kind.HELLO, hello.block_bytes, hello.window_bytes)
    texts = [(text.encode(), MAX_ID_BYTES) for text in (hello.peer_id, hello.carrier, hello.order)]
    return head + _join(*texts, (hello.card, MAX_CARD_BYTES), (hello.nonce, NONCE_BYTES), (hello.proof, PROOF_BYTES))


def decode_hello(message: bytes) -> Hello:
    """Return who dials; raises MalformedMessage."""
    kind_of(message, Kind.HELLO, _HELLO.size)
    _, _, _, block_bytes, window_bytes = _HELLO.unpack_from(message)
    limits = (MAX_ID_BYTES, MAX_ID_BYTES, MAX_ID_BYTES, MAX_CARD_BYTES, NONCE_BYTES, PROOF_BYTES)
    peer_id, carrier, order, card, nonce, proof = _split(message, _HELLO.size, limits)
    if not peer_id or len(nonce) != NONCE_BYTES or len(proof) != PROOF_BYTES:
        raise MalformedMessage(f"a hello of {len(message)} bytes")
    return Hello(
        peer_id=_text(peer_id),
        block_bytes=block_bytes,
        window_bytes=window_bytes,
        carrier=_text(carrier),
        order=_text(order),
        card=card,
        nonce=nonce,
        proof=proof,
    )


def kind_of(message: bytes, expected: Kind, num_bytes: int, *, exact: bool = False) -> None:
    """Check start and length; raises MalformedMessage."""
    if len(message) < num_bytes or (exact and len(message) != num_bytes):
        raise MalformedMessage(f"{expected.name} of {len(message)} bytes")
    magic, version, kind = _START.unpack_from(message)
    if (magic, version, kind) != (MAGIC, WIRE_VERSION, expected):
        raise MalformedMessage(f"not {expected.name} of version {WIRE_VERSION}: {magic!r} {version} {kind}")


def _join(*parts: tuple[bytes, int]) -> bytes:
    for part, limit in parts:
        if len(part) > limit:
            raise ValueError(f"a part of {len(part)} bytes, where {limit} are the most")
    return b"".join(_LENGTH.pack(len(part)) + part for part, _ in parts)


def _split(message: bytes, at: int, limits: tuple[int, ...]) -> list[bytes]:
    parts = []
    for limit in limits:
        start = at + _LENGTH.size
        if start > len(message):
            raise MalformedMessage(f"{len(message)} bytes are cut short")
        at = start + _LENGTH.unpack_from(message, start - _LENGTH.size)[0]
        if at > len(message) or at - start > limit:
            raise MalformedMessage(f"a part of {at - start} bytes in {len(message)}, where {limit} are the most")
        parts.append(message[start:at])
    if at != len(message):
        raise MalformedMessage(f"{len(message) - at} bytes too many")
    return parts


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise MalformedMessage("a name that is no text") from None

"""The bulk stream's messages, byte by byte. No protobuf: the payload is copied once, into the message.

    down  CHALLENGE  nonce
    up    HELLO      block_bytes, window, peer id, nonce, proof       (the first message up)
    down  WELCOME    proof
    down  BLOCKS     header | count x xxh3_64 | count x block_bytes   (indices run from first_block on)
    up    CREDIT     key, bytes

Every message starts with magic, version and kind. A block's checksum is seeded with its shipment, generation and
index, so that intact bytes under a wrong name do not pass either. Knows nothing of streams. Invariant: sizes are
checked against the message's true length before anything is taken from it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

import xxhash

from pagewire.core.errors import TransferFailed
from pagewire.kvtransfer.transport import ShipmentKey

MAGIC = b"PWKV"
WIRE_VERSION = 1
NONCE_BYTES = 16
PROOF_BYTES = 32
MAX_ID_BYTES = 256
MAX_MESSAGE_BYTES = 64 << 20

_START = struct.Struct("<4sBB")
_BLOCKS = struct.Struct(
    "<4sBBHQIIIIQ"
)  # start, 0, shipment id, generation, first block, count, block and payload bytes
_CREDIT = struct.Struct("<4sBBHQIIQ")  # start, 0, shipment id, generation, 0, bytes
_HELLO = struct.Struct("<4sBBHQQ")  # start, length of the peer id, block bytes, window bytes
_NAME = struct.Struct("<QII")


class Kind(IntEnum):
    """The fifth byte."""

    CHALLENGE = 1
    HELLO = 2
    WELCOME = 3
    BLOCKS = 4
    CREDIT = 5


class MalformedMessage(TransferFailed):
    """A peer sent what no peer of ours sends; its stream ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Who dials and what it takes: `window_bytes` in flight, blocks of `block_bytes`."""

    peer_id: str
    block_bytes: int
    window_bytes: int
    nonce: bytes
    proof: bytes


@dataclass(frozen=True, slots=True)
class Credit:
    """`num_bytes` of this key's payload were disposed of."""

    key: ShipmentKey
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Blocks:
    """A message of blocks; `checksums` and `payloads` belong to the indices from `first_block` on."""

    key: ShipmentKey
    first_block: int
    checksums: tuple[int, ...]
    payloads: tuple[memoryview, ...]

    def is_intact(self, position: int) -> bool:
        """Return whether the checksum of the block at `position` is right."""
        return checksum(self.key, self.first_block + position, self.payloads[position]) == self.checksums[position]


def checksum(key: ShipmentKey, index: int, data: memoryview) -> int:
    """Return xxh3_64 of a block, seeded with its full name."""
    seed = xxhash.xxh3_64_intdigest(_NAME.pack(key.shipment_id, key.generation, index))
    return int(xxhash.xxh3_64_intdigest(data, seed))


def encode_blocks(key: ShipmentKey, first_block: int, payloads: list[memoryview]) -> bytes:
    """Return a message; this is the one copy of the payload. Every payload has the same length."""
    size = payloads[0].nbytes
    sums = [checksum(key, index, data) for index, data in enumerate(payloads, first_block)]
    header = _BLOCKS.pack(
        MAGIC, WIRE_VERSION, Kind.BLOCKS, 0, *key, first_block, len(payloads), size, size * len(payloads)
    )
    return b"".join((header, struct.pack(f"<{len(sums)}Q", *sums), *payloads))


def decode_blocks(message: bytes, block_bytes: int) -> Blocks:
    """Return the message's parts, in place; raises MalformedMessage."""
    kind_of(message, Kind.BLOCKS, _BLOCKS.size)
    _, _, _, _, shipment_id, generation, first, count, size, payload_bytes = _BLOCKS.unpack_from(message)
    start = _BLOCKS.size + 8 * count
    if not count or size != block_bytes or payload_bytes != count * size or len(message) != start + payload_bytes:
        raise MalformedMessage(
            f"{count} blocks of {size} bytes (ours: {block_bytes}), {payload_bytes} in all, in {len(message)} bytes"
        )
    view = memoryview(message)
    return Blocks(
        ShipmentKey(shipment_id, generation),
        first,
        struct.unpack_from(f"<{count}Q", message, _BLOCKS.size),
        tuple(view[at : at + size] for at in range(start, len(message), size)),
    )


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


def encode_welcome(proof: bytes) -> bytes:
    """Return a message."""
    return _START.pack(MAGIC, WIRE_VERSION, Kind.WELCOME) + proof


def decode_welcome(message: bytes) -> bytes:
    """Return the proof; raises MalformedMessage."""
    kind_of(message, Kind.WELCOME, _START.size + PROOF_BYTES, exact=True)
    return message[_START.size :]


def encode_hello(hello: Hello) -> bytes:
    """Return a message; raises ValueError on a peer id that is too long."""
    peer_id = hello.peer_id.encode()
    if not 0 < len(peer_id) <= MAX_ID_BYTES:
        raise ValueError(f"a peer id has 1..{MAX_ID_BYTES} bytes, not {len(peer_id)}")
    head = _HELLO.pack(MAGIC, WIRE_VERSION, Kind.HELLO, len(peer_id), hello.block_bytes, hello.window_bytes)
    return head + peer_id + hello.nonce + hello.proof


def decode_hello(message: bytes) -> Hello:
    """Return who dials; raises MalformedMessage."""
    kind_of(message, Kind.HELLO, _HELLO.size)
    _, _, _, id_bytes, block_bytes, window_bytes = _HELLO.unpack_from(message)
    end = _HELLO.size + id_bytes
    if not 0 < id_bytes <= MAX_ID_BYTES or len(message) != end + NONCE_BYTES + PROOF_BYTES:
        raise MalformedMessage(f"a hello of {len(message)} bytes")
    try:
        peer_id = message[_HELLO.size : end].decode()
    except UnicodeDecodeError:
        raise MalformedMessage("a peer id that is no text") from None
    return Hello(
        peer_id=peer_id,
        block_bytes=block_bytes,
        window_bytes=window_bytes,
        nonce=message[end : end + NONCE_BYTES],
        proof=message[end + NONCE_BYTES :],
    )


def kind_of(message: bytes, expected: Kind, num_bytes: int, *, exact: bool = False) -> None:
    """Check start and length; raises MalformedMessage."""
    if len(message) < num_bytes or (exact and len(message) != num_bytes):
        raise MalformedMessage(f"{expected.name} of {len(message)} bytes")
    magic, version, kind = _START.unpack_from(message)
    if (magic, version, kind) != (MAGIC, WIRE_VERSION, expected):
        raise MalformedMessage(f"not {expected.name} of version {WIRE_VERSION}: {magic!r} {version} {kind}")

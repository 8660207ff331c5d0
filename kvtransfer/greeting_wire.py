"""The greeting's messages on a bulk stream, byte by byte; those of blocks are `wire`'s.

    down  CHALLENGE  nonce
    up    HELLO      block bytes, window | peer id, carrier, order of a block's axes, card, nonce, proof  (first one up)
    down  WELCOME    parts of a block | order, card, proof

Texts are behind their length. Versions are not negotiated: another one is a PeerMismatch. Knows nothing of streams, nor
who may say what: that is `Greeter`'s. Invariant: sizes are checked against the message's true length, and their bounds,
before anything is taken from it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from pagewire.core.errors import PeerMismatch
from pagewire.kvtransfer.wire import MAGIC, START, WIRE_VERSION, Kind, MalformedMessage, check_start

NONCE_BYTES = 16
PROOF_BYTES = 32
MAX_ID_BYTES = 256
MAX_CARD_BYTES = 16384

_HELLO = struct.Struct("<4sBBQQ")  # start, block bytes, window bytes
_WELCOME = struct.Struct("<4sBBI")  # start, parts of a block
_LENGTH = struct.Struct("<H")


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
    num_groups: int
    card: bytes
    proof: bytes = b""


def encode_challenge(nonce: bytes) -> bytes:
    """Return a message."""
    return START.pack(MAGIC, WIRE_VERSION, Kind.CHALLENGE) + nonce


def decode_challenge(message: bytes) -> bytes:
    """Return the nonce; raises MalformedMessage, PeerMismatch."""
    _check_start(message, Kind.CHALLENGE, START.size + NONCE_BYTES, exact=True)
    return message[START.size :]


def encode_welcome(welcome: Welcome) -> bytes:
    """Return a message; without a proof, what is to be proven. Raises ValueError on a part that is too long."""
    return _WELCOME.pack(MAGIC, WIRE_VERSION, Kind.WELCOME, welcome.num_groups) + _join(
        (welcome.order.encode(), MAX_ID_BYTES), (welcome.card, MAX_CARD_BYTES), (welcome.proof, PROOF_BYTES)
    )


def decode_welcome(message: bytes) -> Welcome:
    """Return the answer; raises MalformedMessage, PeerMismatch."""
    _check_start(message, Kind.WELCOME, _WELCOME.size)
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
    """Return who dials; raises MalformedMessage, PeerMismatch."""
    _check_start(message, Kind.HELLO, _HELLO.size)
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


def _check_start(message: bytes, expected: Kind, num_bytes: int, *, exact: bool = False) -> None:
    """Do as `check_start`; raises PeerMismatch on a message of another version."""
    if len(message) >= START.size:
        magic, version, _ = START.unpack_from(message)
        if magic == MAGIC and version != WIRE_VERSION:
            raise PeerMismatch(f"streams for blocks: version {WIRE_VERSION} here, {version} there")
    check_start(message, expected, num_bytes, exact=exact)


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

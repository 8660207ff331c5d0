"""Frames between a front and its engine: a little-endian u32 length, then `protos/engine.proto`'s Frame.

Knows bytes and messages; reads no socket.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from pagewire.core.engine_messages import EngineMessage, StepDone
from pagewire.core.errors import InvalidRequest, PeerMismatch
from pagewire.engine import step_parts
from pagewire.serving.codec import ENGINE_CODEC

HEADER_BYTES = 4
# A prompt of 4 million tokens fits; anything longer is a broken length, not a message.
MAX_FRAME_BYTES = 1 << 24
_HEADER = struct.Struct("<I")


def pack(message: EngineMessage) -> bytes:
    """Return the bytes of a frame, its length in front; raises InvalidRequest beyond the bound.

    Whoever reads a longer one ends, so that it is refused before anybody does.
    """
    return _frame(message, ENGINE_CODEC.encode(message))


def pack_parts(message: EngineMessage) -> Iterator[bytes]:
    """Yield the frames that tell a message: several of a step that is too long for one.

    What a step tells has no bound of its own: it may score any number of prompts, or tell of a whole cache.
    """
    body = ENGINE_CODEC.encode(message)
    halves = None
    if len(body) > MAX_FRAME_BYTES and isinstance(message, StepDone):
        halves = step_parts.halves(message)
    if halves is None:
        yield _frame(message, body)
        return
    for half in halves:
        yield from pack_parts(half)


def body_length(header: bytes) -> int:
    """Return how many bytes follow a header; raises PeerMismatch beyond the bound."""
    (length,) = _HEADER.unpack(header)
    if length > MAX_FRAME_BYTES:
        raise PeerMismatch(f"a frame of {length} bytes; at most {MAX_FRAME_BYTES} are allowed")
    return int(length)


def unpack(body: bytes) -> EngineMessage:
    """Return the message in a frame's body; raises PeerMismatch when there is none."""
    return ENGINE_CODEC.decode(body)


def _frame(message: EngineMessage, body: bytes) -> bytes:
    if len(body) > MAX_FRAME_BYTES:
        raise InvalidRequest(f"a {type(message).__name__} of {len(body)} bytes; at most {MAX_FRAME_BYTES} are allowed")
    return _HEADER.pack(len(body)) + body

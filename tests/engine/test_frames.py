"""Frames between a front and its engine: a length in four bytes, the message behind it, and a bound that both keep."""

from __future__ import annotations

import pytest

from pagewire.core.engine_messages import Ping
from pagewire.core.errors import InvalidRequest, PeerMismatch
from pagewire.engine import frames


def sized(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", most)


def test_a_frame_is_its_length_in_little_endian_and_its_message() -> None:
    message = Ping(nonce=300)
    frame = frames.pack(message)
    header, body = frame[: frames.HEADER_BYTES], frame[frames.HEADER_BYTES :]
    assert header == bytes([len(body), 0, 0, 0])
    assert frames.body_length(header) == len(body)
    assert frames.unpack(body) == message
    assert frames.body_length(bytes([1, 2, 3, 0])) == 1 + (2 << 8) + (3 << 16)


def test_what_is_no_message_is_refused() -> None:
    with pytest.raises(PeerMismatch):
        frames.unpack(b"\xff")


def test_a_frame_has_16_mib_at_most() -> None:
    """The bound is a wire's: both sides have to keep to one."""
    assert frames.body_length((1 << 24).to_bytes(4, "little")) == 1 << 24
    with pytest.raises(PeerMismatch, match="16777217 bytes; at most 16777216"):
        frames.body_length(((1 << 24) + 1).to_bytes(4, "little"))


def test_what_is_longer_than_allowed_is_not_sent_either(monkeypatch: pytest.MonkeyPatch) -> None:
    message = Ping(nonce=300)
    size = len(frames.pack(message)) - frames.HEADER_BYTES
    sized(monkeypatch, size)
    assert frames.body_length(frames.pack(message)[: frames.HEADER_BYTES]) == size
    sized(monkeypatch, size - 1)
    with pytest.raises(InvalidRequest, match=f"a Ping of {size} bytes; at most {size - 1}"):
        frames.pack(message)

"""A gRPC call as bytes on a plain connection, from a client that keeps rules of its own. RFC 9113, RFC 7541."""

from __future__ import annotations

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS = 0, 1, 4
END_STREAM, END_HEADERS = 1, 4
INITIAL_WINDOW_SIZE = 4


def call(path: str, message: bytes, *, window: int = 65_535) -> bytes:
    """Return a connection's beginning with one call on it, whose answers may be `window` bytes before we say more."""
    fields = {
        ":method": "POST", ":scheme": "http", ":path": path, ":authority": "x", "content-type": "application/grpc",
        "te": "trailers",
    }  # fmt: skip
    block = b"".join(_literal(name.encode(), value.encode()) for name, value in fields.items())
    return (
        PREFACE
        + _frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, window))
        + _frame(HEADERS, END_HEADERS, 1, block)
        + _frame(DATA, END_STREAM, 1, struct.pack(">BI", 0, len(message)) + message)
    )


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _literal(name: bytes, value: bytes) -> bytes:
    """Return a header field that refers to no table, its texts shorter than 127 bytes."""
    assert max(len(name), len(value)) < 127
    return bytes((0, len(name))) + name + bytes((len(value),)) + value

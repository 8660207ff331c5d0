"""What both shells tell gRPC: the methods' names and the channel's options."""

from __future__ import annotations

GENERATE = "/pagewire.v1.Inference/Generate"
GET_MODEL_INFO = "/pagewire.v1.Inference/GetModelInfo"

MAX_MESSAGE_BYTES = 64 << 20

_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A router that vanished without closing its connection is noticed within half a minute.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # The SDK's own retries know what was streamed; gRPC's would multiply them.
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)


def options(connect_s: float) -> tuple[tuple[str, int], ...]:
    """Return the channel's options; an attempt to connect is given up after `connect_s` seconds."""
    # gRPC's name for that limit: one attempt lasts at least as long as the least pause between two.
    return (*_OPTIONS, ("grpc.min_reconnect_backoff_ms", max(1, round(connect_s * 1000))))


def target_of(url: str) -> str:
    """Return gRPC's name for "host:port", "grpc://host:port" or "unix:path"; raises ValueError on another scheme."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    if scheme != "grpc":
        raise ValueError(f"{url!r} is not a gRPC address such as 127.0.0.1:50050")
    return rest.rstrip("/")

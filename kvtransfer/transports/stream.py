"""What both ends of a bulk stream share: its gRPC name, its options, and how it breaks."""

from __future__ import annotations

import asyncio

import grpc

from pagewire.core.errors import PagewireError, PeerMismatch, StreamLost, TransferFailed, TransferTimeout
from pagewire.core.kv_layout import KVLayout
from pagewire.kvtransfer.wire import MAX_MESSAGE_BYTES, MalformedMessage

METHOD = "/pagewire.kv.v1.Blocks/Stream"
CHANNEL_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.http2.max_frame_size", (1 << 24) - 1),
    ("grpc.http2.lookahead_bytes", 64 << 20),
    ("grpc.http2.write_buffer_size", 64 << 20),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Pods of one host share nothing through gRPC's global subchannel pool: a dead peer's backoff would be inherited.
    ("grpc.use_local_subchannel_pool", 1),
]
BROKEN = (
    grpc.aio.AioRpcError, grpc.aio.UsageError, grpc.aio.InternalError, asyncio.InvalidStateError, TimeoutError,
    MalformedMessage,
)  # fmt: skip
MISMATCH = grpc.StatusCode.ABORTED  # of a call whose ends must not be paired
_MAX_HEADER_BYTES = 1024


def order_of(layout: KVLayout | None) -> str:
    """Return what a greeting says of the order of a block's axes; empty where nobody cares."""
    return layout.order.value if layout is not None else ""


def why(error: BaseException) -> str:
    """Describe how a stream broke."""
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return f"{type(error).__name__}: {error}"


def lost_by(error: BaseException) -> PagewireError:
    """Return what a stream broke by, as an error that names a cause."""
    if isinstance(error, PagewireError) and type(error) is not TransferFailed:
        return error
    if isinstance(error, grpc.aio.AioRpcError) and error.code() is MISMATCH:
        return PeerMismatch(error.details() or "the source says no more")
    if isinstance(error, TimeoutError):
        return TransferTimeout(str(error) or "a message did not come in time")
    return StreamLost(why(error))


def check_block_bytes(block_bytes: int) -> None:
    """Raise ValueError when a block does not fit in a message, as its payload."""
    if not 0 < block_bytes <= MAX_MESSAGE_BYTES - _MAX_HEADER_BYTES:
        raise ValueError(f"a block of {block_bytes} bytes does not fit in a message of {MAX_MESSAGE_BYTES}")

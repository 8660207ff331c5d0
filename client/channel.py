"""What both shells tell gRPC: where routers are, the channel's options, and the methods from the contract."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from pagewire.client.retry import Timeout
from pagewire.client.security import Tls
from pagewire.core.loopback import is_here
from pagewire.protos import inference_pb2

MAX_MESSAGE_BYTES = 64 << 20
MAX_PORT = 65535
SERVICE = inference_pb2.DESCRIPTOR.services_by_name["Inference"]

_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.http2.max_pings_without_data", 0),
    # The SDK's own retries know what was streamed; gRPC's would multiply them.
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)

# Behind a name or an IPv4 address, or one of IPv6 in brackets: in a bare one the last digits are no port.
_PORT = re.compile(r"(?:[^:\[]*|\[[^\]]*\]):([0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A router as gRPC names it, and whether its address asks for TLS."""

    name: str
    has_tls: bool


def target_of(url: str) -> Target:
    """Return where "host:port", "grpc://host:port", "grpcs://host:port" (TLS) or "unix:path" leads.

    Raises ValueError on another scheme, and a port that there is not.
    """
    scheme, separator, rest = url.partition("://")
    if separator and scheme not in ("grpc", "grpcs"):
        raise ValueError(f"{url!r} is not a gRPC address such as 127.0.0.1:50050")
    name = rest.rstrip("/") if separator else url
    port = _PORT.fullmatch(name)
    if port is not None and int(port[1]) > MAX_PORT:  # which gRPC dials without its upper bits, so another one
        raise ValueError(f"{url!r} has no port: {port[1]} is above {MAX_PORT}")
    return Target(name=name, has_tls=scheme == "grpcs")


def targets_of(urls: str | Sequence[str]) -> list[Target]:
    """Return where each of `urls` leads, one or several, separated by commas in one text. Raises ValueError."""
    each = [url.strip() for url in urls.split(",")] if isinstance(urls, str) else list(urls)
    if not each or not all(each):
        raise ValueError(f"no router in {urls!r}")
    return [target_of(url) for url in each]


def options(target: Target, timeout: Timeout, tls: Tls | None) -> list[tuple[str, Any]]:
    """Return the channel's options; an attempt to connect is given up after the timeout for it."""
    found: list[tuple[str, Any]] = [
        *_OPTIONS,
        # gRPC's name for that limit: one attempt lasts at least as long as the least pause between two.
        ("grpc.min_reconnect_backoff_ms", _ms(timeout.connect_s)),
        # A router that vanished without closing its connection is noticed, however long a prompt keeps the stream
        # silent.
        ("grpc.keepalive_time_ms", _ms(timeout.silence_s * 2 / 3)),
        ("grpc.keepalive_timeout_ms", _ms(timeout.silence_s / 3)),
        ("grpc.http2.ping_timeout_ms", _ms(timeout.silence_s / 3)),  # or it is a minute, whatever the line above says
    ]
    if is_here(target.name):  # a proxy that the environment names is for what is elsewhere
        found.append(("grpc.enable_http_proxy", 0))
    if tls is not None and tls.server_name:
        found.append(("grpc.ssl_target_name_override", tls.server_name))
    return found


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def callables(channel: Any) -> dict[str, Callable[..., Any]]:
    """Return the methods of the service on a channel, synchronous or not, by their names."""
    return {method.name: _callable(channel, method) for method in SERVICE.methods}


def _callable(channel: Any, method: MethodDescriptor) -> Callable[..., Any]:
    make = channel.unary_stream if method.server_streaming else channel.unary_unary
    made: Callable[..., Any] = make(
        f"/{SERVICE.full_name}/{method.name}",
        request_serializer=GetMessageClass(method.input_type).SerializeToString,
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )
    return made

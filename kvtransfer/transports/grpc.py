"""Blocks over gRPC: the decode pod dials one long-lived stream per prefill pod; blocks come down it, credit goes up.

The public names of the transport; the two ends live in `grpc_sender` and `grpc_receiver`.
"""

from __future__ import annotations

from pagewire.kvtransfer.transports.grpc_receiver import GrpcReceiver
from pagewire.kvtransfer.transports.grpc_sender import GrpcSender
from pagewire.kvtransfer.transports.grpc_stream import CHANNEL_OPTIONS

__all__ = ["CHANNEL_OPTIONS", "GrpcReceiver", "GrpcSender"]

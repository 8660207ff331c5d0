"""The SDK: `from pagewire.client import Client, AsyncClient`. Needs grpcio, grpcio-status and protobuf alone."""

from pagewire.client.aio import AsyncClient, AsyncStream
from pagewire.client.options import Options, Prompt
from pagewire.client.results import Chunk, Message, ModelInfo, Output, Result, TokenLogprob, TransferReport, Usage
from pagewire.client.retry import RetryPolicy, Timeout
from pagewire.client.sync import Client, Stream
from pagewire.core.errors import PagewireError
from pagewire.core.sampling import FinishReason

__all__ = [
    "AsyncClient",
    "AsyncStream",
    "Chunk",
    "Client",
    "FinishReason",
    "Message",
    "ModelInfo",
    "Options",
    "Output",
    "PagewireError",
    "Prompt",
    "Result",
    "RetryPolicy",
    "Stream",
    "Timeout",
    "TokenLogprob",
    "TransferReport",
    "Usage",
]

"""The SDK: `from pagewire.client import Client, AsyncClient`. Needs grpcio, grpcio-status and protobuf alone."""

from pagewire.client.aio import AsyncClient, AsyncKvEvents, AsyncStream
from pagewire.client.cluster import Block, KvEvent, KvEventKind, Load, PodLoad
from pagewire.client.explanation import Explanation, PlacementOption
from pagewire.client.options import Options, Prompt
from pagewire.client.results import (
    Chunk,
    Message,
    ModelInfo,
    Output,
    Result,
    TokenLogprob,
    Tool,
    ToolCall,
    ToolCallPart,
    TransferReport,
    Usage,
)
from pagewire.client.retry import RetryPolicy, Timeout
from pagewire.client.security import Tls
from pagewire.client.sync import Client, KvEvents, Stream
from pagewire.core.errors import PagewireError
from pagewire.core.sampling import FinishReason

__all__ = [
    "AsyncClient",
    "AsyncKvEvents",
    "AsyncStream",
    "Block",
    "Chunk",
    "Client",
    "Explanation",
    "FinishReason",
    "KvEvent",
    "KvEventKind",
    "KvEvents",
    "Load",
    "Message",
    "ModelInfo",
    "Options",
    "Output",
    "PagewireError",
    "PlacementOption",
    "PodLoad",
    "Prompt",
    "Result",
    "RetryPolicy",
    "Stream",
    "Timeout",
    "Tls",
    "TokenLogprob",
    "Tool",
    "ToolCall",
    "ToolCallPart",
    "TransferReport",
    "Usage",
]

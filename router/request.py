"""A request on its way through the router, and what comes back: plain values, the same for HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagewire.core.messages import Report
from pagewire.core.sampling import FinishReason, SamplingParams
from pagewire.core.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a caller asked, unchecked. Exactly one of `text`, `token_ids` and `messages` must be set; None is unset."""

    request_id: str
    model: str = ""
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    cache_salt: str | None = None
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """An admitted request: everything in it is within bounds. `request_id` is the caller's word, for logs only."""

    request_id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    cache_salt: str
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of a finished request; `completion_tokens` is what was streamed."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """New output. The text of a token may come later than its id, since it may still change."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The last event of a request that did not fail; `report` is None when its pod went away after the last token."""

    finish_reason: FinishReason
    stop_text: str | None
    stop_token_id: int | None
    usage: Usage
    prompt: tuple[int, ...]
    attempts: int
    predicted_cached_tokens: int
    timelines: tuple[Timeline, ...]
    report: Report | None


Event = Chunk | Finished

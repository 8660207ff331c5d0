"""What a caller may ask for beside the prompt, stated once for both shells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from pagewire.client.results import Message

Prompt = str | Sequence[int] | Sequence[Message] | Sequence[Mapping[str, str]]


class Options(TypedDict, total=False):
    """Keyword arguments of `generate` and `stream`. What is left out, or None, takes the server's default.

    model            name of the model; the only one when left out
    max_tokens       output tokens at most
    temperature      0 is greedy
    top_k            most likely tokens to draw from, 0 for all
    top_p, min_p     share of probability to draw from; least probability relative to the most likely
    seed             makes the answer repeatable
    stop             strings that end the answer; they are not part of it
    stop_token_ids   tokens that end the answer
    ignore_eos       go on after the end-of-sequence token
    cache_salt       prompts with different salts never share cached KV
    request_id       for logs; the router makes one when left out
    """

    model: str
    max_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    cache_salt: str
    request_id: str

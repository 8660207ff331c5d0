"""What a player asks of a server and hears from it, whatever the server speaks. Knows neither HTTP nor gRPC.

Invariant: a part is stamped when its bytes were there, by the clock that the player gave.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from pagewire.core.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Chat:
    """Messages: role and content of each."""

    messages: tuple[tuple[str, str], ...]


Prompt = tuple[int, ...] | str | Chat


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request: a prompt of token ids, a text, or a chat; `model` "" is the one that is served."""

    prompt: Prompt
    max_tokens: int
    request_id: str
    model: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a server counted of a request, None of what it does not say."""

    prompt_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A piece of an answer that came at `at_s`. `token_ids` are empty where a server names none.

    `timelines` are where it was and when, behind the end of an answer of ours.
    One without a token (`has_token`) is no part of the answer: a head, the usage behind its end, or the word that it is
    over. The last one's stamp is when the answer ended.
    """

    at_s: float
    has_token: bool = False
    text: str = ""
    token_ids: tuple[int, ...] = ()
    usage: Usage | None = None
    timelines: tuple[Timeline, ...] = ()


class AskFailed(Exception):
    """A server did not answer, or not wholly: `name` for counting, `detail` for people."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name
        self.detail = detail


class Target(Protocol):
    """A server under load."""

    def call(self, ask: Ask) -> AsyncGenerator[Part, None]:
        """Return the answer as it comes; what can be done before it is sent is done now, the rest when iterated.

        Iterating raises AskFailed. Leaving it early cancels the request.
        """
        ...

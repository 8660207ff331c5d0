"""What comes of a request, in the order in which it does: plain values, the same for HTTP and gRPC.

Invariant: `Begun` is the first of a request that did not fail before its first token, `Finished` the last of one that
did not fail at all, and all chunks lie between.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from pagewire.core.report import Report
from pagewire.core.sampling import FinishReason
from pagewire.core.timeline import Timeline
from pagewire.router.explanation import Explanation
from pagewire.text.tools.reader import CallPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of a finished request; `completion_tokens` is what was streamed, of all its sequences.

    `cached_tokens` of the prompt no pod had to compute for it; `reasoning_tokens` of the completion were reasoning and
    its marks, where that is told apart.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredToken:
    """A token, its bytes, and how likely the model held it; `top` are the likeliest ones, which have none of their own.

    The first token of a prompt has no log probability: None. It begins `offset` characters behind the beginning of its
    answer's text, an echo being part of that; of a prompt that is not repeated nobody says where.
    """

    token_id: int
    data: bytes
    logprob: float | None
    rank: int = 0
    offset: int = 0
    top: tuple[ScoredToken, ...] = ()

    @property
    def text(self) -> str:
        """The token by itself; what is no whole character reads as U+FFFD."""
        return self.data.decode(errors="replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The first event of a request that did not fail before its first token: all that is known of its prompt.

    `echo` is its text and `prompt_logprobs` its tokens' where they were asked for. Of several prompts in one request,
    `first_index` is that of this one's first answer.
    """

    prompt: tuple[int, ...]
    echo: str | None = None
    prompt_logprobs: tuple[ScoredToken, ...] = ()
    first_index: int = 0


@dataclass(slots=True, kw_only=True)  # not frozen: one is made of nearly every token, in a third of the time
class Chunk:
    """New output of the sequence `index`. The text of a token may come later than its id, since it may still change.

    `logprobs` has an entry for each token where they were asked for. The last chunk of a sequence has its `ending`.
    Where tools may be called, `calls` are the pieces of calls in it. `reasoning` is what was told apart as such, with
    its marks the first `num_reasoning` tokens. `text` is the rest.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[ScoredToken, ...] = ()
    index: int = 0
    ending: Ending | None = None
    calls: tuple[CallPart, ...] = ()
    reasoning: str = ""
    num_reasoning: int = 0

    @property
    def said(self) -> Iterator[str | CallPart]:
        """Its words and the pieces of calls behind its reasoning, in the order in which the model wrote them."""
        at = 0
        for part in self.calls:
            if words := self.text[at : part.at]:
                yield words
            at = part.at
            yield part
        if words := self.text[at:]:
            yield words


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a sequence ended: by the stop string `stop_text`, the stop token `stop_token_id`, or neither.

    An answer that a beam search found has the sum of its tokens' log probabilities, and its score. `is_within_call` is
    true of one that ended before its last call did.
    """

    finish_reason: FinishReason
    stop_text: str | None = None
    stop_token_id: int | None = None
    cumulative_logprob: float | None = None
    score: float | None = None
    has_calls: bool = False
    is_within_call: bool = False

    @property
    def word(self) -> FinishReason:
        """Why it ended, as callers are told: what was complete and has calls waits for their results."""
        is_waiting = self.has_calls and not self.is_within_call and self.finish_reason is FinishReason.STOP
        return FinishReason.TOOL_CALLS if is_waiting else self.finish_reason

    @property
    def stop_reason(self) -> str | int | None:
        """What stopped it, as vLLM names it."""
        return self.stop_text if self.stop_text is not None else self.stop_token_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The last event of a request that did not fail; `report` is None when its pod went away after the last token.

    `endings` are those of its answers, by index; `longest` counts the tokens of the longest one. Of several prompts
    in one request, `first_index` is that of this one's first answer.
    """

    endings: tuple[Ending, ...]
    usage: Usage
    prompt: tuple[int, ...]
    attempts: int
    predicted_cached_tokens: int
    timelines: tuple[Timeline, ...]
    report: Report | None
    longest: int = 0
    first_index: int = 0
    echo: str | None = None
    prompt_logprobs: tuple[ScoredToken, ...] = ()
    explanation: Explanation | None = None


Event = Begun | Chunk | Finished


class Sink(Protocol):
    """Where whoever takes a request's events has its chunks put at once, while it waits for the next one."""

    @property
    def is_open(self) -> bool:
        """True while a chunk can be put there and is as good as taken."""
        ...

    def put(self, chunk: Chunk) -> None:
        """Take a chunk; only while `is_open`."""
        ...

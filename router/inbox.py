"""What came from a pod for one attempt of one request, until its consumer takes it.

Knows positions, nothing of text or pods. Its memory is bounded by the tokens that the request may produce: a pod that
sends more is refused. Invariant: what is taken is gapless from the first position on, without repeats, and nothing
follows the end.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from pagewire.core.errors import EngineFailed, PagewireError
from pagewire.core.messages import Ended
from pagewire.core.sampling import FinishReason
from pagewire.core.token_record import TokenLogprobs, TokenRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """Everything new: tokens, how likely they were, why the sequence ended if it did, and the pod's last frame."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    prompt_logprobs: tuple[TokenLogprobs, ...]
    finish_reason: FinishReason | None
    ended: Ended | None


class Inbox:
    """One attempt's tokens. `position` is the next one's, `limit` the length that the output may reach.

    Each token comes with its log probability if `has_logprobs`; of the prompt's, `num_scores` may come.
    """

    def __init__(self, *, position: int, limit: int, has_logprobs: bool = False, num_scores: int = 0) -> None:
        self._position = position
        self._limit = limit
        self._has_logprobs = has_logprobs
        self._num_scores = num_scores
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._finish_reason: FinishReason | None = None
        self._has_untold_end = False
        self._ended: Ended | None = None
        self._error: PagewireError | None = None
        self._is_lost = False
        self._changed = asyncio.Event()

    @property
    def is_settled(self) -> bool:
        """True when the pod has said its last word, or can say no more: there is nothing to cancel."""
        return self._ended is not None or self._is_lost

    def put(self, record: TokenRecord) -> None:
        """Take a record; one that repeats, skips, or goes on after the end fails the attempt."""
        if self._error is not None:
            return
        if record.position != self._position or record.index != 0 or self._finish_reason is not None:
            self._fail(EngineFailed(f"tokens at position {record.position} came where {self._position} is next"))
        elif self._position + len(record.tokens) > self._limit:
            self._fail(EngineFailed(f"more than {self._limit} tokens came"))
        elif len(record.logprobs) != (len(record.tokens) if self._has_logprobs else 0):
            self._fail(EngineFailed(f"{len(record.logprobs)} log probabilities came with {len(record.tokens)} tokens"))
        elif len(record.prompt_logprobs) > self._num_scores or (
            record.tokens and len(record.prompt_logprobs) < self._num_scores
        ):
            self._fail(EngineFailed(f"{len(record.prompt_logprobs)} of {self._num_scores} of the prompt's came"))
        else:
            self._tokens.extend(record.tokens)
            self._logprobs.extend(record.logprobs)
            self._prompt_logprobs.extend(record.prompt_logprobs)
            self._num_scores -= len(record.prompt_logprobs)
            self._position += len(record.tokens)
            self._finish_reason = record.finish_reason
            self._has_untold_end = record.finish_reason is not None
            self._changed.set()

    def end(self, ended: Ended) -> None:
        """Take the pod's last frame."""
        self._ended = ended
        self._changed.set()

    def lose(self, error: PagewireError) -> None:
        """The pod went away: nothing more can come. What came before can still be taken."""
        self._is_lost = True
        self._fail(error)

    async def take(self) -> Arrived:
        """Wait for news and return all of it; raises what failed the attempt once everything else is taken."""
        while True:
            if self._tokens or self._prompt_logprobs or self._has_untold_end or self._ended is not None:
                return self._take()
            if self._error is not None:
                raise self._error
            self._changed.clear()
            await self._changed.wait()

    def _fail(self, error: PagewireError) -> None:
        if self._error is None:
            self._error = error
            self._changed.set()

    def _take(self) -> Arrived:
        arrived = Arrived(
            tokens=tuple(self._tokens),
            logprobs=tuple(self._logprobs),
            prompt_logprobs=tuple(self._prompt_logprobs),
            finish_reason=self._finish_reason,
            ended=self._ended,
        )
        self._tokens, self._logprobs, self._prompt_logprobs = [], [], []
        self._has_untold_end = False
        return arrived

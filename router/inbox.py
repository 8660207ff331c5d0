"""What came from a pod for one attempt of one request, and when, until its consumer takes it.

Knows positions, nothing of text or pods. Its memory is bounded by the tokens that the request may produce: a pod that
sends more is refused. Invariants: of each sequence, what is taken is gapless from its first position on, without
repeats, and nothing follows its end; sequences of one request begin all together; what goes the short way overtakes
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pagewire.core.clock import Clock
from pagewire.core.errors import EngineFailed, PagewireError
from pagewire.core.messages import Ended
from pagewire.core.sampling import FinishReason
from pagewire.core.token_record import TokenLogprobs, TokenRecord


@dataclass(slots=True, kw_only=True)  # not frozen: one is made of nearly every token, in a third of the time
class News:
    """Everything new of one sequence: tokens, how likely they were, why it ended if it did.

    An answer that a beam search found has its log probability and its score.
    """

    index: int
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    cumulative_logprob: float | None = None
    score: float | None = None


@dataclass(slots=True, kw_only=True)
class Arrived:
    """Everything new: of sequences by their index, of the prompt, and the pod's last frame.

    The first of the frames that brought it came at `first_s`, the last one at `last_s`: whoever takes may be late.
    """

    news: tuple[News, ...]
    first_s: float
    last_s: float
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    ended: Ended | None = None


@dataclass(slots=True)
class _Stream:
    """One sequence; `position` is its next token's."""

    position: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    has_untold_end: bool = False
    cumulative_logprob: float | None = None
    score: float | None = None

    def put(self, record: TokenRecord) -> None:
        self.tokens += record.tokens
        self.logprobs += record.logprobs
        self.position += len(record.tokens)
        self.finish_reason = record.finish_reason
        self.has_untold_end = record.finish_reason is not None
        self.cumulative_logprob, self.score = record.cumulative_logprob, record.score

    @property
    def has_news(self) -> bool:
        return bool(self.tokens) or self.has_untold_end

    def take(self, index: int) -> News:
        news = News(
            index=index,
            tokens=tuple(self.tokens),
            logprobs=tuple(self.logprobs),
            finish_reason=self.finish_reason,
            cumulative_logprob=self.cumulative_logprob,
            score=self.score,
        )
        self.tokens, self.logprobs, self.has_untold_end = [], [], False
        return news


class Inbox:
    """One attempt's tokens. `positions` are the next ones' by sequence, `limit` the length that an output may reach.

    Each token comes with its log probability if `has_logprobs`; of the prompt's, `num_scores` may come. What a beam
    search (`is_search`) finds comes in one frame, each answer whole, the best first; the last ones may be missing.
    """

    def __init__(
        self,
        *,
        positions: Mapping[int, int],
        limit: int,
        clock: Clock,
        has_logprobs: bool = False,
        num_scores: int = 0,
        is_search: bool = False,
    ) -> None:
        self._streams = {index: _Stream(position) for index, position in positions.items()}
        self._limit = limit
        self._clock = clock
        self._first_s: float | None = None  # of the frames that are not taken yet
        self._last_s = 0.0
        self._has_logprobs = has_logprobs
        self._num_scores = num_scores
        self._is_search = is_search
        self.num_searched = 0  # tokens of each beam of a search that goes on, as far as is told
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._ended: Ended | None = None
        self._error: Exception | None = None
        self._is_over = False
        self._waiting: asyncio.Future[None] | None = None  # for the next change: whoever takes, who is one
        self._short_way: Callable[[News], bool] | None = None

    @property
    def is_settled(self) -> bool:
        """True when the pod has said its last word, or can say no more: there is nothing to cancel."""
        return self._is_over

    def put(self, records: Sequence[TokenRecord]) -> None:
        """Take a frame's records, one of a sequence at most.

        One that repeats, skips, or goes on after the end fails the attempt, and nothing of its frame is taken.
        """
        if self._error is not None:
            return
        if len(records) == 1 and self._is_plain(records[0]):
            if self._went_short(records[0]):
                return
        elif reason := self._breach(records):
            self._fail(EngineFailed(reason))
            return
        if self._is_search and not any(record.tokens or record.prompt_logprobs for record in records):
            self.num_searched += 1
            return
        self._last_s = self._clock.now()
        if self._first_s is None:
            self._first_s = self._last_s
        for record in records:
            self._streams[record.index].put(record)
            self._prompt_logprobs.extend(record.prompt_logprobs)
            self._num_scores -= len(record.prompt_logprobs)
        self._wake()

    def end(self, ended: Ended) -> None:
        """Take the pod's last frame; it says nothing of an attempt that has failed."""
        self._is_over = True
        if self._error is None:
            self._ended = ended
            self._wake()

    def expire(self, error: PagewireError) -> None:
        """The time is over, though the pod may go on: take nothing more. What came before can still be taken."""
        self._fail(error)

    def lose(self, error: PagewireError) -> None:
        """The pod went away: nothing more can come. What came before can still be taken."""
        self._is_over = True
        self._fail(error)

    def shorten(self, way: Callable[[News], bool]) -> None:
        """Offer to `way` what nearly all frames are, while `take` waits: it takes them at once, or says False."""
        self._short_way = way

    async def take(self) -> Arrived:
        """Wait for news and return all of it; raises what failed the attempt once everything else is taken."""
        while True:
            news = tuple([stream.take(index) for index, stream in self._streams.items() if stream.has_news])
            if news or self._prompt_logprobs or self._ended is not None:
                scores, self._prompt_logprobs = tuple(self._prompt_logprobs), []
                first_s, self._first_s = self._first_s, None
                return Arrived(
                    news=news,
                    first_s=self._last_s if first_s is None else first_s,
                    last_s=self._last_s,
                    prompt_logprobs=scores,
                    ended=self._ended,
                )
            if self._error is not None:
                raise self._error
            # A future of its own: an event's, which others could wait for too, costs a token twice as much.
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting

    def _breach(self, records: Sequence[TokenRecord]) -> str:
        """Return what is wrong with a frame, "" for nothing."""
        positions = {index: stream.position for index, stream in self._streams.items()}
        for record in records:
            stream = self._streams.get(record.index)
            if stream is None or stream.finish_reason is not None:
                return f"tokens came of sequence {record.index}, which does not run"
            if record.position != positions[record.index]:
                return f"tokens at position {record.position} came where {positions[record.index]} is next"
            positions[record.index] += len(record.tokens)
            if positions[record.index] > self._limit:
                return f"more than {self._limit} tokens came"
            if len(record.logprobs) != (len(record.tokens) if self._has_logprobs else 0):
                return f"{len(record.logprobs)} log probabilities came with {len(record.tokens)} tokens"
        scores = sum(len(record.prompt_logprobs) for record in records)
        if scores > self._num_scores or (scores < self._num_scores and any(record.tokens for record in records)):
            return f"{scores} of {self._num_scores} of the prompt's came"
        if self._is_search:
            return self._breach_of_search(records)
        if len({position > 0 for position in positions.values()}) > 1:
            return f"some sequences began before the others: {positions}"
        return ""

    def _is_plain(self, record: TokenRecord) -> bool:
        """True for what nearly all frames are: the next tokens of a lone sequence, and nothing else about them."""
        stream = self._streams.get(record.index)
        return (
            stream is not None
            and len(self._streams) == 1
            and stream.finish_reason is None
            and record.position == stream.position
            and stream.position + len(record.tokens) <= self._limit
            and not (self._has_logprobs or record.logprobs or self._num_scores or record.prompt_logprobs)
            and not self._is_search
        )

    def _breach_of_search(self, records: Sequence[TokenRecord]) -> str:
        found = [record for record in records if record.tokens or record.finish_reason is not None]
        if found and any(stream.position for stream in self._streams.values()):
            return "a search that was over found more"
        if self.num_searched >= self._limit and not found:
            return f"a search went on beyond {self._limit} tokens"
        if any(not record.tokens or record.finish_reason is None for record in found):
            return "a search said an answer that is not whole"
        if [record.index for record in found] != list(range(len(found))):
            return f"a search said its answers as {[record.index for record in found]}"
        return ""

    def _went_short(self, record: TokenRecord) -> bool:
        """Have plain tokens go the short way, if there is one and whoever takes has taken all there was."""
        way, waiting = self._short_way, self._waiting
        if way is None or waiting is None or waiting.done() or record.finish_reason is not None:
            return False
        try:
            went = way(News(index=record.index, tokens=record.tokens))
        except PagewireError as error:
            failure = RuntimeError(
                "tokens could not be passed on"
            )  # one with a name would be the pod's, and tried again
            failure.__cause__ = error
            self._fail(failure)
            return True
        except Exception as error:  # the pod's link must not end of it: whoever takes raises it
            self._fail(error)
            return True
        if went:
            self._streams[record.index].position += len(record.tokens)
        return went

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
            self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

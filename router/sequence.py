"""One of the answers to a request: its tokens and text so far, and how it ended.

Knows values, does no I/O; nothing of pods and attempts, so an answer that another pod goes on with stays the same
object. Invariant: `output` holds the tokens that went out, in order; none follows the ending.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pagewire.core.sampling import FinishReason, SamplingParams
from pagewire.router.events import Chunk, Ending, ScoredToken
from pagewire.router.inbox import News
from pagewire.router.scoring import TokenBytes, scored
from pagewire.text.text_stream import TextStream
from pagewire.text.token_places import TokenPlaces


@dataclass(slots=True, kw_only=True)
class Sequence:
    """The answer `index`; `text` is its own text stream, `places` tell where tokens begin in it, if anybody asks."""

    index: int
    sampling: SamplingParams
    text: TextStream
    token_bytes: TokenBytes
    places: TokenPlaces | None = None
    output: list[int] = field(default_factory=list)
    ending: Ending | None = None

    def digest(self, news: News) -> Chunk | None:
        """Turn news into the next chunk, and note the ending where it has come; None for what nobody waits for."""
        # What the pod cancelled by itself has not finished: its last frame says what happened.
        reason = None if news.finish_reason is FinishReason.CANCELLED else news.finish_reason
        if self.ending is not None or not (news.tokens or reason is not None):
            return None
        piece = self.text.push(news.tokens, reason)
        self.output.extend(piece.tokens)
        if piece.stop_text is not None:
            self.ending = Ending(finish_reason=FinishReason.STOP, stop_text=piece.stop_text)
        elif reason is not None:
            self.ending = Ending(
                finish_reason=reason,
                stop_token_id=self._stop_token_id(reason),
                cumulative_logprob=news.cumulative_logprob,
                score=news.score,
            )
        tokens: tuple[ScoredToken, ...] = ()
        if news.logprobs:
            offsets = self.places.of(piece.tokens) if self.places is not None else ()
            tokens = scored(news.logprobs[: len(piece.tokens)], self.token_bytes, offsets)
        return Chunk(
            text=piece.text,
            token_ids=piece.tokens,
            logprobs=tokens,
            index=self.index,
            ending=self.ending,
        )

    def _stop_token_id(self, reason: FinishReason) -> int | None:
        if reason is not FinishReason.STOP or not self.output:
            return None
        return self.output[-1] if self.output[-1] in self.sampling.stop_token_ids else None

"""What one request has come to: its output so far, how often it was tried, why it ended.

Knows values, does no I/O. Invariant: `output` holds the tokens that went out, in order, whatever pods they came from.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pagewire.core.errors import EngineFailed, PagewireError
from pagewire.core.messages import Ended, Source
from pagewire.core.report import Report
from pagewire.core.sampling import FinishReason, SamplingParams
from pagewire.core.timeline import Phase, Stopwatch
from pagewire.core.token_record import TokenLogprobs
from pagewire.router.inbox import Arrived
from pagewire.router.placing import Prefix
from pagewire.router.request import Chunk, Ending, Finished, Request, ScoredToken, Usage
from pagewire.router.scoring import TokenBytes, scored, scored_prompt
from pagewire.text.text_stream import Piece, TextStream


@dataclass(slots=True, kw_only=True)
class Life:
    """One request between admission and end. `internal_id` is never used twice, whatever its caller named it.

    `pod_ended_it` is True when the pod itself ended the sequence, so that there is nothing to cancel. `handovers` are
    the pods that gave the request up while they drained, and still hold its KV.
    """

    request: Request
    prefix: Prefix
    text: TextStream
    watch: Stopwatch
    deadline_at_s: float
    internal_id: str
    token_bytes: TokenBytes
    output: list[int] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    offset: int = 0  # of the next token, in the text of those that were reported
    attempt: int = 0
    failed_keys: set[str] = field(default_factory=set)
    error: PagewireError | None = None
    predicted_cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    pod_ended_it: bool = False
    handovers: list[Source] = field(default_factory=list)
    stop_text: str | None = None
    ended: Ended | None = None

    @property
    def num_tries(self) -> int:
        """Attempts so far that did not end because the pod was going away."""
        return self.attempt - len(self.handovers)

    @property
    def num_scores(self) -> int:
        """Log probabilities of the prompt that are yet to come."""
        asked = self.request.sampling.prompt_logprobs is not None
        return len(self.request.prompt) - 1 - len(self.prompt_logprobs) if asked else 0

    def begin_attempt(self) -> SamplingParams:
        """Return what the next attempt is asked: the prompt is scored anew, unless that is done."""
        sampling = self.request.sampling
        if self.num_scores:
            self.prompt_logprobs.clear()
        elif sampling.prompt_logprobs is not None:
            return replace(sampling, prompt_logprobs=None)
        return sampling

    def digest(self, arrived: Arrived, now_s: float) -> Chunk | None:
        """Turn news into the next chunk, and note the end where it has come; raises the error that the pod named.

        Tokens that came with an error are a chunk first: the error is raised when nothing else is left.
        """
        # A sequence that the pod cancelled by itself has not finished: its last frame says what happened.
        self.prompt_logprobs.extend(arrived.prompt_logprobs)
        reason = None if arrived.finish_reason is FinishReason.CANCELLED else arrived.finish_reason
        if arrived.tokens or reason is not None:
            piece = self.text.push(arrived.tokens, reason)
            self.output.extend(piece.tokens)
            self.watch.stamp(Phase.FIRST_TOKEN, now_s)
            self.stop_text = piece.stop_text
            self.pod_ended_it = reason is not None
            self.finish_reason = FinishReason.STOP if piece.stop_text is not None else reason
            if self.finish_reason is not None:
                self.watch.stamp(Phase.LAST_TOKEN, now_s)
            return self._chunk(piece, arrived.logprobs)
        if arrived.ended is not None:
            if arrived.ended.error is not None:
                raise arrived.ended.error.error()
            raise EngineFailed("the pod ended the request without saying why")
        return None

    def _chunk(self, piece: Piece, logprobs: tuple[TokenLogprobs, ...]) -> Chunk:
        tokens = scored(logprobs[: len(piece.tokens)], self.token_bytes)
        offset = self.offset
        self.offset += sum(len(token.text) for token in tokens)
        return Chunk(text=piece.text, token_ids=piece.tokens, logprobs=tokens, offset=offset)

    def _scored_prompt(self) -> tuple[ScoredToken, ...]:
        if self.request.sampling.prompt_logprobs is None:
            return ()
        return scored_prompt(self.request.prompt, self.prompt_logprobs, self.token_bytes)

    def finished(self) -> Finished:
        """Return the last event of a request that has a finish reason."""
        if self.finish_reason is None:
            raise ValueError("the request has not finished")
        report = self.ended.report if self.ended is not None else None
        usage = Usage(
            prompt_tokens=len(self.request.prompt),
            completion_tokens=len(self.output),
            cached_tokens=min(_cached_tokens(report), len(self.request.prompt)),
        )
        return Finished(
            endings=(
                Ending(finish_reason=self.finish_reason, stop_text=self.stop_text, stop_token_id=self._stop_token_id()),
            ),
            usage=usage,
            prompt=self.request.prompt,
            attempts=self.attempt,
            predicted_cached_tokens=self.predicted_cached_tokens,
            timelines=(self.watch.timeline(), *(self.ended.timelines if self.ended is not None else ())),
            report=report,
            echo=self.request.echo,
            prompt_logprobs=self._scored_prompt(),
        )

    def _stop_token_id(self) -> int | None:
        if self.finish_reason is not FinishReason.STOP or self.stop_text is not None or not self.output:
            return None
        return self.output[-1] if self.output[-1] in self.request.sampling.stop_token_ids else None


def _cached_tokens(report: Report | None) -> int:
    """The prompt tokens that nobody had to compute: what was cached where the prompt was prefilled."""
    if report is None:
        return 0
    return report.decode_cached_tokens if report.placement == "local" else report.prefill_cached_tokens

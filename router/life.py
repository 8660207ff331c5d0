"""What one request has come to: its sequences so far, how often it was tried, what the pods said of it.

Knows values, does no I/O. Invariant: what went out stands, whatever pods it came from.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pagewire.core.errors import EngineFailed, PagewireError
from pagewire.core.messages import Ended, Source
from pagewire.core.report import Report
from pagewire.core.sampling import SamplingParams
from pagewire.core.timeline import Phase, Stopwatch
from pagewire.core.token_record import TokenLogprobs
from pagewire.router.inbox import Arrived
from pagewire.router.placing import Prefix
from pagewire.router.request import Chunk, Finished, Request, ScoredToken, Usage
from pagewire.router.scoring import TokenBytes, scored_prompt
from pagewire.router.sequence import Sequence


@dataclass(slots=True, kw_only=True)
class Life:
    """One request between admission and end. `internal_id` is never used twice, whatever its caller named it.

    `handovers` are the pods that gave the request up while they drained, and still hold its KV.
    """

    request: Request
    prefix: Prefix
    sequences: tuple[Sequence, ...]  # by index
    watch: Stopwatch
    deadline_at_s: float
    internal_id: str
    token_bytes: TokenBytes
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    attempt: int = 0
    failed_keys: set[str] = field(default_factory=set)
    error: PagewireError | None = None
    predicted_cached_tokens: int = 0
    handovers: list[Source] = field(default_factory=list)
    ended: Ended | None = None

    @property
    def running(self) -> list[Sequence]:
        """The sequences that have not ended."""
        return [each for each in self.sequences if each.ending is None]

    @property
    def num_output(self) -> int:
        """Tokens that went out."""
        return sum(len(each.output) for each in self.sequences)

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

    def digest(self, arrived: Arrived, now_s: float) -> list[Chunk]:
        """Turn news into the next chunks, and note the endings that have come; raises the error that the pod named.

        Tokens that came with an error are chunks first: the error is raised when nothing else is left.
        """
        self.prompt_logprobs.extend(arrived.prompt_logprobs)
        chunks = [chunk for news in arrived.news if (chunk := self.sequences[news.index].digest(news)) is not None]
        if chunks and self.request.sampling.use_beam_search:
            # All that was found comes at once: there may be fewer answers than were asked for.
            self.sequences = tuple(each for each in self.sequences if each.ending is not None)
        if chunks:
            self.watch.stamp(Phase.FIRST_TOKEN, now_s)
            if not self.running:
                self.watch.stamp(Phase.LAST_TOKEN, now_s)
        elif arrived.ended is not None:
            if arrived.ended.error is not None:
                raise arrived.ended.error.error()
            raise EngineFailed("the pod ended the request without saying why")
        return chunks

    def _scored_prompt(self) -> tuple[ScoredToken, ...]:
        if self.request.sampling.prompt_logprobs is None:
            return ()
        return scored_prompt(self.request.prompt, self.prompt_logprobs, self.token_bytes)

    def finished(self) -> Finished:
        """Return the last event of a request whose sequences have all ended."""
        report = self.ended.report if self.ended is not None else None
        usage = Usage(
            prompt_tokens=len(self.request.prompt),
            completion_tokens=self.num_output,
            cached_tokens=min(_cached_tokens(report), len(self.request.prompt)),
        )
        return Finished(
            endings=tuple(each.ending for each in self.sequences if each.ending is not None),
            longest=max(len(each.output) for each in self.sequences),
            usage=usage,
            prompt=self.request.prompt,
            attempts=self.attempt,
            predicted_cached_tokens=self.predicted_cached_tokens,
            timelines=(self.watch.timeline(), *(self.ended.timelines if self.ended is not None else ())),
            report=report,
            echo=self.request.echo,
            prompt_logprobs=self._scored_prompt(),
        )


def _cached_tokens(report: Report | None) -> int:
    """The prompt tokens that nobody had to compute: what was cached where the prompt was prefilled."""
    if report is None:
        return 0
    return report.decode_cached_tokens if report.placement == "local" else report.prefill_cached_tokens

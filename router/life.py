"""What one request has come to: its sequences so far, how often it was tried, what the pods said of it.

Knows values, does no I/O. Invariant: what went out stands, whatever pods it came from.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pagewire.core.errors import DeadlineExceeded, EngineFailed, PagewireError
from pagewire.core.messages import Ended, Source, Submit
from pagewire.core.report import Report
from pagewire.core.sampling import FinishReason, SamplingParams
from pagewire.core.sequence_spec import Branch, SequenceSpec
from pagewire.core.timeline import Phase, Stopwatch
from pagewire.core.token_record import TokenLogprobs
from pagewire.core.trace_context import TraceContext
from pagewire.router.events import Begun, Chunk, Ending, Finished, ScoredToken, Usage
from pagewire.router.inbox import Arrived, News
from pagewire.router.lookup import Prefix
from pagewire.router.models import ServedModel
from pagewire.router.places import Place
from pagewire.router.placing import Placed
from pagewire.router.request import Request
from pagewire.router.scoring import scored_prompt
from pagewire.router.sequence import Sequence
from pagewire.router.slo_gate import Forecast
from pagewire.serving.tracing import new_span_id

SCORED = Ending(finish_reason=FinishReason.LENGTH)  # of a prompt that is scored alone, whatever was drawn behind it


@dataclass(slots=True, kw_only=True)
class Try:
    """One try to have pods run a request: when it began to look for them, and what came of it.

    `span_id` is what its pods are told, "" where the request is not traced. `error` is the cause that ended it.
    """

    began_s: float
    placed: Placed | None = None
    placed_s: float = 0.0
    span_id: str = ""
    ended_s: float | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """An attempt that its pod gave up while it drains: for a while it holds the KV of so many tokens."""

    attempt_id: str
    placed: Placed
    num_tokens: int

    @property
    def source(self) -> Source:
        """The pod as one to fetch from."""
        return self.placed.decode_as_source(self.num_tokens)


@dataclass(slots=True, kw_only=True, eq=False)
class Life:
    """One request between admission and end. `internal_id` is never used twice, whatever its caller named it.

    `answer_tokens` are those of each sequence that KV is set aside for. `handovers` are those since the last token: who
    gave the request up before it had its KV holds less of that than the one before.
    """

    model: ServedModel
    request: Request
    prefix: Prefix
    sequences: tuple[Sequence, ...]  # by index
    watch: Stopwatch
    received_s: float
    deadline_at_s: float
    answer_tokens: int
    internal_id: str
    place: Place  # among those of its model
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    has_begun: bool = False  # the first event went out
    is_let_in: bool = False  # as others of its request are: it is not refused for what there is to do
    attempt: int = 0
    num_refused: int = 0  # of these, whose pods had nothing done for it
    failed_keys: set[str] = field(default_factory=set)
    error: PagewireError | None = None
    predicted_cached_tokens: int = 0
    handovers: list[Handover] = field(default_factory=list)
    num_handovers: int = 0
    num_searched: int = 0  # tokens of each beam in the latest attempt, while there is no answer
    ended: Ended | None = None
    forecast: Forecast | None = None  # of the first placement, until it comes true or is void
    placed: Placed | None = None  # the latest
    arrived_s: float = 0.0  # when the latest tokens came
    trace: TraceContext | None = None  # what is below the request's span, where it is traced
    tries: list[Try] = field(default_factory=list)

    @property
    def attempt_id(self) -> str:
        """The latest attempt's name, which pods know the request by."""
        return f"{self.internal_id}.{self.attempt}"

    @property
    def running(self) -> list[Sequence]:
        """The sequences that have not ended."""
        return [each for each in self.sequences if each.ending is None]

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt)

    @property
    def num_output(self) -> int:
        """Tokens that went out: of a score none does."""
        return 0 if self.request.is_score else sum(len(each.output) for each in self.sequences)

    @property
    def num_charged(self) -> int:
        """Tokens that it costs beyond its prompt, which was charged: less than 0 where no pod had it computed.

        A beam search costs all that its beams wrote until the longest answer was whole, or it was given up.
        """
        if self.attempt == self.num_refused:
            return -self.num_prompt
        if not self.request.sampling.use_beam_search:
            return self.num_output
        longest = max(len(each.output) for each in self.sequences)
        return self.request.sampling.num_beams * (longest or self.num_searched)

    def written(self) -> float:
        """Return which share of the answer is there that KV is set aside for."""
        shares = [
            1.0 if each.ending is not None else min(1.0, len(each.output) / self.answer_tokens)
            for each in self.sequences
        ]
        return sum(shares) / len(shares) if shares else 1.0

    @property
    def num_tries(self) -> int:
        """Attempts so far that did not end because the pod was going away."""
        return self.attempt - self.num_handovers

    @property
    def num_scores(self) -> int:
        """Log probabilities of the prompt that are yet to come."""
        asked = self.request.sampling.prompt_logprobs is not None
        return len(self.request.prompt) - 1 - len(self.prompt_logprobs) if asked else 0

    def too_late(self) -> DeadlineExceeded:
        """Return what is said of it when its deadline passes."""
        phase = f"after {self.num_output} tokens" if self.num_output else "before the first token"
        return DeadlineExceeded(f"the deadline of {self.request.timeout_s:.3g} s passed {phase}")

    def begin_attempt(self) -> SamplingParams:
        """Return what the next attempt is asked: the prompt is scored anew, unless that is done."""
        sampling = self.request.sampling
        if self.num_scores:
            self.prompt_logprobs.clear()
        elif sampling.prompt_logprobs is not None:
            return replace(sampling, prompt_logprobs=None)
        return sampling

    def spec(self, attempt_id: str) -> SequenceSpec:
        """Return what a pod is asked in the next attempt: the prompt, and what is out of each sequence that runs."""
        first, *others = self.running
        sampling = self.begin_attempt()
        silent = range(sampling.n, sampling.num_sequences)  # beams that search and do not answer
        return SequenceSpec(
            request_id=attempt_id,
            tokens=self.request.prompt,
            sampling=sampling,
            root=self.prefix.root,
            output=tuple(first.output),
            index=first.index,
            priority=self.request.priority,
            cache_quota=self.request.tenant.cache_quota,
            adapter=self.request.adapter,
            branches=(
                *(Branch(index=each.index, output=tuple(each.output)) for each in others),
                *(Branch(index=index) for index in silent),
            ),
        )

    def begin_try(self, now_s: float) -> None:
        """Begin to look for pods once more."""
        self.tries.append(Try(began_s=now_s, span_id=new_span_id() if self.trace is not None else ""))

    def try_on(self, placed: Placed, now_s: float) -> None:
        """These are the pods of the next attempt."""
        self.placed = self.tries[-1].placed = placed
        self.tries[-1].placed_s = now_s
        self.attempt += 1

    def handed_over(self, placed: Placed) -> None:
        """The pods of the latest attempt have given it up, and hold what it came to."""
        num_tokens = self.num_prompt + len(self.running[0].output)
        self.handovers.append(Handover(attempt_id=self.attempt_id, placed=placed, num_tokens=num_tokens))
        self.num_handovers += 1

    def submit(self, placed: Placed, attempt_id: str, now_s: float) -> Submit:
        """Return what the decode pod of the next attempt is told."""
        return Submit(
            spec=self.spec(attempt_id),
            candidates=placed.placement.candidates,
            prefill=placed.mode.value,
            deadline_s=max(0.001, self.deadline_at_s - now_s),
            sources=(*(each.source for each in reversed(self.handovers)), *placed.sources),
            traceparent=self.trace.below(self.tries[-1].span_id).header if self.trace is not None else "",
        )

    def digest(self, arrived: Arrived) -> list[Chunk]:
        """Turn news into the next chunks, and note the endings that have come; raises the error that the pod named.

        What is measured is when tokens came, whenever their caller takes them: a slow one is no slow pod. Tokens that
        came with an error are chunks first: the error is raised when nothing else is left.
        """
        self.prompt_logprobs.extend(arrived.prompt_logprobs)
        chunks = [chunk for news in arrived.news if (chunk := self.sequences[news.index].digest(news)) is not None]
        if chunks and self.request.sampling.use_beam_search:
            # All that was found comes at once: there may be fewer answers than were asked for.
            self.sequences = tuple(each for each in self.sequences if each.ending is not None)
        if chunks:
            self.watch.stamp(Phase.FIRST_TOKEN, arrived.first_s)
            self._tokens_came(max(len(chunk.token_ids) for chunk in chunks), arrived.first_s, arrived.last_s)
            if not self.running:
                self.watch.stamp(Phase.LAST_TOKEN, arrived.last_s)
                if self.forecast is not None:
                    self.forecast.finished(max(len(each.output) for each in self.sequences), arrived.last_s)
        elif arrived.ended is not None:
            if arrived.ended.error is not None:
                raise arrived.ended.error.error()
            raise EngineFailed("the pod ended the request without saying why")
        return chunks

    def digest_plain(self, news: News, now_s: float) -> Chunk | None:
        """Turn tokens of its only sequence, which are neither the first nor the last, into the next chunk.

        It is what `digest` does, for less.
        """
        chunk = self.sequences[0].digest(news)
        if chunk is not None:
            self._tokens_came(len(chunk.token_ids), now_s, now_s)
        return chunk

    def _tokens_came(self, most: int, first_s: float, last_s: float) -> None:
        # Of tokens that came together, each has its share of the time since those before; before the first is none.
        if self.arrived_s and most:
            self.model.counts.gap_s.observe((last_s - self.arrived_s) / most, most)
        elif most > 1:
            self.model.counts.gap_s.observe((last_s - first_s) / (most - 1), most - 1)
        self.arrived_s = last_s
        if not self.place.is_served:
            self.model.entrance.gate.places.serve(self.place, first_s)
        if self.forecast is not None:
            self.forecast.tokens_came(first_s)

    def _scored_prompt(self) -> tuple[ScoredToken, ...]:
        if self.request.sampling.prompt_logprobs is None:
            return ()
        prompt, tokenizer = self.request.prompt, self.model.tokenizer
        offsets = tokenizer.places_within(self.request.echo, prompt) if self.request.echo is not None else ()
        return scored_prompt(prompt, self.prompt_logprobs, tokenizer.token_bytes, offsets)

    def begun(self) -> Begun:
        """Return the first event, once the first chunk has come: the prompt's scores come no later."""
        self.has_begun = True
        return Begun(prompt=self.request.prompt, echo=self.request.echo, prompt_logprobs=self._scored_prompt())

    def _spared_tokens(self, report: Report | None) -> int:
        """Return how many tokens of the prompt nobody had to compute for this request: a cache had them, anywhere."""
        if report is None:
            return 0
        is_first = self.attempt - self.num_refused == 1  # else an earlier one computed what is fetched, maybe
        return report.cached_tokens + (report.fetched_tokens if is_first else 0)

    def finished(self) -> Finished:
        """Return the last event of a request whose sequences have all ended."""
        report = self.ended.report if self.ended is not None else None
        usage = Usage(
            prompt_tokens=len(self.request.prompt),
            completion_tokens=self.num_output,
            cached_tokens=min(self._spared_tokens(report), len(self.request.prompt)),
        )
        endings = [each.ending for each in self.sequences if each.ending is not None]
        return Finished(
            endings=(SCORED,) * len(endings) if self.request.is_score else tuple(endings),
            longest=max(len(each.output) for each in self.sequences),
            usage=usage,
            prompt=self.request.prompt,
            attempts=self.attempt,
            predicted_cached_tokens=self.predicted_cached_tokens,
            timelines=(self.watch.timeline(), *(self.ended.timelines if self.ended is not None else ())),
            report=report,
            echo=self.request.echo,
            explanation=self.placed.explanation if self.placed is not None else None,
            prompt_logprobs=self._scored_prompt(),
        )


def sequences_of(model: ServedModel, request: Request) -> tuple[Sequence, ...]:
    """Return the answers to a request, of which nothing has come yet."""
    sampling = request.sampling
    return tuple(
        Sequence(
            index=index,
            sampling=sampling,
            text=model.tokenizer.text_stream(sampling.stop, sampling.min_tokens, request.text_rules),
            token_bytes=model.tokenizer.token_bytes,
            places=model.tokenizer.places(request.text_rules, len(request.echo or ""))
            if sampling.logprobs is not None
            else None,
        )
        for index in range(sampling.n)
    )

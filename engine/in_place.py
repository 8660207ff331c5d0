"""A colocated engine run in place, by whoever calls it: jobs in, completions out; no server, no process, and no thread
but those that compile a run's grammars beside its steps.

Knows tokens and their text; nothing of prompts' forms or of requests. Jobs are pulled while there is room for them, so
any number may come. For one thread and one `run` at a time. Invariant: however a `run` ends (an error, Ctrl-C, a caller
that wants no more), no sequence of it is left in the engine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field

from pagewire.core.block_hash import root_hash
from pagewire.core.clock import MonotonicClock
from pagewire.core.engine_messages import Add, SequenceEnd, Stop
from pagewire.core.errors import EngineFailed, InvalidRequest, PagewireError
from pagewire.core.sampling import FinishReason, SamplingParams
from pagewire.core.sequence_spec import MAX_PRIORITY, SequenceSpec, branches
from pagewire.core.token_record import TokenLogprobs, TokenRecord
from pagewire.engine.assembly import Engine, assemble
from pagewire.engine.config import EngineConfig
from pagewire.engine.grammar_queue import GrammarQueue
from pagewire.engine.interrupts import uninterrupted
from pagewire.engine.scheduling_policy import PolicyName
from pagewire.engine.threads import set_threads
from pagewire.text.text_stream import PLAIN, TextRules, TextStream
from pagewire.text.tokenizer import Tokenizer

# Queued sequences for each that may run: a batch never starves, and counting those that wait costs nothing.
QUEUED_PER_PLACE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One prompt to answer. Blocks are shared among jobs of one `cache_salt` only.

    The lower its `priority`, the sooner it runs, where the engine schedules by priority. `adapter` names one of the
    engine's, "" for none.
    """

    prompt: tuple[int, ...]
    sampling: SamplingParams
    cache_salt: str = ""
    priority: int = 0
    text_rules: TextRules = PLAIN
    adapter: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A finished sequence. `token_ids` holds the token that ended it too, which `text` leaves out.

    `stop_reason` is the stop string or the stop token that ended it, None for the model's own end and for length.
    `logprobs` has an entry for each of `token_ids` where they were asked for. Of a beam search, `cumulative_logprob` is
    the sum over `token_ids`, and `score` what the outputs are ordered by: that over their number**length_penalty.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None
    logprobs: tuple[TokenLogprobs, ...] = ()
    cumulative_logprob: float | None = None
    score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A prompt's answer: `n` outputs in the order of their index, and what the first one has by its short names.

    Those of a beam search are the best first, and fewer than `n` where what is allowed makes no more.

    Of the prompt's tokens, `cached_tokens` came from the prefix cache when it first ran. `prompt_logprobs` has an entry
    for each of them but the first where they were asked for.
    """

    prompt_token_ids: tuple[int, ...]
    outputs: tuple[Output, ...]
    cached_tokens: int
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()

    @property
    def text(self) -> str:
        """The text of the first output."""
        return self.outputs[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The tokens of the first output."""
        return self.outputs[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        """Why the first output ended."""
        return self.outputs[0].finish_reason

    @property
    def stop_reason(self) -> str | int | None:
        """What stopped the first output."""
        return self.outputs[0].stop_reason

    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...]:
        """The log probabilities of the first output."""
        return self.outputs[0].logprobs


@dataclass(slots=True, kw_only=True)
class _Stream:
    """A sequence that runs, and what it has said: its text at the end at once, where no stop string may be in it."""

    sampling: SamplingParams
    stream: TextStream
    texts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_text: str | None = None
    cumulative_logprob: float | None = None
    score: float | None = None

    def hear(self, record: TokenRecord) -> None:
        self.cumulative_logprob, self.score = record.cumulative_logprob, record.score
        self.finish_reason = record.finish_reason
        if not self.stream.has_stops:
            self.tokens += record.tokens
            self.logprobs += record.logprobs
            if self.finish_reason is not None:
                self.texts.append(self.stream.whole(self.tokens, self.finish_reason))
            return
        piece = self.stream.push(record.tokens, record.finish_reason)
        self.texts.append(piece.text)
        self.tokens += piece.tokens
        self.logprobs += record.logprobs[: len(piece.tokens)]
        if piece.stop_text is not None:
            self.stop_text, self.finish_reason = piece.stop_text, FinishReason.STOP

    def output(self) -> Output:
        if self.finish_reason is None:
            raise EngineFailed("a sequence ended without a finish reason")
        return Output(
            text="".join(self.texts),
            token_ids=tuple(self.tokens),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_text if self.stop_text is not None else self._stop_token(),
            logprobs=tuple(self.logprobs),
            cumulative_logprob=self.cumulative_logprob,
            score=self.score,
        )

    def _stop_token(self) -> int | None:
        is_stop = self.finish_reason is FinishReason.STOP and self.tokens[-1] in self.sampling.stop_token_ids
        return self.tokens[-1] if is_stop else None


@dataclass(slots=True, kw_only=True)
class _Answer:
    """A prompt whose sequences run."""

    number: int
    job: Job
    streams: list[_Stream]  # by index
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)

    def completion(self, end: SequenceEnd) -> Completion:
        streams = self.streams
        if self.job.sampling.use_beam_search:
            streams = [stream for stream in streams if stream.finish_reason is not None]
        return Completion(
            prompt_token_ids=self.job.prompt,
            outputs=tuple(stream.output() for stream in streams),
            cached_tokens=end.cached_tokens,
            prompt_logprobs=tuple(self.prompt_logprobs),
        )


class InPlaceEngine:
    """A loaded engine with its tokenizer. Build it with `load`."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, policy: PolicyName) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self._policy = policy
        self._running: dict[str, _Answer] = {}  # by request id
        self._started = 0
        self._is_sound = True  # no step failed half-way, so that what is cached is what it is said to be
        self._places = (1 + QUEUED_PER_PLACE) * engine.scheduler.limits.max_num_seqs

    @classmethod
    def load(cls, config: EngineConfig, tokenizer: Tokenizer) -> InPlaceEngine:
        """Load the model, with `threads` for all of this process's torch.

        Raises ValueError for a model that is not supported, or a pool too small for it.
        """
        set_threads(config.threads, config.tensor_parallel, config.device)
        return cls(assemble(config, MonotonicClock()), tokenizer, PolicyName(config.scheduling))

    def close(self) -> None:
        """Keep what is cached, where there is a place for it; end the other ranks, where there are any."""
        with contextlib.closing(self.engine), uninterrupted():
            self.engine.loop.settle()
            if self._is_sound:
                self.engine.keep_cache()

    def check(self, sampling: SamplingParams, priority: int = 0) -> None:
        """Raise InvalidRequest where no sequence can be sampled so, or nothing here would heed its priority.

        Whether a grammar is one shows when it is compiled: by `compile`, or in a `run`.
        """
        if type(priority) is not int or not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
            said = f"priority is a whole number between {-MAX_PRIORITY} and {MAX_PRIORITY}, not {priority!r:.100}"
            raise InvalidRequest(said, field="priority")
        if priority and self._policy is not PolicyName.PRIORITY:
            said = f"priority means nothing where scheduling is {self._policy}: load the engine with priority"
            raise InvalidRequest(said, field="priority")
        sampling.validate(self.engine.ready.vocab_size)
        most = self.engine.scheduler.limits.max_num_seqs
        field, asked = ("beam_width", sampling.num_beams) if sampling.beam_width else ("n", sampling.n)
        if asked > most:
            raise InvalidRequest(f"{field} is {asked}; {most} sequences run at once (max_num_seqs)", field=field)

    def compile(self, sampling: SamplingParams) -> None:
        """Compile a grammar at once, and remember it; raises InvalidRequest for one that is none."""
        if sampling.grammar is not None:
            self.engine.grammars.compile(sampling.grammar)

    def check_room(self, job: Job) -> None:
        """Raise InvalidRequest where a job could not run to its end here, whatever else runs."""
        self.engine.scheduler.check(self._spec("", job))

    def run(self, jobs: Iterable[Job]) -> Generator[tuple[int, Completion | PagewireError], None, None]:
        """Yield each job's number and how it ended, in the order in which they end.

        A job whose grammar is not compiled yet waits for that while others run.
        """
        if self._running:
            raise RuntimeError("this engine is in the middle of another run")
        if not self._is_sound:
            raise EngineFailed("a step of this engine failed half-way, and what it caches may be wrong: load it anew")
        numbered = enumerate(jobs)
        guided: GrammarQueue[tuple[int, Job]] = GrammarQueue(self.engine.grammars)
        try:
            while True:
                while len(self._running) + len(guided) < self._places and (following := next(numbered, None)):
                    grammar = following[1].sampling.grammar
                    if grammar is None or self.engine.grammars.knows(grammar):
                        self._start(*following)
                    else:
                        guided.add(following, grammar)
                settled = guided.take(wait=not self._running)
                for (number, job), error in settled:
                    if error is None:
                        self._start(number, job)
                    else:
                        yield number, error
                if self._running:
                    with uninterrupted():
                        ended = self._step()
                    yield from ended
                elif not settled and not guided:
                    return
        finally:
            with uninterrupted():
                guided.close()
                self._drop()

    def _spec(self, request_id: str, job: Job) -> SequenceSpec:
        fingerprint = self.engine.ready.fingerprint
        root = root_hash(
            model_digest=fingerprint.model_digest,
            kv_fingerprint=fingerprint.kv_fingerprint,
            adapter=fingerprint.adapter_digest(job.adapter),
            salt=job.cache_salt,
        )
        return SequenceSpec(
            request_id=request_id,
            tokens=job.prompt,
            sampling=job.sampling,
            root=root,
            priority=job.priority,
            branches=branches(job.sampling.num_sequences),
            adapter=job.adapter,
        )

    def _start(self, number: int, job: Job) -> None:
        with uninterrupted():
            self._add(number, job)

    def _add(self, number: int, job: Job) -> None:
        request_id = str(self._started)
        self._started += 1
        sampling = job.sampling
        streams = [
            _Stream(
                sampling=sampling,
                stream=self.tokenizer.text_stream(sampling.stop, sampling.min_tokens, job.text_rules),
            )
            for _ in range(sampling.n)
        ]
        self._running[request_id] = _Answer(number=number, job=job, streams=streams)
        self.engine.loop.add(Add(spec=self._spec(request_id, job)))

    def _step(self) -> list[tuple[int, Completion | PagewireError]]:
        try:
            done = self.engine.loop.step()
        except Exception:
            self._is_sound = False
            raise
        if done is None:
            raise EngineFailed(f"the engine stands still with {len(self._running)} sequences")
        self._hear(done.records)
        ended = []
        for end in done.ends:
            answer = self._running.pop(end.request_id)
            outcome = answer.completion(end) if end.error is None else end.error.error()
            ended.append((answer.number, outcome))
        return ended

    def _hear(self, records: Sequence[TokenRecord]) -> None:
        for record in records:
            answer = self._running[record.request_id]
            answer.prompt_logprobs.extend(record.prompt_logprobs)
            stream = answer.streams[record.index]
            if stream.finish_reason is not None:  # a step was begun before the engine heard that it is to stop
                continue
            stream.hear(record)
            if stream.finish_reason is not None and record.finish_reason is None:  # a stop string: pods see no text
                self.engine.loop.stop(Stop(request_id=record.request_id, index=record.index))

    def _drop(self) -> None:
        for request_id in self._running:
            self.engine.loop.abort(request_id)
        self._running.clear()
        self.engine.loop.step()  # with nothing to compute: a refusal that was not told yet must not meet the next run

"""`pagewire run-batch`: a file of OpenAI requests answered by an engine in this process; no server, no network.

Requests are read, checked and answered by the router's own code. Lines are read as the engine has room for them, and
each answer is written when it is there, so a batch that is interrupted keeps what was answered. Invariant: at the end
every line of the input has exactly one line in the output.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from pagewire.cli import batch_line, out_file
from pagewire.cli.batch_line import BatchLine
from pagewire.core.errors import InvalidRequest, PagewireError
from pagewire.engine.in_place import Completion, InPlaceEngine, Job, Output
from pagewire.engine.interrupts import uninterrupted
from pagewire.router.answers import Answer
from pagewire.router.events import Chunk, Ending, Finished, ScoredToken, Usage
from pagewire.router.intake import Intake
from pagewire.router.openai import Call
from pagewire.router.request import Request
from pagewire.router.sampling_defaults import sampling_defaults
from pagewire.router.scoring import scored, scored_prompt

NO_DEADLINE_S = 86_400.0  # nothing in a batch is late; the router's check wants a bound


@dataclass(slots=True, kw_only=True)
class Summary:
    """What became of a batch so far."""

    requests: int = 0
    answered: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0

    def line(self) -> str:
        """Return it for people."""
        rate = self.completion_tokens / self.seconds if self.seconds else 0.0
        return (
            f"{self.requests} requests: {self.answered} answered, {self.failed} failed; {self.prompt_tokens} prompt "
            f"tokens, {self.cached_tokens} of them cached, {self.completion_tokens} completion tokens in "
            f"{self.seconds:.1f} s ({rate:.1f} a second)"
        )


@dataclass(slots=True, kw_only=True)
class _Asked:
    """A line whose prompts run: a request for each, and the completions that are there, by the prompt's place."""

    line: BatchLine
    call: Call
    requests: list[Request]
    done: dict[int, Completion] = field(default_factory=dict)
    has_failed: bool = False  # with one of its prompts; what comes of the others is nobody's


class Batch:
    """One batch on one engine; `summary` holds at any time."""

    def __init__(self, engine: InPlaceEngine, out: IO[str], on_line: Callable[[Summary], None]) -> None:
        self.summary = Summary()
        self._engine = engine
        self._out = out
        self._on_line = on_line
        fingerprint = engine.engine.ready.fingerprint
        self._model = fingerprint.model_name
        self._intake = Intake(
            engine.tokenizer,
            lambda: fingerprint,
            max_timeout_s=NO_DEADLINE_S,
            defaults=sampling_defaults(engine.tokenizer.folder),
        )
        self._running: dict[int, tuple[_Asked, int]] = {}  # by the number of its job: the line, and the prompt's place
        self._seen: set[str] = set()

    def run(self, lines: Iterable[bytes]) -> None:
        """Answer every line that is not blank; raises OSError where it cannot be written."""
        started_s = time.monotonic()
        try:
            with asyncio.Runner() as runner:  # the router's intake may tokenize in a thread
                for number, outcome in self._engine.run(self._jobs(lines, runner.get_loop())):
                    self._take(*self._running.pop(number), outcome)
        finally:
            self.summary.seconds = time.monotonic() - started_s

    def _take(self, asked: _Asked, place: int, outcome: Completion | PagewireError) -> None:
        if asked.has_failed:
            return
        if isinstance(outcome, PagewireError):
            asked.has_failed = True
            self._write(batch_line.failed(asked.line, outcome))
            return
        asked.done[place] = outcome
        if len(asked.done) == len(asked.requests):
            self._write(batch_line.answered(asked.line, self._body(asked)), list(asked.done.values()))

    def _jobs(self, lines: Iterable[bytes], loop: asyncio.AbstractEventLoop) -> Iterator[Job]:
        count = 0
        for number, data in enumerate(lines, start=1):
            if not data.strip():
                continue
            self.summary.requests += 1
            try:
                line = batch_line.read(data, number)
                if line.custom_id in self._seen:
                    raise InvalidRequest(f"line {number}: custom_id is that of an earlier line", field="custom_id")
            except InvalidRequest as error:
                self._write(batch_line.rejected(batch_line.custom_id_of(data), error))
                continue
            self._seen.add(line.custom_id)
            try:
                call = line.call()
                # Not the runner's `run`, in which CPython makes a CancelledError of a Ctrl-C that comes as it begins.
                accept, check = self._intake.accept, self._intake.check
                requests = [loop.run_until_complete(accept(ask, check(ask))) for ask in call.asks]
                for request in requests:
                    self._engine.check(request.sampling, request.priority)
            except PagewireError as error:
                self._write(batch_line.failed(line, error))
                continue
            asked = _Asked(line=line, call=call, requests=requests)
            for place, request in enumerate(requests):
                self._running[count] = (asked, place)
                count += 1
                yield Job(
                    prompt=request.prompt,
                    sampling=request.sampling,
                    cache_salt=request.cache_salt,
                    priority=request.priority,
                    text_rules=request.text_rules,
                    adapter=request.adapter,
                )

    def _body(self, asked: _Asked) -> dict[str, Any]:
        """Return the answer to all prompts of a line, choices numbered prompt by prompt."""
        chunks: list[Chunk] = []
        finished: list[Finished] = []
        for place, request in enumerate(asked.requests):
            of_prompt, end = self._of_prompt(asked.call, request, asked.done[place], place * (asked.call.ask.n or 1))
            chunks += of_prompt
            finished.append(end)
        model = asked.call.ask.model or self._model
        return Answer(call=asked.call, model=model, created=int(time.time())).whole(chunks, finished)

    def _of_prompt(
        self, call: Call, request: Request, done: Completion, first_index: int
    ) -> tuple[list[Chunk], Finished]:
        finished = Finished(
            endings=tuple(_ending(output) for output in done.outputs),
            usage=Usage(
                prompt_tokens=len(done.prompt_token_ids),
                completion_tokens=_num_tokens(done),
                cached_tokens=done.cached_tokens,
            ),
            prompt=done.prompt_token_ids,
            attempts=1,
            predicted_cached_tokens=0,
            timelines=(),
            report=None,
            first_index=first_index,
            echo=request.echo,
            prompt_logprobs=self._scored_prompt(request, done),
        )
        chunks = [
            Chunk(
                text=output.text,
                token_ids=output.token_ids,
                logprobs=self._scored(request, output),
                index=first_index + index,
                ending=ending,
            )
            for index, (output, ending) in enumerate(zip(done.outputs, finished.endings, strict=True))
        ]
        for finder in self._intake.finders(call.ask, request):
            chunks = [finder.chunk(chunk) for chunk in chunks]
            finished = finder.finished(finished)
        return chunks, finished

    def _scored_prompt(self, request: Request, done: Completion) -> tuple[ScoredToken, ...]:
        if request.sampling.prompt_logprobs is None:
            return ()
        tokenizer = self._engine.tokenizer
        offsets = tokenizer.places_within(request.echo, request.prompt) if request.echo is not None else ()
        return scored_prompt(request.prompt, done.prompt_logprobs, tokenizer.token_bytes, offsets)

    def _scored(self, request: Request, output: Output) -> tuple[ScoredToken, ...]:
        if request.sampling.logprobs is None:
            return ()
        tokenizer = self._engine.tokenizer
        offsets = tokenizer.places(request.text_rules, len(request.echo or "")).of(output.token_ids)
        return scored(output.logprobs, tokenizer.token_bytes, offsets)

    def _write(self, line: dict[str, Any], done: Sequence[Completion] = ()) -> None:
        with uninterrupted():  # no half lines, and no line that is not counted
            self._out.write(json.dumps(line, ensure_ascii=False) + "\n")
            self._out.flush()
            summary = self.summary
            if done:
                summary.answered += 1
            else:
                summary.failed += 1
            for each in done:
                summary.prompt_tokens += len(each.prompt_token_ids)
                summary.cached_tokens += each.cached_tokens
                summary.completion_tokens += _num_tokens(each)
            self._on_line(summary)


def _ending(output: Output) -> Ending:
    return Ending(
        finish_reason=output.finish_reason,
        stop_text=output.stop_reason if isinstance(output.stop_reason, str) else None,
        stop_token_id=output.stop_reason if isinstance(output.stop_reason, int) else None,
        cumulative_logprob=output.cumulative_logprob,
        score=output.score,
    )


def _num_tokens(done: Completion) -> int:
    return sum(len(output.token_ids) for output in done.outputs)


def run(
    load: Callable[[], InPlaceEngine], source: Path, target: Path, report: Callable[[str, float], None]
) -> tuple[Summary, bool]:
    """Answer the file `source` in `target`; return the summary, and whether it came to the end or was interrupted.

    Raises OSError where a file cannot be read or written, ValueError where both are one.
    """
    if target.exists() and target.samefile(source):
        raise ValueError(f"{target} is the input: the output needs a file of its own")
    out_file.try_out(target)
    with source.open("rb") as lines:
        total = _count(lines)
        report("loading the model", 0.0)
        engine = load()
        with contextlib.closing(engine), target.open("w", encoding="utf-8") as out:
            batch = Batch(engine, out, lambda done: report("answering", _share(done, total)))
            try:
                batch.run(lines)
            except KeyboardInterrupt:
                return batch.summary, False
            finally:
                engine.tokenizer.close()
    return batch.summary, True


def _count(lines: IO[bytes]) -> int:
    """Return how many requests there are, 0 where that shows at the end alone: a pipe is read once."""
    if not lines.seekable():
        return 0
    total = sum(1 for line in lines if line.strip())
    lines.seek(0)
    return total


def _share(done: Summary, total: int) -> float:
    """Return which share of a batch is done, as far as that is known: a file may have grown since it was counted."""
    return min(1.0, (done.answered + done.failed) / total) if total else 0.0


def as_json(summary: Summary) -> str:
    """Return the summary as a JSON object."""
    return json.dumps(dataclasses.asdict(summary))

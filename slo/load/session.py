"""One arrival being played: its turns asked one after the other, each with a record. A turn that fails ends it.

Invariant: latencies count from when a turn was due, which is its arrival's time, or the stamp of the last answer's end
and the time to think: nothing that this process does in between makes it due later.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import pairwise

from pagewire.slo.figures.record import Record
from pagewire.slo.figures.ttft_parts import ttft_parts_s
from pagewire.slo.load.ask import Ask, AskFailed, Part, Prompt, Target, Usage
from pagewire.slo.load.conversation import Conversation, Wording
from pagewire.slo.load.run_clock import RunClock
from pagewire.slo.workloads.arrival import Arrival, Turn


@dataclass(frozen=True, slots=True)
class _Written:
    """A turn that is ready to be sent."""

    turn: Turn
    prompt: Prompt
    request_id: str
    answer: AsyncGenerator[Part, None]


@dataclass(slots=True)
class _Heard:
    """What came of an answer so far, when it was over, and what it failed of."""

    parts: list[Part] = field(default_factory=list)
    ended_s: float = 0.0
    error: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """A request has `timeout_s` from its sending; none is asked that is due from `duration_s` of the run on."""

    timeout_s: float
    duration_s: float = math.inf


class Session:
    """An arrival's turns. Its first one is written when it is made, so that sending it takes no time.

    `is_cut` once there was another one, which the run was too short for.
    """

    def __init__(
        self, run_id: str, number: int, arrival: Arrival, *, target: Target, clock: RunClock, wording: Wording,
        limits: Limits,
    ) -> None:  # fmt: skip
        self._run_id = run_id
        self._number = number
        self._arrival = arrival
        self._target = target
        self._clock = clock
        self._limits = limits
        self._said = Conversation(wording, number)
        self._next = self._write(0)
        self.is_cut = False

    async def records(self, due_s: float) -> AsyncIterator[Record]:
        """Ask turn by turn, the first at once; yield each turn's record when its answer ended."""
        for index in range(len(self._arrival.turns)):
            sent_s = self._clock.now()
            written, heard = self._next, await self._ask(self._next)
            yield self._record(index, written, heard, due_s=due_s, sent_s=sent_s)
            if heard.error or index + 1 == len(self._arrival.turns):
                return
            due_s = heard.ended_s + self._arrival.turns[index + 1].think_s
            if due_s >= self._limits.duration_s:
                self.is_cut = True
                return
            self._said = self._said.answered(written.prompt, written.turn, heard.parts)
            self._next = self._write(index + 1)
            await self._clock.until(due_s)

    def _write(self, index: int) -> _Written:
        turn, request_id = self._arrival.turns[index], f"{self._run_id}-{self._number}-{index}"
        prompt = self._said.prompt(turn)
        ask = Ask(
            prompt=prompt,
            max_tokens=turn.output_tokens,
            request_id=request_id,
            model=self._arrival.model,
            priority=self._arrival.priority,
        )
        return _Written(turn, prompt, request_id, self._target.call(ask))

    async def _ask(self, written: _Written) -> _Heard:
        heard = _Heard()
        try:
            async with asyncio.timeout(self._limits.timeout_s), aclosing(written.answer) as answer:
                async for part in answer:
                    heard.parts.append(part)
        except TimeoutError:
            heard.error, heard.detail = "timeout", f"it took longer than {self._limits.timeout_s:g} s"
        except AskFailed as error:
            heard.error, heard.detail = error.name, error.detail
        if not heard.error and not any(part.has_token for part in heard.parts):
            heard.error, heard.detail = "no_tokens", "the answer had no tokens"
        heard.ended_s = self._clock.now() if heard.error else heard.parts[-1].at_s
        return heard

    def _record(self, index: int, written: _Written, heard: _Heard, *, due_s: float, sent_s: float) -> Record:
        times = [part.at_s for part in heard.parts if part.has_token]
        unknown = Usage(prompt_tokens=None, output_tokens=None, cached_tokens=None)
        usage = next((part.usage for part in reversed(heard.parts) if part.usage is not None), unknown)
        named = sum(len(part.token_ids) for part in heard.parts)
        return Record(
            arrival=self._number,
            turn=index,
            intended_s=due_s,
            sent_s=sent_s,
            first_s=times[0] if times else None,
            last_s=times[-1] if times else None,
            gaps_s=tuple(b - a for a, b in pairwise(times)),
            input_tokens=usage.prompt_tokens or self._arrival.prompt_tokens(index),
            output_tokens=usage.output_tokens or named or len(times),
            wanted_tokens=written.turn.output_tokens,
            cached_tokens=usage.cached_tokens,
            ttft_parts_s=ttft_parts_s([each for part in heard.parts for each in part.timelines]),
            ended_s=heard.ended_s,
            error=heard.error,
            detail=heard.detail,
            session=self._arrival.session,
            request_id=written.request_id,
        )

"""Plays a workload to a simulated cluster: who asks what, and when, with tokens that are names.

A token of a piece is its id, one of an answer the number of its request: prompts are equal where pieces are, and a
session's next prompt begins with what was said before. Invariant: each turn of each arrival is asked once, or never
where the turn before it failed.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from pagewire.core.block_hash import BlockHash
from pagewire.core.sampling import SamplingParams
from pagewire.core.sequence_spec import SequenceSpec
from pagewire.router.request import Request
from pagewire.slo.simulation.agenda import Agenda
from pagewire.slo.simulation.request import SimRequest
from pagewire.slo.workloads.arrival import Arrival, Turn
from pagewire.slo.workloads.workload import Workload

HALF = 1 << 31  # names of pieces lie below it, those of answers from it on
TIMEOUT_S = 1e9  # nobody gives up
ASK_AGAIN_S = 1e-3  # a user who is refused at once: who asked at the same moment again would stop the clock


@dataclass(slots=True, kw_only=True)
class _Session:
    """An arrival that goes on: `prompt` is all that was said up to the turn that is asked."""

    number: int
    arrival: Arrival
    turn: int = 0
    prompt: tuple[int, ...] = ()


class Player:
    """One workload's; `ask` takes each request when it is due, none of them from `duration_s` on.

    `is_cut` once there was more to ask than that.
    """

    def __init__(
        self, agenda: Agenda, workload: Workload, root: BlockHash, ask: Callable[[SimRequest], None],
        duration_s: float = math.inf,
    ) -> None:  # fmt: skip
        self._agenda = agenda
        self._arrivals: Iterator[tuple[int, Arrival]] = enumerate(workload)
        self._piece_tokens = workload.piece_tokens
        self._concurrency = workload.concurrency
        self._root = root
        self._ask = ask
        self._duration_s = duration_s
        self.is_cut = workload.is_cut
        self._sessions: dict[int, _Session] = {}  # by the number of the request that runs
        self._seen: set[int] = set()  # what prompts began with
        self._num_requests = 0
        self._num_to_come = 0  # asked at a moment that is on the agenda

    @property
    def is_over(self) -> bool:
        """True when nothing is asked or will be."""
        return not self._sessions and not self._num_to_come

    def begin(self) -> None:
        """Put what comes first on the agenda."""
        for _ in range(self._concurrency or 1):
            self._next()

    def over(self, request: SimRequest) -> None:
        """A request is over: its session goes on, or its user takes the next arrival."""
        session = self._sessions.pop(request.number)
        turn, turns = session.turn + 1, session.arrival.turns
        due_s = self._agenda.now() + turns[turn].think_s if turn < len(turns) else math.inf
        goes_on = not request.error and math.isfinite(due_s)
        if goes_on and due_s < self._duration_s:
            session.prompt += (request.answer,) * len(request.tokens_s)
            session.turn = turn
            self._come(due_s, session)
            return
        self.is_cut |= goes_on
        if self._concurrency:
            self._next(pause_s=0.0 if self._agenda.now() > request.due_s else ASK_AGAIN_S)

    def _next(self, pause_s: float = 0.0) -> None:
        found = next(self._arrivals, None)
        if found is None:
            return
        number, arrival = found
        due_s = self._agenda.now() + pause_s if self._concurrency else arrival.at_s
        if due_s >= self._duration_s:
            self.is_cut = True
            return
        self._come(due_s, _Session(number=number, arrival=arrival))

    def _come(self, due_s: float, session: _Session) -> None:
        self._num_to_come += 1
        self._agenda.at(due_s, self._due, session)

    def _due(self, session: _Session) -> None:
        self._num_to_come -= 1
        if not self._concurrency and session.turn == 0:
            self._next()
        turn, priority = session.arrival.turns[session.turn], session.arrival.priority
        session.prompt += _tokens(turn, self._piece_tokens)
        number, self._num_requests = self._num_requests, self._num_requests + 1
        first = session.prompt[0]
        has_first_seen = first in self._seen
        self._seen.add(first)
        sampling = _sampling(turn.output_tokens)
        request = SimRequest(
            number=number,
            arrival=session.number,
            turn=session.turn,
            session=session.arrival.session,
            due_s=self._agenda.now(),
            asked=Request(
                request_id=str(number),
                prompt=session.prompt,
                sampling=sampling,
                cache_salt="",
                timeout_s=TIMEOUT_S,
                priority=priority,
            ),
            spec=SequenceSpec(
                request_id=str(number), tokens=session.prompt, sampling=sampling, root=self._root, priority=priority
            ),
            answer=HALF + number % HALF,
            has_first_seen=has_first_seen,
        )
        self._sessions[number] = session
        self._ask(request)


def _tokens(turn: Turn, piece_tokens: int) -> tuple[int, ...]:
    if turn.text:
        return (zlib.crc32(turn.text.encode()) % HALF,) * turn.input_tokens
    tokens: list[int] = []
    for piece in turn.pieces:
        tokens += [piece % HALF] * piece_tokens
    return tuple(tokens[: turn.input_tokens])


@lru_cache(maxsize=4096)
def _sampling(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True)

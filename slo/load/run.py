"""One run of a workload against a running server: who is asked, what came of it, and how sure one can be of it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from pagewire.client import Tls
from pagewire.slo.figures.objectives import Objectives
from pagewire.slo.figures.origin import machine, versions
from pagewire.slo.figures.record import Record
from pagewire.slo.figures.statistics import distribution_ms
from pagewire.slo.figures.summary import Summary
from pagewire.slo.figures.table import failures
from pagewire.slo.figures.tally import Tally
from pagewire.slo.load.ask import Target
from pagewire.slo.load.conversation import Wording
from pagewire.slo.load.grpc_target import GrpcTarget
from pagewire.slo.load.http_target import HttpTarget
from pagewire.slo.load.pieces import Vocabulary
from pagewire.slo.load.player import Played, Player
from pagewire.slo.load.run_clock import RunClock
from pagewire.slo.load.session import Limits
from pagewire.slo.workloads.workload import Workload

HTTP = ("http://", "https://")
LATE_MS = 10.0  # of which more is worth a word: a loop's timer alone is about 1 ms late


class _OpenTarget(Target, Protocol):
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Who is asked: an OpenAI-compatible HTTP server, or the gRPC address (HOST:PORT) of a router of ours.

    `api_key`, `ca` and our own `cert` with its `key` (PEM files) are for servers that ask for them. `extends`: see
    HttpTarget. Raises ValueError on a certificate without its key.
    """

    url: str
    model: str = ""
    extends: bool = True
    api_key: str = field(default="", repr=False)
    ca: str = ""
    cert: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        if bool(self.cert) != bool(self.key):
            raise ValueError("a certificate and its key are given together")

    def target(self, now: Callable[[], float]) -> AbstractAsyncContextManager[_OpenTarget]:
        """Return the way to ask it, to be opened."""
        if self.url.startswith(HTTP):
            return HttpTarget(
                self.url, now=now, extends=self.extends, model=self.model, api_key=self.api_key, ca=self.ca,
                cert=self.cert, key=self.key,
            )  # fmt: skip
        tls = Tls(ca=self.ca, cert=self.cert, key=self.key)
        shown = tls if tls.files else None
        return GrpcTarget(self.url, now=now, model=self.model, api_key=self.api_key, tls=shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """How a workload is played: the first `warmup_s` do not count, nor what is due from `duration_s` on.

    All that came behind the warm-up counts where a workload ends before that. A request has `timeout_s`. Pieces become
    tokens of `vocabulary`, or the words of a chat.
    """

    objectives: Objectives
    warmup_s: float = 0.0
    duration_s: float = math.inf
    timeout_s: float = 600.0
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    is_chat: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run came to. Its records are all there were; its summary is of the steady window.

    `counters` is by how much each counter of each pod rose from the run's beginning to its end, warm-up included; empty
    where nobody looked. `left` is how many arrivals were under way when it was cut short, None where it was not.
    """

    model: str
    records: tuple[Record, ...]
    summary: Summary
    lags_s: tuple[float, ...]
    counters: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    left: int | None = None

    def warnings(self) -> list[str]:
        """Return what makes the figures less than they seem."""
        summary, said = self.summary, []
        if self.left is not None:
            said.append(
                f"the run was cut short: {self.left} arrivals were under way, and their last answers do not count"
            )
        late, lag = summary.measures["late"], distribution_ms(self.lags_s)
        if late is not None and late.p99 > LATE_MS:
            said.append(f"requests were sent up to {late.max:.0f} ms late (p99 {late.p99:.0f} ms): the client is slow")
        if lag is not None and lag.p99 > LATE_MS:
            said.append(
                f"the client was busy for up to {lag.max:.0f} ms (p99 {lag.p99:.0f} ms) when tokens may have come"
            )
        if summary.short:
            said.append(f"{summary.short} answers were shorter than asked for")
        details = {each.error: each.detail for each in reversed(self.records) if each.error}
        return [*said, *failures(summary, details)]

    def as_json(self, **beside: Any) -> dict[str, Any]:
        """Return it as a JSON object with machine and versions, and what the caller adds."""
        lag = distribution_ms(self.lags_s)
        return {
            **self.summary.as_json(),
            "client_lag_ms": {"p50": lag.p50, "p99": lag.p99, "max": lag.max} if lag else None,
            "warnings": self.warnings(),
            "is_cut_short": self.left is not None,
            "model": self.model,
            "requests_in_all": len(self.records),
            "counters": {pod: dict(each) for pod, each in self.counters.items()},
            "machine": machine(),
            "versions": versions("httpx", "grpcio"),
            **beside,
        }


async def run(
    workload: Workload, server: Server, plan: RunPlan, *, on_start: Callable[[Played], None] = lambda played: None,
    on_record: Callable[[Record], None] = lambda record: None, may_be_cut_short: bool = False,
) -> Run:  # fmt: skip
    """Play a workload; `on_start` is given what grows while it runs.

    Where it `may_be_cut_short` and is cancelled, it returns what came until then, if any of that counts. Raises
    Unavailable where nobody answers at all, ValueError where no request was due in the steady window.
    """
    clock = RunClock()
    wording = Wording(
        piece_tokens=workload.piece_tokens, seed=workload.seed, vocabulary=plan.vocabulary, is_chat=plan.is_chat
    )
    limits = Limits(timeout_s=plan.timeout_s, duration_s=plan.duration_s)
    async with server.target(clock.now) as target:
        player = Player(workload, target, clock, wording, limits, on_record)
        on_start(player.played)
        played, left = player.played, None
        try:
            await player.play()
        except asyncio.CancelledError:
            if not may_be_cut_short or not any(each.intended_s >= plan.warmup_s for each in played.records):
                raise
            left = played.left
        model = target.model
    tally = Tally(plan.warmup_s, plan.duration_s, plan.objectives, is_closed=bool(workload.concurrency))
    for record in played.records:
        tally.add(record)
    summary = tally.summary(is_cut=played.is_cut and left is None)
    return Run(model=model, records=tuple(played.records), summary=summary, lags_s=tuple(played.lags_s), left=left)

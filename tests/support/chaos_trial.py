"""A fault that strikes a cluster under open-loop load, and the row of figures that it comes to.

    load -> the fault strikes -> it ends, what died is started anew -> whole again -> load goes on for a while -> rest

Knows nothing of what faults do. A row is what was seen; `Row.faults` says what of it breaks a promise: tokens that are
not the model's, blocks that are held for nobody, requests that failed though nobody who had them died with them, an
answer that took longer than its promise to come back to.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from chaos_cluster import WHOLE_S, ChaosCluster
from load_call import WAIT_S, Call
from load_questions import Question
from open_load import OpenLoad

TTFT_S, GAP_S = 0.5, 0.25  # the SLOs: the first token, and the longest silence after it
BEFORE_S, AFTER_S = 2.0, 1.0
RATE = 6.0
BURST = 9  # begun just before the strike: a third of them streams by then, the others wait, are prefilled or shipped
TICK_S, STOOD_STILL_S = 0.1, 0.6
MAX_TRIES = 3
NOTICE_S = 0.5  # until a pod knows that its engine is dead, and is seen to be gone itself
# How long each part of a trial may take. What takes longer is a trial that came to nothing, and it says which it was.
BURST_MOST_S, END_MOST_S, REST_MOST_S = 60.0, 2 * WAIT_S + 15.0, 60.0  # a caller may wait at two routers
WHOLE_MOST_S = 4 * WHOLE_S  # of the clock: it counts its own moments


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is done. `strike` returns when the fault is over; what died is started by the supervisor.

    `may_fail` are the codes of errors that requests may end with; each stands for a promise that is not made.
    """

    name: str
    kind: str
    strike: Callable[[ChaosCluster], Awaitable[None]]
    may_fail: frozenset[str] = frozenset()
    recovers_s: float = 20.0
    lasts_most_s: float = 60.0


class Overdue(AssertionError):
    """A part of a trial that took longer than it may: which, and what was not as it was waited for."""


@dataclass(slots=True)
class Row:
    """What a fault came to. Times in seconds from the strike; `recovery_s` is when the last request that failed or
    missed an SLO was over, 0 where none did; `whole_s` when every router knew every process again.
    """

    fault: str
    kind: str
    requests: int
    failed: dict[str, int]
    wrong: int
    leaked: dict[str, float]
    recovery_s: float
    whole_s: float
    before: int
    missed_before: int
    after: int
    missed_after: int
    moved: int = 0
    causes: dict[str, int] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    broken_promises: list[str] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        """Return it as it is kept."""
        return asdict(self)


async def run(cluster: ChaosCluster, fault: Fault, questions: Sequence[Question], *, before_s: float = BEFORE_S) -> Row:
    """Let a fault strike, `before_s` after calls began; all is whole again when this returns.

    Where we ourselves stood still meanwhile, as on a machine that was stopped, times say nothing: it is done again.
    Raises Overdue, and AssertionError where the cluster is not whole again: it is of no more use then.
    """
    for _ in range(MAX_TRIES):
        watch = asyncio.create_task(_stood_still())
        try:
            found = await _run_once(cluster, fault, questions, before_s)
        finally:
            was_still = watch.done()
            watch.cancel()
        if not was_still:
            break
    return found


async def _stood_still() -> None:
    """Return once this process got no time for a while."""
    while True:
        before_s = time.monotonic()
        await asyncio.sleep(TICK_S)
        if time.monotonic() - before_s > TICK_S + STOOD_STILL_S:
            return


async def _run_once(cluster: ChaosCluster, fault: Fault, questions: Sequence[Question], before_s: float) -> Row:
    async with _within(WHOLE_MOST_S, "the cluster to be whole before the strike", cluster):
        await cluster.until_whole()
    async with OpenLoad(lambda: cluster.urls, questions, RATE, f"{fault.name} {time.monotonic()}") as load:
        await asyncio.sleep(before_s)
        async with _within(BURST_MOST_S, "the burst's first answers", cluster):
            await load.burst(BURST, BURST // 3)  # or on a quick machine the strike would meet nobody
        struck_s = time.monotonic()
        async with _within(fault.lasts_most_s, "the strike's end", cluster):
            await fault.strike(cluster)
        await asyncio.sleep(NOTICE_S)
        async with _within(WHOLE_MOST_S, "the cluster to be whole again", cluster):
            await cluster.until_whole()
        whole_s = time.monotonic() - struck_s
        await asyncio.sleep(AFTER_S)
        async with _within(END_MOST_S, "the last answers", cluster):
            calls = await load.stop()
    async with _within(REST_MOST_S, "blocks to be free", cluster):
        leaked = await cluster.leaked()
    return row(fault, calls, struck_s, whole_s, leaked)


@contextlib.asynccontextmanager
async def _within(most_s: float, what: str, cluster: ChaosCluster) -> AsyncIterator[None]:
    """Bound a part of a trial. Raises Overdue."""
    try:
        async with asyncio.timeout(most_s):
            yield
    except TimeoutError as error:
        raise Overdue(f"waited {most_s:.0f} s for {what}; it lacks {cluster.lacks}") from error


def row(fault: Fault, calls: Sequence[Call], struck_s: float, whole_s: float, leaked: dict[str, float]) -> Row:
    """Count."""
    before = [call for call in calls if call.end_s <= struck_s]
    after = [call for call in calls if call.end_s > struck_s]
    bad = [call for call in after if _is_bad(call)]
    found = Row(
        fault=fault.name, kind=fault.kind, requests=len(calls),
        failed=dict(Counter(call.error for call in calls if call.error)),
        wrong=sum(call.is_wrong for call in calls), leaked=leaked,
        recovery_s=round(max((call.end_s - struck_s for call in bad), default=0.0), 2), whole_s=round(whole_s, 2),
        before=len(before), missed_before=sum(_is_bad(call) for call in before),
        after=len(after), missed_after=len(bad),
        moved=sum(call.said.get("attempts", 1) > 1 for call in after),
        causes=dict(Counter(cause for call in after for cause in call.said.get("report", {}).get("causes", ()))),
        messages=sorted({call.message for call in calls if call.message}),
    )  # fmt: skip
    found.broken_promises = list(_broken(found, fault))
    return found


def _is_bad(call: Call) -> bool:
    return bool(call.error) or call.ttft_s > TTFT_S or call.longest_gap_s > GAP_S


def _broken(row: Row, fault: Fault) -> list[str]:
    said = []
    if row.wrong:
        said.append(f"{row.wrong} answers had wrong tokens")
    if row.leaked:
        said.append(f"held for nobody: {row.leaked}")
    if unforeseen := {code: number for code, number in row.failed.items() if code not in fault.may_fail}:
        said.append(f"failed: {unforeseen}")
    if row.recovery_s > fault.recovers_s:
        said.append(f"recovered after {row.recovery_s} s")
    return said

"""More than there is room for: what is still served in time, and what becomes of the rest.

Goodput is answers that met both objectives, begun in the measured seconds, over these seconds. At each rate some
seconds come first that are not measured. Two ways to be protected: places for so many requests that those who have one
are in time (`PLACES`), or objectives alone, whose predictions have to prove right before anything is refused by them
(docs/admission.md). The peak is at the rate of the largest goodput, of rates that begin about what a closed loop comes
to and rise until less is served in time than is offered: a few callers fill less of a batch than there is room for. It
and rates beyond it are taken in turns, since a shared machine's pace changes; the median of three times the peak is
held against the largest median of any rate. Callers keep their connections.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil
from load_call import Call, ask
from load_cluster import LoadCluster
from load_questions import Question
from load_row import Row, milliseconds, p50_p99
from open_load import OpenLoad
from process_watch import processor_s_of

TTFT_S, TPOT_S = 1.0, 0.1
OBJECTIVES = ("--slo-ttft-s", str(TTFT_S), "--slo-tpot-s", str(TPOT_S))
PLACES = {"PAGEWIRE_MAX_CONCURRENT": "12"}
CLOSED = 8
ABOUT = (0.8, 1.0, 1.2)  # of what a closed loop of so many comes to
RISE, SERVED = 1.25, 0.95  # from one rate to the next, while that much of what is offered is served in time
BEYOND = (1.5, 2.0, 3.0)  # of the peak
TURNS = 5  # of the peak's rate and those beyond it
KEPT = 0.9
REFUSED_WITHIN_S = 0.25
CALLERS = "callers"


@dataclass(frozen=True, slots=True)
class Offered:
    """What one rate came to: all calls, and those begun in the measured seconds."""

    rate: float
    span_s: float
    calls: tuple[Call, ...]
    measured: tuple[Call, ...]
    cores: Mapping[str, float]  # that each process had in the measured seconds, and we ourselves

    @property
    def goodput(self) -> float:
        """Answers a second that met both objectives."""
        return sum(map(is_good, self.measured)) / self.span_s


def is_good(call: Call) -> bool:
    """Whether a call is whole and met both objectives."""
    return not call.error and call.ttft_s <= TTFT_S and tpot_s(call) <= TPOT_S


def tpot_s(call: Call) -> float:
    """Return the seconds for each token after the first."""
    return (call.end_s - call.begun_s - call.ttft_s) / max(1, call.max_tokens - 1)


def is_refused(call: Call) -> bool:
    """Whether a call was turned away by a status, before anything of an answer."""
    return call.status in (429, 503)


async def offer(
    cluster: LoadCluster, questions: Sequence[Question], rate: float, *, lead_s: float, span_s: float, name: str
) -> Offered:
    """Let calls come at a rate for `lead_s` and then `span_s` seconds; returns when all are over."""
    begun_s = time.monotonic() + lead_s
    processes = {CALLERS: psutil.Process(), **cluster.processes}
    async with OpenLoad(lambda: [cluster.url], questions, rate, name, is_lean=True) as load:
        await asyncio.sleep(lead_s)
        before = processor_s_of(processes)
        await asyncio.sleep(begun_s + span_s - time.monotonic())
        after = processor_s_of(processes)
        calls = await load.stop()
    measured = tuple(call for call in calls if begun_s <= call.begun_s < begun_s + span_s)
    cores = {who: (after[who] - before[who]) / span_s for who in processes}
    return Offered(rate, span_s, tuple(calls), measured, cores)


async def flood(cluster: LoadCluster, questions: Sequence[Question], number: int) -> tuple[Row, list[Call]]:
    """Let so many come in one moment; the row has promises alone."""
    before = await cluster.counts()
    async with OpenLoad(lambda: [cluster.url], questions, 1.0, f"flood {time.monotonic()}") as load:
        await load.burst(number, number)
        calls = await load.stop()
    row = Row("overload")
    row.promises = await _promises(cluster, before, calls)
    return row, calls


async def run(
    cluster: LoadCluster, questions: Sequence[Question], *, protection: str, lead_s: float, span_s: float
) -> Row:
    """Find what the cluster can do, then ask for more. `protection` names what the cluster was started with."""
    closed = await _closed(cluster, questions, lead_s + span_s)
    before, found = await cluster.counts(), list[Offered]()

    async def at(rate: float) -> None:
        name = f"{rate} {time.monotonic()}"
        found.append(await offer(cluster, questions, rate, lead_s=lead_s, span_s=span_s, name=name))
        await cluster.rest()

    for share in ABOUT:
        await at(share * closed)
    while found[-1].goodput >= SERVED * found[-1].rate:
        await at(RISE * found[-1].rate)
    best = max(found, key=lambda each: each.goodput)
    for _ in range(TURNS):
        for rate in (best.rate, *(share * best.goodput for share in BEYOND)):
            await at(rate)
    calls = [call for each in found for call in each.calls]
    by_rate = {rate: [each for each in found if each.rate == rate] for rate in dict.fromkeys(run.rate for run in found)}
    goodput = {rate: statistics.median(each.goodput for each in runs) for rate, runs in by_rate.items()}
    at_peak, at_most = by_rate[best.rate], by_rate[found[-1].rate]
    peak, most = max(goodput.values()), goodput[found[-1].rate]
    loud = [call for each in at_most for call in each.measured]
    waits_s = [call.end_s - call.begun_s for call in loud if is_refused(call)]
    row = Row(f"overload, {protection}")
    row.figures = {
        "objectives": f"TTFT {TTFT_S:g} s, TPOT {TPOT_S:g} s",
        "requests/s in a closed loop of eight": round(closed, 1),
        **{
            f"goodput/s at {rate:.1f} offered/s": ", ".join(f"{each.goodput:.1f}" for each in runs)
            for rate, runs in by_rate.items()
        },
        "largest goodput/s, goodput/s at three times": f"{peak:.1f}, {most:.1f}",
        "goodput at three times the peak, share of the largest": round(most / peak, 2),
        "of those calls refused, served in time, served late": ", ".join(
            str(sum(map(which, loud)))
            for which in (is_refused, is_good, lambda call: not call.error and not is_good(call))
        ),
        "refused after p50, p99, ms": p50_p99(waits_s),
        **{
            f"cores of {who} at the peak, at three times": ", ".join(
                f"{statistics.median(each.cores[who] for each in runs):.2f}" for runs in (at_peak, at_most)
            )
            for who in best.cores
        },
        "refused by": ", ".join(
            f"{many:.0f} {reason}" for reason, many in (await cluster.told("router_refusals_total", "reason")).items()
        ),
    }
    row.promises = await _promises(cluster, before, calls)
    row.aims = {
        f"goodput at three times the peak is {KEPT:.0%} of the largest": most >= KEPT * peak,
        f"99 of 100 refusals within {REFUSED_WITHIN_S:g} s": milliseconds(waits_s, 0.99) <= 1e3 * REFUSED_WITHIN_S,
    }
    return row


async def _closed(cluster: LoadCluster, questions: Sequence[Question], seconds: float) -> float:
    """Return the requests a second that a few callers get through who wait for each answer."""
    ends_s, serial, done = time.monotonic() + seconds, itertools.count(), list[Call]()

    async def caller() -> None:
        while time.monotonic() < ends_s:
            number = next(serial)
            question = questions[number % len(questions)]
            call = Call(question, time.monotonic(), len(question.answer))
            done.append(await ask(call, [cluster.url], cache_salt=f"closed.{ends_s}.{number}"))

    begun_s = time.monotonic()
    async with asyncio.TaskGroup() as callers:
        for _ in range(CLOSED):
            callers.create_task(caller())
    return len([call for call in done if not call.error]) / (time.monotonic() - begun_s)


async def _promises(cluster: LoadCluster, before: dict[str, float], calls: Sequence[Call]) -> dict[str, bool]:
    await cluster.rest()
    after = await cluster.counts()
    spent = Counter({name: after[name] - before[name] for name in after})
    served = [call for call in calls if not call.error]
    prompts = sum(len(call.question.prompt) for call in served)
    tokens = sum(call.max_tokens for call in served)
    promises = {
        "no wrong token": not any(call.is_wrong for call in calls),
        "who was let in was served whole": all(not call.error or is_refused(call) for call in calls),
        "refusals say overloaded, and when to come back": all(
            call.error == "overloaded" and call.retry_after.isdigit() and int(call.retry_after) >= 1
            for call in calls
            if is_refused(call)
        ),
    }
    if not spent["preemptions_total"]:  # who was preempted is computed again, so that nothing can be told
        computed = spent["prompt_tokens_computed_total"], spent["generation_tokens_total"]
        promises["nothing was computed for who was refused"] = computed == (prompts, tokens)
    return promises

"""Hours of mixed load, squeezed: what grows, what is left at rest, and whether every token is right.

    warm up -> rest, counted -> the load, with looks at every process -> rest, counted again

Callers in a closed loop take turns at whatever `KINDS` has: streams, several answers, streams that are left, slow
readers, prompts that were asked before and prompts that nobody has. Pools are small, so that blocks are evicted.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from load_call import Call, ask
from load_cluster import LoadCluster
from load_questions import Question
from load_row import Row, p50_p99
from process_watch import ProcessWatch

KINDS = {"streamed": 6, "repeated": 4, "three answers": 1, "left": 1, "read slowly": 1}
CALLERS = 8
PACE_S = 0.02
LOOK_S = 5.0
GROWTH_KIB = 256.0  # of any process, for each 1,000 requests
WARM_SHARE = 0.15
SPARE_THREADS = 4  # gRPC and thread pools start theirs as they need them, up to a bound of their own
KEYS = 64  # in Redis: pods, their caches, what they cost


@dataclass(slots=True)
class Tally:
    """What callers heard."""

    num_requests: int = 0
    num_tokens: int = 0
    num_wrong: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    ttfts_s: list[float] = field(default_factory=list)

    def take(self, kind: str, call: Call) -> None:
        """Count a call that is over, or was left."""
        self.num_requests += 1
        self.num_tokens += call.num_tokens
        self.num_wrong += call.is_wrong
        self.kinds[kind] += 1
        if kind != "left":
            self.errors.update([call.error] if call.error else [])
            self.ttfts_s.append(call.ttft_s)


async def run(
    cluster: LoadCluster,
    fresh: Sequence[Question],
    repeated: Sequence[Question],
    *,
    span_s: float,
    look_s: float = LOOK_S,
    seed: int = 1,
) -> Row:
    """Ask for `span_s` seconds; of `repeated` prompts the beginnings are found in the cache, of `fresh` ones never."""
    chance, serial = random.Random(seed), itertools.count()
    warm, tally = Tally(), Tally()

    async def load(seconds: float, tally: Tally) -> None:
        ends_s = time.monotonic() + seconds
        async with asyncio.TaskGroup() as callers:
            for _ in range(CALLERS):
                callers.create_task(_caller(cluster.url, fresh, repeated, chance, serial, ends_s, tally))

    await load(span_s * WARM_SHARE, warm)
    before = await cluster.rest()
    watch = ProcessWatch(cluster.processes, lambda: tally.num_requests)
    looks = asyncio.create_task(watch.keep_looking(look_s))
    try:
        await load(span_s * (1 - WARM_SHARE), tally)
        await watch.look()
    finally:
        looks.cancel()
        await asyncio.gather(looks, return_exceptions=True)
    after = await cluster.rest(at_most=before.descriptors)
    growth = {name: watch.growth(name) for name in watch.processes}
    more_threads = {name: after.threads[name] - before.threads[name] for name in after.threads}
    row = Row("soak")
    counted = await cluster.counts()
    kinds = sorted((warm.kinds + tally.kinds).items())
    row.figures = {
        "seconds": round(span_s),
        "requests": warm.num_requests + tally.num_requests,
        "requests by kind": ", ".join(f"{many} {kind}" for kind, many in kinds),
        "tokens compared": warm.num_tokens + tally.num_tokens,
        "TTFT p50, p99, ms": p50_p99(tally.ttfts_s),
    }
    for name, each in growth.items():
        row.figures[f"{name}: KiB more for 1,000 requests"] = f"{each.value:.0f} ± {each.error:.0f}"
        mib = (before.own_kib[name] / 1024, after.own_kib[name] / 1024)
        row.figures[f"{name}: own MiB before, after"] = f"{mib[0]:.1f}, {mib[1]:.1f}"
    row.figures |= {
        "blocks evicted, sequences preempted": f"{counted['kv_blocks_evicted_total']:.0f}, "
        f"{counted['preemptions_total']:.0f}",
        "descriptors before, after": f"{sum(before.descriptors.values())}, {sum(after.descriptors.values())}",
        "threads before, after": f"{sum(before.threads.values())}, {sum(after.threads.values())}",
        "keys in Redis before, after": f"{before.keys}, {after.keys}",
    }
    row.promises = {
        "no wrong token": warm.num_wrong + tally.num_wrong == 0,
        "no request failed": not (warm.errors + tally.errors),
        "pools at rest hold nothing for anybody": True,  # or `rest` would have raised
        "no process has more descriptors": all(
            after.descriptors[name] <= many for name, many in before.descriptors.items()
        ),
        "threads are bounded": max(more_threads.values()) <= SPARE_THREADS,
        "keys in Redis are bounded": after.keys <= KEYS + await cluster.num_blocks(),
    }
    row.aims = {
        f"{name} grows by at most {GROWTH_KIB:.0f} KiB for 1,000 requests": each.value - 2 * each.error <= GROWTH_KIB
        for name, each in growth.items()
    }
    return row


async def _caller(
    url: str,
    fresh: Sequence[Question],
    repeated: Sequence[Question],
    chance: random.Random,
    serial: itertools.count[int],
    ends_s: float,
    tally: Tally,
) -> None:
    while time.monotonic() < ends_s:
        (kind,) = chance.choices(list(KINDS), weights=list(KINDS.values()))
        question = chance.choice(repeated if kind == "repeated" else fresh)
        fields: dict[str, Any] = {} if kind == "repeated" else {"cache_salt": f"soak.{next(serial)}"}
        call = Call(question, time.monotonic(), len(question.answer), n=3 if kind == "three answers" else 1)
        if kind == "left":
            await _leave(call, url, chance.random(), **fields)
        else:
            await ask(call, [url], pace_s=PACE_S if kind == "read slowly" else 0.0, **fields)
        tally.take(kind, call)


async def _leave(call: Call, url: str, share: float, **fields: Any) -> None:
    """Hang up once a share of the answer is here, or before the first token where that is none of it."""
    asked = asyncio.create_task(ask(call, [url], **fields))
    while not asked.done() and len(call.parts) <= share * call.max_tokens:  # noqa: ASYNC110 (a call tells nobody)
        await asyncio.sleep(0.005)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    if call.parts and not call.is_over:
        call.read()

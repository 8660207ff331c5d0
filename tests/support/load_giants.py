"""Giant prompts among tiny ones, by each rule of who goes first: nobody starves, and tiny ones hardly wait.

A step computes `max_num_batched_tokens` of prompts, `chunk_size` of each, so fewer giants than the one over the other
leave room for whoever comes in every step. With more of them, first come is first served until `--scheduling srpt`
says otherwise. So what must hold: beside fewer, a tiny prompt that came after giants is answered before them, and
giants are done although tiny ones keep coming.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from load_call import Call, ask
from load_cluster import LoadCluster
from load_questions import Question
from load_row import Row, p50_p99
from open_load import OpenLoad
from patience import comes_true_later

TOKENS = 8
WITHIN_S = 300.0
FEW = 3  # of max_num_batched_tokens / chunk_size = 4
FIRST = 4  # tiny prompts that come at once, when giants have just begun


@dataclass(slots=True)
class Beside:
    """Giants, the tiny ones that came before the last of them had its token, and in how many rounds the first of these
    overtook it.
    """

    giants: list[Call] = field(default_factory=list)
    tiny: list[Call] = field(default_factory=list)
    overtaken: int = 0


async def run(
    cluster: LoadCluster,
    giants: Sequence[Question],
    tiny: Sequence[Question],
    *,
    scheduling: str,
    rate: float,
    alone_s: float,
    many: int,
    rounds: int = 1,
) -> Row:
    """Have tiny prompts come at a rate, alone for a while, then beside `FEW` and beside `many` giants, some rounds of
    each.
    """
    async with OpenLoad(lambda: [cluster.url], tiny, rate, f"alone {time.monotonic()}") as alone:
        await asyncio.sleep(alone_s)
        alone_calls = await alone.stop()
    found = {}
    for number in (FEW, many):
        found[number] = await _beside(cluster, giants, tiny, number, rate, rounds)
    await cluster.rest()
    row = Row(f"giant and tiny prompts, {scheduling}")
    row.figures = {
        "tokens of a giant, of a tiny prompt": f"{len(giants[0].prompt)}, {len(tiny[0].prompt)}",
        "tiny prompts/s": rate,
        "tiny TTFT p50, p99 alone, ms": p50_p99(call.ttft_s for call in alone_calls),
        **{
            f"tiny TTFT p50, p99 beside {number} giants, ms": p50_p99(call.ttft_s for call in each.tiny)
            for number, each in found.items()
        },
        **{
            f"giants' TTFT p50, p99 where they are {number}, ms": p50_p99(call.ttft_s for call in each.giants)
            for number, each in found.items()
        },
    }
    every = [*alone_calls, *(call for each in found.values() for call in (*each.giants, *each.tiny))]
    row.promises = {
        "no wrong token": not any(call.is_wrong for call in every),
        "all are served whole, giants too": not any(call.error for call in every),
        f"tiny prompts overtake {FEW} giants that came before them": found[FEW].overtaken == rounds,
    }
    if scheduling == "srpt":
        row.promises[f"tiny prompts overtake {many} giants that came before them"] = found[many].overtaken == rounds
    return row


async def _beside(
    cluster: LoadCluster, giants: Sequence[Question], tiny: Sequence[Question], number: int, rate: float, rounds: int
) -> Beside:
    found = Beside()

    async def has_begun() -> bool:
        return (await cluster.loads(cluster.live.said["prefill"][0]))["num_requests_running"] > 0

    for _ in range(rounds):
        calls = [Call(giants[i % len(giants)], time.monotonic(), TOKENS) for i in range(number)]
        asked = [
            asyncio.create_task(ask(call, [cluster.url], cache_salt=f"giant.{call.begun_s}.{i}", within_s=WITHIN_S))
            for i, call in enumerate(calls)
        ]
        await comes_true_later(has_begun, within_s=WITHIN_S, every_s=0.0)
        async with OpenLoad(lambda: [cluster.url], tiny, rate, f"beside {time.monotonic()}") as load:
            first = [load.call() for _ in range(FIRST)]
            await asyncio.gather(*asked)
            tiny_calls, last_s = await load.stop(), max(_first_token_s(call) for call in calls)
        found.giants += calls
        found.tiny += [call for call in tiny_calls if call.begun_s < last_s]
        found.overtaken += all(_first_token_s(call) < last_s for call in first)
    return found


def _first_token_s(call: Call) -> float:
    return call.begun_s + call.ttft_s

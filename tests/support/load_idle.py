"""Thousands of open streams that say nothing: what each costs the router, and what a new caller notices.

The seats of a decode pod are taken by long answers; whoever comes then gets the first token, which its prefill pod
draws, and waits for a seat with its connection, its request and its blocks in hand. Then the pod's engine is stopped,
so that nothing but the streams themselves costs anything, and new callers go to a second pod. In the end it goes on,
the seats come free, and all streams must end with the model's tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time
from collections.abc import Sequence

from load_call import Call, ask
from load_cluster import LoadCluster
from load_questions import Question
from load_row import Row, milliseconds
from process_watch import descriptors_of, memory_of

SEATS = 4
TOKENS = 8  # of an idle stream's answer
AT_ONCE = 64  # while they are opened
WITHIN_S = 600.0
FLAGS = ("--max-num-seqs", str(SEATS), "--kv-memory", "512MiB")
ENVIRON = {"PAGEWIRE_MAX_CONCURRENT": "4096", "PAGEWIRE_MAX_NUM_WAITING": "4096", "PAGEWIRE_ENGINE_STALL_S": "600"}
STREAM_KIB = 256.0  # in the router, for each
SPARE = 64


async def run(cluster: LoadCluster, questions: Sequence[Question], *, streams: int, asked: int) -> Row:
    """Hold `streams` open; `asked` requests come one after the other before and meanwhile."""
    allow_descriptors(streams + 1024)
    (pod,) = cluster.live.said["decode"]
    before = await cluster.rest()
    alone = await _one_by_one(cluster, questions, asked, "alone")
    held_before = memory_of({"router": cluster.router})["router"][0]
    async with contextlib.AsyncExitStack() as ends:
        seats: list[asyncio.Task[Call]] = []
        for number in range(SEATS):
            seats.append(await _take_seat(cluster, questions[0], number))
            ends.callback(seats[-1].cancel)
        idle = [Call(questions[i % len(questions)], time.monotonic(), TOKENS) for i in range(streams)]
        began_s = time.monotonic()
        tasks = await _open(cluster, idle)
        opened_s = time.monotonic() - began_s
        engine = cluster.live.engine_of(pod)
        engine.suspend()
        ends.callback(engine.resume)
        spare = await asyncio.to_thread(cluster.live.join, "decode")
        await asyncio.to_thread(_until_usable, cluster, 2)
        beside = await _one_by_one(cluster, questions, asked, "beside")
        is_open = [call.has_tokens and not call.is_over for call in idle]
        held = memory_of({"router": cluster.router})["router"][0]
        descriptors = descriptors_of({"router": cluster.router})["router"]
    await asyncio.gather(*seats, return_exceptions=True)
    await asyncio.gather(*tasks)
    most = before.descriptors["router"] + 1  # the new pod's link
    after = await cluster.rest(at_most={"router": most})
    each_kib = (held - held_before) / streams
    ttfts = [[call.ttft_s for call in calls] for calls in (alone, beside)]
    wholes = [[call.end_s - call.begun_s for call in calls] for calls in (alone, beside)]
    row = Row("idle streams")
    row.figures = {
        "open at once, with a token each": sum(is_open),
        "opened in, s": round(opened_s, 1),
        "router's descriptors before, meanwhile, after": f"{before.descriptors['router']}, {descriptors}, "
        f"{after.descriptors['router']}",
        "router's memory for each, KiB": round(each_kib, 1),
        "new requests' TTFT p50 before, meanwhile, ms": ", ".join(str(milliseconds(each, 0.5)) for each in ttfts),
        "new requests' TTFT p99 before, meanwhile, ms": ", ".join(str(milliseconds(each, 0.99)) for each in ttfts),
        "new requests' whole answer p50 before, meanwhile, ms": ", ".join(
            str(milliseconds(each, 0.5)) for each in wholes
        ),
    }
    row.promises = {
        "all are open at once": all(is_open),
        "no wrong token": not any(call.is_wrong for call in (*alone, *beside, *idle)),
        "all end whole": not any(call.error for call in (*alone, *beside, *idle)),
        "new requests are served meanwhile, elsewhere": all(
            call.said.get("report", {}).get("decode_pod") == spare["id"] for call in beside
        ),
        "a descriptor for each in the router, and no more": descriptors
        <= before.descriptors["router"] + streams + SPARE,
        f"at most {STREAM_KIB:.0f} KiB for each in the router": each_kib <= STREAM_KIB,
        "descriptors are given back": after.descriptors["router"] <= most,
    }
    return row


def allow_descriptors(number: int) -> None:
    """Have this process, and what it starts, open so many; raises ValueError where that is not allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < number:
        resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))


async def _one_by_one(cluster: LoadCluster, questions: Sequence[Question], number: int, name: str) -> list[Call]:
    found = []
    for turn in range(number):
        call = Call(questions[turn % len(questions)], time.monotonic(), TOKENS)
        found.append(await ask(call, [cluster.url], cache_salt=f"{name}.{time.monotonic()}"))
    return found


async def _take_seat(cluster: LoadCluster, question: Question, number: int) -> asyncio.Task[Call]:
    """Begin an answer that does not end before the streams are open."""
    call = Call(question, time.monotonic(), 15_000)
    task = asyncio.create_task(ask(call, [cluster.url], within_s=WITHIN_S, cache_salt=f"seat.{number}.{call.begun_s}"))
    while not call.has_tokens:
        assert not task.done(), call.message
        await asyncio.sleep(0.01)
    return task


async def _open(cluster: LoadCluster, idle: Sequence[Call]) -> list[asyncio.Task[Call]]:
    """Begin all streams, a few at a time; returns when each has its first token, or is over."""
    gate = asyncio.Semaphore(AT_ONCE)
    tasks: list[asyncio.Task[Call]] = []

    async def begin(call: Call) -> None:
        async with gate:
            call.begun_s = time.monotonic()
            salt = f"idle.{call.begun_s}"
            tasks.append(asyncio.create_task(ask(call, [cluster.url], within_s=WITHIN_S, cache_salt=salt)))
            while not (call.has_tokens or call.is_over):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as begins:
        for call in idle:
            begins.create_task(begin(call))
    return tasks


def _until_usable(cluster: LoadCluster, decode: int) -> None:
    deadline_s = time.monotonic() + WITHIN_S
    while cluster.live.usable().get("decode") != decode:
        assert time.monotonic() < deadline_s, "the second pod is not used"
        time.sleep(0.05)

"""Callers who read a byte a millisecond, or nothing at all, beside callers who read.

Whoever reads nothing is hung up on after `STALL_S`, whether the rest of its answer waits in the kernel or in the
router; whoever reads slowly and then goes on gets all of it. The same answers read at once, by as many, are what
others' pace is held against: computing them costs as much.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Sequence
from urllib.parse import urlsplit

from load_call import Call, ask, request_of
from load_cluster import LoadCluster
from load_questions import Question
from load_row import Row, p50_p99
from open_load import OpenLoad
from process_watch import memory_of

STALL_S = 6.0
ENVIRON = {"PAGEWIRE_STALL_S": str(STALL_S)}
ANSWERS, LOGPROBS = 4, 20  # of one request: a third of a megabyte for 150 tokens
RECEIVE_BYTES = 4096
SEGMENT_BYTES = 1448  # as over Ethernet; of loopback's one is larger than that window, and moves by probes alone
SLICE, SLICE_S = 32, 0.032  # a byte a millisecond
WAITS_KIB = 1024.0  # for one slow reader, in the router
WITHIN_S = 120.0


async def run(
    cluster: LoadCluster,
    large: Sequence[Question],
    others: Sequence[Question],
    *,
    slow: int,
    span_s: float,
    rate: float,
) -> Row:
    """Have `slow` callers of each kind read slowly and not at all for `span_s` seconds, and others ask meanwhile."""
    is_over = asyncio.Event()
    quick = [asyncio.create_task(_read_at_once(cluster.url, large[i % len(large)], i)) for i in range(2 * slow)]
    beside_quick = await _others(cluster, others, span_s, rate, "quick")
    quick_calls = await asyncio.gather(*quick)
    before = await cluster.rest()  # by now whoever talks to one another is connected
    held_before = await asyncio.to_thread(memory_of, {"router": cluster.router})
    tricklers = [asyncio.create_task(_trickle(cluster.url, large[i % len(large)], i, span_s)) for i in range(slow)]
    stoppers = [asyncio.create_task(_stop(cluster.url, large[i % len(large)], i, is_over)) for i in range(slow)]
    beside_slow = asyncio.create_task(_others(cluster, others, span_s, rate, "slow"))
    await asyncio.sleep(min(STALL_S, span_s) / 2)
    held = await asyncio.to_thread(memory_of, {"router": cluster.router})
    others_calls = await beside_slow
    trickled = await asyncio.gather(*tricklers)
    after = await cluster.rest(at_most=before.descriptors)  # they do not hear of it before they read
    is_over.set()
    stopped = await asyncio.gather(*stoppers)
    whole = sum(not call.error for call in trickled)
    each_kib = (held["router"][0] - held_before["router"][0]) / (2 * slow)
    row = Row("slow clients")
    row.figures = {
        "a byte a millisecond, nothing at all": f"{slow}, {slow}",
        "answers of each, KiB": round(sum(len(data) for _, data in quick_calls[0].parts) / 1024),
        "slow readers served whole": whole,
        "ended since they read nothing": sum(not call.is_here for call in stopped),
        "router's memory for each, KiB": round(each_kib),
        "others' gap p50, p99 beside as many who read, ms": p50_p99(
            gap for call in beside_quick for gap in call.gaps_s
        ),
        "others' gap p50, p99 beside slow ones, ms": p50_p99(gap for call in others_calls for gap in call.gaps_s),
        "others' TTFT p50, p99 beside as many who read, ms": p50_p99(call.ttft_s for call in beside_quick),
        "others' TTFT p50, p99 beside slow ones, ms": p50_p99(call.ttft_s for call in others_calls),
    }
    row.promises = {
        "no wrong token": not any(
            call.is_wrong for call in (*quick_calls, *trickled, *stopped, *beside_quick, *others_calls)
        ),
        "others are all served whole": not any(call.error for call in (*quick_calls, *beside_quick, *others_calls)),
        "who reads slowly is served whole": whole == slow,
        "who reads nothing is ended": not any(call.is_here for call in stopped),
        f"at most {WAITS_KIB:.0f} KiB wait for each": each_kib <= WAITS_KIB,
        "no process has more descriptors": all(after.descriptors[n] <= many for n, many in before.descriptors.items()),
    }
    return row


async def _others(
    cluster: LoadCluster, questions: Sequence[Question], span_s: float, rate: float, name: str
) -> list[Call]:
    async with OpenLoad(lambda: [cluster.url], questions, rate, f"{name} {time.monotonic()}") as load:
        await asyncio.sleep(span_s)
        return await load.stop()


def _call(question: Question) -> Call:
    return Call(question, time.monotonic(), len(question.answer), n=ANSWERS)


async def _read_at_once(url: str, question: Question, number: int) -> Call:
    salt = f"quick.{time.monotonic()}.{number}"
    return await ask(_call(question), [url], logprobs=LOGPROBS, cache_salt=salt, within_s=WITHIN_S)


@contextlib.asynccontextmanager
async def _asked(url: str, call: Call, number: int) -> AsyncIterator[socket.socket]:
    """Connect with a small window, and ask."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
        wire.setblocking(False)
        loop, to = asyncio.get_running_loop(), urlsplit(url)
        await loop.sock_connect(wire, (to.hostname, to.port))
        await loop.sock_sendall(wire, request_of(call, logprobs=LOGPROBS, cache_salt=f"slow.{call.begun_s}.{number}"))
        yield wire


async def _trickle(url: str, question: Question, number: int, span_s: float) -> Call:
    """Read a byte a millisecond for a while, then all the rest."""
    call, loop = _call(question), asyncio.get_running_loop()
    async with _asked(url, call, number) as wire:
        await _read(call, wire, SLICE, SLICE_S, loop.time() + span_s)
        await _read(call, wire, 1 << 16, 0.0, loop.time() + WITHIN_S)
    call.end_s = time.monotonic()
    call.read()
    return call


async def _stop(url: str, question: Question, number: int, is_over: asyncio.Event) -> Call:
    """Ask, and read nothing until all is over; then what came before we were hung up on."""
    call, loop = _call(question), asyncio.get_running_loop()
    async with _asked(url, call, number) as wire:
        await is_over.wait()
        await _read(call, wire, 1 << 16, 0.0, loop.time() + WITHIN_S)
    call.end_s = time.monotonic()
    if call.parts:
        call.read()
    return call


async def _read(call: Call, wire: socket.socket, size: int, pause_s: float, until_s: float) -> None:
    loop = asyncio.get_running_loop()
    while loop.time() < until_s and not call.is_here:
        try:
            data = await asyncio.wait_for(loop.sock_recv(wire, size), until_s - loop.time())
        except OSError:  # hung up on, or out of time
            return
        if not data:
            return
        call.parts.append((time.monotonic(), data))
        await asyncio.sleep(pause_s)

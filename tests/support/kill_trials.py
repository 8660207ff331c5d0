"""A request held in a state, a pod killed, ended or stopped, and what must be true then: the trials of
`tests/faults/test_kills*`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from kill_states import (
    BLOCK,
    Pod,
    Scene,
    State,
    decoding,
    fencing,
    fetching,
    handed_over,
    hold,
    landed,
    reserved,
    resumable,
    shipping,
    until,
)
from live_cluster import LiveCluster
from live_stream import completed, streaming

FLAGS = (
    *("--dtype", "float32", "--kv-memory", "16MiB", "--chunk-size", "16", "--prefill-mode", "remote"),
    *("--prefix-fetch", "always"),  # to compute a block of a tiny model may take no longer than to ask for it
)
STOPPED_S = 1.0
MAX_TOKENS = 120
NUM_PROMPT = 20 * BLOCK + 5
INDEXED = 16 * BLOCK  # the deepest block of such a prompt that the index has a key for

Question = tuple[list[int], list[int]]
"""A prompt, and its greedy answer."""

STATES: dict[str, State] = {
    "reserved": reserved,
    "shipping": shipping,
    "landed": partial(landed, num_blocks=-(-NUM_PROMPT // BLOCK)),
    "fencing": fencing,
    "resumable": resumable,
    "decoding": decoding,
    "handed over": handed_over,
    "fetching": fetching,
}
GONE = {("resumable", "source"), ("decoding", "source")}  # one is dead then, the other has nothing to do with it
KILLS = [(state, side) for state in STATES for side in ("source", "taker") if (state, side) not in GONE]


def start(model: Path, transport: str, *flags: str) -> LiveCluster:
    """Start 1P2D; a pod that drains gives up what it has after a second."""
    environ = {"PAGEWIRE_TRANSPORTS": transport, "PAGEWIRE_INDEX_TIMEOUT_S": "1"}  # who has what is to be known
    return LiveCluster(model, *FLAGS, "--decode", "2", "--drain-s", "1", *flags, **environ)


async def complete_the_set(cluster: LiveCluster, num_prefill: int = 1, num_decode: int = 2) -> None:
    """Replace the pods that were killed, and wait until the router knows."""
    for role, number in (("prefill", num_prefill), ("decode", num_decode)):
        while sum(pod["role"] == role for pod in cluster.alive()) < number:
            cluster.join(role)
    await until(lambda: cluster.usable() == {"prefill": num_prefill, "decode": num_decode}, "a complete set of pods")


async def assert_well(cluster: LiveCluster, question: Question, salt: str) -> None:
    """Every block of every pod is free or cached, and what the index says is so."""
    cluster.assert_at_rest()
    tokens, right = question
    for _ in range(50):
        stream = await completed(cluster, tokens, MAX_TOKENS, salt)
        assert stream.tokens == right
        if stream.said["predicted_cached_tokens"] == INDEXED:  # it takes pods a moment to tell, and they tell in parts
            break
    predicted, report = stream.said["predicted_cached_tokens"], stream.report
    assert predicted == INDEXED
    assert max(report["decode_cached_tokens"], report["prefill_cached_tokens"]) >= predicted
    cluster.assert_at_rest()


async def strike_in(cluster: LiveCluster, question: Question, state: str, side: str, strike: str = "killed") -> None:
    """Hold a request in a state, strike who ships or who takes, and see that all comes right.

    One that is "stopped" goes on after `STOPPED_S`, one that is "ended" drains, the others meanwhile going on.
    """
    tokens, right = question
    salt = f"{strike} {state}, {side}"
    is_handover = state in ("handed over", "fetching")
    await complete_the_set(cluster, 1, 3 if is_handover and side == "taker" else 2)
    async with streaming(cluster, tokens, MAX_TOKENS, salt) as begin:
        scene = await hold(cluster, STATES[state], begin)
        try:
            struck = victim(scene, state, side)
            await STRIKES[strike](scene, struck)
        finally:
            scene.resume()
        stream = scene.stream
        if state != "fencing":
            await stream.end()
    if state == "fencing":  # the client is gone
        assert stream.tokens == right[: len(stream.tokens)]
    else:
        assert (stream.error, stream.tokens, stream.finish_reason) == ({}, right, "length")
    if is_handover and (side == "taker" or strike != "killed"):
        assert cluster.exit_code(scene.d) == 0  # it was draining
    if strike == "ended":
        assert cluster.exit_code(struck) == 0
    if (state, side, strike) == ("shipping", "source", "killed"):
        report = stream.report
        assert report["placement"] == "resumed"
        assert report["causes"] in (["prefill_lost"], ["stream_lost"])  # whichever broke first
        assert report["blocks_shipped"] > 0
        assert report["decode_computed_tokens"] == len(tokens) - report["blocks_shipped"] * BLOCK
    await complete_the_set(cluster)
    await assert_well(cluster, question, salt)


async def _kill(scene: Scene, pod: Pod) -> None:
    scene.cluster.kill(pod)


async def _end(scene: Scene, pod: Pod) -> None:
    scene.front(pod).terminate()
    scene.resume()  # who drains has to run, and so has who goes on


async def _stop(scene: Scene, pod: Pod) -> None:
    """Both processes of the pod stand still while all others go on."""
    both = [scene.front(pod), scene.cluster.engine_of(pod)]
    scene.resume()
    for process in both:
        scene.stop(process)
    await asyncio.sleep(STOPPED_S)


STRIKES: dict[str, Callable[[Scene, Pod], Awaitable[None]]] = {"killed": _kill, "ended": _end, "stopped": _stop}


def victim(scene: Scene, state: str, side: str) -> Pod:
    """Return who ships, or who takes: in a hand-over these are the old and the new decode pod."""
    if state in ("handed over", "fetching"):
        return scene.d if side == "source" else scene.next
    return scene.p if side == "source" else scene.d

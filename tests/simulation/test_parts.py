"""The parts that a world is made of, each by itself: the loop, the wires, the model, Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any

import hiredis
import pytest
from simulated.loop import Process, SimulatedLoop, Stuck
from simulated.model import BLOCK, BLOCK_BYTES, CheckableModel, Memory, answer, compute, drawn
from simulated.network import Delivery, End, Listener, Network
from simulated.redis import ADDRESS, RedisDouble

from pagewire.core.sampling import SamplingParams
from pagewire.engine.block import table_of
from pagewire.engine.step import Draw, Grant, Step


def world(seed: int = 0) -> SimulatedLoop:
    return SimulatedLoop(Random(seed))


class Wires:
    """Two processes, and a connection from one to the other."""

    def __init__(self, seed: int = 0) -> None:
        self.loop = world(seed)
        self.network = Network(self.loop, Random(seed))
        self.near, self.far = Process(self.loop, "near"), Process(self.loop, "far")
        self.heard: list[Any] = []
        self.ends: list[str] = []
        self.network.listen("far:1", Listener(self.far, self._accept))
        self.end = self.network.dial(self.near, "far:1", "link")
        self.end.on_end = self.ends.append

    def _accept(self, end: End) -> None:
        end.on_message, end.on_end = self.heard.append, self.ends.append

    def run(self, seconds: float = 1.0) -> None:
        self.loop.run_world(asyncio.sleep(seconds))


# ------------------------------------------------------------------------------------------------------------- the loop


def told_by(loop: SimulatedLoop, names: str, count: int) -> list[str]:
    told: list[str] = []
    for name in names:
        process = Process(loop, name)
        for number in range(count):
            process.soon(told.append, f"{name}{number}")
    loop.run_world(asyncio.sleep(0.1))
    return told


def test_each_process_keeps_its_order_and_the_seed_decides_between_them() -> None:
    orders = [told_by(world(seed), "ab", 5) for seed in range(8)]
    for order in orders:
        for name in "ab":
            assert [each for each in order if each[0] == name] == [f"{name}{number}" for number in range(5)]
    assert len({tuple(order) for order in orders}) > 1
    assert orders == [told_by(world(seed), "ab", 5) for seed in range(8)]


def test_nothing_of_a_killed_process_runs_and_of_a_frozen_one_not_yet() -> None:
    loop, told = world(), list[str]()
    killed, frozen = Process(loop, "killed"), Process(loop, "frozen")

    async def clean_up(name: str) -> None:
        try:
            await asyncio.sleep(1.0)
        finally:
            told.append(name)

    async def main() -> None:
        for process in (killed, frozen):
            process.spawn(clean_up(process.name))
        await asyncio.sleep(0.5)
        killed.kill()
        frozen.freeze()
        await asyncio.sleep(5.0)
        assert told == []
        frozen.thaw()
        await asyncio.sleep(0.1)
        assert told == ["frozen"]

    loop.run_world(main())
    abandoned: Any = killed.tasks[0]  # and is never collected in a world: it would be cleaned up
    abandoned._log_destroy_pending = False
    abandoned.get_coro().close()


@pytest.mark.parametrize("rate", [0.9, 1.0, 1.1, 0.9533225840015918])
def test_a_process_sees_time_at_its_rate_and_never_too_early(rate: float) -> None:
    loop = world()
    process = Process(loop, "p", rate=rate)

    async def wait() -> float:
        began_s = asyncio.get_running_loop().time()
        for _ in range(100):
            due_s = asyncio.get_running_loop().time() + 0.1
            await asyncio.sleep(0.1)
            assert asyncio.get_running_loop().time() >= due_s
        return asyncio.get_running_loop().time() - began_s

    task = process.spawn(wait())
    loop.run_world(asyncio.sleep(20.0))
    assert task.result() == pytest.approx(10.0)


def test_who_waits_for_nothing_is_stuck() -> None:
    async def wait() -> None:
        await asyncio.get_running_loop().create_future()

    coroutine: Coroutine[Any, Any, None] = wait()
    with pytest.raises(Stuck):
        world().run_world(coroutine)
    coroutine.close()


# ------------------------------------------------------------------------------------------------------------ the wires


def test_messages_arrive_in_order_and_an_end_behind_them() -> None:
    for seed in range(20):
        wires = Wires(seed)
        for number in range(10):
            wires.end.send(number)
        wires.end.close("done")
        wires.run()
        assert (wires.heard, wires.ends) == (list(range(10)), ["done"])


def test_what_a_cut_holds_arrives_when_it_heals() -> None:
    wires = Wires()
    wires.network.cut("near", "far")
    wires.end.send("late")
    wires.run()
    assert wires.heard == []
    wires.network.heal("near", "far")
    wires.run()
    assert wires.heard == ["late"]


def test_what_meddles_decides() -> None:
    wires = Wires()
    fates = {
        "lost": [],
        "twice": [Delivery("twice"), Delivery("twice", 0.1)],
        "late": [Delivery("late", 0.5, is_in_order=False)],
    }
    wires.network.meddle = lambda end, payload: fates.get(payload)
    for payload in ("late", "lost", "twice", "plain"):
        wires.end.send(payload)
    wires.run()
    assert wires.heard == ["twice", "twice", "plain", "late"]


@pytest.mark.parametrize("silently", [True, False])
def test_a_peer_that_is_gone_is_heard_of_unless_its_machine_went_too(silently: bool) -> None:
    wires = Wires()
    wires.far.kill()
    wires.network.break_all(wires.far, silently=silently)
    wires.end.send("to nobody")
    wires.run()
    assert (wires.heard, wires.ends) == ([], [] if silently else ["the peer is gone"])


def test_nobody_listens() -> None:
    wires = Wires()
    end = wires.network.dial(wires.near, "nobody:1", "link")
    end.on_end = wires.ends.append
    wires.run()
    assert wires.ends == ["connection refused"]


# ------------------------------------------------------------------------------------------------------------ the model

PROMPT = tuple(range(3, 3 + 3 * BLOCK + 5))


def said(chunks: list[int], block_ids: tuple[int, ...]) -> int | None:
    """Return the first token of the prompt, computed in these chunks into these blocks."""
    model, start = CheckableModel(8), 0
    draw = Draw(sampling=SamplingParams(temperature=0.0, max_tokens=2), index=0, position=0)
    for stop in chunks:
        is_last = stop == len(PROMPT)
        grant = Grant(
            request_id="r",
            tokens=PROMPT[start:stop],
            start=start,
            block_ids=table_of(block_ids),
            draw=draw if is_last else None,
        )
        told = model.run(Step(grants=(grant,)), lambda step, group: None)
        start = stop
    return told["r"].token


def test_a_token_does_not_depend_on_chunks_and_blocks() -> None:
    whole = answer(PROMPT, 1, (), 0, True, 0)[0][0]
    assert said([len(PROMPT)], (0, 1, 2, 3)) == whole
    assert said([7, 20, 33, len(PROMPT)], (5, 2, 7, 1)) == whole


@pytest.mark.parametrize("place", [0, BLOCK_BYTES - 1, 2 * BLOCK_BYTES + 77, 3 * BLOCK_BYTES + 4])
def test_a_token_depends_on_every_byte_that_is_seen(place: int) -> None:
    memory, table = Memory(4), (0, 1, 2, 3)
    compute(memory, PROMPT, 0, table)
    sampling = SamplingParams(temperature=0.0)
    right = drawn(memory.seen(table, len(PROMPT)), sampling, 0, 0)
    memory.bytes[place] ^= 1
    assert drawn(memory.seen(table, len(PROMPT)), sampling, 0, 0) != right


def test_what_is_behind_the_tail_is_not_seen_and_is_zeroed() -> None:
    memory, table = Memory(4), (0, 1, 2, 3)
    compute(memory, (*PROMPT, 9, 9), 0, table)
    seen = memory.seen(table, len(PROMPT))
    memory.zero_behind(3, len(PROMPT) % BLOCK)
    assert memory.seen(table, len(PROMPT)) == seen
    assert memory.slot(3, len(PROMPT) % BLOCK) == bytes(16)
    assert memory.slot(3, len(PROMPT) % BLOCK - 1) != bytes(16)


# ---------------------------------------------------------------------------------------------------------------- Redis


class Client:
    """Says commands to a double and hears its answers."""

    def __init__(self) -> None:
        self.loop = world()
        network = Network(self.loop, Random(0))
        self.redis = RedisDouble(Process(self.loop, "redis"), network, Random(0))
        self._reader = hiredis.Reader()
        self._end = network.dial(Process(self.loop, "client"), ADDRESS, "redis")
        self._end.on_message = self._reader.feed

    def say(self, command: str) -> Any:
        words = [word.encode() for word in command.split()]
        self._end.send(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(each), each) for each in words))
        self.loop.run_world(asyncio.sleep(0.1))
        return self._reader.gets()


def test_redis_keeps_sets_and_values_until_they_expire() -> None:
    client = Client()
    assert client.say("SADD s a b") == 2
    assert client.say("SADD s b c") == 1
    assert client.say("SREM s a x") == 1
    assert sorted(client.say("SRANDMEMBER s 10")) == [b"b", b"c"]
    assert client.say("SET k one PX 1000 GET") is None
    assert client.say("SET k two PX 1000 GET") == b"one"
    assert client.say("GET k") == b"two"
    client.loop.run_world(asyncio.sleep(1.0))
    assert client.say("GET k") is None
    assert isinstance(client.say("FLUSHALL"), hiredis.ReplyError)


def test_redis_loses_goes_back_and_lies() -> None:
    client = Client()
    client.say("SADD pw:c:h:1 old")
    client.redis.save()
    client.say("SADD pw:c:h:2 new")
    client.redis.lie()
    held = {member for number in (1, 2) for member in client.say(f"SRANDMEMBER pw:c:h:{number} 9")}
    assert held == {b"old", b"new"}
    client.redis.go_back()
    assert (client.say("SRANDMEMBER pw:c:h:1 9"), client.say("SRANDMEMBER pw:c:h:2 9")) == ([b"old"], [])
    client.redis.flush()
    assert client.say("SRANDMEMBER pw:c:h:1 9") == []

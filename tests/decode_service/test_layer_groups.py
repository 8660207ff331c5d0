"""A prompt's last chunk is shipped group of layers by group of layers while it computes: the answer is the same."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_model
from faulty_channel import corrupt, duplicate
from pods import Colocated, Pod, Pods, pods, prompt, until
from threaded_engine import ThreadedEngine

from pagewire.core.engine_messages import StepDone
from pagewire.decode_service.remote_prefill import RemotePrefill
from pagewire.engine.runner import OnGroup
from pagewire.engine.step import Computed, Step

LONG = prompt(1, 100)  # at chunks of 64 the last one has two full blocks and a partial one
SETTINGS: dict[str, Any] = {"chunk_size": 64, "layer_groups": 3}
LAST = 3


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny model with six layers."""
    return tiny_model.build(tmp_path_factory.mktemp("deep"), num_layers=6)


@pytest.fixture(scope="module")
def answers(deep: Path) -> Colocated:
    """Return the answers of a single engine."""
    return Colocated(deep)


def num_groups(taker: Pod) -> int:
    """In how many parts blocks come to a pod."""
    (peer,) = taker.service._exchange.peers.all().values()
    return peer.receiver.num_groups


def parts_here(cluster: Pods) -> int:
    """How many parts of the one shipment are in their places at the decode pod."""
    return sum(shipment._arrivals.num_parts for shipment in cluster.d.open_shipments)


async def warm(cluster: Pods) -> int:
    """Have the decode pod meet its prefill pod; return how many messages of blocks came."""
    await cluster.ask("warm-up", prompt(8, 5), 2)
    return cluster.d.bulk[0].num_messages


@contextlib.contextmanager
def halting(engine: ThreadedEngine, group: int) -> Iterator[Callable[[], None]]:
    """Have the engine stand still within each step behind that group, until the yielded call."""
    go = threading.Event()

    def tell(step: StepDone) -> None:
        engine.tell_group(step)
        if step.chunks[0].group == group:
            go.wait()

    engine.loop.on_group = tell
    try:
        yield go.set
    finally:
        go.set()


# ------------------------------------------------------------------------------------------------------- exactness


@pytest.mark.parametrize("transports", ["grpc", "tcp", "shm"])
@pytest.mark.parametrize("groups", [2, 3, 6])
@pytest.mark.parametrize("chunk_size", [16, 64, 256])
async def test_exact(deep: Path, answers: Colocated, transports: str, groups: int, chunk_size: int) -> None:
    settings = {"transports": transports, "layer_groups": groups, "chunk_size": chunk_size}
    async with pods(deep, p=dict(settings), d=dict(settings)) as cluster:
        asked = await cluster.ask("turn 1", LONG, 30)
        assert asked.tokens == answers.answer(LONG, 30)
        report = asked.report
        assert (report.placement, report.decode_computed_tokens, report.causes) == ("remote", 0, ())
        block_bytes = cluster.d.engine.pool.block_bytes
        assert (report.manifest_blocks, report.blocks_shipped, report.bytes_shipped) == (7, 7, 7 * block_bytes)
        assert report.chunks == -(-100 // chunk_size)
        assert num_groups(cluster.d) == groups
        assert cluster.d.counter("kv_blocks_received") == cluster.p.counter("kv_blocks_sent") == 7
        # The other way the same parts travel, by `Fetch`; and the last chunk of turn 2 is shipped in groups again.
        second_prompt = LONG + asked.tokens + prompt(5, 20)
        second = await cluster.ask("turn 2", second_prompt)
        assert second.tokens == answers.answer(second_prompt)
        assert second.report.prefill_fetched_tokens > 0
        assert num_groups(cluster.p) == groups


async def test_a_group_is_here_before_the_next_one_is_computed(deep: Path, answers: Colocated) -> None:
    async with pods(deep, p=dict(SETTINGS)) as cluster:
        messages = await warm(cluster)
        with halting(cluster.p.engine, group=1) as let_go:
            asked = await cluster.submit("a", LONG)
            await until(lambda: parts_here(cluster) == 4 * 3 + LAST * 2)
            (shipment,) = cluster.d.open_shipments
            assert (shipment.num_verified, shipment.manifest, asked.tokens) == (4, None, [])
            assert cluster.d.bulk[0].num_messages == messages + 4 + 2, "a group of three blocks is one message"
            let_go()
            assert (await cluster.end(asked)).tokens == answers.answer(LONG)


async def test_a_first_token_that_ends_the_sequence_has_shipped_in_vain(deep: Path, answers: Colocated) -> None:
    first = answers.answer(LONG)[0]
    async with pods(deep, p=dict(SETTINGS)) as cluster:
        asked = await cluster.ask("a", LONG, stop_token_ids=(first,))
        assert (asked.tokens, asked.cause, asked.report.manifest_blocks) == ([first], "", 0)


@pytest.mark.parametrize(
    ("p", "d", "to_d", "to_p"),
    [
        ({"layer_groups": 3}, {"layer_groups": 2}, 3, 2),
        ({"layer_groups": 3}, {}, 3, 1),
        ({}, {"layer_groups": 3}, 1, 3),
        ({"layer_groups": 3}, {"kv_order": "head_outer"}, 1, 1),
        ({"kv_order": "head_outer"}, {"layer_groups": 3}, 1, 1),
    ],
)
async def test_each_source_says_how_its_blocks_travel(
    deep: Path, answers: Colocated, p: dict[str, Any], d: dict[str, Any], to_d: int, to_p: int
) -> None:
    async with pods(deep, p=p, d=d) as cluster:
        first = await cluster.ask("turn 1", LONG, 30)
        assert (first.tokens, first.report.placement) == (answers.answer(LONG, 30), "remote")
        second_prompt = LONG + first.tokens + prompt(5, 20)
        second = await cluster.ask("turn 2", second_prompt)
        assert second.tokens == answers.answer(second_prompt)
        assert second.report.prefill_fetched_tokens > 0
        assert (num_groups(cluster.d), num_groups(cluster.p)) == (to_d, to_p)


# ---------------------------------------------------------------------------------------------------------- faults


async def test_a_corrupt_part_is_asked_for_once_more(deep: Path, answers: Colocated) -> None:
    async with pods(deep, p=dict(SETTINGS)) as cluster:
        messages = await warm(cluster)
        cluster.d.bulk[0].plan = corrupt(messages + 4)  # the last block's part of group 0
        asked = await cluster.ask("a", LONG)
        assert (asked.tokens, asked.report.placement) == (answers.answer(LONG), "remote")
        assert asked.report.decode_computed_tokens == 0
        assert cluster.d.counter("kv_blocks_corrupt") == 1
        assert cluster.p.counter("kv_blocks_sent") == pytest.approx(1 + 7 + 1 / 3)


async def test_corrupt_twice_keeps_the_whole_blocks_before(deep: Path, answers: Colocated) -> None:
    async with pods(deep, p=dict(SETTINGS)) as cluster:
        messages = await warm(cluster)
        cluster.d.bulk[0].plan = corrupt(*range(messages + 5, 100), at=100)  # in the first block of the last chunk
        asked = await cluster.ask("a", LONG)
        assert asked.tokens == answers.answer(LONG)
        assert (asked.report.placement, asked.report.causes) == ("resumed", ("block_corrupt",))
        assert asked.report.decode_computed_tokens == 100 - 4 * 16


async def test_parts_that_come_twice_are_placed_once(deep: Path, answers: Colocated) -> None:
    async with pods(deep, p=dict(SETTINGS)) as cluster:
        await warm(cluster)
        cluster.d.bulk[0].plan = duplicate
        asked = await cluster.ask("a", LONG)
        assert (asked.tokens, asked.report.blocks_shipped) == (answers.answer(LONG), 7)


@pytest.mark.parametrize("loss", ["engine", "stream"])
async def test_a_source_lost_between_two_groups_leaves_whole_blocks(deep: Path, answers: Colocated, loss: str) -> None:
    async with pods(deep, p=dict(SETTINGS)) as cluster:
        await warm(cluster)
        with halting(cluster.p.engine, group=1) as let_go:
            asked = await cluster.submit("a", LONG)
            await until(lambda: parts_here(cluster) == 4 * 3 + LAST * 2)
            if loss == "engine":
                await cluster.p.die()
            else:
                cluster.p.sender.drop("d0", "the test says so")
                await until(lambda: not cluster.p.sender.is_connected("d0"))
                let_go()
            assert (await cluster.end(asked)).tokens == answers.answer(LONG)
        assert asked.report.placement == "resumed"
        assert (asked.report.blocks_shipped, asked.report.decode_computed_tokens) == (4, 100 - 4 * 16)


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("num_tokens", [96, 100])
async def test_a_source_lost_with_all_there_but_the_first_token_leaves_nothing_to_ship(
    deep: Path, answers: Colocated, num_tokens: int, asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is computed here, however soon another pod is said to be. One that is asked all the same holds nothing on."""
    tokens = LONG[:num_tokens]
    if asks:
        monkeypatch.setattr(RemotePrefill, "_is_sooner_on", lambda *_: True)
    async with pods(deep, 2, p=dict(SETTINGS)) as cluster:
        first, second = cluster.prefill
        await cluster.ask("warm-up", prompt(8, 5), 2, candidates=[first.candidate])
        cluster.d.service._costs.local_s = lambda *_: 1e9  # type: ignore[method-assign, union-attr]
        with halting(first.engine, group=2):
            asked = await cluster.submit("a", tokens)
            await until(lambda: parts_here(cluster) == -(-num_tokens // 16) * 3)
            await first.die()
            assert (await cluster.end(asked)).tokens == answers.answer(tokens)
        assert asked.report.causes == ("prefill_lost",)
        assert second.counter("prompts_accepted") == asks


async def test_cancelled_between_two_groups(deep: Path, answers: Colocated) -> None:
    async with pods(deep, p=dict(SETTINGS)) as cluster:
        await warm(cluster)
        with halting(cluster.p.engine, group=0) as let_go:
            asked = await cluster.submit("a", LONG)
            await until(lambda: parts_here(cluster) == 4 * 3 + LAST)
            await cluster.cancel(asked)
            assert (await cluster.end(asked)).cause == "cancelled"
            let_go()
        assert (await cluster.ask("again", LONG)).tokens == answers.answer(LONG)


@pytest.mark.parametrize("transports", ["grpc", "tcp", "shm"])
async def test_a_step_that_is_tried_again_may_rewrite_what_was_announced(
    deep: Path, answers: Colocated, transports: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its second KV may differ in the last bits: what was sent stays good, what is read of both at once is not taken.

    Two prompts share a step that fails behind group 0, whose bits are other ones than those of the second try.
    """
    one, two = LONG, prompt(2, 100)
    settings = {"layer_groups": 3, "chunk_size": 256, "transports": transports}
    async with pods(deep, p=settings, d={"transports": transports}) as cluster:
        messages = await warm(cluster)
        engine, go = cluster.p.engine, threading.Event()
        pool, plain = engine.engine.cache.pool, engine.engine.runner.run
        shared: list[Step] = []

        def unlucky(step: Step, on_group: OnGroup) -> dict[str, Computed]:
            def tell(step: Step, group: int) -> None:
                if group == 0:
                    for grant in step.grants:
                        pool[list(grant.block_ids), 0:2] *= 1 + 2**-20
                    on_group(step, group)
                else:
                    go.wait()
                    raise RuntimeError("a bad batch")

            if shared or len(step.grants) == 1:
                return plain(step, on_group)
            shared.append(step)
            return plain(step, tell)

        monkeypatch.setattr(engine.engine.runner, "run", unlucky)
        try:
            engine.allow(0)
            cluster.d.bulk[0].flowing.clear()
            asked = [await cluster.submit(name, tokens) for name, tokens in (("1", one), ("2", two))]
            await until(lambda: cluster.p.counter("prompts_accepted") == 3)
            engine.let_go()
            # Both have announced group 0 and said its checksums; the bytes are read now (grpc, tcp), or later (shm).
            await until(lambda: cluster.p.sender.counters.messages > messages)
        finally:
            go.set()
        await until(lambda: engine.loop.load().num_running == 0 and len(engine.engine.scheduler.sequences) == 2)
        cluster.d.bulk[0].flowing.set()
        for each, tokens in zip(asked, (one, two), strict=True):
            assert (await cluster.end(each)).tokens == answers.answer(tokens)
            assert (each.report.placement, each.report.decode_computed_tokens) == ("remote", 0)
        assert len(shared[0].grants) == 2
        assert (cluster.d.counter("kv_blocks_corrupt") > 0) == (transports == "shm")

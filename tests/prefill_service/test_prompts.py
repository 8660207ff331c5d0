"""What a prefill pod holds for others ends with them: by landing, fence, loss, lease or its own end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pod_wire import wire_to
from pods import Asked, Colocated, Pods, pods, prompt, until

LONG = prompt(1, 100)


async def ship_some(cluster: Pods, num_steps: int, **options: Any) -> Asked:
    """Submit a request, and stop the prefill pod behind some chunks."""
    cluster.p.engine.allow(num_steps)
    asked = await cluster.submit("a", LONG, **options)
    await until(lambda: cluster.p.engine.num_steps == num_steps)
    return asked


async def test_prompts_of_two_decode_pods_share_a_step_and_nothing_else(model: Path, colocated: Colocated) -> None:
    async with pods(model, 1, 2) as cluster:
        asked = [await cluster.submit(f"r{i}", prompt(i, 90), on=pod) for i, pod in enumerate(cluster.decode)]
        for i, one in enumerate(asked):
            assert (await cluster.end(one)).tokens == colocated.answer(prompt(i, 90))
        assert cluster.p.counter("kv_blocks_sent") == 12


async def test_a_lease_ends_what_a_hanging_decode_pod_holds(model: Path, colocated: Colocated) -> None:
    async with pods(model, p={"lease_s": 10.0}) as cluster, wire_to(cluster.p) as (wire, candidate):
        asked = await ship_some(cluster, 3, candidates=[candidate])
        await until(lambda: cluster.d.num_landed == 3)
        wire.freeze()  # nothing closes
        cluster.p.advance(10.5)  # the pod's hold outlasts the lease by a second
        assert cluster.p.engine.loop.load().blocks_held == 7
        cluster.p.advance(1.0)
        await cluster.p.assert_at_rest()
        wire.cut()
        cluster.p.engine.let_go()
        assert (await cluster.end(asked)).tokens == colocated.answer(LONG)


async def test_a_prompt_past_its_deadline_is_given_up(model: Path, colocated: Colocated) -> None:
    async with pods(model) as cluster:
        asked = await ship_some(cluster, 3, deadline_s=9.0)
        await until(lambda: cluster.d.num_landed == 3)
        cluster.p.advance(9.5)  # the lease would last for longer
        await cluster.p.assert_at_rest()
        cluster.p.engine.let_go()
        assert (await cluster.end(asked)).tokens == colocated.answer(LONG)
        assert asked.report.placement == "resumed"
        assert cluster.p.engine.loop.load().prompt_tokens_computed < len(LONG)


async def test_a_sign_of_life_renews_the_lease(model: Path, colocated: Colocated) -> None:
    async with pods(model) as cluster:
        asked = await ship_some(cluster, 3)
        cluster.p.advance(9.0)
        other = await cluster.submit("b", prompt(2, 30))  # the same pod says something
        await until(lambda: cluster.p.counter("prompts_accepted") == 2)
        cluster.p.advance(9.0)
        cluster.p.engine.let_go()
        for one, tokens in ((asked, LONG), (other, prompt(2, 30))):
            assert (await cluster.end(one)).report.placement == "remote"
            assert one.tokens == colocated.answer(tokens)


async def test_a_cancelled_prompt_is_computed_no_further(model: Path) -> None:
    async with pods(model) as cluster:
        asked = await ship_some(cluster, 3)
        await cluster.cancel(asked)
        await cluster.assert_at_rest()
        cluster.p.engine.let_go()
        assert cluster.p.engine.loop.load().prompt_tokens_computed == 48


async def test_a_lost_decode_pod_frees_its_prompts_and_no_others(model: Path, colocated: Colocated) -> None:
    async with pods(model, 1, 2) as cluster, wire_to(cluster.p) as (wire, candidate):
        cluster.p.engine.allow(2)
        lost = await cluster.submit("lost", LONG, on=cluster.decode[0], candidates=[candidate])
        kept = await cluster.submit("kept", prompt(2, 100), on=cluster.decode[1])
        await until(lambda: cluster.p.counter("prompts_accepted") == 2)
        wire.cut()
        await until(lambda: cluster.p.engine.loop.load().blocks_held <= 7)
        cluster.p.engine.let_go()
        assert (await cluster.end(kept)).tokens == colocated.answer(prompt(2, 100))
        assert kept.report.placement == "remote"
        assert (await cluster.end(lost)).tokens == colocated.answer(LONG)


async def test_draining_refuses_the_new_and_ships_the_old(model: Path, colocated: Colocated) -> None:
    async with pods(model) as cluster:
        old = await ship_some(cluster, 2)
        cluster.p.front.lifecycle.drain("the test says so")
        drained = asyncio.create_task(cluster.p.service.drained())
        new = await cluster.ask("new", prompt(2, 40))
        assert (new.tokens, new.report.placement) == (colocated.answer(prompt(2, 40)), "local")
        assert not drained.done()
        cluster.p.engine.let_go()
        assert (await cluster.end(old)).tokens == colocated.answer(LONG)
        assert old.report.placement == "remote"
        await drained


async def test_an_engine_that_is_gone_refuses_what_comes(model: Path, colocated: Colocated) -> None:
    async with pods(model) as cluster:
        await cluster.ask("warm-up", prompt(8, 5), 2)
        cluster.p.engine.die()  # and nobody has told the front yet
        asked = await cluster.ask("a", LONG)
        assert (asked.tokens, asked.report.placement) == (colocated.answer(LONG), "local")
        assert cluster.p.counter("prompts_refused") == 1


async def test_a_pool_too_small_for_a_prompt_costs_time_only(model: Path, colocated: Colocated) -> None:
    # 17 blocks: one sequence of full length and one block; a prompt of 256 is beyond the context of both pods.
    async with pods(model, p={"kv_memory_bytes": 17 * 12288}) as cluster:
        asked = [await cluster.submit(f"r{i}", prompt(i, 200), 4) for i in range(3)]
        for i, one in enumerate(asked):  # one after the other: none fits beside another
            assert (await cluster.end(one)).tokens == colocated.answer(prompt(i, 200), 4)
            assert one.report.placement == "remote"


@pytest.mark.parametrize("num_steps", range(1, 7))
async def test_a_fence_at_any_chunk_frees_everything(model: Path, num_steps: int) -> None:
    async with pods(model) as cluster:
        asked = await ship_some(cluster, num_steps)
        await cluster.cancel(asked)
        cluster.p.engine.let_go()  # its next chunk and the fence cross
        assert (await cluster.end(asked)).cause == "cancelled"

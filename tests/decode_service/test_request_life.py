"""A request on real pods: where it is computed and shipped never shows in its tokens, and nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest
from engine_runs import greedy, spec
from pods import BLOCK, CHUNK, Asked, Colocated, Pods, pods, prompt, until

from pagewire.core.errors import EngineFailed
from pagewire.core.messages import Cancel, Submit
from pagewire.decode_service.service import DecodeService

LONG = prompt(1, 100)


async def test_shipped(model: Path, colocated: Colocated) -> None:
    async with pods(model) as cluster:
        asked = await cluster.ask("a", LONG)
        assert (asked.tokens, asked.cause) == (colocated.answer(LONG), "")
        report = asked.report
        assert (report.placement, report.prefill_pod, report.decode_pod) == ("remote", "p0", "d0")
        assert (report.prefill_computed_tokens, report.decode_computed_tokens) == (100, 0)
        assert (report.chunks, report.manifest_blocks, report.blocks_shipped) == (7, 7, 7)
        assert cluster.d.counter("kv_blocks_received") == cluster.p.counter("kv_blocks_sent") == 7
        assert cluster.d.counter("kv_blocks_placed") == 7
        assert asked.ended is not None
        assert {timeline.process for timeline in asked.ended.timelines} == {"p0", "d0"}


@pytest.mark.parametrize("num_tokens", [1, BLOCK - 1, BLOCK, BLOCK + 1, 4 * BLOCK])
async def test_a_prompt_of_any_length(model: Path, colocated: Colocated, num_tokens: int) -> None:
    tokens = prompt(2, num_tokens)
    async with pods(model) as cluster:
        asked = await cluster.ask("a", tokens)
        assert asked.tokens == colocated.answer(tokens)
        assert asked.report.blocks_shipped == -(-num_tokens // BLOCK)
        assert asked.report.decode_computed_tokens == 0


@pytest.mark.parametrize("prefill", ["local", "remote"])
async def test_built_here_when_told_so_or_when_nobody_else_can(model: Path, colocated: Colocated, prefill: str) -> None:
    async with pods(model) as cluster:
        candidates = () if prefill == "remote" else None
        asked = await cluster.ask("a", LONG, prefill=prefill, candidates=candidates)
        assert asked.tokens == colocated.answer(LONG)
        assert (asked.report.placement, asked.report.prefill_pod) == ("local", "")
        assert asked.report.chunks == -(-len(LONG) // CHUNK)
        assert asked.report.decode_computed_tokens == 100
        assert cluster.p.counter("prompts_accepted") == 0


async def test_many_at_once_on_two_and_two_pods(model: Path, colocated: Colocated) -> None:
    prompts = [prompt(seed, 11 + 13 * seed) for seed in range(12)]
    async with pods(model, 2, 2) as cluster:
        asked = [
            await cluster.submit(
                f"r{i}", tokens, on=cluster.decode[i % 2], candidates=[cluster.prefill[i // 2 % 2].candidate]
            )
            for i, tokens in enumerate(prompts)
        ]
        for one, tokens in zip(asked, prompts, strict=True):
            assert (await cluster.end(one)).tokens == colocated.answer(tokens)
        reports = [one.report for one in asked]
        assert {(report.prefill_pod, report.decode_pod) for report in reports} == {
            ("p0", "d0"), ("p0", "d1"), ("p1", "d0"), ("p1", "d1"),
        }  # fmt: skip
        assert sum(report.decode_computed_tokens for report in reports) == 0


async def test_only_what_the_decode_pod_has_not_cached_is_shipped(model: Path, colocated: Colocated) -> None:
    async with pods(model) as cluster:
        await cluster.ask("a", LONG)
        follows = LONG[:80] + prompt(3, 30)
        asked = await cluster.ask("b", follows)
        assert asked.tokens == colocated.answer(follows)
        report = asked.report
        assert (report.decode_cached_tokens, report.prefill_cached_tokens) == (80, 80)
        assert report.blocks_shipped == report.manifest_blocks == 7 - 5
        assert (report.prefill_computed_tokens, report.decode_computed_tokens) == (30, 0)


async def test_what_the_prefill_pod_has_cached_is_shipped_and_not_computed(model: Path, colocated: Colocated) -> None:
    async with pods(model, 1, 2) as cluster:
        await cluster.ask("a", LONG, on=cluster.decode[0])
        asked = await cluster.ask("b", LONG, on=cluster.decode[1])
        assert asked.tokens == colocated.answer(LONG)
        report = asked.report
        assert (report.decode_cached_tokens, report.prefill_cached_tokens) == (0, 96)
        assert (report.blocks_shipped, report.prefill_computed_tokens) == (7, 4)


async def test_what_is_cached_everywhere_ships_its_last_block_alone(model: Path, colocated: Colocated) -> None:
    async with pods(model) as cluster:
        await cluster.ask("a", LONG)
        asked = await cluster.ask("b", LONG)
        assert asked.tokens == colocated.answer(LONG)
        assert (asked.report.blocks_shipped, asked.report.prefill_computed_tokens) == (1, 4)


async def test_one_token_needs_no_block_here(model: Path, colocated: Colocated) -> None:
    async with pods(model) as cluster:
        asked = await cluster.ask("a", LONG, 1)
        assert (asked.tokens, asked.cause) == (colocated.answer(LONG, 1), "")
        assert (asked.report.placement, asked.report.manifest_blocks) == ("remote", 0)
        assert cluster.d.engine.num_steps == 0
        assert cluster.d.counter("kv_blocks_received") == 0


async def test_one_token_is_sampled_here_when_nobody_else_can(model: Path, colocated: Colocated) -> None:
    async with pods(model) as cluster:
        cluster.p.front.lifecycle.drain("the test says so")
        asked = await cluster.ask("a", LONG, 1)
        assert (asked.tokens, asked.cause, asked.report.placement) == (colocated.answer(LONG, 1), "", "local")
        assert cluster.p.counter("prompts_refused") == 1


async def test_a_first_token_that_ends_it_ships_nothing(model: Path, colocated: Colocated) -> None:
    (first,) = colocated.answer(LONG, 1)
    async with pods(model) as cluster:
        cluster.d.engine.allow(0)
        asked = await cluster.ask("a", LONG, stop_token_ids=(first,))
        assert (asked.tokens, asked.reason, asked.cause) == ([first], "stop", "")
        assert (asked.report.placement, asked.report.manifest_blocks) == ("remote", 0)
        cluster.d.engine.let_go()


@pytest.mark.parametrize("prefill", ["local", "remote"])
@pytest.mark.parametrize("num_out", [1, 5, 7])
async def test_a_continued_answer_is_the_uninterrupted_one(
    model: Path, colocated: Colocated, prefill: str, num_out: int
) -> None:
    whole = colocated.answer(LONG, 8)
    async with pods(model) as cluster:
        asked = await cluster.ask("a", LONG, 8, prefill=prefill, output=tuple(whole[:num_out]))
        assert (asked.tokens, asked.cause, asked.reason) == (whole[num_out:], "", "length")
        assert asked.report.placement == prefill


async def test_a_continued_sample_is_the_uninterrupted_one(model: Path, colocated: Colocated) -> None:
    sampling: dict[str, Any] = {"temperature": 0.9, "seed": 7}
    whole = colocated.answer(LONG, 10, **sampling)
    async with pods(model) as cluster:
        asked = await cluster.ask("a", LONG, 10, output=tuple(whole[:4]), **sampling)
        assert asked.tokens == whole[4:]


@pytest.mark.parametrize(
    ("tokens", "max_tokens", "output", "field"),
    [
        ([], 8, (), "prompt"),
        ([300], 8, (), "prompt"),
        ([1], 8, (300,), "prompt"),
        ([1] * 250, 8, (), "prompt"),
        ([1], 0, (), "max_tokens"),
        ([1], 2, (5, 6), "max_tokens"),
    ],
)
async def test_what_can_never_run_is_refused_before_anything_is_held(
    model: Path, tokens: list[int], max_tokens: int, output: tuple[int, ...], field: str
) -> None:
    async with pods(model) as cluster:
        asked = await cluster.ask("a", tokens, max_tokens, output=output)
        assert asked.cause == "invalid_request"
        assert asked.ended is not None
        assert asked.ended.error is not None
        assert asked.ended.error.field == field
        assert cluster.d.counter("requests_submitted") == 0


async def test_a_name_in_use_is_refused(model: Path, colocated: Colocated) -> None:
    async with pods(model) as cluster:
        cluster.p.engine.allow(1)
        first = await cluster.submit("a", LONG)
        await until(lambda: cluster.p.engine.num_steps == 1)
        again = await cluster.ask("a", LONG)
        assert again.cause == "invalid_request"
        cluster.router.asked["a"] = first
        cluster.p.engine.let_go()
        assert (await cluster.end(first)).tokens == colocated.answer(LONG)


# ------------------------------------------------------------------------------------------------------------- room


async def test_no_room_is_waited_for_and_a_long_queue_refused(model: Path, colocated: Colocated) -> None:
    # 21 blocks of 12 KiB: a prompt of 200 tokens with its room takes 14 of them.
    async with pods(model, d={"kv_memory_bytes": 21 * 12288, "max_num_waiting": 1}) as cluster:
        cluster.p.engine.allow(1)
        first = await cluster.submit("first", prompt(1, 200))
        await until(lambda: cluster.p.engine.num_steps == 1)
        second = await cluster.submit("second", prompt(2, 200))
        third = await cluster.ask("third", prompt(3, 200))
        assert third.cause == "overloaded"
        assert third.ended is not None
        assert third.ended.error is not None
        assert third.ended.error.retry_after_s > 0
        assert cluster.p.counter("prompts_accepted") == 1
        cluster.p.engine.let_go()
        for seed, asked in ((1, first), (2, second)):
            assert (await cluster.end(asked)).tokens == colocated.answer(prompt(seed, 200))


# --------------------------------------------------------------------------------------------------------- its end


async def reach(cluster: Pods, phase: str) -> Any:
    """Submit a request and stop it in this phase."""
    p, d = cluster.p, cluster.d
    if phase == "queued":  # another has the pool
        p.engine.allow(1)
        holder = await cluster.submit("holder", prompt(9, 200))
        await until(lambda: d.engine.loop.load().blocks_reserved > 0 and d.num_waiting == 0)  # and it knows
        asked = await cluster.submit("a", prompt(1, 200))
        await until(lambda: d.num_waiting == 1)
        return asked, holder
    if phase == "shipping":
        p.engine.allow(3)
    if phase == "landing":
        await cluster.ask("warm-up", prompt(8, 20))
        d.bulk[0].flowing.clear()
    if phase == "decoding":
        d.engine.allow(3)
    asked = await cluster.submit("a", prompt(1, 200), 20)
    match phase:
        case "shipping":
            await until(lambda: d.num_landed == 3)
        case "landing":
            await until(lambda: asked.tokens != [])
        case "decoding":
            await until(lambda: len(asked.tokens) == 4)
    return asked, None


PHASES = {
    "queued": "accepted",
    "shipping": "first_chunk_ready",
    "landing": "first_tokens_received",
    "decoding": "first_step",
}
SMALL: dict[str, Any] = {"kv_memory_bytes": 21 * 12288}


async def let_go(cluster: Pods) -> None:
    cluster.p.engine.let_go()
    cluster.d.engine.let_go()
    for channel in cluster.d.bulk:
        channel.flowing.set()


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(
    ("reason", "cause"), [("client", "cancelled"), ("stop", ""), ("deadline", "deadline_exceeded")]
)
async def test_cancelled_in_every_phase(model: Path, colocated: Colocated, phase: str, reason: str, cause: str) -> None:
    async with pods(model, d=SMALL) as cluster:
        asked, other = await reach(cluster, phase)
        if reason == "stop":
            await cluster.stop(asked)
        else:
            await cluster.cancel(asked, reason)
        assert (await cluster.end(asked)).cause == cause
        if cause == "deadline_exceeded":
            assert PHASES[phase] in asked.ended.error.message
        # Its end waited for nobody: the engines still stand.
        await let_go(cluster)
        if other is not None:
            assert (await cluster.end(other)).tokens == colocated.answer(prompt(9, 200))
        again = await cluster.ask("again", prompt(1, 200))
        assert again.tokens == colocated.answer(prompt(1, 200))


@pytest.mark.parametrize("phase", PHASES)
async def test_past_its_deadline_in_every_phase(model: Path, phase: str) -> None:
    async with pods(model, d=SMALL) as cluster:
        plain = cluster.submit

        async def submit(name: str, *args: Any, **options: Any) -> Any:
            return await plain(name, *args, **options, deadline_s=1.5 if name == "a" else 60.0)

        cluster.submit = submit  # type: ignore[method-assign]
        asked, other = await reach(cluster, phase)
        assert (await cluster.end(asked)).cause == "deadline_exceeded"
        assert asked.ended.error.message.endswith(f"last: {PHASES[phase]}")
        await let_go(cluster)
        if other is not None:
            await cluster.end(other)


@pytest.mark.parametrize("phase", PHASES)
async def test_a_lost_router_ends_its_requests(model: Path, colocated: Colocated, phase: str) -> None:
    async with pods(model, d=SMALL) as cluster:
        await reach(cluster, phase)
        await cluster.router.hang_up(cluster.d)
        await until(lambda: cluster.d.counter("requests_ended") >= 1)
        await let_go(cluster)
        await cluster.assert_at_rest()
        assert (await cluster.ask("again", LONG)).tokens == colocated.answer(LONG)


async def test_cancelled_before_it_began(model: Path) -> None:
    async with pods(model) as cluster:
        await cluster.ask("warm-up", prompt(8, 20))
        service = cluster.d.service
        assert isinstance(service, DecodeService)
        (link,) = service._exchange._links._links
        asked = Asked(spec("a", LONG, greedy(100)))
        cluster.router.asked["a"] = asked
        service.on_message(link, Submit(spec=asked.spec, candidates=(cluster.p.candidate,)))
        service.on_message(link, Cancel(request_id="a", reason="client"))
        assert (await cluster.end(asked)).cause == "cancelled"
        assert asked.tokens == []
        assert cluster.p.counter("prompts_accepted") == 1  # the one before


async def test_cancelled_while_its_reservation_is_answered(model: Path) -> None:
    async with pods(model) as cluster:
        cluster.d.engine.answering.clear()
        asked = await cluster.submit("a", LONG)
        await until(lambda: cluster.d.engine.loop.load().blocks_reserved > 0)
        await cluster.cancel(asked)
        assert (await cluster.end(asked)).cause == "cancelled"
        cluster.d.engine.answering.set()


@pytest.mark.parametrize("turns", range(8))
async def test_cancelled_at_any_turn_of_the_loop(model: Path, turns: int) -> None:
    async with pods(model) as cluster:
        await cluster.ask("warm-up", prompt(8, 20))
        link = await cluster.router.link(cluster.d)
        asked = await cluster.submit("a", LONG, 4)
        await until(lambda: cluster.d.counter("requests_submitted") == 2)
        for _ in range(turns):
            await asyncio.sleep(0)
        assert link.is_up
        await cluster.cancel(asked)
        assert (await cluster.end(asked)).cause in ("", "cancelled")


async def test_draining_refuses_the_new_and_finishes_the_old(model: Path, colocated: Colocated) -> None:
    async with pods(model) as cluster:
        cluster.p.engine.allow(2)
        old = await cluster.submit("old", LONG)
        await until(lambda: cluster.p.engine.num_steps == 2)
        cluster.d.front.lifecycle.drain("the test says so")
        drained = asyncio.create_task(cluster.d.service.drained())
        assert (await cluster.ask("new", LONG)).cause == "draining"
        assert not drained.done()
        cluster.p.engine.let_go()
        assert (await cluster.end(old)).tokens == colocated.answer(LONG)
        await drained


@pytest.mark.parametrize("phase", PHASES)
async def test_a_dead_engine_ends_every_request_by_name(model: Path, phase: str) -> None:
    async with pods(model, d=SMALL) as cluster:
        asked, other = await reach(cluster, phase)
        dying = asyncio.create_task(cluster.d.die())
        for one in (asked, other):
            if one is not None:
                assert (await cluster.end(one)).cause == "pod_lost"
        assert (await cluster.ask("late", LONG)).cause == "draining"
        cluster.p.engine.let_go()
        await dying


async def test_an_engine_that_is_gone_before_it_is_told_has_another_pod_go_on(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_: object) -> None:
        raise EngineFailed("the engine process is gone")

    async with pods(model) as cluster:
        monkeypatch.setattr(cluster.d.engine, "join", gone)
        assert (await cluster.ask("a", LONG)).cause == "pod_lost"


@pytest.mark.parametrize("kind", ["shipped", "local", "three answers", "one token", "cancelled"])
async def test_a_request_that_is_over_is_freed_at_once(model: Path, kind: str) -> None:
    # What a cycle keeps waits for a full collection, which comes the later the more a pod holds.
    how: dict[str, dict[str, Any]] = {
        "local": {"prefill": "local"}, "three answers": {"n": 3, "temperature": 1.0, "seed": 1},
        "one token": {"max_tokens": 1}, "cancelled": {"max_tokens": 200},
    }  # fmt: skip
    many = 6
    async with pods(model) as cluster:

        async def one(number: int) -> None:
            asked = await cluster.submit(f"r{number}", prompt(number, 50), **how.get(kind, {}))
            if kind == "cancelled":
                await until(lambda: bool(asked.tokens))
                await cluster.cancel(asked)
            await cluster.end(asked)

        await one(0)
        await cluster.assert_at_rest()
        gc.disable()
        try:
            gc.collect()
            for number in range(1, 1 + many):
                await one(number)
            await cluster.assert_at_rest()
            num_left = gc.collect()
        finally:
            gc.enable()
    assert num_left < many, f"{num_left} objects of {many} requests that nobody could reach"

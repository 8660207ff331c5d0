"""Several sequences behind one prompt, across pods: each says what a request of its own says to one engine.

Real pods, links, shipments and engines, a tiny model, seeded sampling. What routers and real processes add is for
`tests/router` and `tests/cluster`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_runs import engine, greedy, run_all, spec
from faulty_channel import corrupt
from pods import BLOCK, Asked, Pods, going_slowly, pods, prompt, until

from pagewire.core.messages import FirstToken, LinkMessage
from pagewire.core.sampling import FinishReason
from pagewire.core.sequence_spec import Branch
from pagewire.core.token_record import TokenRecord
from pagewire.kvtransfer.shipment import IncomingShipment
from pagewire.serving.link import Link

N = 4
MAX_TOKENS = 12
LONG = prompt(1, 100)
NUM_BLOCKS = -(-len(LONG) // BLOCK)
SAMPLING: dict[str, Any] = {"n": N, "seed": 11, "temperature": 1.1}

Said = dict[int, list[int]]


@functools.cache
def _expected(model: Path, tokens: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    said = []
    for index in range(N):
        one = spec(str(index), tokens, greedy(MAX_TOKENS, seed=11, temperature=1.1), index=index)
        said.append(tuple(run_all(engine(model).loop, [one]).tokens[one.request_id]))
    return tuple(said)


def expected(model: Path, tokens: list[int] = LONG) -> Said:
    """Return what requests of one sequence say, each with its index."""
    return {index: list(said) for index, said in enumerate(_expected(model, tuple(tokens)))}


def rest(model: Path, known: dict[int, int]) -> Said:
    """Return what comes behind so many known tokens of each sequence."""
    return {index: expected(model)[index][count:] for index, count in known.items()}


async def submit(cluster: Pods, name: str = "a", max_tokens: int = MAX_TOKENS, **options: Any) -> Asked:
    return await cluster.submit(name, options.pop("tokens", LONG), max_tokens, **SAMPLING | options)


async def go_on(cluster: Pods, model: Path, known: dict[int, int], **options: Any) -> Asked:
    """Have sequences run on elsewhere, with so many tokens of each."""
    said = expected(model)
    first, *others = known
    branches = tuple(Branch(index=index, output=tuple(said[index][: known[index]])) for index in others)
    output = tuple(said[first][: known[first]])
    return await cluster.end(await submit(cluster, "on", output=output, index=first, others=branches, **options))


def test_the_sequences_differ(model: Path) -> None:
    assert len({tuple(said) for said in expected(model).values()}) == N
    assert len({said[0] for said in expected(model).values()}) > 1


@pytest.mark.parametrize("prefill", ["remote", "local"])
@pytest.mark.parametrize("length", [1, 16, 100])
async def test_each_says_what_a_request_of_its_own_says(model: Path, prefill: str, length: int) -> None:
    tokens = prompt(2, length)
    async with pods(model) as cluster:
        asked = await cluster.end(await submit(cluster, tokens=tokens, prefill=prefill))
        assert (asked.cause, asked.streams) == ("", expected(model, tokens))
        assert asked.reasons == dict.fromkeys(range(N), FinishReason.LENGTH)
        report, here, there = asked.report, cluster.d.engine.loop.load(), cluster.p.engine.loop.load()
        if prefill == "remote":
            # The prompt was computed once and travelled once, whatever the number of sequences.
            assert (report.placement, there.prompt_tokens_computed, here.prompt_tokens_computed) == (
                "remote", length, 0,
            )  # fmt: skip
            assert report.blocks_shipped == report.manifest_blocks == -(-length // BLOCK)
        else:
            assert (there.prompt_tokens_computed, here.prompt_tokens_computed) == (0, length)
        assert here.block_steps_shared > 0 or length == 1


async def test_what_a_step_says_to_a_router_is_one_frame(model: Path) -> None:
    async with pods(model) as cluster:
        others = [await submit(cluster, f"other {number}") for number in range(2)]
        for asked in (await submit(cluster), *others):
            await cluster.end(asked)
        sizes = [len(frame.records) for frame in cluster.router.frames]
        assert sum(sizes) == 3 * N * MAX_TOKENS
        # What each decodes by steps: no more frames than steps, though each step has tokens of all that run.
        assert max(sizes) >= N
        assert len(sizes) <= 3 * (MAX_TOKENS + 2)


async def test_one_token_each_is_sampled_there_and_nothing_is_shipped(model: Path) -> None:
    async with pods(model) as cluster:
        asked = await cluster.end(await submit(cluster, max_tokens=1))
        assert asked.streams == {index: said[:1] for index, said in expected(model).items()}
        assert (asked.report.manifest_blocks, asked.report.blocks_shipped) == (0, 0)


async def test_those_that_their_first_token_ends_are_over(model: Path) -> None:
    said = expected(model)
    async with pods(model) as cluster:
        for name, ending in (("some", {said[1][0]}), ("all", {each[0] for each in said.values()})):
            asked = await cluster.end(await submit(cluster, name, stop_token_ids=tuple(ending)))
            right: Said = {}
            for index, tokens in said.items():
                at = next((at for at, token in enumerate(tokens) if token in ending), len(tokens))
                right[index] = tokens[: at + 1]
            assert (asked.cause, asked.streams) == ("", right)
            assert {index for index, tokens in right.items() if len(tokens) == 1} >= {1}
        assert asked.report.manifest_blocks == 0


async def test_what_the_prefill_pod_fetches_changes_nothing(model: Path) -> None:
    async with pods(model, 2) as cluster:
        first, second = cluster.prefill
        await submit(cluster, "warm", candidates=[first.candidate])
        await cluster.end(cluster.router.asked["warm"])
        cluster.d.engine.loop.load()
        tokens = [*LONG[:64], *prompt(5, 40)]
        asked = await cluster.end(
            await submit(cluster, tokens=tokens, candidates=[second.candidate], sources=[first.source(64)])
        )
        assert (asked.cause, asked.streams) == ("", expected(model, tokens))
        assert asked.report.prefill_fetched_tokens == 64


# -------------------------------------------------------------------------------------------------------------- faults


async def test_corrupt_blocks_are_computed_here_and_the_first_tokens_stand(model: Path) -> None:
    async with pods(model) as cluster:
        await cluster.ask("warm-up", prompt(8, 5), 2)
        channel = cluster.d.bulk[0]
        channel.plan = corrupt(*range(channel.num_messages + 2, 100))
        channel.flowing.clear()
        asked = await submit(cluster)
        await until(lambda: all(asked.streams.values()))
        channel.flowing.set()
        await cluster.end(asked)
        assert (asked.cause, asked.streams, asked.report.placement) == ("", expected(model), "resumed")
        landed = asked.report.blocks_shipped  # by two messages
        assert 2 <= landed < NUM_BLOCKS
        # The prompt is computed once; behind it, each other computes the last block's tokens and its own first one.
        behind = (N - 1) * (len(LONG) % BLOCK + 1)
        assert asked.report.decode_computed_tokens == len(LONG) - landed * BLOCK + behind


@pytest.mark.parametrize("num_steps", [0, 3, NUM_BLOCKS])
async def test_a_prefill_pod_that_dies_costs_time_only(model: Path, num_steps: int) -> None:
    async with pods(model) as cluster:
        await cluster.ask("warm-up", prompt(8, 20))
        if num_steps == NUM_BLOCKS:  # the first tokens are out, their KV is on its way
            cluster.d.bulk[0].flowing.clear()
        cluster.p.engine.allow(num_steps)
        asked = await submit(cluster)
        await until(lambda: cluster.p.counter("prompts_accepted") == 2)
        if num_steps == NUM_BLOCKS:
            await until(lambda: all(asked.streams.values()))
        await cluster.p.die()
        for channel in cluster.d.bulk:
            channel.flowing.set()
        await cluster.end(asked)
        assert (asked.cause, asked.streams) == ("", expected(model))


def without_the_first(records: tuple[TokenRecord, ...]) -> tuple[TokenRecord, ...]:
    return records[1:]


def beyond_the_vocabulary(records: tuple[TokenRecord, ...]) -> tuple[TokenRecord, ...]:
    return (*records[:-1], dataclasses.replace(records[-1], tokens=(4_000_000_000,)))


@pytest.mark.parametrize("change", [without_the_first, beyond_the_vocabulary])
async def test_first_tokens_that_do_not_fit_the_question_are_not_used(
    model: Path, monkeypatch: Any, change: Callable[[tuple[TokenRecord, ...]], tuple[TokenRecord, ...]]
) -> None:
    plain = Link.send

    def send(link: Link, message: LinkMessage) -> None:
        if isinstance(message, FirstToken):
            message = dataclasses.replace(message, records=change(message.records))
        plain(link, message)

    monkeypatch.setattr(Link, "send", send)
    async with pods(model) as cluster:
        asked = await cluster.end(await submit(cluster))
        assert (asked.cause, asked.streams) == ("", expected(model))


# --------------------------------------------------------------------------------------------------- stops and cancels


@pytest.mark.parametrize("max_tokens", [1, MAX_TOKENS])
@pytest.mark.parametrize("prefill", ["local", "remote"])
async def test_the_first_is_stopped_before_it_said_anything_and_the_others_answer(
    model: Path, prefill: str, max_tokens: int
) -> None:
    async with pods(model) as cluster:
        pod = cluster.d if prefill == "local" else cluster.p
        pod.engine.allow(0)
        asked = await submit(cluster, max_tokens=max_tokens, prefill=prefill)
        await until(lambda: pod.engine.loop.load().num_waiting == 1)  # the engine has it, and nothing is computed
        await cluster.stop(asked)
        await cluster.stop(asked, 2)
        streams = cluster.d.service._requests["a"]._streams  # type: ignore[union-attr]
        await until(lambda: len(streams._running) == N - 2)
        pod.engine.let_go()
        await cluster.end(asked)
        assert asked.cause == ""
        right = {index: said[:max_tokens] for index, said in expected(model).items()}
        assert asked.streams == right | {0: [], 2: []}


async def reach(cluster: Pods, phase: str) -> Asked:
    """Submit a request and stop it in this phase."""
    await cluster.ask("warm-up", prompt(8, 20))
    match phase:
        case "shipping":
            cluster.p.engine.allow(3)
        case "landing":
            cluster.d.bulk[0].flowing.clear()
        case "decoding":
            cluster.d.engine.allow(3)
    asked = await submit(cluster)
    if phase == "shipping":
        await until(lambda: bool(cluster.d.open_shipments) and _landed(cluster.d.open_shipments[0]) == 3)
    else:
        await until(lambda: min(map(len, asked.streams.values())) == (1 if phase == "landing" else 4))
    return asked


def _landed(shipment: IncomingShipment) -> int:
    return shipment.num_verified


def let_go(cluster: Pods) -> None:
    for pod in (cluster.p, cluster.d):
        pod.engine.let_go()
    for channel in cluster.d.bulk:
        channel.flowing.set()


@pytest.mark.parametrize("phase", ["landing", "decoding"])
@pytest.mark.parametrize("stopped", [(2,), (0, 3), (0, 1, 2)])
async def test_a_stopped_sequence_says_no_more_and_the_others_go_on(
    model: Path, phase: str, stopped: tuple[int, ...]
) -> None:
    async with pods(model) as cluster:
        asked = await reach(cluster, phase)
        said = {index: len(tokens) for index, tokens in asked.streams.items()}
        for index in (*stopped, *stopped, 9):  # once more than needed, and one that never was
            await cluster.stop(asked, index)
        streams = cluster.d.service._requests["a"]._streams  # type: ignore[union-attr]
        await until(lambda: streams._running.keys().isdisjoint(stopped))
        let_go(cluster)
        assert (await cluster.end(asked)).cause == ""
        for index, tokens in expected(model).items():
            if index in stopped:
                # The step that ran may have drawn for it; nothing of what was drawn later was told.
                assert asked.streams[index] == tokens[: len(asked.streams[index])]
                assert len(asked.streams[index]) < MAX_TOKENS
                assert phase == "decoding" or len(asked.streams[index]) == said[index]
            else:
                assert asked.streams[index] == tokens
        assert asked.reasons.keys() == set(range(N)) - set(stopped)


@pytest.mark.parametrize("phase", ["shipping", "landing", "decoding"])
async def test_when_all_are_stopped_it_has_ended_well(model: Path, phase: str) -> None:
    async with pods(model) as cluster:
        asked = await reach(cluster, phase)
        for index in range(N):
            await cluster.stop(asked, index)
        assert (await cluster.end(asked)).cause == ""
        let_go(cluster)


@pytest.mark.parametrize("phase", ["shipping", "landing", "decoding"])
@pytest.mark.parametrize("how", ["cancelled", "deadline", "hung up", "died"])
async def test_whatever_ends_it_ends_all_and_leaves_nothing(model: Path, phase: str, how: str) -> None:
    async with pods(model) as cluster:
        asked = await reach(cluster, phase)
        match how:
            case "cancelled" | "deadline":
                await cluster.cancel(asked, "client" if how == "cancelled" else "deadline")
                assert (await cluster.end(asked)).cause == ("cancelled" if how == "cancelled" else "deadline_exceeded")
            case "hung up":
                await cluster.router.hang_up(cluster.d)
                await until(lambda: cluster.d.counter("requests_ended") >= 2)
            case "died":
                await cluster.d.die()
                assert (await cluster.end(asked)).cause == "pod_lost"
        let_go(cluster)


# ------------------------------------------------------------------------------------------------------- continuation


@pytest.mark.parametrize("prefill", ["remote", "local"])
@pytest.mark.parametrize(
    "known",
    [
        {0: 5, 1: 5, 2: 5, 3: 5},
        {0: 1, 1: 11, 2: 3, 3: 1},  # stopped apart from one another, before this
        {1: 11, 3: 11},
        {2: 4},
        {3: 11},
    ],
)
async def test_they_go_on_on_another_pod(model: Path, prefill: str, known: dict[int, int]) -> None:
    async with pods(model) as cluster:
        asked = await go_on(cluster, model, known, prefill=prefill)
        assert (asked.cause, asked.streams) == ("", rest(model, known))


async def test_a_draining_decode_pod_hands_them_over(model: Path) -> None:
    async with pods(model, 1, 2) as cluster:
        old, new = cluster.decode
        old.engine.allow(6)
        begun = await submit(cluster, on=old)
        await until(lambda: len(begun.tokens) >= 4)
        await cluster.stop(begun, 1, on=old)
        old.front.lifecycle.drain("the test says so")
        await until(lambda: old.service._requests["a"]._streams._running.keys() == {0, 2, 3})  # type: ignore[union-attr]
        old.service.hand_over()
        async with going_slowly(old):
            assert (await cluster.end(begun)).cause == "handed_over"
        known = {index: len(said) for index, said in begun.streams.items() if index != 1}
        source = old.source(len(LONG) + known[0])
        asked = await go_on(cluster, model, known, on=new, sources=[source])
        assert (asked.cause, asked.streams) == ("", rest(model, known))
        assert asked.report.decode_fetched_tokens >= len(LONG) // BLOCK * BLOCK
        await until(lambda: old.counter("handovers_fetched") == 1)


# --------------------------------------------------------------------------------------------------------------- bounds


async def test_answers_that_outgrow_a_pool_together_are_handed_over_all_the_same(model: Path) -> None:
    """They take turns in the pool that they leave, and so they do in the one that they come to."""
    most, sampling = 120, dict[str, Any](n=3, seed=3, temperature=1.0)
    small: dict[str, Any] = {"kv_memory_bytes": 24 * 12288}  # 24 blocks
    async with pods(model, 0, 3, d=small) as cluster:
        whole, old, new = cluster.decode
        wanted = await cluster.ask("a", LONG, most, on=whole, **sampling)
        assert {len(said) for said in wanted.streams.values()} == {most}
        async with going_slowly(old):
            begun = await cluster.submit("a", LONG, most, on=old, **sampling)
            await until(lambda: sum(map(len, begun.streams.values())) > 300)
            old.front.lifecycle.drain("SIGTERM")
            old.service.hand_over()
            await cluster.end(begun)
        assert begun.cause == "handed_over"
        left = [index for index in begun.streams if index not in begun.reasons]
        first, *others = (Branch(index=index, output=tuple(begun.streams[index])) for index in left)
        rest = await cluster.ask(
            "b", LONG, most, on=new, output=first.output, index=first.index, others=tuple(others),
            sources=[old.source(len(LONG) + len(first.output))], **sampling,
        )  # fmt: skip
        assert rest.cause == ""
        for index in left:
            assert begun.streams[index] + rest.streams[index] == wanted.streams[index]


async def test_more_than_run_at_once_are_refused_by_name(model: Path) -> None:
    async with pods(model) as cluster:
        most = cluster.d.engine.engine.scheduler.limits.max_num_seqs
        for max_tokens in (8, 1):
            asked = await cluster.end(await submit(cluster, str(max_tokens), max_tokens, n=most + 1))
            assert asked.cause == "invalid_request"
            assert asked.ended is not None
            assert asked.ended.error is not None
            assert asked.ended.error.field == "n"
            assert str(most) in asked.ended.error.message
        assert not any(cluster.d.service._exchange.peers.lost.values())

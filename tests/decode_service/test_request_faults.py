"""What goes wrong between the pods costs time: the answer is the same, and what landed is not computed again."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest
from faulty_channel import corrupt, duplicate, swallow
from pod_wire import wire_to
from pods import BLOCK, Asked, Colocated, Pods, pods, prompt, until

from pagewire.core.engine_messages import Bind, Bound
from pagewire.core.errors import EngineFailed
from pagewire.core.messages import Candidate
from pagewire.engine.exchange.exports import LANDING_GRACE_S
from pagewire.engine.exchange.peer import FORGET_S

LONG = prompt(1, 100)
NOBODY = Candidate(pod_id="p9", address="127.0.0.1:1")


async def warm(cluster: Pods) -> None:
    """Have the decode pod meet its prefill pod, so that there is a stream to spoil."""
    await cluster.ask("warm-up", prompt(8, 5), 2)


def assert_resumed(asked: Asked, landed: int) -> None:
    """The first `landed` blocks were kept, the rest was computed here."""
    assert (asked.report.placement, asked.cause) == ("resumed", "")
    assert asked.report.decode_computed_tokens == 100 - landed * BLOCK


# ------------------------------------------------------------------------------------------------ nobody, or refused


async def test_who_is_not_there_is_passed_over(model: Path, colocated: Colocated) -> None:
    async with pods(model) as cluster:
        asked = await cluster.ask("a", LONG, candidates=[NOBODY, cluster.p.candidate])
        assert asked.tokens == colocated.answer(LONG)
        assert (asked.report.placement, asked.report.prefill_pod) == ("remote", "p0")
        assert asked.report.causes == ("unavailable",)
        assert asked.report.lost_on == ("p9",)
        assert cluster.d.counter("pods_unreached_unavailable") == 1


async def test_another_pod_at_the_address_is_passed_over(model: Path, colocated: Colocated) -> None:
    async with pods(model) as cluster:
        moved = Candidate(pod_id="p7", address=cluster.p.candidate.address)
        asked = await cluster.ask("a", LONG, candidates=[moved])
        assert (asked.tokens, asked.report.placement) == (colocated.answer(LONG), "local")
        assert asked.report.causes == ("peer_mismatch",)
        assert cluster.d.counter("pods_unreached_peer_mismatch") == 1
        assert cluster.p.counter("prompts_refused") == 0
        peers = cluster.d.service._exchange.peers
        gone = peers.at(moved.pod_id, moved.address)
        await until(lambda: gone._alone_since_s is not None)
        cluster.d.advance(FORGET_S + 1)
        await until(lambda: peers.known(moved.pod_id, moved.address) is None)


async def test_a_pod_of_another_secret_is_passed_over_by_name(model: Path, colocated: Colocated) -> None:
    async with pods(model) as cluster:
        peers = cluster.d.service._exchange.peers
        assert cluster.d.counter("pods_unreached_unauthenticated") == 0
        peers._identity = dataclasses.replace(peers._identity, secret=b"another")
        asked = await cluster.ask("a", LONG)
        assert (asked.tokens, asked.report.placement) == (colocated.answer(LONG), "local")
        assert asked.report.causes == ("unauthenticated",)
        assert cluster.d.counter("pods_unreached_unauthenticated") == 1


async def test_a_link_to_whom_a_pod_replaced_costs_its_own_stream_nothing(model: Path, colocated: Colocated) -> None:
    """A taker that still dials a pod in whose place this one came has two links to it: one ends, the other one
    stays."""
    async with pods(model) as cluster:
        await cluster.ask("a", LONG)
        peers = cluster.d.service._exchange.peers
        stream = peers.at(cluster.p.pod_id, cluster.p.candidate.address).receiver._stream
        assert stream is not None
        replaced = Candidate(pod_id="p7", address=cluster.p.candidate.address)
        await cluster.ask("b", prompt(2, 50), candidates=[replaced])
        links = cluster.p.service._exchange._links_of["d0"]
        assert len(links) == 2
        await until(lambda: peers.at(replaced.pod_id, replaced.address)._alone_since_s is not None)
        cluster.d.advance(FORGET_S + 1)
        await until(lambda: len(links) == 1)
        again = await cluster.ask("c", prompt(3, 50))
        assert (again.tokens, again.report.placement) == (colocated.answer(prompt(3, 50)), "remote")
        assert peers.at(cluster.p.pod_id, cluster.p.candidate.address).receiver._stream is stream


@pytest.mark.parametrize(
    ("why", "cause"),
    [
        ("draining", "draining"),
        ("full", "overloaded"),
        ("ticket", "unauthenticated"),
        ("engine", "prefill_lost"),
    ],
)
async def test_who_refuses_is_passed_over(model: Path, colocated: Colocated, why: str, cause: str) -> None:
    async with pods(model, 2, p={"max_num_waiting": 1}) as cluster:
        first, second = cluster.prefill
        if why == "draining":
            first.front.lifecycle.drain("the test says so")
        if why == "full":
            first.engine.allow(0)
            holder = await cluster.submit("holder", prompt(2, 50), candidates=[first.candidate])
            await until(lambda: first.counter("prompts_accepted") == 1)
        if why == "engine":
            first.engine.die()
        if why == "ticket":
            first.wall_s += 1000.0  # beyond any ticket's life
        asked = await cluster.ask("a", LONG)
        assert asked.tokens == colocated.answer(LONG)
        assert (asked.report.placement, asked.report.prefill_pod) == ("remote", second.pod_id)
        assert first.counter("prompts_refused") == 1
        alone = await cluster.ask("b", prompt(3, 100), candidates=[first.candidate])
        assert alone.tokens == colocated.answer(prompt(3, 100))
        assert (alone.report.placement, alone.report.prefill_pod) == ("local", "")
        assert cluster.d.counter(f"shipments_refused_{cause}") == 2
        if why == "full":
            first.engine.let_go()
            assert (await cluster.end(holder)).tokens == colocated.answer(prompt(2, 50))


@pytest.mark.parametrize(
    ("kind", "name"), [("lost", "shipments_lost"), ("refused", "shipments_refused"), ("unreached", "pods_unreached")]
)
async def test_a_cause_comes_up_while_metrics_are_read(model: Path, kind: str, name: str) -> None:
    """They are read in a thread of their own, and a cause is a peer's own word: any may come."""
    async with pods(model, 0) as cluster:
        counts = getattr(cluster.d.service._exchange.peers, kind)

        class Counted(int):
            def __float__(self) -> float:
                counts["poisoned"] += 1
                return float(int(self))

        known = next(iter(counts))
        counts[known] = Counted(3)
        assert cluster.d.counter(f"{name}_{known}") == 3
        assert cluster.d.counter(f"{name}_poisoned") == 1


# ----------------------------------------------------------------------------------------------------- spoilt bytes


async def test_a_corrupt_block_is_asked_for_once_more(model: Path, colocated: Colocated) -> None:
    async with pods(model) as cluster:
        await warm(cluster)
        cluster.d.bulk[0].plan = corrupt(cluster.d.bulk[0].num_messages + 2)
        asked = await cluster.ask("a", LONG)
        assert (asked.tokens, asked.report.placement) == (colocated.answer(LONG), "remote")
        assert asked.report.decode_computed_tokens == 0
        assert cluster.d.counter("kv_blocks_corrupt") == 1
        assert cluster.p.counter("kv_blocks_sent") == cluster.d.counter("kv_blocks_received") == 1 + 7 + 1


async def test_corrupt_twice_is_computed_here_from_what_landed(model: Path, colocated: Colocated) -> None:
    async with pods(model) as cluster:
        await warm(cluster)
        channel = cluster.d.bulk[0]
        channel.plan = corrupt(*range(channel.num_messages + 2, 100))
        asked = await cluster.ask("a", LONG)
        assert asked.tokens == colocated.answer(LONG)
        assert_resumed(asked, landed=2)


async def test_blocks_that_come_twice_are_placed_once(model: Path, colocated: Colocated) -> None:
    async with pods(model) as cluster:
        await warm(cluster)
        cluster.d.bulk[0].plan = duplicate
        asked = await cluster.ask("a", LONG)
        assert (asked.tokens, asked.report.blocks_shipped) == (colocated.answer(LONG), 7)


# ------------------------------------------------------------------------------------------------ streams and links


async def test_a_bulk_stream_lost_on_the_way(model: Path, colocated: Colocated) -> None:
    async with pods(model) as cluster:
        await warm(cluster)
        cluster.p.engine.allow(3)
        asked = await cluster.submit("a", LONG)
        await until(lambda: cluster.d.num_landed == 3)
        cluster.p.sender.drop("d0", "the test says so")
        await until(lambda: cluster.d.engine.num_steps > 1)  # it goes on by itself
        assert (await cluster.end(asked)).tokens == colocated.answer(LONG)
        assert_resumed(asked, landed=3)
        cluster.p.engine.let_go()
        again = await cluster.ask("again", prompt(2, 50))
        assert again.tokens == colocated.answer(prompt(2, 50))


async def test_a_stream_that_lets_nothing_through_is_given_up_with_its_shipment(
    model: Path, colocated: Colocated, caplog: pytest.LogCaptureFixture
) -> None:
    """As one whose socket a firewall has forgotten: it stands, and so does the link."""
    caplog.set_level("INFO")
    async with pods(model, p={"lease_s": 600.0}, d={"transfer_timeout_s": 30.0}) as cluster:
        await warm(cluster)
        through = cluster.d.bulk[0].plan
        cluster.d.bulk[0].plan = lambda _number, _message: []
        asked = await cluster.submit("a", LONG)
        await until(lambda: asked.tokens != [])
        cluster.d.advance(31.0)
        assert (await cluster.end(asked)).tokens == colocated.answer(LONG)
        assert (asked.report.placement, asked.report.blocks_shipped) == ("resumed", 0)
        await until(lambda: "ended: nothing came while blocks of a were due" in caplog.text)
        cluster.d.bulk[0].plan = through
        again = await cluster.ask("again", prompt(2, 100))
        assert (again.tokens, again.report.placement) == (colocated.answer(prompt(2, 100)), "remote")


async def test_the_pod_is_cut_off_before_the_first_token(model: Path, colocated: Colocated) -> None:
    async with pods(model) as cluster, wire_to(cluster.p) as (wire, candidate):
        cluster.p.engine.allow(4)
        asked = await cluster.submit("a", LONG, candidates=[candidate])
        await until(lambda: cluster.d.num_landed == 4)
        assert asked.tokens == []
        wire.cut()
        assert (await cluster.end(asked)).tokens == colocated.answer(LONG)
        assert_resumed(asked, landed=4)
        cluster.p.engine.let_go()


async def test_the_pod_is_cut_off_after_the_first_token(model: Path, colocated: Colocated) -> None:
    async with pods(model) as cluster, wire_to(cluster.p) as (wire, candidate):
        await cluster.ask("warm-up", prompt(8, 5), 2, candidates=[candidate])
        cluster.d.bulk[0].plan = swallow(*range(cluster.d.bulk[0].num_messages + 5, 100))
        asked = await cluster.submit("a", LONG, candidates=[candidate])
        await until(lambda: asked.tokens != [] and cluster.d.num_landed == 5)
        wire.cut()
        assert (await cluster.end(asked)).tokens == colocated.answer(LONG)
        assert (asked.report.placement, asked.cause) == ("resumed", "")
        # The first token stands: its logits are not computed again, but its KV, and what did not land.
        assert asked.report.decode_computed_tokens == 100 - 5 * BLOCK
        assert cluster.d.engine.loop.load().prompt_tokens_computed == asked.report.decode_computed_tokens


async def test_a_silent_pod_is_waited_for_until_the_transfer_timeout(model: Path, colocated: Colocated) -> None:
    async with pods(model, d={"transfer_timeout_s": 30.0}) as cluster, wire_to(cluster.p) as (wire, candidate):
        await cluster.ask("warm-up", prompt(8, 5), 2, candidates=[candidate])
        cluster.d.bulk[0].plan = swallow(*range(cluster.d.bulk[0].num_messages + 6, 100))
        asked = await cluster.submit("a", LONG, candidates=[candidate])
        await until(lambda: asked.tokens != [] and cluster.d.num_landed == 6)
        wire.freeze()
        cluster.d.advance(29.0)
        assert [shipment.state for shipment in cluster.d.open_shipments] == ["shipping"]
        cluster.d.advance(1.5)  # the bytes are late
        assert [shipment.state for shipment in cluster.d.open_shipments] == ["fencing"]
        cluster.d.advance(2.5)  # and the fence is not answered
        assert (await cluster.end(asked)).tokens == colocated.answer(LONG)
        assert_resumed(asked, landed=6)
        wire.cut()


@pytest.mark.parametrize("is_fetch", [False, True])
async def test_a_taker_that_lives_and_does_not_take_is_not_waited_for_until_the_deadline(
    model: Path, colocated: Colocated, is_fetch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its signs of life renew its lease, and a deadline may be far; its own patience is without an end here."""
    async with pods(model, 1, 2, d={"lease_s": 600.0, "transfer_timeout_s": 1e6}) as cluster:
        taker, source = cluster.d, cluster.p
        await cluster.ask("held", LONG, on=cluster.decode[1])
        goes_on, bind = asyncio.Event(), taker.engine.bind

        async def bind_late(asked: Bind) -> Bound:
            await goes_on.wait()
            return await bind(asked)

        monkeypatch.setattr(taker.engine, "bind", bind_late)
        exports = source.service._exchange.exports
        prefill, sources = ("local", [source.source(100)]) if is_fetch else ("remote", [])
        asked = await cluster.submit("a", LONG, on=taker, deadline_s=1e5, prefill=prefill, sources=sources)
        await until(lambda: [each.shipment.is_computed for each in exports.all()] == [True])
        source.advance(source.front.config.transfer_timeout_s)
        assert len(exports) == 1
        source.advance(LANDING_GRACE_S)
        await until(lambda: len(exports) == 0)
        await until(lambda: taker.counter("shipments_lost_transfer_timeout") == 1)
        goes_on.set()
        assert (await cluster.end(asked)).tokens == colocated.answer(LONG)
        assert asked.report.causes == (() if is_fetch else ("transfer_timeout",))


async def test_a_lease_that_ends_while_the_link_stands_is_told(model: Path, colocated: Colocated) -> None:
    """As when the prefill pod stood still for longer than its leases: the decode pod would wait for nothing."""
    async with pods(model) as cluster:
        await warm(cluster)
        cluster.p.engine.allow(3)
        asked = await cluster.submit("a", LONG)
        await until(lambda: cluster.d.num_landed == 3)
        cluster.p.advance(31.0)
        cluster.p.engine.let_go()
        assert (await cluster.end(asked)).tokens == colocated.answer(LONG)
        assert_resumed(asked, landed=3)
        assert asked.report.causes == ("lease_expired",)


# --------------------------------------------------------------------------------------------------------- engines


async def test_a_prefill_engine_that_dies_on_the_way(model: Path, colocated: Colocated) -> None:
    async with pods(model) as cluster:
        await warm(cluster)
        cluster.p.engine.allow(3)
        asked = await cluster.submit("a", LONG)
        await until(lambda: cluster.d.num_landed == 3)
        await cluster.p.die()
        assert (await cluster.end(asked)).tokens == colocated.answer(LONG)
        assert_resumed(asked, landed=3)


async def test_a_prompt_that_breaks_the_prefill_pods_step_is_built_here(
    model: Path, colocated: Colocated, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pods(model) as cluster:

        def broken(step: object, on_group: object) -> dict[str, int]:
            raise EngineFailed("the test says so")

        monkeypatch.setattr(cluster.p.engine.engine.loop._runner, "run", broken)
        asked = await cluster.ask("a", LONG)
        assert asked.tokens == colocated.answer(LONG)
        assert_resumed(asked, landed=0)
        assert cluster.p.counter("prompts_failed") == 1


# ------------------------------------------------------------------------------------------------------- prefill pods


async def test_a_pod_that_stays_away_is_forgotten_and_met_again(model: Path, colocated: Colocated) -> None:
    async with pods(model) as cluster, wire_to(cluster.p) as (wire, candidate):
        await cluster.ask("a", LONG, candidates=[candidate])
        wire.cut()
        await until(lambda: not cluster.p.sender.is_connected("d0"))
        peers = cluster.d.service._exchange.peers
        met = peers.at(candidate.pod_id, candidate.address)
        await until(lambda: met._dialer.link is None)
        cluster.d.advance(1.0)
        cluster.d.advance(58.0)  # or 59: a tick of its own may have come before the first of ours
        assert peers.at(candidate.pod_id, candidate.address) is met
        cluster.d.advance(2.0)
        assert cluster.d.counter("kv_blocks_received") == 7  # what it counted stays
        again = await cluster.ask("again", prompt(2, 50))
        assert (again.tokens, again.report.placement) == (colocated.answer(prompt(2, 50)), "remote")

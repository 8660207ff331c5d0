"""KV that some pod holds already is copied where that is cheaper, by every role, and nobody computes it again.

Real pods over loopback, counted by their engines. Cannot prove what a copy costs; that is `bench/transfer.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from faulty_channel import corrupt
from pod_wire import wire_to
from pods import BLOCK, DEAR, Colocated, going_slowly, pods, prompt, until

from pagewire.core.engine_messages import Held, Hold
from pagewire.core.listeners import accepted_last
from pagewire.core.messages import Role, Source
from pagewire.engine.exchange.peers import open_bulk_channel

LONG = prompt(1, 100)


# --------------------------------------------------------------------------------------------- decode pods that fetch


async def test_a_decode_pod_fetches_what_another_holds(model: Path, colocated: Colocated) -> None:
    async with pods(model, 0, 2) as cluster:
        holder, asker = cluster.decode
        await cluster.ask("a", LONG, on=holder)
        asked = await cluster.ask("b", LONG, on=asker, sources=[holder.source(100)])
        assert asked.tokens == colocated.answer(LONG)
        report = asked.report
        assert (report.placement, report.decode_fetched_tokens, report.decode_computed_tokens) == ("local", 96, 4)
        assert (report.transport, report.causes) == ("", ())  # of shipped prompts: there was none
        assert holder.counter("kv_blocks_sent") == asker.counter("kv_blocks_received") == 6
        assert (holder.counter("exports_fetches"), holder.counter("exports_fetched_blocks")) == (1, 6)


async def test_colocated_pods_serve_one_another_and_prefill_pods(model: Path, colocated: Colocated) -> None:
    async with pods(model, 1, 2, d_role=Role.COLOCATED) as cluster:
        holder, asker = cluster.decode
        await cluster.ask("a", LONG, on=holder, candidates=[])
        asked = await cluster.ask("b", LONG, on=asker, candidates=[], sources=[holder.source(100)])
        assert asked.tokens == colocated.answer(LONG)
        assert (asked.report.decode_fetched_tokens, asked.report.decode_computed_tokens) == (96, 4)
        longer = LONG + prompt(6, 40)
        taken = await cluster.ask("c", longer, 1, on=asker, sources=[holder.source(100)])
        assert taken.tokens == colocated.answer(longer, 1)
        assert (taken.report.prefill_fetched_tokens, taken.report.prefill_computed_tokens) == (96, 44)
        assert holder.counter("exports_fetches") == 2


async def test_a_dear_copy_is_not_made(model: Path, colocated: Colocated) -> None:
    async with pods(model, 0, 2) as cluster:
        holder, asker = cluster.decode
        await cluster.ask("a", LONG, on=holder)
        asker.take_copying_for(DEAR)
        asked = await cluster.ask("b", LONG, on=asker, sources=[holder.source(100)])
        assert asked.tokens == colocated.answer(LONG)
        assert (asked.report.decode_fetched_tokens, asked.report.decode_computed_tokens) == (0, 100)
        assert holder.counter("exports_fetches") == 0


async def test_a_source_that_was_slow_once_is_not_thought_dear_for_ever(model: Path) -> None:
    """Nothing would be fetched from it, so nothing would be measured."""
    async with pods(model, 1, 2) as cluster:
        holder, asker = cluster.decode
        await cluster.ask("a", LONG, on=holder)
        await cluster.ask("b", LONG, on=asker, prefill="local", sources=[holder.source(100)])
        peer = asker.service._exchange.peers.at(holder.pod_id, holder.address)
        peer.meter.landed(1 << 20, 10.0)
        asker.advance(0.0)
        dear = peer.meter.cost.s_per_byte
        asker.advance(3 * 3600.0)
        assert 0 < peer.meter.cost.s_per_byte < dear / 1e3


async def test_only_what_is_missing_is_fetched(model: Path, colocated: Colocated) -> None:
    async with pods(model, 0, 2) as cluster:
        holder, asker = cluster.decode
        await cluster.ask("a", LONG, on=holder)
        await cluster.ask("b", LONG[:40], on=asker)
        asked = await cluster.ask("c", LONG, on=asker, sources=[holder.source(100)])
        assert asked.tokens == colocated.answer(LONG)
        report = asked.report
        assert (report.decode_cached_tokens, report.decode_fetched_tokens, report.decode_computed_tokens) == (32, 64, 4)


async def test_a_source_that_holds_less_than_was_said(model: Path, colocated: Colocated) -> None:
    """The index is a hint: a wrong one costs time, never tokens."""
    async with pods(model, 0, 2) as cluster:
        holder, asker = cluster.decode
        await cluster.ask("a", LONG[:50], on=holder)
        some = await cluster.ask("b", LONG, on=asker, sources=[holder.source(100)])
        assert some.tokens == colocated.answer(LONG)
        assert (some.report.decode_fetched_tokens, some.report.decode_computed_tokens) == (48, 52)
        none = await cluster.ask("c", prompt(2, 100), on=asker, sources=[holder.source(100)])
        assert none.tokens == colocated.answer(prompt(2, 100))
        assert (none.report.decode_fetched_tokens, none.report.decode_computed_tokens) == (0, 100)


async def test_what_one_source_lacks_is_asked_of_the_next(model: Path, colocated: Colocated) -> None:
    async with pods(model, 0, 3) as cluster:
        some, all_of_it, asker = cluster.decode
        await cluster.ask("a", LONG[:50], on=some)
        await cluster.ask("b", LONG, on=all_of_it)
        nobody = Source(pod_id="d9", address="127.0.0.1:1", num_tokens=100)
        sources = [nobody, some.source(100), all_of_it.source(100)]
        asked = await cluster.ask("c", LONG, on=asker, sources=sources)
        assert asked.tokens == colocated.answer(LONG)
        assert (asked.report.decode_fetched_tokens, asked.report.decode_computed_tokens) == (96, 4)
        assert [pod.counter("exports_fetched_blocks") for pod in (some, all_of_it)] == [3, 3]
        assert asker.counter("pods_unreached_unavailable") == 1


async def test_a_source_whose_own_requests_wait_for_blocks_ships_nothing(model: Path, colocated: Colocated) -> None:
    """What it would hold for the other pod may be what its first in line lacks."""
    async with pods(model, 0, 2, d={"kv_memory_bytes": 24 * 12288}) as cluster:  # 24 blocks
        holder, asker = cluster.decode
        await cluster.ask("a", LONG, on=holder)
        holder.engine.allow(1)
        runs = await cluster.submit("b", prompt(2, 220), on=holder)
        await until(lambda: holder.engine.loop.load().num_running == 1)
        waits = await cluster.submit("c", prompt(3, 220), on=holder)
        await until(lambda: holder.num_waiting == 1 and bool(holder.engine.loop._scheduler.refused))
        refused = await cluster.ask("d", LONG, on=asker, sources=[holder.source(100)])
        assert (holder.counter("exports_fetches"), holder.counter("exports_fetched_blocks")) == (1, 0)
        assert refused.tokens == colocated.answer(LONG)
        assert (refused.report.decode_fetched_tokens, refused.report.decode_computed_tokens) == (0, 100)
        holder.engine.let_go()
        for asked, seed in ((runs, 2), (waits, 3)):
            assert (await cluster.end(asked)).tokens == colocated.answer(prompt(seed, 220))
        again = await cluster.ask("e", prompt(3, 220), on=asker, sources=[holder.source(220)])
        assert again.report.decode_fetched_tokens == 208


async def test_a_source_that_is_not_there_costs_nothing_but_time(model: Path, colocated: Colocated) -> None:
    async with pods(model, 0, 2) as cluster:
        nobody = Source(pod_id="d9", address="127.0.0.1:1", num_tokens=100)
        asked = await cluster.ask("a", LONG, sources=[nobody])
        assert (asked.tokens, asked.report.decode_computed_tokens) == (colocated.answer(LONG), 100)


async def test_a_source_whose_engine_stands_still_is_not_waited_for_longer_than_a_transfer_may_take(
    model: Path, colocated: Colocated, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pods(model, 0, 2) as cluster:
        holder, asker = cluster.decode
        await cluster.ask("a", LONG, on=holder)
        hold, goes_on = holder.engine.hold, asyncio.Event()

        async def late(command: Hold) -> Held:
            held = await hold(command)
            await goes_on.wait()
            return held

        monkeypatch.setattr(holder.engine, "hold", late)
        asked = await cluster.submit("b", LONG, on=asker, sources=[holder.source(100)], deadline_s=600.0)
        await until(lambda: bool(asker.open_shipments))
        asker.advance(asker.service._exchange._taker.transfer_timeout_s + 1)
        await cluster.end(asked)
        assert (asked.tokens, asked.report.decode_computed_tokens) == (colocated.answer(LONG), 100)
        goes_on.set()


async def test_a_source_that_goes_before_its_stream_is_up_is_not_waited_for(
    model: Path, colocated: Colocated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pagewire.engine.exchange.peer.CONNECT_S", 100.0)
    async with pods(model, 0, 2) as cluster, contextlib.AsyncExitStack() as ends:
        holder, asker = cluster.decode
        await cluster.ask("a", LONG, on=holder)

        def keep_open(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            ends.callback(writer.close)

        silent = await asyncio.start_server(keep_open, "127.0.0.1", 0)
        ends.push_async_callback(accepted_last, silent)
        address = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        asker.service._exchange.peers._dial_bulk = lambda _: open_bulk_channel(address)
        asked = await cluster.submit("b", LONG, on=asker, sources=[holder.source(100)])
        await until(lambda: bool(holder.service._exchange._links_of[asker.pod_id]))
        await cluster.router.hang_up(holder)
        await holder.server.stop(0)
        assert (await cluster.end(asked)).tokens == colocated.answer(LONG)
        assert (asked.report.decode_fetched_tokens, asker.counter("pods_unreached_unavailable")) == (0, 1)


async def test_a_source_that_dies_on_the_way(model: Path, colocated: Colocated) -> None:
    """What arrived whole is kept, the rest is computed."""
    async with pods(model, 0, 2) as cluster:
        holder, asker = cluster.decode
        await cluster.ask("a", LONG, on=holder)
        await cluster.ask("b", prompt(3, 20), on=holder)
        await cluster.ask("c", prompt(3, 20), on=asker, sources=[holder.source(20)])  # they meet
        channel = asker.bulk[0]
        channel.plan = corrupt(*range(channel.num_messages + 3, 100))
        asked = await cluster.ask("d", LONG, on=asker, sources=[holder.source(100)])
        assert asked.tokens == colocated.answer(LONG)
        assert (asked.report.decode_fetched_tokens, asked.report.decode_computed_tokens) == (3 * BLOCK, 100 - 3 * BLOCK)


async def test_a_cancelled_fetch_leaves_nothing_behind(model: Path) -> None:
    async with pods(model, 0, 2) as cluster:
        holder, asker = cluster.decode
        await cluster.ask("a", LONG, on=holder)
        holder.engine.answering.clear()
        asked = await cluster.submit("b", LONG, on=asker, sources=[holder.source(100)])
        await until(lambda: holder.counter("exports_fetches") == 1)
        await cluster.cancel(asked, on=asker)
        assert (await cluster.end(asked)).cause == "cancelled"
        holder.engine.answering.set()


# -------------------------------------------------------------------------------------------- prefill pods that fetch


async def test_the_next_turn_of_a_chat_recomputes_nothing(model: Path, colocated: Colocated) -> None:
    """The answer's KV was made by decoding on D: P fetches it from there, D finds it in its own cache."""
    async with pods(model) as cluster:
        first = await cluster.ask("turn 1", LONG, 60)
        known = LONG + first.tokens
        second_prompt = known + prompt(5, 20)
        asked = await cluster.ask("turn 2", second_prompt)
        assert asked.tokens == colocated.answer(second_prompt)
        report = asked.report
        held = (len(known) - 1) // BLOCK * BLOCK  # the KV of the last token was never needed
        assert report.placement == "remote"
        assert (report.prefill_cached_tokens, report.prefill_fetched_tokens) == (96, held - 96)
        assert report.prefill_computed_tokens == len(second_prompt) - held
        assert (report.decode_cached_tokens, report.decode_computed_tokens) == (held, 0)
        assert cluster.d.counter("exports_fetches") == 1


async def test_a_prefill_pod_fetches_from_another(model: Path, colocated: Colocated) -> None:
    async with pods(model, 2) as cluster:
        holder, asker = cluster.prefill
        await cluster.ask("a", LONG, 1, candidates=[holder.candidate])
        asked = await cluster.ask("b", LONG, candidates=[asker.candidate], sources=[holder.source(60)])
        assert asked.tokens == colocated.answer(LONG)
        report = asked.report
        assert (report.prefill_fetched_tokens, report.prefill_computed_tokens) == (48, 52)
        assert (report.decode_fetched_tokens, report.decode_computed_tokens, report.blocks_shipped) == (0, 0, 7)


async def test_a_prefill_pod_asks_the_next_source_for_what_one_lacks(model: Path, colocated: Colocated) -> None:
    async with pods(model, 3) as cluster:
        some, all_of_it, asker = cluster.prefill
        await cluster.ask("a", LONG[:20], 1, candidates=[some.candidate])
        await cluster.ask("b", LONG, 1, candidates=[all_of_it.candidate])
        sources = [some.source(60), all_of_it.source(60)]
        asked = await cluster.ask("c", LONG, candidates=[asker.candidate], sources=sources)
        assert asked.tokens == colocated.answer(LONG)
        assert (asked.report.prefill_fetched_tokens, asked.report.prefill_computed_tokens) == (48, 52)
        assert [pod.counter("exports_fetched_blocks") for pod in (some, all_of_it)] == [1, 2]


async def test_a_prefill_pod_without_room_computes_in_its_turn(model: Path, colocated: Colocated) -> None:
    async with pods(model, 2, p={"kv_memory_bytes": 20 * 12288}) as cluster:  # 20 blocks
        holder, asker = cluster.prefill
        await cluster.ask("a", LONG, 1, candidates=[holder.candidate])
        asker.engine.allow(1)
        other = await cluster.submit("b", prompt(2, 220), candidates=[asker.candidate])
        await until(lambda: asker.engine.num_steps == 1)
        asked = await cluster.submit("c", LONG, candidates=[asker.candidate], sources=[holder.source(60)])
        await until(lambda: asker.engine.loop.load().num_waiting == 1)
        asker.engine.let_go()
        assert (await cluster.end(other)).tokens == colocated.answer(prompt(2, 220))
        assert (await cluster.end(asked)).tokens == colocated.answer(LONG)
        assert (asked.report.prefill_fetched_tokens, asked.report.prefill_computed_tokens) == (0, 100)


async def test_a_fenced_prompt_stops_its_fetch(model: Path) -> None:
    async with pods(model, 2) as cluster:
        holder, asker = cluster.prefill
        await cluster.ask("a", LONG, 1, candidates=[holder.candidate])
        holder.engine.answering.clear()
        asked = await cluster.submit("b", LONG, candidates=[asker.candidate], sources=[holder.source(60)])
        await until(lambda: holder.counter("exports_fetches") == 1)
        await cluster.cancel(asked)
        assert (await cluster.end(asked)).cause == "cancelled"
        holder.engine.answering.set()


async def test_what_is_held_nearly_whole_is_not_built_elsewhere(model: Path, colocated: Colocated) -> None:
    """A shipment of what the prefill pod would have to fetch first: D fetches it itself."""
    async with pods(model, 1, 2) as cluster:
        holder, asker = cluster.decode
        await cluster.ask("a", LONG, on=holder)
        asked = await cluster.ask("b", LONG, on=asker, sources=[holder.source(100)])
        assert asked.tokens == colocated.answer(LONG)
        assert (asked.report.placement, asked.report.decode_fetched_tokens) == ("local", 96)
        assert cluster.p.counter("prompts_accepted") == 1


async def test_a_source_that_is_reached_too_late_is_asked_for_nothing(model: Path) -> None:
    """The prompt was given up while the link to the source came up: nobody would take what it ships."""
    async with pods(model, 3) as cluster:
        holder, asker, another = cluster.prefill
        await cluster.ask("a", LONG, 1, candidates=[holder.candidate])
        async with wire_to(holder) as (wire, there):
            wire.freeze()
            source = Source(pod_id=there.pod_id, address=there.address, num_tokens=60)
            sources = [source, another.source(60)]
            asked = await cluster.submit("b", LONG, candidates=[asker.candidate], sources=sources)
            await until(lambda: bool(wire._connections))  # it dials, and is not answered
            await cluster.cancel(asked)
            await until(lambda: asker.counter("prompts_accepted") == 1 and len(asker.service._exchange.exports) == 0)
            wire.thaw()
            await until(lambda: not asker.service._tasks)  # it is linked, or has given up: no more is to come
            assert (holder.counter("exports_fetches"), asker.open_shipments) == (0, [])
            assert list(asker.service._exchange.peers.all()) == [holder.pod_id]  # no other was even dialled
            assert asker.engine.loop.load().blocks_held == 0


# ------------------------------------------------------------------------------------------------------------- resume


async def test_another_prefill_pod_finishes_what_one_began(model: Path, colocated: Colocated) -> None:
    async with pods(model, 2) as cluster:
        first, second = cluster.prefill
        await cluster.ask("warm-up", prompt(8, 5), 2, candidates=[first.candidate])
        cluster.d.service._costs.local_s = lambda *_: 1e9  # type: ignore[method-assign, union-attr]
        first.engine.allow(3)
        asked = await cluster.submit("a", LONG)
        await until(lambda: cluster.d.num_landed == 3)
        await first.die()
        assert (await cluster.end(asked)).tokens == colocated.answer(LONG)
        report = asked.report
        assert (report.placement, report.prefill_pod, report.causes) == ("remote", second.pod_id, ("prefill_lost",))
        assert report.transport == cluster.d.service._exchange.peers.all()[second.pod_id].receiver.transport != ""
        assert (report.prefill_fetched_tokens, report.prefill_computed_tokens) == (3 * BLOCK, 100 - 3 * BLOCK)
        assert report.decode_computed_tokens == 0
        assert cluster.d.counter("exports_fetches") == 1


async def test_the_rest_is_computed_here_where_that_is_sooner(model: Path, colocated: Colocated) -> None:
    async with pods(model, 2) as cluster:
        first, second = cluster.prefill
        await cluster.ask("warm-up", prompt(8, 5), 2, candidates=[first.candidate])
        cluster.d.service._costs.local_s = lambda *_: 0.0  # type: ignore[method-assign, union-attr]
        first.engine.allow(3)
        asked = await cluster.submit("a", LONG)
        await until(lambda: cluster.d.num_landed == 3)
        await first.die()
        assert (await cluster.end(asked)).tokens == colocated.answer(LONG)
        assert (asked.report.placement, asked.report.decode_computed_tokens) == ("resumed", 100 - 3 * BLOCK)
        assert second.counter("prompts_accepted") == 0


# ---------------------------------------------------------------------------------------------------------- hand-over


async def test_a_draining_prefill_pod_admits_no_fetch(model: Path, colocated: Colocated) -> None:
    """Nothing new: it would be waited for. What it has cached is computed once more."""
    async with pods(model, 1, 2) as cluster:
        await cluster.ask("a", LONG, on=cluster.decode[0])
        cluster.p.front.lifecycle.drain("the test says so")
        asked = await cluster.ask("b", LONG, on=cluster.decode[1], candidates=[], sources=[cluster.p.source(100)])
        assert asked.tokens == colocated.answer(LONG)
        assert (asked.report.decode_fetched_tokens, asked.report.decode_computed_tokens) == (0, 100)
        assert cluster.p.counter("exports_fetches") == 0


async def test_a_draining_decode_pod_hands_a_sequence_over(model: Path, colocated: Colocated) -> None:
    """No token is lost or repeated, and none that was computed is computed again but for the last, partial block."""
    async with pods(model, 1, 2) as cluster:
        old, new = cluster.decode
        old.engine.allow(20)
        begun = await cluster.submit("a", LONG, 60, on=old)
        await until(lambda: len(begun.tokens) >= 15)
        old.front.lifecycle.drain("the test says so")
        old.service.hand_over()
        old.engine.let_go()
        assert (await cluster.end(begun)).cause == "handed_over"
        known = len(LONG) + len(begun.tokens)
        assert old.counter("requests_handed_over") == 1
        asked = await cluster.ask("b", LONG, 60, on=new, output=tuple(begun.tokens), sources=[old.source(known)])
        assert begun.tokens + asked.tokens == colocated.answer(LONG, 60)
        report = asked.report
        assert report.placement == "local"
        assert report.decode_fetched_tokens == (known - 1) // BLOCK * BLOCK
        assert report.decode_computed_tokens + report.decode_fetched_tokens >= len(LONG)
        await until(lambda: old.counter("handovers_fetched") == 1)
        await old.service.drained()


async def test_what_is_sampled_while_blocks_are_pinned_is_left_to_the_next_pod(
    model: Path, colocated: Colocated
) -> None:
    """It fetches just what is held for it: with more tokens it may ask for a block more, and who took it is unknown."""
    async with pods(model, 0, 2) as cluster:
        old, new = cluster.decode
        old.engine.counts = lambda step: bool(step.records)
        old.engine.allow(11)
        begun = await cluster.submit("a", LONG, 60, on=old)
        await until(lambda: len(begun.tokens) == 11)  # one more fills a block
        hold = old.engine.hold
        counted: list[float] = []

        async def hold_late(command: Hold) -> Held:
            held = await hold(command)
            old.engine.let_go()
            await until(lambda: old.engine.num_steps >= 14)
            counted.append(old.counter("requests_handed_over"))
            return held

        old.engine.hold = hold_late  # type: ignore[method-assign]
        old.service.hand_over()
        assert (await cluster.end(begun)).cause == "handed_over"
        known = len(LONG) + len(begun.tokens)
        assert [*counted, old.counter("requests_handed_over")] == [0, 1]  # before, nobody could go on
        asked = await cluster.ask("b", LONG, 60, on=new, output=tuple(begun.tokens), sources=[old.source(known)])
        assert begun.tokens + asked.tokens == colocated.answer(LONG, 60)
        assert asked.report.decode_fetched_tokens == (known - 1) // BLOCK * BLOCK
        await until(lambda: old.counter("handovers_fetched") == 1)


async def test_blocks_that_nobody_wants_any_more_are_let_go_at_once(model: Path) -> None:
    """The next pod has them, or finds computing cheaper, or the client went away: its router says so."""
    async with pods(model, 1, 2) as cluster:
        old, _ = cluster.decode
        async with going_slowly(old):
            begun = await cluster.submit("a", LONG, 100, on=old)
            await until(lambda: len(begun.tokens) >= 3)
            old.service.hand_over()
            assert (await cluster.end(begun)).cause == "handed_over"
        assert old.counter("requests_handed_over") == 1
        await cluster.cancel(begun, "moved", on=old)
        await until(lambda: old.engine.loop.load().blocks_held == 0)
        await old.service.drained()
        assert old.counter("handovers_fetched") == 0


async def test_blocks_that_nobody_fetches_are_let_go_in_time(model: Path) -> None:
    async with pods(model, 1, 2) as cluster:
        old, _ = cluster.decode
        async with going_slowly(old):
            begun = await cluster.submit("a", LONG, 100, on=old)
            await until(lambda: len(begun.tokens) >= 3)
            old.service.hand_over()
            assert (await cluster.end(begun)).cause == "handed_over"
        await until(lambda: old.engine.loop.load().num_running == 0)
        assert old.engine.loop.load().blocks_held > 0
        old.advance(11.0)
        await old.service.drained()
        assert old.counter("handovers_fetched") == 0

"""Local or remote, request by request: what is predicted decides, is reported, and learns from what came true."""

from __future__ import annotations

from pathlib import Path

import pytest
from pods import Colocated, Pods, pods, prompt, until

from pagewire.core.load import Load
from pagewire.core.messages import Candidate
from pagewire.core.timeline import Phase
from pagewire.decode_service.service import DecodeService

LONG = prompt(1, 100)
NOBODY = Candidate(pod_id="p9", address="127.0.0.1:1")


def predict(cluster: Pods, *, local_s: float, remote_s: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the decode pod predict these seconds."""
    service = cluster.d.service
    assert isinstance(service, DecodeService)
    monkeypatch.setattr(service._costs, "local_s", lambda *_: local_s)
    monkeypatch.setattr(service._costs, "remote_s", lambda _tokens, candidate, _sources: remote_s[candidate.pod_id])


async def measured(cluster: Pods) -> None:
    """Have the decode pod compute a prompt: from then on it knows what that costs."""
    await cluster.ask("measure", prompt(8, 60), candidates=[])


async def test_nothing_is_left_to_chance_before_anything_is_measured(model: Path, colocated: Colocated) -> None:
    async with pods(model) as cluster:
        asked = await cluster.ask("a", LONG, prefill="auto")
        assert (asked.tokens, asked.report.placement) == (colocated.answer(LONG), "remote")
        assert (asked.report.predicted_local_s, asked.report.predicted_remote_s) == (0.0, 0.0)


@pytest.mark.parametrize(("local_s", "placement"), [(0.5, "local"), (2.0, "remote")])
async def test_the_sooner_one_is_taken(
    model: Path, colocated: Colocated, local_s: float, placement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pods(model) as cluster:
        await measured(cluster)
        predict(cluster, local_s=local_s, remote_s={"p0": 1.0}, monkeypatch=monkeypatch)
        asked = await cluster.ask("a", LONG, prefill="auto")
        assert (asked.tokens, asked.report.placement) == (colocated.answer(LONG), placement)
        assert (asked.report.predicted_local_s, asked.report.predicted_remote_s) == (local_s, 1.0)


async def test_the_soonest_candidate_is_asked_first(
    model: Path, colocated: Colocated, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pods(model, 3) as cluster:
        await measured(cluster)
        predict(cluster, local_s=9.0, remote_s={"p0": 3.0, "p1": 1.0, "p2": 2.0}, monkeypatch=monkeypatch)
        asked = await cluster.ask("a", LONG, prefill="auto")
        assert (asked.tokens, asked.report.prefill_pod) == (colocated.answer(LONG), "p1")


async def test_predictions_are_made_and_learned_from_in_either_mode(model: Path) -> None:
    async with pods(model) as cluster:
        await measured(cluster)
        service = cluster.d.service
        assert isinstance(service, DecodeService)
        cluster.p.engine.allow(0)
        asked = await cluster.submit("a", LONG)
        await until(lambda: cluster.p.counter("prompts_accepted") == 1)
        cluster.d.clock.advance(5.0)  # this rig's clocks stand still between two advances
        cluster.p.engine.let_go()
        await cluster.end(asked)
        assert asked.report.placement == "remote"
        assert 0 < asked.report.predicted_remote_s < 5.0
        samples = {(sample.name, *sample.labels.values()): sample.value for sample in service.gauges()}
        assert samples["prefill_correction", "local"] == 1.0
        assert samples["prefill_correction", "remote"] > 1.0
        assert samples["link_seconds_per_byte", "p0"] > 0
        assert samples["link_fallback", "p0", asked.report.transport] == 0
        assert samples["kv_blocks_quarantined",] == 0


async def test_what_waited_for_others_first_teaches_nothing_of_this_pod(model: Path) -> None:
    async with pods(model) as cluster:
        await measured(cluster)
        service = cluster.d.service
        assert isinstance(service, DecodeService)
        cluster.d.engine.allow(0)
        asked = await cluster.submit("a", LONG, candidates=[NOBODY])
        await until(lambda: cluster.d.counter("pods_unreached_unavailable") == 1)
        cluster.d.clock.advance(5.0)
        cluster.d.engine.let_go()
        await cluster.end(asked)
        assert (asked.report.placement, asked.report.causes) == ("local", ("unavailable",))
        assert asked.report.predicted_local_s > 0
        assert service._costs.here.factor == 1.0


async def test_a_pod_that_only_ever_decoded_takes_a_peers_word(model: Path) -> None:
    async with pods(model) as cluster:
        await cluster.ask("a", LONG)
        service = cluster.d.service
        assert isinstance(service, DecodeService)
        assert service._costs.s_per_token == 0
        (peer,) = service._exchange.peers.all().values()
        peer.load = cluster.p.engine.loop.load()  # as its heartbeats say
        assert service._costs.s_per_token == peer.load.prefill_s_per_token > 0


async def test_a_prefill_pod_says_when_it_began_and_a_taker_what_taking_costs(model: Path) -> None:
    async with pods(model) as cluster:
        service = cluster.d.service
        assert isinstance(service, DecodeService)
        assert service._exchange.load() == cluster.d.front.load()  # nothing was taken yet
        asked = await cluster.ask("a", LONG)
        assert asked.ended is not None
        _, built = asked.ended.timelines
        begun_s = built.between_s(Phase.RUN_RECEIVED, Phase.PREFILL_BEGUN)
        computed_s = built.between_s(Phase.PREFILL_BEGUN, Phase.FIRST_CHUNK_COMPUTED)
        assert begun_s is not None
        assert computed_s is not None
        assert computed_s >= 0
        (peer,) = service._exchange.peers.all().values()
        peer.meter.landed(1 << 20, 0.5)
        load, layout = service._exchange.load(), cluster.d.engine.ready.layout
        per_token = peer.meter.cost.s_per_byte * layout.block_bytes / layout.block_size
        assert load.link_s_per_token == pytest.approx(per_token)
        assert load.link_rtt_s == peer.meter.cost.rtt_s


async def test_prefill_pods_that_were_slow_once_are_asked_again(model: Path) -> None:
    """Nobody would be asked, and so nothing learned: neither that predictions are right again nor what it costs."""
    async with pods(model) as cluster:
        await cluster.ask("warm-up", LONG)
        await measured(cluster)
        service = cluster.d.service
        assert isinstance(service, DecodeService)
        for _ in range(100):
            service._costs.there.observe(1.0, 100.0)
        (peer,) = service._exchange.peers.all().values()

        def predicted() -> float:
            peer.load = Load(prefill_s_per_token=100 * service._costs.s_per_token)
            return service._costs.remote_s(100, cluster.p.candidate, ())

        cluster.d.advance(0.0)
        dear = predicted()
        cluster.d.advance(3 * 3600.0)
        assert predicted() < dear / 100

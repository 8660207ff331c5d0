"""The prefix index and who publishes to it, against Redis 7 and Valkey 9: restarts, stalls, floods and lies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis_rig
import uvloop
from index_rig import answers, block, eventually, held, name, names, publishing

from pagewire.core.index_member import member
from pagewire.serving import ledger, publisher, redis_pipe
from pagewire.serving.block_index import INDEX_TTL_S, MAX_MEMBERS, BlockIndex
from pagewire.serving.redis_address import RedisAddress
from pagewire.serving.registry import Registry

D0 = member(7, 0)


@pytest.fixture(scope="module", params=redis_rig.KINDS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[redis_rig.Server]:
    with redis_rig.server(request.param, tmp_path_factory.mktemp("server")) as server:
        yield server


@contextlib.asynccontextmanager
async def both(server: redis_rig.Server, timeout_s: float = 1.0) -> AsyncIterator[tuple[Registry, BlockIndex]]:
    address = RedisAddress.parse(server.url)
    registry, index = Registry(address, "test"), BlockIndex(address, "test", timeout_s=timeout_s)
    yield registry, index
    await registry.aclose()
    await index.aclose()


@pytest.fixture
async def ways(server: redis_rig.Server) -> AsyncIterator[tuple[Registry, BlockIndex]]:
    with server.admin() as admin:
        admin.flushall()
    async with both(server) as ways:
        yield ways


@pytest.fixture
async def index(ways: tuple[Registry, BlockIndex]) -> BlockIndex:
    return ways[1]


def key(number: int) -> bytes:
    return b"pw:test:h:" + name(number)


async def test_the_publisher_keeps_the_index_true(ways: tuple[Registry, BlockIndex], server: redis_rig.Server) -> None:
    async with publishing(*ways) as pub:
        pub.publish(stored=[block(1), block(2), block(3, depth=0)], evicted=[])
        pub.publish(stored=[], evicted=[block(2)])

        async def published() -> bool:
            return await answers(ways[1], names(1, 2, 3)) == held(pub, 0, None, None)

        await eventually(published)
        assert (await ways[0].pods())[0] == pub.registration
        with server.admin() as admin:
            assert 0 < admin.ttl(key(1)) <= INDEX_TTL_S  # type: ignore[operator]
            assert admin.object("encoding", key(1)) == b"intset"  # type: ignore[no-untyped-call]
        await pub.withdraw()
        assert await answers(ways[1], names(1, 2, 3)) == [[], [], []]
        assert await ways[0].pods() == []


async def test_who_goes_away_waits_for_a_slow_redis_no_longer_than_a_moment(
    ways: tuple[Registry, BlockIndex], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "WITHDRAW_S", 0.3)
    async with publishing(*ways) as pub:
        pub.publish(stored=[block(n) for n in range(2000)], evicted=[])

        async def published() -> bool:
            return await answers(ways[1], names(1999)) == held(pub, 0)

        await eventually(published)
        never = asyncio.Event()

        async def write(*_: object, **__: object) -> None:
            await never.wait()

        monkeypatch.setattr(ways[1], "write", write)
        async with asyncio.timeout(10):
            await pub.withdraw()
        assert await ways[0].pods() == []  # that comes first


async def test_a_block_is_in_the_tier_where_it_was_seen_last(ways: tuple[Registry, BlockIndex]) -> None:
    async with publishing(*ways) as pub:
        pub.publish(stored=[block(1), block(2), block(3)], evicted=[])
        pub.publish(stored=[block(n, tier=1) for n in (1, 2, 3)], evicted=[])

        async def moved() -> bool:
            return await answers(ways[1], names(1, 2, 3)) == held(pub, 1, 1, 1)

        await eventually(moved)
        pub.publish(stored=[block(1)], evicted=[block(3)])  # one came back, one is gone

        async def settled() -> bool:
            return await answers(ways[1], names(1, 2, 3)) == held(pub, 0, 1, None)

        await eventually(settled)
        await pub.withdraw()
        assert await answers(ways[1], names(1, 2, 3)) == [[], [], []]


async def test_an_error_that_nobody_foresaw_takes_no_pod_out_of_discovery(
    ways: tuple[Registry, BlockIndex], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(publisher, "REGISTRATION_TTL_S", 0.25)
    broken = {"register": ways[0].register, "write": ways[1].write}

    def fails_once(name: str) -> Callable[..., Awaitable[object]]:
        async def call(*args: Any, **options: Any) -> object:
            if (right := broken.pop(name, None)) is not None:
                monkeypatch.setattr(ways[0] if name == "register" else ways[1], name, right)
                raise RuntimeError(f"a bug in {name}")
            raise AssertionError

        return call

    monkeypatch.setattr(ways[0], "register", fails_once("register"))
    monkeypatch.setattr(ways[1], "write", fails_once("write"))
    async with publishing(*ways) as pub:
        pub.publish(stored=[block(1)], evicted=[])

        async def complete() -> bool:
            return await answers(ways[1], names(1)) == held(pub, 0) and await ways[0].pods() == [pub.registration]

        await eventually(complete)
    assert not broken
    assert "a bug in register" in caplog.text
    assert "a bug in write" in caplog.text


async def test_a_flushed_redis_is_told_anew(
    ways: tuple[Registry, BlockIndex], server: redis_rig.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "REGISTRATION_TTL_S", 0.25)
    async with publishing(*ways) as pub:
        pub.publish(stored=[block(n) for n in range(2000)], evicted=[])

        async def complete() -> bool:
            found = await answers(ways[1], names(*range(2000)))
            return found == held(pub, *[0] * 2000) and await ways[0].pods() == [pub.registration]

        await eventually(complete)
        with server.admin() as admin:
            admin.flushall()
        await eventually(complete)


async def test_what_got_lost_unnoticed_comes_back_with_the_next_renewal(
    ways: tuple[Registry, BlockIndex], server: redis_rig.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "RENEW_S", 0.2)
    async with publishing(*ways) as pub:
        pub.publish(stored=[block(n) for n in range(600)], evicted=[])

        async def complete() -> bool:
            return await answers(ways[1], names(*range(600))) == held(pub, *[0] * 600)

        await eventually(complete)
        with server.admin() as admin:
            admin.delete(*(key(n) for n in range(0, 600, 7)))
        assert not await complete()
        await eventually(complete)
        assert pub.outages == 0


async def test_a_flood_beyond_the_queue_loses_no_removal(
    ways: tuple[Registry, BlockIndex], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "MAX_NEWS", 50)
    async with publishing(*ways) as pub:
        pub.publish(stored=[block(1), block(2)], evicted=[])

        async def published() -> bool:
            return await answers(ways[1], names(1, 2)) == held(pub, 0, 0)

        await eventually(published)
        before = pub.registration.index_id
        pub.publish(stored=[block(n) for n in range(10, 100)], evicted=[block(1)])

        async def true_again() -> bool:
            found = await answers(ways[1], names(1, 2, *range(10, 100))) or []
            mine = member(pub.registration.index_id, 0)
            return [mine in members for members in found] == [False, True, *[True] * 90]

        await eventually(true_again)
        assert pub.registration.index_id != before
        assert [each.index_id for each in await ways[0].pods()] == [pub.registration.index_id]


async def test_hostile_values_cost_a_hit_and_nothing_else(index: BlockIndex, server: redis_rig.Server) -> None:
    with server.admin() as admin:
        admin.set(key(1), "garbage")
        admin.sadd(key(2), "d0@1", b"\xff\x00", "-1", "9" * 100_000)
        admin.lpush(key(3), "x")
        admin.sadd(key(4), *range(100_000))
    await index.write(7, {name(5): 0})
    found = await index.lookup(names(1, 2, 3, 4, 5))
    assert found is not None
    assert [len(members) for members in found] == [0, 4, 0, MAX_MEMBERS, 1]
    assert list(found[4]) == [D0]
    # Blocks whose keys are of another type are refused, counted, and keep nothing else from being written.
    await index.write(7, {name(1): 0, name(6): 0, name(3): None})
    assert index.refused == 2
    assert await answers(index, names(1, 6)) == [[], [D0]]
    assert index.failures == 0


async def test_an_outage_costs_the_hint_and_is_asked_less(tmp_path: Path) -> None:
    with redis_rig.server(redis_rig.VALKEY, tmp_path) as server:
        async with both(server) as (_, index):
            await index.write(7, {name(1): 0})
            assert await index.lookup(names(1)) == [[D0]]
            server.stop()
            for _ in range(40):
                assert await index.lookup(names(1, 2)) is None
            assert index.is_away
            assert index.failures + index.skipped == 40
            assert index.skipped > 30
            await index.sweep([(name(1), D0)])
            with pytest.raises(OSError):
                await index.write(7, {name(1): 0})
            server.start()

            async def found() -> bool:
                return await index.lookup(names(1)) == [[]]

            await eventually(found)
            assert not index.is_away


async def test_a_stalled_server_delays_a_lookup_by_its_bound_and_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_pipe, "STALL_S", 0.2)
    with redis_rig.server(redis_rig.VALKEY, tmp_path) as server:
        async with both(server, timeout_s=0.02) as (_, index):

            async def answered() -> bool:
                return await index.lookup(names(1)) == [[]]

            await eventually(answered)
            server.pause()
            for _ in range(5):
                assert await index.lookup(names(1)) is None
            assert index.is_away
            server.go_on()
            await eventually(answered)


async def test_late_answers_go_to_those_who_asked_for_them(tmp_path: Path) -> None:
    with redis_rig.server(redis_rig.VALKEY, tmp_path) as server:
        pipe = redis_pipe.RedisPipe(RedisAddress.parse(server.url), "127.0.0.1", server.port)
        echo = redis_pipe.encoded
        assert await pipe.ask(echo(b"ECHO", b"first"), 1, 1.0) == [b"first"]
        server.pause()
        with pytest.raises(TimeoutError):
            await pipe.ask(echo(b"ECHO", b"late"), 1, 0.02)
        waiting = [asyncio.create_task(pipe.ask(echo(b"ECHO", b"%d" % n), 1, 5.0)) for n in range(20)]
        cancelled = waiting.pop(7)
        await asyncio.sleep(0)
        cancelled.cancel()
        server.go_on()
        assert await asyncio.gather(*waiting) == [[b"%d" % n] for n in range(20) if n != 7]
        pipe.close()


async def test_what_an_outage_kept_from_the_index_is_written_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, publisher.__name__)
    monkeypatch.setattr(publisher, "REGISTRATION_TTL_S", 0.25)
    with redis_rig.server(redis_rig.VALKEY, tmp_path) as server:
        async with both(server) as ways, publishing(*ways) as pub:
            pub.publish(stored=[block(1), block(2)], evicted=[])

            async def is_told(*tiers: int | None) -> bool:
                return await answers(ways[1], names(1, 2, 3)) == held(pub, *tiers)

            await eventually(lambda: is_told(0, 0, None))
            server.stop()
            pub.publish(stored=[block(3)], evicted=[block(1)])

            async def was_tried_often() -> bool:
                return pub.outages > 10

            await eventually(was_tried_often)
            server.start()
            await eventually(lambda: is_told(None, 0, 0))
    began, ended = (record.message for record in caplog.records)  # and not once for each try
    assert began.startswith("Redis is not told of this pod now: ")
    assert ended == "Redis is told of this pod again"


def test_the_loop_that_processes_run_on_will_do(server: redis_rig.Server) -> None:
    async def write_and_find() -> None:
        async with both(server) as (registry, index):
            await index.write(7, {name(1): 0})
            assert await index.lookup(names(1)) == [[D0]]
            assert await registry.pods() == []

    with server.admin() as admin:
        admin.flushall()
    uvloop.run(write_and_find())


async def test_any_number_of_lookups_at_once_keep_to_themselves(server: redis_rig.Server, index: BlockIndex) -> None:
    await index.write(7, {name(n): 0 for n in range(0, 400, 2)})
    async with both(server, timeout_s=60.0) as (_, patient):  # the last of them waits for all others
        found = await asyncio.gather(*(answers(patient, names(*range(n, n + 130))) for n in range(200)))
    assert found == [[[] if at % 2 else [D0] for at in range(n, n + 130)] for n in range(200)]


async def test_the_wrong_password_is_an_outage(tmp_path: Path) -> None:
    with redis_rig.server(redis_rig.VALKEY, tmp_path) as server:
        with server.admin() as admin:
            admin.execute_command("ACL", "SETUSER", "someone", "on", ">right", "~*", "+@all")
        for password, found in (("wrong", None), ("right", [[]])):
            url = server.url.replace("//", f"//someone:{password}@")
            index = BlockIndex(RedisAddress.parse(url), "test", timeout_s=1.0)
            assert await index.lookup(names(1)) == found
            await index.aclose()

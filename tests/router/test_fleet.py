"""What an error of our own about one pod does to the others: nothing."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from fake_pod import SECRET, TIMES, FakePod, fake_pods, fingerprint

from pagewire.core.clock import MonotonicClock
from pagewire.core.messages import Role
from pagewire.router.cache_watch import CacheWatch
from pagewire.router.ejection import Ejection
from pagewire.router.fleet import Fleet
from pagewire.router.outliers import Rules
from pagewire.router.pods import PodPool
from pagewire.serving.handshake import Identity
from pagewire.serving.registration import Registration

TIMES_BROKEN = 3


class Listed:
    """A registry that is a list."""

    def __init__(self, *pods: FakePod) -> None:
        self._pods = pods

    async def pods(self) -> list[Registration]:
        return [pod.registration for pod in self._pods]


class Failing(Listed):
    """A registry that is away when it is asked for some of the times."""

    def __init__(self, *away: int) -> None:
        super().__init__()
        self._away = away
        self.times = 0

    async def pods(self) -> list[Registration]:
        self.times += 1
        if self.times in self._away:
            raise ConnectionError(f"nobody answers the {self.times}th time")
        return await super().pods()


def fleet_of(registry: Listed, *pools: PodPool) -> Fleet:
    return Fleet(
        registry,
        pools,
        lambda serves: Identity(peer_id="router", incarnation="1", role=Role.ROUTER, secret=SECRET, fingerprint=serves),
        discovery_s=0.05,
        times=TIMES,
    )


async def test_an_outage_is_logged_when_it_begins_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    registry = Failing(1, 2, 3, 6, 7)
    fleet = fleet_of(registry)
    assert not fleet.is_blind
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(fleet.run())
        while registry.times < 9:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        running.cancel()
    assert [record.message.partition(", the known ones stay: nobody answers ")[::2] for record in caplog.records] == [
        ("pods are not discovered now", "the 1th time"),
        ("pods are discovered again", ""),
        ("pods are not discovered now", "the 6th time"),
        ("pods are discovered again", ""),
    ]
    assert (fleet.discovery_failures, fleet.is_blind) == (5, False)


async def test_an_error_of_our_own_about_one_pod_is_counted_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    good, odd = FakePod("good"), FakePod("odd")
    broken: list[str] = []

    class Watch(CacheWatch):
        def on_up(self, pod: Any) -> None:
            if pod.pod_id == "odd" and len(broken) < TIMES_BROKEN:
                broken.append(pod.pod_id)
                raise RuntimeError("a bug")
            super().on_up(pod)

    pool = PodPool(
        name="",
        tokenizer_digest=fingerprint().tokenizer_digest,
        cache_watch=Watch(),
        ejection=Ejection(Rules(), MonotonicClock()),
    )
    fleet = fleet_of(Listed(good, odd), pool)
    caplog.set_level(logging.ERROR)
    async with fake_pods(good, odd), asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(fleet.run())
        while len(pool.usable(Role.COLOCATED)) < 2 or len(broken) < TIMES_BROKEN:
            await asyncio.sleep(0.01)
            assert not running.done()
        running.cancel()
    assert fleet.broken_dials == TIMES_BROKEN
    told = [record for record in caplog.records if "nobody foresaw" in record.message]
    assert len(told) == TIMES_BROKEN
    assert all(record.exc_info is not None and f":{odd.port} " in record.message for record in told)

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
    fleet = Fleet(
        Listed(good, odd),
        [pool],
        lambda serves: Identity(peer_id="router", incarnation="1", role=Role.ROUTER, secret=SECRET, fingerprint=serves),
        discovery_s=0.05,
        times=TIMES,
    )
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
    assert all(record.exc_info is not None and "odd@1" in record.message for record in told)

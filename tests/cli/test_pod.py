"""A pod's process with a real engine in a thread: one role after another, on one pair of ports, until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import tiny_model
from engine_runs import engine
from fake_pod import TIMES
from threaded_engine import ThreadedEngine

from pagewire.cli.pod import PodProcess
from pagewire.core.block_hash import BlockHash
from pagewire.core.messages import ChangeRole, LinkMessage, Role, RoleAnswer, Run, ShipmentRefused, Submit
from pagewire.core.sampling import SamplingParams
from pagewire.core.sequence_spec import SequenceSpec
from pagewire.kvtransfer.transports.offered import offered
from pagewire.serving.handshake import Identity
from pagewire.serving.link import Link, LinkEvents
from pagewire.serving.link_dialer import LinkDialer
from pagewire.serving.pod_config import PodConfig

SECRET = "a secret"
NO_REDIS = "redis://127.0.0.1:1/0"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.build(tmp_path_factory.mktemp("llama"), "llama")


class Peer:
    """Whoever dials the pod: what it is told, and the incarnations that answer."""

    def __init__(self, role: Role) -> None:
        self.identity = Identity(peer_id="peer", incarnation="1", role=role, secret=SECRET.encode())
        self.heard: list[LinkMessage] = []
        self.links: list[Link] = []

    @contextlib.asynccontextmanager
    async def dialling(self, address: str) -> AsyncIterator[Peer]:
        events = LinkEvents(
            on_message=lambda _, message: self.heard.append(message),
            on_up=self.links.append,
            on_down=lambda _: None,
        )
        task = asyncio.create_task(LinkDialer(address, lambda: self.identity, events, times=TIMES).run())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def next_link(self, link: Link) -> None:
        """Return when another than `link` is up."""
        await until(lambda: self.links[-1] is not link and self.links[-1].is_up)

    def answers(self) -> list[RoleAnswer]:
        return [each for each in self.heard if isinstance(each, RoleAnswer)]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def pod_of(model: Path, role: Role = Role.PREFILL, **settings: Any) -> PodProcess:
    config = PodConfig(
        model=str(model), role=role, cluster_secret=SECRET, redis_url=NO_REDIS, pod_id="p0", transports="grpc",
        **settings,
    )  # fmt: skip
    return PodProcess(config, ThreadedEngine(engine(model, role)), offered("grpc"), config.wire())


async def started(pod: PodProcess) -> tuple[asyncio.Task[None], str]:
    ready: asyncio.Future[dict[str, object]] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(pod.run(ready.set_result))  # a second word would be an error
    return running, str((await ready)["grpc"])


async def test_each_role_is_another_incarnation_at_the_same_address(model: Path) -> None:
    pod = pod_of(model)
    running, address = await started(pod)
    async with Peer(Role.ROUTER).dialling(address) as router:
        for role in (Role.DECODE, Role.COLOCATED, Role.PREFILL):
            await until(lambda: router.links and router.links[-1].is_up)
            link = router.links[-1]
            link.send(ChangeRole(role=role))
            await router.next_link(link)
            assert router.answers()[-1] == RoleAnswer(role=role)
            peer = router.links[-1].peer
            assert (peer.role, peer.peer_id) == (role, "p0")
            assert peer.incarnation != link.peer.incarnation
            assert pod.front.address == address
    pod.stop("the test is over")
    await running


async def test_a_router_is_told_why_not_and_nobody_else_is_obeyed(model: Path) -> None:
    pod = pod_of(model)
    running, address = await started(pod)
    async with Peer(Role.ROUTER).dialling(address) as router, Peer(Role.DECODE).dialling(address) as decode:
        await until(lambda: router.links and decode.links)
        for peer, role in ((router, Role.PREFILL), (router, Role.ROUTER), (decode, Role.DECODE)):
            peer.links[0].send(ChangeRole(role=role))
        await until(lambda: len(router.answers()) == 2 and decode.answers())
        errors = [answer.error for answer in (*router.answers(), *decode.answers())]
        assert [error.cause for error in errors if error] == ["role_refused", "invalid_request", "invalid_request"]
        assert "is a prefill pod already" in errors[0].message  # type: ignore[union-attr]
        assert "is no router" in errors[2].message  # type: ignore[union-attr]
        assert pod.front.lifecycle.is_ready
    pod.stop("the test is over")
    await running


async def test_work_for_another_role_is_refused_by_name(model: Path) -> None:
    pod = pod_of(model, Role.DECODE)
    running, address = await started(pod)
    spec = SequenceSpec(
        request_id="r", tokens=(1, 2, 3), sampling=SamplingParams(max_tokens=2), root=BlockHash(bytes(16))
    )
    run = Run(spec=spec, generation=1, shipment_id=1, first_block=0, ship=True, ticket=b"", lease_s=1.0, deadline_s=1.0)
    async with Peer(Role.ROUTER).dialling(address) as peer:
        await until(lambda: peer.links)
        peer.links[0].send(run)
        await until(lambda: any(isinstance(each, ShipmentRefused) for each in peer.heard))
        pod.front.change_role(Role.PREFILL)
        await until(lambda: peer.links[-1].peer.role is Role.PREFILL and peer.links[-1].is_up)
        peer.links[-1].send(Submit(spec=spec))
        await until(lambda: any(type(each).__name__ == "Ended" for each in peer.heard))
    (refused,) = [each for each in peer.heard if isinstance(each, ShipmentRefused)]
    assert (refused.error.cause, refused.error.message) == ("draining", "p0 is a decode pod")
    pod.stop("the test is over")
    await running


async def test_a_stop_in_the_midst_of_a_change_ends_it(model: Path) -> None:
    for steps in (0, 1, 3, 10, 30):
        pod = pod_of(model)
        running, _ = await started(pod)
        pod.front.change_role(Role.DECODE)
        for _ in range(steps):
            await asyncio.sleep(0)
        pod.stop("SIGTERM")
        async with asyncio.timeout(20):
            await running
        assert not pod.front.lifecycle.is_ready


async def test_a_stop_while_the_new_role_begins_ends_it(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = pod_of(model)
    running, _ = await started(pod)
    running_engine = pod.front.engine
    become = running_engine.become

    async def become_and_be_stopped(role: Role) -> None:
        pod.stop("SIGTERM")
        await become(role)

    monkeypatch.setattr(running_engine, "become", become_and_be_stopped)
    pod.front.change_role(Role.DECODE)
    async with asyncio.timeout(20):
        await running
    assert pod.front.identity.role is Role.DECODE  # it had begun
    assert not pod.front.lifecycle.is_ready


@pytest.mark.parametrize("setting", ["port", "metrics_port"])
async def test_a_taken_port_ends_everything_that_was_begun(model: Path, setting: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        pod = pod_of(model, **{setting: taken.getsockname()[1]})
        with pytest.raises(OSError, match=r"listen|in use"):
            await pod.run(lambda said: None)
    assert pod.front.engine.exited.is_set()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_pod_whose_engine_starts_stops_when_it_is_told_to(model: Path, host: str) -> None:
    """Without an end of its own the signal would end it with one, and PID 1 of a container not at all."""
    command = [
        sys.executable, "-P", "-m", "pagewire.cli.main", "decode", "--model", str(model), "--redis-url", NO_REDIS,
        "--kv-memory", "8MiB", "--dtype", "float32", "--threads", "1", "--host", host,
    ]  # fmt: skip
    environ = {**os.environ, "PAGEWIRE_CLUSTER_SECRET": SECRET}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as pod:
        engines: list[psutil.Process] = []
        while not engines:
            assert pod.poll() is None
            engines = [
                each for each in psutil.Process(pod.pid).children() if "pagewire.engine.process" in each.cmdline()
            ]
            time.sleep(0.005)
        pod.send_signal(signal.SIGTERM)
        out, err = pod.communicate(timeout=60)
    assert (pod.returncode, out) == (0, ""), err
    assert "told to stop while the engine started" in err
    assert ("peers are told to dial 0.0.0.0" in err) is (host == "0.0.0.0")
    assert not engines[0].is_running()

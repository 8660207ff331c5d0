"""Which ports the processes of a router may share, and with whom."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from typing import Any

import pytest
from pods import until

from pagewire.cli import workers as workers_file
from pagewire.cli.child import Child
from pagewire.cli.workers import Workers
from pagewire.core.errors import Unavailable
from pagewire.router.config import RouterConfig
from pagewire.router.http_server import listen

DIES = ("/bin/false",)  # in place of each worker
STAYS = (
    sys.executable, "-c",
    "import signal, time; signal.signal(signal.SIGHUP, signal.SIG_IGN);"
    'print(\'{"http": "a", "grpc": "b", "own": "c"}\', flush=True); time.sleep(600)',
)  # fmt: skip


@pytest.mark.parametrize("setting", ["port", "grpc_port"])
async def test_another_routers_port_is_shared_only_where_that_is_asked_for(setting: str) -> None:
    with listen("127.0.0.1", 0, shares=True) as theirs:
        port = theirs.getsockname()[1]
        ports = {"port": 0, "grpc_port": 0, setting: port}
        config = RouterConfig(model=("m",), cluster_secret="s", workers=2, **ports)
        with pytest.raises(OSError, match=f"cannot listen on port {port} of 127.0.0.1: Address already in use"):
            await Workers(config, (), DIES).run(lambda _said: None)
        config = RouterConfig(model=("m",), cluster_secret="s", workers=2, reuse_port=True, **ports)
        with pytest.raises(Unavailable, match="exit code 1 before it was ready"):
            await Workers(config, (), DIES).run(lambda _said: None)


def test_who_shares_no_port_gets_none_that_is_shared() -> None:
    with listen("127.0.0.1", 0, shares=True) as theirs:
        port = theirs.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on port {port} of 127.0.0.1"):
            listen("127.0.0.1", port)
        with listen("127.0.0.1", port, shares=True) as ours:
            assert isinstance(ours, socket.socket)


async def test_a_worker_that_cannot_be_started_now_is_started_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workers_file, "RESTART_MAX_S", 0.2)
    config = RouterConfig(model=("m",), cluster_secret="s", workers=2, port=0, grpc_port=0, drain_s=0.0)
    ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    workers = Workers(config, (), STAYS)
    running = asyncio.create_task(workers.run(ready.set_result))
    first, second = (each["pid"] for each in (await ready)["workers"])
    start = Child.start
    wrong = [BlockingIOError(11, "Resource temporarily unavailable"), OSError(12, "Cannot allocate memory")]

    async def once_more(*args: Any, **kwargs: Any) -> Child:
        if wrong:
            raise wrong.pop(0)
        return await start(*args, **kwargs)

    monkeypatch.setattr(Child, "start", once_more)
    os.kill(first, signal.SIGKILL)
    await until(lambda: {child.pid for child in workers._up} not in ({second}, {first, second}))
    assert len(workers._up) == len(workers._children) == 2
    assert wrong == []
    workers._stopping.set()
    await running
    assert "Resource temporarily unavailable" in caplog.text
    assert "Cannot allocate memory" in caplog.text


def test_the_process_that_keeps_workers_logs_as_they_do() -> None:
    program = (
        f"import sys; from pagewire.cli import main, workers; workers.Workers.__init__.__defaults__ = ({STAYS!r},);"
        "sys.argv = 'pagewire router --model m --workers 2 --port 0 --grpc-port 0'.split()"
        "+ ['--drain-s', '0', '--log-format', 'json'];"
        "main.main()"
    )
    environ = {**os.environ, "PAGEWIRE_CLUSTER_SECRET": "s"}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as keeper:
        assert keeper.stdout is not None
        assert keeper.stderr is not None
        try:
            first = json.loads(keeper.stdout.readline())["workers"][0]["pid"]
            os.kill(first, signal.SIGKILL)
            said = json.loads(keeper.stderr.readline())
        finally:
            keeper.terminate()
        assert keeper.wait(60) == 0
        assert (said["level"], "another one takes its place" in said["text"]) == ("WARNING", True)

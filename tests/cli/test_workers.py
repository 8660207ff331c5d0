"""Which ports the processes of a router may share, and with whom."""

from __future__ import annotations

import socket

import pytest

from pagewire.cli.workers import Workers
from pagewire.core.errors import Unavailable
from pagewire.router.config import RouterConfig
from pagewire.router.http_server import listen

DIES = ("/bin/false",)  # in place of each worker


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

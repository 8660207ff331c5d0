"""What holds for every test: the environment comes back as it was, and nothing is held for nobody."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import orphans
import pytest
from shared_clusters import scope_of

from pagewire.cli import models

orphans.watch()
# An example that gets no core for a moment is no failure; how long things take no test asserts.
hypothesis.settings.register_profile("pagewire", deadline=None)
hypothesis.settings.load_profile("pagewire")
# A shell without job control has what it starts in the background ignore Ctrl-C, and so would all that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deal tests out so that those which share a cluster stay together, where scopes do; else as pytest-xdist does."""
    if config.getvalue("dist") != "loadscope":
        return None
    # Here, for where there is no pytest-xdist nobody asks.
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415

    config.option.loadscopereorder = False  # or single tests, which are the longest, come last
    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = scope_of
    return scheduler


@pytest.fixture(autouse=True)
def clean_environment() -> Iterator[None]:
    """Restore `os.environ` after each test."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(autouse=True)
def no_orphans() -> Iterator[None]:
    """Fail a test at whose end a block or a lease is held for nobody, in its pods or its process."""
    yield
    orphans.end_of_test()


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Return the folder of the real SmolLM2 weights, which `make setup` fetches."""
    folder = models.resolve("smollm2")
    assert (folder / "model.safetensors").is_file(), "no weights: run `make setup`"
    return folder

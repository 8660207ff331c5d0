"""One tiny model per run, and the answers that it must always give."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_model
import torch
from pods import Colocated


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """Let engines share cores: several of them step at once."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny model."""
    return tiny_model.build(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def colocated(model: Path) -> Colocated:
    """Return the answers of a single engine."""
    return Colocated(model)

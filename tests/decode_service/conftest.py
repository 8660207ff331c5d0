"""One tiny model per run, and the answers that it must always give."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_model
from one_thread import one_thread as one_thread
from pods import Colocated


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny model."""
    return tiny_model.build(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def colocated(model: Path) -> Colocated:
    """Return the answers of a single engine."""
    return Colocated(model)

"""Tiny models, built once per run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_model
from one_thread import one_thread as one_thread

TinyModel = Callable[[str], Path]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """Return the folder of a tiny model by its name."""
    built: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in built:
            built[name] = tiny_model.build(tmp_path_factory.mktemp(name), name)
        return built[name]

    return folder

"""What holds for every test: the environment comes back as it was."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagewire.cli import models


@pytest.fixture(autouse=True)
def clean_environment() -> Iterator[None]:
    """Restore `os.environ` after each test."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Return the folder of the real SmolLM2 weights, which `make setup` fetches."""
    folder = models.resolve("smollm2")
    assert (folder / "model.safetensors").is_file(), "no weights: run `make setup`"
    return folder

"""What holds for every test: the environment comes back as it was."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def clean_environment() -> Iterator[None]:
    """Restore `os.environ` after each test."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)

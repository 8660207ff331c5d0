"""Kernels compute with one thread where a test does not say with how many: what it costs to meet is not in question."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from one_thread import one_thread as one_thread


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """On how many threads native ops compute meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    try:
        yield request.param
    finally:
        torch.set_num_threads(before)

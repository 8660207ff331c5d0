"""A fixture for folders whose tests step engines on tiny models in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """Compute with one thread: several engines share the cores, and of so little work threads mostly wait for others.

    Tests that say with how many threads they compute, in tests/kernels, show that results do not depend on it.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

"""Kernels without a GPU, in Triton's interpreter: what they compute, not how fast.

The interpreter takes the place of kernels when they are imported, so a session without it passes these files over. By
hand:

    TRITON_INTERPRET=1 .venv/bin/pytest tests/kernels/interpreted

It computes fp32 and fp16 and takes milliseconds for each tile. Of bfloat16 it makes garbage and says nothing
(triton#11584): that is for `tests/kernels/test_*_on_a_gpu.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]


def pytest_configure(config: pytest.Config) -> None:
    """Let the interpreter compute as it does: bounds of loops are arrays of one number, and NaN is no accident."""
    config.addinivalue_line("filterwarnings", "ignore:Conversion of an array:DeprecationWarning:triton")
    config.addinivalue_line("filterwarnings", "ignore::RuntimeWarning:triton")


@pytest.fixture(autouse=True, scope="session")
def quick() -> Iterator[None]:
    """Have functions of kernels called without further ado."""
    from interpreted_calls import quick_calls  # noqa: PLC0415  # there may be no Triton where these files are passed over

    with quick_calls():
        yield


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Seed torch, and have it fill with NaN, or the largest integer, what is allocated and not yet written."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)

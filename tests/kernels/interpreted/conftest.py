"""Kernels without a GPU, in Triton's interpreter: what they compute, not how fast.

The interpreter takes the place of kernels when they are imported, so a session without it passes these files over. By
hand:

    TRITON_INTERPRET=1 .venv/bin/pytest tests/kernels/interpreted

It computes fp32 and fp16 and takes milliseconds for each tile. Of bfloat16 it makes garbage and says nothing
(triton#11584): that is for `tests/kernels/test_*_on_a_gpu.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]


def pytest_configure(config: pytest.Config) -> None:
    """Let the interpreter compute as it does: bounds of loops are arrays of one number, and NaN is no accident."""
    config.addinivalue_line("filterwarnings", "ignore:Conversion of an array:DeprecationWarning:triton")
    config.addinivalue_line("filterwarnings", "ignore::RuntimeWarning:triton")


def _unless_patched(patch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return what patches the language for a function, unless the launch that calls it has done so already.

    Triton looks through all of it at each call of a function within a kernel, which takes a third of the time.
    """

    def patched(function: Any) -> Any:
        languages = [each for each in function.__globals__.values() if each is tl or each is tl.core]
        is_patched = not any(tl.core.is_builtin(language.load) for language in languages)
        return interpreter._LangPatchScope() if is_patched else patch(function)

    return patched


@pytest.fixture(autouse=True, scope="session")
def quick_calls() -> Iterator[None]:
    """Have functions of kernels called without looking through the language."""
    with mock.patch.object(interpreter, "_patch_lang", _unless_patched(interpreter._patch_lang)):
        yield


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Seed torch, and have it fill with NaN, or the largest integer, what is allocated and not yet written."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)

"""A CUDA device for tests: this machine's, or one on paper where it has none.

On paper torch's ops stand for Triton's, unless these are interpreted, which takes a hundred times as long.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import engine_runs
import pytest
import torch
from paper_gpu.device import is_possible, paper_gpu

from pagewire.core.messages import Role
from pagewire.engine import assembly
from pagewire.engine.assembly import Engine
from pagewire.kernels.backend_choice import backend_for
from pagewire.kernels.torch_backend import TorchBackend

IS_REAL = torch.cuda.is_available()


@pytest.fixture
def any_gpu(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Have two devices, on paper where there are none; fails where a step failed, though it was tried again."""
    if IS_REAL:
        yield
    elif is_possible():
        is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        with (
            paper_gpu(2),
            contextlib.nullcontext()
            if is_interpreted
            else mock.patch.object(
                assembly, "backend_for", lambda device: TorchBackend() if device.type == "cuda" else backend_for(device)
            ),
        ):
            yield
    else:
        pytest.skip("no CUDA device, and no C++ compiler for one on paper")
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.fixture
def processes(any_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the processes that are started have the same devices."""
    if not IS_REAL:
        support = Path(__file__).parent
        paths = (support / "on_paper", support, os.environ.get("PYTHONPATH", ""))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(path) for path in paths if str(path)))


def engine(model: Path, role: Role = Role.COLOCATED, **settings: Any) -> Engine:
    """Return `engine_runs.engine` on the device; on paper its steps are short, which it rehearses."""
    most = {} if IS_REAL else {"max_num_batched_tokens": 256}
    return engine_runs.engine(model, role, **{"device": "cuda", **most, **settings})

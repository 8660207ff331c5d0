"""Files that decide do no I/O: no device, no loop, no clock of their own, no chance.

So the same code runs in production, under a virtual clock in fault simulation and in the SLO simulator.
"""

from __future__ import annotations

import pytest
from source_tree import ROOT, SourceFile

PURE_FILES = (
    "core/block_hash.py",
    "core/errors.py",
    "core/fingerprint.py",
    "core/kv_layout.py",
    "core/messages.py",
    "core/sampling.py",
    "core/timeline.py",
    "core/units.py",
)

IMPURE = {
    "torch", "triton", "numpy", "grpc", "redis", "asyncio", "socket", "threading", "subprocess", "os", "time", "random",
    "secrets",
}  # fmt: skip


@pytest.mark.parametrize("name", PURE_FILES)
def test_a_file_that_decides_does_no_io(name: str) -> None:
    found = [
        f"{name}:{line}: {what}" for line, what in SourceFile(ROOT / name).imports() if what.split(".")[0] in IMPURE
    ]
    assert found == []

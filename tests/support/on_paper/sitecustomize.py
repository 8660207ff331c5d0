"""Gives a process that has this folder on its PYTHONPATH devices on paper from its start; see `any_gpu.processes`.

Torch's ops compute on them. What the devices complain of at its end ends it with another code.
"""

from __future__ import annotations

import atexit
import os
import sys

from paper_gpu.device import paper_gpu

from pagewire.kernels import backend_choice
from pagewire.kernels.torch_backend import TorchBackend

EXIT_COMPLAINTS = 70

_gpu = paper_gpu(2)
_devices = _gpu.__enter__()
backend_choice.backend_for = lambda device: TorchBackend()


@atexit.register
def tell() -> None:
    """Tell what is wrong."""
    if _devices.gpu.complaints:
        sys.stderr.write(f"on paper: {_devices.gpu.complaints}\n")
        sys.stderr.flush()
        os._exit(EXIT_COMPLAINTS)

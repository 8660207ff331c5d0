"""Which backend computes on a device, chosen once, when an engine is assembled."""

from __future__ import annotations

import torch

from pagewire.kernels.backend import Backend
from pagewire.kernels.cpu_backend import CpuBackend
from pagewire.kernels.torch_backend import TorchBackend


def backend_for(device: torch.device) -> Backend:
    """Return Triton's ops for CUDA devices, the native ones for CPUs where they can be built, torch's elsewhere."""
    if device.type == "cuda":
        # Triton comes with CUDA builds of torch; other machines need not have it.
        from pagewire.kernels.triton_backend import TritonBackend  # noqa: PLC0415

        return TritonBackend.of(device)
    return (CpuBackend.load() if device.type == "cpu" else None) or TorchBackend()

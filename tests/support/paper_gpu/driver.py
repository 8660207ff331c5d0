"""The driver on paper: what one process has on a device, others of this host map. In the place of `CudaDriver`.

An allocation that is large enough lies in a memory file, and its handle says whose and which. Of an address nothing is
known but what was allocated or mapped here.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass

import torch

from pagewire.core.cuda_export import HANDLE_BYTES, Export
from pagewire.core.errors import TransferFailed

LEAST_BYTES = 1 << 16  # of what is exported
_HANDLE = struct.Struct("<IIQ")  # process, file, bytes


@dataclass(frozen=True, slots=True)
class Region:
    """Memory in a file, of this process or another's."""

    memory: mmap.mmap
    handle: bytes


_regions: dict[int, Region] = {}  # by address, for as long as the process lives: nothing is taken for another's


def host_memory(num_bytes: int) -> torch.Tensor:
    """Return `[num_bytes]` uint8 that others can map."""
    fd = os.memfd_create("paper-gpu", os.MFD_CLOEXEC)
    os.ftruncate(fd, num_bytes)
    return _mapped(mmap.mmap(fd, num_bytes), _HANDLE.pack(os.getpid(), fd, num_bytes))


def _mapped(memory: mmap.mmap, handle: bytes) -> torch.Tensor:
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    _regions[tensor.data_ptr()] = Region(memory, handle)
    return tensor


def at(address: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the bytes at an address that was mapped."""
    base = next(base for base, region in _regions.items() if base <= address < base + len(region.memory))
    whole = torch.frombuffer(_regions[base].memory, dtype=torch.uint8)
    return whole[address - base :][: torch.Size(shape).numel()].view(shape)


class PaperDriver:
    """See `CudaDriver`, of which it has what maps memory."""

    def __init__(self, device_index: int) -> None:
        self._device_index = device_index

    def use(self) -> None:
        """See `CudaDriver`."""

    def export(self, address: int, num_bytes: int) -> Export:
        """See `CudaDriver`."""
        for base, region in _regions.items():
            if base <= address and address + num_bytes <= base + len(region.memory):
                return Export(region.handle.ljust(HANDLE_BYTES, b"\0"), address - base)
        raise TransferFailed("cuIpcGetMemHandle: no allocation that can be mapped")

    def map(self, handle: bytes) -> int:
        """See `CudaDriver`."""
        pid, number, size = _HANDLE.unpack_from(handle)
        if pid == os.getpid():
            raise TransferFailed("cuIpcOpenMemHandle_v2: a process does not map what is its own")
        try:
            fd = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR)
        except OSError as error:
            raise TransferFailed(f"cuIpcOpenMemHandle_v2: {error}") from None
        try:
            return _mapped(mmap.mmap(fd, size), handle).data_ptr()
        finally:
            os.close(fd)

    def size(self, base: int) -> int:
        """See `CudaDriver`."""
        return len(_regions[base].memory)

    def unmap(self, base: int) -> None:
        """See `CudaDriver`; whoever still has a tensor of it keeps the memory."""
        del _regions[base]

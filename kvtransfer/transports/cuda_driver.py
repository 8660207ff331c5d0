"""The few calls of the CUDA driver that PyTorch does not show: export an allocation, map another process's, copy.

A mapped allocation is an address here, not a tensor: torch's own way of sharing counts references in files under
/dev/shm that outlive a killed process, and hands tuples around that a peer could fill as it likes. A handle is 64
bytes.

Knows addresses. Every call belongs in a thread in which `use` was called. Invariant: a failure is a TransferFailed that
names CUDA's error.
"""

from __future__ import annotations

import ctypes

import torch

from pagewire.core.errors import TransferFailed

HANDLE_BYTES = 64  # CU_IPC_HANDLE_SIZE
_LAZY_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_ubyte * HANDLE_BYTES),)


class CudaDriver:
    """libcuda, on one device of this process. Raises TransferFailed where there is none."""

    def __init__(self, device_index: int) -> None:
        self._device_index = device_index
        address, size, stream = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p
        signatures: dict[str, tuple[type, ...]] = {
            "cuMemGetAddressRange_v2": (ctypes.POINTER(address), ctypes.POINTER(size), address),  # type: ignore[dict-item]
            "cuIpcGetMemHandle": (ctypes.POINTER(_Handle), address),  # type: ignore[dict-item]
            "cuIpcOpenMemHandle_v2": (ctypes.POINTER(address), _Handle, ctypes.c_uint),  # type: ignore[dict-item]
            "cuIpcCloseMemHandle": (address,),
            "cuMemcpyAsync": (address, address, size, stream),
            "cuGetErrorName": (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)),  # type: ignore[dict-item]
        }
        try:
            library = ctypes.CDLL("libcuda.so.1")
            self._functions = {name: library[name] for name in signatures}
        except (OSError, AttributeError) as error:
            raise TransferFailed(f"no CUDA driver: {error}") from None
        for name, arguments in signatures.items():
            self._functions[name].argtypes, self._functions[name].restype = arguments, ctypes.c_int

    def use(self) -> None:
        """Make torch's context of the device the calling thread's own: the driver's calls mean that one."""
        torch.cuda.set_device(self._device_index)
        torch.cuda.current_stream().synchronize()

    def export(self, address: int) -> tuple[bytes, int, int]:
        """Return the handle of the allocation that `address` is in, the offset there, the bytes from there on."""
        base, size, handle = ctypes.c_uint64(), ctypes.c_size_t(), _Handle()
        self._call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), address)
        self._call("cuIpcGetMemHandle", ctypes.byref(handle), base)
        offset = address - base.value
        return bytes(handle.reserved), offset, size.value - offset

    def size(self, base: int) -> int:
        """Return the bytes of the allocation that begins there, mapped or our own."""
        size = ctypes.c_size_t()
        self._call("cuMemGetAddressRange_v2", ctypes.byref(ctypes.c_uint64()), ctypes.byref(size), base)
        return size.value

    def map(self, handle: bytes) -> int:
        """Return where another process's allocation begins here."""
        base = ctypes.c_uint64()
        their = _Handle((ctypes.c_ubyte * HANDLE_BYTES)(*handle))
        self._call("cuIpcOpenMemHandle_v2", ctypes.byref(base), their, _LAZY_PEER_ACCESS)
        return base.value

    def unmap(self, base: int) -> None:
        """Let go of it; nothing may be copying out of it."""
        self._call("cuIpcCloseMemHandle", base)

    def copy(self, destination: int, source: int, num_bytes: int, stream: torch.cuda.Stream) -> None:
        """Post a copy between two addresses of devices."""
        self._call("cuMemcpyAsync", destination, source, num_bytes, stream.cuda_stream)

    def _call(self, name: str, *arguments: object) -> None:
        code: int = self._functions[name](*arguments)
        if code:
            text = ctypes.c_char_p()
            self._functions["cuGetErrorName"](code, ctypes.byref(text))
            raise TransferFailed(f"{name}: {(text.value or b'?').decode()} ({code})")

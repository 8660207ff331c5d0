"""The few calls of the CUDA driver that PyTorch does not show: export an allocation, map another process's, copy.

A mapped allocation is an address here, not a tensor: torch's own way of sharing counts references in files under
/dev/shm that outlive a killed process, and hands tuples around that a peer could fill as it likes. A handle is 64
bytes.

Knows addresses, and no PyTorch: an engine exports by it, a pod's front maps by it. Every call belongs in a thread in
which `use` was called. Invariant: a failure is a TransferFailed that names CUDA's error.
"""

from __future__ import annotations

import ctypes

from pagewire.core.cuda_export import HANDLE_BYTES, Export
from pagewire.core.errors import TransferFailed

_UNIFIED = 4  # CU_MEMORYTYPE_UNIFIED: an address says which device it is of
_LAZY_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_ubyte * HANDLE_BYTES),)


class _Rows(ctypes.Structure):
    """CUDA_MEMCPY2D of the driver's API, version 2."""

    _fields_ = (
        *((f"source_{name}", ctypes.c_size_t) for name in ("x", "y")),
        ("source_type", ctypes.c_uint), ("source_host", ctypes.c_void_p), ("source", ctypes.c_uint64),
        ("source_array", ctypes.c_void_p), ("source_pitch", ctypes.c_size_t),
        *((f"destination_{name}", ctypes.c_size_t) for name in ("x", "y")),
        ("destination_type", ctypes.c_uint), ("destination_host", ctypes.c_void_p), ("destination", ctypes.c_uint64),
        ("destination_array", ctypes.c_void_p), ("destination_pitch", ctypes.c_size_t),
        ("width", ctypes.c_size_t), ("height", ctypes.c_size_t),
    )  # fmt: skip


class CudaDriver:
    """libcuda, on one device of this process. Raises TransferFailed where there is none."""

    def __init__(self, device_index: int) -> None:
        self._device_index = device_index
        self._context: ctypes.c_void_p | None = None
        address, size, stream = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p
        signatures: dict[str, tuple[type, ...]] = {
            "cuMemGetAddressRange_v2": (ctypes.POINTER(address), ctypes.POINTER(size), address),  # type: ignore[dict-item]
            "cuIpcGetMemHandle": (ctypes.POINTER(_Handle), address),  # type: ignore[dict-item]
            "cuIpcOpenMemHandle_v2": (ctypes.POINTER(address), _Handle, ctypes.c_uint),  # type: ignore[dict-item]
            "cuIpcCloseMemHandle": (address,),
            "cuMemcpyAsync": (address, address, size, stream),
            "cuMemcpy2DAsync_v2": (ctypes.POINTER(_Rows), stream),  # type: ignore[dict-item]
            "cuGetErrorName": (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)),  # type: ignore[dict-item]
            "cuInit": (ctypes.c_uint,),
            "cuDeviceGet": (ctypes.POINTER(ctypes.c_int), ctypes.c_int),  # type: ignore[dict-item]
            "cuDevicePrimaryCtxRetain": (ctypes.POINTER(ctypes.c_void_p), ctypes.c_int),  # type: ignore[dict-item]
            "cuCtxSetCurrent": (ctypes.c_void_p,),
        }
        try:
            library = ctypes.CDLL("libcuda.so.1")
            self._functions = {name: library[name] for name in signatures}
        except (OSError, AttributeError) as error:
            raise TransferFailed(f"no CUDA driver: {error}") from None
        for name, arguments in signatures.items():
            self._functions[name].argtypes, self._functions[name].restype = arguments, ctypes.c_int

    def use(self) -> None:
        """Make the device's primary context, which PyTorch works in, the calling thread's: calls mean that one."""
        if self._context is None:
            device, context = ctypes.c_int(), ctypes.c_void_p()
            self._call("cuInit", 0)
            self._call("cuDeviceGet", ctypes.byref(device), self._device_index)
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)  # for as long as the process lives
            self._context = context
        self._call("cuCtxSetCurrent", self._context)

    def export(self, address: int, num_bytes: int) -> Export:
        """Return how others map the `num_bytes` at `address`, which are of this process.

        Raises TransferFailed where they are more than one allocation.
        """
        base, size, handle = ctypes.c_uint64(), ctypes.c_size_t(), _Handle()
        self._call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), address)
        offset = address - base.value
        if size.value - offset < num_bytes:
            raise TransferFailed("the pool is more than one allocation: it was made with expandable_segments")
        self._call("cuIpcGetMemHandle", ctypes.byref(handle), base)
        return Export(bytes(handle.reserved), offset)

    def size(self, base: int) -> int:
        """Return the bytes of the allocation that begins there, mapped or our own."""
        size = ctypes.c_size_t()
        self._call("cuMemGetAddressRange_v2", ctypes.byref(ctypes.c_uint64()), ctypes.byref(size), base)
        return size.value

    def map(self, handle: bytes) -> int:
        """Return where another process's allocation begins here. What is mapped cannot be exported anew."""
        base = ctypes.c_uint64()
        their = _Handle((ctypes.c_ubyte * HANDLE_BYTES)(*handle))
        self._call("cuIpcOpenMemHandle_v2", ctypes.byref(base), their, _LAZY_PEER_ACCESS)
        return base.value

    def unmap(self, base: int) -> None:
        """Let go of it; nothing may be copying out of it."""
        self._call("cuIpcCloseMemHandle", base)

    def copy(self, destination: int, source: int, num_bytes: int, stream: int) -> None:
        """Post a copy between two addresses of devices, on a stream of that handle."""
        self._call("cuMemcpyAsync", destination, source, num_bytes, stream)

    def copy_rows(
        self, destination: int, source: int, num_bytes: int, pitches: tuple[int, int], num_rows: int, stream: int
    ) -> None:
        """The same, of `num_rows` rows of `num_bytes`; `pitches` are from row to row, the destination's first."""
        rows = _Rows(
            source_type=_UNIFIED, source=source, source_pitch=pitches[1],
            destination_type=_UNIFIED, destination=destination, destination_pitch=pitches[0],
            width=num_bytes, height=num_rows,
        )  # fmt: skip
        self._call("cuMemcpy2DAsync_v2", ctypes.byref(rows), stream)

    def _call(self, name: str, *arguments: object) -> None:
        code: int = self._functions[name](*arguments)
        if code:
            text = ctypes.c_char_p()
            self._functions["cuGetErrorName"](code, ctypes.byref(text))
            raise TransferFailed(f"{name}: {(text.value or b'?').decode()} ({code})")

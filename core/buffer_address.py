"""Where an object's bytes lie, for code that is not Python: CPython's buffer protocol. Knows nothing of the bytes."""

from __future__ import annotations

import ctypes
import mmap


class _PyBuffer(ctypes.Structure):
    """`Py_buffer` of CPython's stable ABI."""

    _fields_ = (
        ("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int), ("ndim", ctypes.c_int), ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p), ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p),
    )  # fmt: skip


class BufferAddress:
    """A context in which an object's bytes stay where they are; entered, it is their address. Raises BufferError."""

    def __init__(self, data: bytes | bytearray | memoryview | mmap.mmap, *, writable: bool = False) -> None:
        self._buffer = _PyBuffer()
        self._data = data
        self._flags = 1 if writable else 0

    def __enter__(self) -> int:
        """Hold the bytes; return where they are."""
        ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(self._data), ctypes.byref(self._buffer), self._flags)
        return self._buffer.buf or 0

    def __exit__(self, *_error: object) -> None:
        """Let them go."""
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(self._buffer))

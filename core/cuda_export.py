"""How another process of this host maps memory of ours on a CUDA device, as bytes. Knows nothing of CUDA's calls.

Invariant: it says where something is and nothing of how much; whoever maps it looks.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

HANDLE_BYTES = 64  # CU_IPC_HANDLE_SIZE
_EXPORT = struct.Struct(f"<{HANDLE_BYTES}sQ")
EXPORT_BYTES = _EXPORT.size


class Export(NamedTuple):
    """The allocation's handle, and where in it ours begins."""

    handle: bytes  # HANDLE_BYTES long
    offset: int  # bytes

    def to_bytes(self) -> bytes:
        """Return it as `EXPORT_BYTES` bytes."""
        return _EXPORT.pack(self.handle, self.offset)

    @classmethod
    def from_bytes(cls, data: bytes) -> Export:
        """Return what `to_bytes` was of; raises ValueError on another number of bytes."""
        if len(data) != _EXPORT.size:
            raise ValueError(f"an export of {len(data)} bytes")
        return cls(*_EXPORT.unpack(data))

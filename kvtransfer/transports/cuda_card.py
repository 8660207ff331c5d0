"""What a CUDA source's card says: where the parts of its pool lie, and the events that its writes are before.

    magic, blocks, token, how many parts, how many events | the parts | the events | the address of a socket

Knows bytes; no CUDA. Invariant: what is read has as many parts and events as a source may have.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from pagewire.core.cuda_export import EXPORT_BYTES, HANDLE_BYTES, Export
from pagewire.core.errors import TransferFailed
from pagewire.core.token_door import TOKEN_BYTES

NUM_EVENTS = 64  # of a source that has any
MAX_PARTS = 64
_HEAD = struct.Struct(f"<4sQ{TOKEN_BYTES}sII")
_MAGIC = b"PWD3"


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaCard:
    """`num_blocks` blocks in equal `parts`; handles of `events`, none of a pool that a front has mapped.

    Whoever shows the `token` at the `address` gets the source's lifeline.
    """

    num_blocks: int
    token: bytes
    parts: tuple[Export, ...]
    events: tuple[bytes, ...]
    address: bytes

    def to_bytes(self) -> bytes:
        """Return it as bytes."""
        head = _HEAD.pack(_MAGIC, self.num_blocks, self.token, len(self.parts), len(self.events))
        return b"".join((head, *(part.to_bytes() for part in self.parts), *self.events, self.address))

    @classmethod
    def from_bytes(cls, data: bytes) -> CudaCard:
        """Return what a source's card says. Raises TransferFailed on anything else."""
        if len(data) < _HEAD.size:
            raise TransferFailed(f"a card of {len(data)} bytes")
        magic, num_blocks, token, num_parts, num_events = _HEAD.unpack_from(data)
        events = _HEAD.size + num_parts * EXPORT_BYTES
        address = events + num_events * HANDLE_BYTES
        is_known = magic == _MAGIC and 0 < num_parts <= MAX_PARTS and num_events in (0, NUM_EVENTS)
        if not is_known or len(data) <= address:
            raise TransferFailed("not the card of a CUDA source")
        return cls(
            num_blocks=num_blocks,
            token=token,
            parts=tuple(
                Export.from_bytes(data[at : at + EXPORT_BYTES]) for at in range(_HEAD.size, events, EXPORT_BYTES)
            ),
            events=tuple(data[at : at + HANDLE_BYTES] for at in range(events, address, HANDLE_BYTES)),
            address=data[address:],
        )

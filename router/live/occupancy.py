"""How a pod's pool divides into what a block can be doing, each block counted once. Pure.

Invariant: the parts are not negative and their sum is the pool, whatever the load says.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagewire.core.load import Load


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """Blocks: `reserved` ones hold nothing yet, or something that may go, and are promised to a request.

    `cached` counts pinned ones too. `arriving` are bound to a prompt whose KV is on its way, `running` all others that
    a request holds here, to compute on or to ship.
    """

    free: int
    cached: int
    running: int
    reserved: int
    arriving: int

    @classmethod
    def of(cls, load: Load) -> Occupancy:
        """Return how a pool divides. A promise is kept from free blocks first, then from cached ones."""
        left = max(0, load.blocks_total)

        def part(wanted: int) -> int:
            # The front counts what arrives, the engine the rest, a moment apart: what does not fit is not shown.
            nonlocal left
            taken = min(max(0, wanted), left)
            left -= taken
            return taken

        arriving = part(min(load.blocks_arriving, load.blocks_held))
        running = part(load.blocks_held - arriving)
        reserved = part(load.blocks_reserved)
        from_cached = max(0, reserved - load.blocks_free)
        cached = part(load.blocks_cached + load.blocks_pinned - from_cached)
        return cls(free=left, cached=cached, running=running, reserved=reserved, arriving=arriving)

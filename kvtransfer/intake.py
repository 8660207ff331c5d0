"""A shipment's sink: asks the shipment about each block that is ready, and reports what follows once it is there.

Knows nothing of transports and bytes. Invariant: it speaks of its own shipment and generation alone.
"""

from __future__ import annotations

from collections.abc import Callable

from pagewire.core.clock import Clock
from pagewire.kvtransfer.effects import Claim, Effects, Verdict
from pagewire.kvtransfer.shipment import IncomingShipment


class Intake:
    """The `Sink` of one incoming shipment. `on_effects` is called only with something to do, and must not block."""

    def __init__(
        self, shipment: IncomingShipment, clock: Clock, on_effects: Callable[[IncomingShipment, Effects], None]
    ) -> None:
        self._shipment = shipment
        self._clock = clock
        self._on_effects = on_effects

    def claim(self, shipment_id: int, generation: int, block_index: int) -> Claim:
        """Say where the shipment wants the block; see `Sink`."""
        shipment = self._shipment
        if (shipment_id, generation) != (shipment.shipment_id, shipment.generation):
            return Claim(Verdict.DROP)
        return shipment.claim(block_index)

    def settle(self, shipment_id: int, generation: int, block_index: int, is_intact: bool) -> None:
        """Judge a block that was claimed; see `Sink`."""
        effects = self._shipment.settle(block_index, is_intact, self._clock.now())
        if effects:
            self._on_effects(self._shipment, effects)

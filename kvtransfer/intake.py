"""A shipment's sink: asks the shipment about each block that is ready, and reports what follows once it is there.

Knows nothing of transports and bytes. Invariant: it speaks of its own shipment and generation alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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

    def claim(self, shipment_id: int, generation: int, indices: Sequence[int]) -> Sequence[tuple[Verdict, int]]:
        """Say where the shipment wants each of the blocks; see `Sink`."""
        shipment = self._shipment
        if (shipment_id, generation) != (shipment.shipment_id, shipment.generation):
            return [Claim(Verdict.DROP)] * len(indices)
        return shipment.claim_all(indices)

    def settle(self, shipment_id: int, generation: int, indices: Sequence[int], is_intact: bool) -> None:
        """Judge blocks that were claimed; see `Sink`."""
        if effects := self._shipment.settle_all(indices, is_intact, self._clock.now()):
            self._on_effects(self._shipment, effects)

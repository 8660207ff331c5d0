"""A shipment's sink: asks the shipment about each block, writes it where it belongs, then reports what follows.

Knows the order: placed first, then the effects, so that nobody is told of a block that is not there yet. Knows nothing
of transports. Invariant: a block is written only on the verdict PLACE.
"""

from __future__ import annotations

from collections.abc import Callable

from pagewire.core.clock import Clock
from pagewire.kvtransfer.effects import Effects, Verdict
from pagewire.kvtransfer.shipment import IncomingShipment
from pagewire.kvtransfer.transport import BlockMemory


class Intake:
    """The `Sink` of one incoming shipment. `on_effects` is called only with something to do, and must not block."""

    def __init__(
        self,
        shipment: IncomingShipment,
        memory: BlockMemory,
        clock: Clock,
        on_effects: Callable[[IncomingShipment, Effects], None],
    ) -> None:
        self._shipment = shipment
        self._memory = memory
        self._clock = clock
        self._on_effects = on_effects

    def deliver(
        self, shipment_id: int, generation: int, block_index: int, data: memoryview, is_intact: bool
    ) -> Verdict:
        """Place the block where the shipment wants it; see `Sink`."""
        shipment = self._shipment
        if (shipment_id, generation) != (shipment.shipment_id, shipment.generation):
            return Verdict.DROP
        arrival = shipment.arrived(block_index, is_intact, self._clock.now())
        if arrival.verdict is Verdict.PLACE:
            self._memory.write(arrival.block_id, data)
        if arrival.effects:
            self._on_effects(shipment, arrival.effects)
        return arrival.verdict

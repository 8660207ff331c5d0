"""What every request of a decode pod shares. A value: it does nothing itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pagewire.core.clock import Clock
from pagewire.core.kv_layout import KVLayout
from pagewire.core.messages import Load
from pagewire.decode_service.admission import Admission
from pagewire.decode_service.prefill_peers import PrefillPeers
from pagewire.engine.running_engine import RunningEngine
from pagewire.kvtransfer.ticket import TicketKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The pod around a request. `wall` is the wall clock, for tickets alone; `load` is the engine's latest word."""

    pod_id: str
    engine: RunningEngine
    admission: Admission
    peers: PrefillPeers
    load: Callable[[], Load]
    tickets: TicketKey
    clock: Clock
    wall: Callable[[], float]
    lease_s: float
    transfer_timeout_s: float

    @property
    def layout(self) -> KVLayout:
        """The layout of the pool's blocks."""
        return self.engine.ready.layout

"""What every request of a decode pod shares. A value: it does nothing itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pagewire.core.clock import Clock
from pagewire.core.kv_layout import KVLayout
from pagewire.core.load import Load
from pagewire.core.trace_context import TraceContext
from pagewire.decode_service.admission import Admission
from pagewire.decode_service.handovers import Handovers
from pagewire.decode_service.prefill_costs import PrefillCosts
from pagewire.engine.exchange.exchange import Exchange
from pagewire.engine.running_engine import RunningEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The pod around a request. `load` is the engine's latest word; `address` is where others dial this pod.

    `trace_of` reads a traceparent, None where nothing is traced.
    """

    pod_id: str
    address: Callable[[], str]
    engine: RunningEngine
    admission: Admission
    exchange: Exchange
    costs: PrefillCosts
    handovers: Handovers
    load: Callable[[], Load]
    trace_of: Callable[[str], TraceContext | None]
    clock: Clock
    lease_s: float

    @property
    def layout(self) -> KVLayout:
        """The layout of the pool's blocks."""
        return self.engine.ready.layout

    @property
    def vocab_size(self) -> int:
        """The token ids that there are, from 0 on."""
        return self.engine.ready.vocab_size

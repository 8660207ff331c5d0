"""Constructs a prefill pod's service."""

from __future__ import annotations

import time

from pagewire.core.clock import MonotonicClock
from pagewire.engine.exchange.exchange import block_sender
from pagewire.engine.front import Front
from pagewire.prefill_service.service import PrefillService


def service(front: Front) -> PrefillService:
    """Return the job behind `front`; call on the running event loop."""
    return PrefillService(front, sender=block_sender(front), clock=MonotonicClock(), wall=time.time)

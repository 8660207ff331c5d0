"""Constructs a decode pod's, or a colocated one's, service."""

from __future__ import annotations

import time

from pagewire.core.clock import MonotonicClock
from pagewire.decode_service.service import DecodeService
from pagewire.engine.exchange.exchange import block_sender
from pagewire.engine.front import Front


def service(front: Front) -> DecodeService:
    """Return the job behind `front`; call on the running event loop."""
    return DecodeService(front, sender=block_sender(front), clock=MonotonicClock(), wall=time.time)

"""Why the router turns work away, and the error that says so: `Overloaded` with a reason, for metrics.

Knows no limits. A reason is a closed vocabulary and names no tenant, so that it can be a label.
"""

from __future__ import annotations

from enum import StrEnum

from pagewire.core.errors import Overloaded


class Reason(StrEnum):
    """What a request was refused for."""

    ROUTER_FULL = "router_full"  # as many requests run as the router may have
    TENANT_CONCURRENCY = "tenant_concurrency"
    TENANT_TOKENS = "tenant_tokens"
    BODIES = "bodies"  # the bodies of others, or of its tenant, take all the room that there is for them
    QUEUE_FULL = "queue_full"  # no pod has room, and as many wait as may
    QUEUE_WAIT = "queue_wait"  # no pod had room for as long as a request may wait
    OVERTAKEN = "overtaken"  # the queue was full, and a more urgent one or a tenant with fewer took its place
    SLO_CONCURRENCY = "slo_concurrency"  # with as many as are in others were late
    SLO_TTFT = "slo_ttft"
    SLO_GAP = "slo_gap"
    SLO_TPOT = "slo_tpot"


class Refused(Overloaded):
    """The router refuses a request before any pod has seen it; outside it is `overloaded`."""

    def __init__(self, reason: Reason, message: str, *, retry_after_s: float) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.reason = reason

"""Who may come in: a bounded number of requests at once, each tenant within its limits.

Places are had in the order of coming: whoever comes while others wait to be read is refused where those will need what
there is, and not when its turn to be read has come. Among its tenant's a request is from its head on, among all once it
is here: who sends slowly is in nobody's way but its own.

Pure: time is a parameter. Knows counts, nothing of pods: whether one has room is the entrance's business. Invariant:
every `enter` that returned is followed by exactly one `leave`; `active` is their difference and never above the bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pagewire.router.drain_rate import DrainRate
from pagewire.router.refusals import Reason, Refused
from pagewire.router.tenant_limits import TenantLimits
from pagewire.router.tenants import ANONYMOUS, Tenant


class Admission:
    """A bounded number of concurrent requests; the rest is refused at once, with a time to come back."""

    def __init__(self, max_concurrent: int) -> None:
        if max_concurrent < 1:
            raise ValueError(f"max_concurrent must be at least 1, is {max_concurrent}")
        self._max_concurrent = max_concurrent
        self._active = 0
        self._num_unread = 0
        self._drain = DrainRate()
        self._tenants = TenantLimits()

    @property
    def active(self) -> int:
        """How many requests are admitted now."""
        return self._active

    @property
    def num_unread(self) -> int:
        """How many have come, and get their places before those that come later."""
        return self._num_unread

    def most(self, tenant: Tenant) -> int:
        """Return how many requests of a tenant may be in at once, if it is alone."""
        return min(self._max_concurrent, tenant.max_concurrent or self._max_concurrent)

    def check(self, now_s: float, tenant: Tenant = ANONYMOUS) -> None:
        """Raise Refused, with the time in which a place should come free, where none is left for a tenant."""
        self._check_bound(self._num_unread, now_s)
        self.check_tenant(now_s, tenant)

    def check_tenant(self, now_s: float, tenant: Tenant) -> None:
        """Raise Refused where a tenant has no place left of its own."""
        self._tenants.check(tenant, now_s)

    @contextmanager
    def coming(self, now_s: float, tenant: Tenant) -> Iterator[None]:
        """Count a request among its tenant's, while it comes and waits to be read; raises Refused where too many do."""
        self._tenants.come(tenant, now_s)
        try:
            yield
        finally:
            self._tenants.is_read(tenant)

    @contextmanager
    def unread(self) -> Iterator[None]:
        """Count a request that has come and waits to be read, for as long as it does."""
        self._num_unread += 1
        try:
            yield
        finally:
            self._num_unread -= 1

    def enter(self, now_s: float, tenant: Tenant = ANONYMOUS) -> None:
        """Take a place; raises Refused where there is none, whoever else may wait to be read."""
        self._check_bound(0, now_s)
        self._tenants.enter(tenant, now_s)
        self._active += 1
        if self._active == self._max_concurrent:
            self._drain.full(now_s)

    def _check_bound(self, ahead: int, now_s: float) -> None:
        if self._active + ahead >= self._max_concurrent:
            others = f" and {ahead} are to be read" if ahead else ""
            message = f"{self._active} requests are running{others}, which is the bound"
            raise Refused(Reason.ROUTER_FULL, message, retry_after_s=self._drain.retry_after_s(1, now_s))

    def leave(self, now_s: float, tenant: Tenant = ANONYMOUS) -> None:
        """Give the place back."""
        self._tenants.leave(tenant, now_s)
        if self._active == self._max_concurrent:
            self._drain.freed(now_s, is_full=False)
        self._active -= 1

    def charge(self, prompt_tokens: int, now_s: float, tenant: Tenant = ANONYMOUS) -> None:
        """Charge what one request asks; raises Refused, with the time until it can be paid, when it cannot."""
        self._tenants.charge(tenant, prompt_tokens, now_s)

    def settle(self, tokens: int, now_s: float, tenant: Tenant = ANONYMOUS) -> None:
        """Charge what was streamed; a negative number gives back what was charged and never ran."""
        self._tenants.settle(tenant, tokens, now_s)

"""Has the ratio of prefill to decode pods follow the load, for one model: looks, asks the rebalancer, orders.

Of several routers one does it: the one that holds a lease in Redis, for as long as it renews it. Without Redis none
does. A router that comes to hold the lease knows nothing of earlier changes, so its first one waits for a cool-down.
Invariant: the rebalancer decides only while the lease is held.
"""

from __future__ import annotations

import asyncio
import logging
import uuid

from pagewire.core.clock import Clock
from pagewire.core.errors import PagewireError
from pagewire.router.pod import Pod
from pagewire.router.pods import PodPool
from pagewire.router.policies.view import Priors
from pagewire.router.rebalance import OTHER, PodLoad, Rebalancer, Rules
from pagewire.router.role_changes import Leases, RoleChanges

log = logging.getLogger(__name__)

LEASE_S = 10
TICK_S = 1.0


class Balancing:
    """One model's, on one router."""

    def __init__(
        self,
        pool: PodPool,
        changes: RoleChanges,
        leases: Leases,
        rules: Rules,
        clock: Clock,
        *,
        model: str,
        tick_s: float = TICK_S,
    ) -> None:
        self._pool = pool
        self._changes = changes
        self._leases = leases
        self._rules = rules
        self._clock = clock
        self._tick_s = tick_s
        self._lease = f"rebalance:{model}"
        self._holder = uuid.uuid4().hex
        self._rebalancer: Rebalancer | None = None  # while the lease is ours

    async def run(self) -> None:
        """Look and order until cancelled."""
        while True:
            await asyncio.sleep(self._tick_s)
            await self.look()

    async def look(self) -> None:
        """Look once; where it is time for a change, order it and see it through."""
        if not await self._is_ours():
            self._rebalancer = None
            return
        if self._rebalancer is None:
            log.info("this router balances the roles of pods from now on (%s)", self._lease)
            self._rebalancer = Rebalancer(self._rules, self._clock.now())
        known = [pod for pod in self._pool.pods if pod.registration.role in OTHER and self._pool.is_one_of_us(pod)]
        pods = [_load_of(pod, self._pool.roster.priors) for pod in known]
        shift = self._rebalancer.observe(pods, self._clock.now())
        if shift is None:
            return
        try:
            await self._changes.change(shift.pod_id, shift.role, shift.why)
        except PagewireError as error:
            log.warning("%s stays as it is (%s): %s", shift.pod_id, shift.why, error.message)

    async def _is_ours(self) -> bool:
        try:
            return await self._leases.claim(self._lease, self._holder, LEASE_S)
        except OSError as error:
            log.warning("nobody balances roles while Redis is away: %s", error)
            return False


def _load_of(pod: Pod, priors: Priors) -> PodLoad:
    load = pod.load
    usable_blocks = max(1, load.blocks_total - load.blocks_pinned)
    return PodLoad(
        pod_id=pod.pod_id,
        role=pod.registration.role,
        queue_s=pod.view(priors).queue_s,
        kv_share=(load.blocks_held + load.blocks_reserved) / usable_blocks,
        num_sequences=load.num_running + load.num_waiting,
        is_settled=pod.is_usable,
    )

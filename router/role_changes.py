"""Changes of pods' roles, whoever wants them: an operator, or the rebalancer.

One at a time in the whole cluster: a lease in Redis is held from the order until the pod is seen again or gone, though
whoever ordered it is answered earlier. Without Redis there is none, because a pod that changes is found again through
Redis alone. What becomes of a pod's requests is its own business; here it is seen to that some pod decodes all the
while, and some other prefills.

Invariant: while a change is under way no other is ordered, by this router or another.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pagewire.core.clock import Clock
from pagewire.core.errors import Draining, PagewireError, PodLost, RoleRefused, Unavailable, UnknownPod
from pagewire.core.messages import Role
from pagewire.core.tasks import shared
from pagewire.router.pod import Pod
from pagewire.router.pods import PodPool
from pagewire.router.roster import DECODES

log = logging.getLogger(__name__)

PREFILLS = (Role.PREFILL,)
LEASE = "role-change"
LEASE_S = 10
RENEW_S = 2.0
ANSWER_S = 5.0
GONE_S = 5.0  # a pod that comes back registers at once, and one that drains says so: after so long it does not
HOLD_S = 600.0  # how long the lease is held for a pod that drains: one that never ends must not keep all others


class Leases(Protocol):
    """Names that one process at a time may hold; those in Redis, or a test's."""

    async def claim(self, name: str, holder: str, ttl_s: int) -> bool:
        """Take a name, or keep it, for `ttl_s` seconds; False while somebody else has it.

        Raises OSError when nobody can know.
        """
        ...

    async def give_up(self, name: str, holder: str) -> None:
        """Let go of a name; no-op for one that is not held. Raises OSError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleChange:
    """A change that was ordered. `incarnation` is the pod's new one; empty while it still drains."""

    pod_id: str
    role: Role
    was: Role
    incarnation: str


class RoleChanges:
    """One router's; `wait_s` is how long whoever orders waits until the pod is seen in its new role."""

    def __init__(self, pools: Sequence[PodPool], leases: Leases, clock: Clock, *, wait_s: float) -> None:
        self._pools = pools
        self._leases = leases
        self._clock = clock
        self._wait_s = wait_s
        self._under_way: set[asyncio.Task[str]] = set()

    async def aclose(self) -> None:
        """See no change through any more; the pods do without."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def change(self, pod_id: str, role: Role, why: str) -> RoleChange:
        """Order a change and see it through; behind the answer, where that takes long.

        Raises UnknownPod, InvalidRequest for what is no pod's role, RoleRefused where this pod cannot change or
        another one does, Unavailable where pod or Redis do not answer, PodLost where the pod goes and stays away.
        """
        pool, pod = self._find(pod_id)
        self._check(pool, pod, role)
        holder = uuid.uuid4().hex
        await self._claim(holder)
        try:
            self._check(pool, pod, role)  # another change may have ended while the lease was asked for
        except BaseException:
            await self._give_up(holder)
            raise
        was = pod.registration.role
        answer = asyncio.create_task(self._order(pod, role, why))
        seeing = asyncio.create_task(self._under_lease(pool, pod, role, holder, answer))
        self._under_way.add(seeing)
        seeing.add_done_callback(self._over)
        try:
            await shared(answer, ANSWER_S)
        except TimeoutError:  # it may take the order yet: the lease is held until that is known
            raise Unavailable(f"{pod.pod_id} did not answer within {ANSWER_S} s") from None
        except PagewireError:
            await asyncio.shield(seeing)  # whoever hears of it may order another at once
            raise
        try:
            async with asyncio.timeout(self._wait_s):
                incarnation = await asyncio.shield(seeing)
        except TimeoutError:
            log.warning("%s was not seen as a %s pod within %s s", pod.pod_id, role, self._wait_s)
            incarnation = ""
        return RoleChange(pod_id=pod.pod_id, role=role, was=was, incarnation=incarnation)

    async def _under_lease(self, pool: PodPool, pod: Pod, role: Role, holder: str, answer: asyncio.Task[None]) -> str:
        """See the change through; "" for one that takes too long, or that is refused, as whoever ordered it hears."""
        try:
            return await self._seen(pool, pod, role, holder) if await self._is_taken(answer, holder) else ""
        finally:
            answer.cancel()
            await self._give_up(holder)

    async def _is_taken(self, answer: asyncio.Task[None], holder: str) -> bool:
        while True:
            try:
                await shared(answer, RENEW_S)
                return True
            except TimeoutError:  # a pod that stands still for long loses its link, which is an answer too
                await self._renew(holder)
            except PagewireError:
                return False

    def _over(self, task: asyncio.Task[str]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("a role change came to nothing: %s", error)

    async def _give_up(self, holder: str) -> None:
        try:
            await self._leases.give_up(LEASE, holder)
        except OSError as error:
            log.warning("the lease of a role change ends by itself: %s", error)

    async def _renew(self, holder: str) -> None:
        try:
            await self._leases.claim(LEASE, holder, LEASE_S)
        except OSError as error:
            log.warning("the lease of a role change was not renewed: %s", error)

    async def _order(self, pod: Pod, role: Role, why: str) -> None:
        """Return when the pod has taken the order, or may have; raises what it refuses it for."""
        was, member = pod.registration.role, pod.registration.member
        try:
            answer = await pod.change_role(role)
        except PodLost as error:
            # A pod with nothing to finish is gone at once, and gRPC drops what we have not read when a write of ours
            # meets the end of its stream. Whether it took the order is seen by what becomes of it.
            log.info("%s has not answered: %s", pod.pod_id, error.message)
            return
        if answer.error is not None:
            refusal = answer.error.error()
            raise RoleRefused(refusal.message) if isinstance(refusal, Draining) else refusal
        log.info("%s, a %s pod, becomes a %s pod: %s", member, was, role, why)

    def _find(self, pod_id: str) -> tuple[PodPool, Pod]:
        for pool in self._pools:
            for pod in pool.pods:
                if pod.pod_id == pod_id and pod.link is not None and not pod.misfit:
                    return pool, pod
        raise UnknownPod(f"no pod {pod_id} is linked", field="pod_id")

    def _check(self, pool: PodPool, pod: Pod, role: Role) -> None:
        if not pod.is_usable:
            raise RoleRefused(f"{pod.pod_id} is draining, or not linked any more")
        group, last = (DECODES, "pod that decodes") if pod.registration.role in DECODES else (PREFILLS, "prefill pod")
        if role not in group and all(each is pod for each in pool.usable(*group)):
            raise RoleRefused(f"{pod.pod_id} is the last {last}: as a {role} pod it would leave none")

    async def _claim(self, holder: str) -> None:
        try:
            is_ours = await self._leases.claim(LEASE, holder, LEASE_S)
        except OSError as error:
            raise Unavailable(f"Redis does not answer, and the pod would not be found again: {error}") from error
        if not is_ours:
            raise RoleRefused("another pod changes its role now: one after the other")

    async def _seen(self, pool: PodPool, before: Pod, role: Role, holder: str) -> str:
        """Return the incarnation in which the pod is usable in its new role, "" when it takes too long.

        Raises PodLost where it goes and stays away, or comes back in another, Unavailable where it goes on as it was.
        """
        known_s = left_s = self._clock.now()
        ends_s = known_s + HOLD_S
        while True:
            for pod in pool.usable(*Role):
                if pod.pod_id == before.pod_id and pod.registration.incarnation != before.registration.incarnation:
                    if (came := pod.registration.role) is role:
                        return pod.registration.incarnation
                    raise PodLost(f"{before.pod_id} came back as a {came} pod: it ended while it changed its role")
            now_s = self._clock.now()
            if any(pod.pod_id == before.pod_id for pod in pool.pods):
                known_s = now_s
            elif now_s - known_s >= GONE_S:
                raise PodLost(f"{before.pod_id} went away while it changed its role")
            if not before.is_usable:
                left_s = now_s
            elif now_s - left_s >= GONE_S:
                raise Unavailable(f"{before.pod_id} goes on as it was: the link to it broke before it heard the order")
            if now_s >= ends_s:
                return ""
            await pool.wait_change(min(RENEW_S, ends_s - now_s))
            await self._renew(holder)

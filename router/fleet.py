"""All pods of the cluster: one scan of Redis and one link to each pod, whichever model it serves.

Knows registrations and links, nothing of requests. A pod belongs to the one model that it fits; a pod that fits none is
named in the log with what keeps it out, and not dialled. Redis bootstraps; from then on links tell the truth.

Invariant: a linked pod stays when Redis forgets it or goes away; a pod is forgotten only when it is neither registered
nor linked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from pagewire.core.fingerprint import Fingerprint
from pagewire.core.messages import Role
from pagewire.router.pod import Pod
from pagewire.router.pods import PodPool
from pagewire.serving.handshake import Identity
from pagewire.serving.link import LinkTimes
from pagewire.serving.link_dialer import LinkDialer
from pagewire.serving.registration import Registration
from pagewire.serving.tls import CLEAR, Wire

log = logging.getLogger(__name__)


class Discovery(Protocol):
    """Where pods are found: the registry, or a test's list."""

    async def pods(self) -> list[Registration]:
        """Return the registrations that stand; raises OSError when it cannot know."""
        ...


class _Member(NamedTuple):
    """A pod, where it belongs, and what keeps its link."""

    pool: PodPool
    pod: Pod
    keeper: asyncio.Task[None]


class Fleet:
    """Fills the pools of all models, and keeps their links; `identity` says who dials, for what is wanted."""

    def __init__(
        self,
        discovery: Discovery,
        pools: Sequence[PodPool],
        identity: Callable[[Fingerprint | None], Identity],
        *,
        discovery_s: float,
        times: LinkTimes | None = None,
        wire: Wire = CLEAR,
    ) -> None:
        self._discovery = discovery
        self._pools = pools
        self._identity = identity
        self._discovery_s = discovery_s
        self._times = times
        self._wire = wire
        self._members: dict[str, _Member] = {}
        self._misfits: dict[str, str] = {}  # member -> why no model wants it
        self._misfit_ids: set[int] = set()  # and of pods that are not dialled yet
        self._news = asyncio.Event()  # there is more in Redis than is known
        for pool in pools:
            pool.on_change(self._note)
        self.discovery_failures = 0
        self.broken_dials = 0  # that ended in an error which nobody foresaw
        self.is_current = False  # Redis said just now which pods there are
        self.is_blind = False  # Redis was asked and did not say

    async def run(self) -> None:
        """Discover pods and keep their links until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._news.clear()
                try:
                    self._update(await self._discovery.pods(), tasks)
                    self._sees(True, "")
                except OSError as error:
                    self.discovery_failures += 1
                    self._sees(False, str(error))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._discovery_s):
                        await self._news.wait()

    def _sees(self, is_current: bool, why_not: str) -> None:
        """Take note of whether Redis answers; an outage is logged when it begins and when it is over."""
        if is_current and self.is_blind:
            log.info("pods are discovered again")
        elif not is_current and not self.is_blind:
            log.warning("pods are not discovered now, the known ones stay: %s", why_not)
        self.is_current, self.is_blind = is_current, not is_current

    def index_ids(self) -> set[int]:
        """Return what all known pods go by in the index, linked or not, and those that no model wants."""
        return {pod.registration.index_id for _, pod, _ in self._members.values()} | self._misfit_ids

    def refused(self) -> dict[str, str]:
        """Return why known pods are not used, by pod id."""
        found = {member.rpartition("@")[0]: why for member, why in self._misfits.items()}
        for pool in self._pools:
            found |= pool.refused()
        return found

    def _note(self, pod: Pod) -> None:
        """Ask Redis at once where a pod has come back as another incarnation: that one is registered, or will be."""
        if pod.link is not None and pod.misfit:
            self._news.set()

    def _update(self, found: list[Registration], tasks: asyncio.TaskGroup) -> None:
        registered = {each.member: each for each in found if each.role is not Role.ROUTER}
        self._forget(registered)
        self._misfit_ids = {each.index_id for each in registered.values() if each.member not in self._members}
        for member, registration in registered.items():
            if member in self._members:
                pool, pod, _ = self._members[member]
                if pod.registration.index_id != registration.index_id:
                    pool.renumber(pod, registration.index_id)
                continue
            fitting = self._pool_of(registration)
            if fitting is not None:
                pod = fitting.add(registration)
                keeper = tasks.create_task(self._keep(fitting, pod))
                self._members[member] = _Member(fitting, pod, keeper)
        for pool in self._pools:
            pool.settle()

    def _forget(self, registered: Mapping[str, Registration]) -> None:
        for member, (pool, pod, keeper) in list(self._members.items()):
            if member not in registered and (pod.link is None or pod.misfit):
                log.info("pod %s is gone", member)
                pool.drop(pod)
                keeper.cancel()
                del self._members[member]
        for member in [member for member in self._misfits if member not in registered]:
            del self._misfits[member]

    async def _keep(self, pool: PodPool, pod: Pod) -> None:
        """Keep the link to a pod until cancelled."""

        def who() -> Identity:
            return self._identity(pool.chosen)

        address, events = pod.registration.address, pool.events(pod)
        dialer = LinkDialer(address, who, events, times=self._times, wire=self._wire, on_broken=self._note_broken)
        await dialer.run()

    def _note_broken(self) -> None:
        self.broken_dials += 1

    def _pool_of(self, registration: Registration) -> PodPool | None:
        """Return the pool that a pod belongs to; None, and one line in the log, where it fits no model."""
        reasons = []
        for pool in self._pools:
            reason = pool.refusal(registration.fingerprint) or self._taken(pool, registration.fingerprint)
            if not reason:
                self._misfits.pop(registration.member, None)
                return pool
            reasons.append(f"{pool.name or 'a model without a name yet'} wants {reason}")
        why = ", ".join(reasons)
        if self._misfits.get(registration.member) != why:
            self._misfits[registration.member] = why
            log.error("pod %s is not used: %s", registration.pod_id, why)
        return None

    def _taken(self, pool: PodPool, fingerprint: Fingerprint) -> str:
        """Return why `pool` must not serve by these names: callers could not tell two models apart."""
        others = [other for other in self._pools if other is not pool]
        for name in (fingerprint.model_name, *fingerprint.adapter_names):
            if any(other.goes_by(name) for other in others):
                what = "model_name" if name == fingerprint.model_name else "name of an adapter"
                return f"another {what} than {name}, which is taken"
        return ""

"""Which of the pool's pods are kept out for what attempts on them have shown; decode and prefill pods are two groups.

Knows pods and the results of attempts; the rules are in `outliers.py`. Invariant: a pod is judged against those that
do the same work, and counted once per attempt; a link that broke is one failure, however many requests it took along.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from pagewire.core.clock import Clock
from pagewire.core.messages import Role
from pagewire.router.breaker import State
from pagewire.router.outliers import Cause, Outliers, Result, Rules
from pagewire.serving.registration import Registration

log = logging.getLogger(__name__)


class Member(Protocol):
    """A pod as it is seen here."""

    registration: Registration

    @property
    def is_usable(self) -> bool:
        """True while requests might be placed on it."""
        ...

    @property
    def is_leaving(self) -> bool:
        """True when it drains, so that it is not missed."""
        ...


class Ejection:
    """The groups of a pool, and why who is out."""

    def __init__(self, rules: Rules, clock: Clock, on_ejected: Callable[[Cause], None] = lambda _cause: None) -> None:
        self._clock = clock
        self._on_ejected = on_ejected
        decodes, prefills = Outliers(rules), Outliers(rules)
        self._groups = {Role.DECODE: decodes, Role.COLOCATED: decodes, Role.PREFILL: prefills}
        self._causes: dict[str, Cause] = {}  # of those that were ejected and have not come back

    def begin(self, pod: Member) -> int:
        """An attempt on a pod begins; return what `end` has to be told."""
        return self._groups[pod.registration.role].begin(pod.registration.member, self._clock.now())

    def end(self, pod: Member, turn: int, result: Result) -> None:
        """An attempt ended."""
        group, now_s = self._groups[pod.registration.role], self._clock.now()
        member = pod.registration.member
        for name, cause in group.end(member, turn, result, now_s).items():
            log.warning("pod %s should have no requests for a while: %s", name, cause.value)
            self._causes[name] = cause
            self._on_ejected(cause)
        if member in self._causes and group.state(member, now_s) is State.CLOSED:
            log.info("pod %s has proved itself and is used again", member)
            del self._causes[member]

    def link_broke(self, pod: Member) -> None:
        """Note one failure."""
        self.end(pod, self.begin(pod), Result(False))

    def forget(self, pod: Member) -> None:
        """The pod is gone."""
        self._causes.pop(pod.registration.member, None)
        self._groups[pod.registration.role].forget(pod.registration.member)

    def circuit(self, pod: Member) -> State:
        """Return the state of a pod's breaker."""
        return self._groups[pod.registration.role].state(pod.registration.member, self._clock.now())

    def out(self, pods: Iterable[Member]) -> dict[str, str]:
        """Return who of `pods`, all that are known to serve the same, is kept out now, by member, and why."""
        if not self._causes:
            return {}
        now_s = self._clock.now()
        found: dict[str, str] = {}
        known = list(pods)
        for roles in ((Role.DECODE, Role.COLOCATED), (Role.PREFILL,)):
            group = [pod for pod in known if pod.registration.role in roles and not pod.is_leaving]
            usable = [pod.registration.member for pod in group if pod.is_usable]
            for member in self._groups[roles[0]].ejected(usable, len(group), now_s):
                found[member] = self._causes[member].value
        return found

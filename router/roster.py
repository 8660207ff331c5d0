"""The pods that requests may be placed on, as policies see them: by what they serve and what they are for.

Kept up to date pod by pod, so that a placement finds everything worked out. Pure. Invariants: views of one group are in
the order of their pods' ids, and of each id there is one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from pagewire.core.fingerprint import Fingerprint
from pagewire.core.load import Load
from pagewire.core.messages import Role
from pagewire.router.policies.view import PRIORS, PodView, Priors

DECODES = (Role.DECODE, Role.COLOCATED)
WEIGHT = 0.1  # of the newest figure in what is believed of pods that have none


class _Group:
    """Views and their ids, side by side."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.views: list[PodView] = []

    def put(self, view: PodView) -> None:
        at = bisect_left(self.ids, view.pod_id)
        if at < len(self.ids) and self.ids[at] == view.pod_id:
            self.views[at] = view
        else:
            self.ids.insert(at, view.pod_id)
            self.views.insert(at, view)

    def drop(self, pod_id: str, owner: str) -> None:
        at = bisect_left(self.ids, pod_id)
        if at < len(self.ids) and self.ids[at] == pod_id and member_of(self.views[at].key) == owner:
            del self.ids[at], self.views[at]


class Roster:
    """All groups. What is handed out is the state itself: read it before the next change, and change nothing."""

    def __init__(self) -> None:
        self._groups: dict[tuple[Fingerprint, bool], _Group] = {}
        self.priors = PRIORS

    def decode(self, serves: Fingerprint) -> Sequence[PodView]:
        """Return the pods that decode."""
        return self._views(serves, decodes=True)

    def prefill(self, serves: Fingerprint) -> Sequence[PodView]:
        """Return the pods that build prompts for others."""
        return self._views(serves, decodes=False)

    def put(self, serves: Fingerprint, view: PodView) -> None:
        """Take in a pod, or what is new of it."""
        self._groups.setdefault((serves, view.role in DECODES), _Group()).put(view)

    def drop(self, serves: Fingerprint, pod_id: str, owner: str) -> None:
        """Take a pod out, unless it is there as somebody else than `owner`, another incarnation of it."""
        for decodes in (True, False):
            group = self._groups.get((serves, decodes))
            if group is not None:
                group.drop(pod_id, owner)
                if not group.ids:
                    del self._groups[serves, decodes]

    def learn(self, load: Load) -> None:
        """Take what a pod measured for what others, which have not, would measure: they run the same model."""
        token_s, step_s, rtt_s = self.priors.token_s, self.priors.step_s, self.priors.rtt_s
        self.priors = Priors(
            token_s=_blend(token_s, load.prefill_s_per_token, token_s == PRIORS.token_s),
            step_s=_blend(step_s, load.step_s, step_s == PRIORS.step_s),
            rtt_s=_blend(rtt_s, load.link_rtt_s, rtt_s == PRIORS.rtt_s),
        )

    def _views(self, serves: Fingerprint, *, decodes: bool) -> Sequence[PodView]:
        group = self._groups.get((serves, decodes))
        return group.views if group is not None else ()


def member_of(key: str) -> str:
    """Return the pod and incarnation that a link's key names."""
    return key.rpartition("#")[0]


def _blend(believed: float, measured: float, is_first: bool) -> float:
    if not measured:
        return believed
    return measured if is_first else (1 - WEIGHT) * believed + WEIGHT * measured

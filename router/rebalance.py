"""When a pod of one role had better have the other: a change of the ratio of prefill to decode pods, by their loads.

    prefill pressure   what its pods' queues take on average, over a queue that counts as full
    decode pressure    the larger of two averages of its pods: the share of KV that is held or promised, and the
                       sequences there over those that count as full

A role is short when its pressure reaches `high`. It gets a pod from the other when that one's pressure, spread over
a pod less, stays at `low` or below. Between the two nothing changes, however pressure moves there, so what was changed
is not taken back by what the change itself does to pressure.

Pure: time is a parameter. Knows loads; no links and no Redis. Invariants: no role goes below its minimum, nor below
one pod; a role has been short for `hold_s` without a gap before a pod changes; between two changes of any pod, whoever
ordered them, lies `cooldown_s`; while a pod drains or is away nothing is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagewire.core.messages import Role

OTHER = {Role.PREFILL: Role.DECODE, Role.DECODE: Role.PREFILL}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What an operator can set: pressures, seconds, counts of pods, and what counts as full."""

    high: float = 0.8
    low: float = 0.6
    hold_s: float = 15.0
    cooldown_s: float = 60.0
    min_prefill: int = 1
    min_decode: int = 1
    full_queue_s: float = 2.0
    full_sequences: int = 64

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high:
            raise ValueError(f"low must be above 0 and below high, is {self.low} with a high of {self.high}")
        for name in ("hold_s", "cooldown_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, is {getattr(self, name)}")
        if not self.full_queue_s > 0:
            raise ValueError(f"full_queue_s must be positive, is {self.full_queue_s}")
        for name in ("min_prefill", "min_decode", "full_sequences"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, is {getattr(self, name)}")

    def fewest(self, role: Role) -> int:
        """Return how many pods of a role there are to be at least."""
        return self.min_prefill if role is Role.PREFILL else self.min_decode


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLoad:
    """One pod now. `queue_s` is what its waiting prompts take, `kv_share` the part of its KV held or promised.

    `is_settled` says that it is linked and does not drain.
    """

    pod_id: str
    role: Role
    queue_s: float
    kv_share: float
    num_sequences: int
    is_settled: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """A pod that had better have another role; `why` is for people."""

    pod_id: str
    role: Role
    why: str


class Rebalancer:
    """One cluster's, for one model. `begins_s`: it knows nothing of changes before, so none follows too soon."""

    def __init__(self, rules: Rules, begins_s: float) -> None:
        self._rules = rules
        self._last_change_s = begins_s
        self._known: dict[str, Role] = {}  # by pod id, when it was last seen
        self._short: Role | None = None
        self._since_s = begins_s

    def observe(self, pods: Sequence[PodLoad], now_s: float) -> Shift | None:
        """Take note of all pods at `now_s`; return the change to order, after which it counts as made."""
        self._note_changes(pods, now_s)
        short, why = self._wanted(pods)
        if short is not self._short:
            self._short, self._since_s = short, now_s
        if short is None or now_s - self._since_s < self._rules.hold_s:
            return None
        if now_s - self._last_change_s < self._rules.cooldown_s:
            return None
        giver = min((pod for pod in pods if pod.role is OTHER[short]), key=self._burden)
        self._last_change_s, self._short = now_s, None
        return Shift(pod_id=giver.pod_id, role=short, why=why)

    def pressure(self, pods: Sequence[PodLoad], role: Role) -> float:
        """Return the pressure of a role that has at least one pod."""
        own = [pod for pod in pods if pod.role is role]
        rules, count = self._rules, len(own)
        if role is Role.PREFILL:
            return sum(pod.queue_s for pod in own) / count / rules.full_queue_s
        sequences = sum(pod.num_sequences for pod in own) / count / rules.full_sequences
        return max(sum(pod.kv_share for pod in own) / count, sequences)

    def _note_changes(self, pods: Sequence[PodLoad], now_s: float) -> None:
        """Have whatever somebody else changed begin the time in which nothing else is."""
        now = {pod.pod_id: pod.role for pod in pods}
        if any(self._known.get(pod_id, role) is not role for pod_id, role in now.items()):
            self._last_change_s = now_s
        self._known |= now

    def _wanted(self, pods: Sequence[PodLoad]) -> tuple[Role | None, str]:
        """Return the role that is short while the other can spare a pod, and why; None where there is none."""
        counts = {role: sum(pod.role is role for pod in pods) for role in OTHER}
        if not all(counts.values()) or not all(pod.is_settled for pod in pods):
            return None, ""
        for role, other in OTHER.items():
            have, rest = self.pressure(pods, role), counts[other] - 1
            if have < self._rules.high or rest < self._rules.fewest(other):
                continue
            would_have = self.pressure(pods, other) * counts[other] / rest
            if would_have <= self._rules.low:
                return role, f"{role} pressure is {have:.2f}, and {other} pressure would be {would_have:.2f}"
        return None, ""

    def _burden(self, pod: PodLoad) -> tuple[float, float, int, str]:
        """Order pods by what it costs to drain them."""
        return pod.queue_s, pod.kv_share, pod.num_sequences, pod.pod_id

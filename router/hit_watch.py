"""Watches whether the prefix index ever helps, and names the likely cause when it should and does not.

A cluster whose processes hash differently, whose pods write to another Redis or whose callers salt every request works,
and computes everything anew: nobody notices. So prompts that begin as an earlier one did are counted; when MANY in a
row were found nowhere, that is an alarm. Prompts that never repeat raise none. Pure: time is a parameter, what pods say
is handed in. Invariant: memory is bounded; one hit ends the alarm.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

MANY = 50  # repeated beginnings in a row without a hit
MAX_BEGINNINGS = 4096
SETTLED_S = 5.0  # from a prompt to the entries of its blocks, at most


class Cause(StrEnum):
    """Why nothing is found, as far as a router can tell; the first that applies."""

    NO_ANSWER = "no_answer"
    UNLIKE_PODS = "unlike_pods"
    SALT = "salt"
    NOTHING_CACHED = "nothing_cached"
    NOTHING_PUBLISHED = "nothing_published"
    EVICTED = "evicted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """One lookup: the beginning of the prompt without and with its salt, and what came of it."""

    tokens: int  # hash of the tokens up to the first block that has a key
    first: bytes  # hash of that block
    is_answered: bool
    is_hit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of pods: those that are refused with why, and blocks that the others hold in their caches."""

    refused: Mapping[str, str]
    blocks_cached: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """Nothing is found, and why that may be."""

    repeats: int
    cause: Cause
    text: str


class HitWatch:
    """Counts one router's lookups."""

    def __init__(self) -> None:
        self._seen: OrderedDict[int, tuple[float, bytes]] = OrderedDict()  # tokens -> first seen, its salted hash
        self._ever_hit = False
        self._clear()

    def note(self, looked: Looked, now_s: float) -> None:
        """Count a lookup of a prompt that is long enough to be found."""
        if looked.is_hit:
            self._clear()
            self._ever_hit = True
        before = self._seen.get(looked.tokens)
        if before is None:
            self._seen[looked.tokens] = (now_s, looked.first)
            if len(self._seen) > MAX_BEGINNINGS:
                self._seen.popitem(last=False)
            return
        self._seen.move_to_end(looked.tokens)
        if looked.is_hit or now_s - before[0] < SETTLED_S:
            return
        self._repeats += 1
        self._unanswered += not looked.is_answered
        self._salted += looked.first != before[1]

    @property
    def repeats(self) -> int:
        """Prompts since the last hit that began as an earlier one did."""
        return self._repeats

    @property
    def is_alarmed(self) -> bool:
        """True while many prompts in a row began like an earlier one and were found nowhere."""
        return self._repeats >= MANY

    def alarm(self, evidence: Evidence) -> Alarm | None:
        """Return what is wrong, None while nothing seems to be."""
        if not self.is_alarmed:
            return None
        cause, text = self._cause(evidence)
        head = f"{self._repeats} prompts began as an earlier one did and none was found in the prefix index: "
        return Alarm(repeats=self._repeats, cause=cause, text=head + text)

    def _cause(self, evidence: Evidence) -> tuple[Cause, str]:
        if self._unanswered * 2 > self._repeats:
            return Cause.NO_ANSWER, f"{self._unanswered} lookups were not answered in time; is Redis slow or away?"
        if evidence.refused:
            told = "; ".join(f"{pod_id}: {why}" for pod_id, why in sorted(evidence.refused.items())[:3])
            return Cause.UNLIKE_PODS, f"pods that do not fit this router's hash version, block size or model: {told}"
        if self._salted * 2 > self._repeats:
            return Cause.SALT, f"{self._salted} of them had another cache salt or tenant than the earlier one"
        if evidence.blocks_cached == 0:
            return Cause.NOTHING_CACHED, "no linked pod has a block in its cache; are their pools too small?"
        if not self._ever_hit:
            return Cause.NOTHING_PUBLISHED, (
                f"pods hold {evidence.blocks_cached} blocks in their caches, and no entry ever led to one; do they "
                "write to this Redis, under this cluster name, and may they?"
            )
        return Cause.EVICTED, "pods publish, but what is asked for again is gone; are pools or Redis' memory too small?"

    def _clear(self) -> None:
        self._repeats = self._unanswered = self._salted = 0

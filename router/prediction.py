"""What a placement should come to, in seconds: the parts of TTFT, the gap between the first two tokens, TPOT.

Plain values. Each part is the expectation of one thing that a request waits for, so that a wrong one can be found.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum


class Way(StrEnum):
    """Where a prompt is computed: on the pod that decodes, or on a prefill pod."""

    LOCAL = "local"
    REMOTE = "remote"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The expected times of one request in one place; seconds."""

    queue_s: float = 0.0  # until its prompt begins to compute
    prefill_s: float = 0.0  # to compute what is not cached, or to fetch and compute the rest
    relay_s: float = 0.0  # from the first token's computation to the client
    gap_s: float = 0.0  # between token 0 and token 1: exposed transfer, decode admission, one step
    tpot_s: float = 0.0  # of the tokens after these

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.queue_s + self.prefill_s + self.relay_s


UNPREDICTED = Prediction()
PARTS = tuple(field.name for field in fields(Prediction))


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """What each part is multiplied with, because it used to take that much longer or less than said."""

    queue_s: float = 1.0
    prefill_s: float = 1.0
    relay_s: float = 1.0
    gap_s: float = 1.0
    tpot_s: float = 1.0


AS_SAID = Factors()


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """The factors of both ways."""

    local: Factors = AS_SAID
    remote: Factors = AS_SAID

    def of(self, way: Way) -> Factors:
        """Return the factors of one way."""
        return self.local if way is Way.LOCAL else self.remote


UNCORRECTED = Correction()


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """What requests are promised, in seconds; 0 is no promise."""

    ttft_s: float = 0.0
    gap_s: float = 0.0
    tpot_s: float = 0.0


NO_TARGETS = Targets()

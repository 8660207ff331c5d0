"""A policy's answer, and the protocol that every policy has: built in, or found by its entry point.

Pure. A policy is given views in the order of their pods' ids, so that what it answers does not depend on the order in
which pods were met.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pagewire.core.messages import Candidate
from pagewire.router.policies.arithmetic import predict
from pagewire.router.policies.view import Demand, PodView
from pagewire.router.prediction import UNPREDICTED, Prediction, Way

MAX_CANDIDATES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One way to place a request, `prefill` empty where the decode pod computes the prompt; and why not that way.

    `cached_tokens` are those of the pod that computes the prompt. The chosen one has no `reason`.
    """

    decode: str
    decode_role: str
    prefill: str = ""
    cached_tokens: int = 0
    decode_cached_tokens: int = 0
    prediction: Prediction = UNPREDICTED
    reason: str = ""

    @property
    def way(self) -> Way:
        """Where the prompt is computed."""
        return Way.REMOTE if self.prefill else Way.LOCAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The choice. Without candidates the decode pod prefills. `cached_tokens` is what the prompt should find cached.

    `way` is set where the policy settles it; None leaves it to the router's prefill mode. `options` are what was looked
    at, the chosen one first, where the demand wants that explained.
    """

    decode: str
    candidates: tuple[Candidate, ...] = ()
    cached_tokens: int = 0
    prediction: Prediction = UNPREDICTED
    way: Way | None = None
    options: tuple[Option, ...] = ()


class Policy(Protocol):
    """Chooses pods. `decode` is never empty; `prefill` is, where prompts are to be prefilled locally."""

    def place(self, demand: Demand, decode: Sequence[PodView], prefill: Sequence[PodView]) -> Placement:
        """Return the placement of one request."""
        ...


def placement(
    demand: Demand,
    decode: PodView,
    prefill: Sequence[PodView],
    *,
    way: Way | None = None,
    options: tuple[Option, ...] = (),
) -> Placement:
    """Return the placement on `decode` with the prompt on the first of `prefill` that takes it, and its prediction."""
    chosen = prefill[:MAX_CANDIDATES]
    builder = chosen[0] if chosen else decode
    return Placement(
        decode=decode.pod_id,
        candidates=tuple(
            Candidate(
                pod_id=pod.pod_id,
                address=pod.address,
                queue_s=pod.queue_s,
                cached_tokens=demand.cached.get(pod.pod_id, 0),
            )
            for pod in chosen
        ),
        cached_tokens=demand.cached.get(builder.pod_id, 0),
        prediction=predict(demand, decode, chosen[0] if chosen else None),
        way=way,
        options=options,
    )

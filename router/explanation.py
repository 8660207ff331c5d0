"""Why a request went where it went: the policy, what was promised, and every option beside it. Plain values."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from pagewire.router.policies.placement import Option
from pagewire.router.prediction import Targets


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The chosen option first, the others as soon as they would have been; sixteen at most."""

    policy: str
    targets: Targets
    options: tuple[Option, ...]


def explanation_object(explanation: Explanation) -> dict[str, Any]:
    """Return an explanation as JSON; times are predicted seconds, a target of 0 is none."""
    return {
        "policy": explanation.policy,
        "targets": dataclasses.asdict(explanation.targets),
        "candidates": [_candidate(option) for option in explanation.options],
    }


def _candidate(option: Option) -> dict[str, Any]:
    return {
        "way": option.way.value,
        "decode_pod": option.decode,
        "decode_role": option.decode_role,
        "prefill_pod": option.prefill,
        "cached_tokens": option.cached_tokens,
        "decode_cached_tokens": option.decode_cached_tokens,
        "predicted": {**dataclasses.asdict(option.prediction), "ttft_s": option.prediction.ttft_s},
        "chosen": not option.reason,
        "reason": option.reason,
    }

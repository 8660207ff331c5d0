"""The comparison of predicted seconds, case by case."""

from __future__ import annotations

import pytest

from pagewire.core.messages import Candidate, Load
from pagewire.decode_service.prefill_choice import prefers_local


def candidate(queue_s: float = 0.0, cached_tokens: int = 0) -> Candidate:
    return Candidate(pod_id="p", address="a", queue_s=queue_s, cached_tokens=cached_tokens)


@pytest.mark.parametrize(
    ("num_tokens", "cached_tokens", "candidates", "load", "expected"),
    [
        # nothing measured yet: do as the placement says
        (1000, 0, (candidate(),), Load(), False),
        # both idle, nothing cached: nobody is disturbed here, and no bytes travel
        (1000, 0, (candidate(),), Load(prefill_s_per_token=1e-3), True),
        # one running sequence would stall for the whole prompt
        (1000, 0, (candidate(),), Load(prefill_s_per_token=1e-3, num_running=1), False),
        # ... but not for a prompt that is mostly cached here
        (1000, 990, (candidate(),), Load(prefill_s_per_token=1e-3, num_running=4), True),
        # the prefill pod is busy for longer than the stall
        (1000, 0, (candidate(queue_s=2.0),), Load(prefill_s_per_token=1e-3, num_running=1), True),
        # the best candidate counts, not the first
        (1000, 0, (candidate(queue_s=2.0), candidate(cached_tokens=900)), Load(prefill_s_per_token=1e-3), False),
        # prompts wait here already
        (1000, 0, (candidate(),), Load(prefill_s_per_token=1e-3, waiting_tokens=500), False),
    ],
)
def test_where_the_prompt_is_ready_sooner(
    num_tokens: int, cached_tokens: int, candidates: tuple[Candidate, ...], load: Load, expected: bool
) -> None:
    assert prefers_local(num_tokens, cached_tokens, candidates, load) is expected

"""Copying or computing anew: whichever is measured to be cheaper, and what is not measured is copied."""

from __future__ import annotations

import pytest

from pagewire.engine.preemption import Preemption, PreemptionMode
from pagewire.engine.step_meter import StepMeter


def measured(prefill_s: float, out_s: float, in_s: float) -> StepMeter:
    """Return a meter that knows seconds per token, and per block out and in."""
    meter = StepMeter()
    meter.prefill_s_per_token, meter.copy_out_s_per_block, meter.copy_in_s_per_block = prefill_s, out_s, in_s
    return meter


@pytest.mark.parametrize(
    ("prefill_s", "out_s", "in_s", "swaps"),
    [
        # 32 tokens in 2 blocks: 32 x prefill against 2 x (out + in)
        (0.125, 1.0, 1.0, True),  # 4 and 4
        (0.125, 1.0, 1.5, False),  # 4 and 5
        (0.125, 1.5, 1.0, False),
        (0.125, 0.5, 1.0, True),  # 4 and 3
        (0.0, 9.0, 9.0, True),  # nothing was prefilled yet
        (0.125, 0.0, 0.0, True),  # nothing was copied yet
    ],
)
def test_whichever_is_cheaper(prefill_s: float, out_s: float, in_s: float, swaps: bool) -> None:
    preemption = Preemption(meter=measured(prefill_s, out_s, in_s))
    assert preemption.swaps(32, 2, 2) is swaps
    assert not preemption.swaps(32, 2, 1), "it does not fit host memory whole"


def test_one_of_the_two_always() -> None:
    dear, cheap = measured(0.001, 9.0, 9.0), measured(9.0, 0.001, 0.001)
    swap, recompute = Preemption(PreemptionMode.SWAP, dear), Preemption(PreemptionMode.RECOMPUTE, cheap)
    assert [swap.swaps(32, 2, slots) for slots in (0, 1, 2)] == [False, True, True]
    assert [recompute.swaps(32, 2, slots) for slots in (0, 1, 2)] == [False, False, False]


def test_the_cheaper_is_taken_unless_told_otherwise() -> None:
    assert Preemption().mode is PreemptionMode.AUTO
    assert Preemption().swaps(32, 2, 2)

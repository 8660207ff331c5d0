"""Who may be placed on, and what is believed of pods that have measured nothing yet."""

from __future__ import annotations

import pytest

from pagewire.core.load import Load
from pagewire.router.policies.view import PRIORS
from pagewire.router.roster import WEIGHT, Roster


def test_what_others_measured_is_believed_and_newer_figures_move_it_a_little() -> None:
    roster = Roster()
    assert roster.priors == PRIORS
    roster.learn(Load(prefill_s_per_token=0.5))
    assert (roster.priors.token_s, roster.priors.step_s) == (0.5, PRIORS.step_s)
    roster.learn(Load(prefill_s_per_token=0.1, step_s=0.02, link_rtt_s=0.003))
    assert roster.priors.token_s == pytest.approx(0.5 - WEIGHT * 0.4)
    assert (roster.priors.step_s, roster.priors.rtt_s) == (0.02, 0.003)
    roster.learn(Load())
    assert roster.priors.token_s == pytest.approx(0.5 - WEIGHT * 0.4)
    for _ in range(200):
        roster.learn(Load(prefill_s_per_token=0.1))
    assert roster.priors.token_s == pytest.approx(0.1)

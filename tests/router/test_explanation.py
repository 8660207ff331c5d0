"""Why a request went where it went, as JSON."""

from __future__ import annotations

from pagewire.router.explanation import Explanation, explanation_object
from pagewire.router.policies.placement import Option
from pagewire.router.prediction import Prediction, Targets


def test_an_explanation_says_of_each_option_what_it_would_have_been_and_which_was_chosen() -> None:
    chosen = Option(
        decode="d1", decode_role="decode", prefill="p1", cached_tokens=64, decode_cached_tokens=32,
        prediction=Prediction(queue_s=0.5, prefill_s=0.25, relay_s=0.125, gap_s=2.0, tpot_s=4.0),
    )  # fmt: skip
    other = Option(decode="d2", decode_role="colocated", reason="it is late")
    targets = Targets(ttft_s=1.0, tpot_s=0.5)
    nothing = {"queue_s": 0.0, "prefill_s": 0.0, "relay_s": 0.0, "gap_s": 0.0, "tpot_s": 0.0, "ttft_s": 0.0}
    assert explanation_object(Explanation(policy="slo", targets=targets, options=(chosen, other))) == {
        "policy": "slo",
        "targets": {"ttft_s": 1.0, "gap_s": 0.0, "tpot_s": 0.5},
        "candidates": [
            {
                "way": "remote", "decode_pod": "d1", "decode_role": "decode", "prefill_pod": "p1",
                "cached_tokens": 64, "decode_cached_tokens": 32,
                "predicted": {
                    "queue_s": 0.5, "prefill_s": 0.25, "relay_s": 0.125, "gap_s": 2.0, "tpot_s": 4.0, "ttft_s": 0.875,
                },
                "chosen": True, "reason": "",
            },
            {
                "way": "local", "decode_pod": "d2", "decode_role": "colocated", "prefill_pod": "",
                "cached_tokens": 0, "decode_cached_tokens": 0,
                "predicted": nothing,
                "chosen": False, "reason": "it is late",
            },
        ],
    }  # fmt: skip

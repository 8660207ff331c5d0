"""Counters of services say in /metrics what the guide says of them."""

from __future__ import annotations

from metric_names import listed

from pagewire.serving.counter_texts import COUNTED


def test_the_guide_has_the_same_words() -> None:
    rows = listed()
    assert {name: rows[f"pagewire_{name}_total"].meaning for name in COUNTED} == COUNTED

"""The table of faults in docs/reliability.md is that of its figures: every fault has a row, none broke a promise."""

from __future__ import annotations

import json

import chaos_namespace
import chaos_network
import chaos_resources
import chaos_signals
import chaos_table


def test_the_page_has_the_figures() -> None:
    text = chaos_table.PAGE.read_text()
    assert text == chaos_table.page(text, json.loads(chaos_table.FIGURES.read_text()))


def test_every_fault_was_taken_and_no_promise_is_broken() -> None:
    rows = json.loads(chaos_table.FIGURES.read_text())["rows"]
    kinds = (chaos_signals, chaos_resources, chaos_network, chaos_namespace)
    assert {row["fault"] for row in rows} == {fault.name for kind in kinds for fault in kind.faults()}
    assert [row["fault"] for row in rows if row["wrong"] or row["leaked"] or row["broken_promises"]] == []

"""The table of faults in docs/reliability.md is that of its figures, in which no promise is broken."""

from __future__ import annotations

import json

import chaos_table


def test_the_page_has_the_figures() -> None:
    text = chaos_table.PAGE.read_text()
    assert text == chaos_table.page(text, json.loads(chaos_table.FIGURES.read_text()))


def test_no_token_was_wrong_and_no_block_leaked() -> None:
    rows = json.loads(chaos_table.FIGURES.read_text())["rows"]
    assert rows
    assert [row["fault"] for row in rows if row["wrong"] or row["leaked"]] == []

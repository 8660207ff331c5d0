"""What is told where no terminal is: each thing when it begins, and by tenths how far it is."""

from __future__ import annotations

import io
import sys

import pytest

from pagewire.cli import progress


def test_lines_tell_each_thing_once_and_then_by_tenths(monkeypatch: pytest.MonkeyPatch) -> None:
    told = io.StringIO()
    monkeypatch.setattr(sys, "stderr", told)
    with progress.bar("m") as report:
        report("loading", 0.0)
        for number in range(101):
            report("answering", number / 100)
        report("loading", 0.05)
    tenths = [f"m: answering ({10 * tenth}%)" for tenth in range(11)]
    assert told.getvalue().splitlines() == ["m: loading (0%)", *tenths]

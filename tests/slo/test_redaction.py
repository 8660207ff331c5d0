"""What URLs say of users is not written down."""

from __future__ import annotations

import pytest

from pagewire.slo.figures.redaction import bare


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("http://host/a@b", "http://host/a@b"),
        ("http://bob:hunter2@host/a@b", "http://...@host/a@b"),
        ("redis://:p@h redis://q@i", "redis://...@h redis://...@i"),
        ('["redis=redis://:p@h", "a@b"]', '["redis=redis://...@h", "a@b"]'),
        ("http://host?a@b http://host#a@b", "http://host?a@b http://host#a@b"),
        ("bob@host", "bob@host"),
    ],
)
def test_names_and_passwords_are_left_out(text: str, wanted: str) -> None:
    assert bare(text) == wanted

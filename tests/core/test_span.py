"""Spans: how many a tree has, and which of a timeline's moments they are made of."""

from __future__ import annotations

from pagewire.core.span import Mark, Span, between, mark
from pagewire.core.timeline import Phase, Stamp, Timeline

TIMELINE = Timeline(process="p", stamps=(Stamp(Phase.RECEIVED, 1.0), Stamp(Phase.TOKENIZED, 3.5)))


def test_a_tree_is_as_long_as_it_has_spans() -> None:
    leaf = Span(name="leaf", start_s=0.0, end_s=1.0)
    branch = Span(name="branch", start_s=0.0, end_s=1.0, parts=(leaf, leaf))
    assert [len(leaf), len(branch), len(Span(name="root", start_s=0.0, end_s=1.0, parts=(branch, leaf)))] == [1, 3, 5]


def test_a_span_lies_between_two_stamps_that_were_made() -> None:
    assert list(between("a", TIMELINE, Phase.RECEIVED, Phase.TOKENIZED)) == [Span(name="a", start_s=1.0, end_s=3.5)]
    assert list(between("a", TIMELINE, Phase.RECEIVED, Phase.PLACED)) == []
    assert list(between("a", TIMELINE, Phase.PLACED, Phase.TOKENIZED)) == []


def test_a_mark_is_a_stamp_that_was_made() -> None:
    assert list(mark("m", TIMELINE, Phase.TOKENIZED)) == [Mark(name="m", at_s=3.5)]
    assert list(mark("m", TIMELINE, Phase.PLACED)) == []

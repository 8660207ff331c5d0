"""Figures for people: a run's, and columns of any. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pagewire.slo.figures.record import NAMES
from pagewire.slo.figures.statistics import CONFIDENCE
from pagewire.slo.figures.summary import Attainment, Summary

COLUMNS = ("mean", "p50", "p90", "p95", "p99", "max")


def table(summary: Summary) -> Iterator[str]:
    """Yield the lines of a table: measures in milliseconds, then what was met and how much was done."""
    yield f"{'ms':<18}" + "".join(f"{name:>10}" for name in COLUMNS) + f"{'count':>9}"
    for measure, name in NAMES.items():
        if (told := summary.measures[measure]) is not None:
            cells = "".join(f"{getattr(told, column):>10.1f}" for column in COLUMNS)
            yield f"{name:<18}{cells}{told.count:>9}"
    yield ""
    for measure, attained in summary.attained.items():
        bound_ms = 1e3 * summary.objectives.bounds_s[measure]
        yield _row(f"{NAMES[measure]} <= {bound_ms:g} ms", _share(attained))
    failed = sum(summary.failures.values())
    yield _row("all met" if summary.attained else "answered", _share(summary.all_attained))
    yield _row("goodput", f"{rate(summary.goodput_per_s)} requests/s of {rate(summary.offered_per_s)} that came")
    spans = f"{summary.window.length_s:.1f} s, answered in {summary.answering_s:.1f} s"
    yield _row("requests", f"{summary.requests} in {spans}, {failed} failed")
    yield _row("output", f"{summary.output_tokens} tokens, {rate(summary.output_tokens_per_s, '.1f')}/s")
    cached = "" if summary.cached_share is None else f", {summary.cached_share:.1%} cached"
    yield _row("input", f"{summary.input_tokens} tokens{cached}")


def rate(per_s: float | None, spec: str = ".3g") -> str:
    """Return a rate as people read it, "-" where there is none."""
    return "-" if per_s is None else format(per_s, spec)


def failures(summary: Summary, details: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each cause that requests failed of; `details` has what one of them said, by cause."""
    for error, count in summary.failures.items():
        detail = details.get(error, "")
        yield f"{count} requests failed: {error}" + (f": {detail}" if detail else "")


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a line for each row of cells, one at least, its columns below one another."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


def _share(attained: Attainment) -> str:
    sure = f"{CONFIDENCE:.0%} sure: {attained.interval}"
    return f"{attained.share:.1%}  ({sure}; {attained.good} of {attained.total})"


def _row(name: str, value: str) -> str:
    return f"{name:<22}{value}"

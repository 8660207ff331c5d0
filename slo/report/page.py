"""The page of a report: everything in one file that needs no other, light or dark as its reader has it.

Built of elements, so that nothing that a run said can become markup. Without scripts. Invariant: it names no address
that a browser would ask.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, tostring

from pagewire.slo.figures.experiment import Experiment, Trial
from pagewire.slo.figures.table import rate
from pagewire.slo.report.figure import Cell, Figure, milliseconds, percent
from pagewire.slo.report.sheet import svg, variable
from pagewire.slo.report.style import DARK, INK

STYLE = Path(__file__).with_name("page.css")
COLORS = {
    "ground": ("#f4f5f8", "#12151b"), "card": ("#ffffff", "#1b1f28"), "line": ("#d5d9e0", "#363d4a"),
    "ink": (INK, DARK[INK]), "soft": ("#566072", "#a6afbf"), "accent": ("#1f5fd0", "#84b0ff"),
}  # fmt: skip
TOLD = ("model", "machine", "versions", "seed", "command", "workload")


def page(experiment: Experiment, said: Sequence[str], figures: Sequence[Figure]) -> str:
    """Return the page: `said` is the verdict, its first sentence the headline."""
    sections = [
        _verdict(experiment, said),
        _element("nav", _list(figures), aria_label="Figures"),
        *map(_section, figures),
        _runs(experiment),
        _made_of(experiment),
    ]
    root = _element(
        "html",
        _element(
            "head",
            _element("meta", charset="utf-8"),
            _element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            _element("meta", name="color-scheme", content="light dark"),
            _element("title", experiment.title),
            _element("style", f"{_colors()}\n{STYLE.read_text(encoding='utf-8')}"),
        ),
        _element(
            "body",
            _element("a", "To the verdict", href="#verdict", class_="skip"),
            _element("main", _element("h1", experiment.title), *sections),
        ),
        lang="en",
    )
    return "<!DOCTYPE html>\n" + tostring(root, encoding="unicode", method="html") + "\n"


def _colors() -> str:
    light = [f"--{name}: {pair[0]};" for name, pair in COLORS.items()] + [f"{variable(each)}: {each};" for each in DARK]
    dark = [f"--{name}: {pair[1]};" for name, pair in COLORS.items()]
    dark += [f"{variable(each)}: {other};" for each, other in DARK.items()]
    return (
        f":root {{ color-scheme: light dark; {' '.join(light)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {' '.join(dark)} }} }}"
    )


def _verdict(experiment: Experiment, said: Sequence[str]) -> Element:
    warnings = dict.fromkeys(
        f"{experiment.name_of(trial)}: {warning}" for trial in experiment.trials for warning in _warnings(trial)
    )
    return _element(
        "section",
        _element("h2", "Verdict"),
        *(_element("p", sentence) for sentence in said),
        *(_element("p", warning, class_="warning") for warning in warnings),
        id="verdict", class_="verdict", tabindex="-1",
    )  # fmt: skip


def _warnings(trial: Trial) -> list[str]:
    told = trial.about.get("warnings")
    return [str(each) for each in told] if isinstance(told, list) else []


def _list(figures: Sequence[Figure]) -> Element:
    links = [_element("a", figure.title, href=f"#{figure.slug}") for figure in figures]
    links += [_element("a", "Runs", href="#runs"), _element("a", "How this was made", href="#made-of")]
    return _element("ul", *(_element("li", link) for link in links))


def _section(figure: Figure) -> Element:
    return _element(
        "section",
        _element("h2", figure.title),
        _element(
            "figure",
            _wide(svg(figure), f"Picture: {figure.title}"),
            _element(
                "figcaption",
                _element("p", _element("strong", figure.says)),
                _element("p", figure.definition),
                *(_element("p", note) for note in figure.notes),
            ),
        ),
        _element("details", _element("summary", "The numbers"), _table(figure.title, figure.columns, figure.rows)),
        id=figure.slug,
    )


def _runs(experiment: Experiment) -> Element:
    columns = (
        "run", "requests", "failed", "rate /s", "window s", "attainment", "from", "to", "good /s", "TTFT p50 ms",
        "TTFT p95 ms", "TPOT p50 ms", "TPOT p95 ms", "tokens out /s",
    )  # fmt: skip
    return _element(
        "section",
        _element("h2", "Runs"),
        _element(
            "p",
            f"Objectives: {'; '.join(dict.fromkeys(_objectives(each) for each in experiment.trials))}. "
            "Good and tokens out per second: requests that met all of them, and tokens of answers, by the time from "
            "the beginning of the window until it was over and the last of its requests as well.",
            class_="soft",
        ),
        _table("Every run", columns, [_run_row(experiment, each) for each in experiment.trials]),
        id="runs",
    )


def _objectives(trial: Trial) -> str:
    return str(trial.summary.objectives) or "none: good is what was answered"


def _run_row(experiment: Experiment, trial: Trial) -> Sequence[Cell]:
    told, interval = trial.summary, trial.summary.all_attained.interval
    spans = [
        milliseconds(getattr(each, column) / 1e3) if (each := told.measures[measure]) is not None else ""
        for measure in ("ttft", "tpot")
        for column in ("p50", "p95")
    ]
    return (
        experiment.name_of(trial), told.requests, sum(told.failures.values()), f"{trial.rate_per_s:.3g}",
        f"{told.window.from_s:g} to {told.window.until_s:g}", percent(told.all_attained.share), percent(interval.low),
        percent(interval.high), rate(told.goodput_per_s), *spans, rate(told.output_tokens_per_s, ".1f"),
    )  # fmt: skip


def _made_of(experiment: Experiment) -> Element:
    """Return what the figures must be read with, each value once: of the whole, then of the runs."""
    rows: list[Element] = []
    for name, value in experiment.about.items():
        rows += _told(name, [value])
    for name in TOLD:
        values = [trial.about[name] for trial in experiment.trials if name in trial.about]
        rows += _told(f"{name} of the runs" if name in experiment.about else name, values)
    told = _element("dl", *rows) if rows else _element("p", "Nothing was told.")
    return _element("section", _element("h2", "How this was made"), told, id="made-of")


def _told(name: str, values: Iterable[Any]) -> list[Element]:
    texts = dict.fromkeys(_text(value) for value in values if value not in (None, "", {}))
    if not texts:
        return []
    is_code = name.startswith("command")
    return [_element("dt", name), *(_element("dd", _element("code", each) if is_code else each) for each in texts)]


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {each}" for name, each in value.items() if each not in ("", None))
    return value if isinstance(value, str) else json.dumps(value)


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Element:
    head = _element("tr", *(_element("th", column, scope="col") for column in columns))
    body = [
        _element("tr", _element("th", _cell(first), scope="row"), *(_element("td", _cell(each)) for each in rest))
        for first, *rest in rows
    ]
    return _wide(
        _element("table", _element("caption", title), _element("thead", head), _element("tbody", *body)),
        f"Table: {title}",
    )


def _cell(value: Cell) -> str:
    return "" if value is None else str(value)


def _wide(content: Element, label: str) -> Element:
    """Return it in a box that scrolls sideways, by keyboard too, where it is wider than the page."""
    return _element("div", content, class_="wide", tabindex="0", role="region", aria_label=label)


def _element(tag: str, *content: Element | str, **attributes: str) -> Element:
    made = Element(tag, {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()})
    for each in content:
        if isinstance(each, str):
            made.text = (made.text or "") + each
        else:
            made.append(each)
    return made

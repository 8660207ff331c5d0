"""Which metrics a process shows, which the guide lists, and which an expression asks for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser
from prometheus_client.parser import text_string_to_metric_families
from source_tree import ROOT

GUIDE = ROOT / "docs" / "metrics.md"
ROW = re.compile(r"^\| `([a-z0-9_:]+)` \| (\w+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]*) \|$")
SUFFIXES = ("_bucket", "_sum", "_count")
CERTIFICATES = "certificate_expiration_timestamp_seconds"  # how the names end that are shown with TLS alone


@dataclass(frozen=True, slots=True)
class Row:
    """A metric of the guide, by the name that one writes in an expression, without a histogram's suffixes."""

    kind: str
    labels: frozenset[str]
    shown_by: str
    unit: str
    meaning: str


def listed(guide: Path = GUIDE) -> dict[str, Row]:
    """Return the rows of the guide's table."""
    rows: dict[str, Row] = {}
    for line in guide.read_text().splitlines():
        if found := ROW.match(line):
            name, kind, unit, labels, shown_by, meaning = found.groups()
            assert name not in rows, f"{name} is listed twice"
            names = frozenset(re.findall(r"\w+", labels))
            rows[name] = Row(kind, names, shown_by.strip(), unit.strip(), meaning.strip())
    return rows


def exposed(text: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Return kind and labels of each metric of an exposition; a family without a sample has no labels."""
    found: dict[str, tuple[str, frozenset[str]]] = {}
    for family in text_string_to_metric_families(text):
        if family.name.endswith("_created"):
            continue  # when a counter began: the client library's own
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels if label != "le"}
        found[name] = (family.type, frozenset(labels))
    return found


def names_in(expression: str) -> set[str]:
    """Return the metrics that an expression asks for; raises ValueError for what is no PromQL."""
    return {name for name, _ in matchers_in(expression)}


def matchers_in(expression: str) -> list[tuple[str, frozenset[str]]]:
    """Return each metric that an expression asks for and the labels that it selects by; raises ValueError likewise."""
    return list(_selectors(promql_parser.parse(expression)))


def kept_by(expression: str) -> list[set[str]]:
    """Return the labels that each aggregate of an expression keeps, from left to right; raises ValueError likewise."""
    return list(_aggregates(promql_parser.parse(expression)))


def _aggregates(node: Any) -> Iterator[set[str]]:
    match node:
        case promql_parser.AggregateExpr():
            yield set(node.modifier.labels) if node.modifier is not None else set()
            yield from _aggregates(node.expr)
        case promql_parser.Call():
            for argument in node.args:
                yield from _aggregates(argument)
        case promql_parser.BinaryExpr():
            yield from _aggregates(node.lhs)
            yield from _aggregates(node.rhs)
        case promql_parser.ParenExpr() | promql_parser.SubqueryExpr() | promql_parser.UnaryExpr():
            yield from _aggregates(node.expr)
        case _:
            return


def _selectors(node: Any) -> Iterator[tuple[str, frozenset[str]]]:
    match node:
        case promql_parser.VectorSelector():
            assert node.name, "a selector without a name"
            yield node.name, frozenset(matcher.name for matcher in node.matchers.matchers)
        case promql_parser.MatrixSelector():
            yield from _selectors(node.vector_selector)
        case promql_parser.Call():
            for argument in node.args:
                yield from _selectors(argument)
        case promql_parser.BinaryExpr():
            yield from _selectors(node.lhs)
            yield from _selectors(node.rhs)
        case promql_parser.NumberLiteral() | promql_parser.StringLiteral():
            return
        case _:  # aggregates, parentheses, subqueries, signs
            yield from _selectors(node.expr)


def family_of(name: str, known: Iterable[str]) -> str:
    """Return the metric that a name belongs to: its own, or a histogram's."""
    if name in known:
        return name
    return next((name.removesuffix(each) for each in SUFFIXES if name.endswith(each)), name)

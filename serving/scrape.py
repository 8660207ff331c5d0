"""What counters of pods say, read from the text of their /metrics by another process: by how much each rose. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

PREFIX = "pagewire_"
WHOSE = ("pod", "role")  # labels that every sample of a pod has


def counters(text: str) -> dict[str, float]:
    """Return the values of a pod's own counters; `name/label` where one has a label of its own."""
    return {
        "/".join([sample.name, *(value for name, value in sample.labels.items() if name not in WHOSE)]): sample.value
        for family in text_string_to_metric_families(text)
        if family.name.startswith(PREFIX) and family.type == "counter"
        for sample in family.samples
        if sample.name.endswith("_total")
    }


def risen(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return by how much those rose that did."""
    found = {name: value - before.get(name, 0.0) for name, value in after.items()}
    return {name: value for name, value in found.items() if value > 0}

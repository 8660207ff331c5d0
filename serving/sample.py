"""One value to show in /metrics, how several of a name become a family, and how a distribution becomes a histogram."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from pagewire.core.distribution import Distribution


class Sample(NamedTuple):
    """A value with labels of its own, of a gauge or, where it `is_total`, of a counter; `text` says what it is."""

    name: str
    labels: Mapping[str, str]
    value: float
    text: str = ""
    is_total: bool = False


def families(samples: Iterable[Sample], prefix: str, common: Mapping[str, str]) -> Iterator[Metric]:
    """Yield a family for each name among `samples`, `common` labels before their own."""
    found: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
    for sample in samples:
        family = found.get(sample.name)
        if family is None:
            kind = CounterMetricFamily if sample.is_total else GaugeMetricFamily
            text = sample.text or sample.name.replace("_", " ")
            family = found[sample.name] = kind(prefix + sample.name, text, labels=[*common, *sample.labels])
        family.add_metric([*common.values(), *sample.labels.values()], float(sample.value))
    yield from found.values()


def add_distribution(family: HistogramMetricFamily, labels: Sequence[str], distribution: Distribution) -> None:
    """Add a histogram with these label values to its family."""
    buckets = [(str(floatToGoString(bound)), float(count)) for bound, count in distribution.buckets()]  # type: ignore[no-untyped-call]
    family.add_metric(labels, buckets, distribution.total)

"""What a sweep is told: its workload, its objectives, the clusters and the rates. Knows names and units, no cluster."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from pagewire.core.config import ConfigError, setting
from pagewire.slo.figures.objectives import parse_objectives
from pagewire.slo.figures.redaction import bare
from pagewire.slo.load.pieces import parse_vocabulary
from pagewire.slo.sweeps.bracket import Bracketing, Listed, Search
from pagewire.slo.sweeps.configuration import Configuration, configurations
from pagewire.slo.workloads.workload_config import WorkloadConfig

DEFAULT_FIRST_RATE = 1.0
LEAST_REQUESTS = 10  # to be expected of a probe: chance may leave none of fewer
# What may be another when a sweep is resumed: probes that were made mean the same.
FREE = (
    "title", "grid", "attainment", "rate", "rates", "lowest_rate", "highest_rate", "precision", "repeats",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepConfig(WorkloadConfig):
    """A workload, with the clusters that it is played against and what is asked of them.

    The workload's `rate` is the first that is tried. Its seed is that of the sweep: each probe has one of its own.
    """

    rate: float = setting(0.0, help="first rate that is tried, 0 for 1", unit="1/s")
    duration_s: float = setting(60.0, help="how long requests come in each probe", unit="s")
    warmup_s: float = setting(10.0, help="how much of a probe's beginning does not count", unit="s")
    title: str = setting("", help="what the sweep is called")
    slo: str = setting("", help="what a good request meets: ttft=500ms,tpot=50ms,e2e=10s")
    attainment: tuple[float, ...] = setting((0.9, 0.95, 0.99), help="shares of good requests to find the rates of")
    grid: tuple[str, ...] = setting(
        (), help="settings of `pagewire up` that vary, all combinations: pods=1P:1D,2 colocated or chunk_size=64,256"
    )
    common: tuple[str, ...] = setting((), help="settings of `pagewire up` that all clusters have: dtype=float32")
    rates: tuple[float, ...] = setting((), help="just these rates, and no search", unit="1/s")
    lowest_rate: float = setting(0.2, help="below which no rate is tried", unit="1/s")
    highest_rate: float = setting(1000.0, help="above which no rate is tried", unit="1/s")
    precision: float = setting(0.1, help="how close the rates end that meet and that miss an attainment; 0.1: a tenth")
    repeats: int = setting(2, help="probes at one rate at most, pooled, while their interval straddles an attainment")
    fresh: bool = setting(False, help="a new cluster for every probe, not just for every configuration")
    api: Literal["completions", "chat"] = setting("completions", help="token ids or texts, or messages of a chat")
    timeout_s: float = setting(600.0, help="of one request", unit="s")
    token_ids: str = setting("100-29999", help="ids that prompts are made of, ordinary ones of the model: LOW-HIGH")

    def __post_init__(self) -> None:
        """Refuse what is no sweep with ConfigError."""
        WorkloadConfig.__post_init__(self)
        if self.concurrency:
            raise ConfigError("a sweep is of rates: a closed loop has none")
        if not self.duration_s:
            raise ConfigError("duration_s is 0: requests by number alone come in no time at a high rate")
        if self.requests:
            raise ConfigError(f"requests is {self.requests}: they come in no time at a high rate; say duration_s")
        if not self.timeout_s > 0:
            raise ConfigError(f"timeout_s is {self.timeout_s:g}, not above 0")
        try:
            self.configurations()
            self.search()
            parse_objectives(self.slo)
            parse_vocabulary(self.token_ids)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        least, counted_s = min(self.rates, default=self.lowest_rate), self.duration_s - self.warmup_s
        if least * counted_s < LEAST_REQUESTS:
            raise ConfigError(
                f"a probe at {least:g}/s would see about {least * counted_s:.0f} requests in {counted_s:g} s, "
                f"not {LEAST_REQUESTS}: raise duration_s, or {'the rate' if self.rates else 'lowest_rate'}"
            )

    def configurations(self) -> tuple[Configuration, ...]:
        """Return the clusters, in the order in which they are tried."""
        return configurations(self.common, self.grid)

    def search(self) -> Search:
        """Return who says which rates are tried."""
        if self.rates:
            return Listed(targets=self.attainment, rates=self.rates, repeats=self.repeats)
        return Bracketing(
            targets=self.attainment, first=self.rate or DEFAULT_FIRST_RATE, lowest=self.lowest_rate,
            highest=self.highest_rate, precision=self.precision, repeats=self.repeats,
        )  # fmt: skip


def differences(config: SweepConfig, before: dict[str, Any]) -> list[str]:
    """Return what keeps `config` from going on with a sweep that was told `before`, as it was written."""
    told = json.loads(bare(json.dumps(config.as_json())))
    return [
        f"{name} was {before.get(name)!r} and is {value!r}"
        for name, value in told.items()
        if name not in FREE and before.get(name) != value
    ]

"""What a workload is told to be, for every command of the laboratory. Knows names and units, no recording."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

from pagewire.core.config import ConfigError, setting
from pagewire.slo.workloads.made_up import Lengths, parse_lengths

MADE_UP = ("input", "output", "prefix_share", "prefix_depth", "prefix_branches", "turns", "later_input")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadConfig:
    """A recording, or a made-up workload; its times, its size and its seed."""

    trace: str = setting("", help="recording to play, FILE or sample:FORMAT; unset, requests are made up")
    trace_format: Literal["auto", "mooncake", "azure", "burstgpt", "sharegpt"] = setting(
        "auto", help="format of the recording; auto: by its ending and first line"
    )
    arrivals: Literal["auto", "constant", "poisson", "gamma", "recorded"] = setting(
        "auto", help="when requests come; auto: as recorded where a recording has times, else poisson"
    )
    rate: float = setting(
        0.0, help="arrivals a second on average, each a request or a session; 0: as recorded, or 1", unit="1/s"
    )
    burst_cv: float = setting(2.0, help="coefficient of variation of the gaps of gamma arrivals; 1 is poisson")
    concurrency: int = setting(0, help="users of a closed loop, each with one request at a time; 0: open loop")
    requests: int = setting(
        0, help="arrivals at most; 0: the whole recording, as many as come in the duration, or 100, of a plan 400"
    )
    duration_s: float = setting(0.0, help="how long requests come, 0 for as long as there are any", unit="s")
    warmup_s: float = setting(0.0, help="how much of the beginning does not count", unit="s")
    input: Lengths = setting(
        Lengths(512, 512), help="prompt of N or LOW-HIGH tokens", unit="tokens", parse=parse_lengths
    )
    output: Lengths = setting(
        Lengths(64, 64), help="answer of N or LOW-HIGH tokens", unit="tokens", parse=parse_lengths
    )
    prefix_share: float = setting(0.0, help="share of a prompt that is common, 0 to below 1")
    prefix_depth: int = setting(1, help="levels of the tree that common prefixes are ways in")
    prefix_branches: int = setting(1, help="ways to go on at each level of that tree")
    turns: Lengths = setting(Lengths(1, 1), help="turns of a session, N or LOW-HIGH", parse=parse_lengths)
    later_input: Lengths = setting(
        Lengths(64, 64), help="tokens that a later turn adds, N or LOW-HIGH", unit="tokens", parse=parse_lengths
    )
    think_s: float = setting(0.0, help="mean time between an answer and the next turn", unit="s")
    length_scale: float = setting(1.0, help="factor on all lengths, prompts and answers; what is shared stays so")
    seed: int = setting(0, help="of everything that is drawn")

    def __post_init__(self) -> None:
        """Refuse what is no workload with ConfigError."""
        for name in ("rate", "concurrency", "requests", "duration_s", "warmup_s", "think_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}, not 0 or more, and finite")
        if not 0 < self.length_scale < math.inf:
            raise ConfigError(f"length_scale is {self.length_scale}, not above 0, and finite")
        if self.arrivals == "recorded" and not self.trace:
            raise ConfigError("arrivals is recorded, and there is no trace")
        if self.concurrency and (self.rate or self.arrivals != "auto"):
            raise ConfigError("concurrency is a closed loop, which has no rate and no arrivals")
        self._refuse_what_cannot_apply()
        if self.duration_s and self.warmup_s >= self.duration_s:
            raise ConfigError(f"warmup_s is {self.warmup_s:g}, not below duration_s, {self.duration_s:g}")

    def _refuse_what_cannot_apply(self) -> None:
        """Refuse what was given in vain; not what a share of 0 or one turn leaves idle: these are baselines."""
        known = WorkloadConfig.__dataclass_fields__
        for names, applies, why in (
            (MADE_UP, not self.trace, "of requests that are made up, and these come from a trace"),
            (("trace_format",), self.trace, "of a trace, and there is none"),
            (("burst_cv",), self.arrivals == "gamma", f"of gamma arrivals, and arrivals is {self.arrivals}"),
        ):
            for name in names:
                if not applies and getattr(self, name) != known[name].default:
                    raise ConfigError(f"{name} is {why}")

    def as_json(self) -> dict[str, Any]:
        """Return the settings by name, as a file would say them, with those that a subclass adds."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [*map(_plain, value)]
    return value if isinstance(value, int | float | str) else str(value)

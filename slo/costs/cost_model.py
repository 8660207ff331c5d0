"""What a cluster's steps, links and frames take, as a small value in a JSON file. Pure.

    step = overhead + max over lines of (a + b prefill tokens + c decodes + d prefill pairs + e decode pairs)

A pair is a token and one that it looks at. A law that was measured has one line; a roofline has two, of memory and of
arithmetic, the slower of which a step takes. Invariant: no cost is negative, so no simulated step ends before it began.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from pagewire.core.documents import parse_object
from pagewire.engine.step import Step

VERSION = 1
MEASURED = "measured"  # what `about` says is the source of one that was fitted to a cluster


class StepKind(Enum):
    """Whether a step has prompts to build."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """What a step has to do. A grant of one token is a decode."""

    prefill_tokens: int = 0
    decodes: int = 0
    prefill_pairs: int = 0
    decode_pairs: int = 0

    @classmethod
    def of(cls, step: Step) -> StepShape:
        """Return the shape of a step of the engine."""
        prefill = [(grant.start, count) for grant in step.grants if (count := len(grant.tokens)) > 1]
        decode = [grant.start + 1 for grant in step.grants if len(grant.tokens) == 1]
        return cls(
            prefill_tokens=sum(count for _, count in prefill),
            decodes=len(decode),
            prefill_pairs=sum(count * start + count * (count + 1) // 2 for start, count in prefill),
            decode_pairs=sum(decode),
        )

    @property
    def kind(self) -> StepKind:
        """One with a prompt in it is a prefill step, whoever decodes beside."""
        return StepKind.PREFILL if self.prefill_tokens else StepKind.DECODE


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """Seconds of a step, and by what it has to do: the coefficients of one line of the law."""

    step_s: float = 0.0
    prefill_token_s: float = 0.0
    decode_s: float = 0.0
    prefill_pair_s: float = 0.0
    decode_pair_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what makes time go back with ValueError."""
        _check(self)

    def seconds(self, shape: StepShape) -> float:
        """Return what a step of that shape takes."""
        prefill_s = self.prefill_token_s * shape.prefill_tokens + self.prefill_pair_s * shape.prefill_pairs
        return self.step_s + self.decode_s * shape.decodes + self.decode_pair_s * shape.decode_pairs + prefill_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLaw:
    """The slowest of `lines`, and `overhead_s` between a step and the next."""

    lines: tuple[StepLine, ...]
    overhead_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a law that says nothing with ValueError."""
        if not self.lines:
            raise ValueError("a law of steps has no line")
        _check(self)

    def seconds(self, shape: StepShape) -> float:
        """Return what a step of that shape takes, and what passes before the next."""
        return self.overhead_s + max(line.seconds(shape) for line in self.lines)

    def decode_seconds(self, decodes: int, pairs: int) -> float:
        """Return the same for a step in which everybody decodes: there are many of them."""
        seconds = [line.step_s + line.decode_s * decodes + line.decode_pair_s * pairs for line in self.lines]
        return self.overhead_s + max(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLaw:
    """How KV travels between two pods: `latency_s`, then `bytes_per_s`, in messages within a window."""

    latency_s: float = 0.0
    bytes_per_s: float = 1e9
    window_bytes: int = 16 << 20
    message_bytes: int = 2 << 20

    def __post_init__(self) -> None:
        """Refuse a link that carries nothing with ValueError."""
        _check(self)
        for name in ("bytes_per_s", "window_bytes", "message_bytes"):
            if not getattr(self, name):
                raise ValueError(f"{name} must be positive, is {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingLaw:
    """How many times as long a step takes while one of another pod computes on the same machine; 1.0 for no longer.

    `decode_beside_prefill` is that of a decode step while another pod prefills. Several others add what each adds.
    """

    prefill_beside_prefill: float = 1.0
    prefill_beside_decode: float = 1.0
    decode_beside_prefill: float = 1.0
    decode_beside_decode: float = 1.0

    def __post_init__(self) -> None:
        """Refuse company that makes a step quicker with ValueError."""
        _check(self)
        for each in dataclasses.fields(self):
            if getattr(self, each.name) < 1:
                raise ValueError(f"{each.name} must be 1 or more, is {getattr(self, each.name)}")

    def slowdown(self, kind: StepKind, others: Iterable[StepKind]) -> float:
        """Return how many times its work a step takes beside those others."""
        if kind is StepKind.PREFILL:
            beside_prefill, beside_decode = self.prefill_beside_prefill, self.prefill_beside_decode
        else:
            beside_prefill, beside_decode = self.decode_beside_prefill, self.decode_beside_decode
        return 1 + sum((beside_prefill if other is StepKind.PREFILL else beside_decode) - 1 for other in others)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """All costs of a cluster; `prefill` is the law of pods that only build prompts, `decode` that of all others.

    `sharing` is what pods of one machine take from one another.

    A frame takes `frame_s` from one process to the next, a request `intake_s` and `intake_token_s` for each token of
    its prompt until the router places it, one after another. `token_bytes` of KV belong to a token. `noise` is the
    standard deviation of the logarithm of a step's time. `about` says what it was made of, `residuals` how far off.
    """

    prefill: StepLaw
    decode: StepLaw
    token_bytes: int
    link: LinkLaw = field(default_factory=LinkLaw)
    sharing: SharingLaw = field(default_factory=SharingLaw)
    frame_s: float = 0.0
    intake_s: float = 0.0
    intake_token_s: float = 0.0
    noise: float = 0.0
    about: Mapping[str, Any] = field(default_factory=dict)
    residuals: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse negative costs with ValueError."""
        _check(self)
        if self.token_bytes < 1 or self.token_bytes % 4:
            raise ValueError(f"token_bytes must be a positive multiple of 4, is {self.token_bytes}")
        for name in ("about", "residuals"):
            if not isinstance(getattr(self, name), Mapping):
                raise ValueError(f"{name} must be an object, is {getattr(self, name)!r:.80}")

    @property
    def max_model_len(self) -> int:
        """The longest sequence of the cluster that it was measured at; 0 where nothing says."""
        return self._told("max_model_len")

    @property
    def longest_prompt(self) -> int:
        """The longest prompt that its laws were fitted to; 0 where nothing says."""
        return self._told("longest_prompt")

    @property
    def knows_travel(self) -> bool:
        """False where it was measured in a cluster in which no KV travelled: nothing is known of what that takes."""
        return self.about.get("source") != MEASURED or "link" in self.residuals

    def _told(self, name: str) -> int:
        told = self.about.get(name)
        return told if isinstance(told, int) and told > 0 else 0

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {"version": VERSION, **dataclasses.asdict(self)}

    def to_json(self) -> str:
        """Return the text of a cost model's file."""
        return json.dumps(self.as_json(), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> CostModel:
        """Return what a file says; raises ValueError, which names what is wrong with it."""
        try:
            raw = parse_object(text, "the cost model")
            if raw.pop("version", None) != VERSION:
                raise ValueError(f"not a cost model of version {VERSION}")
            prefill, decode = _law(raw.pop("prefill")), _law(raw.pop("decode"))
            link, sharing = LinkLaw(**raw.pop("link")), SharingLaw(**raw.pop("sharing"))
            return cls(prefill=prefill, decode=decode, link=link, sharing=sharing, **raw)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a cost model: {error}") from error


def _law(raw: dict[str, Any]) -> StepLaw:
    return StepLaw(lines=tuple(StepLine(**line) for line in raw["lines"]), overhead_s=raw["overhead_s"])


def _check(value: StepLine | StepLaw | LinkLaw | SharingLaw | CostModel) -> None:
    for each in dataclasses.fields(value):
        figure = getattr(value, each.name)
        if each.type not in ("float", "int"):
            continue
        if isinstance(figure, bool) or not isinstance(figure, int | float):
            raise ValueError(f"{each.name} must be a number, is {figure!r:.80}")
        if not 0 <= figure < math.inf:
            raise ValueError(f"{each.name} must not be negative, is {figure}")

"""What the user asked of the sampler, checked once, and why a sequence ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pagewire.core.errors import InvalidRequest

MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 256
MAX_STOP_TOKEN_IDS = 128
MAX_SEED = 2**63 - 1


class FinishReason(StrEnum):
    """Why a sequence ended, in the words of the OpenAI API."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen and when to stop.

    `seed` makes a token a pure function of (logits, seed, sequence index, position); the router draws one when the
    user gives none. `temperature` 0 is greedy. `top_k` 0 is off. `stop` strings are matched by the router alone, on
    text; pods see tokens only.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    @property
    def is_greedy(self) -> bool:
        """True when the most likely token is always taken."""
        return self.temperature == 0.0 or self.top_k == 1

    def validate(self) -> None:
        """Raise InvalidRequest naming the first field out of bounds."""
        _bound("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _bound("temperature", self.temperature, 0.0, 100.0)
        _bound("top_k", self.top_k, 0, 2**31 - 1)
        if not 0.0 < self.top_p <= 1.0:
            raise InvalidRequest(f"top_p must be in (0, 1], is {self.top_p}", field="top_p")
        _bound("min_p", self.min_p, 0.0, 1.0)
        _bound("seed", self.seed, -MAX_SEED - 1, MAX_SEED)
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidRequest(f"stop takes at most {MAX_STOP_STRINGS} strings, got {len(self.stop)}", field="stop")
        for text in self.stop:
            if not 1 <= len(text) <= MAX_STOP_STRING_CHARS:
                raise InvalidRequest(
                    f"a stop string has 1 to {MAX_STOP_STRING_CHARS} characters, got {len(text)}", field="stop"
                )
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise InvalidRequest(
                f"stop_token_ids takes at most {MAX_STOP_TOKEN_IDS}, got {len(self.stop_token_ids)}",
                field="stop_token_ids",
            )
        for token in self.stop_token_ids:
            _bound("stop_token_ids", token, 0, 2**31 - 1)


def _bound(field: str, value: float, low: float, high: float) -> None:
    # The comparison is written so that NaN fails it.
    if not low <= value <= high:
        raise InvalidRequest(f"{field} must be between {low} and {high}, is {value}", field=field)

"""One request of a run and what became of it: the row that every figure is made from. Pure.

Times are seconds since the run began, on one monotonic clock of the process that asked. Invariant: latencies begin when
a request was due (`intended_s`), not when it was sent: so a client or a server that stalls shows in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MEASURES = ("ttft", "tpot", "e2e", "late")  # of a request, in seconds: see `Record.value_s`
NAMES = {  # as people read them, with the gaps between an answer's parts
    "ttft": "TTFT", "tpot": "TPOT", "gap": "gap between parts", "e2e": "end to end", "late": "sent late by",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A request: `arrival` is the place in its workload of the arrival whose `turn` it is.

    `first_s` and `last_s` are when the first and the last part with tokens came, None where none did. `gaps_s` lie
    between one such part and the next; a part may hold several tokens. `output_tokens` is what the server counted, or
    else the parts; `wanted_tokens` were asked for. `cached_tokens` of the prompt were found in a cache, as the server
    says, None where it does not; `ttft_parts_s` is where the time to the first tokens went there (see ttft_parts), None
    where it does not say. `ended_s` is when it was over, with the end of its answer or by failing; None in files from
    before that was recorded. `error` names what it failed of, "" for a whole answer, and `detail` what was said of it.
    """

    arrival: int
    turn: int
    intended_s: float
    sent_s: float
    first_s: float | None
    last_s: float | None
    gaps_s: tuple[float, ...]
    input_tokens: int
    output_tokens: int
    wanted_tokens: int
    cached_tokens: int | None = None
    ttft_parts_s: Mapping[str, float] | None = None
    ended_s: float | None = None
    error: str = ""
    detail: str = ""
    session: str = ""
    request_id: str = ""

    @property
    def is_answered(self) -> bool:
        """Whether a whole answer came."""
        return not self.error and self.first_s is not None

    @property
    def late_s(self) -> float:
        """How long after it was due the client sent it."""
        return self.sent_s - self.intended_s

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token."""
        return None if self.first_s is None else self.first_s - self.intended_s

    @property
    def e2e_s(self) -> float | None:
        """Time to the last token of a whole answer."""
        return self.last_s - self.intended_s if self.is_answered and self.last_s is not None else None

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first, of a whole answer: (e2e - TTFT) / (tokens - 1)."""
        if not self.is_answered or self.output_tokens < 2 or self.first_s is None or self.last_s is None:
            return None
        return (self.last_s - self.first_s) / (self.output_tokens - 1)

    def value_s(self, measure: str) -> float | None:
        """Return "ttft", "tpot", "e2e" or "late" in seconds, None where the request has none."""
        return {"ttft": self.ttft_s, "tpot": self.tpot_s, "e2e": self.e2e_s, "late": self.late_s}[measure]

"""One request of a simulation: what was asked, what it came to, and the moments of its way."""

from __future__ import annotations

from dataclasses import dataclass, field

from pagewire.core.sequence_spec import SequenceSpec
from pagewire.kvtransfer.outgoing import OutgoingShipment
from pagewire.kvtransfer.shipment import IncomingShipment
from pagewire.router.lookup import Prefix
from pagewire.router.places import Place
from pagewire.router.placing import Placed
from pagewire.router.request import Request
from pagewire.router.slo_gate import Forecast


@dataclass(slots=True, kw_only=True, eq=False)
class SimRequest:
    """Turn `turn` of arrival `arrival`; `due_s` is when it should have been asked, in virtual seconds like all times.

    `tokens_s` has the moment at which each token reached whoever asked. The rest is what the router and the pods know
    of the request, and what they stamp.
    """

    number: int
    arrival: int
    turn: int
    session: str
    due_s: float
    asked: Request
    spec: SequenceSpec
    answer: int  # the token that its answer is made of
    has_first_seen: bool  # somebody's prompt began so before
    tokens_s: list[float] = field(default_factory=list)
    error: str = ""
    detail: str = ""
    is_over: bool = False

    prefix: Prefix | None = None
    placed: Placed | None = None
    place: Place | None = None
    forecast: Forecast | None = None
    attempts: int = 0
    failed_keys: set[str] = field(default_factory=set)
    is_building: bool = False  # the router counts its prompt as not built

    hit_blocks: int = 0
    incoming: IncomingShipment | None = None
    outgoing: OutgoingShipment | None = None
    prefill_pod: str = ""
    cached_tokens: int = 0
    predicted_local_s: float = 0.0
    predicted_remote_s: float = 0.0
    chosen_s: float = 0.0

    looked_up_s: float = 0.0
    submitted_s: float = 0.0
    accepted_s: float = 0.0
    reserved_s: float | None = None
    run_received_s: float = 0.0
    prefill_begun_s: float | None = None
    prefilled_s: float = 0.0
    first_received_s: float | None = None
    joined_s: float | None = None
    first_step_s: float | None = None

    @property
    def request_id(self) -> str:
        """What the pods call it."""
        return self.spec.request_id

    @property
    def max_tokens(self) -> int:
        """Tokens that its answer has."""
        return self.spec.sampling.max_tokens

    def written(self) -> float:
        """Return which share of the answer is there."""
        return min(1.0, len(self.tokens_s) / self.max_tokens)

"""What moving blocks from one peer costs, learned from the shipments that came: seconds per byte and per exchange.

    seconds = rtt_s + bytes x s_per_byte

Pure: durations come as parameters. Both figures are exponential averages; the first ones replace the priors, which
stand for a link that nobody has measured. Where nothing comes for long, what is above the priors fades (see `Rest`).
Invariant: costs are positive and finite.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagewire.core.rest import Rest, faded

WEIGHT = 0.2  # of the newest observation
MIN_BYTES = 1 << 16  # less says more about the exchange than about the rate


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCost:
    """The costs of a link now."""

    rtt_s: float = 0.002
    s_per_byte: float = 1e-9

    def seconds(self, num_bytes: int) -> float:
        """Return the predicted seconds from asking for `num_bytes` to their being here."""
        return self.rtt_s + num_bytes * self.s_per_byte


class LinkMeter:
    """Learns the costs of one link."""

    def __init__(self) -> None:
        self._rtt_s: float | None = None
        self._s_per_byte: float | None = None
        self._rest = Rest()

    @property
    def is_measured(self) -> bool:
        """True once blocks came this way at a rate that was taken."""
        return self._s_per_byte is not None

    @property
    def cost(self) -> LinkCost:
        """What is known now; the priors where nothing is."""
        prior = LinkCost()
        return LinkCost(
            rtt_s=prior.rtt_s if self._rtt_s is None else self._rtt_s,
            s_per_byte=prior.s_per_byte if self._s_per_byte is None else self._s_per_byte,
        )

    @property
    def belief(self) -> float:
        """What share of what was learned of the pod is believed still, 0 to 1: the longer nothing came, the less."""
        return self._rest.belief

    def answered(self, seconds: float) -> None:
        """A question was answered after `seconds`."""
        if seconds > 0:
            self._rest.ends()
            self._rtt_s = seconds if self._rtt_s is None else (1 - WEIGHT) * self._rtt_s + WEIGHT * seconds

    def landed(self, num_bytes: int, seconds: float) -> None:
        """`num_bytes` took `seconds` on their way; small shipments are not taken for a rate."""
        if num_bytes < MIN_BYTES or seconds <= 0:
            return
        self._rest.ends()
        rate = seconds / num_bytes
        self._s_per_byte = rate if self._s_per_byte is None else (1 - WEIGHT) * self._s_per_byte + WEIGHT * rate

    def rested(self, seconds: float) -> None:
        """So much time has passed; whatever came in it was told apart."""
        left, prior = self._rest.goes_on(seconds), LinkCost()
        if self._rtt_s is not None:
            self._rtt_s = faded(self._rtt_s, prior.rtt_s, left)
        if self._s_per_byte is not None:
            self._s_per_byte = faded(self._s_per_byte, prior.s_per_byte, left)

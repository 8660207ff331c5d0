"""What a pod can ship and take by, as it is said in the handshake of a link; and what two pods then use.

A carrier that reaches only as far as a host or a process is offered as `name@place`, so that the handshake's
intersection of strings is all there is to compare. Knows names; opens nothing. Invariant: what is common is in the
order of the other's answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pagewire.kvtransfer.carrier import Carrier

NAMES = ("shm", "tcp", "grpc", "collective", "nixl", "cuda_ipc")
AUTO = ("shm", "tcp", "grpc")
"""Best first; the others are used where they are named: they need libraries or ports of their own."""
AUTO_ON_A_DEVICE = ("cuda_ipc", "grpc")
"""The same for pools on a GPU, whose blocks gRPC reads once on their way and `tcp` twice."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A carrier, and the host or process that it ends at; empty: it has no such bounds."""

    carrier: Carrier
    place: str = ""

    @property
    def text(self) -> str:
        """What is said in the handshake."""
        return f"{self.carrier.name}@{self.place}" if self.place else self.carrier.name


@dataclass(frozen=True, slots=True)
class Offers:
    """One pod's, best first."""

    offers: tuple[Offer, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """What is said in the handshake."""
        return tuple(offer.text for offer in self.offers)

    @property
    def carriers(self) -> tuple[Carrier, ...]:
        """All of them, best first."""
        return tuple(offer.carrier for offer in self.offers)

    def common(self, texts: Iterable[str]) -> tuple[Carrier, ...]:
        """Return those that are in `texts`, what two pods have in common, in that order."""
        by_text = {offer.text: offer.carrier for offer in self.offers}
        return tuple(by_text[text] for text in texts if text in by_text)


def parse_names(transports: str, device: str = "cpu") -> Sequence[str]:
    """Return the names in a setting: "auto", or names with commas between.

    Raises ValueError naming what is unknown, or is not for pools on `device`.
    """
    if transports == "auto":
        return AUTO if device == "cpu" else AUTO_ON_A_DEVICE
    names = tuple(name.strip() for name in transports.split(","))
    for name in names:
        if name not in NAMES:
            raise ValueError(f"transports: {name!r} is none of auto, {', '.join(NAMES)}")
    if len(set(names)) != len(names):
        raise ValueError(f"transports: {transports!r} names one twice")
    if device == "cpu" and "cuda_ipc" in names:
        raise ValueError("transports: cuda_ipc is for pools on a GPU, this pod's is on the CPU")
    if device != "cpu" and "shm" in names:
        raise ValueError(f"transports: shm is for pools in host memory, this pod's is on {device}")
    return names

"""How the two ends of a bulk stream prove to one another that they hold the cluster's secret.

The source's nonce makes every proof new, so an overheard one is worth nothing; the taker's nonce does the same for the
answer. All that either says of itself is proven, the cards that open a carrier included. Knows no streams and no
randomness. Invariant: an empty secret proves nothing (refused at construction).
"""

from __future__ import annotations

import dataclasses
import hmac
from dataclasses import dataclass, field

from pagewire.core.errors import PeerMismatch, Unauthenticated
from pagewire.kvtransfer import greeting_wire
from pagewire.kvtransfer.greeting_wire import Hello, Welcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeter:
    """One pod's side of greetings. `order` names the order of a block's axes. Raises ValueError on an empty secret."""

    peer_id: str
    block_bytes: int
    order: str = ""
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not self.secret:
            raise ValueError("the cluster secret is empty: anybody could read blocks")

    def hello(
        self, source_id: str, challenge: bytes, nonce: bytes, window_bytes: int, *, carrier: str = "", card: bytes = b""
    ) -> Hello:
        """Return the taker's first message to the pod `source_id`."""
        hello = Hello(
            peer_id=self.peer_id,
            block_bytes=self.block_bytes,
            window_bytes=window_bytes,
            carrier=carrier,
            order=self.order,
            card=card,
            nonce=nonce,
        )
        return dataclasses.replace(hello, proof=self._proof(source_id, hello, challenge))

    def admit(self, hello: Hello, challenge: bytes) -> None:
        """Check who dials; raises Unauthenticated, or PeerMismatch where our blocks are not theirs."""
        if not hmac.compare_digest(hello.proof, self._proof(self.peer_id, hello, challenge)):
            raise Unauthenticated(f"{hello.peer_id!r} does not hold this cluster's secret, or took us for another pod")
        self._compare(hello.peer_id, "block bytes", self.block_bytes, hello.block_bytes)

    def welcome(self, hello: Hello, challenge: bytes, card: bytes = b"", num_groups: int = 1) -> Welcome:
        """Return the source's answer to whom it admitted."""
        welcome = Welcome(order=self.order, num_groups=num_groups, card=card)
        return dataclasses.replace(welcome, proof=self._proof(self.peer_id, hello, challenge, welcome))

    def check(self, source_id: str, hello: Hello, challenge: bytes, welcome: Welcome) -> None:
        """Check the source's answer; raises Unauthenticated."""
        if not hmac.compare_digest(welcome.proof, self._proof(source_id, hello, challenge, welcome)):
            raise Unauthenticated(f"{source_id!r} does not hold this cluster's secret")

    def _compare(self, peer_id: str, what: str, ours: object, theirs: object) -> None:
        if ours != theirs:
            raise PeerMismatch(f"{self.peer_id} / {peer_id}: {what} {ours} / {theirs}")

    def _proof(self, source_id: str, hello: Hello, challenge: bytes, welcome: Welcome | None = None) -> bytes:
        parts = [source_id.encode(), greeting_wire.encode_hello(dataclasses.replace(hello, proof=b"")), challenge]
        if welcome is not None:
            parts.append(greeting_wire.encode_welcome(dataclasses.replace(welcome, proof=b"")))
        text = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
        what = b"pagewire hello" if welcome is None else b"pagewire welcome"
        return hmac.digest(self.secret, what + text, "sha256")

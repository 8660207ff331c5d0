"""How the two ends of a bulk stream prove to one another that they hold the cluster's secret.

The sender's nonce makes every proof new, so an overheard one is worth nothing; the receiver's nonce does the same for
the answer. Knows no streams and no randomness. Invariant: an empty secret proves nothing (refused at construction).
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field

from pagewire.core.errors import PeerMismatch, Unauthenticated
from pagewire.kvtransfer.wire import Hello


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeter:
    """One pod's side of greetings. Raises ValueError on an empty secret."""

    peer_id: str
    block_bytes: int
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not self.secret:
            raise ValueError("the cluster secret is empty: anybody could read blocks")

    def hello(self, sender_id: str, challenge: bytes, nonce: bytes, window_bytes: int) -> Hello:
        """Return the receiver's first message to the pod `sender_id`."""
        hello = Hello(
            peer_id=self.peer_id, block_bytes=self.block_bytes, window_bytes=window_bytes, nonce=nonce, proof=b""
        )
        proof = self._proof(b"hello", sender_id, hello, challenge)
        return Hello(
            peer_id=self.peer_id, block_bytes=self.block_bytes, window_bytes=window_bytes, nonce=nonce, proof=proof
        )

    def answer(self, hello: Hello, challenge: bytes) -> bytes:
        """Return the sender's proof; raises Unauthenticated, or PeerMismatch on another block size."""
        if not hmac.compare_digest(hello.proof, self._proof(b"hello", self.peer_id, hello, challenge)):
            raise Unauthenticated(f"{hello.peer_id!r} does not hold this cluster's secret, or took us for another pod")
        if hello.block_bytes != self.block_bytes:
            raise PeerMismatch(
                f"{self.peer_id} / {hello.peer_id}: block bytes {self.block_bytes} / {hello.block_bytes}"
            )
        return self._proof(b"welcome", self.peer_id, hello, challenge)

    def check(self, sender_id: str, hello: Hello, challenge: bytes, proof: bytes) -> None:
        """Check the sender's proof; raises Unauthenticated."""
        if not hmac.compare_digest(proof, self._proof(b"welcome", sender_id, hello, challenge)):
            raise Unauthenticated(f"{sender_id!r} does not hold this cluster's secret")

    def _proof(self, what: bytes, sender_id: str, hello: Hello, challenge: bytes) -> bytes:
        numbers = (hello.block_bytes.to_bytes(8, "little"), hello.window_bytes.to_bytes(8, "little"))
        parts = (what, sender_id.encode(), hello.peer_id.encode(), *numbers, challenge, hello.nonce)
        text = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
        return hmac.digest(self.secret, b"pagewire blocks" + text, "sha256")

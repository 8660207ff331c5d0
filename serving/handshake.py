"""Who a process is, and whether it may be paired with another.

Pure: no streams, no clock, no chance. Both sides prove that they hold the cluster's secret, each under a value that the
other made, agree on a wire version, and compare fingerprints; a misfit is `PeerMismatch` with a diff at start, never
wrong tokens.
"""

from __future__ import annotations

import dataclasses
import hmac

from pagewire.core.errors import PeerMismatch, Unauthenticated
from pagewire.core.fingerprint import Fingerprint
from pagewire.core.messages import OLDEST_WIRE_VERSION, WIRE_VERSION, Challenge, Hello, Role, Welcome


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """This process on a link. `transports` are in order of preference. Raises ValueError on an empty secret."""

    peer_id: str
    incarnation: str
    role: Role
    secret: bytes = dataclasses.field(repr=False)
    fingerprint: Fingerprint | None = None
    transports: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.secret:
            raise ValueError("the cluster secret is empty: links would be open to anybody")

    def hello(self, challenge: Challenge, epoch: int, nonce: bytes) -> Hello:
        """Return our answer to the challenge of whom we dialled; no `nonce` is used twice."""
        hello = Hello(
            oldest_wire_version=OLDEST_WIRE_VERSION,
            wire_version=WIRE_VERSION,
            peer_id=self.peer_id,
            incarnation=self.incarnation,
            role=self.role,
            epoch=epoch,
            fingerprint=self.fingerprint,
            transports=self.transports,
            nonce=nonce,
        )
        return dataclasses.replace(hello, proof=self._proof(hello, challenge.nonce, nonce))

    def answer(self, challenge: Challenge, hello: Hello) -> Welcome:
        """Return our answer to what met `challenge`; raises Unauthenticated, or PeerMismatch where we are no pair."""
        # First, for what a proof covers depends on it.
        version = min(WIRE_VERSION, hello.wire_version)
        if version < max(OLDEST_WIRE_VERSION, hello.oldest_wire_version):
            raise PeerMismatch(
                f"wire version: ours {OLDEST_WIRE_VERSION}..{WIRE_VERSION}, "
                f"{hello.peer_id}'s {hello.oldest_wire_version}..{hello.wire_version}"
            )
        if not hmac.compare_digest(hello.proof, self._proof(hello, challenge.nonce, hello.nonce)):
            raise Unauthenticated(f"{hello.peer_id} does not hold this cluster's secret, or says what another said")
        self._compare(hello.peer_id, hello.fingerprint)
        common = [name for name in self.transports if name in hello.transports]
        if self.transports and hello.transports and not common:
            raise PeerMismatch(f"no common transport: ours {self.transports}, {hello.peer_id}'s {hello.transports}")
        welcome = Welcome(
            wire_version=version,
            peer_id=self.peer_id,
            incarnation=self.incarnation,
            role=self.role,
            epoch=hello.epoch,
            fingerprint=self.fingerprint,
            transports=tuple(common),
        )
        return dataclasses.replace(welcome, proof=self._proof(welcome, hello.proof))

    def check(self, hello: Hello, welcome: Welcome) -> None:
        """Check the answer to our `hello`; raises Unauthenticated or PeerMismatch."""
        if not hmac.compare_digest(welcome.proof, self._proof(welcome, hello.proof)):
            raise Unauthenticated(f"{welcome.peer_id} does not hold this cluster's secret")
        if not OLDEST_WIRE_VERSION <= welcome.wire_version <= WIRE_VERSION:
            raise PeerMismatch(f"{welcome.peer_id} chose wire version {welcome.wire_version}")
        self._compare(welcome.peer_id, welcome.fingerprint)

    def socket_tokens(self, welcome: Welcome) -> tuple[bytes, bytes]:
        """Return what guest and host of the socket beside a stream show one another, of 32 bytes each.

        They are said nowhere before, so that whoever overheard the greeting does not get in.
        """
        guest, host = (hmac.digest(self.secret, label + welcome.proof, "sha256") for label in (b"guest", b"host"))
        return guest, host

    def _compare(self, peer_id: str, theirs: Fingerprint | None) -> None:
        if self.fingerprint is None or theirs is None:
            return
        if diff := self.fingerprint.diff(theirs):
            raise PeerMismatch(f"{self.peer_id} / {peer_id}: {diff}")

    def _proof(self, said: Hello | Welcome, *heard: bytes) -> bytes:
        words = (said.peer_id, said.incarnation, said.role.value, str(said.epoch), str(said.wire_version))
        parts = (*(word.encode() for word in words), *heard)
        text = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
        return hmac.digest(self.secret, type(said).__name__.encode() + text, "sha256")

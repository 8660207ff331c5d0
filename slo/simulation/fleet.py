"""The pods as a router has them, in virtual time: registered and linked at once, and for good.

`PodPool` and `Pod` are the product's. Invariant: what is submitted to a pod leaves by its link.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

from pagewire.core.block_hash import HASH_VERSION
from pagewire.core.fingerprint import Fingerprint
from pagewire.core.load import Load
from pagewire.core.messages import Heartbeat, LinkMessage, Role, Submit
from pagewire.router.cache_watch import CacheWatch
from pagewire.router.ejection import Ejection
from pagewire.router.outliers import Rules
from pagewire.router.pod import Pod
from pagewire.router.pods import PodPool
from pagewire.serving.link import Link
from pagewire.serving.registration import Registration
from pagewire.slo.simulation.composition import Composition
from pagewire.slo.simulation.surroundings import Surroundings


@dataclass(frozen=True, slots=True, kw_only=True)
class _Welcome:
    """What a pod says of itself when it links."""

    peer_id: str
    incarnation: str
    fingerprint: Fingerprint
    epoch: int = 1


class _SimLink:
    """A link that is always up, and takes `Submit` to its pod."""

    is_up = True
    reason = ""

    def __init__(self, peer: _Welcome, deliver: Callable[[Submit], None]) -> None:
        self.peer = peer
        self._deliver = deliver

    def send(self, message: LinkMessage) -> None:
        """Send a frame."""
        assert isinstance(message, Submit), f"nothing here sends {message}"
        self._deliver(message)


class SimFleet:
    """The pods of a composition; `deliver` takes what is submitted to one of them, by its name."""

    def __init__(
        self, around: Surroundings, index_ids: Mapping[str, int], deliver: Callable[[str, Submit], None]
    ) -> None:
        self.fingerprint = fingerprint_of(around.composition, around.layout.fingerprint())
        self.pool = PodPool(
            name="", tokenizer_digest="", cache_watch=CacheWatch(), ejection=Ejection(Rules(), around.agenda)
        )
        self._deliver = deliver
        self._pods: dict[str, Pod] = {}
        self._links: dict[str, Link] = {}
        for pod_id, role in around.composition.roles.items():
            self._add(pod_id, role, index_ids[pod_id])

    def on_heartbeat(self, pod_id: str, load: Load) -> None:
        """A pod has said what it has to do."""
        self.pool.events(self._pods[pod_id]).on_message(self._links[pod_id], Heartbeat(load=load))

    def _add(self, pod_id: str, role: Role, index_id: int) -> None:
        registration = Registration(
            pod_id=pod_id,
            incarnation="1",
            role=role,
            address=pod_id,
            metrics="",
            fingerprint=self.fingerprint,
            index_id=index_id,
        )
        pod = self._pods[pod_id] = self.pool.add(registration)
        self.pool.settle()
        peer = _Welcome(peer_id=pod_id, incarnation="1", fingerprint=self.fingerprint)
        link = self._links[pod_id] = cast(Link, _SimLink(peer, lambda submit: self._deliver(pod_id, submit)))
        self.pool.events(pod).on_up(link)


def fingerprint_of(composition: Composition, kv_fingerprint: str) -> Fingerprint:
    """Return what all pods of the cluster serve."""
    return Fingerprint(
        model_name="simulated",
        model_digest="simulated",
        tokenizer_digest="",
        kv_fingerprint=kv_fingerprint,
        kv_layout="",
        block_size=composition.block_size,
        hash_version=HASH_VERSION,
        max_model_len=composition.max_model_len,
    )

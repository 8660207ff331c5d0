"""The pods of one model: which of them requests may be placed on, and what becomes of their links.

Knows nothing of prompts or policies; who the pods are and when they are dialled is the fleet's business.

Invariant: all usable pods serve the same, by fingerprint, and a pod that serves anything else is refused by name for as
long as one that fits is known.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pagewire.core import index_member
from pagewire.core.block_hash import HASH_VERSION
from pagewire.core.cache_events import CacheEvents
from pagewire.core.fingerprint import Fingerprint
from pagewire.core.load import Load
from pagewire.core.messages import Heartbeat, LinkMessage, Role
from pagewire.router.breaker import State
from pagewire.router.cache_watch import CacheWatch
from pagewire.router.ejection import Ejection
from pagewire.router.pod import Pod
from pagewire.router.policies.view import PodView
from pagewire.router.roster import Roster, member_of
from pagewire.serving.link import Link, LinkEvents
from pagewire.serving.registration import Registration

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Standing:
    """A pod, the state of its breaker, and why it is kept out now, "" where it is not."""

    pod: Pod
    circuit: State
    ejected: str

    @property
    def unusable_because(self) -> str:
        """Why it gets no requests now, "" where it does."""
        return self.pod.unusable_because or (f"it is kept out: {self.ejected}" if self.ejected else "")


class PodPool:
    """The pods of one model, which `name` and `tokenizer_digest` tell from other models'.

    Without a name it is what the pods call it, whatever that is.
    """

    def __init__(self, *, name: str, tokenizer_digest: str, cache_watch: CacheWatch, ejection: Ejection) -> None:
        self._name = name
        self._tokenizer_digest = tokenizer_digest
        self._cache_watch = cache_watch
        self._pods: dict[str, Pod] = {}
        self._linked: dict[str, Pod] = {}  # by id: the incarnation that linked last
        self._roster = Roster()
        self._touched: dict[Pod, None] = {}  # what this router has on them has changed since they were last shown
        self._listeners: list[Callable[[Pod], None]] = []
        self._change = asyncio.Event()
        self.ejection = ejection
        self._members: Mapping[bytes, tuple[str, int]] | None = None
        self.chosen: Fingerprint | None = None  # what a pod must serve to be used; None while none is known
        self.fingerprint: Fingerprint | None = None  # what the pods that were linked last serve

    @property
    def roster(self) -> Roster:
        """The pods as policies see them now."""
        for pod in list(self._touched):  # by a request several times, and looked at once
            self.refresh(pod)
        return self._roster

    @property
    def name(self) -> str:
        """What callers name the model; "" while nobody has said."""
        return self._name or (self.known.model_name if self.known is not None else "")

    @property
    def known(self) -> Fingerprint | None:
        """What is served as far as pods have said, linked or not."""
        return self.fingerprint or self.chosen

    @property
    def adapters(self) -> tuple[str, ...]:
        """What callers name the model's adapters, as far as pods have said."""
        return self.known.adapter_names if self.known is not None else ()

    def goes_by(self, name: str) -> bool:
        """True where some caller may mean this model, or an adapter of it, by `name`."""
        known = [pod.registration.fingerprint for pod in self._pods.values()]
        is_own = name == self._name if self._name else name in {each.model_name for each in known}
        return is_own or any(name in each.adapter_names for each in known)

    @property
    def pods(self) -> list[Pod]:
        """All known pods, linked or not."""
        return list(self._pods.values())

    def usable(self, *roles: Role) -> list[Pod]:
        """Return the pods of `roles` that requests may be placed on."""
        out = self.ejected()
        pods = [pod for pod in self._pods.values() if pod.is_usable and pod.registration.role in roles]
        return [pod for pod in pods if pod.registration.member not in out] if out else pods

    def ejected(self) -> dict[str, str]:
        """Return pod id @ incarnation -> cause of those that are kept out, though they could be used."""
        return self.ejection.out(pod for pod in self._pods.values() if self.is_one_of_us(pod))

    def is_one_of_us(self, pod: Pod) -> bool:
        """Return whether a pod serves what is served, linked or not.

        False for one that waits for an upgrade to come to its version, say: nobody misses it yet.
        """
        return not pod.misfit and self.chosen in (None, pod.registration.fingerprint)

    def standings(self) -> list[Standing]:
        """Return all known pods with what attempts on them have shown."""
        out = self.ejected()
        return [
            Standing(pod, self.ejection.circuit(pod), out.get(pod.registration.member, ""))
            for pod in self._pods.values()
        ]

    def index_members(self) -> Mapping[bytes, tuple[str, int]]:
        """Return what linked pods go by in the index, with pod id and tier. Kept between changes."""
        if self._members is None:
            self._members = {
                index_member.member(pod.registration.index_id, tier): (pod.pod_id, tier)
                for pod in self._pods.values()
                if pod.link is not None and pod.registration.index_id
                for tier in index_member.TIERS
            }
        return self._members

    def refused(self) -> dict[str, str]:
        """Return why pods of this model are not used, by pod id: what is served and what they serve."""
        found = {}
        for pod in self._pods.values():
            diff = self.chosen.diff(pod.registration.fingerprint) if self.chosen is not None else ""
            is_past = self.linked(pod.pod_id) not in (None, pod)  # it is back as another incarnation, which fits
            if (why := pod.misfit or diff) and not is_past:
                found[pod.pod_id] = why
        return found

    def behind(self, view: PodView) -> Pod:
        """Return the pod that a view shows."""
        return self._pods[member_of(view.key)]

    def linked(self, pod_id: str) -> Pod | None:
        """Return the pod of that name while it has a link and fits, even if it drains."""
        pod = self._linked.get(pod_id)
        return pod if pod is not None and pod.link is not None else None

    def refresh(self, pod: Pod) -> None:
        """Let policies see what a pod is now."""
        self._touched.pop(pod, None)
        serves = pod.registration.fingerprint
        if pod.is_usable:
            self._roster.put(serves, pod.view(self._roster.priors))
        else:
            self._roster.drop(serves, pod.pod_id, pod.registration.member)

    def _touch(self, pod: Pod) -> None:
        self._touched[pod] = None

    def on_change(self, listener: Callable[[Pod], None]) -> None:
        """Have `listener` called with a pod whose link came or went, or that said what it has."""
        self._listeners.append(listener)

    async def wait_change(self, timeout_s: float) -> None:
        """Return at the next change, or after `timeout_s` seconds."""
        self._change.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._change.wait()
        except TimeoutError:
            return

    def _changed(self, pod: Pod) -> None:
        self._change.set()
        for listener in self._listeners:
            listener(pod)

    def refusal(self, fingerprint: Fingerprint) -> str:
        """Return why a pod that serves this is none of this model's, as "field: ours / theirs"; "" where it is."""
        wanted = {
            "tokenizer_digest": self._tokenizer_digest,
            "model_name": self._name or fingerprint.model_name,
            "hash_version": HASH_VERSION,  # or the index would be asked for hashes that no pod ever has
        }
        return "; ".join(
            f"{field}: {ours} / {getattr(fingerprint, field)}"
            for field, ours in wanted.items()
            if ours != getattr(fingerprint, field)
        )

    def add(self, registration: Registration) -> Pod:
        """Take a pod that was found; `settle` follows, before it is dialled."""
        pod = self._pods[registration.member] = Pod(registration, self._touch)
        return pod

    def drop(self, pod: Pod) -> None:
        """Forget a pod."""
        del self._pods[pod.registration.member]
        self.ejection.forget(pod)
        self._touched.pop(pod, None)
        self._roster.drop(pod.registration.fingerprint, pod.pod_id, pod.registration.member)
        if self._linked.get(pod.pod_id) is pod:
            del self._linked[pod.pod_id]

    def renumber(self, pod: Pod, index_id: int) -> None:
        """A pod goes by another number in the index."""
        self._members = None
        pod.registration = dataclasses.replace(pod.registration, index_id=index_id)

    def settle(self) -> None:
        """Settle what is served: what most known pods serve, ties to the first; it stays while one of them is known."""
        known = [pod.registration.fingerprint for pod in self._pods.values()]
        if self.chosen not in known:
            self.chosen = max(known, key=known.count, default=None)

    def events(self, pod: Pod) -> LinkEvents:
        """Return what is to be done about the links to `pod`."""

        def on_up(link: Link) -> None:
            self._members = None
            pod.link = link
            pod.load = Load()
            pod.room.report(pod.load)
            pod.misfit = self._misfit(pod, link)
            if pod.misfit:
                # What is served was settled while it was dialled. From now on it is refused at its door, and taken
                # once what is served has changed to what it serves.
                # A pod that has come back, in another role perhaps, is found again by its next registration.
                level = logging.INFO if link.peer.peer_id == pod.pod_id else logging.ERROR
                log.log(level, "pod %s is not used: %s", pod.registration.member, pod.misfit)
                link.close(pod.misfit)
            else:
                self.fingerprint = link.peer.fingerprint
                self._cache_watch.on_up(pod)
                log.info("linked to %s %s", pod.registration.role, pod.registration.member)
                self._linked[pod.pod_id] = pod
            self.refresh(pod)
            self._changed(pod)

        def on_message(link: Link, message: LinkMessage) -> None:
            if isinstance(message, CacheEvents):
                is_known = self._cache_watch.on_events(pod, message)
            else:
                is_known = pod.receive(message)
            if not is_known:
                link.close(f"a pod does not send {type(message).__name__} to a router")
            elif isinstance(message, Heartbeat):
                if message.load is not None:
                    self._roster.learn(message.load)
                    self.refresh(pod)  # now: by the next request all pods may have spoken
                self._changed(pod)

        def on_down(link: Link) -> None:
            log.info("link to %s is down: %s", pod.registration.member, link.reason)
            self._members = None
            if not pod.load.draining and not pod.misfit:
                self.ejection.link_broke(pod)
            pod.lost(link.reason)
            self._cache_watch.on_down(pod)
            self._changed(pod)

        return LinkEvents(on_message=on_message, on_up=on_up, on_down=on_down)

    def _misfit(self, pod: Pod, link: Link) -> str:
        fingerprint = link.peer.fingerprint
        if fingerprint is None:
            return "it did not say what it serves"
        if link.peer.peer_id != pod.pod_id or link.peer.incarnation != pod.registration.incarnation:
            return f"{link.peer.peer_id}@{link.peer.incarnation} answers at the address of {pod.registration.member}"
        if diff := pod.registration.fingerprint.diff(fingerprint):
            return f"it serves something else than it registered: {diff}"
        return "" if self.chosen is None else self.chosen.diff(fingerprint)

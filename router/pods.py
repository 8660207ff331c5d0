"""The pods that the router knows: registrations from Redis, a link to each, their loads, what this router has there.

Knows nothing of prompts or policies. Redis bootstraps; from then on links tell the truth: a linked pod stays when
Redis forgets it or goes away, and a pod is forgotten only when it is neither registered nor linked.

Invariants: every inbox that was opened on a pod is settled when its link goes down; all usable pods serve the same, by
fingerprint, and a pod that serves anything else is refused by name for as long as one that fits is known.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from typing import Protocol

from redis.exceptions import RedisError

from pagewire.core.errors import PodLost, Unavailable
from pagewire.core.fingerprint import Fingerprint
from pagewire.core.load import Load
from pagewire.core.messages import Cancel, Ended, Heartbeat, LinkMessage, Role, Stop, Submit, Tokens
from pagewire.core.token_record import TokenRecord
from pagewire.router.inbox import Inbox
from pagewire.router.policy import PodView
from pagewire.serving.handshake import Identity
from pagewire.serving.link import Link, LinkDialer, LinkEvents, LinkTimes
from pagewire.serving.registry import Registration

log = logging.getLogger(__name__)

DECODES = (Role.DECODE, Role.COLOCATED)


class Discovery(Protocol):
    """Where pods are found: the registry, or a test's list."""

    async def pods(self) -> list[Registration]:
        """Return the registrations that stand; raises RedisError, OSError or ValueError when it cannot know."""
        ...


class Pod:
    """One incarnation of a pod, its link while there is one, and this router's requests on it."""

    def __init__(self, registration: Registration) -> None:
        self.registration = registration
        self.link: Link | None = None
        self.load = Load()
        self.misfit = ""  # why it must not be used although it is linked
        self.prefills = 0  # prompts that were sent its way and have no first token yet
        self.pending_tokens = 0
        self._inboxes: dict[str, Inbox] = {}

    @property
    def pod_id(self) -> str:
        """The pod's name."""
        return self.registration.pod_id

    @property
    def key(self) -> str:
        """Names this link: a pod that comes back, or links anew, has another."""
        return f"{self.registration.member}#{self.link.peer.epoch if self.link else 0}"

    @property
    def is_usable(self) -> bool:
        """True while requests may be placed on it."""
        return self.link is not None and self.link.is_up and not self.load.draining and not self.misfit

    @property
    def in_flight(self) -> int:
        """This router's requests on it."""
        return len(self._inboxes) + self.prefills

    def view(self, cached_tokens: int, host_tokens: int = 0) -> PodView:
        """Return the pod as policies see it."""
        return PodView(
            pod_id=self.pod_id,
            address=self.registration.address,
            role=self.registration.role,
            load=self.load,
            in_flight=self.in_flight,
            pending_tokens=self.pending_tokens,
            cached_tokens=cached_tokens,
            host_tokens=host_tokens,
        )

    def submit(self, submit: Submit, inbox: Inbox) -> None:
        """Send a request and open its inbox; raises Unavailable, with nothing left behind, when the link is down."""
        if self.link is None:
            raise Unavailable(f"there is no link to {self.pod_id}")
        self.link.send(submit)
        self._inboxes[submit.spec.request_id] = inbox

    def cancel(self, request_id: str, reason: str) -> None:
        """Ask for a request's end; without a link there is nobody to ask, and nothing that runs."""
        self._tell(Cancel(request_id=request_id, reason=reason))

    def stop(self, request_id: str, index: int) -> None:
        """Ask for no more tokens of one sequence of a request."""
        self._tell(Stop(request_id=request_id, index=index))

    def close_inbox(self, request_id: str) -> None:
        """Take no more frames for a request; late ones are ignored."""
        self._inboxes.pop(request_id, None)

    def receive(self, message: LinkMessage) -> bool:
        """Hand a frame to whom it concerns; False when a pod has no business sending it."""
        match message:
            case Tokens(records=records):
                by_request: defaultdict[str, list[TokenRecord]] = defaultdict(list)
                for record in records:
                    by_request[record.request_id].append(record)
                for request_id, own in by_request.items():
                    inbox = self._inboxes.get(request_id)
                    if inbox is not None:
                        inbox.put(own)
            case Ended(request_id=request_id):
                inbox = self._inboxes.get(request_id)
                if inbox is not None:
                    inbox.end(message)
            case Heartbeat(load=load):
                self.load = load or self.load
            case _:
                return False
        return True

    def _tell(self, message: Stop | Cancel) -> None:
        if self.link is None or not self.link.is_up:
            return
        try:
            self.link.send(message)
        except Unavailable as error:
            # The link ends over this, and with it everything that we have on the pod.
            log.warning("%s of %s not sent: %s", type(message).__name__, message.request_id, error.message)

    def lost(self, reason: str) -> None:
        """The link is down: fail what waits for it."""
        self.link = None
        for inbox in self._inboxes.values():
            inbox.lose(PodLost(f"the link to {self.pod_id} is down: {reason}", retry_after_s=1.0))


class PodPool:
    """All pods of the cluster, kept up to date by `run`."""

    def __init__(
        self,
        discovery: Discovery,
        identity: Callable[[Fingerprint | None], Identity],
        *,
        tokenizer_digest: str,
        discovery_s: float,
        times: LinkTimes | None = None,
    ) -> None:
        self._discovery = discovery
        self._identity = identity
        self._tokenizer_digest = tokenizer_digest
        self._discovery_s = discovery_s
        self._times = times
        self._pods: dict[str, Pod] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._chosen: Fingerprint | None = None  # what a pod must serve to be used; None while no known one fits us
        self.fingerprint: Fingerprint | None = None  # what the pods that were linked last serve
        self.discovery_failures = 0

    @property
    def pods(self) -> list[Pod]:
        """All known pods, linked or not."""
        return list(self._pods.values())

    def usable(self, *roles: Role) -> list[Pod]:
        """Return the pods of `roles` that requests may be placed on."""
        return [pod for pod in self._pods.values() if pod.is_usable and pod.registration.role in roles]

    def incarnations(self) -> dict[str, str]:
        """Return pod id -> incarnation of all linked pods: what the index is read against."""
        linked = (pod.registration for pod in self._pods.values() if pod.link is not None)
        return {registration.pod_id: registration.incarnation for registration in linked}

    async def wait_change(self, timeout_s: float) -> None:
        """Return when a link came or went, or after `timeout_s` seconds."""
        self._changed.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return

    async def run(self) -> None:
        """Discover pods and keep their links until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                try:
                    self._update(await self._discovery.pods(), tasks)
                except (RedisError, OSError, ValueError) as error:
                    self.discovery_failures += 1
                    log.warning("pods are not discovered now, the known ones stay: %s", error)
                await asyncio.sleep(self._discovery_s)

    def _update(self, found: list[Registration], tasks: asyncio.TaskGroup) -> None:
        registered = {registration.member: registration for registration in found}
        idle = [member for member, pod in self._pods.items() if pod.link is None or pod.misfit]
        for member in [member for member in idle if member not in registered]:
            log.info("pod %s is gone", member)
            del self._pods[member]
            self._tasks.pop(member).cancel()
        for member, registration in registered.items():
            if member not in self._pods and registration.role is not Role.ROUTER:
                pod = self._pods[member] = Pod(registration)
                dialer = LinkDialer(registration.address, self._who, self._events(pod), times=self._times)
                self._tasks[member] = tasks.create_task(dialer.run())
        self._choose()

    def _choose(self) -> None:
        """Settle what is served: what most known pods serve, ties to the first; it stays while one of them is known."""
        known = (pod.registration.fingerprint for pod in self._pods.values())
        fitting = [each for each in known if each.tokenizer_digest == self._tokenizer_digest]
        if self._chosen not in fitting:
            self._chosen = max(fitting, key=fitting.count, default=None)

    def _who(self) -> Identity:
        return self._identity(self._chosen)

    def _events(self, pod: Pod) -> LinkEvents:
        def on_up(link: Link) -> None:
            pod.link = link
            pod.load = Load()
            pod.misfit = self._misfit(pod, link)
            if pod.misfit:
                log.error("pod %s is not used: %s", pod.pod_id, pod.misfit)
                if self._chosen is not None:
                    # What is served was settled while it was dialled. From now on it is refused at its door, and taken
                    # once what is served has changed to what it serves.
                    link.close(pod.misfit)
            else:
                self.fingerprint = link.peer.fingerprint
                log.info("linked to %s %s", pod.registration.role, pod.registration.member)
            self._changed.set()

        def on_message(link: Link, message: LinkMessage) -> None:
            if not pod.receive(message):
                link.close(f"a pod does not send {type(message).__name__} to a router")

        def on_down(link: Link) -> None:
            log.info("link to %s is down: %s", pod.registration.member, link.reason)
            pod.lost(link.reason)
            self._changed.set()

        return LinkEvents(on_message=on_message, on_up=on_up, on_down=on_down)

    def _misfit(self, pod: Pod, link: Link) -> str:
        fingerprint = link.peer.fingerprint
        if fingerprint is None:
            return "it did not say what it serves"
        if link.peer.peer_id != pod.pod_id or link.peer.incarnation != pod.registration.incarnation:
            return f"{link.peer.peer_id}@{link.peer.incarnation} answers at the address of {pod.registration.member}"
        if fingerprint.tokenizer_digest != self._tokenizer_digest:
            return f"tokenizer_digest: {self._tokenizer_digest} / {fingerprint.tokenizer_digest}"
        if diff := pod.registration.fingerprint.diff(fingerprint):
            return f"it serves something else than it registered: {diff}"
        return "" if self._chosen is None else self._chosen.diff(fingerprint)

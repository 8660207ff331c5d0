"""One pod as a router has it: its link, its load and room, this router's requests there.

Knows nothing of other pods, prompts or policies. Invariant: every inbox that was opened on it, and every order
that it has not answered, is settled when its link goes down.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from pagewire.core.errors import PodLost, Unavailable
from pagewire.core.load import Load
from pagewire.core.messages import (
    Cancel,
    ChangeRole,
    Ended,
    Heartbeat,
    LinkMessage,
    Role,
    RoleAnswer,
    Stop,
    Submit,
    Tokens,
)
from pagewire.core.token_record import TokenRecord
from pagewire.router.inbox import Inbox
from pagewire.router.kv_room import KvRoom
from pagewire.router.policies.view import PodView, Priors
from pagewire.serving.link import Link
from pagewire.serving.registration import Registration

log = logging.getLogger(__name__)


class Pod:
    """One incarnation of a pod, its link while there is one, and this router's requests on it.

    `on_change` hears of whatever a policy would see.
    """

    def __init__(self, registration: Registration, on_change: Callable[[Pod], None] = lambda _: None) -> None:
        self.registration = registration
        self._on_change = on_change
        self.link: Link | None = None
        self.load = Load()
        self.room = KvRoom()
        self.misfit = ""  # why it must not be used although it is linked
        self._prefills = 0  # prompts that were sent its way and have no first token yet
        self._pending_tokens = 0  # of these and of those that it builds for itself
        self._inboxes: dict[str, Inbox] = {}
        self._role_answers: list[asyncio.Future[RoleAnswer]] = []  # the first that was asked for first

    @property
    def pod_id(self) -> str:
        """The pod's name."""
        return self.registration.pod_id

    @property
    def incarnation(self) -> str:
        """Which of its name it is."""
        return self.registration.incarnation

    @property
    def key(self) -> str:
        """Names this link: a pod that comes back, or links anew, has another."""
        return f"{self.registration.member}#{self.link.peer.epoch if self.link else 0}"

    @property
    def is_linked(self) -> bool:
        """True while frames can be exchanged with it."""
        return self.link is not None and self.link.is_up

    @property
    def is_leaving(self) -> bool:
        """True when it said that it goes away."""
        return self.load.draining

    @property
    def is_usable(self) -> bool:
        """True while requests may be placed on it."""
        return self.is_linked and not self.load.draining and not self.misfit

    @property
    def unusable_because(self) -> str:
        """Why it is not usable, empty while it is."""
        if self.is_usable:
            return ""
        return self.misfit or ("it is draining" if self.load.draining else "there is no link to it")

    @property
    def in_flight(self) -> int:
        """This router's requests on it."""
        return len(self._inboxes) + self._prefills

    @property
    def pending_tokens(self) -> int:
        """Prompt tokens that it is to build for this router and that have no first token yet."""
        return self._pending_tokens

    def prompt_sent(self, num_tokens: int, *, is_prefill: bool) -> None:
        """Count a prompt that it is to build, until `prompt_built`; for a decode pod, unless `is_prefill`."""
        self._pending_tokens += num_tokens
        self._prefills += is_prefill
        self._on_change(self)

    def prompt_built(self, num_tokens: int, *, is_prefill: bool) -> None:
        """Take the count back."""
        self._pending_tokens -= num_tokens
        self._prefills -= is_prefill
        self._on_change(self)

    def view(self, priors: Priors) -> PodView:
        """Return the pod as policies see it."""
        return PodView(
            pod_id=self.pod_id,
            address=self.registration.address,
            role=self.registration.role,
            load=self.load,
            in_flight=self.in_flight,
            pending_tokens=self._pending_tokens,
            key=self.key,
            priors=priors,
        )

    def submit(self, submit: Submit, inbox: Inbox) -> None:
        """Send a request and open its inbox; raises Unavailable, with nothing left behind, when the link is down."""
        if self.link is None:
            raise Unavailable(f"there is no link to {self.pod_id}")
        self.link.send(submit)
        self._inboxes[submit.spec.request_id] = inbox
        self._on_change(self)

    def cancel(self, request_id: str, reason: str) -> None:
        """Ask for a request's end; without a link there is nobody to ask, and nothing that runs."""
        self._tell(Cancel(request_id=request_id, reason=reason))

    def stop(self, request_id: str, index: int) -> None:
        """Ask for no more tokens of one sequence of a request."""
        self._tell(Stop(request_id=request_id, index=index))

    def watch_cache(self, wanted: bool) -> None:
        """Have it send what its cache holds and how that changes, or no more of that; no-op without a link."""
        self._tell(Heartbeat(wants_cache=wanted))

    async def change_role(self, role: Role) -> RoleAnswer:
        """Order another role; return what the pod says to that. Raises Unavailable when the link is down, or goes."""
        if self.link is None:
            raise Unavailable(f"there is no link to {self.pod_id}")
        self.link.send(ChangeRole(role=role))
        answer: asyncio.Future[RoleAnswer] = asyncio.get_running_loop().create_future()
        self._role_answers.append(answer)
        return await answer

    def close_inbox(self, request_id: str) -> None:
        """Take no more frames for a request; late ones are ignored."""
        if self._inboxes.pop(request_id, None) is not None:
            self._on_change(self)

    def receive(self, message: LinkMessage) -> bool:
        """Hand a frame to whom it concerns; False when a pod has no business sending it."""
        match message:
            case Tokens(records=records):
                by_request: dict[str, list[TokenRecord]] = {}
                for record in records:
                    if (own := by_request.get(record.request_id)) is None:
                        by_request[record.request_id] = [record]
                    else:
                        own.append(record)
                for request_id, own in by_request.items():
                    if (inbox := self._inboxes.get(request_id)) is not None:
                        inbox.put(own)
            case Ended(request_id=request_id):
                inbox = self._inboxes.get(request_id)
                if inbox is not None:
                    inbox.end(message)
            case RoleAnswer():
                if not self._role_answers:
                    return False
                answer = self._role_answers.pop(0)
                if not answer.done():  # whoever asked may have gone
                    answer.set_result(message)
            case Heartbeat(load=load):
                if load is not None:
                    self.load = load
                    self.room.report(load)
                    self._on_change(self)
            case _:
                return False
        return True

    def _tell(self, message: Stop | Cancel | Heartbeat) -> None:
        if self.link is None or not self.link.is_up:
            return
        try:
            self.link.send(message)
        except Unavailable as error:
            # The link ends over this, and with it everything that we have on the pod.
            log.warning("%s not sent: %s", message, error.message)

    def lost(self, reason: str) -> None:
        """The link is down: fail what waits for it."""
        self.link = None
        self._on_change(self)
        why = f"the link to {self.pod_id} is down: {reason}"
        for inbox in self._inboxes.values():
            inbox.lose(PodLost(why, retry_after_s=1.0))
        for answer in self._role_answers:
            if not answer.done():
                answer.set_exception(PodLost(why))
        self._role_answers.clear()

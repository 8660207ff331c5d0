"""Real pods in this process behind a real router, asked over HTTP; and what may come between a request and its end.

Services, engines, links, router and tokenizer are the real ones, and so are their sockets and the registry; processes
are left out (`live_cluster` has them). A request can be handed over to another pod or preempted between two steps.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import httpx
import lora_folders
from fake_pod import FakePod
from pods import FREE, Pod, until
from router_rig import RunningRouter, running_router

from pagewire.core.messages import LinkMessage, Role, Submit
from pagewire.decode_service.service import DecodeService
from pagewire.engine import pinning
from pagewire.engine.pin import NamedPrefix, plan
from pagewire.serving.link import Link
from pagewire.serving.registration import Registration

HANDOVERS_END_S = 11.0
NUM_STEPS = 6  # that draw tokens, until something comes between: of every request of the tests some tokens are out then


class ServedPod(Pod):
    """A pod that a router finds; it remembers what it was asked."""

    def __init__(self, pod_id: str, role: Role, model: Path, settings: dict[str, Any]) -> None:
        self._prefix: tuple[int, ...] = settings.pop("prefix", ())
        if kind := settings.pop("adapter", ""):
            settings["adapters"] = (f"{kind}={lora_folders.beside(model, kind)}",)
        super().__init__(pod_id, role, model, settings)
        self.submits: list[Submit] = []
        self._is_closed = False
        self.take_copying_for(FREE)
        self.engine.counts = lambda step: (
            step.num_tokens > 0 and not step.prompts
        )  # beams tell nothing before their end
        hear = self.service.on_message

        def remember(link: Link, message: LinkMessage) -> None:
            if isinstance(message, Submit):
                self.submits.append(message)
            hear(link, message)

        self.service.on_message = remember  # type: ignore[method-assign]

    @property
    def registration(self) -> Registration:
        """What it says of itself in Redis."""
        who = self.front.identity
        return Registration(
            pod_id=who.peer_id, incarnation=who.incarnation, role=who.role, address=self.address, metrics="",
            fingerprint=self.engine.ready.fingerprint,
        )  # fmt: skip

    async def start(self) -> None:
        """Serve, once the prefix that it pins is computed."""
        if self._prefix:
            config, hear = self.front.config, self.engine.on_step
            named = (NamedPrefix(name="pinned", tokens=self._prefix),)
            pins = plan(named, self.engine.ready, key=config.cluster_secret.encode(), share=config.pin_share)
            await pinning.compute(self.engine, pins, self.front.note)
            self.engine.on_step = hear
        await super().start()

    async def die(self) -> None:
        """Go away, with nothing left behind."""
        try:
            self.advance(HANDOVERS_END_S)  # who went on with what it handed over need not have fetched
            await self.assert_at_rest()
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Stop; again is no matter."""
        if not self._is_closed:
            self._is_closed = True
            await super().aclose()

    async def hand_over(self) -> None:
        """Give up whatever runs to another pod; returns once that is done."""
        service = self.service
        assert isinstance(service, DecodeService)
        running = set(service._requests)
        service.hand_over()
        await until(lambda: running.isdisjoint(service._requests))  # others may have been handed to this one

    async def preempt_all(self) -> None:
        """Preempt whatever runs, between two steps, as the scheduler does when blocks are short."""
        scheduler = self.engine.engine.scheduler
        with self.engine.loop._changed:
            for sequence in [*scheduler.running, *scheduler.joined]:
                scheduler._preempt(sequence)


class Served:
    """A router and its pods."""

    def __init__(self, router: RunningRouter, pods: tuple[ServedPod, ...]) -> None:
        self._router = router
        self.pods = pods

    @property
    def decoding(self) -> list[ServedPod]:
        """The pods that answer."""
        return [pod for pod in self.pods if pod.front.identity.role is not Role.PREFILL]

    async def ask(self, path: str, body: dict[str, Any]) -> httpx.Response:
        """POST a body, to be answered with what the pods counted."""
        return await self._router.http.post(path, json={**body, "pagewire": {"timeline": True}})

    async def ask_and(
        self, come_between: Callable[[ServedPod], Awaitable[None]], path: str, body: dict[str, Any]
    ) -> Any:
        """The same; once the decode pod has done a few steps for it and stands, do that to the pod, and go on."""
        before = {pod: pod.engine.num_steps for pod in self.decoding}
        for pod in self.decoding:
            pod.engine.allow(NUM_STEPS)
        asking = asyncio.create_task(self.ask(path, body))

        def standing() -> list[ServedPod]:
            return [pod for pod, num_steps in before.items() if pod.engine.num_steps - num_steps >= NUM_STEPS]

        try:
            await until(lambda: bool(standing()) or asking.done())
            for pod in standing()[:1]:  # what one gives up another may get, and would have to give up again
                await come_between(pod)
        finally:
            for pod in self.decoding:
                pod.engine.let_go()
        return await asking


@contextlib.asynccontextmanager
async def served(
    redis: str,
    model: Path,
    roles: dict[str, Role],
    settings: dict[str, Any],
    *,
    of_decode: dict[str, Any] | None = None,
    **router_settings: Any,
) -> AsyncIterator[Served]:
    """Start pods by name and role with these settings, those that decode with more, and a router before them."""
    besides = {Role.PREFILL: dict[str, Any]()}
    pods = tuple(
        ServedPod(name, role, model, settings | besides.get(role, of_decode or {})) for name, role in roles.items()
    )
    try:
        async with running_router(redis, model, *cast("tuple[FakePod, ...]", pods), **router_settings) as router:
            yield Served(router, pods)
    finally:
        for pod in pods:
            await pod.aclose()  # also where none was started

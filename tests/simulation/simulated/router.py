"""A router of a world: the product's, behind doors that this simulation has instead of HTTP and gRPC.

Knows asks and events. Invariant: of every ask that came in, the history has exactly one last word, unless the router
was killed.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from pagewire.core.errors import PagewireError
from pagewire.router.ask import Ask
from pagewire.router.assembly import Router
from pagewire.router.config import PrefillMode, RouterConfig
from pagewire.router.events import Chunk, Finished
from pagewire.serving.lifecycle import Lifecycle
from simulated.plan import RequestPlan
from simulated.pod import SECRET
from simulated.redis import ADDRESS

if TYPE_CHECKING:
    from simulated.world import World


class SimulatedRouter:
    """One router."""

    def __init__(self, world: World, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self._world = world
        self.start()

    def start(self) -> None:
        """Start it, for the first time or anew."""
        self._world.note("starts", self.name)
        self.process = self._world.process(self.name, self.number)
        self.router: Router | None = None
        self._asked: dict[str, asyncio.Task[None]] = {}
        self.process.spawn(self._main())

    @property
    def is_ready(self) -> bool:
        """True when it knows of a pod that decodes."""
        return self.process.is_alive and self.router is not None and self.router.models.can_serve

    def kill(self) -> None:
        """End it; those that it answered see their connections break."""
        self.process.kill()
        self._world.network.break_all(self.process, silently=False)
        for name, task in self._asked.items():
            if not task.done():
                self._world.note("broken", name)

    def ask(self, request: RequestPlan) -> asyncio.Task[None]:
        """Take a request in; the task ends with it."""
        task = self._asked[request.name] = self.process.spawn(self._answer(request))
        return task

    def num_linked(self) -> int:
        """Return how many pods it could use."""
        if self.router is None:
            return 0
        return sum(pod.is_usable for model in self.router.models for pod in model.pool.pods)

    async def _main(self) -> None:
        world = self._world
        config = RouterConfig(
            model=(str(world.tokenizer_folder),),
            cluster_secret=SECRET,
            redis_url=f"redis://{ADDRESS}/0",
            name=self.name,
            host=self.name,
            grpc_port=1,
            prefill_mode=PrefillMode(world.plan.prefill_mode),
            retry_burst=world.plan.retry_burst,
            retry_ratio=world.plan.retry_ratio,
        )
        lifecycle = Lifecycle()
        self.router = Router(config, lifecycle)
        await self.router.grpc.start()
        lifecycle.ready()
        world.note("ready", self.name)
        async with asyncio.TaskGroup() as tasks:
            for each in self.router.background():
                tasks.create_task(each)

    async def _answer(self, request: RequestPlan) -> None:
        world, name = self._world, request.name
        world.note("asked", name, router=self.name)
        assert self.router is not None
        ask = Ask(
            request_id=name,
            token_ids=request.prompt,
            max_tokens=request.max_tokens,
            n=request.n,
            temperature=0.0 if request.is_greedy else 1.0,
            seed=request.seed,
            stop_token_ids=request.stop_token_ids,
            cache_salt=request.salt or None,
            timeout_s=request.timeout_s,
        )
        try:
            sink = _Noted(world, name)
            answer = self.router.dispatcher.answer(ask, sink=sink if request.takes_at_once else None)
            async with aclosing(answer) as events:
                async for event in events:
                    if isinstance(event, Chunk):
                        sink.put(event)
                        if request.reads_s:
                            await asyncio.sleep(request.reads_s)
                    elif isinstance(event, Finished):
                        self._finished(name, event)
        except PagewireError as error:
            world.note("failed", name, cause=error.cause, message=error.message)
        except asyncio.CancelledError:
            world.note("left", name)
        except Exception as error:
            world.note("failed", name, cause="unforeseen", message=repr(error))

    def _finished(self, name: str, event: Finished) -> None:
        report = event.report
        self._world.note(
            "finished",
            name,
            prompt=event.usage.prompt_tokens,
            completion=event.usage.completion_tokens,
            cached=event.usage.cached_tokens,
            attempts=event.attempts,
            placement=report.placement if report is not None else "",
            decode_cached=report.decode_cached_tokens if report is not None else 0,
            prefill_cached=report.prefill_cached_tokens if report is not None else 0,
            causes=report.causes if report is not None else (),
        )


class _Noted:
    """A client that has what it got written down. Its sink is closed every third time that somebody looks."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self._looks = 0

    @property
    def is_open(self) -> bool:
        self._looks += 1
        return self._looks % 3 != 0

    def put(self, chunk: Chunk) -> None:
        reason = chunk.ending.finish_reason.value if chunk.ending is not None else ""
        self._world.note("tokens", self._name, index=chunk.index, tokens=chunk.token_ids, reason=reason)

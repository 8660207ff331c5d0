"""The standard gRPC health service: whether this process serves, told at once, or whenever it changes.

Not the library's, which holds a lock while it writes to a watcher: one that takes nothing would hold up the process
itself when it changes its state (grpcio-health-checking 1.85). Invariants: nobody who watches holds up anybody; no more
than `max_watchers` do, none for longer than `watch_s`; whoever is slow finds the newest state next.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeAlias

import grpc
from grpc_health.v1.health_pb2 import (
    DESCRIPTOR,
    HealthCheckRequest,
    HealthCheckResponse,
    HealthListRequest,
    HealthListResponse,
)

from pagewire.core.errors import DeadlineExceeded, Overloaded
from pagewire.serving.grpc_service import Context, Patience, service_handler

MAX_WATCHERS = 256
WATCH_S = 3600.0
RETRY_AFTER_S = 10.0

_Status: TypeAlias = HealthCheckResponse.ServingStatus


class HealthService:
    """One server's. Its own state, whose name is empty, is NOT_SERVING until it is told otherwise."""

    def __init__(self, *, max_watchers: int = MAX_WATCHERS, watch_s: float = WATCH_S) -> None:
        self._max_watchers = max_watchers
        self._watch_s = watch_s
        self._num_watchers = 0
        self._statuses: dict[str, _Status] = {"": HealthCheckResponse.NOT_SERVING}
        self._changed = asyncio.Event()  # of the next change: each has its own
        self._is_closed = False

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what a gRPC server answers."""
        return service_handler(DESCRIPTOR.services_by_name["Health"], self, Patience())

    def set(self, is_serving: bool, service: str = "") -> None:
        """Say whether a service is there; does nothing once closed."""
        if not self._is_closed:
            self._put({service: HealthCheckResponse.SERVING if is_serving else HealthCheckResponse.NOT_SERVING})

    def close(self) -> None:
        """Say of all services that they are there no more, for good, and let go of who watches."""
        self._is_closed = True
        self._put(dict.fromkeys(self._statuses, HealthCheckResponse.NOT_SERVING))

    async def Check(self, request: HealthCheckRequest, context: Context) -> HealthCheckResponse:
        """Return a service's state; NOT_FOUND where there is none of that name, as the protocol wants it."""
        status = self._statuses.get(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no service of this name is known here")
        return HealthCheckResponse(status=status)

    async def List(self, _request: HealthListRequest, _context: Context) -> HealthListResponse:
        """Return the state of each service."""
        return HealthListResponse(
            statuses={name: HealthCheckResponse(status=status) for name, status in self._statuses.items()}
        )

    async def Watch(self, request: HealthCheckRequest, _context: Context) -> AsyncGenerator[HealthCheckResponse, None]:
        """Tell a service's state, and each other one that it comes to; raises Overloaded, and DeadlineExceeded."""
        if self._num_watchers >= self._max_watchers:
            raise Overloaded(f"{self._max_watchers} watch this process's health already", retry_after_s=RETRY_AFTER_S)
        self._num_watchers += 1
        try:
            async with aclosing(self._states(request.service)) as states:
                async for status in states:
                    yield HealthCheckResponse(status=status)
        finally:
            self._num_watchers -= 1

    async def _states(self, service: str) -> AsyncGenerator[_Status, None]:
        now_s = asyncio.get_running_loop().time
        ends_s, told = now_s() + self._watch_s, None
        while (left_s := ends_s - now_s()) > 0:
            changed, status = self._changed, self._statuses.get(service, HealthCheckResponse.SERVICE_UNKNOWN)
            if status != told:
                told = status
                yield status  # it may be another one when this has been taken
                continue
            if self._is_closed:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await changed.wait()
        raise DeadlineExceeded(f"health is told for {self._watch_s:g} s at a time: ask again")

    def _put(self, statuses: dict[str, _Status]) -> None:
        self._statuses |= statuses
        self._changed.set()
        self._changed = asyncio.Event()

"""What stands before both doors: no request goes in unless its caller is known.

Knows HTTP's and gRPC's way to carry a header and to refuse; who a key belongs to is the authenticator's word. Whatever
is added behind a door is guarded, unless it is named here. Invariant: `caller` is who the guard let in, for as long as
the request is worked on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from contextvars import ContextVar
from typing import Any

import grpc
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from pagewire.core.errors import Forbidden, Unauthenticated
from pagewire.router.authenticator import Authenticator
from pagewire.router.http_exchange import refusal, request_id_of
from pagewire.router.tenants import ANONYMOUS, Tenant
from pagewire.serving.rich_status import abort

OPEN_PATHS = frozenset(("/health", "/live", "/ready"))
OPEN_METHODS = "/grpc.health.v1.Health/"
_CALLER: ContextVar[Tenant] = ContextVar("caller", default=ANONYMOUS)

OnRefused = Callable[[Unauthenticated], None]


def caller() -> Tenant:
    """Return who made the request that is being worked on."""
    return _CALLER.get()


def sees_all() -> bool:
    """Return whether the caller may see what others do: with keys, only operators may."""
    return caller() is ANONYMOUS or caller().is_operator


def check_sees_all() -> None:
    """Raise Forbidden where the caller may not see what others do."""
    if not sees_all():
        raise Forbidden("this shows what others do: it takes an operator's key")


def check_may_order() -> None:
    """Raise Unauthenticated or Forbidden unless the caller is an operator, keys or none."""
    if caller() is ANONYMOUS:
        raise Unauthenticated("this takes an operator's key")
    if not caller().is_operator:
        raise Forbidden("this takes an operator's key")


class HttpGuard:
    """Goes around the HTTP application; `open_paths` need no key."""

    def __init__(
        self,
        app: ASGIApp,
        authenticator: Authenticator,
        on_refused: OnRefused,
        *,
        open_paths: Collection[str] = OPEN_PATHS,
    ) -> None:
        self._app = app
        self._authenticator = authenticator
        self._on_refused = on_refused
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer 401."""
        if scope["type"] == "http" and scope["path"] not in self._open_paths:
            headers = Headers(scope=scope)
            try:
                _CALLER.set(self._authenticator.tenant(_authorization(headers)))
            except Unauthenticated as error:
                self._on_refused(error)
                await refusal(error, request_id_of(headers))(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _authorization(headers: Headers) -> str | None:
    """Return what shows who calls: OpenAI's header, or where there is none the one of Anthropic's clients."""
    key = headers.get("x-api-key")
    return headers.get("authorization") or (f"Bearer {key}" if key else None)


class GrpcGuard(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Goes before the gRPC server; health alone needs no key."""

    def __init__(self, authenticator: Authenticator, on_refused: OnRefused) -> None:
        self._authenticator = authenticator
        self._on_refused = on_refused

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """Let a call in, or end it with UNAUTHENTICATED."""
        if not handler_call_details.method.startswith(OPEN_METHODS):
            given = dict(handler_call_details.invocation_metadata or ()).get("authorization")
            try:
                _CALLER.set(self._authenticator.tenant(given if isinstance(given, str) else None))
            except Unauthenticated as error:
                self._on_refused(error)
                return _refuse(error)
        handler: grpc.RpcMethodHandler[Any, Any] = await continuation(handler_call_details)
        return handler


def _refuse(error: Unauthenticated) -> grpc.RpcMethodHandler[Any, Any]:
    # Of the one kind that reads nothing from whoever calls, whatever the method's own.
    async def refuse(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await abort(context, error)

    return grpc.stream_stream_rpc_method_handler(refuse)

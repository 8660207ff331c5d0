"""Every route and every method that a router serves, called without a key and with wrong ones: none opens by oversight.

What is served is read off the router itself, so a route or a method that is added is tried here, or named as open.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any

import grpc
import pytest
from fake_pod import FakePod
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from router_rig import StartRouter
from starlette.applications import Starlette
from starlette.routing import Route

from pagewire.cli.cluster_config import ClusterConfig
from pagewire.protos import inference_pb2
from pagewire.router import http
from pagewire.router.config import RouterConfig
from pagewire.router.keys import KEY_BYTES, NewKey
from pagewire.router.live import door as live
from pagewire.serving.pod_config import PodConfig

OPEN = {"/health", "/live", "/ready", "/ui", "/ui/", *(f"/ui/{name}" for name in live.NAMES)}
OURS, STRANGERS = (NewKey.of(bytes([first]) * KEY_BYTES) for first in (1, 2))
WRONG: tuple[dict[str, str], ...] = (
    {},
    {"authorization": ""},
    {"authorization": "Bearer"},
    {"authorization": f"Bearer {STRANGERS.key}"},
    {"authorization": f"Bearer {OURS.line}"},
    {"authorization": f"Basic {OURS.key}"},
)
SERVICES: tuple[ServiceDescriptor, ...] = (
    inference_pb2.DESCRIPTOR.services_by_name["Inference"],
    health_pb2.DESCRIPTOR.services_by_name["Health"],
    reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"],
)


@pytest.fixture
def keys(tmp_path: Path) -> str:
    file = tmp_path / "keys.toml"
    file.write_text(f'[tenants.acme]\nkeys = ["{OURS.line}"]\n')
    return str(file)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Route]:
    """Return the routes of the router that is started next."""
    found: list[Route] = []

    def framework(*args: Any, routes: list[Route], **kwargs: Any) -> Starlette:
        found.extend(routes)
        made: Any = Starlette
        application: Starlette = made(*args, routes=routes, **kwargs)
        return application

    monkeypatch.setattr(http, "Starlette", framework)
    return found


async def test_no_route_opens_without_a_key_but_those_that_are_named(
    start: StartRouter, served: list[Route], keys: str
) -> None:
    pod = FakePod("c0")
    async with start(pod, api_keys=keys, headers={"authorization": f"Bearer {OURS.key}"}) as router:
        assert len(served) > 15
        opened = set()
        for route in served:
            path = route.path.replace("{model:path}", "fake").replace("{pod_id}", "c0")
            assert "{" not in path, path
            # Open routes are served to anybody, whatever the method; what they do not take is 405.
            for method in {"GET", "POST", "DELETE", *(route.methods or ())}:
                for headers in WRONG:
                    router.http.headers.pop("authorization", None)
                    answer = await router.http.request(method, path, headers=headers)
                    if answer.status_code != 401:
                        opened.add(route.path)
                        assert answer.status_code in (200, 307, 405, 503), (method, path)
        assert opened == OPEN
        assert pod.submits == []
        assert pod.orders == []


async def test_no_method_opens_without_a_key_but_health(start: StartRouter, keys: str) -> None:
    pod = FakePod("c0")
    headers = {"authorization": f"Bearer {OURS.key}"}
    async with (
        start(pod, api_keys=keys, headers=headers, grpc_reflection=True) as router,
        grpc.aio.insecure_channel(router.addresses["grpc"]) as channel,
    ):
        names = [f"/{service.full_name}/{method.name}" for service in SERVICES for method in service.methods]
        names += ["/pagewire.link.v1.Links/Connect", "/no.such.Service/Method", "/"]
        for name in names:
            for metadata in WRONG:
                call: Any = channel.stream_stream(name, request_serializer=bytes)(metadata=tuple(metadata.items()))
                if name.startswith("/grpc.health.v1.Health/"):
                    with contextlib.suppress(grpc.aio.AioRpcError):
                        await call.write(b"")
                    with contextlib.suppress(grpc.aio.AioRpcError):  # one of its methods is nobody's
                        assert await call.read() is not grpc.aio.EOF
                    call.cancel()
                else:
                    # Refused with nothing said: a write that comes after that would be the client's own INTERNAL.
                    async with asyncio.timeout(30):
                        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED, name
        assert pod.submits == []


async def test_reflection_is_off_unless_asked_for(start: StartRouter) -> None:
    async with (
        start(FakePod("c0")) as router,
        grpc.aio.insecure_channel(router.addresses["grpc"]) as channel,
    ):
        name = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        call: Any = channel.stream_stream(name, request_serializer=bytes)()
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED


def test_who_is_told_nothing_listens_on_loopback() -> None:
    for config in (ClusterConfig, RouterConfig, PodConfig):
        assert socket.inet_aton(str(config.__dataclass_fields__["host"].default))[0] == 127

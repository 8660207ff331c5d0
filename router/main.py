"""The router process: constructs everything, serves until told to stop, drains.

The only place that constructs. Knows no request. Invariant: nothing is admitted before the ports are open, and nothing
new after the drain began.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import uvicorn

from pagewire.core.clock import MonotonicClock
from pagewire.core.fingerprint import Fingerprint
from pagewire.core.messages import Role
from pagewire.router.config import PolicyName, RouterConfig
from pagewire.router.dispatch import Dispatcher
from pagewire.router.http import FrontDoor
from pagewire.router.intake import Intake
from pagewire.router.metrics import RouterMetrics
from pagewire.router.placing import Placer
from pagewire.router.pods import PodPool
from pagewire.router.policy import LeastLoaded, Policy, PrefixAffinity, RoundRobin
from pagewire.router.rpc import SERVICE, Inference
from pagewire.serving.grpc_server import GrpcServer
from pagewire.serving.handshake import Identity
from pagewire.serving.lifecycle import Lifecycle
from pagewire.serving.logs import configure
from pagewire.serving.registry import Registry
from pagewire.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

BACKLOG = 2048
HTTP_CLOSE_S = 5  # for connections to close once their requests are settled
GRPC_CLOSE_S = 2.0
POLICIES: Mapping[PolicyName, Callable[[], Policy]] = {
    PolicyName.PREFIX_AFFINITY: PrefixAffinity,
    PolicyName.LEAST_LOADED: LeastLoaded,
    PolicyName.ROUND_ROBIN: RoundRobin,
}

OnReady = Callable[[Mapping[str, str]], None]


class _HttpServer(uvicorn.Server):
    """uvicorn without signal handlers of its own: the lifecycle decides when to stop."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


async def run(config: RouterConfig, *, on_ready: OnReady, lifecycle: Lifecycle | None = None) -> None:
    """Serve until SIGTERM or SIGINT (or until `lifecycle` drains, where one is given), drain, return.

    `on_ready` is called once with the real addresses, when both ports are open. Raises OSError where a port is taken,
    ValueError or FileNotFoundError where the model folder holds no tokenizer.
    """
    if lifecycle is None:
        configure(config.name, config.log_level)
        lifecycle = Lifecycle()
        lifecycle.drain_on_signals()
    async with contextlib.AsyncExitStack() as stack:
        listener = stack.enter_context(_listen(config.host, config.port))
        router = _Router(config, lifecycle)
        stack.callback(router.tokenizer.close)
        stack.push_async_callback(router.registry.aclose)
        stack.push_async_callback(router.grpc.stop, 0.0)
        await router.grpc.start()
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(router.pool.run()), tasks.create_task(router.placer.run())]
            serving = tasks.create_task(router.http.serve(sockets=[listener]))
            await _ready(router, on_ready, listener)
            await lifecycle.wait_draining()
            await _drain(router)
            await serving
            for task in background:
                task.cancel()
    lifecycle.stopped()


class _Router:
    """Everything a router process is made of."""

    def __init__(self, config: RouterConfig, lifecycle: Lifecycle) -> None:
        secret, incarnation = config.cluster_secret.encode(), uuid.uuid4().hex
        name = f"{config.name}-{incarnation[:8]}"

        def identity(fingerprint: Fingerprint | None) -> Identity:
            return Identity(
                peer_id=name, incarnation=incarnation, role=Role.ROUTER, secret=secret, fingerprint=fingerprint
            )

        self.config = config
        self.lifecycle = lifecycle
        self.tokenizer = Tokenizer(Path(config.model))
        self.registry = Registry(config.redis_url, config.cluster, timeout_s=config.index_timeout_s)
        self.pool = PodPool(
            self.registry, identity, tokenizer_digest=self.tokenizer.digest, discovery_s=config.discovery_s
        )
        self.placer = Placer(
            self.pool, self.registry, POLICIES[config.policy](), mode=config.prefill_mode, secret=secret
        )
        intake = Intake(self.tokenizer, lambda: self.pool.fingerprint, max_timeout_s=config.request_timeout_s)
        metrics = RouterMetrics()
        metrics.lookup_failures.set_function(lambda: self.registry.lookup_failures)
        self.dispatcher = Dispatcher(
            config=config,
            intake=intake,
            tokenizer=self.tokenizer,
            pool=self.pool,
            placer=self.placer,
            lifecycle=lifecycle,
            metrics=metrics,
            clock=MonotonicClock(),
        )
        door = FrontDoor(
            dispatcher=self.dispatcher,
            intake=intake,
            pool=self.pool,
            lifecycle=lifecycle,
            metrics=metrics,
            max_body_bytes=config.max_body_bytes,
        )
        self.http = _HttpServer(
            uvicorn.Config(
                door.app(),
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                timeout_graceful_shutdown=HTTP_CLOSE_S,
            )
        )
        self.grpc = GrpcServer(config.host, config.grpc_port)
        Inference(self.dispatcher, intake, self.pool).add_to(self.grpc.server)


async def _ready(router: _Router, on_ready: OnReady, listener: socket.socket) -> None:
    router.lifecycle.ready()
    for service in ("", SERVICE):
        await router.grpc.serving(router.lifecycle.is_ready, service)
    host = router.config.host
    shown = f"[{host}]" if ":" in host else host
    on_ready({"http": f"http://{shown}:{listener.getsockname()[1]}", "grpc": f"{shown}:{router.grpc.port}"})


async def _drain(router: _Router) -> None:
    """Finish what runs, within the drain time; new requests are refused meanwhile, by name."""
    await router.grpc.serving(False, SERVICE)
    try:
        async with asyncio.timeout(router.config.drain_s):
            await router.dispatcher.wait_idle()
    except TimeoutError:
        log.warning("%d requests are cut off by the drain time", router.dispatcher.active)
    router.http.should_exit = True
    await router.grpc.stop(GRPC_CLOSE_S)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's delay off (40 ms on a first byte) only for sockets that say that they are TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener

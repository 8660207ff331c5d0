"""Everything a router process is made of, put together.

The only place that constructs. Knows no request. Invariant: nothing listens, dials or runs before `main` says so.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Coroutine, Iterator, Mapping
from functools import partial
from pathlib import Path

from starlette.types import ASGIApp

from pagewire.core.clock import Clock, MonotonicClock
from pagewire.core.errors import Unauthenticated
from pagewire.core.fingerprint import Fingerprint
from pagewire.core.messages import Role
from pagewire.router.authenticator import Authenticator
from pagewire.router.balancing import Balancing
from pagewire.router.cache_watch import CacheWatch
from pagewire.router.config import RouterConfig
from pagewire.router.cross_origin import CrossOrigin
from pagewire.router.dispatch import Dispatcher
from pagewire.router.ejection import Ejection
from pagewire.router.entrance import Entrance
from pagewire.router.fleet import Fleet
from pagewire.router.guard import OPEN_PATHS, GrpcGuard, HttpGuard
from pagewire.router.http import VERSION, FrontDoor
from pagewire.router.http_server import HttpServer
from pagewire.router.intake import Intake
from pagewire.router.live import door as live
from pagewire.router.live.board import Board
from pagewire.router.live.feed import Feed
from pagewire.router.live.snapshot import Snapshots
from pagewire.router.lookup import PrefixLookup
from pagewire.router.metrics import RouterMetrics
from pagewire.router.models import Models, ModelSource, ServedModel
from pagewire.router.observers import Observers
from pagewire.router.operators import OperatorDoor
from pagewire.router.outliers import Rules
from pagewire.router.placing import Placer
from pagewire.router.pods import PodPool
from pagewire.router.policies.named import policy_named, targets_of
from pagewire.router.request_counts import RequestCounts
from pagewire.router.role_changes import RoleChanges
from pagewire.router.rpc import SERVICE, Inference, reflect
from pagewire.router.sampling_defaults import sampling_defaults
from pagewire.serving.block_index import BlockIndex
from pagewire.serving.certificate_expiry import CertificateExpiry
from pagewire.serving.grpc_server import GrpcServer
from pagewire.serving.grpc_service import Patience
from pagewire.serving.handshake import Identity
from pagewire.serving.leases import Leases
from pagewire.serving.lifecycle import Lifecycle
from pagewire.serving.redis_address import RedisAddress
from pagewire.serving.registry import Registry
from pagewire.serving.tracing import Exporter, Process, Tracing
from pagewire.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

UNREAD_BYTES = 256 << 10  # of a gRPC call
HEALTH_S = 1.0  # pods say with each heartbeat whether they drain
STRANGER_ROUNDS = 5  # of discovery, in which a new pod is surely heard of


class Router:
    """Everything a router process is made of."""

    def __init__(self, config: RouterConfig, lifecycle: Lifecycle, exporter: Exporter | None = None) -> None:
        secret, incarnation = config.cluster_secret.encode(), uuid.uuid4().hex
        name = f"{config.name}-{incarnation[:8]}"

        def identity(fingerprint: Fingerprint | None) -> Identity:
            return Identity(
                peer_id=name, incarnation=incarnation, role=Role.ROUTER, secret=secret, fingerprint=fingerprint
            )

        self.config = config
        self.lifecycle = lifecycle
        redis = RedisAddress.parse(config.redis_url, config.redis_ca, cert=config.redis_cert, key=config.redis_key)
        self.registry = Registry(redis, config.cluster)
        self.leases = Leases(redis, config.cluster)
        self.index = BlockIndex(redis, config.cluster, timeout_s=config.index_timeout_s)
        self.cache_watch = CacheWatch()
        self.clock = MonotonicClock()
        self.metrics = metrics = RouterMetrics()
        sources = [ModelSource.parse(each) for each in config.model]
        tokenizers = [Tokenizer(source.folder) for source in sources]
        pools = [self._pool(source, tokenizer.digest) for source, tokenizer in zip(sources, tokenizers, strict=True)]
        self.fleet = Fleet(self.registry, pools, identity, discovery_s=config.discovery_s, wire=config.wire())
        self.models = Models(
            [
                self._model(source, tokenizer, pool)
                for source, tokenizer, pool in zip(sources, tokenizers, pools, strict=True)
            ]
        )
        metrics.watch_index(self.index, [model.lookup for model in self.models], self._is_index_away)
        metrics.watch({model.pool: model.placer.calibration for model in self.models})
        metrics.watch_requests({model: model.counts for model in self.models}, config.name)
        metrics.ejected.set_function(lambda: sum(len(model.pool.ejected()) for model in self.models))
        metrics.watch_dials(lambda: self.fleet.broken_dials)
        metrics.watch_certificates(CertificateExpiry(config.certificates))
        metrics.waiting.set_function(lambda: sum(model.entrance.num_waiting for model in self.models))
        for slo in next(iter(self.models)).entrance.gate.judges:
            metrics.slo_active.labels(slo).set_function(partial(self._num_refusing, slo, self.clock))
        board = Board()
        tracing = None
        if exporter is not None:
            tracing = Tracing(exporter, Process("pagewire-router", name), ratio=config.trace_ratio)
            metrics.watch_tracing(tracing)
        self.dispatcher = Dispatcher(
            config=config,
            models=self.models,
            lifecycle=lifecycle,
            observers=Observers(metrics, board, self.clock, name=config.name, tracing=tracing),
            clock=self.clock,
        )
        self.feed = self._feed(board)
        self.authenticator = Authenticator(
            Path(config.api_keys) if config.api_keys else None, secret=secret, operator_key=config.operator_key
        )

        def refused(error: Unauthenticated) -> None:
            metrics.requests.labels(error.cause).inc()

        door = FrontDoor(
            dispatcher=self.dispatcher,
            models=self.models,
            index=self._index_state,
            lifecycle=lifecycle,
            metrics=metrics,
            max_body_bytes=config.max_body_bytes,
            max_bodies_bytes=config.room_for_bodies,
        )
        edge = config.edge()
        self.changes = RoleChanges(pools, self.leases, self.clock, wait_s=config.role_change_wait_s)
        app = door.app((*OperatorDoor(self.changes).routes(), *live.LiveDoor(self.feed).routes()))
        open_paths = OPEN_PATHS | live.OPEN_PATHS | ({"/metrics"} if config.open_metrics else set())
        guarded: ASGIApp = HttpGuard(app, self.authenticator, refused, open_paths=open_paths)
        if config.allow_origin:
            guarded = CrossOrigin(guarded, config.allow_origin)
        self.http = HttpServer(guarded, edge, upload_s=config.upload_s, stall_s=config.stall_s)
        guard = GrpcGuard(self.authenticator, refused)
        patience = Patience(
            upload_s=config.upload_s,
            stall_s=config.stall_s,
            most_read=config.room_for_bodies // config.max_body_bytes,
        )
        inference = Inference(self.dispatcher, self.models, self.cache_watch, patience, watch_s=config.watch_s)
        self.grpc = GrpcServer(
            config.host,
            config.grpc_port,
            (inference.handler(),),
            interceptors=(guard,),
            credentials=edge.server() if edge else None,
            shares_port=config.reuse_port,
            max_request_bytes=config.max_body_bytes,
            unread_bytes=UNREAD_BYTES,
            silence_s=config.silence_s,
        )
        if config.grpc_reflection:
            reflect(self.grpc.server)

    def _feed(self, board: Board) -> Feed:
        about = {"router": self.config.name, "version": VERSION}
        snapshots = Snapshots(self.models, board, targets_of(self.config), self.clock, about)
        return Feed(snapshots, self.clock, watch_s=self.config.watch_s)

    def _num_refusing(self, slo: str, clock: Clock) -> int:
        return sum(model.entrance.gate.is_active(slo, clock) for model in self.models)

    def background(self) -> Iterator[Coroutine[None, None, None]]:
        """Yield what runs beside the doors, until it is cancelled."""
        yield self.fleet.run()
        yield self.authenticator.run()
        for model in self.models:
            yield model.lookup.run()
            yield self._keep_health(model.pool)
            if self.config.rebalance == "on":
                yield self._balancing(model).run()

    def reload(self) -> None:
        """Read the key file again; certificates need no telling."""
        self.authenticator.reload()

    def tell_health(self) -> None:
        """Say of the service if a request would be admitted and some pod could take it; the empty name is liveness."""
        self.grpc.serving(self.lifecycle.is_ready and self.models.can_serve, SERVICE)

    async def aclose(self) -> None:
        """End what it listens and speaks with, and the tokenizers' threads."""
        await self.grpc.stop(0.0)
        for way in (self.changes, self.index, self.leases, self.registry):
            await way.aclose()
        for model in self.models:
            model.tokenizer.close()

    async def _keep_health(self, pool: PodPool) -> None:
        while True:
            await pool.wait_change(HEALTH_S)
            self.tell_health()

    def _balancing(self, model: ServedModel) -> Balancing:
        name = model.source.name or model.tokenizer.digest  # a folder is not called the same on every router
        return Balancing(model.pool, self.changes, self.leases, self.config.rebalance_rules(), self.clock, model=name)

    def _pool(self, source: ModelSource, tokenizer_digest: str) -> PodPool:
        config = self.config
        rules = Rules(
            failures=config.breaker_failures,
            open_s=config.eject_s,
            max_share=config.max_ejected_share,
            panic_share=config.panic_share,
        )
        told = self.metrics.ejections
        ejection = Ejection(rules, self.clock, on_ejected=lambda cause: told.labels(cause.value).inc())
        return PodPool(
            name=source.name, tokenizer_digest=tokenizer_digest, cache_watch=self.cache_watch, ejection=ejection
        )

    def _model(self, source: ModelSource, tokenizer: Tokenizer, pool: PodPool) -> ServedModel:
        config = self.config
        placer = Placer(
            pool,
            policy_named(config),
            mode=config.prefill_mode,
            policy_name=config.policy,
            targets=targets_of(config),
        )
        return ServedModel(
            source=source,
            tokenizer=tokenizer,
            intake=Intake(
                tokenizer,
                lambda: pool.fingerprint,
                max_timeout_s=config.request_timeout_s,
                open_answer_tokens=config.open_answer_tokens,
                tool_format=config.tool_format,
                reasoning_format=config.reasoning_format,
                defaults=sampling_defaults(source.folder) if config.generation_config == "auto" else {},
            ),
            pool=pool,
            lookup=PrefixLookup(
                pool,
                self.fleet,
                self.index,
                secret=config.cluster_secret.encode(),
                stranger_s=STRANGER_ROUNDS * config.discovery_s,
            ),
            placer=placer,
            entrance=Entrance(config=config, pool=pool, placer=placer, metrics=self.metrics, clock=self.clock),
            counts=RequestCounts(targets_of(config)),
        )

    def _is_index_away(self) -> bool:
        # Short prompts ask the index nothing, so that look-ups alone would not tell that Redis is away.
        return self.index.is_away or self.fleet.is_blind

    def _index_state(self) -> Mapping[str, object]:
        alarms = {model.title: model.lookup.alarm for model in self.models}
        told = {title: {"cause": alarm.cause, "text": alarm.text} for title, alarm in alarms.items() if alarm}
        state = {"state": "away" if self._is_index_away() else "up", "alarms": told}
        return {"refused": self.fleet.refused(), "index": state}

"""Real pods before peers that send anything: links and bulk streams end by name, and the pods answer on.

The peers hold the cluster's secret, or not; what they say is made of right messages by mutations of `fuzz_messages`.
An error that a pod did not expect is a finding, for each is logged as one. The router's doors are fuzzed in
tests/router. `FUZZ_TIMES` 10 has ten times the cases.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from random import Random

import grpc
import pytest
import tiny_model
from engine_runs import greedy, spec
from fuzz_messages import mutated, spoiled
from fuzz_mutators import fields
from google.protobuf.message import Message
from pods import SECRET, Pod, Pods, pods

from pagewire.core.block_hash import BlockHash
from pagewire.core.engine_messages import Held, Hold
from pagewire.core.errors import InvalidRequest
from pagewire.core.messages import (
    Cancel,
    Challenge,
    ChangeRole,
    Fetch,
    Heartbeat,
    Landed,
    LinkMessage,
    Role,
    Run,
    ShipmentFailed,
    Stop,
    Submit,
)
from pagewire.engine import frames
from pagewire.kvtransfer import greeting_wire, wire
from pagewire.kvtransfer.greeting import Greeter
from pagewire.kvtransfer.ticket import TicketClaims, TicketKey
from pagewire.kvtransfer.transport import ShipmentKey
from pagewire.kvtransfer.transports.stream import METHOD as BULK
from pagewire.protos import link_pb2
from pagewire.serving.codec import LINK_CODEC
from pagewire.serving.handshake import Identity
from pagewire.serving.link import CHANNEL_OPTIONS
from pagewire.serving.link import METHOD as LINK

TIMES = int(os.environ.get("FUZZ_TIMES", "1"))
SEED = os.environ.get("FUZZ_SEED", "1")
PEERS = 24 * TIMES  # in turn, on each kind of stream of each pod
WAIT_S = 30.0
PROMPT = range(5, 45)
NUMBERS = itertools.count(1)  # a ticket is good once


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.build(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def cluster(model: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Pods]:
    """Return a prefill and a decode pod, which must not have been surprised by anything when the test is over."""
    caplog.set_level(logging.ERROR)
    async with pods(model) as cluster:
        yield cluster
        await answers_on(cluster)
        await cluster.assert_at_rest()
    surprises = [record.getMessage() for record in caplog.records if record.exc_info]
    assert not surprises, caplog.text


async def answers_on(cluster: Pods) -> None:
    asked = await cluster.ask(f"good-{next(NUMBERS)}", PROMPT, 4)
    assert asked.cause == ""
    assert len(asked.tokens) == 4


# ---------------------------------------------------------------------------------------------------------------- links


def right_messages(pod: Pod, peer: str) -> list[LinkMessage]:
    """Return what a router or a pod may say, all of a new request."""
    number = next(NUMBERS)
    asked = spec(f"fuzzed-{number}", PROMPT, greedy(3))
    claims = TicketClaims(
        request_id=asked.request_id, source=pod.pod_id, target=peer, shipment_id=number, first_block=0, generation=1
    )
    ticket = TicketKey(SECRET.encode()).mint(claims, pod.wall_s + 60)
    shipment = {"generation": 1, "shipment_id": number, "first_block": 0, "ticket": ticket, "lease_s": 5.0}
    hashes = (BlockHash(bytes(16)), BlockHash(bytes(range(16))))
    return [
        Submit(spec=asked, prefill="local", deadline_s=5.0),
        Submit(spec=dataclasses.replace(asked, sampling=greedy(3, n=2), request_id=f"fuzzed-{next(NUMBERS)}")),
        Run(spec=asked, ship=False, deadline_s=5.0, **shipment),  # type: ignore[arg-type]
        Run(spec=asked, ship=True, deadline_s=5.0, **shipment),  # type: ignore[arg-type]
        Fetch(request_id=asked.request_id, hashes=hashes, deadline_s=5.0, **shipment),  # type: ignore[arg-type]
        Stop(request_id=asked.request_id, index=0),
        Cancel(request_id=asked.request_id, reason="client"),
        Landed(request_id=asked.request_id, generation=1),
        Heartbeat(wants_cache=True),
        ChangeRole(role=Role.DECODE),
    ]


def changed(message: LinkMessage, random: Random) -> bytes:
    """Return a frame that is perhaps no right one any more."""
    batch: Message = link_pb2.Frames.FromString(LINK_CODEC.encode(message))
    for _ in range(random.randrange(3)):
        batch = mutated(batch, random)
    return spoiled(batch.SerializeToString(), random) if random.random() < 0.1 else batch.SerializeToString()


async def talk(address: str, greet: Callable[[Challenge], bytes], then: Sequence[bytes]) -> None:
    """Open a link, greet, say it all, and hang up; fails where the server is no longer there."""
    async with grpc.aio.insecure_channel(address) as channel, asyncio.timeout(WAIT_S):
        await channel.channel_ready()
        call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(LINK)()  # type: ignore[assignment]
        try:
            challenge = LINK_CODEC.decode_one(await call.read())  # type: ignore[arg-type]
            assert isinstance(challenge, Challenge)
            await call.write(greet(challenge))
            await call.read()
            for message in then:
                await call.write(message)
            await asyncio.sleep(0.05)
        except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
            return  # it was refused, as it should be
        finally:
            call.cancel()


@pytest.mark.parametrize("role", [Role.DECODE, Role.PREFILL])
async def test_links_end_by_name_whatever_a_peer_says(cluster: Pods, role: Role) -> None:
    random = Random(f"{role} {SEED}")
    pod = cluster.p if role is Role.PREFILL else cluster.d
    for number in range(PEERS):
        name = random.choice(("router-x", "d9"))
        identity = Identity(
            peer_id=name, incarnation=str(number), role=Role.ROUTER if name == "router-x" else Role.DECODE,
            secret=SECRET.encode(), transports=("grpc",), fingerprint=pod.engine.ready.fingerprint,
        )  # fmt: skip
        said = [each for _ in range(4) for each in right_messages(pod, name)]
        then = [changed(random.choice(said), random) for _ in range(16)]

        def greet(challenge: Challenge, identity: Identity = identity, number: int = number) -> bytes:
            hello = identity.hello(challenge, number, bytes(16))
            return changed(hello, random) if number % 4 == 0 else LINK_CODEC.encode(hello)

        await talk(pod.address, greet, then)
        if number % 8 == 7:
            await answers_on(cluster)


async def test_bulk_streams_end_by_name_whatever_a_peer_says(cluster: Pods) -> None:
    random = Random(f"bulk {SEED}")
    pod = cluster.p
    block_bytes, layout = pod.engine.pool.block_bytes, pod.engine.ready.layout
    greeter = Greeter(peer_id="d9", block_bytes=block_bytes, order=layout.order.value, secret=SECRET.encode())
    for number in range(PEERS):
        async with grpc.aio.insecure_channel(pod.address) as channel, asyncio.timeout(WAIT_S):
            call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(BULK)()  # type: ignore[assignment]
            challenge = greeting_wire.decode_challenge(await call.read())  # type: ignore[arg-type]
            window = random.choice((0, 1, 2**20, 2**63, 2**64 - 1))
            hello = greeter.hello(
                pod.pod_id, challenge, bytes(16), window, carrier=random.choice(("grpc", "", "shm", "tcp"))
            )
            said = greeting_wire.encode_hello(hello)
            credit = wire.encode_credit(wire.Credit(ShipmentKey(number, 1), random.choice((0, 2**64 - 1))))
            try:
                await call.write(fields(said, random, ()) if number % 3 == 0 else said)
                await call.read()
                for _ in range(4):
                    await call.write(random.choice((credit, fields(credit, random, ()), said, b"", b"PWKV")))
                await asyncio.sleep(0.02)
            except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
                continue
            finally:
                call.cancel()
        if number % 8 == 7:
            await answers_on(cluster)


async def test_what_no_engine_can_be_told_is_refused_by_name(cluster: Pods) -> None:
    asked = await cluster.ask("x" * (frames.MAX_FRAME_BYTES + 1), PROMPT, 4)
    assert asked.cause == InvalidRequest.cause
    assert [each.engine.exited.is_set() for each in (cluster.p, cluster.d)] == [False, False]
    await answers_on(cluster)


async def test_a_fetch_that_the_engine_cannot_be_asked_for_fails_by_name(
    cluster: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = cluster.p

    async def refuse(_command: Hold) -> Held:
        raise InvalidRequest("too many hashes for a frame")  # as an engine of its own process would

    monkeypatch.setattr(pod.engine, "hold", refuse)
    (fetch,) = (each for each in right_messages(pod, "d9") if isinstance(each, Fetch))
    identity = Identity(
        peer_id="d9", incarnation="1", role=Role.DECODE, secret=SECRET.encode(), transports=("grpc",),
        fingerprint=pod.engine.ready.fingerprint,
    )  # fmt: skip
    async with grpc.aio.insecure_channel(pod.address, options=CHANNEL_OPTIONS) as channel, asyncio.timeout(WAIT_S):
        call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(LINK)()  # type: ignore[assignment]
        challenge = LINK_CODEC.decode_one(await call.read())  # type: ignore[arg-type]
        assert isinstance(challenge, Challenge)
        await call.write(LINK_CODEC.encode(identity.hello(challenge, 1, bytes(16))))
        await call.write(LINK_CODEC.encode(fetch))
        failed = None
        while failed is None:
            data = await call.read()
            assert data is not grpc.aio.EOF, await call.details()
            said = LINK_CODEC.decode(data)  # type: ignore[arg-type]
            failed = next((each for each in said if isinstance(each, ShipmentFailed)), None)
        call.cancel()
    assert (failed.request_id, failed.error.cause) == (fetch.request_id, InvalidRequest.cause)
    await answers_on(cluster)

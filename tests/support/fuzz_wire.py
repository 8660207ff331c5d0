"""What comes over the wires between processes, and out of Redis: its parsers, as `fuzz_parser` has them.

What follows a proof is fuzzed behind a right one: who holds the secret may yet be of another version, or broken.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import socket
import struct
import typing
from collections.abc import Callable, Coroutine, Iterator, Sequence
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any

from fuzz_mutators import as_json, behind_length, fields, first_of, messages, text
from fuzz_parser import Parser

from pagewire.core.cache_events import CacheEvents
from pagewire.core.clock import ManualClock
from pagewire.core.cuda_export import Export
from pagewire.core.engine_messages import EngineMessage
from pagewire.core.errors import PeerMismatch, TransferFailed, Unauthenticated
from pagewire.core.fingerprint import Fingerprint
from pagewire.core.index_member import index_id_of, member
from pagewire.core.kv_layout import KVLayout
from pagewire.core.messages import (
    NONCE_BYTES,
    Cancel,
    Challenge,
    Ended,
    Heartbeat,
    Hello,
    LinkMessage,
    Role,
    Tokens,
    Welcome,
)
from pagewire.core.sampling import FinishReason
from pagewire.core.token_door import TOKEN_BYTES
from pagewire.core.token_record import TokenRecord
from pagewire.core.trace_context import TraceContext, is_in_ratio
from pagewire.engine import frames
from pagewire.kvtransfer import greeting_wire, wire
from pagewire.kvtransfer.greeting import Greeter
from pagewire.kvtransfer.inbox import Inbox as BulkInbox
from pagewire.kvtransfer.outbox import Outbox
from pagewire.kvtransfer.ticket import TicketClaims, TicketKey
from pagewire.kvtransfer.transport import Flow, ShipmentKey, TransferCounters
from pagewire.kvtransfer.transports.communicator import Rendezvous
from pagewire.kvtransfer.transports.cuda_card import NUM_EVENTS, CudaCard
from pagewire.kvtransfer.transports.line import SocketLine
from pagewire.kvtransfer.transports.shm import ShmInlet
from pagewire.kvtransfer.transports.tcp import TcpInlet
from pagewire.kvtransfer.wire import MalformedMessage
from pagewire.protos import engine_pb2, link_pb2
from pagewire.router.cache_watch import CacheNews
from pagewire.router.codec import cache_news_to_wire
from pagewire.router.inbox import Inbox
from pagewire.router.prefix_index import held, probes
from pagewire.serving.block_index import BlockIndex
from pagewire.serving.codec import LINK_CODEC
from pagewire.serving.handshake import Identity
from pagewire.serving.line import LinkSocket
from pagewire.serving.redis_address import RedisAddress
from pagewire.serving.redis_pipe import _Wire
from pagewire.serving.redis_servers import RedisServers
from pagewire.serving.registration import Registration

SECRET = b"the secret of a cluster"
BLOCK_BYTES = 64
KEY = ShipmentKey(7, 1)
FINGERPRINT = Fingerprint(
    model_name="m", model_digest="d", tokenizer_digest="t", kv_fingerprint="k", kv_layout="l", block_size=16,
    hash_version=1, max_model_len=512,
)  # fmt: skip
CLAIMS = TicketClaims(request_id="r", source="p0", target="d0", shipment_id=7, first_block=0, generation=1)


def sample(hint: Any) -> Any:
    """Return a value of a type, every field of it set."""
    if typing.get_origin(hint) in (typing.Union, UnionType):
        return sample(next(arm for arm in typing.get_args(hint) if arm is not NoneType))
    if typing.get_origin(hint) is tuple:
        return (sample(typing.get_args(hint)[0]),) * 2
    hint = getattr(hint, "__supertype__", hint)
    if hint is KVLayout:
        return KVLayout(num_layers=2, num_kv_heads=2, head_dim=8, block_size=16, dtype="float32")
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return typing.cast(Any, hint)(**{each.name: sample(hints[each.name]) for each in dataclasses.fields(hint)})
    if issubclass(hint, StrEnum):
        return next(iter(hint))
    return {bool: True, int: 7, float: 0.5, str: "a", bytes: b"0123456789abcdef"}[hint]


def run(parse: Callable[[bytes], Coroutine[Any, Any, None]]) -> Callable[[bytes], None]:
    """Return what runs `parse` in a loop of its own; what the loop would only have logged is raised."""

    def parsed(data: bytes) -> None:
        unheard: list[BaseException] = []
        with asyncio.Runner() as runner:
            runner.get_loop().set_exception_handler(
                lambda loop, context: unheard.append(context.get("exception") or RuntimeError(context["message"]))
            )
            runner.run(parse(data))
        if unheard:
            raise unheard[0]

    return parsed


# ---------------------------------------------------------------------------------------------------------------- links


def _identity(name: str, role: Role) -> Identity:
    return Identity(
        peer_id=name, incarnation="1", role=role, secret=SECRET, fingerprint=FINGERPRINT, transports=("grpc",)
    )


POD, ROUTER = _identity("d0", Role.DECODE), _identity("router", Role.ROUTER)
DARE = Challenge(nonce=bytes(NONCE_BYTES))
HELLO = ROUTER.hello(DARE, 1, bytes(NONCE_BYTES))


def _greeted(data: bytes) -> None:
    hello = LINK_CODEC.decode_one(data)
    if not isinstance(hello, Hello):
        raise PeerMismatch(type(hello).__name__)
    try:
        POD.answer(DARE, hello)
    except Unauthenticated:
        POD.answer(DARE, dataclasses.replace(hello, proof=POD._proof(hello, DARE.nonce, hello.nonce)))


def _welcomed(data: bytes) -> None:
    welcome = LINK_CODEC.decode_one(data)
    if not isinstance(welcome, Welcome):
        raise PeerMismatch(type(welcome).__name__)
    try:
        ROUTER.check(HELLO, welcome)
    except Unauthenticated:
        ROUTER.check(HELLO, dataclasses.replace(welcome, proof=ROUTER._proof(welcome, HELLO.proof)))


def _engine_frames(data: bytes) -> None:
    """Read frames as the front does, one behind the other."""
    at = 0
    while len(data) - at >= frames.HEADER_BYTES:
        length = frames.body_length(data[at : at + frames.HEADER_BYTES])
        frames.unpack(data[at + frames.HEADER_BYTES : at + frames.HEADER_BYTES + length])
        at += frames.HEADER_BYTES + length


def _told_of_caches(data: bytes) -> None:
    """Take cache events as a router does that somebody subscribed to."""
    for message in LINK_CODEC.decode(data):
        if isinstance(message, CacheEvents):
            news = CacheNews(pod_id="d0", incarnation="1", sequence=message.sequence, body=message)
            cache_news_to_wire(news).SerializeToString()


CACHE_EVENTS = (
    CacheEvents(sequence=3, hashes=(sample(bytes),), depths=(0,), tiers=(1,), evicted=(sample(bytes),)),
    CacheEvents(sequence=3, hashes=(sample(bytes),) * 2, depths=(0, 1), tiers=(0, 0), part=0, num_parts=1),
)


def _streamed(data: bytes) -> None:
    """Take a pod's tokens as a router does that waits for those of two sequences."""
    inbox = Inbox(positions={0: 0, 1: 0}, limit=64, clock=ManualClock(), has_logprobs=False)
    for message in LINK_CODEC.decode(data):
        if isinstance(message, Tokens):
            inbox.put([record for record in message.records if record.request_id == "r"])
        elif isinstance(message, Ended):
            inbox.end(message)


def _records(position: int, reason: FinishReason | None = None) -> Tokens:
    return Tokens(
        records=tuple(
            TokenRecord(request_id="r", index=index, position=position, tokens=(5,), finish_reason=reason)
            for index in range(2)
        )
    )


# --------------------------------------------------------------------------------------------------------------- blocks

TICKETS = TicketKey(SECRET)


def _ticket(data: bytes) -> None:
    """Verify a ticket; one of the right length is signed anew too, as by one who holds the secret."""
    try:
        TICKETS.verify(data, CLAIMS, 1000.0)
    except Unauthenticated:
        if len(data) != len(TICKETS.mint(CLAIMS, 1000.0)):
            raise
        TICKETS.verify(data[:9] + TICKETS._mac(data[:9], CLAIMS), CLAIMS, 1000.0)


def _blocks(data: bytes) -> None:
    """Take a message of blocks as a stream does that nobody waits at."""
    inbox = BulkInbox(BLOCK_BYTES, 1 << 20, TransferCounters(), lambda credit: None)
    if wire.is_sums(data):
        inbox.summed(wire.decode_sums(data, BLOCK_BYTES))
    else:
        ready = wire.decode_ready(data, BLOCK_BYTES)
        inbox.accept(ready)
        _ = ready.indices, inbox.claim(4)


def _block_messages() -> list[bytes]:
    payloads = [memoryview(bytes([value] * BLOCK_BYTES)) for value in range(2)]
    sums = wire.checksums(KEY, range(2, 6, 2), payloads)
    ready = functools.partial(wire.encode_ready, KEY, range(2, 6, 2), BLOCK_BYTES, (4, 9))
    return [
        wire.encode_blocks(KEY, range(2), payloads),
        ready(sums, 5),
        ready(()),
        ready((), sums_follow=True),
        wire.encode_sums(wire.Sums(KEY, range(2, 6, 2), sums), BLOCK_BYTES),
    ]


def _credit(data: bytes) -> None:
    outbox = Outbox(BLOCK_BYTES, Flow(window_bytes=1 << 20, message_bytes=1 << 10))
    outbox.add(KEY, [(0, 0)])
    outbox.take()
    outbox.credit(wire.decode_credit(data))
    outbox.take()


SOURCE = Greeter(peer_id="p0", block_bytes=BLOCK_BYTES, order="nlhbd", secret=SECRET)
TAKER = Greeter(peer_id="d0", block_bytes=BLOCK_BYTES, order="nlhbd", secret=SECRET)
CHALLENGE, NONCE = bytes(range(16)), bytes(16)
BULK_HELLO = TAKER.hello("p0", CHALLENGE, NONCE, 1 << 20, carrier="grpc")


def _bulk_greeting(data: bytes) -> None:
    """Take what may come first on a bulk stream, at either end, also behind a right proof."""
    kind = data[5:6]
    if kind == bytes([wire.Kind.CHALLENGE]):
        TAKER.hello("p0", greeting_wire.decode_challenge(data), NONCE, 1 << 20)
    elif kind == bytes([wire.Kind.WELCOME]):
        welcome = greeting_wire.decode_welcome(data)
        try:
            TAKER.check("p0", BULK_HELLO, CHALLENGE, welcome)
        except Unauthenticated:
            proof = TAKER._proof("p0", BULK_HELLO, CHALLENGE, welcome)
            TAKER.check("p0", BULK_HELLO, CHALLENGE, dataclasses.replace(welcome, proof=proof))
    else:
        hello = greeting_wire.decode_hello(data)
        try:
            SOURCE.admit(hello, CHALLENGE)
        except Unauthenticated:
            SOURCE.admit(dataclasses.replace(hello, proof=SOURCE._proof("p0", hello, CHALLENGE)), CHALLENGE)


def _bulk_greetings() -> list[bytes]:
    return [
        greeting_wire.encode_challenge(CHALLENGE),
        greeting_wire.encode_hello(BULK_HELLO),
        greeting_wire.encode_welcome(SOURCE.welcome(BULK_HELLO, CHALLENGE, b"card", 2)),
    ]


async def _on_a_socket(data: bytes) -> None:
    """Read messages off a socket as the line beside a stream does."""
    ours, theirs = socket.socketpair()
    line = SocketLine()
    with ours, theirs:
        ours.setblocking(False)
        line.attach(ours.dup())
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        try:
            while (message := await line.read()) is not None:
                _blocks(message)
        finally:
            line.close()


def _socket_messages() -> list[bytes]:
    return [struct.pack("<I", len(each)) + each for each in _block_messages()]


class _Memory:
    """As much of a pool as a card is opened for."""

    block_bytes, num_blocks = BLOCK_BYTES, 4


async def _shm_card(data: bytes) -> None:
    """Open a card of shm's; whoever it points to does not answer."""
    inlet = ShmInlet(typing.cast(Any, _Memory()), "p0")
    try:
        await inlet.open(data)
    finally:
        inlet.close()


async def _tcp_card(data: bytes) -> None:
    """Open a card of tcp's; port 1 of this host is nobody's, and no other is dialled."""
    inlet = TcpInlet(typing.cast(Any, _Memory()))
    try:
        await inlet.open(data[: 2 * TOKEN_BYTES] + b"\x01\x00127.0.0.1" if len(data) > 2 * TOKEN_BYTES + 2 else data)
    finally:
        inlet.close()


async def _payload(data: bytes) -> None:
    """Receive what a source says after its greeting, as tcp does: messages, each with its payload."""
    ours, theirs = socket.socketpair()
    inlet = TcpInlet(typing.cast(Any, _Memory()), 1 << 20)
    with ours, theirs:
        ours.setblocking(False)
        inlet._socket_line.attach(ours.dup())
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        try:
            while (message := await inlet.line.read()) is not None:
                if not wire.is_sums(message):
                    await inlet.arrived(wire.decode_ready(message, BLOCK_BYTES))
        finally:
            inlet.close()


async def _link_socket(data: bytes) -> None:
    """Take what comes over a link's socket, as far as that goes."""
    ours, theirs = socket.socketpair()
    heard: list[bytes] = []
    with theirs:
        line = await LinkSocket.over(ours)
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        await line.carry(heard.append)
    for message in heard:
        list(LINK_CODEC.decode(message))


def _link_messages() -> list[bytes]:
    frames = [LINK_CODEC.encode(message) for message in (Cancel(request_id="r", reason="client"), Heartbeat())]
    return [b"".join(struct.pack("<I", len(frame)) + frame for frame in (*frames, frames[0] + frames[1]))]


def _payloads() -> list[bytes]:
    ready = wire.encode_ready(KEY, range(2), BLOCK_BYTES, (3, 1), (7, 8))
    payload = struct.pack("<I", 1 << 31 | 2 * BLOCK_BYTES) + bytes(2 * BLOCK_BYTES)
    return [struct.pack("<I", len(ready)) + ready + payload]


CUDA_CARD = CudaCard(
    num_blocks=9, token=bytes(TOKEN_BYTES), parts=(Export(bytes(64), 512),) * 2, events=(bytes(64),) * NUM_EVENTS,
    address=b"\0socket",
)  # fmt: skip
RENDEZVOUS = Rendezvous(host="127.0.0.1", port=29500, name=bytes(16), idle_s=60.0)

# ---------------------------------------------------------------------------------------------------------------- Redis

REGISTRATION = Registration(
    pod_id="d0", incarnation="1", role=Role.DECODE, address="127.0.0.1:1", metrics="", fingerprint=FINGERPRINT,
    index_id=9,
)  # fmt: skip
LIVE = {member(9, 0): ("d0", 0), member(9, 1): ("d0", 1)}
HASHES = [bytes([number]) * 16 for number in range(24)]
ASKED = probes(typing.cast(Any, HASHES))


async def _replies(data: bytes, count: int) -> list[object]:
    """Return what our connection to a Redis makes of the bytes of a server that was asked `count` times."""
    ours, theirs = socket.socketpair()
    with theirs:
        _, pipe = await asyncio.get_running_loop().create_connection(_Wire, sock=ours)
        answer = pipe.ask(b"", count)
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        try:
            return await answer
        except ConnectionError:
            return []
        finally:
            pipe.drop("over")


class _Pipe:
    """A server that has answered already."""

    def __init__(self, answers: list[object]) -> None:
        self._answers = answers

    async def ask(self, payload: bytes, count: int, timeout_s: float) -> Sequence[object]:
        if not self._answers:
            raise ConnectionError("the server is away")
        return self._answers

    def close(self) -> None:
        """There is nothing to close."""


async def _looked_up(data: bytes) -> None:
    """Read a prefix's holders out of whatever a server answered."""
    index = BlockIndex(RedisAddress.parse("redis://127.0.0.1:1"), "c")
    index._servers._pipes[index._servers._answered] = typing.cast(Any, _Pipe(await _replies(data, len(ASKED))))
    found = await index.lookup(typing.cast(Any, [probe.block_hash for probe in ASKED]))
    assert found is not None or index.failures
    holders = held(ASKED, found or [()] * len(ASKED), LIVE, 24 * 16, 16)
    for _, name in holders.unknown:
        index_id_of(name)


async def _slots(data: bytes) -> None:
    servers = RedisServers(RedisAddress.parse("redis+cluster://127.0.0.1:1"))
    for answer in await _replies(data, 1):
        servers._map(answer, ("127.0.0.1", 1))


def _array(*items: bytes) -> bytes:
    return b"*%d\r\n" % len(items) + b"".join(items)


def _bulk(data: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(data), data)


NODE = _array(_bulk(b"10.0.0.1"), b":7000\r\n", _bulk(b"id"))
REPLY_WORDS = (
    b"*-1\r\n", b"$-1\r\n", b":9223372036854775807\r\n", b":-1\r\n", b"*0\r\n", b"*1\r\n", b"%1\r\n", b"~1\r\n",
    b"_\r\n", b"#t\r\n", b",nan\r\n", b"(3492890328409238509324850943850943825024385\r\n", b"=5\r\ntxt:x\r\n",
    b"+OK\r\n", b"-WRONGTYPE x\r\n", b"-MOVED 1 a:1\r\n", b"-LOADING\r\n", b">1\r\n", b"$3\r\n\xff\xfe\xfd\r\n",
)  # fmt: skip


def replies(data: bytes, random: Any, words: Sequence[str]) -> bytes:
    """Change the answers of a Redis, part by part."""
    parts = data.split(b"\r\n")
    made = [part + b"\r\n" for part in parts if part]
    for _ in range(random.randrange(1, 4)):
        at = random.randrange(len(made) + 1)
        made[at : at + random.randrange(2)] = [random.choice(REPLY_WORDS)]
    return b"".join(made)


def _traced(data: bytes) -> None:
    """Read the header as the doors do: by the letters that HTTP may have in one."""
    if found := TraceContext.parse(data.decode("latin-1")):
        assert TraceContext.parse(found.header) == found
        is_in_ratio(found.trace_id, 0.5)


def _encoded(kinds: Any, encode: Callable[[Any], bytes]) -> Iterator[bytes]:
    return (encode(sample(kind)) for kind in typing.get_args(kinds))


CODEC = ("serving/codec.py",)
FRAMES = messages(link_pb2.Frames)

PARSERS = (
    Parser(
        name="link frames",
        parse=lambda data: list(LINK_CODEC.decode(data)),
        seeds=lambda: [*_encoded(LinkMessage, LINK_CODEC.encode)],
        errors=(PeerMismatch,),
        files=CODEC,
        mutate=FRAMES,
    ),
    Parser(
        name="link hello",
        parse=_greeted,
        seeds=lambda: [LINK_CODEC.encode(HELLO)],
        errors=(PeerMismatch, Unauthenticated),
        files=("serving/handshake.py",),
        mutate=FRAMES,
    ),
    Parser(
        name="link welcome",
        parse=_welcomed,
        seeds=lambda: [LINK_CODEC.encode(POD.answer(DARE, HELLO))],
        errors=(PeerMismatch, Unauthenticated),
        files=("serving/handshake.py",),
        mutate=FRAMES,
    ),
    Parser(
        name="cache events",
        parse=_told_of_caches,
        seeds=lambda: [LINK_CODEC.encode(each) for each in CACHE_EVENTS],
        errors=(PeerMismatch,),
        files=("core/cache_events.py",),
        mutate=FRAMES,
    ),
    Parser(
        name="pods' tokens",
        parse=_streamed,
        seeds=lambda: [b"".join(map(LINK_CODEC.encode, (_records(0), _records(1, FinishReason.STOP))))],
        errors=(PeerMismatch,),
        files=("router/inbox.py",),
        mutate=FRAMES,
    ),
    Parser(
        name="engine frames",
        parse=_engine_frames,
        seeds=lambda: [*_encoded(EngineMessage, frames.pack)],
        errors=(PeerMismatch,),
        files=("engine/frames.py", *CODEC),
        mutate=behind_length(messages(engine_pb2.Frame)),
    ),
    Parser(
        name="ticket",
        parse=_ticket,
        seeds=lambda: [TICKETS.mint(CLAIMS, 1010.0)],
        errors=(Unauthenticated,),
        files=("kvtransfer/ticket.py",),
        mutate=fields,
    ),
    Parser(
        name="bulk blocks",
        parse=_blocks,
        seeds=_block_messages,
        errors=(MalformedMessage,),
        files=("kvtransfer/wire.py", "kvtransfer/inbox.py"),
        mutate=fields,
    ),
    Parser(
        name="bulk credit",
        parse=_credit,
        seeds=lambda: [wire.encode_credit(wire.Credit(KEY, BLOCK_BYTES))],
        errors=(MalformedMessage,),
        files=("kvtransfer/wire.py", "kvtransfer/outbox.py"),
        mutate=fields,
    ),
    Parser(
        name="bulk greeting",
        parse=_bulk_greeting,
        seeds=_bulk_greetings,
        errors=(MalformedMessage, Unauthenticated, PeerMismatch),
        files=("kvtransfer/greeting_wire.py", "kvtransfer/greeting.py"),
        mutate=fields,
    ),
    Parser(
        name="link socket",
        parse=run(_link_socket),
        seeds=_link_messages,
        errors=(PeerMismatch,),
        files=("serving/line.py",),
        mutate=behind_length(fields),
        cost=4,
    ),
    Parser(
        name="bulk socket",
        parse=run(_on_a_socket),
        seeds=_socket_messages,
        errors=(MalformedMessage,),
        files=("kvtransfer/transports/line.py", "kvtransfer/wire.py"),
        mutate=behind_length(fields),
        cost=4,
    ),
    Parser(
        name="shm card",
        parse=run(_shm_card),
        seeds=tuple,
        errors=(TransferFailed,),
        files=("kvtransfer/transports/shm.py", "kvtransfer/transports/descriptor_post.py"),
        mutate=first_of(fields, lambda data, random, words: random.randbytes(TOKEN_BYTES + 8) + b"\0nobody"),
        cost=4,
    ),
    Parser(
        name="tcp card",
        parse=run(_tcp_card),
        seeds=tuple,
        errors=(TransferFailed,),
        files=("kvtransfer/transports/tcp.py", "core/side_door.py"),
        mutate=first_of(fields, lambda data, random, words: random.randbytes(2 * TOKEN_BYTES) + b"\x01\x00127.0.0.1"),
        cost=4,
    ),
    Parser(
        name="tcp payload",
        parse=run(_payload),
        seeds=_payloads,
        errors=(TransferFailed,),
        files=("kvtransfer/transports/tcp.py", "kvtransfer/transports/line.py"),
        mutate=fields,
        cost=4,
    ),
    Parser(
        name="CUDA card",
        parse=CudaCard.from_bytes,
        seeds=lambda: [CUDA_CARD.to_bytes(), dataclasses.replace(CUDA_CARD, events=()).to_bytes()],
        errors=(TransferFailed,),
        files=("kvtransfer/transports/cuda_card.py", "core/cuda_export.py"),
        mutate=fields,
    ),
    Parser(
        name="collective card",
        parse=Rendezvous.read,
        seeds=lambda: [RENDEZVOUS.card()],
        errors=(TransferFailed,),
        files=("kvtransfer/transports/communicator.py",),
        mutate=fields,
    ),
    Parser(
        name="registration in Redis",
        parse=Registration.from_json,
        seeds=lambda: [REGISTRATION.to_json().encode()],
        errors=(ValueError,),
        files=("serving/registration.py",),
        mutate=as_json,
    ),
    Parser(
        name="index in Redis",
        parse=run(_looked_up),
        seeds=lambda: [_array(_bulk(member(9, 1)), _bulk(b"17")) * 3],
        files=("serving/block_index.py", "router/prefix_index.py", "core/index_member.py"),
        mutate=replies,
        cost=4,
    ),
    Parser(
        name="slots of a Redis Cluster",
        parse=run(_slots),
        seeds=lambda: [_array(_array(b":0\r\n", b":8191\r\n", NODE), _array(b":8192\r\n", b":16383\r\n", NODE, NODE))],
        errors=(ValueError,),
        files=("serving/redis_servers.py", "serving/redis_pipe.py"),
        mutate=replies,
        cost=2,
    ),
    Parser(
        name="traceparent",
        parse=_traced,
        seeds=lambda: [b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"],
        files=("core/trace_context.py",),
        mutate=text,
    ),
)

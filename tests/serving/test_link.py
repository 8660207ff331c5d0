"""Links over real loopback gRPC and sockets: handshake, order, heartbeats, silence, reconnection with epochs."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

from pagewire.core.errors import PeerMismatch, Unauthenticated, Unavailable
from pagewire.core.fingerprint import Fingerprint
from pagewire.core.load import Load
from pagewire.core.messages import Cancel, Challenge, Heartbeat, Hello, LinkMessage, Refused, Role, Welcome
from pagewire.core.side_door import Card, SideDoor
from pagewire.core.token_door import TOKEN_BYTES
from pagewire.serving.codec import LINK_CODEC
from pagewire.serving.handshake import Identity
from pagewire.serving.line import LinkSocket, LinkStream
from pagewire.serving.link import (
    CHANNEL_OPTIONS,
    METHOD,
    Link,
    LinkEvents,
    LinkTimes,
)
from pagewire.serving.link_dialer import LinkDialer
from pagewire.serving.link_server import LinkServer

FAST = LinkTimes(heartbeat_s=0.05, silence_s=3.0, connect_s=2.0, reconnect_min_s=0.02, reconnect_max_s=0.05)
PRINT = Fingerprint(
    model_name="m", model_digest="d", tokenizer_digest="t", kv_fingerprint="k", kv_layout="l", block_size=16,
    hash_version=1, max_model_len=128,
)  # fmt: skip


def identity(name: str, secret: bytes = b"s", fingerprint: Fingerprint | None = PRINT) -> Identity:
    return Identity(peer_id=name, incarnation="1", role=Role.DECODE, secret=secret, fingerprint=fingerprint)


class Recorder:
    """Records what a side heard, in order."""

    def __init__(self) -> None:
        self.log: list[str | LinkMessage] = []
        self.changed = asyncio.Event()
        self.links: list[Link] = []

    def events(self) -> LinkEvents:
        return LinkEvents(on_message=self._message, on_up=self._up, on_down=lambda _link: self._note("down"))

    def _message(self, _link: Link, message: LinkMessage) -> None:
        self._note(message)

    def _up(self, link: Link) -> None:
        self.links.append(link)
        self._note("up")

    def _note(self, what: str | LinkMessage) -> None:
        self.log.append(what)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


class Served:
    """A gRPC server with a LinkServer, which can be stopped and started on the same port."""

    def __init__(self, recorder: Recorder, who: Identity, door: SideDoor | None = None) -> None:
        self.links = LinkServer(lambda: who, recorder.events(), times=FAST, load=lambda: Load(num_running=7), door=door)
        self.port = 0
        self.server: grpc.aio.Server | None = None

    async def start(self) -> str:
        self.server = grpc.aio.server(options=CHANNEL_OPTIONS)
        self.server.add_generic_rpc_handlers((self.links.handler(),))
        self.port = self.server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self.server.start()
        return f"127.0.0.1:{self.port}"

    async def stop(self) -> None:
        assert self.server is not None
        for link in list(self.links._links):
            link.close("the server stops")
        await self.server.stop(0)


@pytest.fixture(params=["grpc", "socket"])
async def served(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Recorder, Served, str]]:
    recorder = Recorder()
    served = Served(recorder, identity("server"), SideDoor() if request.param == "socket" else None)
    address = await served.start()
    yield recorder, served, address
    await served.stop()


async def dialled(address: str, recorder: Recorder, who: Identity) -> tuple[LinkDialer, asyncio.Task[None]]:
    dialer = LinkDialer(address, lambda: who, recorder.events(), times=FAST)
    return dialer, asyncio.create_task(dialer.run())


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_who_dials_and_says_nothing_is_let_go_without_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    times = dataclasses.replace(FAST, connect_s=0.1)
    links = LinkServer(lambda: identity("server"), Recorder().events(), times=times)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((links.handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(METHOD)()
            async with asyncio.timeout(10):
                assert isinstance(LINK_CODEC.decode_one(await call.read()), Challenge)  # type: ignore[arg-type]
                assert await call.read() is grpc.aio.EOF
            assert await call.code() is grpc.StatusCode.OK
    finally:
        await server.stop(0)
    assert "said nothing" in caplog.text
    assert "Traceback" not in caplog.text


async def test_who_hangs_up_at_once_leaves_no_traceback(
    served: tuple[Recorder, Served, str], caplog: pytest.LogCaptureFixture
) -> None:
    recorder, _server, address = served
    for number in range(20):
        async with grpc.aio.insecure_channel(address) as channel:
            call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(METHOD)()
            await asyncio.sleep(0.002 * (number % 5))
            call.cancel()
    dialer, task = await dialled(address, Recorder(), identity("client"))
    assert (await dialer.up(5)).is_up
    await recorder.until(lambda: "up" in recorder.log)  # ours may be up first
    await ended(task)
    await recorder.until(lambda: "down" in recorder.log)
    assert recorder.log.count("up") == 1
    assert not [record for record in caplog.records if record.exc_info], caplog.text


async def test_frames_arrive_once_and_in_order_both_ways(served: tuple[Recorder, Served, str]) -> None:
    theirs, server, address = served
    ours = Recorder()
    dialer, task = await dialled(address, ours, identity("client"))
    link = await dialer.up(5)
    assert link.peer.peer_id == "server"
    await theirs.until(lambda: bool(theirs.links))  # ours may be up first
    assert type(link._line) is type(theirs.links[0]._line) is (LinkSocket if server.links._door else LinkStream)
    frames = [Cancel(request_id=str(i), reason="client") for i in range(500)]
    for frame in frames:
        link.send(frame)
    await theirs.until(lambda: frames[-1] in theirs.log)
    assert [m for m in theirs.log if not isinstance(m, Heartbeat)] == ["up", *frames]
    for frame in frames:
        theirs.links[0].send(frame)
    await ours.until(lambda: sum(isinstance(m, Cancel) for m in ours.log) >= 500)
    assert [m for m in ours.log if isinstance(m, Cancel)] == frames
    await ended(task)
    await theirs.until(lambda: theirs.log[-1] == "down")


async def test_an_idle_link_stays_up_and_carries_load(served: tuple[Recorder, Served, str]) -> None:
    _, _, address = served
    ours = Recorder()
    dialer, task = await dialled(address, ours, identity("client"))
    link = await dialer.up(5)
    await ours.until(lambda: ours.log.count(Heartbeat(load=Load(num_running=7))) >= 65)  # longer than silence_s
    assert link.is_up
    assert "down" not in ours.log
    await ended(task)


@pytest.mark.parametrize(
    ("who", "error", "text"),
    [
        (identity("client", secret=b"other"), Unauthenticated, "secret"),
        (
            identity("client", fingerprint=dataclasses.replace(PRINT, block_size=32)),
            PeerMismatch,
            "block_size: 16 / 32",
        ),
    ],
)
async def test_a_misfit_is_refused_by_name(
    served: tuple[Recorder, Served, str], who: Identity, error: type[Exception], text: str
) -> None:
    theirs, _, address = served
    dialer, task = await dialled(address, Recorder(), who)
    with pytest.raises(error, match=text):
        await dialer.up(5)
    assert theirs.log == []
    await ended(task)


async def test_what_another_proved_is_worth_nothing(served: tuple[Recorder, Served, str]) -> None:
    recorder, _server, address = served
    said: list[bytes] = []  # by whoever holds the secret, as a listener on the wire overhears it
    answers = []
    for _ in range(2):
        async with grpc.aio.insecure_channel(address) as channel, asyncio.timeout(30):
            call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(METHOD)()
            challenge = LINK_CODEC.decode_one(await call.read())  # type: ignore[arg-type]
            assert isinstance(challenge, Challenge)
            said.append(LINK_CODEC.encode(identity("router").hello(challenge, 1, bytes(16))))
            await call.write(said[0])
            answers.append(LINK_CODEC.decode_one(await call.read()))  # type: ignore[arg-type]
            call.cancel()
    assert said[0] != said[1]
    assert isinstance(answers[0], Welcome)
    assert isinstance(answers[1], Refused)
    assert answers[1].error.cause == Unauthenticated.cause
    await recorder.until(lambda: recorder.log == ["up", "down"])


async def test_what_another_answered_is_worth_nothing() -> None:
    overheard: list[bytes] = []  # what who holds the secret said to a first one who dialled

    async def repeats(_requests: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        challenge = Challenge(nonce=bytes(16))
        await context.write(LINK_CODEC.encode(challenge))
        hello = LINK_CODEC.decode_one(await context.read())  # type: ignore[arg-type]
        if not overheard:
            overheard.append(LINK_CODEC.encode(identity("server").answer(challenge, hello)))  # type: ignore[arg-type]
        await context.write(overheard[0])
        await asyncio.sleep(30)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(
                "pagewire.link.v1.Links", {"Connect": grpc.stream_stream_rpc_method_handler(repeats)}
            ),
        )
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    first, first_task = await dialled(f"127.0.0.1:{port}", Recorder(), identity("client"))
    assert (await first.up(5)).is_up
    second, second_task = await dialled(f"127.0.0.1:{port}", Recorder(), identity("client"))
    with pytest.raises(Unauthenticated):
        await second.up(5)
    await ended(first_task)
    await ended(second_task)
    await server.stop(0)


async def test_a_server_that_comes_back_is_linked_again_with_a_new_epoch(served: tuple[Recorder, Served, str]) -> None:
    _, server, address = served
    ours = Recorder()
    dialer, task = await dialled(address, ours, identity("client"))
    first = await dialer.up(5)
    await server.stop()
    await ours.until(lambda: ours.log.count("down") == 1)
    assert not first.is_up
    with pytest.raises(Unavailable):
        first.send(Cancel(request_id="late", reason="client"))
    await server.start()
    await ours.until(lambda: ours.log.count("up") == 2)
    assert ours.links[1].peer.epoch > ours.links[0].peer.epoch
    await ended(task)


async def test_an_error_of_our_own_costs_its_link_and_not_the_next(
    served: tuple[Recorder, Served, str], caplog: pytest.LogCaptureFixture
) -> None:
    _, _, address = served
    broken: list[Link] = []
    up = asyncio.Event()

    def on_up(link: Link) -> None:
        if not broken:
            broken.append(link)
            raise RuntimeError("a bug")
        up.set()

    told: list[str] = []
    events = LinkEvents(on_message=lambda _link, _message: None, on_up=on_up, on_down=lambda _link: None)
    dialer = LinkDialer(
        address, lambda: identity("client"), events, times=FAST, on_broken=lambda: told.append("broken")
    )
    task = asyncio.create_task(dialer.run())
    async with asyncio.timeout(60):
        await up.wait()
    assert (await dialer.up(1.0)) is not broken[0]
    assert told == ["broken"]
    (record,) = [each for each in caplog.records if "nobody foresaw" in each.message]
    assert record.exc_info is not None
    await ended(task)


async def test_a_silent_peer_is_given_up() -> None:
    async def silent(_requests: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        challenge = Challenge(nonce=bytes(16))
        await context.write(LINK_CODEC.encode(challenge))
        hello = LINK_CODEC.decode_one(await context.read())  # type: ignore[arg-type]
        await context.write(LINK_CODEC.encode(identity("server").answer(challenge, hello)))  # type: ignore[arg-type]
        await asyncio.sleep(30)

    server = grpc.aio.server()
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Connect": grpc.stream_stream_rpc_method_handler(silent)
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("pagewire.link.v1.Links", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    ours = Recorder()
    _, task = await dialled(f"127.0.0.1:{port}", ours, identity("client"))
    await ours.until(lambda: "down" in ours.log)
    assert "silent" in ours.links[0].reason
    await ended(task)
    await server.stop(0)


def test_an_empty_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="secret"):
        identity("x", secret=b"")


async def test_a_link_that_is_closed_right_after_a_send_ends(served: tuple[Recorder, Served, str]) -> None:
    # asyncio.wait_for of Python 3.11 swallows a cancellation that meets a finished wait: the pump never returned.
    theirs, _, address = served
    for number in range(20):
        ours = Recorder()
        dialer, task = await dialled(address, ours, identity("client"))
        link = await dialer.up(5)
        await theirs.until(lambda number=number: theirs.log.count("up") > number)  # type: ignore[misc]
        link.send(Cancel(request_id="x", reason="client"))
        link.close("enough")
        await ours.until(lambda ours=ours: "down" in ours.log)  # type: ignore[misc]
        await ended(task)
    await theirs.until(lambda: theirs.log.count("down") >= 20)


async def test_a_link_outlives_the_stream_that_its_socket_took_the_place_of() -> None:
    theirs, ours = Recorder(), Recorder()
    served = Served(theirs, identity("server"), SideDoor())
    dialer, task = await dialled(await served.start(), ours, identity("client"))
    link = await dialer.up(5)
    await theirs.until(lambda: "up" in theirs.log)
    assert served.server is not None
    await served.server.stop(0)  # as a proxy ends what has said nothing for minutes
    link.send(Cancel(request_id="1", reason="client"))
    theirs.links[0].send(Cancel(request_id="2", reason="client"))
    await theirs.until(lambda: Cancel(request_id="1", reason="client") in theirs.log)
    await ours.until(lambda: Cancel(request_id="2", reason="client") in ours.log)
    await served.links.aclose("enough")
    await ours.until(lambda: "down" in ours.log)
    assert theirs.log[-1] == "down"
    await ended(task)


@pytest.mark.parametrize("how", ["cuts", "swallows"])
async def test_where_a_socket_gets_in_and_nothing_through_the_next_link_goes_over_grpc(how: str) -> None:
    theirs, ours = Recorder(), Recorder()
    greeting = asyncio.Semaphore(0)

    async def middle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", bricked.real_port)
        to_writer.write(await reader.readexactly(TOKEN_BYTES))
        writer.write(await to_reader.readexactly(TOKEN_BYTES))
        await writer.drain()
        if how == "swallows":
            with contextlib.suppress(ConnectionError):
                await reader.read()
        to_writer.close()
        writer.close()
        greeting.release()

    proxy = await asyncio.start_server(middle, "127.0.0.1", 0)
    bricked = _Bricked(proxy.sockets[0].getsockname()[1])
    served = Served(theirs, identity("server"), bricked)
    _, task = await dialled(await served.start(), ours, identity("client"))
    await ours.until(lambda: any(isinstance(message, Heartbeat) for message in ours.log))
    assert [type(link._line) for link in ours.links] == [LinkSocket, LinkStream]
    await greeting.acquire()
    await ended(task)
    await served.stop()
    proxy.close()


class _Bricked(SideDoor):
    """Names a port where nobody listens, or where somebody else does."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.wrong_port = port
        self.real_port = 0

    async def invite(self, *args: Any) -> Card:  # type: ignore[override]
        card = await super().invite(*args)
        self.real_port = card.port
        return dataclasses.replace(card, port=self.wrong_port)


@pytest.mark.parametrize("how", ["nobody listens", "a stranger listens", "the port is taken"])
async def test_a_link_goes_over_grpc_where_the_socket_cannot_be_had(how: str) -> None:
    theirs, ours = Recorder(), Recorder()
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        door = SideDoor(port=port) if how == "the port is taken" else _Bricked(1 if how == "nobody listens" else port)
        served = Served(theirs, identity("server"), door)
        dialer, task = await dialled(await served.start(), ours, identity("client"))
        link = await dialer.up(5)
        link.send(Cancel(request_id="1", reason="client"))
        await theirs.until(lambda: Cancel(request_id="1", reason="client") in theirs.log)
        assert type(link._line) is type(theirs.links[0]._line) is LinkStream
        assert theirs.log.count("up") == ours.log.count("up") == 1, "whoever was not let in was no link"
        await ended(task)
        await served.stop()


class _Watched(SideDoor):
    """Says when somebody has come in."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = asyncio.Event()

    async def invite(self, enter: Callable[[socket.socket], None], *args: Any) -> Card:  # type: ignore[override]
        def watched(connection: socket.socket) -> None:
            enter(connection)
            self.entered.set()

        return await super().invite(watched, *args)


async def why_it_ended(dialer: LinkDialer) -> str:
    async with asyncio.timeout(10):
        while dialer.error is None:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    return dialer.error.message


@pytest.mark.parametrize("num_turns", range(10))
async def test_a_link_whose_socket_was_just_taken_ends_with_its_server(num_turns: int) -> None:
    """Whatever turn of the loop that is in."""
    theirs, ours, door = Recorder(), Recorder(), _Watched()
    served = Served(theirs, identity("server"), door)
    dialer, task = await dialled(await served.start(), ours, identity("client"))
    await door.entered.wait()
    for _ in range(num_turns):
        await asyncio.sleep(0)
    closing = asyncio.create_task(served.links.aclose("enough", flush_s=0.05))
    try:
        assert "silent" not in await why_it_ended(dialer)
        async with asyncio.timeout(10):
            await closing
    finally:
        await ended(task)
        await served.stop()
    assert theirs.log.count("up") == theirs.log.count("down")


async def test_a_link_whose_task_is_cancelled_before_it_begins_is_hung_up() -> None:
    served = Served(Recorder(), identity("server"), SideDoor())
    dialer, task = await dialled(await served.start(), Recorder(), identity("client"))
    while not served.links._carrying:  # noqa: ASYNC110
        await asyncio.sleep(0)
    (carrying,) = served.links._carrying
    carrying.cancel()
    try:
        assert "silent" not in await why_it_ended(dialer)
    finally:
        await ended(task)
        await served.stop()
    assert not served.links._links


async def welcomed_with_a_port(
    channel: grpc.aio.Channel,
) -> tuple[grpc.aio.StreamStreamCall[bytes, bytes], Challenge, Hello, Welcome]:
    """Dial, and return the call and what was said."""
    call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(METHOD)()
    challenge = LINK_CODEC.decode_one(await call.read())  # type: ignore[arg-type]
    assert isinstance(challenge, Challenge)
    hello = dataclasses.replace(identity("router").hello(challenge, 1, bytes(16)), takes_socket=True)
    await call.write(LINK_CODEC.encode(hello))
    welcome = LINK_CODEC.decode_one(await call.read())  # type: ignore[arg-type]
    assert isinstance(welcome, Welcome)
    assert welcome.socket_port
    return call, challenge, hello, welcome


async def test_who_overheard_a_greeting_does_not_get_in() -> None:
    theirs, door = Recorder(), SideDoor()
    served = Served(theirs, identity("server"), door)
    async with grpc.aio.insecure_channel(await served.start()) as channel, asyncio.timeout(30):
        call, challenge, hello, welcome = await welcomed_with_a_port(channel)
        guest, host = identity("router").socket_tokens(welcome)
        assert not {guest, host} & {welcome.proof, hello.proof, hello.nonce, challenge.nonce}
        for token in (welcome.proof, hello.proof, host, identity("x", secret=b"other").socket_tokens(welcome)[0]):
            reader, writer = await asyncio.open_connection("127.0.0.1", welcome.socket_port)
            writer.write(token)
            assert await reader.read() == b"", "shown the door, and told nothing"
            writer.close()
        assert theirs.log == []
        reader, writer = await asyncio.open_connection("127.0.0.1", welcome.socket_port)
        writer.write(guest)
        assert await reader.readexactly(len(host)) == host
        await theirs.until(lambda: theirs.log == ["up"])
        assert await call.read() is grpc.aio.EOF, "the socket has taken its place"
        assert isinstance(LINK_CODEC.decode_one((await reader.read(1 << 16))[4:]), Heartbeat)
        writer.close()
        await theirs.until(lambda: theirs.log == ["up", "down"])
    await served.stop()


async def test_who_is_given_a_port_and_does_not_come_is_let_go_and_the_port_with_it() -> None:
    theirs, door = Recorder(), SideDoor()
    served = Served(theirs, identity("server"), door)
    async with grpc.aio.insecure_channel(await served.start()) as channel, asyncio.timeout(30):
        call, _, _, welcome = await welcomed_with_a_port(channel)
        assert await call.read() is grpc.aio.EOF
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", welcome.socket_port)
    assert theirs.log == []
    await served.stop()

"""Certificates that are renewed while a client runs, before a real gRPC server that renews its own."""

from __future__ import annotations

import asyncio
import gc
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from certificates import Certificates
from open_files import open_files
from patience import comes_true
from scripted_server import Context, Responses, ScriptedServer, one, scripted_server

from pagewire.client import AsyncClient, Client, RetryPolicy, Tls
from pagewire.client.channel import target_of
from pagewire.client.connection import Connection
from pagewire.client.retry import Timeout
from pagewire.core.errors import Cancelled, PagewireError, RouterLost
from pagewire.protos import inference_pb2
from pagewire.serving.tls import Tls as ServerTls

ONCE = RetryPolicy(max_attempts=1)
FILES = ("ca.pem", "router.pem", "router.key", "client.pem", "client.key")


class Rotation:
    """A router that asks for certificates, a client's files, and two authorities to which all can belong in turn."""

    def __init__(self, folder: Path) -> None:
        self.certificates = Certificates.write(folder / "made")
        self.files = folder / "files"
        self.files.mkdir()
        self.issue("ours", *FILES)
        self.tls = Tls(ca=self.files / "ca.pem", cert=self.files / "client.pem", key=self.files / "client.key")
        self.go_on = threading.Event()

    def issue(self, whose: str, *names: str) -> None:
        """Have files be those of an authority."""
        for name in names:
            new = self.files / f"{name}.new"
            shutil.copy(self.certificates.path(name, whose), new)
            new.replace(self.files / name)

    def credentials(self) -> grpc.ServerCredentials:
        """What the router shows, by the files as they are."""
        path = self.files
        return ServerTls(cert=path / "router.pem", key=path / "router.key", ca=path / "ca.pem").server()

    def whose(self, context: Context) -> str:
        """Whose certificate the caller has shown."""
        (shown,) = cast(dict[str, list[bytes]], context.auth_context())["x509_pem_cert"]
        made = {self.certificates.path("client.pem", each).read_bytes(): each for each in ("ours", "strangers")}
        return made[shown]

    def answer(self, request: inference_pb2.GenerateRequest, context: Context) -> Responses:
        """Say whom the router takes the caller for; for a "pause", twice, the second time once `go_on` is set."""
        context.add_callback(self.go_on.set)
        yield one(self.whose(context))
        if request.text == "pause":
            self.go_on.wait(30)
            yield one(self.whose(context))
        usage = inference_pb2.Usage(prompt_tokens=1, completion_tokens=2)
        last = inference_pb2.Complete(endings=[inference_pb2.Ending(finish_reason="length")], usage=usage)
        yield inference_pb2.GenerateResponse(request_id="r1", complete=last)


@pytest.fixture
def rotation(tmp_path: Path) -> Rotation:
    return Rotation(tmp_path)


@pytest.fixture
def router(rotation: Rotation) -> Iterator[tuple[ScriptedServer, str]]:
    with scripted_server(rotation.credentials()) as running:
        running[0].script = rotation.answer
        yield running
        rotation.go_on.set()


def test_new_calls_go_by_the_new_files_and_old_ones_go_on(
    rotation: Rotation, router: tuple[ScriptedServer, str]
) -> None:
    with Client(router[1], tls=rotation.tls, retry=ONCE) as client:
        assert client.generate("x").text == "ours"
        with client.stream("pause") as stream:
            assert next(iter(stream)).text == "ours"
            rotation.issue("strangers", *FILES)
            assert client.generate("x").text == "strangers"
            assert client.tokenize("hi") == (104, 105)
            gc.collect()
            rotation.go_on.set()
            assert [chunk.text for chunk in stream] == ["ours"]
            assert stream.result.usage.completion_tokens == 2


async def test_new_calls_go_by_the_new_files_and_old_ones_go_on_async(
    rotation: Rotation, router: tuple[ScriptedServer, str]
) -> None:
    async with AsyncClient(router[1], tls=rotation.tls, retry=ONCE) as client:
        assert (await client.generate("x")).text == "ours"
        async with client.stream("pause") as stream:
            pieces = aiter(stream)
            assert (await anext(pieces)).text == "ours"
            rotation.issue("strangers", *FILES)
            assert (await client.generate("x")).text == "strangers"
            assert await client.tokenize("hi") == (104, 105)
            gc.collect()
            rotation.go_on.set()
            assert [chunk.text async for chunk in pieces] == ["ours"]
            assert stream.result.usage.completion_tokens == 2


def test_who_shows_what_is_over_is_not_let_in_until_it_is_renewed(
    rotation: Rotation, router: tuple[ScriptedServer, str]
) -> None:
    with Client(router[1], tls=rotation.tls, retry=ONCE) as client:
        rotation.issue("strangers", "ca.pem", "router.pem", "router.key")  # and not the client's own
        with pytest.raises(RouterLost):
            client.generate("x", timeout_s=10)
        rotation.issue("strangers", "client.pem", "client.key")
        assert client.generate("x").text == "strangers"


def test_a_proxy_of_the_environment_is_for_routers_elsewhere(
    rotation: Rotation, router: tuple[ScriptedServer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with Client(router[1], tls=rotation.tls, retry=ONCE) as client:
        assert client.generate("x").text == "ours"
    with (
        Client("router.elsewhere.invalid:50050", retry=ONCE) as client,
        pytest.raises(RouterLost, match=r"127\.0\.0\.1:1"),
    ):
        client.generate("x", timeout_s=10)


def test_half_a_pair_is_shown_to_nobody(rotation: Rotation, router: tuple[ScriptedServer, str]) -> None:
    with Client(router[1], tls=rotation.tls, retry=ONCE) as client:
        rotation.issue("strangers", "client.pem")
        assert client.generate("x").text == "ours"
        rotation.issue("ours", "client.pem")
        assert client.generate("x").text == "ours"


@pytest.mark.parametrize("is_renewed", [False, True])
def test_closing_cancels_what_began_before_and_lets_nothing_begin(
    rotation: Rotation, router: tuple[ScriptedServer, str], is_renewed: bool
) -> None:
    server, address = router
    client = Client(address, tls=rotation.tls, retry=ONCE)
    server.script = server.endless
    stream, never_begun = client.stream("x"), client.stream("y")
    assert next(iter(stream)).text == "first"
    if is_renewed:
        rotation.issue("strangers", *FILES)
        assert client.tokenize("hi") == (104, 105)
        rotation.issue("ours", *FILES)
    client.close()
    assert server.cancelled.wait(10)
    with pytest.raises(PagewireError):
        list(stream)
    with pytest.raises(Cancelled):
        list(never_begun)
    assert len(server.requests) == 1


@pytest.mark.parametrize("is_renewed", [False, True])
async def test_closing_cancels_what_began_before_and_lets_nothing_begin_async(
    rotation: Rotation, router: tuple[ScriptedServer, str], is_renewed: bool
) -> None:
    server, address = router
    client = AsyncClient(address, tls=rotation.tls, retry=ONCE)
    server.script = server.endless
    stream, never_begun = client.stream("x"), client.stream("y")
    assert (await anext(aiter(stream))).text == "first"
    if is_renewed:
        rotation.issue("strangers", *FILES)
        assert await client.tokenize("hi") == (104, 105)
        rotation.issue("ours", *FILES)
    await client.close()
    assert await comes_true(server.cancelled.is_set, within_s=10, every_s=0.01)
    with pytest.raises(Cancelled):
        _ = [chunk async for chunk in never_begun]
    assert len(server.requests) == 1


@pytest.mark.parametrize("is_renewed", [False, True])
async def test_closing_cancels_a_call_with_one_answer_too(
    rotation: Rotation, is_renewed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a thread or a task waits for it."""
    arrived, over = threading.Semaphore(0), threading.Semaphore(0)

    def silent(_server: ScriptedServer, _request: Any, context: Context) -> inference_pb2.TokenizeResponse:
        ended = threading.Event()
        context.add_callback(ended.set)
        arrived.release()
        assert ended.wait(20)
        over.release()
        return inference_pb2.TokenizeResponse()

    monkeypatch.setattr(ScriptedServer, "Tokenize", silent)
    with scripted_server(rotation.credentials()) as (_, address):
        client, aio = (kind(address, tls=rotation.tls, retry=ONCE) for kind in (Client, AsyncClient))
        assert isinstance(client, Client)
        assert isinstance(aio, AsyncClient)
        by_thread = asyncio.create_task(asyncio.to_thread(client.tokenize, "hi"))
        by_task = asyncio.create_task(aio.tokenize("hi"))
        for _ in range(2):
            assert await asyncio.to_thread(arrived.acquire, timeout=10)
        if is_renewed:
            rotation.issue("strangers", *FILES)
            assert client.model_info().model == (await aio.model_info()).model == "tiny"
        client.close()
        await aio.close()
        for _ in range(2):
            assert await asyncio.to_thread(over.acquire, timeout=10)
        with pytest.raises(PagewireError):
            await by_thread
        with pytest.raises((PagewireError, asyncio.CancelledError)):
            await by_task


def sockets() -> set[tuple[str, str]]:
    return {each for each in open_files() if each[1].startswith("socket:")}


async def test_a_channel_goes_with_the_last_call_on_it(rotation: Rotation, router: tuple[ScriptedServer, str]) -> None:
    before = sockets()
    connection = Connection(grpc, target_of(router[1]), rotation.tls, Timeout())
    request = inference_pb2.TokenizeRequest(text="hi")

    def ask() -> None:
        with connection.methods() as methods:
            assert methods["Tokenize"](request, timeout=10).token_ids == [104, 105]

    ask()
    num_ends = len(sockets() - before)  # of the server, which is here too, as well
    for whose in ("strangers", "ours"):
        with connection.methods() as methods:
            call = methods["Generate"](inference_pb2.GenerateRequest(text="pause"), timeout=20)
            next(call)
            rotation.issue(whose, *FILES)
            ask()
            gc.collect()
            assert len(sockets() - before) == 2 * num_ends
            rotation.go_on.set()
            assert len(list(call)) == 2
        rotation.go_on.clear()
        del call, methods
        assert await comes_true(lambda: len(sockets() - before) == num_ends, within_s=10, every_s=0.01)
    assert connection.close() == [None]
    assert await comes_true(lambda: not sockets() - before, within_s=10, every_s=0.01)


@pytest.mark.parametrize(
    ("has_tls", "speaks_tls", "told"),
    [
        (False, True, "may speak TLS alone"),
        (True, True, "refuse the certificate that it was shown or not shown"),
        (True, False, "does not speak TLS"),
    ],
)
async def test_whoever_comes_by_tls_or_without_it_to_the_wrong_router_is_told(
    rotation: Rotation, has_tls: bool, speaks_tls: bool, told: str
) -> None:
    tls = Tls(ca=rotation.files / "ca.pem") if has_tls else None
    with scripted_server(rotation.credentials() if speaks_tls else None) as (_, address):
        with Client(address, tls=tls, retry=ONCE) as client, pytest.raises(RouterLost, match=told):
            client.generate("hi")
        async with AsyncClient(address, tls=tls, retry=ONCE) as aio:
            with pytest.raises(RouterLost, match=told):
                await aio.generate("hi")


def test_files_that_cannot_be_used_are_named(rotation: Rotation) -> None:
    (rotation.files / "garbage.pem").write_text("garbage", encoding="utf-8")
    files = {name: rotation.files / f"{name}.pem" for name in ("ca", "client", "garbage", "gone")}
    client_key, other_key = rotation.files / "client.key", rotation.files / "router.key"
    for tls, message in (
        (Tls(ca=files["gone"], cert=files["client"], key=client_key), r"cannot read \S+gone.pem: No such file"),
        (Tls(ca=files["garbage"]), r"\S+garbage.pem holds no certificate of an authority"),
        (Tls(ca=files["ca"], cert=files["client"], key=files["gone"]), r"cannot read \S+gone.pem"),
        (Tls(cert=files["client"], key=other_key), r"\S+client.pem and \S+router.key are no certificate with its key"),
    ):
        with pytest.raises(ValueError, match=rf"^{message}"):
            Client("127.0.0.1:1", tls=tls)

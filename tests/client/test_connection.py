"""Certificates that are renewed while a client runs, before a real gRPC server that renews its own."""

from __future__ import annotations

import gc
import shutil
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from certificates import Certificates
from patience import comes_true
from scripted_server import Context, Responses, ScriptedServer, one, scripted_server

from pagewire.client import AsyncClient, Client, RetryPolicy, Tls
from pagewire.client.channel import target_of
from pagewire.client.connection import Connection
from pagewire.client.retry import Timeout
from pagewire.core.errors import PagewireError, RouterLost
from pagewire.protos import inference_pb2
from pagewire.serving.tls import Tls as ServerTls

ONCE = RetryPolicy(max_attempts=1)
FILES = ("ca.pem", "router.pem", "router.key", "client.pem", "client.key")


class Renewed:
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

    def paused(self, request: inference_pb2.GenerateRequest, context: Context) -> Responses:
        """Answer with one word, and with another once `go_on` is set."""
        context.add_callback(self.go_on.set)
        yield one("a")
        self.go_on.wait(30)
        yield one("b")
        usage = inference_pb2.Usage(prompt_tokens=1, completion_tokens=2)
        last = inference_pb2.Complete(endings=[inference_pb2.Ending(finish_reason="length")], usage=usage)
        yield inference_pb2.GenerateResponse(request_id="r1", complete=last)


@pytest.fixture
def renewed(tmp_path: Path) -> Renewed:
    return Renewed(tmp_path)


@pytest.fixture
def router(renewed: Renewed) -> Iterator[tuple[ScriptedServer, str]]:
    with scripted_server(renewed.credentials()) as running:
        yield running
        renewed.go_on.set()


def test_new_calls_go_by_the_new_files_and_old_ones_go_on(renewed: Renewed, router: tuple[ScriptedServer, str]) -> None:
    server, address = router
    with Client(address, tls=renewed.tls, retry=ONCE) as client:
        assert client.generate("x y").text == "xy"
        echo, server.script = server.script, renewed.paused
        with client.stream("x") as stream:
            assert next(iter(stream)).text == "a"
            renewed.issue("strangers", *FILES)
            server.script = echo
            assert client.generate("x y").text == "xy"
            assert client.tokenize("hi") == (104, 105)
            gc.collect()
            renewed.go_on.set()
            assert [chunk.text for chunk in stream] == ["b"]
            assert stream.result.usage.completion_tokens == 2


async def test_new_calls_go_by_the_new_files_and_old_ones_go_on_async(
    renewed: Renewed, router: tuple[ScriptedServer, str]
) -> None:
    server, address = router
    async with AsyncClient(address, tls=renewed.tls, retry=ONCE) as client:
        assert (await client.generate("x y")).text == "xy"
        echo, server.script = server.script, renewed.paused
        async with client.stream("x") as stream:
            pieces = aiter(stream)
            assert (await anext(pieces)).text == "a"
            renewed.issue("strangers", *FILES)
            server.script = echo
            assert (await client.generate("x y")).text == "xy"
            assert await client.tokenize("hi") == (104, 105)
            gc.collect()
            renewed.go_on.set()
            assert [chunk.text async for chunk in pieces] == ["b"]
            assert stream.result.usage.completion_tokens == 2


def test_the_old_channel_would_not_do(renewed: Renewed, router: tuple[ScriptedServer, str]) -> None:
    with Client(router[1], tls=renewed.tls, retry=ONCE) as client:
        renewed.issue("strangers", "ca.pem", "router.pem", "router.key")  # and not the client's own
        with pytest.raises(RouterLost):
            client.generate("x", timeout_s=10)
        renewed.issue("strangers", "client.pem", "client.key")
        assert client.generate("x").text == "x"


def test_half_a_pair_is_shown_to_nobody(renewed: Renewed, router: tuple[ScriptedServer, str]) -> None:
    with Client(router[1], tls=renewed.tls, retry=ONCE) as client:
        renewed.issue("strangers", "client.pem")
        assert client.generate("x").text == "x"
        renewed.issue("ours", "client.pem")
        assert client.generate("x").text == "x"


@pytest.mark.parametrize("is_renewed", [False, True])
def test_closing_cancels_what_began_before(
    renewed: Renewed, router: tuple[ScriptedServer, str], is_renewed: bool
) -> None:
    server, address = router
    client = Client(address, tls=renewed.tls, retry=ONCE)
    server.script = server.endless
    stream = client.stream("x")
    assert next(iter(stream)).text == "first"
    if is_renewed:
        renewed.issue("strangers", *FILES)
        assert client.tokenize("hi") == (104, 105)
    client.close()
    assert server.cancelled.wait(10)
    with pytest.raises(PagewireError):
        list(stream)


@pytest.mark.parametrize("is_renewed", [False, True])
async def test_closing_cancels_what_began_before_async(
    renewed: Renewed, router: tuple[ScriptedServer, str], is_renewed: bool
) -> None:
    server, address = router
    client = AsyncClient(address, tls=renewed.tls, retry=ONCE)
    server.script = server.endless
    stream = client.stream("x")
    assert (await anext(aiter(stream))).text == "first"
    if is_renewed:
        renewed.issue("strangers", *FILES)
        assert await client.tokenize("hi") == (104, 105)
    await client.close()
    assert await comes_true(server.cancelled.is_set, within_s=10, every_s=0.01)


def test_a_channel_goes_with_the_last_call_on_it(renewed: Renewed, router: tuple[ScriptedServer, str]) -> None:
    made = []

    class Counting:
        """gRPC, and what it made."""

        insecure_channel = staticmethod(grpc.insecure_channel)

        @staticmethod
        def secure_channel(target: str, credentials: grpc.ChannelCredentials, options: Any) -> grpc.Channel:
            channel: grpc.Channel = grpc.secure_channel(target, credentials, options=options)
            made.append(weakref.ref(channel))
            return channel

    connection = Connection(Counting, target_of(router[1]), renewed.tls, Timeout())
    request = inference_pb2.TokenizeRequest(text="hi")
    for whose in ("ours", "strangers", "ours"):
        renewed.issue(whose, *FILES)
        for _ in range(2):
            assert connection.call("Tokenize", request, timeout=10).token_ids == [104, 105]
    gc.collect()
    assert [ref() is not None for ref in made] == [False] * (len(made) - 1) + [True]
    assert len(made) == 4  # the first was for files that were there at the start
    connection.close()


def test_files_that_cannot_be_used_are_told_at_once(renewed: Renewed) -> None:
    (renewed.files / "garbage.pem").write_text("garbage", encoding="utf-8")
    for tls, name in (
        (Tls(ca=renewed.files / "gone.pem"), "gone.pem"),
        (Tls(ca=renewed.files / "garbage.pem"), "garbage.pem"),
        (Tls(cert=renewed.files / "client.pem", key=renewed.files / "router.key"), "router.key"),
    ):
        with pytest.raises(ValueError, match=rf"{name} cannot be used"):
            Client("127.0.0.1:1", tls=tls)

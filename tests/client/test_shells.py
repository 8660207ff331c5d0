"""Both shells against a real gRPC server of the real contract: streams, errors, retries, cancellation, deadlines.

The server's answers are scripted, so this proves the SDK and nothing of the router.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from patience import comes_true
from scripted_server import ScriptedServer, scripted_server

from pagewire.client import AsyncClient, AsyncStream, Chunk, Client, RetryPolicy, Stream, Timeout, Tls
from pagewire.client.channel import Target, target_of, targets_of
from pagewire.client.trace import trace_metadata
from pagewire.core.errors import Cancelled, DeadlineExceeded, InvalidRequest, Overloaded, Unavailable

FAST = RetryPolicy(first_backoff_s=0.001, max_backoff_s=0.001)


@pytest.fixture
def server() -> Iterator[tuple[ScriptedServer, str]]:
    with scripted_server() as running:
        yield running


@pytest.fixture
def client(server: tuple[ScriptedServer, str]) -> Iterator[Client]:
    with Client(server[1], retry=FAST) as connected:
        yield connected


@pytest.fixture
async def aio_client(server: tuple[ScriptedServer, str]) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server[1], retry=FAST) as connected:
        yield connected


def test_generate_and_stream(client: Client, server: tuple[ScriptedServer, str]) -> None:
    result = client.generate("a b c", max_tokens=3, temperature=0.0, request_id="mine")
    assert (result.text, result.token_ids, result.request_id) == ("abc", (7, 7, 7), "r1")
    assert server[0].requests[0].sampling.max_tokens == 3
    assert server[0].requests[0].request_id == "mine"
    with client.stream("a b c") as stream:
        assert [chunk.text for chunk in stream] == ["a", "b", "c"]
        assert stream.result.usage.completion_tokens == 3
    assert client.model_info().max_model_len == 512


async def test_generate_and_stream_async(aio_client: AsyncClient) -> None:
    result = await aio_client.generate("a b c")
    assert (result.text, result.token_ids, result.request_id) == ("abc", (7, 7, 7), "r1")
    async with aio_client.stream("a b c") as stream:
        assert [chunk.text async for chunk in stream] == ["a", "b", "c"]
        assert stream.result.usage.completion_tokens == 3
    assert (await aio_client.model_info()).model == "tiny"


def test_a_second_loop_goes_on_where_the_first_stopped(client: Client, server: tuple[ScriptedServer, str]) -> None:
    with client.stream("a b c") as stream:
        for chunk in stream:
            assert chunk.text == "a"
            break
        assert [chunk.text for chunk in stream] == ["b", "c"]
    assert len(server[0].requests) == 1


def test_retries_before_the_first_chunk(client: Client, server: tuple[ScriptedServer, str]) -> None:
    server[0].failing(2, Unavailable("starting"))
    assert client.generate("a b").text == "ab"
    assert len(server[0].requests) == 3


async def test_retries_before_the_first_chunk_async(
    aio_client: AsyncClient, server: tuple[ScriptedServer, str]
) -> None:
    server[0].failing(2, Overloaded("full", retry_after_s=0.002))
    assert (await aio_client.generate("a b")).text == "ab"
    assert len(server[0].requests) == 3


def test_no_retry_after_a_chunk(client: Client, server: tuple[ScriptedServer, str]) -> None:
    server[0].failing(1, Unavailable("gone"), chunks=1)
    got = []
    with client.stream("a b") as stream:
        got.append(next(iter(stream)).text)
        with pytest.raises(Unavailable) as caught:
            next(iter(stream))
    assert (got, caught.value.request_id, len(server[0].requests)) == (["x"], "r1", 1)


async def test_no_retry_after_a_chunk_async(aio_client: AsyncClient, server: tuple[ScriptedServer, str]) -> None:
    server[0].failing(1, Unavailable("gone"), chunks=1)
    with pytest.raises(Unavailable, match="gone"):
        await aio_client.generate("a b")
    assert len(server[0].requests) == 1


def test_errors_are_typed(client: Client, server: tuple[ScriptedServer, str]) -> None:
    server[0].failing(1, InvalidRequest("max_tokens must be positive", field="max_tokens"))
    with pytest.raises(InvalidRequest, match="must be positive") as caught:
        client.generate("a", max_tokens=-1)
    assert (caught.value.field, caught.value.request_id) == ("max_tokens", "r1")


def test_leaving_the_block_cancels(client: Client, server: tuple[ScriptedServer, str]) -> None:
    server[0].script = server[0].endless
    with client.stream("a") as stream:
        assert next(iter(stream)).text == "first"
    assert server[0].cancelled.wait(10)


async def test_leaving_the_block_cancels_async(aio_client: AsyncClient, server: tuple[ScriptedServer, str]) -> None:
    server[0].script = server[0].endless
    async with aio_client.stream("a") as stream:
        async for chunk in stream:
            assert chunk.text == "first"
            break
    assert await asyncio.to_thread(server[0].cancelled.wait, 10)


@pytest.mark.parametrize(
    ("header", "goes_on"),
    [
        (f"00-{'a' * 32}-{'b' * 16}-01", True),
        (f"cc-{'a' * 32}-{'b' * 16}-01-what.comes", True),
        ("é", False),
        ("a\nb", False),
        ("", False),
        (f"00-{'a' * 32}-{'b' * 16}-01-{'c' * 12_000}", False),
    ],
)
def test_a_traceparent_that_no_tracer_wrote_ends_no_request(
    client: Client, server: tuple[ScriptedServer, str], header: str, goes_on: bool
) -> None:
    assert trace_metadata(header) == ((("traceparent", header),) if goes_on else ())
    assert client.generate("a", traceparent=header).text == "a"


def test_a_traceparent_is_a_text(client: Client) -> None:
    with pytest.raises(InvalidRequest) as caught:
        client.stream("a", traceparent=cast("str", 5))
    assert caught.value.field == "traceparent"


@contextlib.contextmanager
def nobody_looking_for_garbage() -> Iterator[None]:
    """Whoever allocates little, as a program that waits, is looked through for cycles late or never."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _close(stream: Stream, iterator: Iterator[Chunk]) -> None:
    stream.close()


def _close_iterator(stream: Stream, iterator: Iterator[Chunk]) -> None:
    cast("Generator[Chunk, None, None]", iterator).close()


def _nothing_but_forget(stream: Stream, iterator: Iterator[Chunk]) -> None:
    pass


@pytest.mark.parametrize("end", [_close, _close_iterator, _nothing_but_forget])
def test_whoever_closes_or_forgets_a_stream_cancels_it(
    client: Client, server: tuple[ScriptedServer, str], end: Callable[[Stream, Iterator[Chunk]], None]
) -> None:
    server[0].script = server[0].endless
    stream = client.stream("a")
    iterator = iter(stream)
    assert next(iterator).text == "first"
    end(stream, iterator)
    with nobody_looking_for_garbage():
        del stream, iterator
        assert server[0].cancelled.wait(10)


async def _aclose(stream: AsyncStream, iterator: AsyncIterator[Chunk]) -> None:
    await stream.aclose()


async def _aclose_iterator(stream: AsyncStream, iterator: AsyncIterator[Chunk]) -> None:
    await cast("AsyncGenerator[Chunk, None]", iterator).aclose()


async def _nothing_but_forget_async(stream: AsyncStream, iterator: AsyncIterator[Chunk]) -> None:
    pass


@pytest.mark.parametrize("end", [_aclose, _aclose_iterator, _nothing_but_forget_async])
async def test_whoever_closes_or_forgets_a_stream_cancels_it_async(
    aio_client: AsyncClient,
    server: tuple[ScriptedServer, str],
    end: Callable[[AsyncStream, AsyncIterator[Chunk]], Awaitable[None]],
) -> None:
    server[0].script = server[0].endless
    stream = aio_client.stream("a")
    iterator = aiter(stream)
    assert (await anext(iterator)).text == "first"
    await end(stream, iterator)
    with nobody_looking_for_garbage():
        del stream, iterator
        assert await asyncio.to_thread(server[0].cancelled.wait, 10)


def test_cancel_from_another_thread(client: Client, server: tuple[ScriptedServer, str]) -> None:
    server[0].script = server[0].endless
    with client.stream("a") as stream:
        iterator = iter(stream)
        next(iterator)
        threading.Timer(0.01, stream.cancel).start()
        with pytest.raises(Cancelled) as caught:
            next(iterator)
    assert caught.value.request_id == "r1"


async def test_cancel_from_another_task(aio_client: AsyncClient, server: tuple[ScriptedServer, str]) -> None:
    server[0].script = server[0].endless
    async with aio_client.stream("a") as stream:
        iterator = aiter(stream)
        await anext(iterator)
        asyncio.get_running_loop().call_later(0.01, stream.cancel)
        with pytest.raises(Cancelled):
            await anext(iterator)


async def test_a_task_that_is_cancelled_with_its_stream_stays_cancelled(
    aio_client: AsyncClient, server: tuple[ScriptedServer, str]
) -> None:
    server[0].script = server[0].silent
    stream = aio_client.stream("a")

    async def read() -> None:
        async for _ in stream:
            pass

    task = asyncio.create_task(read())
    assert await asyncio.to_thread(server[0].arrived.wait, 10)
    stream.cancel()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_a_cancelled_task_stays_cancelled(aio_client: AsyncClient, server: tuple[ScriptedServer, str]) -> None:
    server[0].script = server[0].endless
    task = asyncio.create_task(aio_client.generate("a"))
    assert await asyncio.to_thread(server[0].arrived.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(server[0].cancelled.wait, 10)


def test_the_total_timeout_is_a_deadline(client: Client, server: tuple[ScriptedServer, str]) -> None:
    server[0].script = server[0].silent
    for timeout_s in (0.1, 1.0, 10.0):  # up to the one in which this machine brings a call to the server
        with pytest.raises(DeadlineExceeded):
            client.generate("a", timeout_s=timeout_s)
        if server[0].arrived.is_set():
            break
    assert server[0].cancelled.wait(10)


async def test_the_total_timeout_is_a_deadline_async(
    aio_client: AsyncClient, server: tuple[ScriptedServer, str]
) -> None:
    server[0].script = server[0].silent
    with pytest.raises(DeadlineExceeded):
        await aio_client.generate("a", timeout_s=0.1)


def test_nobody_there() -> None:
    with Client("127.0.0.1:1", retry=FAST) as client:
        with pytest.raises(Unavailable, match="refused") as caught:
            client.generate("a", request_id="mine")
        assert caught.value.request_id == "mine"
        with pytest.raises(Unavailable, match="refused"):
            client.model_info()


async def test_nobody_there_async() -> None:
    async with AsyncClient("127.0.0.1:1", retry=FAST) as client:
        with pytest.raises(Unavailable, match="refused"):
            await client.generate("a")


def test_somebody_who_never_answers_is_given_up_after_the_connect_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        limits = Timeout(connect_s=0.2, total_s=30)
        with Client(address, timeout=limits, retry=RetryPolicy(max_attempts=1)) as client, pytest.raises(Unavailable):
            client.generate("a")


def test_an_aio_client_belongs_to_the_loop_that_first_uses_it(server: tuple[ScriptedServer, str]) -> None:
    client = AsyncClient(server[1])  # where no loop runs yet, as a module's would be

    async def ask() -> str:
        return (await client.generate("a b c")).text

    async def close() -> None:
        assert await ask() == "abc"
        await client.close()

    with asyncio.Runner() as first, asyncio.Runner() as second:
        assert first.run(ask()) == "abc"
        with pytest.raises(RuntimeError, match="the event loop in which it was first used"):
            second.run(ask())
        with pytest.raises(RuntimeError, match="the event loop in which it was first used"):
            second.run(client.model_info())
        first.run(close())


def test_an_aio_client_is_refused_unusable_files_when_it_is_made(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ca\.pem"):
        AsyncClient("127.0.0.1:1", tls=Tls(ca=tmp_path / "ca.pem"))


FORKS = """
import os, sys
from pagewire.client import Client

client = Client(sys.argv[1])
if sys.argv[2] == "busy":
    stream = client.stream("a b c")
    next(iter(stream))
child = os.fork()
if not child:
    try:
        client.generate("a b c", timeout_s=20.0)
    except RuntimeError as error:
        os._exit(3 if "forked while the client had calls" in str(error) else 4)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize(("state", "code"), [("idle", 0), ("busy", 3)])
def test_a_process_that_was_forked_while_calls_ran_is_told(
    server: tuple[ScriptedServer, str], state: str, code: int
) -> None:
    ran = subprocess.run([sys.executable, "-c", FORKS, server[1], state], capture_output=True, timeout=60, check=True)
    assert int(ran.stdout) == code


async def test_a_closed_client_says_so(server: tuple[ScriptedServer, str]) -> None:
    client, aio_client = Client(server[1]), AsyncClient(server[1])
    client.close()
    await aio_client.close()
    with pytest.raises(Cancelled, match="closed"):
        client.generate("a")
    with pytest.raises(Cancelled, match="closed"):
        client.model_info()
    with pytest.raises(Cancelled, match="closed"):
        await aio_client.generate("a")
    with pytest.raises(Cancelled, match="closed"):
        await aio_client.model_info()


async def test_who_is_answered_when_a_client_is_closed_hears_so_and_is_not_cancelled(
    server: tuple[ScriptedServer, str],
) -> None:
    """grpc.aio says with one exception that a channel was closed and that a task was cancelled."""
    server[0].script = server[0].silent
    with socket.create_server(("127.0.0.1", 0)) as mute:
        patient = Timeout(connect_s=60, total_s=60)
        client = AsyncClient(server[1])
        unanswered = AsyncClient(f"127.0.0.1:{mute.getsockname()[1]}", timeout=patient)
        tasks: list[asyncio.Task[object]] = [
            asyncio.create_task(client.generate("a")), asyncio.create_task(unanswered.model_info()),
        ]  # fmt: skip
        assert await asyncio.to_thread(server[0].arrived.wait, 10)
        await client.close()
        await unanswered.close()
        for task in tasks:
            with pytest.raises(Cancelled, match="the client was closed"):
                await task
            assert not task.cancelled()


LATER = RetryPolicy(first_backoff_s=60.0, max_backoff_s=60.0)


async def test_who_waits_for_another_try_hears_at_once_that_the_client_is_closed(
    server: tuple[ScriptedServer, str],
) -> None:
    server[0].failing(9, Overloaded("full", retry_after_s=60.0))
    client, aio_client = Client(server[1], retry=LATER), AsyncClient(server[1], retry=LATER)
    away = AsyncClient("127.0.0.1:1", retry=LATER)
    tasks: list[asyncio.Task[object]] = [
        asyncio.create_task(asyncio.to_thread(client.generate, "a")), asyncio.create_task(aio_client.generate("a")),
        asyncio.create_task(away.model_info()),
    ]  # fmt: skip
    async with asyncio.timeout(20):
        assert await comes_true(lambda: len(server[0].requests) == 2, within_s=10, every_s=0.01)
        await asyncio.sleep(0.3)  # the answers are here, and the pauses have begun
        client.close()
        await aio_client.close()
        await away.close()
        for task in tasks:
            with pytest.raises(Cancelled, match="the client was closed"):
                await task


@pytest.mark.parametrize(
    "prompt", [5, None, b"abc", bytearray(b"abc"), "\ud800", [{"role": "user", "content": "\ud800"}]]
)
def test_what_is_no_prompt_is_refused_by_name(client: Client, prompt: Any) -> None:
    with pytest.raises(InvalidRequest) as raised:
        client.generate(prompt)
    assert raised.value.field == "prompt"


def test_addresses() -> None:
    plain = Target(name="127.0.0.1:1", has_tls=False)
    assert target_of("127.0.0.1:1") == plain
    assert target_of("grpc://127.0.0.1:1/") == plain
    assert target_of("grpcs://127.0.0.1:1") == Target(name="127.0.0.1:1", has_tls=True)
    assert targets_of("127.0.0.1:1, grpc://127.0.0.1:1") == targets_of(["127.0.0.1:1"] * 2) == [plain, plain]
    with pytest.raises(ValueError, match="no router"):
        targets_of("127.0.0.1:1,,")
    with pytest.raises(ValueError, match="is not a gRPC address"):
        target_of("http://127.0.0.1:1")
    for address in ("127.0.0.1:65535", "[::1]:65535", "::65536", "unix:/run/router:65536", "router"):
        assert target_of(address).name == address
    for address in ("127.0.0.1:65536", "grpc://router:99999/", "grpcs://[::1]:70000"):
        with pytest.raises(ValueError, match="is above 65535"):
            target_of(address)

"""The SDK for asyncio: `AsyncClient` and its streams. A thin shell around the calls' lives; one event loop only."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar, Unpack

import grpc
import grpc.aio

from pagewire.client.attempts import Attempts
from pagewire.client.channel import targets_of
from pagewire.client.cluster import KvEvent, PodLoad
from pagewire.client.codec import loads_from_wire, model_info_from_wire, request_to_wire, tokenize_to_wire
from pagewire.client.connection import Connection
from pagewire.client.course import Course
from pagewire.client.generation import Generation
from pagewire.client.listening import Listening
from pagewire.client.options import Options, Prompt, Rendering, Tools
from pagewire.client.results import Chunk, ModelInfo, Result
from pagewire.client.retry import DEFAULT_RETRY, DEFAULT_TIMEOUT, RetryBudget, RetryPolicy, Timeout
from pagewire.client.routers import Routers
from pagewire.client.security import Tls, call_metadata
from pagewire.client.status import error_from_wire
from pagewire.client.trace import trace_metadata
from pagewire.core.errors import Cancelled
from pagewire.core.tasks import check_cancelled
from pagewire.protos import inference_pb2

T = TypeVar("T")
S = TypeVar("S", bound="_Stream[Any]")

CLOSED = "the client was closed"


class _Call(Protocol):
    def __aiter__(self) -> AsyncIterator[Any]: ...

    def cancel(self) -> object: ...


_Open = Callable[[int, Course[Any], float | None], AbstractContextManager[_Call]]


class _Reading(Generic[T]):
    """The one reading of an answer. Nothing in it leads back to its stream: who forgets that is heard at once."""

    def __init__(self, course: Course[T], open_call: _Open) -> None:
        self._course = course
        self._open_call = open_call
        self._call: _Call | None = None
        self._cancelled = asyncio.Event()
        self._why = ""  # it was cancelled

    def cancel(self, why: str) -> None:
        """End the call now; pieces that are waited for raise Cancelled, which says why."""
        self._why = self._why or why
        self._cancelled.set()
        if self._call is not None:
            self._call.cancel()

    async def pieces(self) -> AsyncGenerator[T, None]:
        """Yield them as they come; raises PagewireError."""
        try:
            while not self._course.is_finished:
                try:
                    with self._begin() as call:
                        async for response in call:
                            piece = self._course.on_response(response)
                            if piece is not None:
                                yield piece
                    self._course.result()
                except grpc.aio.AioRpcError as error:
                    await self._pause(error)
                except asyncio.CancelledError:
                    # grpc.aio says "the call was cancelled" and "your task was cancelled" with one exception.
                    check_cancelled()
                    self._raise_if_cancelled()
                    raise
        finally:  # whoever closes or forgets an iterator will never read the rest
            if self._call is not None:
                self._call.cancel()

    @contextmanager
    def _begin(self) -> Iterator[_Call]:
        place, left_s = self._course.begin(time.monotonic())
        with self._open_call(place, self._course, left_s) as call:
            self._call = call
            if self._cancelled.is_set():
                call.cancel()
            yield call

    async def _pause(self, error: grpc.aio.AioRpcError) -> None:
        self._raise_if_cancelled()
        pause_s = self._course.on_error(*_status(error), now_s=time.monotonic(), draw=random.random())
        try:
            async with asyncio.timeout(pause_s):
                await self._cancelled.wait()
        except TimeoutError:
            return
        self._raise_if_cancelled()

    def _raise_if_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise self._course.named(Cancelled(self._why)) from None


class _Stream(Generic[T]):
    """A call whose answer comes in pieces: iterate for them.

    Leaving the `async with` block cancels it, as do `aclose`, closing its iterator, and forgetting it.
    """

    def __init__(self, course: Course[T], open_call: _Open) -> None:
        self._reading = _Reading(course, open_call)
        self._pieces = self._reading.pieces()

    def cancel(self, why: str = "the caller cancelled the request") -> None:
        """End the call now; an iteration under way in another task raises Cancelled, which says why."""
        self._reading.cancel(why)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the call now, where it has not ended; any number of times. While another task reads: `cancel`."""
        self.cancel()
        await self._pieces.aclose()

    def __aiter__(self) -> AsyncIterator[T]:
        """Return the pieces as they come; a second loop goes on where the first stopped. Raises PagewireError."""
        return self._pieces


class AsyncStream(_Stream[Chunk]):
    """An answer as it comes: iterate for chunks, then read `result`. Leaving the `async with` block cancels it."""

    def __init__(self, generation: Generation, open_call: _Open) -> None:
        super().__init__(generation, open_call)
        self._generation = generation

    @property
    def request_id(self) -> str:
        """The request's id: the caller's, or the router's once it answered."""
        return self._generation.request_id

    @property
    def result(self) -> Result:
        """The finished answer; raises EngineFailed while chunks are still to come."""
        return self._generation.result()


class AsyncKvEvents(_Stream[KvEvent]):
    """What pods' caches hold, as it changes: iterate for events, without end. Leaving the block ends it."""


class AsyncClient:
    """A connection to a cluster's routers, for asyncio.

        async with AsyncClient("127.0.0.1:50050") as client:
            async with client.stream([Message(role="user", content="Hello!")], max_tokens=64) as stream:
                async for chunk in stream:
                    print(chunk.text, end="")

    Failures are `pagewire.core.errors`, with `request_id` and `retry_after_s`. What another try can help is tried again
    within `retry` and a budget that all calls share, as long as no chunk was handed out; a router that is lost is left
    for the next of `urls` (several, or one text with commas), and an answer that it had begun goes on there.

    `tls` holds for all routers, "grpcs://" in an address for one; its files are read again for new calls once they have
    changed. `api_key` goes with each call, in the clear without TLS. It may be made before a loop runs, and belongs to
    the one in which it is first used: in another, calls raise RuntimeError. Raises ValueError on an address or key of
    no known form, or a file that cannot be used.
    """

    def __init__(
        self,
        urls: str | Sequence[str] = "127.0.0.1:50050",
        *,
        api_key: str = "",
        tls: Tls | None = None,
        timeout: Timeout = DEFAULT_TIMEOUT,
        retry: RetryPolicy = DEFAULT_RETRY,
    ) -> None:
        self._timeout = timeout
        self._retry = retry
        self._budget = RetryBudget()
        self._closed = asyncio.Event()
        self._streams: weakref.WeakSet[_Stream[Any]] = weakref.WeakSet()
        self._metadata = call_metadata(api_key)
        self._targets = targets_of(urls)
        self._tls = tls
        if tls is not None:
            tls.credentials()  # files that cannot be used are told now
        self._routers = Routers(len(self._targets))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connections: list[Connection] = []  # from the first use on: gRPC's channels belong to the loop that runs

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; running requests are cancelled, and new ones raise Cancelled."""
        self._closed.set()
        for stream in list(self._streams):
            stream.cancel(CLOSED)
        for connection in self._connections:
            await asyncio.gather(*connection.close())

    def stream(self, prompt: Prompt, *, timeout_s: float | None = None, **asked: Unpack[Options]) -> AsyncStream:
        """Return the answer to a text, token ids or chat messages as a stream, to be used in an `async with` block.

        `asked` is described in `Options`; `timeout_s` stands in for the client's total. Raises InvalidRequest on a
        prompt of no known form.
        """
        request = request_to_wire(prompt, asked)
        if not request.sampling.HasField("seed"):
            # As the router would, but known here, so that another one can repeat the answer.
            request.sampling.seed = random.getrandbits(63)
        metadata = trace_metadata(asked.get("traceparent"))
        generation = Generation(request, self._attempts(timeout_s), resumes=self._retry.resumes, metadata=metadata)
        return self._kept(AsyncStream(generation, self._open))

    async def generate(self, prompt: Prompt, *, timeout_s: float | None = None, **asked: Unpack[Options]) -> Result:
        """Return the whole answer; see `stream`. Raises the request's PagewireError."""
        async with self.stream(prompt, timeout_s=timeout_s, **asked) as stream:
            async for _ in stream:
                pass
            return stream.result

    async def tokenize(
        self,
        prompt: Prompt,
        *,
        model: str = "",
        tools: Tools = (),
        timeout_s: float | None = None,
        **asked: Unpack[Rendering],
    ) -> tuple[int, ...]:
        """Return the tokens of a text, or of a chat as `generate` would put it, with `tools` if there are.

        `asked` is described in `Rendering`. Raises InvalidRequest on a prompt of another form, or one that does not fit
        the model.
        """
        request = tokenize_to_wire(prompt, model, tools, asked)
        return tuple((await self._unary("Tokenize", request, timeout_s)).token_ids)

    async def model_info(self, model: str = "", *, timeout_s: float | None = None) -> ModelInfo:
        """Return what is served of a model, the first one unless named, and its limits.

        Raises UnknownModel, or Unavailable when no router can be reached.
        """
        request = inference_pb2.GetModelInfoRequest(model=model)
        return model_info_from_wire(await self._unary("GetModelInfo", request, timeout_s))

    async def loads(self, *, timeout_s: float | None = None) -> tuple[PodLoad, ...]:
        """Return what each pod that the router knows holds and has to do. Raises Unavailable as `model_info` does."""
        return loads_from_wire(await self._unary("GetLoads", inference_pb2.GetLoadsRequest(), timeout_s))

    def kv_events(self, pod_ids: Sequence[str] = (), *, timeout_s: float | None = None) -> AsyncKvEvents:
        """Return what the caches of these pods (all, when there are none) hold and how that changes, as a stream.

        It ends with DeadlineExceeded after `timeout_s`, or when the router lets it last no longer (an hour, unless set
        otherwise): whoever goes on subscribes anew. When its router goes away it
        raises RouterLost or Draining: what is known then is stale. A subscriber that is slow is told of gaps.
        """
        request = inference_pb2.SubscribeKvEventsRequest(pod_ids=pod_ids)
        return self._kept(AsyncKvEvents(Listening(request, self._attempts(timeout_s, has_end=False)), self._open))

    def _kept(self, stream: S) -> S:
        self._streams.add(stream)
        return stream

    def _attempts(self, timeout_s: float | None, *, has_end: bool = True) -> Attempts:
        if self._closed.is_set():
            raise Cancelled("the client is closed")
        return Attempts(
            timeout_s=self._timeout.total_s if timeout_s is None and has_end else timeout_s,
            policy=self._retry,
            budget=self._budget,
            routers=self._routers,
            now_s=time.monotonic(),
        )

    def _connection(self, place: int) -> Connection:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            self._connections = [Connection(grpc.aio, each, self._tls, self._timeout) for each in self._targets]
        if loop is not self._loop:
            raise RuntimeError("an AsyncClient belongs to the event loop in which it was first used: make another one")
        return self._connections[place]

    @contextmanager
    def _open(self, place: int, course: Course[Any], left_s: float | None) -> Iterator[_Call]:
        metadata = (*self._metadata, *course.metadata)
        with self._connection(place).methods() as methods:
            yield methods[course.method](course.request, timeout=left_s, metadata=metadata)

    async def _unary(self, method: str, request: Any, timeout_s: float | None) -> Any:
        attempts = self._attempts(timeout_s)
        while True:
            place, left_s = attempts.begin(time.monotonic())
            try:
                with self._connection(place).methods() as methods:
                    answer = await methods[method](request, timeout=left_s, metadata=self._metadata)
            except grpc.aio.AioRpcError as error:
                failure = error_from_wire(*_status(error), "")
            except asyncio.CancelledError:
                check_cancelled()
                raise Cancelled(CLOSED) from None  # grpc.aio says so of its channel as of a task
            else:
                attempts.succeeded()
                return answer
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(attempts.failed(failure, now_s=time.monotonic(), draw=random.random())):
                    await self._closed.wait()
                raise Cancelled(CLOSED)


def _status(error: grpc.aio.AioRpcError) -> tuple[str, str, Sequence[tuple[str, str | bytes]]]:
    return error.code().name, error.details() or "", tuple(error.trailing_metadata() or ())

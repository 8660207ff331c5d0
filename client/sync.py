"""The SDK for threads: `Client` and its streams. A thin shell around the calls' lives; threads may share it."""

from __future__ import annotations

import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar, Unpack

import grpc

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
from pagewire.protos import inference_pb2

T = TypeVar("T")
S = TypeVar("S", bound="_Stream[Any]")

CLOSED = "the client was closed"


class _Call(Protocol):
    def __iter__(self) -> Iterator[Any]: ...

    def cancel(self) -> object: ...


_Open = Callable[[int, Course[Any], float | None], AbstractContextManager[_Call]]


class _Reading(Generic[T]):
    """The one reading of an answer. Nothing in it leads back to its stream: who forgets that is heard at once."""

    def __init__(self, course: Course[T], open_call: _Open) -> None:
        self._course = course
        self._open_call = open_call
        self._call: _Call | None = None
        self._cancelled = threading.Event()
        self._why = ""  # it was cancelled

    def cancel(self, why: str) -> None:
        """End the call now; pieces that are waited for raise Cancelled, which says why."""
        self._why = self._why or why
        self._cancelled.set()
        if self._call is not None:
            self._call.cancel()

    def pieces(self) -> Iterator[T]:
        """Yield them as they come; raises PagewireError."""
        try:
            while not self._course.is_finished:
                try:
                    with self._begin() as call:
                        for response in call:
                            piece = self._course.on_response(response)
                            if piece is not None:
                                yield piece
                    self._course.result()
                except grpc.RpcError as error:
                    self._pause(error)
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

    def _pause(self, error: grpc.RpcError) -> None:
        if self._cancelled.is_set():
            raise self._course.named(Cancelled(self._why)) from None
        pause_s = self._course.on_error(*_status(error), now_s=time.monotonic(), draw=random.random())
        if self._cancelled.wait(pause_s):
            raise self._course.named(Cancelled(self._why)) from None


class _Stream(Generic[T]):
    """A call whose answer comes in pieces: iterate for them.

    Leaving the `with` block cancels it, as do `close`, closing its iterator, and forgetting it.
    """

    def __init__(self, course: Course[T], open_call: _Open) -> None:
        self._reading = _Reading(course, open_call)
        self._pieces = self._reading.pieces()

    def cancel(self, why: str = "the caller cancelled the request") -> None:
        """End the call now, from any thread; an iteration under way raises Cancelled, which says why."""
        self._reading.cancel(why)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the call now, where it has not ended; any number of times."""
        self.cancel()

    def __iter__(self) -> Iterator[T]:
        """Return the pieces as they come; a second loop goes on where the first stopped. Raises PagewireError."""
        return self._pieces


class Stream(_Stream[Chunk]):
    """An answer as it comes: iterate for chunks, then read `result`. Leaving the `with` block cancels it."""

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


class KvEvents(_Stream[KvEvent]):
    """What pods' caches hold, as it changes: iterate for events, without end. Leaving the `with` block ends it."""


class Client:
    """A connection to a cluster's routers, for threads.

        with Client("127.0.0.1:50050") as client:
            print(client.generate("The capital of France is", max_tokens=8).text)
            with client.stream([Message(role="user", content="Hello!")]) as stream:
                for chunk in stream:
                    print(chunk.text, end="")

    Failures are `pagewire.core.errors`, with `request_id` and `retry_after_s`. What another try can help is tried again
    within `retry` and a budget that all calls share, as long as no chunk was handed out; a router that is lost is left
    for the next of `urls` (several, or one text with commas), and an answer that it had begun goes on there.

    `tls` holds for all routers, "grpcs://" in an address for one; its files are read again for new calls once they have
    changed. `api_key` goes with each call, in the clear without TLS. Raises ValueError on an address or key of no known
    form, or a file that cannot be used.
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
        self._metadata = call_metadata(api_key)
        targets = targets_of(urls)
        self._routers = Routers(len(targets))
        self._connections = [Connection(grpc, target, tls, timeout) for target in targets]
        self._closed = threading.Event()
        self._guard = threading.Lock()  # of the streams: any thread may begin one, or close the client
        self._streams: weakref.WeakSet[_Stream[Any]] = weakref.WeakSet()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; running requests are cancelled, and new ones raise Cancelled."""
        with self._guard:
            self._closed.set()
            streams = list(self._streams)
        for stream in streams:
            stream.cancel(CLOSED)
        for connection in self._connections:
            connection.close()

    def stream(self, prompt: Prompt, *, timeout_s: float | None = None, **asked: Unpack[Options]) -> Stream:
        """Return the answer to a text, token ids or chat messages as a stream, to be used in a `with` block.

        `asked` is described in `Options`; `timeout_s` stands in for the client's total. Raises InvalidRequest on a
        prompt of no known form.
        """
        request = request_to_wire(prompt, asked)
        if not request.sampling.HasField("seed"):
            # As the router would, but known here, so that another one can repeat the answer.
            request.sampling.seed = random.getrandbits(63)
        metadata = trace_metadata(asked.get("traceparent"))
        generation = Generation(request, self._attempts(timeout_s), resumes=self._retry.resumes, metadata=metadata)
        return self._kept(Stream(generation, self._open))

    def generate(self, prompt: Prompt, *, timeout_s: float | None = None, **asked: Unpack[Options]) -> Result:
        """Return the whole answer; see `stream`. Raises the request's PagewireError."""
        with self.stream(prompt, timeout_s=timeout_s, **asked) as stream:
            for _ in stream:
                pass
            return stream.result

    def tokenize(
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
        return tuple(self._unary("Tokenize", request, timeout_s).token_ids)

    def model_info(self, model: str = "", *, timeout_s: float | None = None) -> ModelInfo:
        """Return what is served of a model, the first one unless named, and its limits.

        Raises UnknownModel, or Unavailable when no router can be reached.
        """
        request = inference_pb2.GetModelInfoRequest(model=model)
        return model_info_from_wire(self._unary("GetModelInfo", request, timeout_s))

    def loads(self, *, timeout_s: float | None = None) -> tuple[PodLoad, ...]:
        """Return what each pod that the router knows holds and has to do. Raises Unavailable as `model_info` does."""
        return loads_from_wire(self._unary("GetLoads", inference_pb2.GetLoadsRequest(), timeout_s))

    def kv_events(self, pod_ids: Sequence[str] = (), *, timeout_s: float | None = None) -> KvEvents:
        """Return what the caches of these pods (all, when there are none) hold and how that changes, as a stream.

        It ends with DeadlineExceeded after `timeout_s`, or when the router lets it last no longer (an hour, unless set
        otherwise): whoever goes on subscribes anew. When its router goes away it
        raises RouterLost or Draining: what is known then is stale. A subscriber that is slow is told of gaps.
        """
        request = inference_pb2.SubscribeKvEventsRequest(pod_ids=pod_ids)
        return self._kept(KvEvents(Listening(request, self._attempts(timeout_s, has_end=False)), self._open))

    def _kept(self, stream: S) -> S:
        with self._guard:
            self._streams.add(stream)
            is_late = self._closed.is_set()
        if is_late:
            stream.cancel(CLOSED)
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

    @contextmanager
    def _open(self, place: int, course: Course[Any], left_s: float | None) -> Iterator[_Call]:
        metadata = (*self._metadata, *course.metadata)
        with self._connections[place].methods() as methods:
            yield methods[course.method](course.request, timeout=left_s, metadata=metadata)

    def _unary(self, method: str, request: Any, timeout_s: float | None) -> Any:
        attempts = self._attempts(timeout_s)
        while True:
            place, left_s = attempts.begin(time.monotonic())
            try:
                with self._connections[place].methods() as methods:
                    answer = methods[method](request, timeout=left_s, metadata=self._metadata)
            except grpc.RpcError as error:
                failure = error_from_wire(*_status(error), "")
            else:
                attempts.succeeded()
                return answer
            if self._closed.wait(attempts.failed(failure, now_s=time.monotonic(), draw=random.random())):
                raise Cancelled(CLOSED)


def _status(error: grpc.RpcError) -> tuple[str, str, Sequence[tuple[str, str | bytes]]]:
    # What a synchronous call raises is a Call as well; the type of the exception does not say so.
    if not isinstance(error, grpc.Call):
        return "UNKNOWN", str(error), ()
    return error.code().name, error.details() or "", error.trailing_metadata() or ()

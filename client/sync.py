"""The SDK for threads: `Client` and its `Stream`. A thin shell around `Generation`; safe to share between threads."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Protocol, Self, Unpack

import grpc

from pagewire.client.channel import GENERATE, GET_MODEL_INFO, options, target_of
from pagewire.client.codec import error_from_wire, model_info_from_wire, request_to_wire
from pagewire.client.generation import Generation
from pagewire.client.options import Options, Prompt
from pagewire.client.results import Chunk, ModelInfo, Result
from pagewire.client.retry import DEFAULT_RETRY, DEFAULT_TIMEOUT, RetryBudget, RetryPolicy, Timeout
from pagewire.core.errors import Cancelled
from pagewire.protos import inference_pb2


class _Call(Protocol):
    def __iter__(self) -> Iterator[inference_pb2.GenerateResponse]: ...

    def cancel(self) -> object: ...


class Stream:
    """An answer as it comes: iterate for chunks, then read `result`. Leaving the `with` block cancels the request."""

    def __init__(
        self,
        generation: Generation,
        open_call: Callable[[inference_pb2.GenerateRequest, float], _Call],
    ) -> None:
        self._generation = generation
        self._open_call = open_call
        self._call: _Call | None = None
        self._cancelled = threading.Event()
        self._iterator = self._iterate()

    @property
    def request_id(self) -> str:
        """The request's id: the caller's, or the router's once it answered."""
        return self._generation.request_id

    @property
    def result(self) -> Result:
        """The finished answer; raises EngineFailed while chunks are still to come."""
        return self._generation.result()

    def cancel(self) -> None:
        """End the request now, from any thread; an iteration under way raises Cancelled."""
        self._cancelled.set()
        if self._call is not None:
            self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cancel()

    def __iter__(self) -> Iterator[Chunk]:
        """Return the chunks as they come; a second loop goes on where the first stopped. Raises PagewireError."""
        return self._iterator

    def _iterate(self) -> Iterator[Chunk]:
        while not self._generation.is_finished:
            try:
                for response in self._begin():
                    chunk = self._generation.on_response(response)
                    if chunk is not None:
                        yield chunk
                self._generation.result()
            except grpc.RpcError as error:
                self._pause(error)

    def _begin(self) -> _Call:
        generation = self._generation
        self._call = self._open_call(generation.request, generation.attempt(time.monotonic()))
        if self._cancelled.is_set():
            self._call.cancel()
        return self._call

    def _pause(self, error: grpc.RpcError) -> None:
        if self._cancelled.is_set():
            raise self._generation.named(Cancelled("the caller cancelled the request")) from None
        code, message, metadata = _status(error)
        pause_s = self._generation.on_error(code, message, metadata, now_s=time.monotonic(), draw=random.random())
        if self._cancelled.wait(pause_s):
            raise self._generation.named(Cancelled("the caller cancelled the request")) from None


class Client:
    """A connection to a router, for threads.

        with Client("127.0.0.1:50050") as client:
            print(client.generate("The capital of France is", max_tokens=8).text)
            with client.stream([Message(role="user", content="Hello!")]) as stream:
                for chunk in stream:
                    print(chunk.text, end="")

    Failures are `pagewire.core.errors`, with `request_id` and `retry_after_s`. A retryable one is tried again as long
    as no chunk was handed out.
    """

    def __init__(
        self,
        url: str = "127.0.0.1:50050",
        *,
        timeout: Timeout = DEFAULT_TIMEOUT,
        retry: RetryPolicy = DEFAULT_RETRY,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self._url = url
        self._timeout = timeout
        self._retry = retry
        self._budget = RetryBudget()
        target = target_of(url)
        self._channel = (
            grpc.secure_channel(target, credentials, options=options(timeout.connect_s))
            if credentials is not None
            else grpc.insecure_channel(target, options=options(timeout.connect_s))
        )
        self._generate: grpc.UnaryStreamMultiCallable[inference_pb2.GenerateRequest, inference_pb2.GenerateResponse] = (
            self._channel.unary_stream(
                GENERATE,
                request_serializer=inference_pb2.GenerateRequest.SerializeToString,
                response_deserializer=inference_pb2.GenerateResponse.FromString,
            )
        )
        self._get_model_info: grpc.UnaryUnaryMultiCallable[
            inference_pb2.GetModelInfoRequest, inference_pb2.GetModelInfoResponse
        ] = self._channel.unary_unary(
            GET_MODEL_INFO,
            request_serializer=inference_pb2.GetModelInfoRequest.SerializeToString,
            response_deserializer=inference_pb2.GetModelInfoResponse.FromString,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; running requests are cancelled."""
        self._channel.close()

    def stream(self, prompt: Prompt, *, timeout_s: float | None = None, **asked: Unpack[Options]) -> Stream:
        """Return the answer to a text, token ids or chat messages as a stream, to be used in a `with` block.

        `asked` is described in `Options`; `timeout_s` stands in for the client's total. Raises InvalidRequest on a
        prompt of no known form.
        """
        generation = Generation(
            request_to_wire(prompt, asked),
            timeout_s=timeout_s or self._timeout.total_s,
            policy=self._retry,
            budget=self._budget,
            now_s=time.monotonic(),
        )
        return Stream(generation, self._open)

    def generate(self, prompt: Prompt, *, timeout_s: float | None = None, **asked: Unpack[Options]) -> Result:
        """Return the whole answer; see `stream`. Raises the request's PagewireError."""
        with self.stream(prompt, timeout_s=timeout_s, **asked) as stream:
            for _ in stream:
                pass
            return stream.result

    def model_info(self) -> ModelInfo:
        """Return the served model and its limits. Raises Unavailable when the router cannot be reached."""
        try:
            info = self._get_model_info(inference_pb2.GetModelInfoRequest(), timeout=self._timeout.total_s)
        except grpc.RpcError as error:
            raise error_from_wire(*_status(error), "") from None
        return model_info_from_wire(info)

    def _open(self, request: inference_pb2.GenerateRequest, timeout_s: float) -> _Call:
        return self._generate(request, timeout=timeout_s)


def _status(error: grpc.RpcError) -> tuple[str, str, Sequence[tuple[str, str | bytes]]]:
    # What a synchronous call raises is a Call as well; the type of the exception does not say so.
    if not isinstance(error, grpc.Call):
        return "UNKNOWN", str(error), ()
    return error.code().name, error.details() or "", error.trailing_metadata() or ()

"""The SDK's and the command line's other side: a real gRPC server of the real contract with scripted answers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
from grpc_status import rpc_status

from pagewire.core.errors import InvalidRequest, Overloaded, Unavailable
from pagewire.protos import inference_pb2, inference_pb2_grpc
from pagewire.serving.rich_status import rich_status

Responses = Iterator[inference_pb2.GenerateResponse]
Context = grpc.ServicerContext


class ScriptedServer(inference_pb2_grpc.InferenceServicer):
    """Runs `script(request, context)` for each request and counts what it saw."""

    def __init__(self) -> None:
        self.script: Callable[[inference_pb2.GenerateRequest, Context], Responses] = echo
        self.requests: list[inference_pb2.GenerateRequest] = []
        self.metadata: list[dict[str, str | bytes]] = []  # of each call
        self.stop: Callable[[], object] = lambda: None  # the server, at once, as if it were killed
        self.arrived = threading.Event()
        self.cancelled = threading.Event()

    def Generate(self, request: inference_pb2.GenerateRequest, context: Context) -> Responses:
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        self.arrived.set()
        return self.script(request, context)

    def GetModelInfo(
        self, request: inference_pb2.GetModelInfoRequest, context: Context
    ) -> inference_pb2.GetModelInfoResponse:
        return inference_pb2.GetModelInfoResponse(model="tiny", max_model_len=512, block_size=16, vocab_size=300)

    def Tokenize(self, request: inference_pb2.TokenizeRequest, context: Context) -> inference_pb2.TokenizeResponse:
        self.metadata.append(dict(context.invocation_metadata()))
        return inference_pb2.TokenizeResponse(token_ids=request.text.encode())

    def endless(self, request: inference_pb2.GenerateRequest, context: Context) -> Responses:
        """Send one chunk, then nothing until the call is cancelled."""
        context.add_callback(self.cancelled.set)
        yield one("first")
        self.cancelled.wait(30)

    def silent(self, request: inference_pb2.GenerateRequest, context: Context) -> Responses:
        """Send nothing until the call is cancelled."""
        if not context.add_callback(self.cancelled.set):  # it was, before this began
            self.cancelled.set()
        self.cancelled.wait(30)
        yield from ()

    def failing(self, times: int, error: Overloaded | Unavailable | InvalidRequest, chunks: int = 0) -> None:
        """Let the first `times` requests end in `error` after `chunks` chunks."""

        def script(request: inference_pb2.GenerateRequest, context: Context) -> Responses:
            if len(self.requests) > times:
                yield from echo(request, context)
                return
            for _ in range(chunks):
                yield one("x")
            context.abort_with_status(rpc_status.to_status(rich_status(error, "r1")))

        self.script = script


def one(text: str) -> inference_pb2.GenerateResponse:
    return inference_pb2.GenerateResponse(request_id="r1", chunk=inference_pb2.Chunk(text=text, token_ids=[7]))


def echo(request: inference_pb2.GenerateRequest, context: Context) -> Responses:
    """Answer with the prompt's words, one chunk each."""
    words = request.text.split()
    for word in words:
        yield one(word)
    usage = inference_pb2.Usage(prompt_tokens=len(words), completion_tokens=len(words))
    last = inference_pb2.Complete(endings=[inference_pb2.Ending(finish_reason="length")], usage=usage)
    yield inference_pb2.GenerateResponse(request_id="r1", complete=last)


@contextlib.contextmanager
def scripted_server(credentials: grpc.ServerCredentials | None = None) -> Iterator[tuple[ScriptedServer, str]]:
    """Run a server on a free port; yield it with its address."""
    scripted = ScriptedServer()
    with ThreadPoolExecutor(4) as pool:
        running = grpc.server(pool)
        inference_pb2_grpc.add_InferenceServicer_to_server(scripted, running)
        if credentials is None:
            port = running.add_insecure_port("127.0.0.1:0")
        else:
            port = running.add_secure_port("127.0.0.1:0", credentials)
        scripted.stop = lambda: running.stop(0).wait()
        running.start()
        yield scripted, f"127.0.0.1:{port}"
        scripted.cancelled.set()
        running.stop(None).wait()

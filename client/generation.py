"""One request's life in the SDK, without I/O: what to send, what came, when to try again, when to give up.

The two shells (`sync`, `aio`) feed it responses and errors and do what it says; it knows no channel, thread or loop.

    waiting --begin()--> open --chunk--> streaming --complete--> finished
       ^                  |                 |
       +--on_error: pause-+                 | on_error: raises, unless the router alone was lost: then
       +--------- pause, and all is compared with what was handed out ---------+

Invariant: no token is handed out twice, and those of one answer are one router's.
"""

from __future__ import annotations

from collections.abc import Iterable

from pagewire.client.attempts import Attempts
from pagewire.client.codec import chunk_from_wire, result_from_wire
from pagewire.client.replay import Replay
from pagewire.client.results import Chunk, Result
from pagewire.client.status import error_from_wire
from pagewire.core.errors import Draining, EngineFailed, PagewireError, RouterLost
from pagewire.protos import inference_pb2


class Generation:
    """The state of one `generate` or `stream` call; times are seconds on the caller's monotonic clock.

    With `resumes` an answer whose router is lost is asked for again, and goes on where it broke off. `metadata` goes
    with each attempt.
    """

    method = "Generate"

    def __init__(
        self,
        request: inference_pb2.GenerateRequest,
        attempts: Attempts,
        *,
        resumes: bool = True,
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.request = request
        self.metadata = metadata
        self.request_id = request.request_id
        self._attempts = attempts
        self._resumes = resumes
        self._chunks: list[Chunk] = []
        self._replay = Replay(())
        self._complete: inference_pb2.Complete | None = None

    @property
    def is_finished(self) -> bool:
        """True once the last message came."""
        return self._complete is not None

    def begin(self, now_s: float) -> tuple[int, float | None]:
        """Begin an attempt: return the router's place and what is left in seconds; raises DeadlineExceeded at 0."""
        self._replay = Replay(self._chunks)
        try:
            return self._attempts.begin(now_s)
        except PagewireError as error:
            raise self.named(error) from None

    def on_response(self, response: inference_pb2.GenerateResponse) -> Chunk | None:
        """Take a message in and return the chunk to hand out, None where there is nothing new in it.

        Raises EngineFailed on a message of no known kind, RouterLost on an answer that is not the one that broke off.
        """
        self.request_id = response.request_id or self.request_id
        body = response.WhichOneof("body")
        if body == "chunk":
            return self._on_chunk(chunk_from_wire(response.chunk))
        if body != "complete":
            raise self.named(EngineFailed("the server sent a message that is neither chunk nor complete"))
        if not self._replay.is_over:
            raise self.named(RouterLost("the router went away, and another's answer ends before what it had sent"))
        self._complete = response.complete
        self._attempts.succeeded()
        return None

    def on_error(
        self, code: str, message: str, metadata: Iterable[tuple[str, str | bytes]], *, now_s: float, draw: float
    ) -> float:
        """Return the pause in seconds before the next attempt, or raise the error that the status stands for."""
        error = error_from_wire(code, message, metadata, self.request_id)
        can_resume = self._resumes and isinstance(error, RouterLost | Draining)
        if self.is_finished or (self._chunks and not can_resume):
            self._attempts.leaves(error, now_s=now_s)
            raise error
        return self._attempts.failed(error, now_s=now_s, draw=draw)

    def result(self) -> Result:
        """Return the finished answer; raises EngineFailed when the stream ended without its last message."""
        if self._complete is None:
            raise self.named(EngineFailed("the stream ended without its last message"))
        return result_from_wire(self.request_id, self._chunks, self._complete)

    def named(self, error: PagewireError) -> PagewireError:
        """Return `error` with this request's id on it."""
        error.request_id = self.request_id
        return error

    def _on_chunk(self, chunk: Chunk) -> Chunk | None:
        try:
            new = self._replay.rest(chunk)
        except RouterLost as error:
            raise self.named(error) from None
        if new is not None:
            self._chunks.append(new)
        return new

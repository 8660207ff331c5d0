"""One request's life in the SDK, without I/O: what to send, what came, when to try again, when to give up.

The two shells (`sync`, `aio`) feed it responses and errors and do what it says; it knows no channel, thread or loop.

    waiting --attempt()--> open --chunk--> streaming --complete--> finished
                            |                 |
                  on_error: pause, waiting    on_error: raises

Invariant: once a chunk was handed out nothing is tried again, so no token is ever repeated.
"""

from __future__ import annotations

from collections.abc import Iterable

from pagewire.client.codec import chunk_from_wire, error_from_wire, result_from_wire
from pagewire.client.results import Chunk, Result
from pagewire.client.retry import RetryBudget, RetryPolicy
from pagewire.core.errors import DeadlineExceeded, EngineFailed, PagewireError
from pagewire.protos import inference_pb2


class Generation:
    """The state of one `generate` or `stream` call; times are seconds on the caller's monotonic clock."""

    def __init__(
        self,
        request: inference_pb2.GenerateRequest,
        *,
        timeout_s: float,
        policy: RetryPolicy,
        budget: RetryBudget,
        now_s: float,
    ) -> None:
        self.request = request
        self.request_id = request.request_id
        self.num_attempts = 0
        self._deadline_s = now_s + timeout_s
        self._total_s = timeout_s
        self._policy = policy
        self._budget = budget
        self._chunks: list[Chunk] = []
        self._complete: inference_pb2.Complete | None = None

    @property
    def is_finished(self) -> bool:
        """True once the last message came."""
        return self._complete is not None

    def attempt(self, now_s: float) -> float:
        """Begin an attempt and return what is left for it in seconds; raises DeadlineExceeded when nothing is."""
        left_s = self._deadline_s - now_s
        if left_s <= 0:
            raise self.named(DeadlineExceeded(f"no answer within {self._total_s:g} s"))
        self.num_attempts += 1
        return left_s

    def on_response(self, response: inference_pb2.GenerateResponse) -> Chunk | None:
        """Take a message in and return the chunk to hand out, None for the last message.

        Raises EngineFailed on a message that is neither.
        """
        self.request_id = response.request_id or self.request_id
        body = response.WhichOneof("body")
        if body == "chunk":
            chunk = chunk_from_wire(response.chunk)
            self._chunks.append(chunk)
            return chunk
        if body != "complete":
            raise self.named(EngineFailed("the server sent a message that is neither chunk nor complete"))
        self._complete = response.complete
        self._budget.earn()
        return None

    def on_error(
        self, code: str, message: str, metadata: Iterable[tuple[str, str | bytes]], *, now_s: float, draw: float
    ) -> float:
        """Return the pause in seconds before the next attempt, or raise the error that the status stands for."""
        error = error_from_wire(code, message, metadata, self.request_id)
        if self._chunks or self.is_finished:
            raise error
        delay_s = self._policy.delay_s(error, self.num_attempts, draw)
        if delay_s is None or now_s + delay_s >= self._deadline_s or not self._budget.spend():
            raise error
        return delay_s

    def result(self) -> Result:
        """Return the finished answer; raises EngineFailed when the stream ended without its last message."""
        if self._complete is None:
            raise self.named(EngineFailed("the stream ended without its last message"))
        return result_from_wire(self.request_id, self._chunks, self._complete)

    def named(self, error: PagewireError) -> PagewireError:
        """Return `error` with this request's id on it."""
        error.request_id = self.request_id
        return error

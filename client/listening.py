"""One `kv_events` call's life in the SDK, without I/O. Tried again until the first event came; then an error is final,
since what was told cannot be trusted any more: whoever goes on subscribes anew."""

from __future__ import annotations

from collections.abc import Iterable

from pagewire.client.attempts import Attempts
from pagewire.client.cluster import KvEvent
from pagewire.client.codec import kv_event_from_wire
from pagewire.client.status import error_from_wire
from pagewire.core.errors import PagewireError, RouterLost
from pagewire.protos import inference_pb2


class Listening:
    """The state of one call; times are seconds on the caller's monotonic clock."""

    method = "SubscribeKvEvents"

    def __init__(self, request: inference_pb2.SubscribeKvEventsRequest, attempts: Attempts) -> None:
        self.request = request
        self.metadata: tuple[tuple[str, str], ...] = ()
        self.is_finished = False  # it never is
        self._attempts = attempts
        self._has_begun = False

    def begin(self, now_s: float) -> tuple[int, float | None]:
        """Begin an attempt: return the router's place and what is left in seconds; raises DeadlineExceeded at 0."""
        return self._attempts.begin(now_s)

    def on_response(self, response: inference_pb2.KvEvent) -> KvEvent:
        """Return the event; raises EngineFailed on one of no known kind."""
        if not self._has_begun:
            self._has_begun = True
            self._attempts.succeeded()
        return kv_event_from_wire(response)

    def on_error(
        self, code: str, message: str, metadata: Iterable[tuple[str, str | bytes]], *, now_s: float, draw: float
    ) -> float:
        """Return the pause in seconds before the next attempt, or raise the error that the status stands for."""
        error = error_from_wire(code, message, metadata, "")
        if self._has_begun:
            self._attempts.leaves(error, now_s=now_s)
            raise error
        return self._attempts.failed(error, now_s=now_s, draw=draw)

    def result(self) -> None:
        """The stream ended by itself, which routers do not do: raises RouterLost."""
        raise RouterLost("the router ended the events")

    def named(self, error: PagewireError) -> PagewireError:
        """Return `error`: these calls have no id."""
        return error

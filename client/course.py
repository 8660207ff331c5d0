"""What a streaming call is to the shell that makes it: the seam between `sync` and `aio` and the calls' lives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

from pagewire.core.errors import PagewireError

T_co = TypeVar("T_co", covariant=True)


class Course(Protocol[T_co]):
    """One call's life; `Generation` and `Listening` are such."""

    @property
    def method(self) -> str:
        """The method's name."""
        ...

    @property
    def request(self) -> Any:
        """The message to send."""
        ...

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with the message beside what the client sends with each."""
        ...

    @property
    def is_finished(self) -> bool:
        """True once nothing more is to come."""
        ...

    def begin(self, now_s: float) -> tuple[int, float | None]:
        """Begin an attempt: return the router's place and the seconds left; raises DeadlineExceeded at 0."""
        ...

    def on_response(self, response: Any) -> T_co | None:
        """Take a message in and return what to hand out, if anything."""
        ...

    def on_error(
        self, code: str, message: str, metadata: Iterable[tuple[str, str | bytes]], *, now_s: float, draw: float
    ) -> float:
        """Return the pause in seconds before the next attempt, or raise the error that the status stands for."""
        ...

    def result(self) -> object:
        """Return what it came to; raises where the stream ended too early."""
        ...

    def named(self, error: PagewireError) -> PagewireError:
        """Return `error` with the request's id on it."""
        ...

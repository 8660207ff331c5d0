"""How often, how soon and how much: retries of one call, and the budget that all calls of a client share. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pagewire.core.errors import PagewireError, status_of

LONGEST_S = 366 * 86_400.0  # some time beyond gRPC's deadlines overflow


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeout:
    """Limits in seconds: `connect_s` for one attempt to connect, `total_s` for a call with all its retries.

    A router from which nothing comes, not even the answer to a ping, is lost after `silence_s` at most, of which two
    thirds pass before the ping. Routers end connections that ping more often than every ten seconds.
    """

    connect_s: float = 5.0
    total_s: float = 600.0
    silence_s: float = 30.0

    def __post_init__(self) -> None:
        if not (0 < self.connect_s <= LONGEST_S and self.total_s > 0 and 0 < self.silence_s <= LONGEST_S):
            raise ValueError(f"timeouts must be positive, and but for total_s at most {LONGEST_S:.0f} s, are {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Attempts of one call, the first included, and the pauses between them, which grow and are drawn at random.

    With `resumes` an answer whose router is lost on the way is asked for again and goes on where it broke off, at the
    price of computing it twice; without, the loss is raised.
    """

    max_attempts: int = 3
    first_backoff_s: float = 0.1
    max_backoff_s: float = 5.0
    multiplier: float = 2.0
    resumes: bool = True

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts must be at least 1, is {self.max_attempts}")

    def delay_s(self, error: PagewireError, attempt: int, draw: float) -> float | None:
        """Return the pause before another try after `attempt` (from 1) ended in `error`, or None for no other try.

        `draw` is uniform in [0, 1). The server's own `retry_after_s` is the least that is waited.
        """
        if attempt >= self.max_attempts or not status_of(error).retryable:
            return None
        ceiling_s = min(self.max_backoff_s, self.first_backoff_s * self.multiplier ** (attempt - 1))
        return max(error.retry_after_s, ceiling_s * draw)


class RetryBudget:
    """Retries that a client may still spend: one each, a tenth earned back by each success.

    So retries stay a small share of the load when everything fails. Not locked: a lost update costs a tenth of a retry.
    """

    def __init__(self, size: float = 10.0, earned_per_success: float = 0.1) -> None:
        self._size = size
        self._earned = earned_per_success
        self.left = size

    def earn(self) -> None:
        """A call succeeded."""
        self.left = min(self._size, self.left + self._earned)

    def spend(self) -> bool:
        """Take one retry; False when there is none."""
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True


DEFAULT_TIMEOUT = Timeout()
DEFAULT_RETRY = RetryPolicy()

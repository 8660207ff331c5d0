"""The short way of a token: from the frame that brought it to whoever takes the request's events, in one call.

The events of a request are pulled, through what tries again, counts and delivers. To wake all of that for a token costs
as much as the token does, so while it waits, what nearly every token is goes past it. Knows no pod and no door.
Invariants: it goes while nothing is under way on the long one, so the order stays; and what it leaves behind is what
the long one would have.
"""

from __future__ import annotations

from pagewire.core.clock import Clock
from pagewire.router.delivery import Delivery
from pagewire.router.events import Chunk, Sink
from pagewire.router.inbox import News
from pagewire.router.life import Life


class ShortWay:
    """That of one request."""

    def __init__(self, life: Life, delivery: Delivery, sink: Sink, clock: Clock) -> None:
        self._life = life
        self._delivery = delivery
        self._sink = sink
        self._clock = clock
        # Text may end an answer that its tokens do not, and its pod is to be told then.
        self._is_fit = len(life.sequences) == 1 and not life.sequences[0].text.has_stops

    def take(self, news: News) -> bool:
        """Pass tokens on that come after the first and are not the last; False, with nothing done, where it cannot."""
        if not (self._is_fit and self._sink.is_open):
            return False
        chunk = self._life.digest_plain(news, self._clock.now())
        if chunk is not None and isinstance(told := self._delivery.take(chunk), Chunk):
            self._sink.put(told)
        return True

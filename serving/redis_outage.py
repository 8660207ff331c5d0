"""What an outage of Redis looks like to those who use redis-py's client: OSError, whatever kept it from answering.

Knows no keys. Invariant: a cancellation is never taken for an outage, nor swallowed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from redis.exceptions import RedisClusterException, RedisError

from pagewire.core.tasks import heeds_cancellation

P = ParamSpec("P")
T = TypeVar("T")


def raises_os_error(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Make a coroutine function name every outage OSError, and heed its cancellation, which redis-py may swallow."""

    @functools.wraps(function)
    async def named(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await heeds_cancellation(function)(*args, **kwargs)
        except (RedisError, RedisClusterException, TimeoutError) as error:
            raise ConnectionError(f"{type(error).__name__}: {error}") from error

    return named

"""Looks again and again whether a library is done, where it cannot be waited for with a deadline.

For a thread beside the loop. Knows nothing of what it looks at. Invariant: it returns soon after the deadline, and soon
after it was given up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_FIRST_PAUSE_S = 0.00005


def until(
    is_over: Callable[[], bool], timeout_s: float, given_up: threading.Event, *, longest_pause_s: float = 0.0002
) -> bool:
    """Return True once it is over; False when `timeout_s` seconds passed before that, or `given_up` was set."""
    ends_s, pause_s = time.monotonic() + timeout_s, _FIRST_PAUSE_S
    while not is_over():
        if given_up.wait(pause_s) or time.monotonic() > ends_s:
            return False
        pause_s = min(2 * pause_s, longest_pause_s)
    return True

"""The file descriptors of this process: the three standard ones, and how many there may be.

Shells and systemd give a process 1,024 to begin with, for the sake of programs that cannot count further, and let it
take more. Who comes beyond the limit is hung up on, a probe of liveness too. Knows nothing of what is open.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys


def open_standard() -> None:
    """Put /dev/null where 0, 1 or 2 was closed: libuv ends a process that closes whatever took such a number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # so it is the first that is free, and here for whoever is started too
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def take_all() -> int:
    """Take as many as the machine allows, and return that number."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # as many as there were, then
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if allowed == resource.RLIM_INFINITY else allowed

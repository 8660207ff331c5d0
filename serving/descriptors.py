"""How many files and connections a process may have open: as many as it may allow itself.

Shells and systemd give a process 1,024 to begin with, for the sake of programs that cannot count further, and let it
take more. Who comes beyond the limit is hung up on, a probe of liveness too. Knows nothing of what is open.
"""

from __future__ import annotations

import logging
import resource

log = logging.getLogger(__name__)

OWN = 128  # beside its callers': links, Redis, files, libraries


def allow(num_callers: int) -> None:
    """Take all that there may be; the log says where that is too few for as many connections of callers."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most != resource.RLIM_INFINITY and most < num_callers + OWN:
        log.warning("%d open files are allowed, too few for %d callers at once: who comes beyond them is hung up on",
                    most, num_callers)  # fmt: skip

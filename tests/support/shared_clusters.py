"""Which tests one worker runs together where pytest-xdist deals them out by scopes: those that share a cluster.

They are those of a file, or of a file and its first parameter (a transport, who is struck), which has a cluster of its
own: such a file as a whole would keep one worker at it long after the others are done.
"""

from __future__ import annotations

BY_FIRST_PARAMETER = (
    *("test_coming_and_going.py", "test_kills.py", "test_strikes.py"),
    *("test_beams.py", "test_choices.py", "test_exact_tiny.py", "test_kept_cache.py", "test_released_peers.py"),
)


def scope_of(nodeid: str) -> str:
    """Return what the tests of one portion have in common."""
    file, _, test = nodeid.partition("::")
    _, _, parameters = test.partition("[")
    return f"{file}[{parameters.rstrip(']').partition('-')[0]}" if file.endswith(BY_FIRST_PARAMETER) else file

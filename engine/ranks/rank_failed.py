"""What is raised where another rank could not compute a pass. Knows nothing of why.

Invariant: all ranks are behind that pass, and the engine goes on.
"""

from __future__ import annotations


class RankFailed(RuntimeError):
    """The message has what each of the ranks that failed says."""

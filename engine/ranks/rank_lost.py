"""What is raised where ranks can no longer compute together. Knows nothing of why.

Invariant: it is no sequence's failure, so that nothing is tried again in this engine.
"""

from __future__ import annotations


class RankLost(RuntimeError):
    """A rank ended, stood still beyond the deadline, or said what no rank says: the engine is over."""

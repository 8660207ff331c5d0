"""A step that is being computed, whether it was launched and is waited for or is yet to be run.

Knows no sequence's state. Invariant: a launched step that failed has a log entry and no outcome: it is to be run again,
which finds out whose failure it was.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pagewire.engine.ranks.rank_lost import RankLost
from pagewire.engine.runner import Launcher, Pending
from pagewire.engine.step import Computed, Step

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """One step of `requests`, since `begun_s`; `pending` where it was launched."""

    step: Step
    pending: Pending | None
    begun_s: float
    requests: frozenset[str]

    @property
    def names(self) -> frozenset[str]:
        """Its sequences."""
        return frozenset(grant.request_id for grant in self.step.grants)

    def outcome(self) -> dict[str, Computed] | None:
        """Wait for it, and return what was found out; None where it is to be run, at first or again.

        Raises RankLost where the engine is over.
        """
        if self.pending is None:
            return None
        try:
            return self.pending()
        except RankLost:  # the engine is over
            raise
        except Exception:  # told by name when it is run again
            log.exception("a launched step of %d sequences failed", len(self.step.grants))
            return None


def launch(launcher: Launcher | None, step: Step) -> Pending | None:
    """Begin a step, None where nothing launches it. Raises RankLost where the engine is over."""
    if launcher is None:
        return None
    try:
        return launcher.launch(step)
    except RankLost:
        raise
    except Exception:
        log.exception("a step of %d sequences could not be launched", len(step.grants))
        return None

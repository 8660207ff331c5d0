"""The garbage collector of a process that serves: it looks through what comes and goes, not through what stays.

By default it would look through all that was imported and loaded now and again, which stops everybody for milliseconds,
and through the young ones several times in a step.
"""

from __future__ import annotations

import gc

# Little of what a request makes is a cycle: looked for after every 700 objects, it costs a burst a tenth of its time.
THRESHOLDS = (20_000, 20, 20)


def keep_what_is_here() -> None:
    """Never look through what is here now again, and seldom through the rest: once all is loaded."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)

"""Has a Python process stand still now and then, as on a machine that has too much to do: it finds races in tests.

Python imports it by its name where this folder is in PYTHONPATH, so that each process that a test starts has it too. A
thread keeps the interpreter to itself, and all others wait, for a share `PAGEWIRE_STALLS` of the time: for a few
milliseconds as a rule, for a third of a second at times. What native code computes goes on.
"""

from __future__ import annotations

import ctypes
import os
import random
import threading
import time

LENGTHS_S = (0.002, 0.01, 0.03, 0.03, 0.08)
LONG_S = 0.3
LONG_SHARE = 0.03  # of all
DRAW = random.Random()  # Hypothesis takes it for a test's own doing where the other one moves


def _stall(share: float) -> None:
    sleep = ctypes.PyDLL(None).usleep  # which, unlike a CDLL's, does not let go of the interpreter
    while True:
        length_s = LONG_S if DRAW.random() < LONG_SHARE else DRAW.choice(LENGTHS_S)
        time.sleep(DRAW.uniform(0, 2 * length_s / share))
        sleep(int(1e6 * length_s))


if SHARE := float(os.environ.get("PAGEWIRE_STALLS", "0")):
    threading.Thread(target=_stall, args=(SHARE,), name="stalls", daemon=True).start()

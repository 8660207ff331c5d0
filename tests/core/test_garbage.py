"""What stays is out of the collector's sight, and a process that serves is seldom stopped for the rest."""

from __future__ import annotations

import subprocess
import sys

from pagewire.core import garbage

SAYS = """
import gc
from pagewire.core import garbage
print(gc.get_threshold()[0])
garbage.keep_what_is_here()
print(gc.get_freeze_count(), gc.get_threshold())
"""


def test_what_is_here_is_kept_and_the_rest_seldom_looked_through() -> None:
    said = subprocess.run([sys.executable, "-P", "-c", SAYS], capture_output=True, text=True, check=True).stdout
    default, after = said.splitlines()
    count, _, thresholds = after.partition(" ")
    assert int(count) > 1000
    assert thresholds == str(garbage.THRESHOLDS)
    assert int(default) < garbage.THRESHOLDS[0], "by default it comes oftener"

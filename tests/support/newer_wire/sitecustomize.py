"""Has a process speak one wire version more than its code does, as a build to come will: for rolling upgrades.

Python imports it by its name at the start of whatever has this folder in PYTHONPATH.
"""

from __future__ import annotations

from pagewire.core import messages

messages.WIRE_VERSION += 1

"""Runs a command that ends when its parent does: python -m pagewire.cli.tether PARENT_PID COMMAND...

The kernel sends SIGTERM to this process when its parent dies, and keeps that promise across exec, so nothing that a
launcher started outlives it, even when the launcher is killed. Linux; elsewhere the command just runs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to its parent and become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        # It may have died before the promise was made.
        if os.getppid() != parent:
            sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()

"""A peer that lives under another interpreter: named on the command line as NAME=PYTHON, and its versions."""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable


def python_of(peer: str) -> Callable[[str], str]:
    """Return what reads PEER=PYTHON, of the one peer that there is: its Python. Refuses any other for argparse."""

    def read(text: str) -> str:
        name, _, python = text.partition("=")
        if name != peer or not python:
            raise argparse.ArgumentTypeError(f"must be {peer}=PYTHON, the one peer that there is here")
        return python

    return read


def versions(python: str, *packages: str) -> dict[str, str]:
    """Return the versions of packages under a Python."""
    script = (
        "import json, sys; from importlib.metadata import version; print(json.dumps([*map(version, sys.argv[1:])]))"
    )
    said = subprocess.run([python, "-c", script, *packages], capture_output=True, text=True, check=True)
    return dict(zip(packages, json.loads(said.stdout), strict=True))

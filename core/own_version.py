"""The version of this package, for those who are told of it."""

from __future__ import annotations

from importlib import metadata

UNKNOWN = "unknown"


def own_version() -> str:
    """Return the installed version, `unknown` where a copy of the tree runs that nobody installed."""
    try:
        return metadata.version("pagewire")
    except metadata.PackageNotFoundError:
        return UNKNOWN

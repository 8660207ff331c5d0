"""What bounds this process besides the machine: the limits of its control groups, of either version.

A container's share of a machine is a control group's, or that of one above it. Knows files, and nothing of what their
words mean. Invariant: what cannot be read bounds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

GROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def limits(
    controller: str, first: Sequence[str], second: Sequence[str], groups: Path, membership: Path
) -> Iterator[list[str]]:
    """Yield the words in a controller's files, of our group and of each above it.

    `first` and `second` are the files' names in the two versions, `groups` is where control groups are, `membership`
    says which are ours.
    """
    for line in text_of(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, files = groups, second
        elif controller in controllers.split(","):  # of the first version, which has a tree for each
            top, files = groups / controllers, first
        else:
            continue
        own = PurePosixPath(path.lstrip("/"))
        # A container may be told the host's path, which is not there: then what bounds it is at the top.
        for group in (own, *own.parents):
            yield " ".join(text_of(top / group / name) for name in files).split()


def text_of(path: Path) -> str:
    """Return what is in a file, "" where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""

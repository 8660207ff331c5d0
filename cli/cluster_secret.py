"""The secret that the processes of a cluster share: drawn anew, or kept beside the blocks that are named with it."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from pagewire.core.errors import Unavailable

NAME = "cluster_secret"
SECRET_BYTES = 32


def cluster_secret(kept_in: str | None) -> str:
    """Return a fresh secret, or that of a folder, which is given one where it has none.

    Block hashes are keyed with it, so that blocks kept in a folder are found again by those who know it. Raises
    Unavailable where the folder cannot be written, or what it has is no secret.
    """
    fresh = secrets.token_hex(SECRET_BYTES)
    if not kept_in:
        return fresh
    path = Path(kept_in) / NAME
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            _write(path, fresh)
        kept = path.read_text("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise Unavailable(f"host_kv_dir {kept_in}: the cluster's secret cannot be kept there: {error}") from error
    if len(kept) != len(fresh):
        raise Unavailable(f"{path} is no secret of a cluster; without it, what {kept_in} keeps is found no more")
    return kept


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all, for this user alone; raises FileExistsError where there is one."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(text)
        os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)

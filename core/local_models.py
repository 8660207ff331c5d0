"""Where local models lie on this machine, and which folder a name or a path stands for.

A model is a folder with a config.json. Knows nothing of what is inside the files, nor how they got here.
"""

from __future__ import annotations

import os
from pathlib import Path

MODELS_DIR_VARIABLE = "PAGEWIRE_MODELS_DIR"


def models_dir() -> Path:
    """Return where local models lie: PAGEWIRE_MODELS_DIR, or pagewire/models in the user's cache directory."""
    if chosen := os.environ.get(MODELS_DIR_VARIABLE):
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "pagewire" / "models"


def find(model: str) -> Path | None:
    """Return the folder of a local model's name or of a path, None where there is none."""
    folders = (models_dir() / model, Path(model).expanduser())
    return next((folder.resolve() for folder in folders if (folder / "config.json").is_file()), None)


def installed() -> list[Path]:
    """Return the folders of the local models, by name."""
    folder = models_dir()
    if not folder.is_dir():
        return []
    return sorted(
        path for path in folder.iterdir() if not path.name.startswith(".") and (path / "config.json").is_file()
    )

"""Reads safetensors, one file or many, straight into the tensors that wait for them.

Invariant: after `load` every waiting tensor was filled from exactly one stored one; a missing, surplus or misshapen
tensor is an error that names it, never a warning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import safe_open

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
_NAMED_AT_MOST = 8


def weight_files(folder: Path) -> tuple[Path, ...]:
    """Return the safetensors files of a model, in a fixed order; raises FileNotFoundError when there are none."""
    index = folder / INDEX_NAME
    if index.exists():
        weight_map: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return tuple(folder / name for name in sorted(set(weight_map.values())))
    single = folder / SINGLE_NAME
    if not single.exists():
        raise FileNotFoundError(f"{folder} has neither {SINGLE_NAME} nor {INDEX_NAME}")
    return (single,)


def load(files: Iterable[Path], places: Mapping[str, torch.Tensor], derived: Iterable[str]) -> None:
    """Fill `places` by name, converting to their dtype; stored tensors that match a `derived` pattern are passed over.

    Raises ValueError naming what is missing, surplus, stored twice or of another shape.
    """
    ignored = re.compile("|".join(f"(?:{pattern})" for pattern in derived) or r"(?!)")
    filled: set[str] = set()
    surplus: list[str] = []
    for path in files:
        with safe_open(path, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118 - not a mapping
                if name in places and name not in filled:
                    _fill(name, places[name], stored.get_tensor(name))
                    filled.add(name)
                elif name in filled or not ignored.fullmatch(name):
                    surplus.append(name)
    missing = sorted(set(places) - filled)
    if missing or surplus:
        raise ValueError(f"the weights do not fit the model: missing {_few(missing)}; surplus {_few(sorted(surplus))}")


def _fill(name: str, place: torch.Tensor, tensor: torch.Tensor) -> None:
    if tensor.shape != place.shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, the config asks for {tuple(place.shape)}")
    place.copy_(tensor)


def _few(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED_AT_MOST} more" if len(names) > _NAMED_AT_MOST else ""
    return (", ".join(names[:_NAMED_AT_MOST]) or "none") + more

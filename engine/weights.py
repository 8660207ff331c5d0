"""Reads safetensors, one file or many, straight into the tensors that wait for them.

Invariant: after `load` every waiting tensor was filled from exactly one stored one; a missing, surplus or misshapen
tensor is an error that names it, never a warning.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from pagewire.core.document_files import read_object
from pagewire.kernels.scaled_weight import ScaledWeight, Stored

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
_NAMED_AT_MOST = 8
_PLAIN = re.compile(r"(?!\.)[\w.-]{1,200}")  # of a file beside the index, and nowhere else


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Of a stored tensor whose `axis` is `whole` long, what `places` says of that axis and all of the others."""

    axis: int
    places: slice
    whole: int


def weight_files(folder: Path) -> tuple[Path, ...]:
    """Return the safetensors files of a model, in a fixed order; one file goes before an index, as in transformers.

    Raises FileNotFoundError when there are none, ValueError on an index that is none.
    """
    single, index = folder / SINGLE_NAME, folder / INDEX_NAME
    if single.exists():
        return (single,)
    if not index.exists():
        raise FileNotFoundError(f"{folder} has neither {SINGLE_NAME} nor {INDEX_NAME}")
    weight_map = read_object(index).get("weight_map")
    names = list(weight_map.values()) if isinstance(weight_map, dict) else []
    if not names or not all(isinstance(name, str) and _PLAIN.fullmatch(name) for name in names):
        raise ValueError(f"{index}: weight_map does not say in which files of this folder the weights are")
    return tuple(folder / name for name in sorted(set(names)))


def load(
    files: Iterable[Path],
    places: Mapping[str, Stored],
    derived: Iterable[str],
    parts: Mapping[str, Part] | None = None,
) -> None:
    """Fill `places` by name, as they keep numbers; stored tensors that match a `derived` pattern are passed over.

    Those that `parts` names are filled from a part of the stored tensor, and no more than that is read, unless to scale
    rows that are divided.
    Raises ValueError naming what is missing, surplus, stored twice or of another shape, or a file that is none.
    """
    ignored = re.compile("|".join(f"(?:{pattern})" for pattern in derived) or r"(?!)")
    filled: set[str] = set()
    surplus: list[str] = []
    for path in files:
        with _opened(path) as stored:
            for name in stored.keys():  # noqa: SIM118 - not a mapping
                if name in places and name not in filled:
                    _fill(name, places[name], stored, (parts or {}).get(name))
                    filled.add(name)
                elif name in filled or not ignored.fullmatch(name):
                    surplus.append(name)
    missing = sorted(set(places) - filled)
    if missing or surplus:
        raise ValueError(f"the weights do not fit the model: missing {few(missing)}; surplus {few(sorted(surplus))}")


def names(files: Iterable[Path]) -> set[str]:
    """Return what tensors are stored; raises ValueError for a file that is none."""
    found: set[str] = set()
    for path in files:
        with _opened(path) as stored:
            found.update(stored.keys())
    return found


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as stored:
            yield stored
    except SafetensorError as error:
        raise ValueError(f"{path} is no safetensors file: {error}") from error


def _fill(name: str, place: Stored, stored: Any, part: Part | None) -> None:
    expected, index = list(place.shape), [slice(None)] * len(place.shape)
    if part is not None:
        expected[part.axis], index[part.axis] = part.whole, part.places
    shape = tuple(stored.get_slice(name).get_shape())
    if shape != tuple(expected):
        raise ValueError(f"{name} has shape {shape}, the config asks for {tuple(expected)}")
    given = stored.get_tensor(name) if part is None else stored.get_slice(name)[tuple(index)]
    if isinstance(place, ScaledWeight):
        given = given.to(place.codes.device)
        # A row has one scale, however many ranks it is divided between: the weight is the same for any number of them.
        is_whole = part is None or part.axis == 0
        place.fill(given, given if is_whole else stored.get_tensor(name).to(place.codes.device))
    else:
        place.copy_(given)


def few(names: list[str]) -> str:
    """Return the first of some names, and how many there are besides, for people."""
    more = f" and {len(names) - _NAMED_AT_MOST} more" if len(names) > _NAMED_AT_MOST else ""
    return (", ".join(names[:_NAMED_AT_MOST]) or "none") + more

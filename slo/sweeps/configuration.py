"""The clusters that a sweep compares: every combination of a grid of settings, each with a name. Pure.

Settings are texts by the names that `pagewire up` has for them; what they mean is the cluster's affair. One is the
sweep's own: `pods`, "1P:2D" or "2 colocated", which says how many there are of which role.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

PODS = "pods"
DEFAULT_PODS = "1P:1D"
MAX_CONFIGURATIONS = 1000  # each takes minutes of a cluster
_APART = re.compile(r"(\d+)P:(\d+)D")
_COLOCATED = re.compile(r"(\d+) ?colocated")
_UNFIT = re.compile(r"[^A-Za-z0-9.=_+-]+")  # for a file's name


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One cluster: all of its `settings`, `pods` among them, and the names of those that are `varied`."""

    settings: Mapping[str, str]
    varied: tuple[str, ...] = ()

    @property
    def pods(self) -> dict[str, int]:
        """How many pods there are, by role: of "colocated", or of "prefill" and "decode"."""
        return parse_pods(self.settings[PODS])

    @property
    def name(self) -> str:
        """What it is called: its pods, and what else is varied."""
        others = [f"{name}={self.settings[name]}" for name in self.varied if name != PODS]
        return " ".join([self.settings[PODS], *others])

    @property
    def slug(self) -> str:
        """Its name as that of a folder."""
        return _UNFIT.sub("-", self.name)

    @property
    def labels(self) -> dict[str, str | int | float]:
        """What a figure tells it from others by: its pods, and the value of whatever else is varied."""
        others = {name: _number(self.settings[name]) for name in self.varied if name != PODS}
        return {**self.pods, **others}


def configurations(common: Sequence[str], grid: Sequence[str]) -> tuple[Configuration, ...]:
    """Return every combination of `grid`, "chunk_size=64,256" and so on, each with the settings of `common`.

    Raises ValueError, which names what is wrong.
    """
    shared = {name: ",".join(values) for name, values in _named(common).items()}
    axes = _named(grid)
    if both := sorted({*shared} & {*axes}):
        raise ValueError(f"{both[0]} is common to all and varied too")
    if (count := math.prod(map(len, axes.values()))) > MAX_CONFIGURATIONS:
        raise ValueError(f"{count} configurations are more than a sweep tries, which is {MAX_CONFIGURATIONS}")
    found = []
    for values in itertools.product(*axes.values()):
        settings = {PODS: DEFAULT_PODS, **shared, **dict(zip(axes, values, strict=True))}
        parse_pods(settings[PODS])
        found.append(Configuration(settings=settings, varied=tuple(axes)))
    slugs = Counter(each.slug for each in found)
    if twice := [each.name for each in found if slugs[each.slug] > 1]:
        raise ValueError(f"two configurations would be called {twice[0]!r}")
    return tuple(found)


def parse_pods(text: str) -> dict[str, int]:
    """Return how many pods "2P:1D" or "3 colocated" are, by role; raises ValueError on anything else."""
    if match := _APART.fullmatch(text):
        return {"prefill": int(match[1]), "decode": int(match[2])}
    if match := _COLOCATED.fullmatch(text):
        return {"colocated": int(match[1])}
    raise ValueError(f'pods={text} is neither like "2P:1D" nor like "3 colocated"')


def _named(entries: Iterable[str]) -> dict[str, list[str]]:
    """Return values by name. An entry without a name is another value: a variable's list has been split at commas."""
    found: dict[str, list[str]] = {}
    name = ""
    for part in (part.strip() for entry in entries for part in entry.split(",")):
        before, sign, value = part.partition("=")
        if sign:
            name = before.strip().replace("-", "_")
            if name in found:
                raise ValueError(f"{name} is there twice")
            if name in ("prefill", "decode", "colocated"):
                raise ValueError(f'{name} is said with pods, as in "pods=2P:1D" or "pods=2 colocated"')
            found[name] = []
        elif not name:
            raise ValueError(f"{part!r} is not like chunk_size=64,256")
        found[name].append((value if sign else part).strip())
    return found


def _number(text: str) -> str | int | float:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text

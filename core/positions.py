"""How many positions a model serves, from its config.json alone. Pure.

Invariant: a number is what an engine would say; where only an engine knows it is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Scalings of rotary embeddings that leave a model its own number of positions.
_UNSTRETCHED = ("default", "linear", "llama3")


def own_positions(config: Mapping[str, Any]) -> int | None:
    """Return the longest sequence in tokens, None where a scaling may stretch it or nothing is said."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = (scaling.get("rope_type") or scaling.get("type") or "default") if isinstance(scaling, dict) else None
    own = config.get("max_position_embeddings")
    return own if kind in _UNSTRETCHED and type(own) is int else None

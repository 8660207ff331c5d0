"""What a Hugging Face config says of rotary embeddings, in the form of transformers 5 or the older one.

Invariant: equal to what transformers reads from the same config, or a `NotNative` that names what is not known here.
"""

from __future__ import annotations

from typing import Any

from pagewire.engine.model.hf_config import HFConfig, NotNative
from pagewire.kernels.rope import KNOWN_SCALINGS, Rope, yarn_attention_factor


def rope_of(hf: HFConfig) -> Rope:
    """Return the rotary embedding that a config describes."""
    parameters = _parameters(hf)
    kind = _kind(parameters)
    if kind not in KNOWN_SCALINGS:
        raise NotNative(f"rope type {kind!r} is not supported; the known ones are {', '.join(KNOWN_SCALINGS)}")
    if float(parameters.get("partial_rotary_factor") or hf.get("partial_rotary_factor") or 1.0) != 1.0:
        raise NotNative("partial_rotary_factor is not supported; every dimension of a head is rotated")
    if any(isinstance(value, dict) for value in parameters.values()):
        raise NotNative("rope parameters by kind of layer are not supported; all layers share one set")
    original = _original(hf, parameters, kind)
    factor = float(parameters.get("factor") or int(hf["max_position_embeddings"]) / original)
    common: dict[str, Any] = {
        "theta": float(parameters.get("rope_theta") or hf.get("rope_theta") or 10_000.0),
        "scaling": kind,
        "factor": factor,
        "original_max_positions": original,
    }
    if kind == "llama3":
        common["low_freq_factor"] = float(parameters["low_freq_factor"])
        common["high_freq_factor"] = float(parameters["high_freq_factor"])
    if kind == "yarn":
        common["beta_fast"] = float(parameters.get("beta_fast") or 32)
        common["beta_slow"] = float(parameters.get("beta_slow") or 1)
        common["truncate"] = bool(parameters.get("truncate", True))
        stated = parameters.get("attention_factor")
        common["attention_factor"] = (
            yarn_attention_factor(factor, parameters.get("mscale"), parameters.get("mscale_all_dim"))
            if stated is None
            else float(stated)
        )
    return Rope(**common)


def reach(hf: HFConfig) -> int:
    """Return how many positions a model serves: its own maximum, or what its scaling stretches the original one to."""
    own, parameters = int(hf["max_position_embeddings"]), _parameters(hf)
    kind = _kind(parameters)
    if kind in ("dynamic", "yarn"):
        return max(own, int(_original(hf, parameters, kind) * float(parameters.get("factor") or 1)))
    return own


def _parameters(hf: HFConfig) -> dict[str, Any]:
    return dict(hf.get("rope_scaling") or hf.get("rope_parameters") or {})


def _kind(parameters: dict[str, Any]) -> str:
    return str(parameters.get("rope_type") or parameters.get("type") or "default")


def _original(hf: HFConfig, parameters: dict[str, Any], kind: str) -> int:
    own = int(hf["max_position_embeddings"])
    if kind not in ("llama3", "yarn"):
        return own  # the others know no second maximum
    # Beside the parameters it counts for more than among them, as in transformers.
    return int(hf.get("original_max_position_embeddings") or parameters.get("original_max_position_embeddings") or own)

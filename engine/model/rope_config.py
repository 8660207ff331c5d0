"""What a Hugging Face config says of rotary embeddings, in the form of transformers 5 or the older one.

Invariant: equal to what transformers reads from the same config, or a `NotNative` that names what is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagewire.core.documents import MAX_WHOLE, real, whole
from pagewire.engine.model.hf_config import HFConfig, NotNative
from pagewire.kernels.rope import KNOWN_SCALINGS, Rope, yarn_attention_factor


def rope_of(hf: HFConfig) -> Rope:
    """Return the rotary embedding that a config describes."""
    parameters = _parameters(hf)
    kind = _kind(parameters)
    if kind not in KNOWN_SCALINGS:
        raise NotNative(f"rope type {kind!r} is not supported; the known ones are {', '.join(KNOWN_SCALINGS)}")
    for said in (parameters, hf):
        if said.get("partial_rotary_factor") and real(said, "partial_rotary_factor") != 1.0:
            raise NotNative("partial_rotary_factor is not supported; every dimension of a head is rotated")
    if any(isinstance(value, dict) for value in parameters.values()):
        raise NotNative("rope parameters by kind of layer are not supported; all layers share one set")
    original = _original(hf, parameters, kind)
    if kind in ("default", "yarn"):
        factor = _given(parameters, "factor", whole(hf, "max_position_embeddings") / original)
    else:
        factor = real(parameters, "factor")
    common: dict[str, Any] = {
        "theta": _given(parameters, "rope_theta", _given(hf, "rope_theta", 10_000.0)),
        "scaling": kind,
        "factor": factor,
        "original_max_positions": original,
    }
    if kind == "llama3":
        common["low_freq_factor"] = real(parameters, "low_freq_factor")
        common["high_freq_factor"] = real(parameters, "high_freq_factor")
    if kind == "yarn":
        common["beta_fast"] = _given(parameters, "beta_fast", 32.0)
        common["beta_slow"] = _given(parameters, "beta_slow", 1.0)
        common["truncate"] = bool(parameters.get("truncate", True))
        common["attention_factor"] = _attention_factor(parameters, factor)
    return Rope(**common)


def _given(said: Mapping[str, Any], name: str, otherwise: float) -> float:
    """Return a number that may be left out; 0 is left out too."""
    return real(said, name) if said.get(name) else otherwise


def _attention_factor(parameters: Mapping[str, Any], factor: float) -> float:
    if parameters.get("attention_factor") is not None:
        return real(parameters, "attention_factor")
    own, of_all = (_given(parameters, name, 0.0) for name in ("mscale", "mscale_all_dim"))
    if min(own, of_all) < 0:
        raise ValueError("mscale and mscale_all_dim are not negative")
    return yarn_attention_factor(factor, own, of_all)


def reach(hf: HFConfig) -> int:
    """Return how many positions a model serves: its own maximum, or what its scaling stretches the original one to."""
    own, parameters = whole(hf, "max_position_embeddings"), _parameters(hf)
    kind = _kind(parameters)
    if kind in ("dynamic", "yarn"):
        stretched = _original(hf, parameters, kind) * _given(parameters, "factor", 1.0)
        return max(own, int(min(stretched, MAX_WHOLE)))
    return own


def _parameters(hf: HFConfig) -> dict[str, Any]:
    said = hf.get("rope_scaling") or hf.get("rope_parameters") or {}
    if not isinstance(said, Mapping):
        raise ValueError(f"rope parameters are no object: {said!r:.100}")
    return dict(said)


def _kind(parameters: dict[str, Any]) -> str:
    return str(parameters.get("rope_type") or parameters.get("type") or "default")


def _original(hf: HFConfig, parameters: dict[str, Any], kind: str) -> int:
    own = whole(hf, "max_position_embeddings")
    if kind not in ("llama3", "yarn"):
        return own  # the others know no second maximum
    # Beside the parameters it counts for more than among them, as in transformers.
    name = "original_max_position_embeddings"
    for said in (hf, parameters):
        if said.get(name):
            return whole(said, name)
    return own

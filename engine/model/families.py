"""Which code computes an architecture: the native decoder where it can, transformers' own modules for the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pagewire.engine.model import llama, mistral, qwen2, qwen3
from pagewire.engine.model.architecture import Architecture
from pagewire.engine.model.decoder_config import DecoderConfig
from pagewire.engine.model.hf_config import HFConfig, NotNative
from pagewire.engine.model.native import NativeArchitecture
from pagewire.engine.model_folder import ModelFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How a family's config is read: what absent entries mean, and which tensors (patterns) are stored for nothing."""

    architectures: tuple[str, ...]
    defaults: HFConfig
    decoder_config: Callable[[HFConfig], DecoderConfig]
    derived: tuple[str, ...]


FAMILIES = tuple(
    Family(architectures=m.ARCHITECTURES, defaults=m.DEFAULTS, decoder_config=m.decoder_config, derived=m.DERIVED)
    for m in (llama, mistral, qwen2, qwen3)
)


def native_architecture(hf: HFConfig) -> NativeArchitecture:
    """Return the native decoder that a config describes; raises NotNative naming what keeps it from being one."""
    names = [str(each) for each in said] if isinstance(said := hf.get("architectures"), list) else []
    for family in FAMILIES:
        if len(names) == 1 and names[0] in family.architectures:
            config = family.decoder_config({**family.defaults, **hf})
            return NativeArchitecture(config=config, derived=family.derived)
    raise NotNative(f"architecture {' '.join(names)[:200] or '(none named)'} has no native decoder")


def architecture_of(folder: ModelFolder) -> Architecture:
    """Return what computes a folder's model; raises ValueError naming why nothing can."""
    quantization = folder.hf_config.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        raise ValueError(f"quantized weights ({method!s:.50}) are not supported")
    try:
        return native_architecture(folder.hf_config)
    except NotNative as reason:
        # Native models need not wait a second for what they do not use.
        from pagewire.engine.model.transformers_model import TransformersArchitecture  # noqa: PLC0415

        return TransformersArchitecture.of(folder, str(reason))

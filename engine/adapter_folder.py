"""A folder with a LoRA adapter as PEFT writes it: what it is called, what it says of itself, and the digest of it.

Knows its two files, and no model. Invariants: what is opened adds to linears of layers and does nothing else, so that
`y = W x + scale B A x` is all of it; equal digests mean equal config and equal tensors.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagewire.core.document_files import read_object
from pagewire.core.documents import real

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")
# What makes an adapter more than that; None, false and empty ask for nothing.
_BEYOND = (
    "use_dora", "lora_bias", "modules_to_save", "layer_replication", "trainable_token_indices", "target_parameters",
    "alora_invocation_tokens", "fan_in_fan_out", "use_qalora", "use_bdlora",
)  # fmt: skip
_HARMLESS_CONFIGS = ("eva_config", "megatron_config")  # of what PEFT has configs for within its own
# Ways to begin that leave the model's own weights as they are; PiSSA, OLoRA, CorDA, LoftQ and LoRA-GA do not.
_BEGINNINGS = (True, False, None, "gaussian", "eva", "orthogonal")
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFolder:
    """What a folder says about its adapter. `name` is what callers name it."""

    name: str
    path: Path
    alpha: float
    alphas: tuple[tuple[re.Pattern[str], float], ...]  # of modules whose names match
    by_root: bool  # the scale is alpha / sqrt(rank)

    @classmethod
    def open(cls, text: str) -> AdapterFolder:
        """Read NAME=FOLDER.

        Raises FileNotFoundError without its files, ValueError for what is no such text, file or adapter.
        """
        name, path = parse(text)
        for file in (CONFIG_NAME, WEIGHTS_NAME):
            if not (path / file).is_file():
                raise FileNotFoundError(f"adapter {name}: {path} has no {file}")
        config = read_object(path / CONFIG_NAME)
        try:
            _check(config)
            alpha, alphas = real({"lora_alpha": 8, **config}, "lora_alpha"), _alphas(config.get("alpha_pattern") or {})
        except ValueError as error:
            raise ValueError(f"adapter {name}: {error}") from error
        return cls(name=name, path=path, alpha=alpha, alphas=alphas, by_root=bool(config.get("use_rslora")))

    @property
    def weights(self) -> Path:
        """The file with its tensors."""
        return self.path / WEIGHTS_NAME

    def scale(self, module: str, rank: int) -> float:
        """Return what B A is multiplied with in a module, such as "model.layers.0.mlp.up_proj" (PEFT's `scaling`)."""
        alpha = next((alpha for pattern, alpha in self.alphas if pattern.match(module)), self.alpha)
        return alpha / (math.sqrt(rank) if self.by_root else rank)

    def digest(self) -> str:
        """Return a digest over its config and its tensors."""
        state = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for file in (CONFIG_NAME, WEIGHTS_NAME):
            with (self.path / file).open("rb") as data:
                state.update(hashlib.file_digest(data, "sha256").digest())
        return state.hexdigest()


def parse(text: str) -> tuple[str, Path]:
    """Read NAME=FOLDER; raises ValueError for anything else."""
    name, is_named, folder = text.partition("=")
    if not is_named or not folder or not _NAME.fullmatch(name):
        raise ValueError(f"an adapter is NAME=FOLDER, its name of letters, digits and . _ : / -, not {text!r:.200}")
    return name, Path(folder)


def text_of(name: object, folder: object) -> str:
    """Return NAME=FOLDER; raises ValueError for a name that is none."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"an adapter's name has letters, digits and . _ : / -, {name!r:.200} is none")
    return f"{name}={folder}"


def names_of(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the names in NAME=FOLDER texts; raises ValueError for anything else, and where two have one name."""
    names = tuple(parse(text)[0] for text in texts)
    for number, name in enumerate(names):
        if name in names[:number]:
            raise ValueError(f"two adapters are called {name}")
    return names


def _check(config: Mapping[str, Any]) -> None:
    """Raise ValueError for what is no plain LoRA."""
    kind = config.get("peft_type")
    if kind != "LORA":
        raise ValueError(f"peft_type {kind!r:.100} is not supported; LORA is")
    if config.get("bias", "none") != "none":
        raise ValueError(f"bias {config['bias']!r:.100} is not supported; none is")
    begins = config.get("init_lora_weights", True)
    if begins not in _BEGINNINGS:
        raise ValueError(
            f"init_lora_weights {begins!r:.100} changes the model's own weights, or may: convert it to plain LoRA, as "
            "PEFT's save_pretrained does with path_initial_model_for_weight_conversion"
        )
    configs = sorted(name for name in config if name.endswith("_config") and name not in _HARMLESS_CONFIGS)
    for field in (*_BEYOND, *configs):
        if config.get(field):
            raise ValueError(f"{field} is not supported")


def _alphas(given: object) -> tuple[tuple[re.Pattern[str], float], ...]:
    """Return what `alpha_pattern` says, the end of a module's name to its alpha; raises ValueError."""
    if not isinstance(given, dict):
        raise ValueError(f"alpha_pattern is no object: {given!r:.100}")
    try:
        return tuple((re.compile(rf"(.*\.)?({key})$"), real(given, key)) for key in given)
    except re.error as error:
        raise ValueError(f"alpha_pattern holds no regular expression: {error}") from error

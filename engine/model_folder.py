"""A Hugging Face model folder: its config, where generation ends, and the digests that name it to other processes;
beside it the adapters that go with it.

Invariant: equal digests mean equal config, equal ends and equal weight bytes, wherever the folder lies and whatever it
is called.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pagewire.core.document_files import read_object
from pagewire.core.documents import MAX_WHOLE
from pagewire.core.fingerprint import tokenizer_digest
from pagewire.engine import weights
from pagewire.engine.adapter_folder import AdapterFolder
from pagewire.engine.model.hf_config import HFConfig

# Entries of config.json that say who wrote it, not what the model is.
_INCIDENTAL = ("_name_or_path", "_model_name_or_path", "transformers_version", "torch_dtype", "dtype")
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """What a folder says about its model."""

    path: Path
    hf_config: HFConfig
    eos_token_ids: tuple[int, ...]
    adapters: tuple[AdapterFolder, ...] = ()

    @classmethod
    def open(cls, path: Path, adapters: Iterable[str] = ()) -> ModelFolder:
        """Read a folder's configuration, and those of `adapters`, NAME=FOLDER each.

        Raises FileNotFoundError without a config.json, ValueError on a wrong one.
        """
        config_path = path / "config.json"
        if not config_path.is_file():
            raise FileNotFoundError(f"{path} is not a model folder: it has no config.json")
        hf_config = read_object(config_path)
        return cls(
            path=path,
            hf_config=hf_config,
            eos_token_ids=_eos_token_ids(path, hf_config),
            adapters=tuple(AdapterFolder.open(each) for each in adapters),
        )

    def weight_files(self) -> tuple[Path, ...]:
        """Return the safetensors files."""
        return weights.weight_files(self.path)

    def model_digest(self) -> str:
        """Return a digest over the config, the tokens that end answers, and the content of all weight files."""
        config = {key: value for key, value in self.hf_config.items() if key not in _INCIDENTAL}
        config["eos_token_id"] = sorted(self.eos_token_ids)  # where another file has the say
        state = hashlib.blake2b(json.dumps(config, sort_keys=True).encode(), digest_size=_DIGEST_BYTES)
        for path in self.weight_files():
            with path.open("rb") as file:
                # sha256 has instructions of its own on current CPUs: about 2 GB/s against blake2b's 1.
                state.update(hashlib.file_digest(file, "sha256").digest())
        return state.hexdigest()

    def tokenizer_digest(self) -> str:
        """Return a digest over tokenizer.json, "" when the folder has none."""
        path = self.path / "tokenizer.json"
        if not path.is_file():
            return ""
        return tokenizer_digest(path.read_bytes())


def _eos_token_ids(path: Path, hf_config: HFConfig) -> tuple[int, ...]:
    # generation_config.json overrides, as it does in transformers; where it names none, transformers knows no end.
    generation_path = path / "generation_config.json"
    found = None
    if generation_path.is_file():
        found = read_object(generation_path).get("eos_token_id")
    if found is None:
        found = hf_config.get("eos_token_id")
    if found is None:
        return ()
    ids = found if isinstance(found, list) else [found]
    if not all(type(each) is int and 0 <= each <= MAX_WHOLE for each in ids):
        raise ValueError(f"{path}: eos_token_id is no token's, nor a list of such: {found!r:.100}")
    return tuple(ids)

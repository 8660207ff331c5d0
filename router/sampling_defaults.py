"""What a model's maker wants sampling to be where a request leaves it open: the model's generation_config.json.

Knows the file; a request's word goes before it, and OpenAI's default behind it. As in vLLM, `do_sample` is not asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pagewire.core.document_files import read_object
from pagewire.core.errors import InvalidRequest
from pagewire.core.sampling import SamplingParams

FILE = "generation_config.json"
ANY_VOCABULARY = 1 << 31
FIELDS = ("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty")


def sampling_defaults(folder: Path) -> Mapping[str, Any]:
    """Return the fields that a model's file sets, none without a file; raises ValueError where one cannot be."""
    path = folder / FILE
    if not path.is_file():
        return {}
    said = read_object(path)
    found = {name: said[name] for name in FIELDS if said.get(name) is not None}
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, int if name == "top_k" else (int, float)):
            raise ValueError(f"{path}: {name} is not a number: {value!r}")
    try:
        SamplingParams(max_tokens=1, **found).validate(ANY_VOCABULARY)
    except InvalidRequest as error:
        raise ValueError(f"{path}: {error.message}") from error
    return found

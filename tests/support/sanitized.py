"""A plugin of pytest (`-p sanitized`): native code that watches its bounds, and what C++ leaves undefined.

Weights lie each by itself then, so that there are bounds around them. `make sanitize-test` preloads what it needs.
"""

from __future__ import annotations

import torch

from pagewire.core import native_library
from pagewire.kernels.arena import Arena


def _alone(_arena: Arena, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


# Tensors of torch are aligned to their elements' size, not to that of the vectors that are read of them.
native_library.FLAGS = (
    *native_library.FLAGS, "-fsanitize=address,undefined", "-fno-sanitize=alignment", "-fno-omit-frame-pointer",
    "-g1", "-O1",
)  # fmt: skip
Arena.empty = _alone  # type: ignore[method-assign, assignment]

"""Has Triton's interpreter call a kernel's own functions without looking through all of the language each time.

It does so at every launch, which is enough; at each call it takes a third of the time. What is computed is the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import triton.language as tl
from triton.runtime import interpreter


@contextlib.contextmanager
def quick_calls() -> Iterator[None]:
    """Patch the language for a function only where the launch that calls it has not."""
    patch = interpreter._patch_lang

    def patched(function: Any) -> Any:
        languages = [each for each in function.__globals__.values() if each is tl or each is tl.core]
        is_patched = not any(tl.core.is_builtin(language.load) for language in languages)
        return interpreter._LangPatchScope() if is_patched else patch(function)

    with mock.patch.object(interpreter, "_patch_lang", patched):
        yield

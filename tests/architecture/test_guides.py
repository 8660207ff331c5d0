"""What the guides name is there: a file that was renamed or left the tree is named by nobody any more."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDES = sorted((*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")))
NAMED = re.compile(r"`([a-z_.]+(?:/[a-z_0-9.-]+)+\.(?:py|c|cpp|toml|sh|ya?ml|proto|json|md))`")
LINKED = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
MADE = ("build/", "dist/")  # by targets


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: str(guide.relative_to(ROOT)))
def test_every_file_that_is_named_is_there(guide: Path) -> None:
    text = guide.read_text(encoding="utf-8")
    named = [name for name in NAMED.findall(text) if not name.startswith(MADE)]
    gone = [name for name in named if not (ROOT / name).exists() and not (guide.parent / name).exists()]
    assert gone == []
    assert [link for link in LINKED.findall(text) if not (guide.parent / link).exists()] == []

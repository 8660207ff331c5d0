"""What the guides name is there: a file that was renamed or left the tree is named by nobody any more."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDES = sorted((*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")))
NAMED = re.compile(r"`([a-z_.]+(?:/[a-z_0-9.-]+)+\.(?:py|c|cpp|toml|sh|ya?ml|proto|json|md))`")
LINKED = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
PLACED = re.compile(r"\]\(([^)#:]*)#([^)]+)\)")  # a heading of a guide, this one or another
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
MADE = ("build/", "dist/")  # by targets


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: str(guide.relative_to(ROOT)))
def test_every_file_that_is_named_is_there(guide: Path) -> None:
    text = guide.read_text(encoding="utf-8")
    named = [name for name in NAMED.findall(text) if not name.startswith(MADE)]
    gone = [name for name in named if not (ROOT / name).exists() and not (guide.parent / name).exists()]
    assert gone == []
    assert [link for link in LINKED.findall(text) if not (guide.parent / link).exists()] == []


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: str(guide.relative_to(ROOT)))
def test_every_heading_that_is_linked_to_is_there(guide: Path) -> None:
    placed = PLACED.findall(guide.read_text(encoding="utf-8"))
    gone = [link for link, place in placed if place not in anchors(guide.parent / link if link else guide)]
    assert gone == []


def anchors(guide: Path) -> set[str]:
    """Return what GitHub calls the headings: in small letters, dashes for spaces, nothing for other signs."""
    found: set[str] = set()
    for heading in HEADING.findall(FENCED.sub("", guide.read_text(encoding="utf-8"))):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        again = sum(1 for each in found if re.fullmatch(rf"{re.escape(name)}(-\d+)?", each))
        found.add(f"{name}-{again}" if again else name)
    return found

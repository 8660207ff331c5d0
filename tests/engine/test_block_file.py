"""The file that host memory may lie in: what one engine seals there, the next finds, or nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagewire.core.block_hash import BlockHash
from pagewire.engine.block_file import BlockFile
from pagewire.engine.parked import Parked

PARTS = (96, 40)  # bytes of a block in each part
NUM_SLOTS = 5
ROOT, CHILD, OTHER = (BlockHash(bytes([i]) * 16) for i in (1, 2, 3))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "here"


def take(folder: Path, owner: str = "ours", num_slots: int = NUM_SLOTS, use: str = "") -> BlockFile:
    return BlockFile.take(folder, owner, use, num_slots, PARTS)


def write(file: BlockFile, slot: int, fill: int) -> None:
    for index, size in enumerate(PARTS):
        file.part(index)[slot * size : (slot + 1) * size] = bytes([fill + index]) * size


def read(file: BlockFile, slot: int) -> list[bytes]:
    return [bytes(file.part(index)[slot * size : (slot + 1) * size]) for index, size in enumerate(PARTS)]


def put(file: BlockFile, parked: Parked, fill: int) -> None:
    write(file, parked.slot, fill)
    file.seal(parked.slot, parked)


def expected(fill: int) -> list[bytes]:
    return [bytes([fill + index]) * size for index, size in enumerate(PARTS)]


def three(file: BlockFile) -> None:
    put(file, Parked(4, ROOT, None, 0), 10)
    put(file, Parked(1, OTHER, None, 0), 20)
    put(file, Parked(0, CHILD, ROOT, 1), 30)


def test_what_was_sealed_is_found_in_that_order(folder: Path) -> None:
    file = take(folder)
    assert file.blocks() == ()
    three(file)
    file.close()
    again = take(folder)
    assert again.path == file.path
    found = again.blocks()
    assert found == (Parked(4, ROOT, None, 0), Parked(1, OTHER, None, 0), Parked(0, CHILD, ROOT, 1))
    assert again.num_intact(found) == 3
    assert [read(again, parked.slot) for parked in found] == [expected(10), expected(20), expected(30)]
    put(again, Parked(2, ROOT, None, 0), 10)  # a block that is in two slots is the later one
    again.seal(1, None)
    again.close()
    assert take(folder).blocks() == (Parked(0, CHILD, ROOT, 1), Parked(2, ROOT, None, 0))


def test_it_is_the_owners_alone(folder: Path) -> None:
    file = take(folder)
    assert [path.stat().st_mode & 0o777 for path in (folder, file.path)] == [0o700, 0o600]


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_whatever_byte_is_another_nothing_wrong_is_believed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("kept")
    file = take(folder)
    three(file)
    file.close()
    whole = file.path.read_bytes()
    used = [*range(4096 + 64 * NUM_SLOTS), *(place for place, byte in enumerate(whole) if byte)]
    place = data.draw(st.sampled_from(used))
    damaged = bytearray(whole)
    damaged[place] ^= 1 << data.draw(st.integers(0, 7))
    file.path.write_bytes(damaged)
    again = take(folder)
    right = {ROOT: expected(10), OTHER: expected(20), CHILD: expected(30)}
    told = {
        parked.block_hash: parked
        for parked in (Parked(4, ROOT, None, 0), Parked(1, OTHER, None, 0), Parked(0, CHILD, ROOT, 1))
    }
    found = again.blocks()
    believed = [parked for parked in found if again.num_intact([parked])]
    assert found[: again.num_intact(found)] == tuple(takewhile(believed.__contains__, found))
    for parked in believed:
        assert parked == told[parked.block_hash]
        assert read(again, parked.slot) == right[parked.block_hash]
    assert len(believed) in ((0, 2, 3) if place < 4096 else (2, 3)), (
        "one byte costs one block, or all where it is the header's"
    )
    again.close()


def test_two_engines_have_two_files_and_each_finds_its_own(folder: Path) -> None:
    first, second = take(folder, "one"), take(folder, "two")
    assert first.path != second.path
    three(first)
    put(second, Parked(3, OTHER, None, 0), 40)
    second.close()
    first.close()
    again = take(folder, "two")
    assert again.path == second.path
    assert again.blocks() == (Parked(3, OTHER, None, 0),)
    third = take(folder, "three")  # a file that nobody has is begun anew before another is made
    assert third.path == first.path
    assert third.blocks() == ()


def test_of_an_owners_files_that_for_the_same_use_comes_first(folder: Path) -> None:
    kept = {use: take(folder, use=use) for use in ("prefill", "decode")}
    for fill, file in enumerate(kept.values()):
        put(file, Parked(0, ROOT, None, 0), fill)
        file.close()
    decode, prefill = take(folder, use="decode"), take(folder, use="prefill")
    assert [decode.path, prefill.path] == [kept["decode"].path, kept["prefill"].path]
    assert [read(file, 0) for file in (prefill, decode)] == [expected(0), expected(1)]
    decode.close()
    other = take(folder, use="colocated")  # one for another use before a new one: the blocks are the same
    assert other.path == decode.path
    assert other.blocks() == (Parked(0, ROOT, None, 0),)
    other.close()
    prefill.close()
    assert take(folder, use="colocated").path == other.path


def test_files_that_nobody_has_had_for_a_day_are_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = [take(folder) for _ in range(4)]
    for file in files[1:]:
        file.close()
    day_s = 24 * 3600
    for file, age_s in zip(files, (9 * day_s, 9 * day_s, day_s // 2, 3 * day_s), strict=True):
        os.utime(file.path, (0.0, time.time() - age_s))
    caplog.clear()
    again = take(folder)  # the second; the first is somebody's
    assert again.path == files[1].path
    (told,) = caplog.messages
    assert told.startswith(
        f"{files[3].path}: nobody has had this file for 3.0 days; delete it, unless a pod is to come"
    )
    caplog.clear()
    again.close()  # so that it was had just now
    files[3].path.unlink()
    take(folder)
    assert caplog.messages == []


@pytest.mark.parametrize("change", [{"owner": "theirs"}, {"num_slots": NUM_SLOTS + 1}])
def test_what_another_left_is_not_read(folder: Path, change: dict[str, str | int]) -> None:
    file = take(folder)
    three(file)
    file.close()
    assert take(folder, **change).blocks() == ()  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, 100, 4096, 5000])
def test_a_file_cut_short_is_begun_anew(folder: Path, size: int) -> None:
    file = take(folder)
    three(file)
    file.close()
    file.path.write_bytes(file.path.read_bytes()[:size])
    assert take(folder).blocks() == ()


def test_a_damaged_record_says_nothing_of_what_comes_next(folder: Path) -> None:
    file = take(folder)
    three(file)
    file.close()
    data = bytearray(file.path.read_bytes())
    data[4096 + 2 * 64 : 4096 + 3 * 64] = b"\xff" * 64  # a stamp that none could come after
    file.path.write_bytes(data)
    again = take(folder)
    assert [parked.slot for parked in again.blocks()] == [4, 1, 0]
    put(again, Parked(3, BlockHash(b"4" * 16), None, 0), 40)
    assert [parked.slot for parked in again.blocks()] == [4, 1, 0, 3]


def test_what_could_not_be_taken_is_let_go(folder: Path) -> None:
    with pytest.raises(OverflowError):
        take(folder, num_slots=1 << 60)
    file = take(folder)
    assert [file.path] == [*folder.glob("*.kv")]


def test_where_there_is_no_room_it_is_said_and_nothing_is_kept(folder: Path) -> None:
    with pytest.raises(OSError, match=r"too large|No space"):
        take(folder, num_slots=1 << 54)
    (left,) = folder.glob("*.kv")
    assert left.stat().st_size == 0
    assert take(folder).path == left


@pytest.fixture
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """An engine's place taken by a process that seals a block and waits."""
    script = f"""
        from pathlib import Path
        from pagewire.engine.block_file import BlockFile
        from pagewire.engine.parked import Parked

        file = BlockFile.take(Path({str(folder)!r}), "ours", "", {NUM_SLOTS}, {PARTS})
        for index, size in enumerate({PARTS}):
            file.part(index)[:size] = bytes([10 + index]) * size
        file.seal(0, Parked(0, {ROOT!r}, None, 0))
        print(file.path, flush=True)
        input()
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_what_a_killed_engine_had_sealed_is_there(folder: Path, holder: subprocess.Popen[str]) -> None:
    assert holder.stdout is not None
    path = Path(holder.stdout.readline().strip())
    beside = take(folder)
    assert beside.path != path, "it is alive"
    beside.close()
    holder.kill()
    holder.wait()
    file = take(folder)
    assert file.path == path
    (parked,) = file.blocks()
    assert parked == Parked(0, ROOT, None, 0)
    assert file.num_intact([parked])
    assert read(file, 0) == expected(10)

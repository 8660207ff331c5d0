"""The host tier in a file: the bytes of its slots, and what block each of them is, so that they outlive the engine.

    header   magic | digests of whose file it is, and of what for      one page
    records  one of 64 bytes for each slot: stamp | depth | hash | parent's hash | checksum      whole pages
    parts    the slots of each part of the pool      whole pages each

A checksum, xxh3_64, goes over a record and over the bytes in its slot, in all parts: whatever was half written when an
engine or its machine ended is found by it, so that nothing has to be written in any order. The kernel keeps in memory
what is in use, as of any file. One engine has a file at a time; its bytes are those of prompts, and its owner's alone.
Knows bytes and names of blocks; nothing of the pool, nor who asks for what.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import logging
import mmap
import os
import re
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import xxhash

from pagewire.core import pages
from pagewire.core.block_hash import HASH_BYTES, BlockHash
from pagewire.core.units import format_bytes
from pagewire.engine.parked import Parked

log = logging.getLogger(__name__)

MAGIC = b"pagewire blocks 1"
DIGEST_BYTES = 32
PAGE_BYTES = 4096
_SAID = struct.Struct(f"<QI{HASH_BYTES}s{HASH_BYTES}s")  # stamp, 0 for none; depth; hash; parent's hash, or zeros
_RECORD = struct.Struct(f"<{_SAID.size}sQ12x")  # that, and the checksum
DAY_S = 24 * 3600.0
_NO_PARENT = bytes(HASH_BYTES)
_MAX_STAMP = 1 << 63  # no engine comes to as many: a larger one is damage, and could not be counted on from
_NAME = re.compile(r"blocks-([0-9]+)\.kv")


class BlockFile:
    """`num_slots` slots of one block each, which lies in parts of `part_bytes`. Build it with `take`."""

    def __init__(self, fd: int, path: Path, num_slots: int, part_bytes: Sequence[int]) -> None:
        self.path = path
        self._fd = fd
        self._num_slots = num_slots
        self._part_bytes = part_bytes
        *self._starts, size = _starts(num_slots, part_bytes)
        self._memory = pages.map_file(fd, size, writable=True)
        self._bytes = memoryview(self._memory)
        self._stamp = max((stamp for (stamp, *_), _ in self._said()), default=0)

    @classmethod
    def take(cls, folder: Path, owner: str, use: str, num_slots: int, part_bytes: Sequence[int]) -> BlockFile:
        """Take a file of `folder` that no other engine has: one that this `owner` left, else any or a new one, empty.

        Two engines of one owner, a text, have the same names for the same blocks. Of what the owner left, what was for
        the same `use`, a text too, comes first. Raises OSError, where there is no room too.
        """
        size = _starts(num_slots, part_bytes)[-1]
        owned = MAGIC + _digest(f"{owner}\0{num_slots}\0{part_bytes}")
        header = owned + _digest(use)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.ExitStack() as failed:
            with _locked(folder):
                fd, path = _untaken(folder, (header, owned, b""))
                failed.callback(os.close, fd)
                if os.fstat(fd).st_size != size or not _begins(fd, owned):
                    _empty(fd, path, size)
                os.pwrite(fd, header, 0)
                os.utime(fd)
                _tell_unused(folder)
            taken = cls(fd, path, num_slots, part_bytes)
            failed.pop_all()
        return taken

    def part(self, index: int) -> memoryview:
        """Return the bytes of all slots of one part, writable: `[num_slots * part_bytes[index]]`."""
        start = self._starts[index]
        return self._bytes[start : start + self._num_slots * self._part_bytes[index]]

    def blocks(self) -> Sequence[Parked]:
        """Return what is said to lie in the slots, each hash once, the least recently sealed first."""
        found: dict[bytes, Parked] = {}
        for (_, depth, block_hash, parent), slot in sorted(self._said()):
            found.pop(block_hash, None)
            parent_hash = None if parent == _NO_PARENT else BlockHash(parent)
            found[block_hash] = Parked(slot, BlockHash(block_hash), parent_hash, depth)
        return tuple(found.values())

    def num_intact(self, parked: Sequence[Parked]) -> int:
        """Return how many of these of `blocks`, from the first, are what they are said to be, by reading them."""
        for one in parked:  # all are on their way before the first is waited for: a disk is twice as fast so
            for place, size in self._places(one.slot):
                start = place - place % PAGE_BYTES
                self._memory.madvise(mmap.MADV_WILLNEED, start, place + size - start)
        damaged = (number for number, one in enumerate(parked) if not self._is_intact(one))
        return next(damaged, len(parked))

    def seal(self, slot: int, parked: Parked | None) -> None:
        """Say what block the bytes are that were written to a slot; None: none that another engine could want."""
        said, checksum = bytes(_SAID.size), 0
        if parked is not None:
            self._stamp += 1
            said = _SAID.pack(self._stamp, parked.depth, parked.block_hash, parked.parent_hash or _NO_PARENT)
            checksum = self._checksum(slot, said)
        _RECORD.pack_into(self._bytes, self._record_at(slot), said, checksum)

    def close(self) -> None:
        """Let another engine have the file; nothing may be written any more."""
        if self._fd >= 0:
            os.utime(self._fd)
            fcntl.flock(self._fd, fcntl.LOCK_UN)  # what is mapped keeps it open
            os.close(self._fd)
        self._fd = -1

    def _is_intact(self, parked: Parked) -> bool:
        said, checksum = _RECORD.unpack_from(self._bytes, self._record_at(parked.slot))
        if _SAID.unpack(said)[2] == parked.block_hash and self._checksum(parked.slot, said) == checksum:
            return True
        log.warning("%s: slot %d does not hold what it is said to, and is let go", self.path, parked.slot)
        return False

    def _said(self) -> Iterator[tuple[tuple[int, int, bytes, bytes], int]]:
        """Yield what a slot is said to hold, and the slot, of those that are said to hold anything."""
        records = _RECORD.iter_unpack(self._bytes[PAGE_BYTES : self._record_at(self._num_slots)])
        for slot, (packed, _) in enumerate(records):
            said = _SAID.unpack(packed)
            if 0 < said[0] <= _MAX_STAMP:
                yield said, slot

    def _record_at(self, slot: int) -> int:
        return PAGE_BYTES + slot * _RECORD.size

    def _places(self, slot: int) -> Iterator[tuple[int, int]]:
        for start, size in zip(self._starts, self._part_bytes, strict=True):
            yield start + slot * size, size

    def _checksum(self, slot: int, said: bytes) -> int:
        state = xxhash.xxh3_64(said)
        for place, size in self._places(slot):
            state.update(self._bytes[place : place + size])
        return state.intdigest()


def _starts(num_slots: int, part_bytes: Sequence[int]) -> list[int]:
    """Return where each part begins, and where the last ends."""
    sizes = (PAGE_BYTES, num_slots * _RECORD.size, *(num_slots * size for size in part_bytes))
    return list(itertools.accumulate(-(-size // PAGE_BYTES) * PAGE_BYTES for size in sizes))[1:]


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other engines from choosing a file meanwhile."""
    # A file, which is written to: NFS locks nothing else.
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _tell_unused(folder: Path) -> None:
    """Log which files nobody has had for long: one that was made while another engine still wrote may never be found.

    Whether somebody comes for it yet is its owner's to know, who deletes it otherwise.
    """
    for path in sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name)):
        if (fd := _open(path)) is not None:
            said = os.fstat(fd)
            os.close(fd)
            if (days := (time.time() - said.st_mtime) / DAY_S) >= 1:
                text = "%s: nobody has had this file for %.1f days; delete it, unless a pod is to come for its %s"
                log.warning(text, path, days, format_bytes(said.st_size))


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


def _untaken(folder: Path, wanted: Sequence[bytes]) -> tuple[int, Path]:
    """Return a file that nobody has, open and locked: the first with the first of these beginnings, else a new one.

    The folder is locked, so that nobody else tries one meanwhile.
    """
    found = sorted((int(match[1]), path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name)))
    for beginning in wanted:
        for _, path in found:
            fd = _open(path)
            if fd is not None and _begins(fd, beginning):
                return fd, path
            if fd is not None:
                os.close(fd)
    numbers = {number for number, _ in found}
    path = folder / f"blocks-{next(number for number in itertools.count() if number not in numbers)}.kv"
    fd = _open(path)
    assert fd is not None, "a file that was not there is somebody's"
    return fd, path


def _empty(fd: int, path: Path, size: int) -> None:
    """Give a file its size, and zeros; nothing at all where there is no room."""
    if os.fstat(fd).st_size:
        log.info("%s: what is there is of another model, setting or version, and is given up", path)
    os.ftruncate(fd, 0)
    try:
        os.posix_fallocate(fd, 0, size)  # else a full disk would end whoever writes
    except OSError:
        os.ftruncate(fd, 0)
        raise


def _open(path: Path) -> int | None:
    """Return a file locked, made where there is none; None when somebody has it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if not isinstance(error, BlockingIOError):
            raise
        return None
    return fd


def _begins(fd: int, beginning: bytes) -> bool:
    return os.pread(fd, len(beginning), 0) == beginning

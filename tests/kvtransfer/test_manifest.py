"""A run of blocks of a chain: its borders."""

from __future__ import annotations

import pytest

from pagewire.kvtransfer.manifest import Manifest


def test_it_holds_the_indices_from_its_first_block_to_before_its_end() -> None:
    manifest = Manifest(first_block=3, num_blocks=2)
    assert (manifest.end, manifest.indices()) == (5, range(3, 5))
    assert [index in manifest for index in range(7)] == [False, False, False, True, True, False, False]
    for other in ("3", 3.5, None):
        assert other not in manifest


def test_it_may_be_empty() -> None:
    manifest = Manifest(first_block=0, num_blocks=0)
    assert (manifest.end, list(manifest.indices()), 0 in manifest) == (0, [], False)


@pytest.mark.parametrize(("first", "num"), [(-1, 0), (0, -1), (-1, 2), (5, -1)])
def test_no_number_is_negative(first: int, num: int) -> None:
    with pytest.raises(ValueError, match=f"{num} blocks from {first} on"):
        Manifest(first_block=first, num_blocks=num)

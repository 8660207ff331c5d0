"""A chunk that has a stream to itself: its messages by hand, and by a definition that looks at every moment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.slo.costs.cost_model import LinkLaw
from pagewire.slo.simulation.lone_chunk import messages

BLOCK = 10


def law(*, message: int, window: int, latency_s: float = 0.0) -> LinkLaw:
    """Return a link of one block a second."""
    return LinkLaw(latency_s=latency_s, bytes_per_s=BLOCK, window_bytes=window, message_bytes=message)


@pytest.mark.parametrize(
    ("num_blocks", "link", "at_s", "free_s", "found"),
    [
        # Two blocks fit a message, and four half the window: the third waits until the first was credited.
        (5, law(message=2 * BLOCK, window=8 * BLOCK, latency_s=3.0), 7.0, 0.0, [(9.0, 2), (11.0, 2), (16.0, 1)]),
        # A message that is no multiple of blocks has those that fit, and a window that is none bears no more either.
        (4, law(message=29, window=59, latency_s=0.0), 0.0, 0.0, [(2.0, 2), (4.0, 2)]),
        # The stream is busy until 4.
        (3, law(message=30, window=120), 1.0, 4.0, [(7.0, 3)]),
        # A block that is larger than a message, or than half the window, goes by itself.
        (3, law(message=5, window=15, latency_s=1.0), 0.0, 0.0, [(1.0, 1), (4.0, 1), (7.0, 1)]),
        # Two messages are on their way at a time, and each credit lets one go.
        (4, law(message=10, window=40, latency_s=2.0), 0.0, 0.0, [(1.0, 1), (2.0, 1), (6.0, 1), (7.0, 1)]),
        # The stream is busy until 2; the last message has the block that is left, and waits for the credit.
        (4, law(message=30, window=60, latency_s=1.0), 0.0, 2.0, [(5.0, 3), (8.0, 1)]),
    ],
)
def test_messages_by_hand(
    num_blocks: int, link: LinkLaw, at_s: float, free_s: float, found: list[tuple[float, int]]
) -> None:
    assert messages(num_blocks, BLOCK, link, at_s, free_s) == found


def by_definition(num_blocks: int, link: LinkLaw, at_s: float, free_s: float) -> list[tuple[float, int]]:
    """Look at every whole second: a message goes as soon as half the window bears it and what is not credited yet."""
    latency_s, found = int(link.latency_s), list[tuple[float, int]]()
    now_s = int(at_s)
    while num_blocks:
        count = min(num_blocks, max(1, link.message_bytes // BLOCK))
        uncredited = [blocks * BLOCK for off_s, blocks in found if off_s + 2 * latency_s > now_s]
        if uncredited and sum(uncredited) + count * BLOCK > link.window_bytes // 2:
            now_s += 1
            continue
        free_s = max(free_s, now_s) + count
        found.append((free_s, count))
        num_blocks -= count
    return found


@given(
    st.integers(1, 30), st.integers(1, 60), st.integers(2, 160), st.integers(0, 5), st.integers(0, 9), st.integers(0, 9)
)
def test_messages_by_definition(
    num_blocks: int, message: int, window: int, latency_s: int, at_s: int, free_s: int
) -> None:
    link = law(message=message, window=window, latency_s=latency_s)
    assert messages(num_blocks, BLOCK, link, at_s, free_s) == by_definition(num_blocks, link, at_s, free_s)

"""Sums over ranks through shared memory: the same bits for all, and every way in which another rank is lost."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from pagewire.engine.model.shard import Shard
from pagewire.engine.ranks.rank_group import mesh
from pagewire.engine.ranks.rank_lost import RankLost
from pagewire.engine.ranks.rank_parts import SLOT_BYTES, RankParts
from pagewire.engine.ranks.rank_sum import RankSum


@contextlib.contextmanager
def memory(num_ranks: int) -> Iterator[tuple[int, list[list[socket.socket]]]]:
    """A memory file for all, and each rank's sockets to the others."""
    fd, ends = os.memfd_create("ranks"), mesh(num_ranks)
    try:
        yield fd, ends
    finally:
        os.close(fd)
        for each in (one for some in ends for one in some):
            each.close()


def at_once(*calls: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    with ThreadPoolExecutor(len(calls)) as threads:
        return [each.result(20) for each in [threads.submit(call) for call in calls]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_all_ranks_have_the_sum_in_the_order_of_the_ranks(num_ranks: int, dtype: torch.dtype) -> None:
    """Also of what fills no slot, one, and more of them than there are."""
    hidden = 96
    rows_of_a_slot = SLOT_BYTES // (hidden * dtype.itemsize)
    with memory(num_ranks) as (fd, ends):
        sums = [
            RankSum(per_pass=2, hidden_size=hidden, dtype=dtype, device=torch.device("cpu")) for _ in range(num_ranks)
        ]
        for each, meeting in zip(sums, shared(num_ranks, fd, ends), strict=True):
            each.connect(meeting)
        generator = torch.Generator().manual_seed(num_ranks)
        for rows in (1, 0, 7, rows_of_a_slot, 3 * rows_of_a_slot + 5, 2):
            shape = (num_ranks, rows, 2 * hidden)
            parts = torch.randn(shape, generator=generator).to(dtype)[:, :, ::2]  # [R, T, H], and not contiguous
            expected = parts[0].float()
            for other in parts[1:]:
                expected = expected + other
            got = at_once(*(lambda each=each, part=part: each(part) for each, part in zip(sums, parts, strict=True)))
            for total in got:
                assert total.dtype == dtype
                assert torch.equal(total, expected.to(dtype))


def shared(num_ranks: int, fd: int, ends: list[list[socket.socket]], timeout_s: float = 20.0) -> list[RankParts]:
    return [RankParts(Shard(rank=rank, num_ranks=num_ranks), fd, peers, timeout_s) for rank, peers in enumerate(ends)]


def test_what_was_shown_stays_until_the_next_exchange_but_one() -> None:
    with memory(2) as (fd, ends):
        one, other = shared(2, fd, ends)
        kept = []
        for number in range(5):
            numbers = (torch.full((3,), float(number)), torch.full((3,), -float(number)))
            with ThreadPoolExecutor(1) as thread:
                there = thread.submit(other.exchange, numbers[1])
                kept.append(one.exchange(numbers[0]))
                there.result(20)
            for at in (number - 1, number):
                if at >= 0:
                    assert [part.tolist() for part in kept[at]] == [[float(at)] * 3, [-float(at)] * 3]


def test_a_rank_that_has_ended_is_lost_at_once() -> None:
    with memory(2) as (fd, ends):
        one, other = shared(2, fd, ends)
        other.close()
        with pytest.raises(RankLost, match="another rank"):
            one.exchange(torch.zeros(3))


def test_a_rank_that_stands_still_is_lost_at_the_deadline() -> None:
    with memory(2) as (fd, ends):
        one, _ = shared(2, fd, ends, timeout_s=0.05)
        with pytest.raises(RankLost, match="did not come to a sum"):
            one.exchange(torch.zeros(3))


def test_ranks_at_different_sums_have_lost_one_another() -> None:
    """No number of another sum is ever taken for one of this."""
    with memory(2) as (fd, ends):
        one, other = shared(2, fd, ends)
        with ThreadPoolExecutor(1) as thread:
            there = thread.submit(other.exchange, torch.zeros(4))
            with pytest.raises(RankLost, match="another rank is at another sum"):
                one.exchange(torch.zeros(3))
            with pytest.raises(RankLost):
                there.result(20)


class Scripted:
    """A meeting that does in each sum what a test says, with what is shown to it."""

    def __init__(self, *outcomes: Exception | None) -> None:
        self.outcomes = list(outcomes)
        self.shown: list[list[float]] = []
        self.is_closed = False

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        self.shown.append(part.flatten().tolist())
        if self.outcomes and (error := self.outcomes.pop(0)) is not None:
            raise error
        return part.fill_(9.0)  # as where a sum takes its part's place

    def close(self) -> None:
        self.is_closed = True


def scripted(*outcomes: Exception | None) -> tuple[RankSum, Scripted]:
    total, meeting = (
        RankSum(per_pass=4, hidden_size=2, dtype=torch.float32, device=torch.device("cpu")),
        Scripted(*outcomes),
    )
    total.connect(meeting)
    return total, meeting


def test_a_pass_is_ended_with_a_zero_for_each_sum_that_is_left() -> None:
    total, meeting = scripted()
    total(torch.ones(1, 2))
    total.finish(3)
    assert meeting.shown == [[1.0] * 2, *[[0.0] * 6] * 3]
    for _ in range(4):
        total(torch.ones(1, 2))
    total.finish(3)
    assert len(meeting.shown) == 8, "all were there"


@pytest.mark.parametrize("error", [MemoryError("no room"), RuntimeError("the device has failed"), RankLost("gone")])
def test_a_rank_that_cannot_end_a_pass_is_lost(error: Exception) -> None:
    """Its next sum would meet the others' last, and take their numbers for its own."""
    total, meeting = scripted(None, None, error)
    total(torch.ones(1, 2))
    with pytest.raises(RankLost, match=f"a pass that failed cannot be ended: {error}"):
        total.finish(1)
    assert meeting.is_closed
    with pytest.raises(RankLost, match="have parted"):
        total(torch.ones(1, 2))


def test_a_sum_after_a_lost_one_fails_without_waiting() -> None:
    with memory(2) as (fd, ends):
        total = RankSum(per_pass=1, hidden_size=4, dtype=torch.float32, device=torch.device("cpu"))
        with pytest.raises(RankLost, match="never met"):
            total(torch.zeros(1, 4))
        total.connect(shared(2, fd, ends, 0.05)[0])
        with pytest.raises(RankLost):
            total(torch.zeros(1, 4))
        total.finish(1)
        with pytest.raises(RankLost, match="have parted"):
            total(torch.zeros(1, 4))

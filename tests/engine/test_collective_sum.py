"""Sums over ranks by torch.distributed, with gloo for NCCL: the same bits for all, and a rank that does not come.

Proves where the ranks meet, what is added up, and that an engine computes with it; cannot show what NCCL does.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from engine_runs import engine, greedy, run_all, spec
from ranked_engines import ranked

from pagewire.engine.model.shard import Shard
from pagewire.engine.ranks import collective_sum, meeting, rank_group
from pagewire.engine.ranks.collective_sum import CollectiveSum
from pagewire.engine.ranks.rank_lost import RankLost
from pagewire.engine.ranks.rank_sum import RankSum
from pagewire.kvtransfer.transports.process_group import ProcessGroup

TinyModel = Callable[[str], Path]

CPU = torch.device("cpu")
# A rank's program that meets the others as if each had a GPU to itself.
BY_COLLECTIVES = """
import sys
import pagewire.engine.ranks.follower as follower
from pagewire.engine.ranks import meeting
meeting.are_distinct = lambda devices: True
follower.main(sys.argv[1:])
"""


@contextlib.contextmanager
def met(num_ranks: int) -> Iterator[list[CollectiveSum]]:
    fd = os.memfd_create("ranks")
    try:
        with ThreadPoolExecutor(num_ranks) as threads:
            shards = [Shard(rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]
            made = [threads.submit(CollectiveSum, shard, CPU, fd, 20.0) for shard in shards]
            sums = [each.result(30) for each in made]
        yield sums
        for each in sums:
            each.close()
    finally:
        os.close(fd)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_all_ranks_have_the_sum(num_ranks: int, dtype: torch.dtype) -> None:
    """Of numbers whose sums are exact, whatever the order."""
    with met(num_ranks) as sums, ThreadPoolExecutor(num_ranks) as threads:
        for rows in (1, 7, 300):
            parts = torch.randint(-30, 30, (num_ranks, rows, 32)).to(dtype)[:, :, ::2]  # [R, T, H], not contiguous
            expected = parts.sum(0)
            got = [threads.submit(each.sum, part) for each, part in zip(sums, parts, strict=True)]
            assert all(torch.equal(each.result(20), expected) for each in got)


def test_a_pass_that_failed_is_ended_with_zeros() -> None:
    """The others have what the rest of the ranks had, and no number of a sum before."""
    with met(2) as sums, ThreadPoolExecutor(2) as threads:
        failed, other = (RankSum(per_pass=3, hidden_size=4, dtype=torch.float32, device=CPU) for _ in range(2))
        for total, each in zip((failed, other), sums, strict=True):
            total.connect(each)

        def compute() -> list[torch.Tensor]:
            return [other(torch.full((2, 4), float(number))).clone() for number in range(3)]

        computing = threads.submit(compute)
        failed(torch.full((2, 4), 10.0))
        failed.finish(2)
        assert [float(each[0, 0]) for each in computing.result(20)] == [10.0, 1.0, 2.0]


def test_a_rank_that_does_not_come_to_a_sum_is_lost_at_the_deadline() -> None:
    with met(2) as (one, _):
        one._timeout = timedelta(seconds=0.3)
        with pytest.raises(RankLost, match="did not come to a sum"):
            one.sum(torch.zeros(2, 4))


def test_ranks_that_do_not_meet_are_lost_at_the_deadline() -> None:
    fd = os.memfd_create("ranks")
    try:
        with pytest.raises(RankLost, match="do not meet"):
            CollectiveSum(Shard(rank=0, num_ranks=2), CPU, fd, 0.3)
    finally:
        os.close(fd)


def test_ranks_that_do_not_meet_at_all_are_waited_for_no_longer() -> None:
    """As where NCCL waits for a rank that does not come: for ever, in a thread that is left to it."""
    never = threading.Event()

    def meet() -> ProcessGroup:
        never.wait(20)
        raise AssertionError

    with pytest.raises(RuntimeError, match=r"not all were there within 0\.05 s"):
        collective_sum._met(meet, 0.05)
    never.set()


def test_how_a_meeting_failed_is_said() -> None:
    def meet() -> ProcessGroup:
        raise RuntimeError("NCCL error 5")

    with pytest.raises(RuntimeError, match="NCCL error 5"):
        collective_sum._met(meet, 20.0)


def test_an_engine_computes_with_it(tiny: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "collective.py"
    program.write_text(BY_COLLECTIVES)
    monkeypatch.setattr(rank_group, "FOLLOWER", (sys.executable, "-P", str(program)))
    monkeypatch.setattr(meeting, "are_distinct", lambda _devices: True)
    asked = [spec(str(i), [i + at for at in range(5 * i + 1)], greedy(10)) for i in range(4)]
    expected = run_all(engine(tiny("llama")).loop, asked).tokens
    with ranked(tiny("llama"), device="cpu,cpu") as built:
        assert isinstance(built.runner._model._model._stack._reduce._meeting, CollectiveSum)  # type: ignore[attr-defined]
        assert run_all(built.loop, asked).tokens == expected

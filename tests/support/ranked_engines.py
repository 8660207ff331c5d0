"""Engines of several ranks that are ended with their test, and a follower that fails where a test says."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from engine_runs import engine

from pagewire.core.messages import Role
from pagewire.engine.assembly import Engine

# A rank's program whose layers fail, behind so many sums, in a pass that holds a certain token.
FAILING = """
import sys
import pagewire.engine.ranks.follower as follower
from pagewire.engine.model.decoder import Decoder
from pagewire.engine.ranks.rank_sum import RankSum

TOKEN, AFTER = int(sys.argv[1]), int(sys.argv[2])
forward, left = Decoder.forward, [0]
total = RankSum.__call__

def failing(self, batch, pool, wrote=None):
    left[0] = AFTER + 1 if TOKEN in batch.token_ids.tolist() else -1
    return forward(self, batch, pool, wrote)

def counted(self, part):
    left[0] -= 1
    if left[0] == 0:
        left[0] = -1
        raise MemoryError("no room on this rank")
    return total(self, part)

Decoder.forward, RankSum.__call__ = failing, counted
follower.main(sys.argv[3:])
"""


@contextlib.contextmanager
def ranked(model: Path, num_ranks: int = 2, role: Role = Role.COLOCATED, **settings: Any) -> Iterator[Engine]:
    """Return an engine of several ranks; when the block ends, so have they."""
    built = engine(model, role, **{"tensor_parallel": num_ranks, **settings})
    assert built.ranks is not None
    try:
        yield built
    finally:
        built.close()
    assert [pid for pid in built.ranks.pids if psutil.pid_exists(pid)] == []

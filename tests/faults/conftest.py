"""One tiny model per run, and the answers that it must always give."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_model
from kill_trials import MAX_TOKENS, NUM_PROMPT, Question
from one_thread import one_thread as one_thread
from pods import Colocated
from reference import NEAR_TIE, Reference


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny model."""
    return tiny_model.build(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def colocated(model: Path) -> Colocated:
    """Return the answers of a single engine."""
    return Colocated(model)


@pytest.fixture(scope="session")
def question(model: Path) -> Question:
    """Return a prompt of many blocks whose greedy answer passes no near-tie, and that answer."""
    reference = Reference(model)
    for seed in range(50):
        tokens = [(seed * 37 + i * i * 7 + i * (seed + 3)) % 256 for i in range(NUM_PROMPT)]
        (expected,) = reference.greedy([tokens], MAX_TOKENS)
        if min(expected.margins) > NEAR_TIE:
            return tokens, list(expected.tokens)
    raise AssertionError("no prompt without a near-tie")


@pytest.fixture(params=["grpc", "tcp", "shm", "collective", "nixl"])
def transport(request: pytest.FixtureRequest) -> str:
    """Return what KV travels by between processes."""
    return str(request.param)

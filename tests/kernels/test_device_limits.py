"""What benchmarks on a GPU hold figures against: the best copy, and those peers that run."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from source_tree import ROOT

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def bench_support(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench" / "support"))


def test_the_copy_rate_is_that_of_the_best_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    device_limits = importlib.import_module("device_limits")

    def seconds(_: torch.device, works: Sequence[Callable[[], object]], rounds: int, *, in_graph: bool = True) -> float:
        for work in works:
            work()
        return 2.0 if in_graph else 1.0

    monkeypatch.setattr(device_limits, "seconds", seconds)
    found: dict[str, Any] = device_limits.limits(CPU, torch.float32, 1 << 20, 8)
    assert found["copy-bytes-per-s"] == 2 * (2 << 20)
    assert found["copied-by"] == "copy_ of 2 MiB"
    assert found["copies"]["copy_ in a graph of 2 MiB"] == 2 << 20
    assert len(found["copies"]) == 8
    assert found["matmul-flop-per-s"] == 2 * 8**3 / 2


def test_a_peer_that_fails_is_left_out_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    attention_peers = importlib.import_module("attention_peers")

    def made() -> Callable[[], object]:
        return lambda: 1

    def unmade() -> Callable[[], object]:
        raise OSError("no compiler\nand more")

    def unrun() -> Callable[[], object]:
        def attend() -> object:
            raise RuntimeError

        return attend

    peers = attention_peers._those_that_run({"made": made, "unmade": unmade, "unrun": unrun})
    assert peers.keys() == {"made"}
    assert capsys.readouterr().out.splitlines() == [
        "unmade is left out: no compiler", "unrun is left out: RuntimeError",
    ]  # fmt: skip

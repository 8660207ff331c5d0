"""`bench/when_disaggregation_pays.py --costs`: its questions are the page's, in the prompts and steps of the file.

Cannot prove what comes of them: that takes minutes of simulated clusters, and laws of real pods.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pagewire.slo.cost_model import CostModel, StepLaw

SCRIPT = Path(__file__).parents[2] / "bench" / "when_disaggregation_pays.py"


@pytest.fixture(scope="module")
def pays() -> Any:
    spec = importlib.util.spec_from_file_location("bench_pays", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_pays"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def slower(law: StepLaw, factor: float) -> StepLaw:
    lines = [
        dataclasses.replace(line, **{name: factor * value for name, value in dataclasses.asdict(line).items()})
        for line in law.lines
    ]
    return StepLaw(lines=tuple(lines), overhead_s=factor * law.overhead_s)


@pytest.mark.parametrize("factor", [1, 4])
def test_bounds_and_rates_are_the_pages_in_the_files_own_time(
    pays: Any, monkeypatch: pytest.MonkeyPatch, factor: int
) -> None:
    asked: list[tuple[float, list[str]]] = []

    def table(bench: Any, what: str, rows: list[tuple[str, str, Any]]) -> Iterator[str]:
        asked.append((bench.first_rate, [slo for _, slo, _ in rows]))
        assert all(device.costs is not None and device.memory == 20e9 for *_, device in rows)
        yield what

    monkeypatch.setattr(pays, "table", table)
    costs = pays.ADDS.cost_model(pays.MODEL)
    costs = dataclasses.replace(costs, prefill=slower(costs.prefill, factor), decode=slower(costs.decode, factor))
    told = [*pays.by_costs(pays.Bench(seed=0, requests=60), CostModel.from_json(costs.to_json()), 20e9)]
    assert told[-1] == "SLO"
    ((first_rate, slos),) = asked
    assert first_rate == pytest.approx(pays.FIRST_RATE / factor)
    assert slos == [f"ttft={500 * factor}ms,tpot={tpot * factor}ms" for tpot in pays.TPOTS_MS]

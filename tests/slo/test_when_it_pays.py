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

from pagewire.slo.costs.cost_model import CostModel, StepLaw

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
    read = CostModel.from_json(costs.to_json())
    bench = pays.bench_of(pays.asked("--requests 60"), pays.MODEL, read)
    told = [*pays.by_costs(bench, read, [20e9])]
    assert told[-1] == "SLO, link, memory"
    ((first_rate, slos),) = asked
    assert first_rate == pytest.approx(pays.FIRST_RATE / factor)
    assert slos == [f"ttft={500 * factor}ms,tpot={tpot * factor}ms" for tpot in pays.TPOTS_MS]


def test_laws_are_read_alone_and_beside_figures(pays: Any, tmp_path: Path) -> None:
    costs = pays.ADDS.cost_model(pays.MODEL)
    (tmp_path / "alone.json").write_text(costs.to_json())
    (tmp_path / "beside.json").write_text(f'{{"rows": [], "costs": {costs.to_json()}}}')
    assert pays.read_costs(tmp_path / "alone.json") == costs == pays.read_costs(tmp_path / "beside.json")
    (tmp_path / "none.json").write_text("[]")
    with pytest.raises(ValueError, match="cost model"):
        pays.read_costs(tmp_path / "none.json")

"""Processes killed, ended and stopped, and wires spoilt, under open-loop load: no wrong token, no leak, nothing lost.

One of each sort of the faults of `bench/chaos.py`, which takes them all (`make chaos-test`), held to what does not
depend on a machine's pace: tokens, blocks, and by what requests may end. One cluster meets them all, one after the
other. It cannot show how long a recovery takes; docs/reliability.md has the figures.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import chaos_network
import chaos_resources
import chaos_signals
import chaos_trial
import pytest
import pytest_asyncio
import tiny_model
from chaos_cluster import ChaosCluster, chaos_cluster
from load_questions import Question, questions

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

LENGTHS = tuple(40 + 34 * number for number in range(9))
BEFORE_S = 0.5
FAULTS = {
    fault.name: fault
    for fault in (*chaos_signals.faults(), *chaos_resources.faults(), *chaos_network.faults())
    if fault.name
    in {
        "router killed", "router's worker ended", "prefill front killed", "decode engine killed",
        "prefill engine stopped", "Redis killed", "router: no more descriptors", "callers: in slices of 61 bytes",
        "prefill pod: reset", "decode pod: silent for 3 s",
    }
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.build(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def asked(model: Path) -> list[Question]:
    return questions(model, LENGTHS, max_tokens=120, least=40)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ChaosCluster]:
    async with chaos_cluster(model, tmp_path_factory.mktemp("wired"), "--transports", "grpc", wired=True) as cluster:
        yield cluster


@pytest.mark.parametrize("name", FAULTS)
async def test_a_fault_costs_time_only(cluster: ChaosCluster, asked: list[Question], name: str) -> None:
    fault = FAULTS[name]
    row = await chaos_trial.run(cluster, fault, asked, before_s=BEFORE_S)
    unforeseen = {code: many for code, many in row.failed.items() if code not in fault.may_fail}
    assert (row.wrong, row.leaked, unforeseen) == (0, {}, {}), row


async def test_a_trial_that_does_not_end_says_what_it_waits_for(cluster: ChaosCluster, asked: list[Question]) -> None:
    async def strike(_: ChaosCluster) -> None:
        await asyncio.Event().wait()

    for_ever = chaos_trial.Fault(name="for ever", kind="process", strike=strike, lasts_most_s=0.1)
    with pytest.raises(chaos_trial.Overdue, match="the strike's end"):
        await chaos_trial.run(cluster, for_ever, asked, before_s=0.0)

"""Processes killed, stopped and starved, and wires spoilt, under open-loop load: no wrong token, no leak, nothing lost.

A part of the faults of `bench/chaos.py`, one of each sort, held to what does not depend on a machine's pace: tokens,
blocks, and by what requests may end. It cannot show how long a recovery takes; docs/reliability.md has the figures.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import chaos_namespace
import chaos_network
import chaos_resources
import chaos_signals
import chaos_trial
import pytest
import pytest_asyncio
import tiny_model
from chaos_cluster import ChaosCluster, chaos_cluster
from open_load import Question, questions

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

LENGTHS = tuple(40 + 34 * number for number in range(9))
PROCESSES = {
    fault.name: fault
    for fault in (*chaos_signals.faults(), *chaos_resources.faults())
    if fault.name.endswith((" killed", "engine stopped", "prefill front ended", "decode front ended", "flushed"))
    or fault.name
    in ("router: no more descriptors", "decode engine: no more memory", "disk of all logs full, Redis stopped")
}
WIRES = {
    fault.name: fault
    for fault in chaos_network.faults()
    if fault.name.endswith((" reset", "slices of 61 bytes", "silent for 3 s"))
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.build(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def asked(model: Path) -> list[Question]:
    return questions(model, LENGTHS, max_tokens=120, least=40)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ChaosCluster]:
    async with chaos_cluster(model, tmp_path_factory.mktemp("plain")) as cluster:
        yield cluster


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def wired(model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ChaosCluster]:
    async with chaos_cluster(model, tmp_path_factory.mktemp("wired"), "--transports", "grpc", wired=True) as cluster:
        yield cluster


async def strike(cluster: ChaosCluster, fault: chaos_trial.Fault, asked: list[Question]) -> None:
    row = await chaos_trial.run(cluster, fault, asked)
    unforeseen = {code: many for code, many in row.failed.items() if code not in fault.may_fail}
    assert (row.wrong, row.leaked, unforeseen) == (0, {}, {}), row


@pytest.mark.parametrize("name", PROCESSES)
async def test_what_becomes_of_a_process_costs_time_only(
    cluster: ChaosCluster, asked: list[Question], name: str
) -> None:
    await strike(cluster, PROCESSES[name], asked)


@pytest.mark.parametrize("name", WIRES)
async def test_what_becomes_of_a_wire_costs_time_only(wired: ChaosCluster, asked: list[Question], name: str) -> None:
    await strike(wired, WIRES[name], asked)


async def test_lost_packets_cost_time_only(model: Path, asked: list[Question], tmp_path: Path) -> None:
    if why := chaos_namespace.missing():
        pytest.skip(f"NOT RUN: network namespaces cannot be used here: {why}")
    async with chaos_namespace.parted_cluster(model, tmp_path) as (cluster, inner):
        await strike(cluster, chaos_namespace.faults(inner)[1], asked)

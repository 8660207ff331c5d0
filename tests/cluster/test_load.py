"""Small versions of what `bench/load.py` does to clusters: tokens, leaks, refusals and who comes before whom.

Nothing here is held to a pace; docs/reliability.md has the figures. What a promise is, the scenarios say
(`tests/support/load_*.py`). It cannot show what hours do: these are seconds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import load_giants
import load_herd
import load_idle
import load_overload
import load_slow
import load_soak
import pytest
import pytest_asyncio
import tiny_model
from load_cluster import LoadCluster, load_cluster
from load_questions import Question, made_up, questions, questions_of

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

PLACES = 40
PREFIX = 512


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.build(tmp_path_factory.mktemp("llama"), "llama_long")


@pytest.fixture(scope="module")
def asked(model: Path) -> list[Question]:
    return questions(model, [16 + 40 * number for number in range(10)], max_tokens=48, least=12)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(model: Path) -> AsyncIterator[LoadCluster]:
    async with load_cluster(model, "--kv-memory", "24MiB", **load_slow.ENVIRON) as cluster:
        yield cluster


async def test_a_mixed_load_leaves_nothing_behind(model: Path, cluster: LoadCluster, asked: list[Question]) -> None:
    beginning = made_up(99, 128)
    repeated = questions_of(model, [beginning + made_up(i, 20) for i in range(6)], 24, 12)
    row = await load_soak.run(cluster, asked, repeated, span_s=8.0, look_s=0.5)
    assert row.broken == [], row


async def test_slow_readers_are_served_whole_or_ended_by_name(
    model: Path, cluster: LoadCluster, asked: list[Question]
) -> None:
    large = questions(model, range(60, 66), max_tokens=150, least=150)[:1]
    # Of several, or the megabyte that the router's allocator takes now and then would be one reader's.
    row = await load_slow.run(cluster, large, asked, slow=4, span_s=3.0, rate=4.0)
    assert row.broken == [], row


async def test_a_herd_computes_what_it_shares_once_for_each_that_fits_into_a_step(
    model: Path, cluster: LoadCluster
) -> None:
    asked = load_herd.herd(model, 36, PREFIX)
    row = await load_herd.run(cluster, asked, PREFIX, number=24)
    assert row.broken == [], row


async def test_tiny_prompts_overtake_giants_and_giants_are_done(model: Path, cluster: LoadCluster) -> None:
    tokens = load_giants.TOKENS
    giants = questions_of(model, [made_up(i, 6000) for i in (3, 5, 9)], tokens, tokens)
    tiny = questions(model, range(16, 22), tokens, tokens)
    row = await load_giants.run(cluster, giants, tiny, scheduling="fcfs", rate=8.0, alone_s=0.5, many=load_giants.FEW)
    assert row.broken == [], row


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def narrow(model: Path) -> AsyncIterator[LoadCluster]:
    environ = load_idle.ENVIRON | {"PAGEWIRE_MAX_CONCURRENT": str(PLACES)}
    async with load_cluster(model, *load_idle.FLAGS, **environ) as cluster:
        yield cluster


async def test_whoever_is_refused_is_told_when_to_come_back_and_cost_nothing(
    narrow: LoadCluster, asked: list[Question]
) -> None:
    row, calls = await load_overload.flood(narrow, asked, 4 * PLACES)
    assert row.broken == [], row
    assert any(map(load_overload.is_refused, calls))
    assert await narrow.told("router_refusals_total", "reason") == {
        "router_full": sum(map(load_overload.is_refused, calls))
    }


async def test_streams_that_wait_cost_little_and_end_whole(narrow: LoadCluster, asked: list[Question]) -> None:
    row = await load_idle.run(narrow, asked, streams=PLACES - load_idle.SEATS - 2, asked=2)
    assert row.broken == [], row

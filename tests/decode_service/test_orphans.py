"""What every test is asked at its end can fail: a leak that is planted is found, whoever planted it."""

from __future__ import annotations

import gc
from pathlib import Path

import orphans
import pytest
from made_up_engine import Rig
from pod_wire import wire_to
from pods import pods, prompt, until

from pagewire.engine.exchange.exports import Exports

LONG = prompt(1, 100)


async def test_a_lease_that_outlives_its_taker_is_found(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pods(model) as cluster, wire_to(cluster.p) as (wire, candidate):
        exports = cluster.p.service._exchange.exports
        cluster.p.engine.allow(3)
        asked = await cluster.submit("a", LONG, candidates=[candidate])
        await until(lambda: cluster.d.num_landed == 3)
        (export,) = exports.all()
        orphans.assert_none()  # its taker is there
        with monkeypatch.context() as planted:
            planted.setattr(Exports, "link_lost", lambda exports, link: None)
            wire.cut()
            await until(lambda: not export.link.is_up)
            gauges = {sample.name: sample.value for sample in cluster.p.service.gauges()}
            assert (gauges["leases_held"], gauges["leases_orphaned"]) == (1, 1)
            with pytest.raises(AssertionError, match=r"held for nobody.*'leases_orphaned': 1"):
                orphans.assert_none()
        exports.link_lost(export.link)
        cluster.p.engine.let_go()
        await cluster.end(asked)


async def test_a_lease_that_no_export_has_is_found(model: Path) -> None:
    async with pods(model) as cluster:
        exports = cluster.p.service._exchange.exports
        exports._leases.grant(("d0", "a", 1), "d0", 5.0, 0.0)
        with pytest.raises(AssertionError, match="leases alone"):
            orphans.assert_none()
        exports._leases.release(("d0", "a", 1))


def test_a_block_that_no_table_has_is_found() -> None:
    rig = Rig()
    table = rig.scheduler.pool.allocate(2)
    with pytest.raises(AssertionError, match="2 blocks are held for nobody"):
        rig.loop.check()
    with pytest.raises(AssertionError, match="'kv_blocks_orphaned': 2"):
        orphans.assert_none()
    rig.scheduler.pool.release(table)
    rig.loop.check()


def test_a_block_of_a_pool_that_nobody_keeps_is_found() -> None:
    Rig().scheduler.pool.allocate(2)
    gc.collect()
    with pytest.raises(AssertionError, match="'kv_blocks_orphaned': 2"):
        orphans.end_of_test()
    orphans.end_of_test()  # it was said once

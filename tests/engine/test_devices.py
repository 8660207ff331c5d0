"""Which device each rank computes on, as a setting names them."""

from __future__ import annotations

import pytest

from pagewire.core.messages import Role
from pagewire.engine.config import EngineConfig
from pagewire.engine.devices import are_distinct, devices_of, kind_of


@pytest.mark.parametrize(
    ("named", "num_ranks", "devices"),
    [
        ("cpu", 1, ("cpu",)),
        ("cpu", 4, ("cpu",)),
        ("cpu,cpu", 2, ("cpu", "cpu")),
        ("cuda", 1, ("cuda:0",)),
        ("cuda:3", 1, ("cuda:3",)),
        ("cuda", 3, ("cuda:0", "cuda:1", "cuda:2")),
        ("cuda:2", 2, ("cuda:2", "cuda:3")),
        ("cuda:1,cuda", 2, ("cuda:1", "cuda:0")),
        ("cuda:01", 1, ("cuda:1",)),
        ("cuda:0,cuda:0", 2, ("cuda:0", "cuda:0")),
    ],
)
def test_each_rank_has_a_device_or_all_share_the_host(named: str, num_ranks: int, devices: tuple[str, ...]) -> None:
    assert devices_of(named, num_ranks) == devices
    assert {kind_of(named)} == {name.partition(":")[0] for name in devices}
    config = EngineConfig(model="m", role=Role.COLOCATED, device=named, tensor_parallel=num_ranks)
    assert config.devices == devices
    assert config.kv_order == ("layer_outer" if len(devices) == 1 else "head_outer")
    assert EngineConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("named", "num_ranks", "why"),
    [
        ("tpu", 1, "is not cpu, cuda or cuda:N"),
        ("", 1, "is not cpu, cuda or cuda:N"),
        ("cuda:100", 1, "is not cpu, cuda or cuda:N"),
        ("cuda:0,", 2, "is not cpu, cuda or cuda:N"),
        ("cpu,cuda", 2, "of one kind"),
        ("cuda:0,cuda:1", 1, "2 devices for tensor_parallel 1"),
        ("cuda:0,cuda:1", 4, "2 devices for tensor_parallel 4"),
    ],
)
def test_what_names_no_devices_is_refused(named: str, num_ranks: int, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        EngineConfig(model="m", role=Role.COLOCATED, device=named, tensor_parallel=num_ranks)


@pytest.mark.parametrize(
    ("devices", "distinct"),
    [
        (("cuda:0", "cuda:1"), True),
        (("cuda:0", "cuda:0"), False),
        (("cpu", "cpu"), False),
        (("cpu",), False),
    ],
)
def test_ranks_of_nccl_have_a_gpu_each(devices: tuple[str, ...], distinct: bool) -> None:
    assert are_distinct(devices) is distinct

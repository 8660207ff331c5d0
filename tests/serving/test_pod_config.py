"""What a pod is told at start: numbers that cannot be meant are refused by name."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest

from pagewire.core.messages import Role
from pagewire.serving.pod_config import PodConfig


def config(**settings: Any) -> PodConfig:
    return PodConfig(model="m", role=Role.DECODE, cluster_secret="s", **settings)


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("port", (-1, 65536), (0, 65535)),
        ("socket_port", (-1, 65536), (0, 65535)),
        ("metrics_port", (-1, 65536), (0, 65535)),
        ("kv_memory", (0, -1), (1,)),
        ("max_num_seqs", (0,), (1,)),
        ("max_num_waiting", (0,), (1,)),
        ("tensor_parallel", (0,), (1,)),
        ("brownout_max_tokens", (0,), (1,)),
        ("chunk_size", (-1,), (0,)),
        ("max_num_batched_tokens", (-1,), (0,)),
        ("max_model_len", (-1, 1), (0, 2)),
        ("host_kv_memory", (-1,), (0,)),
        ("layer_groups", (-1,), (0,)),
        ("speculative_tokens", (-1,), (0,)),
        ("threads", (-1,), (0,)),
        ("step_target_ms", (-1.0, math.nan, math.inf), (0.0, 5.0)),
        ("drain_s", (-1.0, math.nan, math.inf), (0.0,)),
        ("handover_s", (-1.0, math.nan, math.inf), (0.0,)),
        ("engine_stall_s", (0.0, -1.0, math.nan, math.inf), (0.1,)),
        ("lease_s", (0.0, -1.0, math.nan, math.inf), (0.1,)),
        ("transfer_timeout_s", (0.0, -1.0, math.nan, math.inf), (0.1,)),
        ("pin_share", (0.0, 1.1, math.nan), (0.1, 1.0)),
    ],
)
def test_a_number_has_its_bounds(name: str, wrong: tuple[float, ...], right: tuple[float, ...]) -> None:
    for value in wrong:
        with pytest.raises(ValueError, match=f"^{name} must be .*, is {value}$"):
            config(**{name: value})
    for value in right:
        assert getattr(config(**{name: value}), name) == value


@pytest.mark.parametrize(("device", "ranks", "refused"), [("cuda", 2, True), ("cuda", 1, False), ("cpu", 2, False)])
def test_a_pool_in_parts_is_none_of_nixls(device: str, ranks: int, refused: bool) -> None:
    settings = {"device": device, "tensor_parallel": ranks, "transports": "nixl,grpc"}
    with pytest.raises(ValueError, match="nixl reads one piece of memory") if refused else contextlib.nullcontext():
        config(**settings)

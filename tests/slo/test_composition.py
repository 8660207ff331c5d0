"""A simulated cluster as a value: its pods, its settings, and what no cluster can be."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pagewire.core.messages import Role
from pagewire.engine.config import MAX_NUM_BATCHED_TOKENS, POD_CHUNK_SIZE
from pagewire.engine.limits import Limits
from pagewire.router.config import RouterConfig
from pagewire.serving.pod_config import PodConfig
from pagewire.slo.simulation.composition import Composition
from pagewire.slo.sweeps.configuration import DEFAULT_PODS


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"prefill": -1}, "none may be negative"),
        ({"decode": -1, "colocated": 1}, "none may be negative"),
        ({"colocated": -1}, "none may be negative"),
        ({"decode": 0}, "at least one decode or colocated"),
        ({"block_size": 17}, "block_size 17"),
        ({"pods_per_machine": 0}, "pods_per_machine must be positive, is 0"),
        ({"kv_blocks": 0}, "kv_blocks must be positive, is 0"),
        ({"max_num_waiting": -1}, "max_num_waiting must be positive, is -1"),
        ({"max_num_seqs": 0}, "max_num_seqs must be positive, is 0"),
        ({"chunk_size": 0}, "chunk_size"),
        ({"max_num_batched_tokens": 63}, "max_num_batched_tokens"),
    ],
)
def test_what_no_cluster_can_be_is_refused(told: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Composition(**told)


def test_the_least_of_everything_is_a_cluster() -> None:
    least = Composition(prefill=0, decode=1, pods_per_machine=1, kv_blocks=1, max_num_waiting=1, max_num_seqs=1)
    assert least.roles == {"decode-0": Role.DECODE}
    assert Composition(prefill=0, decode=0, colocated=1).roles == {"colocated-0": Role.COLOCATED}
    for block_size in (16, 32, 64, 128):
        assert Composition(block_size=block_size).limits().block_size == block_size


def test_pods_have_names_roles_and_machines_in_their_order() -> None:
    apart = Composition(prefill=2, decode=3, pods_per_machine=2)
    assert list(apart.roles.items()) == [
        ("prefill-0", Role.PREFILL),
        ("prefill-1", Role.PREFILL),
        ("decode-0", Role.DECODE),
        ("decode-1", Role.DECODE),
        ("decode-2", Role.DECODE),
    ]
    assert [apart.machine_of(each) for each in apart.roles] == [0, 0, 1, 1, 2]
    assert (apart.num_pods, str(apart)) == (5, "2P3D")
    together = Composition(colocated=2)
    assert together.roles == {"colocated-0": Role.COLOCATED, "colocated-1": Role.COLOCATED}
    assert [together.machine_of(each) for each in together.roles] == [0, 1]
    assert (together.num_pods, str(together)) == (2, "2C")


def test_labels_are_its_pods_and_what_is_not_as_it_is_unless_told() -> None:
    assert Composition().labels == {"prefill": 1, "decode": 1}
    assert Composition(prefill=0, decode=2, chunk_size=64, policy="slo").labels == {
        "prefill": 0, "decode": 2, "chunk_size": 64, "policy": "slo",
    }  # fmt: skip
    assert Composition(colocated=3, admission=False).labels == {"colocated": 3, "admission": False}


def test_each_engine_has_the_bounds_of_its_cluster_and_takes_any_id_of_32_bits() -> None:
    told = Composition(
        max_num_batched_tokens=100, max_num_seqs=9, chunk_size=30, block_size=32, max_model_len=500
    ).limits()
    assert told == Limits(
        max_num_batched_tokens=100, max_num_seqs=9, chunk_size=30, block_size=32, max_model_len=500, vocab_size=2**32
    )


def test_a_step_takes_a_block_of_prompt_at_least_and_one_that_only_builds_prompts_all_that_it_may() -> None:
    told = Composition(max_num_batched_tokens=100, block_size=32)
    assert {role: told.least_prefill(role) for role in (Role.PREFILL, Role.DECODE, Role.COLOCATED)} == {
        Role.PREFILL: 100, Role.DECODE: 32, Role.COLOCATED: 32,
    }  # fmt: skip
    assert Composition(max_num_batched_tokens=20, max_num_seqs=9, block_size=32).least_prefill(Role.DECODE) == 20


def defaults(of: type[Any]) -> dict[str, Any]:
    return {each.name: each.default for each in dataclasses.fields(of)}


def test_unless_told_it_has_what_pods_and_routers_have_on_cpus_unless_told() -> None:
    told, pod, router = Composition(), defaults(PodConfig), defaults(RouterConfig)
    for name in ("block_size", "max_num_seqs", "max_num_waiting", "scheduling"):
        assert getattr(told, name) == pod[name]
    assert (told.chunk_size, told.max_num_batched_tokens) == (POD_CHUNK_SIZE["cpu"], MAX_NUM_BATCHED_TOKENS["cpu"])
    for name in ("policy", "prefill_mode", "slo_ttft_s", "slo_tpot_s"):
        assert getattr(told, name) == router[name]
    assert (told.step_target_s, told.admission) == (pod["step_target_ms"], True)
    assert f"{told.prefill}P:{told.decode}D" == DEFAULT_PODS
    assert (told.colocated, told.pods_per_machine) == (0, 1)
    assert told.kv_blocks * told.block_size == 65_536  # as docs/slo-simulator.md says

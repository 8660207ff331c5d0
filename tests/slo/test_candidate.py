"""Clusters to choose among: which there are, what they cost, and how people and programs read them."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from pagewire.slo.costs.roofline import ModelShape
from pagewire.slo.planning.candidate import Candidate, Choices, Family, families
from pagewire.slo.planning.device_kind import DeviceKind, joint_costs
from pagewire.slo.simulation.composition import Composition

MODEL = ModelShape(name="m", parameters=1e9, num_layers=16, num_heads=16, num_kv_heads=4, head_dim=64)
LARGE = DeviceKind(name="a", flops=1e14, bandwidth=4e11, memory=8e9, price_per_hour=2.0, link=10e9)
SMALL = DeviceKind(name="b", flops=4e13, bandwidth=2e11, memory=4e9, price_per_hour=0.5, link=1e9)
TINY = dataclasses.replace(SMALL, name="c", memory=1e9)
CHOICES = Choices(
    chunk_sizes=(128, 512), policies=("round_robin", "slo"), prefill_modes=("remote", "auto"), max_num_seqs=(256, 4)
)


def family(*, prefill: DeviceKind | None = SMALL, **changes: Any) -> Family:
    told: dict[str, Any] = {
        "model": MODEL, "prefill_kind": prefill, "decode_kind": LARGE, "chunk_size": 128, "policy": "slo",
        "prefill_mode": "remote" if prefill else "local", "most_seqs": 4, "costs": LARGE.cost_model(MODEL),
        "kv_blocks": 77,
    }  # fmt: skip
    return Family(**{**told, **changes})


@pytest.mark.parametrize(
    ("told", "said"),
    [
        *(({name: ()}, "nothing to choose") for name in ("chunk_sizes", "policies", "prefill_modes", "max_num_seqs")),
        *(({"prefill_modes": ("auto", "local")}, "'local' is no prefill mode"), ({"max_pods": 0}, "at most 0 pods")),
        *(({"chunk_sizes": (1, 0)}, "chunk of 0"), ({"max_num_seqs": (2, 0, 1)}, "step of 0")),
    ],
)
def test_what_leaves_no_choice_is_refused(told: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Choices(**told)


def test_the_least_that_one_may_choose_among_is_taken() -> None:
    least = Choices(chunk_sizes=(1, 2), policies=("slo",), prefill_modes=("auto",), max_num_seqs=(1, 2), max_pods=1)
    assert min(least.chunk_sizes) == min(least.max_num_seqs) == least.max_pods == 1


def test_what_is_chosen_from_unless_told_otherwise_is_what_the_guide_says() -> None:
    assert Choices() == Choices(
        chunk_sizes=(256, 1024), policies=("prefix_affinity",), prefill_modes=("remote", "auto"), max_num_seqs=(256,),
        max_pods=16,
    )  # fmt: skip


def test_a_family_of_another_question_is_known_by_what_was_chosen_of_it() -> None:
    slower = [dataclasses.replace(each, link=each.link / 2) for each in (LARGE, SMALL)]
    found, changed = families(MODEL, (LARGE, SMALL), CHOICES), families(MODEL, slower, CHOICES)
    assert [each.choice for each in found] == [each.choice for each in changed]
    assert len({each.choice for each in found}) == len(found)
    assert family(most_seqs=9).choice == ("b", "a", 128, "slo", "remote", 9)
    assert family(prefill=None).choice == (None, "a", 128, "slo", "local", 4)


def test_families_are_all_kinds_alone_and_all_pairs_by_every_choice() -> None:
    found = families(MODEL, (LARGE, TINY, SMALL), CHOICES)
    settings = tuple(itertools.product(CHOICES.chunk_sizes, CHOICES.max_num_seqs, CHOICES.policies))
    kinds = LARGE, SMALL  # the model does not fit into the third
    alone = [(None, kind.name, *each, "local") for kind in kinds for each in settings]
    pairs = [
        (prefill.name, decode.name, *each, mode)
        for prefill in kinds for decode in kinds for each in settings for mode in CHOICES.prefill_modes
    ]  # fmt: skip
    assert [
        (
            f.prefill_kind and f.prefill_kind.name,
            f.decode_kind.name,
            f.chunk_size,
            f.most_seqs,
            f.policy,
            f.prefill_mode,
        )
        for f in found
    ] == [*alone, *pairs]
    assert found[0].costs == LARGE.cost_model(MODEL)
    mixed = next(each for each in found if each.prefill_kind is SMALL and each.decode_kind is LARGE)
    assert mixed.costs == joint_costs(MODEL, SMALL, LARGE)
    rooms = {kind.name: kind.kv_blocks(MODEL, 64) for kind in kinds}
    for each in found:
        names = {each.decode_kind.name, each.prefill_kind.name if each.prefill_kind else each.decode_kind.name}
        assert each.kv_blocks == min(rooms[name] for name in names)
    with pytest.raises(ValueError, match="m does not fit into the memory of any kind"):
        families(MODEL, (TINY,), CHOICES)


def test_a_family_is_apart_or_not_and_more_pods_help_unless_prompts_choose_where_they_are_built() -> None:
    assert not family().is_colocated
    assert family(prefill=None).is_colocated
    assert family().is_monotone
    assert family(prefill=None).is_monotone
    assert not family(prefill_mode="auto").is_monotone


@pytest.mark.parametrize(("most_seqs", "chunk_size", "found"), [(4, 128, 4), (256, 128, 128), (128, 128, 128)])
def test_a_step_has_a_token_of_its_chunk_for_each_sequence(most_seqs: int, chunk_size: int, found: int) -> None:
    assert family(most_seqs=most_seqs, chunk_size=chunk_size).max_num_seqs == found


def test_a_cluster_costs_what_its_pods_do() -> None:
    assert family().price(3, 2) == 3 * 0.5 + 2 * 2.0
    assert family(prefill=None).price(0, 2) == 2 * 2.0
    assert Candidate(family=family(), prefill=3, decode=2).price == 5.5
    assert Candidate(family=family(), prefill=3, decode=2).num_pods == 5


def test_a_composition_has_room_for_one_chunk_in_a_step() -> None:
    apart = Composition(
        prefill=3, decode=2, colocated=0, block_size=64, chunk_size=128, max_num_batched_tokens=128, max_num_seqs=4,
        kv_blocks=77, policy="slo", prefill_mode="remote",
    )  # fmt: skip
    assert family().composition(3, 2) == apart
    together = dataclasses.replace(apart, prefill=0, decode=0, colocated=2, prefill_mode="local")
    assert family(prefill=None).composition(0, 2) == together


@pytest.mark.parametrize(
    ("candidate", "said"),
    [
        (Candidate(family=family(), prefill=2, decode=1), "2P b + 1D a (chunk 128, 4 at a time, slo, prompts remote)"),
        (Candidate(family=family(prefill=None), prefill=0, decode=3), "3C a (chunk 128, 4 at a time, slo)"),
        (Candidate(family=family(prefill=None, most_seqs=256), prefill=0, decode=3), "3C a (chunk 128, slo)"),
    ],
)
def test_a_candidate_is_told_with_what_was_chosen(candidate: Candidate, said: str) -> None:
    assert str(candidate) == said


def test_a_candidate_is_an_object_of_json() -> None:
    apart = {
        "prefill": 2, "decode": 1, "colocated": 0, "prefill_kind": "b", "decode_kind": "a", "chunk_size": 128,
        "max_num_batched_tokens": 128, "max_num_seqs": 4, "block_size": 64, "kv_blocks": 77, "policy": "slo",
        "prefill_mode": "remote", "price_per_hour": 3.0,
    }  # fmt: skip
    assert Candidate(family=family(), prefill=2, decode=1).as_json() == apart
    assert Candidate(family=family(prefill=None), prefill=0, decode=3).as_json() == {
        **apart, "prefill": 0, "decode": 0, "colocated": 3, "prefill_kind": None, "prefill_mode": "local",
        "price_per_hour": 6.0,
    }  # fmt: skip

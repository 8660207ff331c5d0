"""Clusters that could be rented: a family of like ones, and one of them with its counts and its price. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pagewire.slo.costs.cost_model import CostModel
from pagewire.slo.costs.roofline import ModelShape
from pagewire.slo.planning.device_kind import DeviceKind, joint_costs
from pagewire.slo.simulation.composition import MAX_MODEL_LEN, Composition

BLOCK_SIZE = 64  # coarser than the pods' default: a quarter of the messages to simulate
MAX_NUM_SEQS = 256
MODES = ("remote", "auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What the planner may choose among, and how many pods a cluster has at most."""

    chunk_sizes: tuple[int, ...] = (256, 1024)
    policies: tuple[str, ...] = ("prefix_affinity",)
    prefill_modes: tuple[str, ...] = MODES
    max_num_seqs: tuple[int, ...] = (MAX_NUM_SEQS,)
    max_pods: int = 16

    def __post_init__(self) -> None:
        """Refuse what leaves no choice with ValueError."""
        if not (self.chunk_sizes and self.policies and self.prefill_modes and self.max_num_seqs):
            wanted = "a chunk size, a policy, a prefill mode and a number of sequences"
            raise ValueError(f"there is nothing to choose: name {wanted} at least")
        if unknown := [each for each in self.prefill_modes if each not in MODES]:
            raise ValueError(f"{unknown[0]!r} is no prefill mode of a cluster with prefill pods: {', '.join(MODES)}")
        if self.max_pods < 1:
            raise ValueError(f"a cluster of at most {self.max_pods} pods is none")
        if min(self.chunk_sizes) < 1:
            raise ValueError(f"a chunk of {min(self.chunk_sizes)} tokens is none")
        if min(self.max_num_seqs) < 1:
            raise ValueError(f"a step of {min(self.max_num_seqs)} sequences is none")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Family:
    """Clusters that differ in their counts alone. `prefill_kind` is None where all pods are colocated.

    A step has room for one chunk, those who decode in it included: room beside them would be filled by a second
    prompt's chunk, and a colocated step would be twice as long as its chunk size says. Pools of two kinds are as large
    as the smaller's.
    """

    model: ModelShape
    prefill_kind: DeviceKind | None
    decode_kind: DeviceKind
    chunk_size: int
    policy: str
    prefill_mode: str
    most_seqs: int
    costs: CostModel
    kv_blocks: int

    @property
    def is_colocated(self) -> bool:
        """Whether every pod does both."""
        return self.prefill_kind is None

    @property
    def is_monotone(self) -> bool:
        """Whether one more pod does no harm.

        With "auto" a prompt goes where it is built soonest, whatever its KV's way does to TPOT: over a slow link one
        more prefill pod may do harm.
        """
        return self.prefill_mode != "auto"

    @property
    def choice(self) -> tuple[str | int | None, ...]:
        """What was chosen of it: the same for that family of another question."""
        prefill_kind = None if self.prefill_kind is None else self.prefill_kind.name
        settings = self.chunk_size, self.policy, self.prefill_mode, self.most_seqs
        return prefill_kind, self.decode_kind.name, *settings

    @property
    def max_num_seqs(self) -> int:
        """Sequences of a step at most: those that were chosen, as far as a chunk has room for a token of each."""
        return min(self.most_seqs, self.chunk_size)

    def price(self, prefill: int, decode: int) -> float:
        """Return what that many pods cost an hour."""
        there = self.prefill_kind.price_per_hour * prefill if self.prefill_kind else 0.0
        return there + self.decode_kind.price_per_hour * decode

    def composition(self, prefill: int, decode: int) -> Composition:
        """Return the cluster of that many pods; colocated ones are counted in `decode`."""
        return Composition(
            prefill=prefill,
            decode=0 if self.is_colocated else decode,
            colocated=decode if self.is_colocated else 0,
            block_size=BLOCK_SIZE,
            chunk_size=self.chunk_size,
            max_num_batched_tokens=self.chunk_size,
            max_num_seqs=self.max_num_seqs,
            max_model_len=self.model.max_positions or MAX_MODEL_LEN,
            kv_blocks=self.kv_blocks,
            policy=self.policy,
            prefill_mode=self.prefill_mode,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One cluster; colocated pods are counted in `decode`."""

    family: Family
    prefill: int
    decode: int

    @property
    def price(self) -> float:
        """What it costs an hour."""
        return self.family.price(self.prefill, self.decode)

    @property
    def num_pods(self) -> int:
        """All of them."""
        return self.prefill + self.decode

    @property
    def pods(self) -> str:
        """Return "2P h100 + 1D l40s" or "3C h100"."""
        kind = self.family.decode_kind.name
        if self.family.prefill_kind is None:
            return f"{self.decode}C {kind}"
        return f"{self.prefill}P {self.family.prefill_kind.name} + {self.decode}D {kind}"

    @property
    def settings(self) -> str:
        """Return what else is chosen, as people read it."""
        where = "" if self.family.is_colocated else f", prompts {self.family.prefill_mode}"
        few = "" if self.family.most_seqs == MAX_NUM_SEQS else f", {self.family.most_seqs} at a time"
        return f"chunk {self.family.chunk_size}{few}, {self.family.policy}{where}"

    def __str__(self) -> str:
        """Return both."""
        return f"{self.pods} ({self.settings})"

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        family = self.family
        return {
            "prefill": self.prefill,
            "decode": 0 if family.is_colocated else self.decode,
            "colocated": self.decode if family.is_colocated else 0,
            "prefill_kind": family.prefill_kind and family.prefill_kind.name,
            "decode_kind": family.decode_kind.name,
            "chunk_size": family.chunk_size,
            "max_num_batched_tokens": family.chunk_size,
            "max_num_seqs": family.max_num_seqs,
            "block_size": BLOCK_SIZE,
            "kv_blocks": family.kv_blocks,
            "policy": family.policy,
            "prefill_mode": family.prefill_mode,
            "price_per_hour": self.price,
        }


def families(model: ModelShape, kinds: Sequence[DeviceKind], choices: Choices) -> tuple[Family, ...]:
    """Return all families, colocated ones first; raises ValueError where no kind holds the model."""
    fitting = [each for each in kinds if each.kv_blocks(model, BLOCK_SIZE)]
    if not fitting:
        raise ValueError(f"{model.name} does not fit into the memory of any kind")
    return tuple(_families(model, fitting, choices))


def _families(model: ModelShape, kinds: Sequence[DeviceKind], choices: Choices) -> Iterator[Family]:
    rooms = {each.name: each.kv_blocks(model, BLOCK_SIZE) for each in kinds}
    settings = choices.chunk_sizes, choices.max_num_seqs, choices.policies
    for kind, chunk_size, most_seqs, policy in itertools.product(kinds, *settings):
        yield Family(
            model=model, prefill_kind=None, decode_kind=kind, chunk_size=chunk_size, policy=policy,
            prefill_mode="local", most_seqs=most_seqs, costs=kind.cost_model(model), kv_blocks=rooms[kind.name],
        )  # fmt: skip
    pairs = itertools.product(kinds, repeat=2)
    for (prefill, decode), chunk_size, most_seqs, policy, mode in itertools.product(
        pairs, *settings, choices.prefill_modes
    ):
        yield Family(
            model=model, prefill_kind=prefill, decode_kind=decode, chunk_size=chunk_size, policy=policy,
            prefill_mode=mode, most_seqs=most_seqs, costs=joint_costs(model, prefill, decode),
            kv_blocks=min(rooms[prefill.name], rooms[decode.name]),
        )  # fmt: skip

"""What all parts of a simulated cluster share: time, costs, the prefix index, and what pods are made with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pagewire.core import index_member
from pagewire.core.block_hash import BlockHash
from pagewire.core.engine_messages import CachedBlock
from pagewire.core.kv_layout import KVLayout
from pagewire.core.messages import Role
from pagewire.slo.costs.cost_model import CostModel
from pagewire.slo.simulation.agenda import Agenda
from pagewire.slo.simulation.composition import Composition
from pagewire.slo.simulation.engine import Owner, SimEngine
from pagewire.slo.simulation.machine import Machine
from pagewire.slo.simulation.wire import Deliver, Wire

LEASE_S = 10.0  # as pods are configured unless told otherwise


class Surroundings:
    """Of one simulation. `index_ids` numbers the pods by name, as they go by in the index."""

    def __init__(
        self, composition: Composition, costs: CostModel, index_ids: Mapping[str, int], seed: int, *, is_fast: bool
    ) -> None:
        self.agenda = Agenda()
        self.composition = composition
        self.costs = costs
        self._frame_s = costs.frame_s
        self.answers: dict[str, int] = {}  # of the requests that are not over
        self.index: dict[BlockHash, set[bytes]] = {}
        # Of a layout only the bytes of a block matter here: one layer of one head has as many.
        self.layout = KVLayout(
            num_layers=1,
            num_kv_heads=1,
            head_dim=costs.token_bytes // 4,
            block_size=composition.block_size,
            dtype="bfloat16",
        )
        self.lease_s = LEASE_S
        self._machines = [Machine(costs.sharing) for _ in range(composition.num_pods)]  # no more than that
        self._members = {pod_id: index_member.member(number, 0) for pod_id, number in index_ids.items()}
        self._seed = seed
        self._is_fast = is_fast

    def frame(self, hear: Callable[..., None], *args: Any) -> None:
        """Have another process hear of something, by a frame."""
        self.agenda.after(self._frame_s, hear, *args)

    def engine(self, pod_id: str, role: Role, owner: Owner) -> SimEngine:
        """Return the engine of a pod."""
        law = self.costs.prefill if role is Role.PREFILL else self.costs.decode
        return SimEngine(
            self.agenda, role, self.composition, law, owner, self.answers,
            machine=self._machines[self.composition.machine_of(pod_id)],
            noise=self.costs.noise, seed=f"{self._seed}/{pod_id}", is_fast=self._is_fast,
            may_coast=not (self.composition.slo_ttft_s or self.composition.slo_tpot_s),  # the gate hears of each token
        )  # fmt: skip

    def wire(self, deliver: Deliver) -> Wire:
        """Return a stream that leads to `deliver`."""
        return Wire(self.agenda, self.costs.link, self.layout.block_bytes, deliver, is_fast=self._is_fast)

    def publish(self, pod_id: str, stored: Sequence[CachedBlock], evicted: Sequence[CachedBlock]) -> None:
        """Let the prefix index know what came to a pod's cache, and what left it."""
        if stored or evicted:
            self.frame(self._note, self._members[pod_id], stored, evicted)

    def _note(self, member: bytes, stored: Sequence[CachedBlock], evicted: Sequence[CachedBlock]) -> None:
        for block in evicted:
            holders = self.index.get(block.block_hash)
            if holders is not None:
                holders.discard(member)
                if not holders:
                    del self.index[block.block_hash]
        for block in stored:
            self.index.setdefault(block.block_hash, set()).add(member)

"""A cluster as a value: how many pods of which role, and the settings that its steps and placements depend on. Pure."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from pagewire.core.kv_layout import BLOCK_SIZES
from pagewire.core.messages import Role
from pagewire.engine.limits import Limits
from pagewire.engine.role_policy import policy_of
from pagewire.engine.scheduling_policy import PolicyName

MAX_MODEL_LEN = 131_072  # where nothing is known of the model
VOCABULARY = 1 << 32  # token ids of a simulated prompt are names, and no model's


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """`prefill` and `decode` pods, or `colocated` ones; every other setting is that of the pods or of the router.

    Each pool has `kv_blocks` blocks. With `admission` off nobody is refused or kept waiting by the router: pods alone
    decide. `pods_per_machine` pods share a machine, in the order of `roles`.
    `slo_ttft_s` and `slo_tpot_s` are what requests are promised, 0 for nothing.
    """

    prefill: int = 1
    decode: int = 1
    colocated: int = 0
    pods_per_machine: int = 1
    block_size: int = 16
    chunk_size: int = 256
    max_num_batched_tokens: int = 1024
    max_num_seqs: int = 64
    max_num_waiting: int = 256
    max_model_len: int = MAX_MODEL_LEN
    kv_blocks: int = 4096
    policy: str = "prefix_affinity"
    prefill_mode: str = "remote"
    scheduling: str = PolicyName.FCFS.value
    step_target_s: float = 0.0
    admission: bool = True
    slo_ttft_s: float = 0.0
    slo_tpot_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what no cluster can be with ValueError."""
        if min(self.prefill, self.decode, self.colocated) < 0:
            raise ValueError("prefill, decode and colocated are counts: none may be negative")
        if self.colocated == 0 and self.decode < 1:
            raise ValueError("a cluster needs at least one decode or colocated pod")
        if self.block_size not in BLOCK_SIZES:
            raise ValueError(f"block_size {self.block_size} is not one of {BLOCK_SIZES}")
        for name in ("pods_per_machine", "kv_blocks", "max_num_waiting", "max_num_seqs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be positive, is {getattr(self, name)}")
        self.limits()

    @property
    def roles(self) -> dict[str, Role]:
        """The pods by name, each with its role."""
        counts = {Role.PREFILL: self.prefill, Role.DECODE: self.decode}
        if self.colocated:
            counts = {Role.COLOCATED: self.colocated}
        return {f"{role.value}-{number}": role for role, count in counts.items() for number in range(count)}

    @property
    def num_pods(self) -> int:
        """All of them."""
        return len(self.roles)

    @property
    def labels(self) -> dict[str, str | int | float]:
        """What a figure tells it from others by: its pods by role, and every setting that is not the default."""
        counts = {"prefill": self.prefill, "decode": self.decode, "colocated": self.colocated}
        pods = {role: count for role, count in counts.items() if (role == "colocated") == bool(self.colocated)}
        settings = [each for each in dataclasses.fields(self) if each.name not in counts]
        return pods | {each.name: found for each in settings if (found := getattr(self, each.name)) != each.default}

    def machine_of(self, pod_id: str) -> int:
        """Return the number of the machine that a pod runs on."""
        return list(self.roles).index(pod_id) // self.pods_per_machine

    def limits(self) -> Limits:
        """Return the bounds of each engine; raises ValueError where they contradict one another."""
        return Limits(
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_num_seqs=self.max_num_seqs,
            chunk_size=self.chunk_size,
            block_size=self.block_size,
            max_model_len=self.max_model_len,
            vocab_size=VOCABULARY,
        )

    def least_prefill(self, role: Role) -> int:
        """Return the tokens of prompt that a step of a pod takes in at least, however long that takes."""
        most = self.max_num_batched_tokens
        return most if policy_of(role).hands_off else min(self.block_size, most)

    def __str__(self) -> str:
        """Return "2P1D" or "3C"."""
        return f"{self.colocated}C" if self.colocated else f"{self.prefill}P{self.decode}D"

"""What a policy sees: a pod with what follows from its load alone, and what has to be placed.

Pure values. All that does not depend on the request is worked out when a pod's load or our counts change, so that a
placement is a few sums for each pod. Figures that a pod has not measured yet are taken from `Priors`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from pagewire.core.load import Load
from pagewire.core.messages import Role
from pagewire.router.prediction import UNCORRECTED, Correction

# Moving a token's KV within a pod costs about a tenth of computing it.
SHIP_SHARE = 0.1
# How much longer a step takes with one sequence more, as a share of it, until that is measured.
CROWD_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Priors:
    """What is believed of a pod that has not measured itself."""

    token_s: float = 1e-4  # to compute a prompt token
    step_s: float = 0.02  # of a decode step
    rtt_s: float = 0.002  # of an exchange between a pod that takes blocks and their source


PRIORS = Priors()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """A linked pod as a policy sees it: what it said and what this router has there, then what follows from that.

    `in_flight` counts this router's requests there, `pending_tokens` the prompt tokens of those that have no first
    token yet. `key` names its link.
    """

    pod_id: str
    address: str
    role: Role
    load: Load
    in_flight: int = 0
    pending_tokens: int = 0
    key: str = ""
    priors: Priors = PRIORS

    busy: int = field(init=False)  # requests on the pod; its own word may be a heartbeat old, ours lacks other routers'
    token_s: float = field(init=False)  # to compute a prompt token
    queue_s: float = field(init=False)  # until a prompt that comes now is begun
    step_s: float = field(init=False)  # of a decode step, as it is now
    crowd_s: float = field(init=False)  # that a decode step takes longer with a sequence more
    tpot_s: float = field(init=False)  # of a decode step with all that is on the pod, before anybody joins
    boarding_s: float = field(init=False)  # until the step that runs is over: half of one, where others run
    spare_blocks: float = field(init=False)  # of its pool; infinite where it told of none
    rtt_s: float = field(init=False)  # to ask another pod for blocks
    ship_s: float = field(init=False)  # to bring a token's KV here
    spared_s: float = field(init=False)  # for a token that is brought here and not computed

    def __post_init__(self) -> None:
        load, put = self.load, object.__setattr__
        token_s = load.prefill_s_per_token or self.priors.token_s
        step_s = load.step_s or self.priors.step_s
        crowd_s = load.step_s_per_sequence or step_s * CROWD_SHARE
        busy = max(load.num_running + load.num_waiting, self.in_flight)
        put(self, "busy", busy)
        put(self, "token_s", token_s)
        put(self, "queue_s", max(load.waiting_tokens, self.pending_tokens) * token_s)
        put(self, "step_s", step_s)
        put(self, "crowd_s", crowd_s)
        # A step of so many sequences was measured; another number costs more or less, but never next to nothing.
        put(self, "tpot_s", max(step_s / 4, step_s + crowd_s * (busy - load.step_sequences)))
        put(self, "boarding_s", step_s / 2 if busy else 0.0)
        spare = load.blocks_free + load.blocks_cached - load.blocks_reserved
        put(self, "spare_blocks", float(spare) if load.blocks_total else math.inf)
        put(self, "rtt_s", load.link_rtt_s or self.priors.rtt_s)
        ship_s = load.link_s_per_token or token_s * SHIP_SHARE
        put(self, "ship_s", ship_s)
        put(self, "spared_s", token_s - ship_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What has to be placed, and what is known of it.

    `cached` says how many of its tokens each pod holds, `on_host` how many of these are in its host memory and have to
    be brought into its pool; who is not named holds none. `sources` are the pods that hold most, the longest first,
    whom any other pod may fetch from. With `may_be_local` it is open whether a prefill pod builds the prompt.
    `answer_tokens` is how long its answer should become, `block_s` how long it should take until a block comes free
    on a pod that is full. With `explain` the policy says why it chose so.
    """

    num_tokens: int
    block_size: int
    num_sequences: int = 1
    cached: Mapping[str, int] = field(default_factory=dict)
    on_host: Mapping[str, int] = field(default_factory=dict)
    sources: tuple[tuple[str, int], ...] = ()
    may_be_local: bool = False
    answer_tokens: float = 128.0
    block_s: float = 0.05
    explain: bool = False
    correction: Correction = UNCORRECTED

    def blocks_on(self, pod: PodView) -> int:
        """Return the blocks that the prompt's KV, and one for each sequence behind it, need of a pod."""
        return -(-max(0, self.num_tokens - self.cached.get(pod.pod_id, 0)) // self.block_size) + self.num_sequences

    def fits(self, pod: PodView) -> bool:
        """False when the blocks surely are not free now."""
        return pod.spare_blocks >= self.blocks_on(pod)

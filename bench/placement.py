"""What choosing pods costs a router, by policy and number of pods: a whole `place`, and taking in one pod's load.

The fleet is a router's own, filled with views whose loads differ; half of the pods prefill, half decode. Prompts have
4,096 tokens, and eight pods of each kind hold a beginning of them, as an index lookup would say. Requests pile up as
they are placed and go away again in the order in which they came, a hundred at a time. Nothing is sent and nothing
waited for, so times are the thread's on a processor: those of a quiet machine, whatever else runs on this one.

`all of it, the first choice full` is what a router does where the pod that a policy chose has no room (as every second
one has none here): it looks at the room of each pod that decodes, leaves out those without, and has the policy choose
again. `explained` is a policy that tells of each pod why it was not taken, as a request may ask for.
"""

from __future__ import annotations

import dataclasses
import gc
import random
import statistics
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "support"))

from origin import parser_of, write_figures

from pagewire.core.fingerprint import Fingerprint
from pagewire.core.load import Load
from pagewire.core.messages import Role
from pagewire.router.config import RouterConfig
from pagewire.router.kv_room import KvNeed, KvRoom
from pagewire.router.policies.named import BUILT_IN, policy_named
from pagewire.router.policies.view import Demand, PodView
from pagewire.router.roster import Roster

SIZES = (10, 100, 1000)
TOKENS, BLOCK = 4096, 16
HOLDERS = 8
AT_ONCE = 100
SERVES = Fingerprint(
    model_name="m", model_digest="d", tokenizer_digest="t", kv_fingerprint="k", kv_layout="l", block_size=BLOCK,
    hash_version=1, max_model_len=8192,
)  # fmt: skip


class Pods:
    """Views of pods, kept as a router keeps them."""

    def __init__(self, count: int, seed: int) -> None:
        self.roster = Roster()
        self._chance = random.Random(seed)
        self._loads = {f"{name}{at:04}": self._load() for name in "pd" for at in range(count // 2)}
        self._in_flight = dict.fromkeys(self._loads, 0)
        for pod_id in self._loads:
            self.update(pod_id)

    @property
    def names(self) -> list[str]:
        """All pods."""
        return list(self._loads)

    def update(self, pod_id: str, in_flight: int = 0) -> None:
        """Take in what is new of a pod."""
        self._in_flight[pod_id] += in_flight
        view = PodView(
            pod_id=pod_id, address=f"{pod_id}:1", role=Role.PREFILL if pod_id[0] == "p" else Role.DECODE,
            load=self._loads[pod_id], in_flight=self._in_flight[pod_id], key=f"{pod_id}@1#1", priors=self.roster.priors,
            pending_tokens=self._in_flight[pod_id] * TOKENS if pod_id[0] == "p" else 0,
        )  # fmt: skip
        self.roster.put(SERVES, view)

    def _load(self) -> Load:
        draw = self._chance
        running = draw.randrange(32)
        return Load(
            num_running=running, waiting_tokens=draw.randrange(8192), blocks_total=20_000, prefill_budget=512,
            blocks_free=draw.randrange(200, 20_000), prefill_s_per_token=draw.uniform(5e-5, 2e-4),
            step_s=draw.uniform(0.01, 0.04), step_sequences=running, step_s_per_sequence=draw.uniform(1e-4, 1e-3),
            link_rtt_s=draw.uniform(5e-4, 2e-3), link_s_per_token=draw.uniform(1e-6, 5e-5),
        )  # fmt: skip


def demands(pods: Pods, count: int, seed: int, *, free: bool) -> list[Demand]:
    """Return what is to be placed: prompts of which some pods hold a beginning."""
    chance, names, found = random.Random(seed), pods.names, []
    for _ in range(count):
        holders = chance.sample(names, min(2 * HOLDERS, len(names)))
        cached = {name: BLOCK * chance.randrange(1, TOKENS // BLOCK) for name in holders}
        longest = sorted(cached.items(), key=lambda each: -each[1])[:3]
        found.append(
            Demand(num_tokens=TOKENS, block_size=BLOCK, cached=cached, sources=tuple(longest), may_be_local=free)
        )
    return found


class Rooms:
    """What decode pods have room for: every second one has none."""

    def __init__(self, names: list[str]) -> None:
        self._rooms = {name: KvRoom() for name in names if name[0] == "d"}
        for at, room in enumerate(self._rooms.values()):
            room.report(Load(blocks_total=20_000, blocks_free=20_000 * (at % 2), num_running=8))

    def with_room(self, views: Sequence[PodView], demand: Demand) -> list[PodView]:
        """Return the pods that have room for a prompt and 512 tokens more, as an entrance does."""
        need = KvNeed.of(
            prompt_tokens=demand.num_tokens, answer_tokens=512, num_sequences=1, block_size=demand.block_size
        )
        closed = set()
        for view in views:
            wanted = need.without(demand.cached.get(view.pod_id, 0) // demand.block_size)
            if not self._rooms[view.pod_id].has_room(wanted.blocks):
                closed.add(view.key)
        return [view for view in views if view.key not in closed]


def measure(
    name: str,
    settings: dict[str, Any],
    count: int,
    rounds: int,
    seed: int,
    *,
    free: bool = False,
    is_full: bool = False,
    explain: bool = False,
) -> dict[str, Any]:
    """Return milliseconds of placements by `name` among `count` pods."""
    policy = policy_named(RouterConfig(model=("m",), cluster_secret="s", policy=name, **settings))
    pods = Pods(count, seed)
    rooms = Rooms(pods.names)
    running: deque[tuple[str, ...]] = deque()
    times_s = []
    asked = demands(pods, rounds, seed + 1, free=free)
    gc.collect()
    gc.freeze()  # what the bench holds is no part of a router's heap
    for each in asked:
        demand = dataclasses.replace(each, explain=explain)
        started_s = time.thread_time()
        decode, prefill = pods.roster.decode(SERVES), pods.roster.prefill(SERVES)
        placed = policy.place(demand, decode, prefill)
        if is_full:
            placed = policy.place(demand, rooms.with_room(decode, demand), prefill)
        times_s.append(time.thread_time() - started_s)
        names = (placed.decode, *(each.pod_id for each in placed.candidates[:1]))
        running.append(names)
        for pod_id in names:
            pods.update(pod_id, 1)
        if len(running) > AT_ONCE:
            for pod_id in running.popleft():
                pods.update(pod_id, -1)
    marks = statistics.quantiles(times_s, n=100)
    return {"p50-ms": round(1000 * marks[49], 4), "p99-ms": round(1000 * marks[98], 4)}


def measure_load(count: int, rounds: int, seed: int) -> float:
    """Return microseconds to take in one pod's load, median."""
    pods, times_s = Pods(count, seed), []
    for at in range(rounds):
        name = pods.names[at % count]
        started_s = time.thread_time()
        pods.update(name)
        times_s.append(time.thread_time() - started_s)
    return round(1e6 * statistics.median(times_s), 2)


def main() -> None:
    """Measure all policies, print a table, write figures."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=2000, help="placements of each policy and size")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    tight = {"slo_ttft_s": 0.5, "slo_gap_s": 0.02, "slo_tpot_s": 0.02}
    nowhere = {"slo_gap_s": 0.0001, "slo_tpot_s": 0.0001}
    runs: dict[str, tuple[str, dict[str, Any], dict[str, bool]]] = {name: (name, {}, {}) for name in BUILT_IN}
    runs |= {
        "slo, targets that hold for some": ("slo", tight, {}),
        "slo, the same, local or remote": ("slo", tight, {"free": True}),
        "slo, targets that hold nowhere": ("slo", nowhere, {"free": True}),
        "prefix_affinity, all of it, the first choice full": ("prefix_affinity", {}, {"is_full": True}),
        "slo, all of it, the first choice full": ("slo", {}, {"is_full": True}),
        "slo, explained": ("slo", {}, {"explain": True}),
    }
    figures: dict[str, Any] = {}
    print(f"{'policy':52}" + "".join(f"{size:>8} pods p50, p99 ms" for size in SIZES))
    for title, (name, settings, how) in runs.items():
        figures[title] = {
            str(size): measure(name, settings, size, arguments.rounds, arguments.seed, **how) for size in SIZES
        }
        cells = (f"{cell['p50-ms']:>16.3f}, {cell['p99-ms']:.3f}   " for cell in figures[title].values())
        print(f"{title:52}" + "".join(cells))
    load_us = {str(size): measure_load(size, arguments.rounds, arguments.seed) for size in SIZES}
    print("one pod's load, us: " + ", ".join(f"{size} pods {us}" for size, us in load_us.items()))
    write_figures(arguments.json, {"seed": arguments.seed, "placement": figures, "load-us": load_us})


if __name__ == "__main__":
    main()

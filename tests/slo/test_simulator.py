"""The simulator: deterministic, conserving, and the same whether it goes the fast way or the whole one."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator
from typing import ClassVar

import pytest

from pagewire.router.admission import Admission
from pagewire.router.tenants import ANONYMOUS, Tenant
from pagewire.slo.costs.cost_model import CostModel, LinkLaw, SharingLaw, StepLaw, StepLine, StepShape
from pagewire.slo.figures.record import Record
from pagewire.slo.figures.ttft_parts import BEFORE, BEHIND
from pagewire.slo.simulation.composition import Composition
from pagewire.slo.simulation.simulator import Simulator
from pagewire.slo.workloads.arrival import Arrival, Turn
from pagewire.slo.workloads.workload import Workload

PIECE = 64
PREFILL = StepLaw(lines=(StepLine(step_s=0.004, prefill_token_s=1e-4, prefill_pair_s=1e-9),), overhead_s=0.0003)
DECODE = StepLaw(
    lines=(StepLine(step_s=0.006, prefill_token_s=1e-4, decode_s=2e-4, prefill_pair_s=1e-9, decode_pair_s=1e-8),),
    overhead_s=0.0003,
)
COSTS = CostModel(
    prefill=PREFILL,
    decode=DECODE,
    token_bytes=24_576,
    link=LinkLaw(latency_s=0.0005, bytes_per_s=1.1e9, window_bytes=8 << 20, message_bytes=1 << 20),
    sharing=SharingLaw(
        prefill_beside_prefill=1.3, prefill_beside_decode=1.15, decode_beside_prefill=1.25, decode_beside_decode=1.1
    ),
    frame_s=0.00031,
    intake_s=0.0007,
    intake_token_s=1.3e-6,
)


def test_nothing_is_due_behind_the_duration() -> None:
    composition = Composition(prefill=1, decode=1)
    for asked in (workload(200, rate=20.0, turns=3), workload(10**9, rate=20.0, turns=3, concurrency=3)):
        simulator = Simulator(composition, COSTS, asked, duration_s=5.0)
        records = simulator.run()
        assert len(records) > 20
        assert 4.0 < max(record.intended_s for record in records) < 5.0
        assert simulator.is_cut
    for asked in (workload(20, rate=20.0, turns=3), workload(20, rate=20.0, turns=3, concurrency=3)):
        simulator = Simulator(composition, COSTS, asked, duration_s=1000.0)
        assert len(simulator.run()) == sum(len(arrival.turns) for arrival in asked)
        assert not simulator.is_cut


def test_a_turn_that_is_due_behind_the_duration_is_one_that_it_cut_off() -> None:
    asked = workload(20, rate=20.0, turns=2)
    duration_s = math.nextafter(max(arrival.at_s for arrival in asked), math.inf)
    simulator = Simulator(Composition(prefill=1, decode=1), COSTS, asked, duration_s=duration_s)
    assert 20 <= len(simulator.run()) < sum(len(arrival.turns) for arrival in asked)
    assert simulator.is_cut


def workload(
    num: int, *, rate: float, seed: int = 0, shared: float = 0.0, turns: int = 1, concurrency: int = 0
) -> Workload:
    """Poisson arrivals of varied lengths; a share of them begins with one of four pieces."""

    def source() -> Iterator[Arrival]:
        chance, at_s, fresh = random.Random(seed), 0.0, 1000
        for _ in range(num):
            at_s += chance.expovariate(rate)
            said = []
            for turn in range(chance.randint(1, turns)):
                length = chance.randint(20, 600)
                pieces = []
                for number in range(-(-length // PIECE)):
                    if number == turn == 0 and chance.random() < shared:
                        pieces.append(chance.randrange(4))
                    else:
                        pieces.append(fresh)
                        fresh += 1
                said.append(
                    Turn(
                        input_tokens=length,
                        output_tokens=chance.randint(1, 60),
                        pieces=tuple(pieces),
                        think_s=chance.random(),
                    )
                )
            yield Arrival(at_s=at_s, turns=tuple(said))

    return Workload(name="test", source=source, piece_tokens=PIECE, concurrency=concurrency, seed=seed)


CASES = {
    "1P1D": (Composition(), workload(150, rate=12.0)),
    "2P2D sharing, short of blocks": (
        Composition(prefill=2, decode=2, kv_blocks=150),
        workload(150, rate=25.0, shared=0.6, turns=3),
    ),
    "colocated": (Composition(colocated=2, max_num_seqs=8), workload(120, rate=10.0, shared=0.3)),
    "colocated, preempting": (Composition(colocated=1, kv_blocks=60, admission=False), workload(80, rate=12.0)),
    "auto": (Composition(prefill=1, decode=2, prefill_mode="auto", policy="slo"), workload(120, rate=14.0)),
    "promises": (
        Composition(prefill=1, decode=1, policy="slo", slo_ttft_s=0.2, slo_tpot_s=0.02),
        workload(150, rate=20.0),
    ),
    "1P1D on one machine": (Composition(pods_per_machine=2), workload(150, rate=10.0)),
    "2P2D, three on one machine": (
        Composition(prefill=2, decode=2, pods_per_machine=3),
        workload(150, rate=20.0, shared=0.4, turns=2),
    ),
    "colocated on one machine": (Composition(colocated=3, pods_per_machine=3), workload(120, rate=14.0)),
    "closed loop, srpt": (Composition(scheduling="srpt"), workload(100, rate=1.0, concurrency=12)),
    "a step target": (Composition(colocated=1, step_target_s=0.02), workload(80, rate=8.0)),
}


def by_number(records: list[Record]) -> list[Record]:
    return sorted(records, key=lambda record: int(record.request_id))


@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("name", CASES)
def test_the_fast_way_comes_to_the_same_moments(name: str, noise: float) -> None:
    composition, asked = CASES[name]
    costs = CostModel(**{**{each: getattr(COSTS, each) for each in COSTS.__slots__}, "noise": noise})
    whole = Simulator(composition, costs, asked, 7, is_fast=False)
    fast = Simulator(composition, costs, asked, 7)
    ours, theirs = by_number(fast.run()), by_number(whole.run())
    assert [record.request_id for record in ours] == [record.request_id for record in theirs]
    for our, their in zip(ours, theirs, strict=True):
        assert our == their
    for pod_id, pod in fast.decode_pods.items():
        other = whole.decode_pods[pod_id].engine
        assert pod.engine.num_steps == other.num_steps
        assert pod.engine.busy_s == pytest.approx(other.busy_s)


@pytest.mark.parametrize("name", CASES)
def test_the_same_seed_gives_the_same_run(name: str) -> None:
    composition, asked = CASES[name]
    costs = CostModel(**{**{each: getattr(COSTS, each) for each in COSTS.__slots__}, "noise": 0.3})
    first, second = (Simulator(composition, costs, asked, 3).run() for _ in range(2))
    assert first == second
    assert first != Simulator(composition, costs, asked, 4).run()


@pytest.mark.parametrize("name", CASES)
def test_every_request_ends_once_with_all_its_tokens_or_an_error(name: str) -> None:
    composition, asked = CASES[name]
    simulator = Simulator(composition, COSTS, asked, 0)
    records = simulator.run()  # which checks that every block has come back
    keys = [(record.arrival, record.turn) for record in records]
    assert len(keys) == len(set(keys))
    turns = {number: len(arrival.turns) for number, arrival in enumerate(asked)}
    failed = {record.arrival for record in records if record.error}
    for number, count in turns.items():
        assert number in failed or sum(key[0] == number for key in keys) == count
    for record in records:
        assert record.ended_s is not None
        assert record.ended_s >= max(record.intended_s, record.last_s or 0.0)
        if not record.error:
            assert record.output_tokens == record.wanted_tokens
            assert record.intended_s < (record.first_s or 0.0) <= (record.last_s or 0.0)
            assert sum(record.gaps_s) == pytest.approx((record.last_s or 0.0) - (record.first_s or 0.0))
            assert all(gap >= 0 for gap in record.gaps_s)
            parts_s = record.ttft_parts_s
            assert parts_s is not None
            assert min(parts_s.values()) >= 0
            assert sum(parts_s[name] for name in BEFORE) <= (record.ttft_s or 0.0) + 1e-9
            assert record.output_tokens == 1 or sum(parts_s[name] for name in BEHIND) <= record.gaps_s[0] + 1e-9


class CountedAdmission(Admission):
    """The product's admission with how many requests it has in, integrated over virtual time; it knows no record."""

    made: ClassVar[list[CountedAdmission]] = []

    def __init__(self, max_concurrent: int) -> None:
        super().__init__(max_concurrent)
        self.made.append(self)
        self.area_s, self.num_entered, self._seen_s = 0.0, 0, 0.0

    def enter(self, now_s: float, tenant: Tenant = ANONYMOUS) -> None:
        self._pass(now_s)
        super().enter(now_s, tenant)
        self.num_entered += 1

    def leave(self, now_s: float, tenant: Tenant = ANONYMOUS) -> None:
        self._pass(now_s)
        super().leave(now_s, tenant)

    def _pass(self, now_s: float) -> None:
        self.area_s += self.active * (now_s - self._seen_s)
        self._seen_s = now_s


def admitted(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[CountedAdmission, list[Record], Simulator]:
    """Return what the router's admission counted in a run, beside its records."""
    monkeypatch.setattr("pagewire.slo.simulation.router.Admission", CountedAdmission)
    CountedAdmission.made.clear()
    simulator = Simulator(CASES[name][0], COSTS, CASES[name][1], 0)
    records = simulator.run()
    (counted,) = CountedAdmission.made
    return counted, records, simulator


def is_littles_law(counted: CountedAdmission, records: list[Record], length_s: float) -> bool:
    """Whether the mean number in the router is the rate at which it let requests in times the mean stay by records."""
    mean_stay_s = sum(record.e2e_s or 0.0 for record in records) / len(records)
    return counted.area_s / length_s == pytest.approx(counted.num_entered / length_s * mean_stay_s, rel=1e-9)


@pytest.mark.parametrize("name", [name for name in CASES if name != "promises"])  # of what is refused no stay is told
def test_requests_in_the_system_are_their_rate_times_their_stay(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counted, records, simulator = admitted(name, monkeypatch)
    assert not any(record.error for record in records)
    assert counted.active == 0 < counted.area_s
    assert counted.num_entered == len(records)
    assert is_littles_law(counted, records, simulator.now_s)
    for pod in simulator.pods:
        assert 0 < pod.engine.busy_s <= simulator.now_s


def test_records_that_are_wrong_break_that_law(monkeypatch: pytest.MonkeyPatch) -> None:
    counted, records, simulator = admitted("1P1D", monkeypatch)
    one, *others = records
    last_s = one.last_s or 0.0
    early = dataclasses.replace(one, last_s=last_s - COSTS.frame_s)  # by one frame of one answer in 150
    late = dataclasses.replace(one, intended_s=one.intended_s - 0.001)
    assert is_littles_law(counted, records, simulator.now_s)
    for falsified in ([early, *others], [late, *others], others, [*records, one]):
        assert not is_littles_law(counted, falsified, simulator.now_s)


def test_one_request_alone_takes_the_sum_of_its_parts() -> None:
    one = Workload(
        name="one",
        source=lambda: [Arrival(at_s=1.0, turns=(Turn(input_tokens=100, output_tokens=3, pieces=(1, 2)),))],
        piece_tokens=PIECE,
    )
    (record,) = Simulator(Composition(), COSTS, one, 0).run()
    frame_s, size = COSTS.frame_s, 16
    prefill_s = PREFILL.seconds(StepShape(prefill_tokens=100, prefill_pairs=5050))
    intake_s = COSTS.intake_s + 100 * COSTS.intake_token_s
    # To the decode pod; its question to the engine and the answer; to the prefill pod; back, and on to the caller.
    assert record.ttft_s == pytest.approx(intake_s + 4 * frame_s + prefill_s + 3 * frame_s)
    num_bytes = 7 * size * COSTS.token_bytes
    landed_s = frame_s + num_bytes / COSTS.link.bytes_per_s + COSTS.link.latency_s
    steps_s = [DECODE.seconds(StepShape(decodes=1, decode_pairs=pairs)) for pairs in (101, 102)]
    # A frame to join, and from there on the second token's way to the caller is the first one's but for a frame.
    assert record.gaps_s == pytest.approx((landed_s + steps_s[0], steps_s[1]))
    assert record.ttft_parts_s == pytest.approx(
        {
            "router": intake_s, "admission": 2 * frame_s, "prefill_queue": 0.0, "compute": prefill_s,
            "queue_and_compute": 0.0, "exposed_transfer": landed_s - frame_s, "first_step": frame_s + steps_s[0],
        }
    )  # fmt: skip


@pytest.mark.parametrize(("longest", "error"), [(103, ""), (102, "context_length_exceeded")])
def test_what_is_longer_than_the_model_goes_is_refused_as_by_a_router(longest: int, error: str) -> None:
    one = Workload(
        name="one",
        source=lambda: [Arrival(at_s=1.0, turns=(Turn(input_tokens=100, output_tokens=3, pieces=(1, 2)),))],
        piece_tokens=PIECE,
    )
    (record,) = Simulator(Composition(max_model_len=longest), COSTS, one, 0).run()
    assert (record.error, record.output_tokens) == (error, 0 if error else 3)
    assert record.cached_tokens == (None if error else 0)  # nobody looked for what was refused
    assert record.ended_s == (1.0 if error else record.last_s)


def test_pods_of_one_machine_slow_each_other_down_while_their_steps_overlap() -> None:
    def asked() -> list[Arrival]:
        first = Arrival(at_s=1.0, turns=(Turn(input_tokens=32, output_tokens=40, pieces=(1,)),))
        return [first, Arrival(at_s=1.1, turns=(Turn(input_tokens=64, output_tokens=1, pieces=(2,)),))]

    two = Workload(name="two", source=asked, piece_tokens=PIECE)
    apart = by_number(Simulator(Composition(), COSTS, two, 0).run())
    together = by_number(Simulator(Composition(pods_per_machine=2), COSTS, two, 0).run())
    prompt_s = PREFILL.seconds(StepShape(prefill_tokens=64, prefill_pairs=2080))
    # The first one decodes all the while, and so the second one's prompt takes its factor as long.
    slower_s = prompt_s * COSTS.sharing.prefill_beside_decode
    assert (together[1].ttft_s or 0.0) - (apart[1].ttft_s or 0.0) == pytest.approx(slower_s - prompt_s)
    # In that time as much less is decoded.
    lost_s = slower_s * (1 - 1 / COSTS.sharing.decode_beside_prefill)
    assert (together[0].last_s or 0.0) - (apart[0].last_s or 0.0) == pytest.approx(lost_s)


def test_a_shared_prefix_is_found_again() -> None:
    asked = workload(60, rate=5.0, shared=1.0)
    cached = sum(record.cached_tokens or 0 for record in Simulator(Composition(), COSTS, asked, 0).run())
    fresh = sum(
        record.cached_tokens or 0 for record in Simulator(Composition(), COSTS, workload(60, rate=5.0), 0).run()
    )
    assert fresh == 0 < cached

"""What a decode pod takes a prompt token to cost here, as its own engine or its peers measured it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pagewire.core.kv_layout import KVLayout
from pagewire.core.load import Load
from pagewire.core.messages import Candidate
from pagewire.core.rest import HALF_LIFE_S, REST_S
from pagewire.decode_service.prefill_choice import BOUND
from pagewire.decode_service.prefill_costs import PrefillCosts
from pagewire.kvtransfer.link_cost import LinkCost

LAYOUT = KVLayout(num_layers=1, num_kv_heads=1, head_dim=4, block_size=16, dtype="float32")


@dataclass
class Peer:
    load: Load | None
    belief: float = 1.0


class Peers:
    """Peers that said so much; None for one that was met and said nothing yet."""

    def __init__(self, *measured_s: float | None) -> None:
        self._peers = {
            f"p{at}": Peer(None if each is None else Load(prefill_s_per_token=each))
            for at, each in enumerate(measured_s)
        }

    def all(self) -> dict[str, Peer]:
        return self._peers

    def known(self, pod_id: str, address: str) -> Peer | None:
        return self._peers.get(pod_id)

    def cost(self, pod_id: str, address: str) -> LinkCost:
        return LinkCost(rtt_s=0.0, s_per_byte=0.0)


@pytest.mark.parametrize(
    ("own", "peers", "expected"),
    [
        (0.0, (), 0.0),
        (0.0, (None, 0.0), 0.0),  # 0: it has not computed a prompt either
        (0.0, (3.0, None, 0.0), 3.0),
        (0.0, (9.0, 1.0, 2.0), 2.0),  # one that was disturbed, and one that was lucky, do not speak for all
        (0.0, (1.0, 3.0), 2.0),
        (5.0, (1.0, 3.0), 5.0),
    ],
)
def test_its_own_measure_or_the_median_of_its_peers(
    own: float, peers: tuple[float | None, ...], expected: float
) -> None:
    costs = PrefillCosts(LAYOUT, lambda: Load(prefill_s_per_token=own), Peers(*peers))
    assert costs.s_per_token == expected


def test_a_pod_that_was_slow_once_and_is_not_asked_is_thought_as_quick_as_we_are_in_the_end() -> None:
    """What it says of itself stays what it was while it computes nothing."""
    peers = Peers(0.6)
    costs = PrefillCosts(LAYOUT, lambda: Load(prefill_s_per_token=0.01), peers)
    candidate = Candidate(pod_id="p0", address="a")
    assert costs.remote_s(100, candidate, ()) == pytest.approx(60.0)
    peers.all()["p0"].belief = 0.5
    assert costs.remote_s(100, candidate, ()) == pytest.approx(30.5)
    peers.all()["p0"].belief = 0.0
    assert costs.remote_s(100, candidate, ()) == pytest.approx(1.0)


def test_a_pod_that_is_quick_is_believed() -> None:
    peers = Peers(0.001)
    peers.all()["p0"].belief = 0.0
    costs = PrefillCosts(LAYOUT, lambda: Load(prefill_s_per_token=0.01), peers)
    assert costs.remote_s(100, Candidate(pod_id="p0", address="a"), ()) == pytest.approx(0.1)


def test_corrections_that_nothing_comes_to_fade() -> None:
    costs = PrefillCosts(LAYOUT, Load, Peers())
    for _ in range(100):
        costs.here.observe(1.0, 100.0)
        costs.there.observe(1.0, 100.0)
    costs.tick(1000.0)
    assert [costs.here.factor, costs.there.factor] == pytest.approx([BOUND, BOUND])
    costs.tick(1000.0 + REST_S + HALF_LIFE_S)
    assert [costs.here.factor, costs.there.factor] == pytest.approx(2 * [1 + (BOUND - 1) / 2])


def test_a_pod_that_was_slow_once_itself_takes_its_peers_word_in_the_end() -> None:
    """It would have all prompts built elsewhere, and never measure itself anew."""
    costs = PrefillCosts(LAYOUT, lambda: Load(prefill_s_per_token=0.6), Peers(0.2, 0.1, 0.3))
    costs.tick(0.0)
    assert costs.s_per_token == 0.6
    costs.tick(REST_S + HALF_LIFE_S)
    assert costs.s_per_token == pytest.approx(0.4)
    costs.here.observe(1.0, 1.0)  # it computed a prompt: that is what it measured
    assert costs.s_per_token == 0.6
    costs.tick(1e9)
    assert costs.s_per_token == pytest.approx(0.2)
    alone = PrefillCosts(LAYOUT, lambda: Load(prefill_s_per_token=0.6), Peers())
    alone.tick(0.0)
    alone.tick(1e9)
    assert alone.s_per_token == 0.6

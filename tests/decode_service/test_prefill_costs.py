"""What a decode pod takes a prompt token to cost here, as its own engine or its peers measured it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pagewire.core.kv_layout import KVLayout
from pagewire.core.load import Load
from pagewire.decode_service.prefill_costs import PrefillCosts
from pagewire.kvtransfer.link_cost import LinkCost

LAYOUT = KVLayout(num_layers=1, num_kv_heads=1, head_dim=4, block_size=16, dtype="float32")


@dataclass
class Peer:
    load: Load | None


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

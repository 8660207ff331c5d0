"""How fast KV comes to pods: what two loads of one pod tell, and where they tell nothing."""

from __future__ import annotations

from pagewire.core.load import Inflow, Load
from pagewire.router.live.rates import MAX_GAP_S, Rates


def load_at(at_s: float, **taken: int) -> Load:
    return Load(at_s=at_s, inflows=tuple(Inflow(source=name, num_bytes=count) for name, count in taken.items()))


def test_rates_are_differences_by_the_pods_own_clock() -> None:
    rates = Rates()
    assert rates.take({"d": load_at(10.0, p=1000)}) == {"d": {}}
    assert rates.take({"d": load_at(12.0, p=5000, q=600)}) == {"d": {"p": 2000.0, "q": 300.0}}
    # The same heartbeat, looked at again, says the same.
    assert rates.take({"d": load_at(12.0, p=5000, q=600)}) == {"d": {"p": 2000.0, "q": 300.0}}
    assert rates.take({"d": load_at(13.0, p=5000, q=600)}) == {"d": {"p": 0.0, "q": 0.0}}
    # Met anew: it counts from nothing, and no rate is negative.
    assert rates.take({"d": load_at(14.0, p=70)}) == {"d": {"p": 0.0}}
    # Nobody looked for a while: a mean over that time is no speed of now. Neither is one against the clock.
    assert rates.take({"d": load_at(14.1 + MAX_GAP_S, p=900)}) == {"d": {}}
    assert rates.take({"d": load_at(3.0, p=900)}) == {"d": {}}
    assert rates.take({}) == {}
    assert rates.take({"d": load_at(4.0, p=9000)}) == {"d": {}}


def test_two_loads_tell_a_speed_however_close_and_for_as_long_as_somebody_looks() -> None:
    rates = Rates()
    rates.take({"d": load_at(10.0, p=0), "e": load_at(10.0)})
    assert rates.take({"d": load_at(10.5, p=1), "e": load_at(11.0, q=3)}) == {"d": {"p": 2.0}, "e": {"q": 3.0}}
    assert rates.take({"d": load_at(10.5 + MAX_GAP_S, p=1)}) == {"d": {"p": 0.0}}
    assert rates.take({"d": load_at(10.5 + MAX_GAP_S, p=7)}) == {"d": {"p": 0.0}}, "no time has passed"
    assert rates.take({"d": load_at(10.0 + MAX_GAP_S, p=9)}) == {"d": {}}, "a clock that went back tells nothing"
    assert rates.take({"d": load_at(11.0 + MAX_GAP_S, p=12)}) == {"d": {"p": 3.0}}
